//! From arguments to what is to be done.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use lexopt::prelude::{Long, Short, Value};
use lexopt::{Arg, Parser};
use towline_io::call::Credentials;

use super::values;
use crate::config::{Config, Mix, Pace, Trust, Until};
use crate::schedule::{Arrivals, Rate};
use crate::search::{Goal, PeakSearch};
use crate::target::{Expect, Target};

#[derive(Clone, Debug)]
pub enum Command {
    Help,
    Version,
    Run(Box<Job>),
}

/// One or several runs, and how they are shown.
#[derive(Clone, Debug)]
pub struct Job {
    pub config: Config,
    pub peak: Option<(Goal, PeakSearch)>,
    /// Numbers of connections; empty: one run.
    pub sweep: Vec<usize>,
    pub output: Output,
    pub hdr_log: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    Text,
    Json,
    Csv,
}

/// `Err` is a message for the user.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut parser = Parser::from_args(args);
    let mut given = Given::new();
    while let Some(arg) = parser.next().map_err(|error| error.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(Command::Help),
            Short('V') | Long("version") => return Ok(Command::Version),
            Value(url) => given.urls.push(text(url)?),
            Short(_) | Long(_) => {
                let name = Name::of(&arg);
                given.option(&name, &mut parser)?;
            }
        }
    }
    given.job().map(|job| Command::Run(Box::new(job)))
}

/// An option's name, the short ones turned into the long.
struct Name(String);

impl Name {
    fn of(arg: &Arg<'_>) -> Self {
        let Short(short) = arg else {
            let Long(long) = arg else {
                return Self(String::new());
            };
            return Self((*long).into());
        };
        let long = match short {
            'c' => "connections",
            't' => "threads",
            'd' => "duration",
            'n' => "requests",
            'R' => "rate",
            'p' => "pipeline",
            'm' => "method",
            'H' => "header",
            'T' => "content-type",
            'i' => "head",
            'A' => "auth",
            'C' => "cookie",
            'u' => "put",
            'k' => "keep-alive",
            'q' => "quiet",
            other => return Self(format!("-{other}")),
        };
        Self(long.into())
    }
}

/// What the arguments said, before URLs and options come together.
struct Given {
    urls: Vec<String>,
    config: Config,
    rate: Option<f64>,
    arrivals: Arrivals,
    weights: Vec<u32>,
    method: Option<String>,
    fields: Vec<(Box<str>, Box<[u8]>)>,
    content_type: Option<String>,
    body: Option<Bytes>,
    form: Vec<u8>,
    expect: Expect,
    find_peak: bool,
    goal: Goal,
    most_rate: f64,
    sweep: Vec<usize>,
    output: Output,
    hdr_log: Option<PathBuf>,
}

impl Given {
    fn new() -> Self {
        Self {
            urls: Vec::new(),
            config: Config::new(Vec::new()),
            rate: None,
            arrivals: Arrivals::Constant,
            weights: Vec::new(),
            method: None,
            fields: Vec::new(),
            content_type: None,
            body: None,
            form: Vec::new(),
            expect: Expect::default(),
            find_peak: false,
            goal: Goal::default(),
            most_rate: 1e6,
            sweep: Vec::new(),
            output: Output::Text,
            hdr_log: None,
        }
    }

    fn option(&mut self, name: &Name, parser: &mut Parser) -> Result<(), String> {
        let name = name.0.as_str();
        if self.switch(name)? {
            return Ok(());
        }
        if !VALUED.contains(&name) {
            let dashes = if name.starts_with('-') { "" } else { "--" };
            return Err(format!("unknown option {dashes}{name}"));
        }
        let value = parser.value().map_err(|error| error.to_string())?;
        let value = text(value)?;
        let value = value.as_str();
        if self.load_option(name, value)? || self.request_option(name, value)? {
            return Ok(());
        }
        self.other_option(name, value)
    }

