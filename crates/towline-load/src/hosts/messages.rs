//! The part of the agent's protocol that splits one load over several agents: a JSON object per line.
//!
//! ```text
//! controller                                   agent
//! hello ──────────────────────────────────────► {"hello":{version, host ...}}
//! prepare ORDER ──────────────────────────────► opens its connections ─► {"ready":{}}
//! clock (many) ───────────────────────────────► {"clock":NS}, at once, also during the load
//! begin at a time on the agent's clock ───────► load ─► {"progress":{...}} five times a second ─► {"result":{...}}
//! stop ───────────────────────────────────────► ends the load early; the result follows
//! ```
//!
//! `{"failed": why}` comes in place of `ready` or `result`. The end of the agent's input ends the load too, and so does
//! silence of the controller for the time given in `hello`: a connection may be cut without an end.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::{Config, Trust};
use crate::monitor::Snapshot;
use crate::session::Part;
use crate::slice::Slice;
use crate::stats::{Interval, Tally};
use crate::usage::Usage;
use crate::worker::ThreadResult;

/// A command as the controller writes it; the agent reads it as one of its own commands.
#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum PartCommand<'a> {
    Hello { silence_s: f64 },
    Prepare { order: &'a Order },
    Clock {},
    Begin { at_ns: u64 },
    Stop {},
}

/// A reply or an event of an agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PartEvent {
    Hello(Introduction),
    Ready {},
    Clock(u64),
    Progress(Box<Progress>),
    Result(Box<PartResult>),
    Failed(String),
    /// A command was accepted.
    Ok(bool),
    /// A command was not.
    Error(String),
}

/// The machine of an agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub(crate) version: String,
    /// Host name.
    pub(crate) host: String,
    /// Number of local ports for connections to one address.
    pub(crate) local_ports: Option<u64>,
    /// Limit of open files of the process.
    pub(crate) open_files: Option<u64>,
}

/// The load, and the part of an agent in it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The whole load, but for the number of threads and the rows of its data, which are the agent's.
    pub(crate) config: Config,
    pub(crate) slice: Slice,
    pub(crate) part: Part,
    /// In place of the file of [`Trust::Path`], which is on the controller's machine.
    pub(crate) authorities_pem: Option<String>,
}

/// The counts of an agent so far.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Progress {
    pub(crate) counts: Snapshot,
    /// By thread: the seconds that have ended since the last message.
    pub(crate) seconds: Vec<Vec<Interval>>,
    /// CPU time of the process.
    pub(crate) cpu_ns: u64,
    pub(crate) first_failure: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PartResult {
    pub(crate) tally: Tally,
    pub(crate) threads: Vec<ThreadFigures>,
    pub(crate) peak_memory_bytes: u64,
}

/// A [`ThreadResult`] with times on the agent's clock.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ThreadFigures {
    cpu: Duration,
    kept_waiting: Duration,
    began_ns: u64,
    measured: Duration,
    answered: u64,
    accounted: Duration,
    live_at_end: u64,
    pub(crate) start_delay: Duration,
    pub(crate) gave_up: Option<String>,
}

impl ThreadFigures {
    pub(crate) fn new(result: &ThreadResult, clock: &Clock) -> Self {
        Self {
            cpu: result.usage.cpu,
            kept_waiting: result.usage.kept_waiting,
            began_ns: clock.ns(result.began),
            measured: result.measured,
            answered: result.answered,
            accounted: result.accounted,
            live_at_end: result.live_at_end,
            start_delay: result.start_delay,
            gave_up: result.gave_up.clone(),
        }
    }

    /// The result with times on the controller's clock, which is behind the agent's by `ahead_ns`.
    pub(crate) fn result(&self, agent: &str, clock: &Clock, ahead_ns: i64) -> ThreadResult {
        ThreadResult {
            usage: Usage {
                cpu: self.cpu,
                kept_waiting: self.kept_waiting,
            },
            began: clock.instant(self.began_ns.saturating_add_signed(-ahead_ns)),
            measured: self.measured,
            answered: self.answered,
            accounted: self.accounted,
            live_at_end: self.live_at_end,
            start_delay: self.start_delay,
            gave_up: (self.gave_up.as_ref()).map(|why| format!("{agent}: {why}")),
        }
    }
}

