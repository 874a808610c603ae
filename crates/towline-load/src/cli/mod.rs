//! The command line: arguments to [`Config`], outcomes to text. `help/ab-wrk.txt` lists the flags of
//! `ab` and `wrk` and their meaning here.

mod args;
mod body;
pub mod help;
mod interrupt;
mod messages;
mod options;
mod scenario;
mod values;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

pub use args::{Command, Job, Output, parse};

use crate::agent;
use crate::error::LoadError;
use crate::live::LiveView;
use crate::monitor::Monitor;
use crate::report::Report;
use crate::run::run_monitored;
use crate::search::{Judgement, PeakSearch, connections_sweep, find_peak};
use crate::session::Outcome;
use crate::slice::Stop;
use crate::{csv, hdr_log};
use interrupt::Interrupt;

/// Runs the program; `args` without its name.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    ExitCode::from(status(args))
}

/// Runs the program and returns the exit status: 0, 1 if requests failed or none succeeded, 2 if there
/// was no run.
pub fn status(args: impl Iterator<Item = OsString>) -> u8 {
    let command = match parse(args) {
        Ok(command) => command,
        Err(why) => {
            eprintln!("towline-load: {why} (see --help)");
            return 2;
        }
    };
    match execute(command) {
        Ok(true) => 0,
        Ok(false) => 1,
        // The reader has closed the pipe: `| head` is not an error.
        Err(LoadError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(error) => {
            eprintln!("towline-load: {error}");
            2
        }
    }
}

fn execute(command: Command) -> Result<bool, LoadError> {
    let mut out = io::stdout().lock();
    let job = match command {
        Command::Help(text) => {
            out.write_all(text.as_bytes())?;
            return Ok(true);
        }
        Command::Version => {
            writeln!(out, "towline-load {}", env!("CARGO_PKG_VERSION"))?;
            return Ok(true);
        }
        Command::Agent => {
            drop(out);
            let _ends = Interrupt::ends();
            agent::serve(io::stdin().lock(), io::stdout().lock())?;
            return Ok(true);
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
    let outcome = run_monitored(&job.config, stop, &monitor);
    // Removes the live view, in whose place the report is printed.
    drop(live);
    let outcome = outcome?;
    let mut out = io::stdout().lock();
    show(&job, &outcome, &mut out)?;
    Ok(is_good(&outcome.report))
}

fn is_good(report: &Report) -> bool {
    report.errors.total() == 0 && report.answered > 0
}

fn show(job: &Job, outcome: &Outcome, out: &mut impl Write) -> Result<(), LoadError> {
    if let Some(path) = &job.hdr_log {
        std::fs::write(path, hdr_log(outcome))
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
) -> Result<bool, LoadError> {
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
    let peak = find_peak(&job.config, goal, search.clone(), stop, on_report)?;
    written?;
    if job.output != Output::Json {
        match peak.rate_per_s {
            Some(rate) => writeln!(out, "peak: {rate:.0}/s, met twice")?,
            None => writeln!(out, "peak: no rate kept the goal")?,
        }
    }
    Ok(peak.rate_per_s.is_some())
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

fn sweep(job: &Job, stop: &Stop, out: &mut impl Write) -> Result<bool, LoadError> {
    let mut written = Ok(());
    let mut good = true;
    if job.output != Output::Json {
        writeln!(
            out,
            "connections  requests/s     p50 us     p99 us   failures"
        )?;
    }
    connections_sweep(&job.config, &job.sweep, stop, |report| {
        good &= is_good(report);
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
    Ok(good)
}