    /// Options without a value; false when `name` is none of them.
    fn switch(&mut self, name: &str) -> Result<bool, String> {
        match name {
            "fresh" => self.config.requests_per_connection = Some(1),
            "poisson" => self.arrivals = Arrivals::Poisson,
            "head" => self.method = Some("HEAD".into()),
            "verify" => self.config.trust = Trust::System,
            "find-peak" => self.find_peak = true,
            "json" => self.output = Output::Json,
            "csv" => self.output = Output::Csv,
            "keep-alive" | "latency" | "quiet" => {}
            "-s" => return Err("-s is ab's timeout and wrk's script: use --timeout".into()),
            "-X" => return Err("-X is ab's proxy, which is not supported; for a method: -m".into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn load_option(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let config = &mut self.config;
        let small = |value| values::count(value).map(|count| count as usize);
        match name {
            "connections" => config.connections = small(value)?,
            "threads" => config.threads = small(value)?,
            "duration" => config.until = Until::Time(positive(value)?),
            "requests" => config.until = Until::Requests(values::count(value)?),
            "rate" => self.rate = Some(values::rate(value)?),
            "pipeline" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                config.pipeline = small(value)?;
            }
            // ab's meaning.
            "pipeline" => return self.upload("POST", value).map(|()| true),
            "requests-per-connection" => {
                config.requests_per_connection = Some(values::count(value)?);
            }
            "warm-up" => config.warm_up = values::duration(value)?,
            "ramp" => config.ramp = values::duration(value)?,
            "timeout" => config.timeout = positive(value)?,
            "connect-timeout" => config.connect_timeout = positive(value)?,
            "seed" => config.seed = value.parse().map_err(|_| format!("{value:?} is no seed"))?,
            "cacert" => config.trust = Trust::Path(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn request_option(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "weights" => {
                let weight = |text: &str| {
                    let number = text.parse::<u32>();
                    number.map_err(|_| format!("{text:?} is no weight"))
                };
                self.weights = values::list(value, weight)?;
            }
            "method" => self.method = Some(value.into()),
            "header" => self.fields.push(values::header(value)?),
            "content-type" => self.content_type = Some(value.into()),
            "auth" => {
                let (user, password) = value.split_once(':').unwrap_or((value, ""));
                let basic = Credentials::new(user, password).basic();
                self.fields.push(("Authorization".into(), basic.into()));
            }
            "cookie" => self.fields.push(("Cookie".into(), value.as_bytes().into())),
            "put" => self.upload("PUT", value)?,
            "body" => self.body = Some(Bytes::copy_from_slice(value.as_bytes())),
            "body-file" => self.body = Some(read(value)?),
            "form" => values::form_pair(value, &mut self.form)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn other_option(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "expect-status" => {
                let status = values::count(value)?;
                let status = u16::try_from(status)
                    .ok()
                    .filter(|status| (200..600).contains(status));
                self.expect.status = Some(status.ok_or("a final status is 200 to 599")?);
            }
            "expect-length" => {
                let length = value
                    .parse()
                    .map_err(|_| format!("{value:?} is no length"))?;
                self.expect.length = Some(length);
            }
            "expect-file" => self.expect.body = Some(read(value)?),
            "expect-sha256" => self.expect.sha256 = Some(values::sha256(value)?),
            "goal" => {
                let goal = positive(value)?;
                self.goal.most_us = goal.as_secs_f64() * 1e6;
            }
            "goal-percentile" => {
                let percent = values::number(value)?;
                let known = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];
                if !known.contains(&percent) {
                    return Err(format!(
                        "p{value} is not reported; see --help for those that are"
                    ));
                }
                self.goal.percent = percent;
            }
            "goal-errors" => self.goal.error_share = values::number(value)?,
            "most-rate" => self.most_rate = values::rate(value)?,
            "connections-sweep" => {
                self.sweep = values::list(value, |text| values::count(text).map(|n| n as usize))?;
            }
            "hdr-log" => self.hdr_log = Some(value.into()),
            _ => return Err(format!("unknown option --{name}")),
        }
        Ok(())
    }

    /// ab's `-p` and `-u`.
    fn upload(&mut self, method: &str, path: &str) -> Result<(), String> {
        self.body = Some(read(path)?);
        self.method.get_or_insert_with(|| method.into());
        Ok(())
    }

    fn job(mut self) -> Result<Job, String> {
        if self.urls.is_empty() {
            return Err("a URL is missing".into());
        }
        if self.find_peak && !self.sweep.is_empty() {
            return Err("--find-peak and --connections-sweep exclude each other".into());
        }
        if !self.weights.is_empty() {
            if self.weights.len() != self.urls.len() {
                return Err("--weights takes one number for each URL".into());
            }
            self.config.mix = Mix::AtRandom;
        }
        let urls = std::mem::take(&mut self.urls);
        self.config.targets = urls
            .iter()
            .enumerate()
            .map(|(index, url)| self.target(index, url))
            .collect::<Result<_, _>>()?;
        if let Some(per_s) = self.rate {
            self.config.pace = Pace::Open(Rate {
                per_s,
                arrivals: self.arrivals,
                ramp: self.config.ramp,
            });
        } else if self.arrivals == Arrivals::Poisson {
            let (per_s, ramp) = (1000.0, self.config.ramp);
            if !self.find_peak {
                return Err("--poisson is of an open loop: give --rate".into());
            }
            self.config.pace = Pace::Open(Rate {
                per_s,
                arrivals: self.arrivals,
                ramp,
            });
        }
        let first_rate = self.rate.unwrap_or(1000.0);
        let search = PeakSearch::new(first_rate, self.most_rate);
        Ok(Job {
            config: self.config,
            peak: self.find_peak.then_some((self.goal, search)),
            sweep: self.sweep,
            output: self.output,
            hdr_log: self.hdr_log,
        })
    }

    fn target(&self, index: usize, url: &str) -> Result<Target, String> {
        let mut target = Target::get(url).map_err(|error| error.to_string())?;
        target.weight = self.weights.get(index).copied().unwrap_or(1);
        target.fields.clone_from(&self.fields);
        target.expect = self.expect.clone();
        let is_form = !self.form.is_empty();
        target.body = match &self.body {
            Some(_) if is_form => return Err("a body and a form exclude each other".into()),
            None if is_form => Some(Bytes::copy_from_slice(&self.form)),
            body => body.clone(),
        };
        let urlencoded = is_form.then_some("application/x-www-form-urlencoded");
        if let Some(kind) = self.content_type.as_deref().or(urlencoded) {
            let field = ("Content-Type".into(), kind.as_bytes().into());
            target.fields.push(field);
        }
        let method = match (&self.method, &target.body) {
            (Some(method), _) => method,
            (None, Some(_)) => "POST",
            (None, None) => "GET",
        };
        target.method = method.into();
        Ok(target)
    }
}

/// Options that take a value. Known before it is taken, or an unknown switch would swallow the URL.
const VALUED: &[&str] = &[
    "connections",
    "threads",
    "duration",
    "requests",
    "rate",
    "pipeline",
    "requests-per-connection",
    "warm-up",
    "ramp",
    "timeout",
    "connect-timeout",
    "seed",
    "cacert",
    "weights",
    "method",
    "header",
    "content-type",
    "auth",
    "cookie",
    "put",
    "body",
    "body-file",
    "form",
    "expect-status",
    "expect-length",
    "expect-file",
    "expect-sha256",
    "goal",
    "goal-percentile",
    "goal-errors",
    "most-rate",
    "connections-sweep",
    "hdr-log",
];

fn positive(value: &str) -> Result<Duration, String> {
    let time = values::duration(value)?;
    if time.is_zero() {
        return Err(format!("{value:?} is no time at all"));
    }
    Ok(time)
}

fn text(value: OsString) -> Result<String, String> {
    value
        .into_string()
        .map_err(|value| format!("{} is not UTF-8", value.display()))
}

fn read(path: &str) -> Result<Bytes, String> {
    std::fs::read(Path::new(path))
        .map(Bytes::from)
        .map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split(' ').map(OsString::from))
    }

    fn job(line: &str) -> Job {
        match parsed(line) {
            Ok(Command::Run(job)) => *job,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn wrks_command_line() {
        let job = job("-t2 -c64 -d10s --latency -H X:1 --timeout 2s http://127.0.0.1:8000/a");
        let config = &job.config;
        assert_eq!((config.threads, config.connections), (2, 64));
        assert_eq!(config.until, Until::Time(Duration::from_secs(10)));
        assert_eq!(config.timeout, Duration::from_secs(2));
        assert_eq!(config.targets[0].fields[0], ("X".into(), b"1"[..].into()));
    }

    #[test]
    fn abs_command_line() {
        let file = std::env::temp_dir().join(format!("towline-load-{}", std::process::id()));
        std::fs::write(&file, "{}").unwrap();
        let line = format!(
            "-n 1000 -c 10 -k -p {} -T application/json http://a/",
            file.display()
        );
        let job = job(&line);
        std::fs::remove_file(&file).unwrap();
        let target = &job.config.targets[0];
        assert_eq!(job.config.until, Until::Requests(1000));
        assert_eq!(job.config.pipeline, 1);
        assert_eq!(
            (&*target.method, target.body.as_deref()),
            ("POST", Some(&b"{}"[..]))
        );
        assert_eq!(target.fields[0].0, "Content-Type".into());
    }

    #[test]
    fn our_own() {
        let job = job("-R 20k --poisson -p 16 --weights 3,1 --form a=b http://a/1 http://a/2");
        let Pace::Open(rate) = job.config.pace else {
            panic!("not an open loop");
        };
        assert!((rate.per_s - 20_000.0).abs() < 1e-9);
        assert_eq!(
            (rate.arrivals, job.config.pipeline),
            (Arrivals::Poisson, 16)
        );
        assert_eq!(job.config.targets[0].weight, 3);
        assert_eq!(&*job.config.targets[1].method, "POST");
        assert!(job.config.check().is_ok());
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("-c 1", "URL is missing"),
            ("--nope http://a/", "--nope"),
            ("-s 3 http://a/", "--timeout"),
            ("-d 0 http://a/", "no time"),
            ("--poisson http://a/", "--rate"),
            ("--weights 1,2 http://a/", "one number for each"),
            ("-p /no/such/file http://a/", "/no/such/file"),
            ("--goal-percentile 98 http://a/", "p98"),
            ("-c", "missing argument"),
        ] {
            let why = parsed(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
        assert!(matches!(parsed("-h"), Ok(Command::Help)));
    }

    #[test]
    fn the_help_names_every_option() {
        for name in VALUED.iter().filter(|name| **name != "put") {
            assert!(super::super::HELP.contains(&format!("--{name}")), "{name}");
        }
    }
}
