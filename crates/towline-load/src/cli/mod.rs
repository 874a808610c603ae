//! The command line: arguments to [`Config`], outcomes to text. The flags, and what becomes of those
//! that `ab` and `wrk` use for different things, stand in `help.txt`.

mod args;
mod values;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

pub use args::{Command, Job, Output, parse};

use crate::config::LoadError;
use crate::report::Report;
use crate::run::{Outcome, Stop, run};
use crate::search::{Judgement, PeakSearch, connections_sweep, find_peak};
use crate::{csv, hdr_log};

pub const HELP: &str = include_str!("help.txt");

/// Everything from arguments to the exit status: 0, 1 when requests failed, 2 when there was no run.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let command = match parse(args) {
        Ok(command) => command,
        Err(why) => {
            eprintln!("towline-load: {why} (see --help)");
            return ExitCode::from(2);
        }
    };
    match execute(command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Nobody reads on: `| head` is no error.
        Err(LoadError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("towline-load: {error}");
            ExitCode::from(2)
        }
    }
}

fn execute(command: Command) -> Result<bool, LoadError> {
    let mut out = io::stdout().lock();
    let job = match command {
        Command::Help => {
            out.write_all(HELP.as_bytes())?;
            return Ok(true);
        }
        Command::Version => {
            writeln!(out, "towline-load {}", env!("CARGO_PKG_VERSION"))?;
            return Ok(true);
        }
        Command::Run(job) => job,
    };
    let stop = interruptible();
    if let Some((goal, search)) = &job.peak {
        return peak(&job, goal, search, &stop, &mut out);
    }
    if !job.sweep.is_empty() {
        return sweep(&job, &stop, &mut out);
    }
    let outcome = run(&job.config, &stop)?;
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
    let seen = |report: &Report, judgement: Judgement| {
        let line = match job.output {
            Output::Json => json(report, out),
            _ => writeln!(out, "{}", peak_line(report, goal, judgement)),
        };
        if written.is_ok() {
            written = line;
        }
    };
    let peak = find_peak(&job.config, goal, search.clone(), stop, seen)?;
    written?;
    if job.output != Output::Json {
        match peak.rate_per_s {
            Some(rate) => writeln!(out, "peak: {rate:.0}/s, met twice")?,
            None => writeln!(out, "peak: none found that keeps the goal")?,
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

/// A stop that the first Ctrl-C asks; the second one ends the process as usual.
fn interruptible() -> Stop {
    static STOP: OnceLock<Stop> = OnceLock::new();

    extern "C" fn interrupted(signal: libc::c_int) {
        if let Some(stop) = STOP.get() {
            stop.ask();
        }
        // SAFETY: async-signal-safe; the default disposition is always valid.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }

    let stop = STOP.get_or_init(Stop::default).clone();
    let handler: extern "C" fn(libc::c_int) = interrupted;
    // SAFETY: the handler only stores to an atomic and resets itself; both are async-signal-safe.
    unsafe { libc::signal(libc::SIGINT, handler as libc::sighandler_t) };
    stop
}