impl Order {
    /// The load with the file of its authorities, if it has one, in `folder` of this machine.
    pub(crate) fn unpack(self, folder: &std::path::Path) -> std::io::Result<Self> {
        let Some(pem) = &self.authorities_pem else {
            return Ok(self);
        };
        let path = folder.join("authorities.pem");
        std::fs::write(&path, pem)?;
        let config = Config {
            trust: Trust::Path(path),
            ..self.config
        };
        Ok(Self { config, ..self })
    }
}

/// The monotonic clock of this machine, as a number that may be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    at: Instant,
    ns: u64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            at: Instant::now(),
            ns: monotonic_ns(),
        }
    }

    pub(crate) fn ns(&self, at: Instant) -> u64 {
        match at.checked_duration_since(self.at) {
            Some(since) => self.ns.saturating_add(since.as_nanos() as u64),
            None => (self.ns).saturating_sub((self.at - at).as_nanos() as u64),
        }
    }

    pub(crate) fn instant(&self, ns: u64) -> Instant {
        if ns >= self.ns {
            let since = Duration::from_nanos(ns - self.ns);
            self.at.checked_add(since).unwrap_or(self.at)
        } else {
            let before = Duration::from_nanos(self.ns - ns);
            self.at.checked_sub(before).unwrap_or(self.at)
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure given to it; the clock exists on every system.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Failure, ResponseTimes};

    #[test]
    fn a_time_comes_back_as_it_was_sent() {
        let clock = Clock::new();
        for at in [
            clock.at + Duration::from_secs(3),
            clock.at.checked_sub(Duration::from_millis(5)).unwrap(),
        ] {
            assert_eq!(clock.instant(clock.ns(at)), at);
        }
        // Another process of this machine has the same clock.
        let other = Clock::new();
        let at = Instant::now();
        let apart = clock.ns(at).abs_diff(other.ns(at));
        assert!(apart < 1_000_000, "{apart}");
    }

    #[test]
    fn counts_and_histograms_are_merged_without_loss() {
        let mut tallies = [Tally::new(2), Tally::new(2), Tally::new(2)];
        let mut direct = Tally::new(2);
        for n in 1..=30_000_u64 {
            let time = Duration::from_nanos(n * n * 7 + n);
            let times = ResponseTimes {
                response: time * 2,
                service: time,
                first_byte: time / 2,
                body_bytes: n,
            };
            let step = (n % 2) as usize;
            tallies[(n % 3) as usize].count_response(step, &times);
            direct.count_response(step, &times);
        }
        for tally in tallies.iter_mut().chain([&mut direct]) {
            tally.count_status(200);
            tally.lag.record(Duration::from_micros(3));
            tally.count_failure(Some(1), Failure::Timeout);
            tally.quic.sent_packets += 1;
            tally.end_second(4);
            tally.finish(4);
        }
        let mut merged = Tally::new(2);
        for tally in &tallies {
            let sent = serde_json::to_string(tally).unwrap();
            merged.merge(&serde_json::from_str(&sent).unwrap());
        }
        for (sum, whole) in [
            (&merged.total.response, &direct.total.response),
            (&merged.total.service, &direct.total.service),
            (&merged.total.first_byte, &direct.total.first_byte),
        ] {
            let buckets = |times: &crate::stats::Times| -> Vec<_> {
                let recorded = times.0.iter_recorded();
                recorded
                    .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
                    .collect()
            };
            assert_eq!(buckets(sum), buckets(whole));
            assert_eq!((sum.0.min(), sum.0.max()), (whole.0.min(), whole.0.max()));
        }
        assert_eq!(
            (merged.answered, merged.body_bytes),
            (30_000, direct.body_bytes)
        );
        assert_eq!(merged.lag.0.len(), 3);
        assert_eq!(merged.failures(Failure::Timeout), 3);
        assert_eq!((merged.quic.sent_packets, merged.statuses[0].1), (3, 3));
        for (step, whole) in merged.steps().iter().zip(direct.steps()) {
            assert_eq!(step.answered, whole.answered);
            assert_eq!(step.sums.response.0.len(), whole.sums.response.0.len());
        }
        assert_eq!(merged.series[0].answered, direct.series[0].answered);
        assert_eq!(merged.series[0].times(), direct.series[0].times());
    }
}
