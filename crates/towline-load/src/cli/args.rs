//! Parses the arguments into a command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lexopt::prelude::{Long, Short, Value};
use lexopt::{Arg, Parser};
use towline_proto::Protocol;

use super::hosts;
use super::job::{Command, Job, Output};
use super::options::{About, Opt, by_letter, by_name, unknown};
use super::requests::RequestArgs;
use super::thresholds::{self, Threshold};
use super::{help, scenario, values};
use crate::config::{Config, LoopMode, Mix, Trust, Until};
use crate::data::Data;
use crate::hosts::HostOptions;
use crate::report::percentiles;
use crate::schedule::{Arrivals, Rate};
use crate::search::{Goal, PeakSearch};
use crate::stages::Stages;
use crate::target::SendMode;

/// Longer than the restart of a worker or a failover, in which a load should go on, and short for a person
/// who waits.
const GIVE_UP_AFTER: Duration = Duration::from_secs(3);

/// The first rate of a search for the peak, in requests per second.
const FIRST_RATE: f64 = 1000.0;

/// `Err` is a message for the user.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = Parser::from_args(args);
    let mut given = ParsedArgs::new();
    let mut options = Vec::new();
    // Several conditions may follow one `--fail-if`.
    let mut after_condition = false;
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        match arg {
            Short('h') | Long("help") => return topic(&mut parser).map(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Long("agent") => return agent(&mut parser).map(Command::Agent),
            Value(value) => {
                let value = text(value)?;
                if after_condition && thresholds::is_condition(&value) {
                    given.thresholds.push(Threshold::parse(&value)?);
                } else {
                    given.urls.push(value);
                }
            }
            Short(_) | Long(_) => {
                // Looked up before its value is taken: otherwise an unknown switch would take the URL as
                // its value.
                let option = known(&arg)?;
                let value = if option.takes_value() {
                    text(parser.value().map_err(|error| error.to_string())?)?
                } else {
                    String::new()
                };
                after_condition = option.name == "fail-if";
                options.push((option, value));
            }
        }
    }
    given.all(&options)?;
    given.job().map(|job| Command::Run(Box::new(job)))
}

fn known(arg: &Arg<'_>) -> Result<&'static Opt, String> {
    match arg {
        Short('s') => Err("-s is ab's timeout and wrk's script: use --timeout".into()),
        Short('X') => Err("-X is ab's proxy, which is not supported; for a method: -m".into()),
        Short(letter) => by_letter(*letter).ok_or_else(|| unknown(&format!("-{letter}"))),
        Long(name) => by_name(name).ok_or_else(|| unknown(&format!("--{name}"))),
        Value(_) => Err("an option is missing".into()),
    }
}

/// The topic given to `--help`.
fn topic(parser: &mut Parser) -> Result<String, String> {
    let attached = parser.optional_value();
    let mut next = || parser.raw_args().ok().and_then(|mut args| args.next());
    // An option or a URL is not a topic.
    let is_word = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        !arg.starts_with('-') && !arg.contains("://")
    };
    let topic = attached.or_else(|| next().filter(is_word));
    let topic = topic.map_or(Ok(String::new()), text)?;
    help::of(&topic).ok_or_else(|| {
        format!(
            "there is no help on {topic:?}; the topics are {}",
            help::names()
        )
    })
}

/// `--agent` allows no other options than those of hosts.
fn agent(parser: &mut Parser) -> Result<Option<HostOptions>, String> {
    let mut hosts = HostOptions::default();
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        let name = match arg {
            Long(name) => name.to_owned(),
            _ => String::new(),
        };
        if !matches!(
            name.as_str(),
            "hosts" | "ssh" | "agent-command" | "agent-binary"
        ) {
            return Err(
                "--agent takes --hosts, --ssh, --agent-command and --agent-binary only: sessions are opened by \
                 lines of JSON"
                    .into(),
            );
        }
        let value = text(parser.value().map_err(|error| error.to_string())?)?;
        hosts::option(&mut hosts, &name, &value)?;
    }
    hosts::checked(hosts)
}

/// The parsed arguments, before URLs and options are combined.
struct ParsedArgs {
    urls: Vec<String>,
    config: Config,
    shape: LoadShape,
    requests: RequestArgs,
    has_scenario: bool,
    find_peak: bool,
    goal: Goal,
    max_rate: Option<f64>,
    sweep: Vec<usize>,
    output: Output,
    hdr_log: Option<PathBuf>,
    thresholds: Vec<Threshold>,
    live: bool,
    hosts: HostOptions,
}

/// Options of which the loop and its stages are made.
#[derive(Default)]
struct LoadShape {
    rate: Option<f64>,
    arrivals: Arrivals,
    stages: Option<String>,
    /// The value of `-c`.
    connections: Option<usize>,
}

