//! The command line: arguments to [`Config`], outcomes to text. `--help ab-wrk` lists the flags of `ab` and `wrk` and
//! their meaning here.

mod args;
mod body;
pub mod help;
mod hosts;
mod interrupt;
mod job;
mod messages;
mod options;
mod requests;
mod scenario;
mod thresholds;
mod values;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

pub use args::parse;
pub use job::{Command, Job, Output};
pub use options::{Opt, options};
pub use thresholds::Threshold;

use towline_io::output_file;

use crate::agent;
use crate::config::Config;
use crate::error::LoadError;
use crate::hosts::{Fleet, RunOrder};
use crate::live::LiveView;
use crate::monitor::Monitor;
use crate::report::{AgentFigures, Report};
use crate::run::{run, run_monitored};
use crate::search::{Judgement, PeakSearch, Series};
use crate::session::Outcome;
use crate::slice::Stop;
use crate::{csv, hdr_log};
use interrupt::Interrupt;

/// Runs the program; `args` without its name.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    ExitCode::from(status(args))
}

/// The exit statuses.
const GOOD: u8 = 0;
const FAILED: u8 = 1;
const NO_RUN: u8 = 2;
const THRESHOLD: u8 = 3;

/// Runs the program and returns the exit status: 0, 1 if requests failed or none succeeded, 2 if there
/// was no run, 3 if a condition of `--fail-if` held.
pub fn status(args: impl Iterator<Item = OsString>) -> u8 {
    let command = match parse(args) {
        Ok(command) => command,
        Err(why) => {
            eprintln!("towline-load: {why} (see --help)");
            return NO_RUN;
        }
    };
    match execute(command) {
        Ok(status) => status,
        // The reader has closed the pipe: `| head` is not an error.
        Err(LoadError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => GOOD,
        Err(error) => {
            eprintln!("towline-load: {error}");
            NO_RUN
        }
    }
}

fn execute(command: Command) -> Result<u8, LoadError> {
    let mut out = io::stdout().lock();
    let job = match command {
        Command::Help(text) => {
            out.write_all(text.as_bytes())?;
            return Ok(GOOD);
        }
        Command::Version => {
            writeln!(out, "towline-load {}", env!("CARGO_PKG_VERSION"))?;
            return Ok(GOOD);
        }
        Command::Agent(hosts) => {
            drop(out);
            let _ends = Interrupt::ends();
            agent::serve_on(io::stdin().lock(), io::stdout(), hosts)?;
            return Ok(GOOD);
        }
        Command::Run(job) => job,
    };
    let interrupt = Interrupt::stops();
    let stop = interrupt.stop();
    if let Some((goal, search)) = &job.peak {
        return peak(&job, goal, search, stop, &mut out);
    }
    if !job.sweep.is_empty() {
        return sweep(&job, stop, &mut out);
    }
    drop(out);
    let monitor = Monitor::default();
    let live = if job.live && job.output == Output::Text {
        LiveView::start(&job.config, &monitor)
    } else {
        None
    };
    let outcome = Source::of(&job, stop)
        .and_then(|mut source| source.run(&job.config, (stop, &monitor), live.is_none()));
    // Removes the live view, in whose place the report is printed.
    drop(live);
    let outcome = outcome?;
    let mut out = io::stdout().lock();
    show(&job, &outcome, &mut out)?;
    Ok(status_of(&outcome.report, &job.thresholds))
}

/// The origin of a load: this process, or agents.
enum Source {
    Here,
    Agents(Fleet),
}

impl Source {
    fn of(job: &Job, stop: &Stop) -> Result<Self, LoadError> {
        Ok(match &job.hosts {
            None => Self::Here,
            Some(hosts) => Self::Agents(Fleet::start(hosts, job.config.threads, stop)?),
        })
    }

    /// `tells`: news about agents are printed at once, where no live view has them.
    fn run(
        &mut self,
        config: &Config,
        (stop, monitor): (&Stop, &Monitor),
        tells: bool,
    ) -> Result<Outcome, LoadError> {
        let Self::Agents(fleet) = self else {
            return run_monitored(config, stop, monitor);
        };
        let order = RunOrder {
            config,
            stop,
            monitor,
        };
        crate::hosts::run(fleet, &order, &mut |news| {
            if tells {
                eprintln!("towline-load: {news}");
            }
        })
    }

    /// One run of several, each of which needs all agents.
    fn run_in_series(&mut self, config: &Config, stop: &Stop) -> Result<Outcome, LoadError> {
        if matches!(self, Self::Here) {
            return run(config, stop);
        }
        let outcome = self.run(config, (stop, &Monitor::default()), true)?;
        match outcome.report.agents.iter().find(|agent| agent.is_lost()) {
            None => Ok(outcome),
            Some(agent) => Err(LoadError::Config(format!(
                "{} was lost: no more runs",
                agent.name
            ))),
        }
    }
}

/// The exit status of a run. Conditions on errors decide in place of the errors themselves.
fn status_of(report: &Report, thresholds: &[Threshold]) -> u8 {
    let failures: Vec<_> = (thresholds.iter())
        .filter_map(|threshold| threshold.failure(report))
        .collect();
    for failure in &failures {
        eprintln!("towline-load: failed by {failure}");
    }
    let has_limit = thresholds.iter().any(Threshold::judges_errors);
    let is_whole = !report.agents.iter().any(AgentFigures::is_lost);
    if report.answered == 0 || report.ended_early.is_some() || !is_whole {
        FAILED
    } else if !failures.is_empty() {
        THRESHOLD
    } else if report.errors.total() > 0 && !has_limit {
        FAILED
    } else {
        GOOD
    }
}

fn show(job: &Job, outcome: &Outcome, out: &mut impl Write) -> Result<(), LoadError> {
    if let Some(path) = &job.hdr_log {
        output_file::open(path, output_file::Output::Replace, 0o666)
            .and_then(|mut file| file.write_all(hdr_log(outcome).as_bytes()))
            .map_err(|error| LoadError::Config(format!("{}: {error}", path.display())))?;
    }
    match job.output {
        Output::Text => write!(out, "{}", outcome.report)?,
        Output::Json => json(&outcome.report, out)?,
        Output::Csv => out.write_all(csv(&outcome.report).as_bytes())?,
    }
    Ok(())
}

fn json(report: &Report, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    writeln!(out)
}

fn peak(
    job: &Job,
    goal: &crate::Goal,
    search: &PeakSearch,
    stop: &Stop,
    out: &mut impl Write,
) -> Result<u8, LoadError> {
    let mut written = Ok(());
    let on_report = |report: &Report, judgement: Judgement| {
        let line = match job.output {
            Output::Json => json(report, out),
            _ => writeln!(out, "{}", peak_line(report, goal, judgement)),
        };
        if written.is_ok() {
            written = line;
        }
    };
    let mut source = Source::of(job, stop)?;
    let series = Series {
        config: &job.config,
        stop,
        run: &mut |config| source.run_in_series(config, stop),
    };
    let peak = series.find_peak(goal, search.clone(), on_report)?;
    written?;
    if job.output != Output::Json {
        match (peak.rate_per_s, &peak.limited) {
            (Some(rate), _) => writeln!(out, "peak: {rate:.0}/s, met twice")?,
            (None, Some((rate, _))) => writeln!(out, "no peak: at least {rate:.0}/s")?,
            (None, None) => writeln!(out, "peak: no rate kept the goal")?,
        }
    }
    if let Some((_, limit)) = &peak.limited {
        eprintln!("towline-load: no peak: the generator was the limit: {limit}");
    }
    Ok(if peak.rate_per_s.is_some() {
        GOOD
    } else {
        FAILED
    })
}

fn peak_line(report: &Report, goal: &crate::Goal, judgement: Judgement) -> String {
    format!(
        "{:>10.0}/s  {:<6}  p{} {:.0} us, {} failures{}",
        report.setup.rate_per_s.unwrap_or_default(),
        match judgement {
            Judgement::Met => "met",
            Judgement::Missed => "missed",
        },
        goal.percent,
        report.response.at(goal.percent),
        report.errors.total(),
        match &report.generator.limit {
            Some(limit) => format!("; the generator was the limit: {limit}"),
            None => String::new(),
        }
    )
}

fn sweep(job: &Job, stop: &Stop, out: &mut impl Write) -> Result<u8, LoadError> {
    let mut written = Ok(());
    let mut worst = GOOD;
    if job.output != Output::Json {
        writeln!(
            out,
            "connections  requests/s     p50 us     p99 us   failures"
        )?;
    }
    let mut source = Source::of(job, stop)?;
    let series = Series {
        config: &job.config,
        stop,
        run: &mut |config| source.run_in_series(config, stop),
    };
    series.connections_sweep(&job.sweep, |report| {
        worst = worst.max(status_of(report, &job.thresholds));
        let line = match job.output {
            Output::Json => json(report, out),
            _ => writeln!(
                out,
                "{:>11}  {:>10.0} {:>10.0} {:>10.0} {:>10}",
                report.setup.connections,
                report.requests_per_s,
                report.response.at(50.0),
                report.response.at(99.0),
                report.errors.total(),
            ),
        };
        if written.is_ok() {
            written = line;
        }
    })?;
    written?;
    Ok(worst)
}