impl ParsedArgs {
    fn new() -> Self {
        Self {
            urls: Vec::new(),
            config: Config {
                give_up_after: Some(GIVE_UP_AFTER),
                ..Config::new(Vec::new())
            },
            shape: LoadShape::default(),
            requests: RequestArgs::default(),
            has_scenario: false,
            find_peak: false,
            goal: Goal::default(),
            max_rate: None,
            sweep: Vec::new(),
            output: Output::Text,
            hdr_log: None,
            thresholds: Vec::new(),
            live: true,
            hosts: HostOptions::default(),
        }
    }

    /// Applies the scenario first; other options override it, whatever their position.
    fn all(&mut self, options: &[(&Opt, String)]) -> Result<(), String> {
        if let Some((_, path)) = options
            .iter()
            .rfind(|(option, _)| option.name == "scenario")
        {
            let request = options
                .iter()
                .find(|(option, _)| option.about == About::Request);
            if let Some((option, _)) = request {
                return Err(format!(
                    "--{} changes the requests, which the scenario defines",
                    option.name
                ));
            }
            if !self.urls.is_empty() {
                return Err("a scenario has its own URLs".into());
            }
            self.config = Config {
                give_up_after: Some(GIVE_UP_AFTER),
                ..scenario::read(path)?
            };
            self.has_scenario = true;
        }
        let is_given = |name| options.iter().any(|(option, _)| option.name == name);
        if is_given("stages") {
            let excluded = [
                "duration",
                "requests",
                "warm-up",
                "ramp",
                "barrier",
                "storm",
                "find-peak",
                "connections-sweep",
            ];
            if let Some(other) = excluded.into_iter().find(|name| is_given(name)) {
                return Err(format!("--stages and --{other} exclude each other"));
            }
        }
        options
            .iter()
            .try_for_each(|(option, value)| self.option(option, value))
    }

    fn option(&mut self, option: &Opt, value: &str) -> Result<(), String> {
        if !option.takes_value() {
            return self.switch(option.name);
        }
        if self.load_option(option.name, value)?
            || self.requests.option(option.name, value)?
            || hosts::option(&mut self.hosts, option.name, value)?
        {
            return Ok(());
        }
        self.other_option(option.name, value)
    }

    /// Options without a value.
    fn switch(&mut self, name: &str) -> Result<(), String> {
        match name {
            "http2" => self.config.protocol = Protocol::Http2,
            "http3" => self.config.protocol = Protocol::Http3,
            "early-data" => self.config.early_data = true,
            "fresh" => self.config.requests_per_connection = Some(1),
            "poisson" => self.shape.arrivals = Arrivals::Poisson,
            "head" => self.requests.method = Some("HEAD".into()),
            "verify" => self.config.trust = Trust::System,
            "find-peak" => self.find_peak = true,
            "ws-binary" => self.requests.messages.binary = true,
            "ws-deflate" => self.requests.messages.deflate = true,
            "json" => self.output = Output::Json,
            "csv" => self.output = Output::Csv,
            "barrier" => self.config.barrier = true,
            "storm" => {
                self.config.barrier = true;
                self.config.requests_per_connection = Some(1);
            }
            "expect-continue" => self.requests.send_mode(SendMode::AwaitContinue)?,
            "no-tui" => self.live = false,
            // Options of ab and wrk that have no effect here.
            _ => {}
        }
        Ok(())
    }

    fn load_option(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let config = &mut self.config;
        let small = |value| values::count(value).map(|count| count as usize);
        match name {
            "connections" => {
                config.connections = small(value)?;
                self.shape.connections = Some(config.connections);
            }
            "threads" => config.threads = small(value)?,
            "duration" => config.until = Until::Time(positive(value)?),
            "requests" => config.until = Until::Requests(values::count(value)?),
            "stages" => self.shape.stages = Some(value.into()),
            "rate" => self.shape.rate = Some(values::rate(value)?),
            "pipeline" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                config.pipeline = small(value)?;
            }
            "pipeline" if self.has_scenario => {
                return Err(format!(
                    "{value:?} is not a number, and a scenario defines its bodies"
                ));
            }
            // The meaning in ab.
            "pipeline" => return self.requests.upload("POST", value).map(|()| true),
            "streams" => config.streams = small(value)?,
            // The meaning in h2load: no method is a number.
            "method" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                config.streams = values::count(value)? as usize;
            }
            "requests-per-connection" => {
                config.requests_per_connection = Some(values::count(value)?);
            }
            "warm-up" => config.warm_up = values::duration(value)?,
            "ramp" => config.ramp = values::duration(value)?,
            "timeout" => config.timeout = positive(value)?,
            "connect-timeout" => config.connect_timeout = positive(value)?,
            "seed" => {
                config.seed = value
                    .parse()
                    .map_err(|_| format!("{value:?} is not a seed"))?;
            }
            "refusal-status" => config.refusal_statuses = values::list(value, values::status)?,
            "scenario" => {}
            "data" => {
                let data = Data::read(value.as_ref()).map_err(|error| error.to_string())?;
                config.data = Some(Arc::new(data));
            }
            "unix-socket" => config.unix_socket = Some(value.into()),
            "give-up-after" => config.give_up_after = Some(positive(value)?),
            "cacert" => config.trust = Trust::Path(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn other_option(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "goal" => {
                let goal = positive(value)?;
                self.goal.max_us = goal.as_secs_f64() * 1e6;
            }
            "goal-percentile" => {
                self.goal.percent = percentiles::check(values::number(value)?)?;
            }
            "goal-errors" => self.goal.error_share = values::number(value)?,
            "max-rate" => self.max_rate = Some(values::rate(value)?),
            "connections-sweep" => {
                self.sweep = values::list(value, |text| values::count(text).map(|n| n as usize))?;
            }
            "fail-if" => self.thresholds.push(Threshold::parse(value)?),
            "hdr-log" => self.hdr_log = Some(value.into()),
            _ => return Err(format!("unknown option --{name}")),
        }
        Ok(())
    }

    fn job(mut self) -> Result<Job, String> {
        if self.urls.is_empty() && !self.has_scenario {
            return Err("a URL is missing".into());
        }
        if self.find_peak && !self.sweep.is_empty() {
            return Err("--find-peak and --connections-sweep exclude each other".into());
        }
        if !self.requests.weights.is_empty() {
            if self.requests.weights.len() != self.urls.len() {
                return Err("--weights takes one number for each URL".into());
            }
            self.config.mix = Mix::AtRandom;
        }
        if !self.has_scenario {
            let urls = self.urls.iter().enumerate();
            self.config.targets = urls
                .map(|(index, url)| self.requests.target(index, url))
                .collect::<Result<_, _>>()?;
        }
        let arrivals = self.shape.arrivals;
        if self.shape.rate.is_none() && arrivals == Arrivals::Poisson && !self.find_peak {
            return Err("--poisson needs an open loop: give --rate".into());
        }
        if self.shape.rate.is_some() || arrivals == Arrivals::Poisson {
            self.config.loop_mode = LoopMode::Open(Rate {
                per_s: self.shape.rate.unwrap_or(FIRST_RATE),
                arrivals,
                ramp: self.config.ramp,
            });
        }
        self.apply_stages()?;
        if self.find_peak && !self.thresholds.is_empty() {
            return Err("--find-peak has --goal in place of --fail-if".into());
        }
        let steps = self.config.step_names();
        (self.thresholds.iter()).try_for_each(|threshold| threshold.check(&steps))?;
        let hosts = hosts::of_job(self.hosts.clone(), &self.config)?;
        if hosts.is_none() {
            self.limit_connections();
        }
        let first_rate = self.shape.rate.unwrap_or(FIRST_RATE);
        let search = PeakSearch::new(first_rate, self.max_rate.unwrap_or(1e6));
        Ok(Job {
            config: self.config,
            peak: self.find_peak.then_some((self.goal, search)),
            sweep: self.sweep,
            output: self.output,
            hdr_log: self.hdr_log,
            thresholds: self.thresholds,
            live: self.live,
            hosts,
        })
    }

    /// With a rate the stages change the rate, otherwise the number of connections.
    fn apply_stages(&mut self) -> Result<(), String> {
        let Some(text) = &self.shape.stages else {
            return Ok(());
        };
        let config = &mut self.config;
        let stages = values::stages(text)?;
        let whole = |(_, target): &(Duration, f64)| target.fract() == 0.0;
        #[expect(clippy::cast_precision_loss, reason = "checked by the configuration")]
        let start = match self.shape.rate {
            Some(per_s) => per_s,
            None if !stages.iter().all(whole) => {
                return Err("without --rate, --stages are whole numbers of connections".into());
            }
            None => self.shape.connections.unwrap_or(0) as f64,
        };
        let stages = Stages::new(text, start, stages);
        if stages.most() <= 0.0 {
            return Err("a stage must have a target above 0".into());
        }
        config.until = Until::Time(stages.duration());
        match &mut config.loop_mode {
            LoopMode::Open(rate) => rate.per_s = stages.mean(),
            LoopMode::Closed => config.connections = stages.most_connections(),
        }
        config.stages = Some(stages);
        Ok(())
    }

    /// Opens no connection that would have no request.
    fn limit_connections(&mut self) {
        let config = &mut self.config;
        let Until::Requests(requests) = config.until else {
            return;
        };
        if self.find_peak || !self.sweep.is_empty() {
            return;
        }
        let requests = usize::try_from(requests).unwrap_or(usize::MAX);
        config.threads = config.threads.min(requests);
        let fewest = config.threads * config.destinations().len();
        if config.connections >= fewest {
            config.connections = config.connections.min(requests.max(fewest));
        }
    }
}

fn positive(value: &str) -> Result<Duration, String> {
    let time = values::duration(value)?;
    if time.is_zero() {
        return Err(format!("{value:?} is not a positive time"));
    }
    Ok(time)
}

fn text(value: OsString) -> Result<String, String> {
    value
        .into_string()
        .map_err(|value| format!("{} is not UTF-8", value.display()))
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
