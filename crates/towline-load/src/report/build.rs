//! Builds the report from the results of the threads.

use std::time::{Duration, SystemTime};

use towline_proto::Protocol;

use super::percentiles;
use super::text::time;
use super::types::{
    AgentFigures, Errors, Generator, InFlight, Latencies, Latency, LiveConnections, OpenLoop,
    Percentile, Quic, Report, Second, Setup, StatusCount, Step,
};
use crate::config::{Config, LoopMode, Until};
use crate::schedule::Arrivals;
use crate::slice::Slice;
use crate::stats::{self, AtEnd, FAILURES, Failure, Interval, Sums, Tally, Times};
use crate::target::Target;
use crate::usage;
use crate::worker::ThreadResult;

/// Above this share of its time a thread is too busy to receive responses promptly.
pub(crate) const BUSY_SHARE: f64 = 0.9;
/// Above this share of time taken by others on the core, the figures are affected.
const DISTURBED_SHARE: f64 = 0.05;
/// Share of the requests due that is a rate achieved.
const ACHIEVED: f64 = 0.99;
/// Agents that start further apart do not send one process of starts.
const START_TOLERANCE_US: f64 = 1000.0;
/// Lag below this is the cost of timers.
const TOLERATED_LAG_US: f64 = 50.0;

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn float(count: u64) -> f64 {
    count as f64
}

fn ratio(part: f64, total: f64) -> f64 {
    if total > 0.0 { part / total } else { 0.0 }
}

/// The report of a slice, from the results of its threads and their merged counts.
pub(crate) fn from_results(
    config: &Config,
    slice: &Slice,
    results: &[ThreadResult],
    tally: &Tally,
    began: SystemTime,
) -> Report {
    let longest = results
        .iter()
        .map(|thread_result| thread_result.measured)
        .max();
    let longest_s = longest.unwrap_or_default().as_secs_f64();
    // Windows that are aligned to responses differ between threads: their rates add up.
    let rate: f64 = results
        .iter()
        .map(|result| ratio(float(result.answered), result.measured.as_secs_f64()))
        .sum();
    let measured_s = if results.len() > 1 && rate > 0.0 {
        float(tally.answers()) / rate
    } else {
        longest_s
    };
    let generator = generator(results, tally);
    let answered = tally.answers();
    let errors = errors(&tally.failures);
    let mut report = Report {
        tool: "towline-load".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        began_unix_s: began
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs_f64(),
        setup: setup(config, slice),
        measured_s,
        answered,
        requests_per_s: ratio(float(answered), measured_s),
        body_bytes: tally.body_bytes,
        received_bytes: tally.received_bytes,
        received_bytes_per_s: ratio(float(tally.received_bytes), measured_s),
        response: latency(&tally.total.response),
        service: latency(&tally.total.service),
        first_byte: latency(&tally.total.first_byte),
        connect: latency(&tally.connect),
        steps: steps(config, tally),
        open_loop: open_loop(slice, tally),
        errors,
        refused: tally.refused,
        first_failure: tally.first_failure.clone(),
        invalid: tally.invalid.clone(),
        in_flight: in_flight(&tally.at_end),
        with_timeouts: tally.with_unanswered().as_ref().map(latencies),
        changed: tally.changed,
        first_change: tally.first_change.clone(),
        ended_early: (results.iter()).find_map(|thread_result| thread_result.gave_up.clone()),
        statuses: statuses(tally),
        live_connections: LiveConnections {
            wanted: config.connections as u64,
            fewest: (tally.min_live).unwrap_or(config.connections as u64),
            at_end: results
                .iter()
                .map(|thread_result| thread_result.live_at_end)
                .sum(),
        },
        reconnects: tally.reconnects,
        quic: (config.protocol == Protocol::Http3).then(|| Quic::from(tally.quic)),
        series: tally.series.iter().map(second).collect(),
        generator,
        warnings: Vec::new(),
        agents: Vec::new(),
    };
    report.generator.limit = limit(&report);
    report.warnings = warnings(&report);
    report
}

fn setup(config: &Config, slice: &Slice) -> Setup {
    let rate = match slice.loop_mode {
        LoopMode::Closed => None,
        LoopMode::Open(rate) => Some(rate),
    };
    let (duration, requests) = match slice.until {
        Until::Time(time) => (Some(time.as_secs_f64()), None),
        Until::Requests(count) => (None, Some(count)),
    };
    let targets = config.targets.iter();
    Setup {
        targets: targets.map(crate::target::Target::title).collect(),
        connections: config.connections,
        threads: config.threads,
        protocol: match config.protocol {
            Protocol::Http1 if config.is_websocket_load() => "ws",
            Protocol::Http1 => "h1",
            Protocol::Http2 => "h2",
            Protocol::Http3 => "h3",
        }
        .into(),
        pipeline: config.pipeline,
        streams: config.streams,
        requests_per_connection: config.requests_per_connection,
        rate_per_s: rate.map(|rate| rate.per_s),
        poisson: rate.is_some_and(|rate| rate.arrivals == Arrivals::Poisson),
        stages: (config.stages.as_ref()).map(|stages| stages.text().into()),
        duration_s: duration,
        requests,
        warm_up_s: slice.warm_up.as_secs_f64(),
        timeout_s: config.timeout.as_secs_f64(),
        seed: config.seed,
    }
}

pub(super) fn latency(times: &Times) -> Latency {
    let times = &times.0;
    if times.is_empty() {
        return Latency::default();
    }
    let us = |ns: u64| float(ns) / 1000.0;
    Latency {
        count: times.len(),
        mean_us: times.mean() / 1000.0,
        stdev_us: times.stdev() / 1000.0,
        min_us: us(times.min()),
        max_us: us(times.max()),
        percentiles: percentiles::all()
            .map(|percent| Percentile {
                percent,
                us: us(times.value_at_percentile(percent)),
            })
            .collect(),
    }
}

fn latencies(sums: &Sums) -> Latencies {
    Latencies {
        response: latency(&sums.response),
        service: latency(&sums.service),
        first_byte: latency(&sums.first_byte),
    }
}

fn in_flight(at_end: &AtEnd) -> InFlight {
    InFlight {
        age: latency(&at_end.ages),
        connections: at_end.connections,
        overdue: at_end.overdue,
        overdue_after_us: at_end.patience.as_secs_f64() * 1e6,
    }
}

/// The figures of each target, if they are counted apart.
fn steps(config: &Config, tally: &Tally) -> Vec<Step> {
    let step = |(target, counts): (&Target, &stats::Step)| Step {
        name: target.step_name(),
        answered: counts.answered,
        failed: counts.failed,
        response: latency(&counts.sums.response),
        first_byte: latency(&counts.sums.first_byte),
        with_timeouts: counts.with_unanswered().as_ref().map(latencies),
    };
    config.targets.iter().zip(tally.steps()).map(step).collect()
}

fn open_loop(slice: &Slice, tally: &Tally) -> Option<OpenLoop> {
    let LoopMode::Open(rate) = slice.loop_mode else {
        return None;
    };
    Some(OpenLoop {
        target_per_s: rate.per_s,
        achieved_share: ratio(
            float(tally.answers().saturating_sub(tally.late)),
            float(tally.sent + tally.unsent),
        ),
        unsent: tally.unsent,
        late: tally.late,
        lag: latency(&tally.lag),
        connection_wait: latency(&tally.wait),
    })
}

/// The counts by class, which have the order of [`Failure`].
pub(crate) fn errors(counts: &[u64; FAILURES]) -> Errors {
    let of = |failure: Failure| counts[failure as usize];
    Errors {
        connect: of(Failure::Connect),
        timeout: of(Failure::Timeout),
        reset: of(Failure::Reset),
        protocol: of(Failure::Protocol),
        status: of(Failure::Status),
        content: of(Failure::Content),
        stream_reset: of(Failure::StreamReset),
        unprocessed: of(Failure::Unprocessed),
        invalid: of(Failure::Invalid),
    }
}

fn statuses(tally: &Tally) -> Vec<StatusCount> {
    let mut statuses: Vec<_> = tally
        .statuses
        .iter()
        .map(|&(status, count)| StatusCount { status, count })
        .collect();
    statuses.sort_by_key(|counted| counted.status);
    statuses
}

fn second(interval: &Interval) -> Second {
    let times = interval.times();
    let us = |percent| float(times.value_at_percentile(percent)) / 1000.0;
    Second {
        answered: interval.answered,
        failed: interval.failed,
        received_bytes: interval.received_bytes,
        live_connections: interval.live,
        p50_us: us(50.0),
        p99_us: us(99.0),
        max_us: us(100.0),
    }
}

fn generator(results: &[ThreadResult], tally: &Tally) -> Generator {
    let share = |thread_result: &ThreadResult, time: Duration| {
        ratio(time.as_secs_f64(), thread_result.accounted.as_secs_f64()).min(1.0)
    };
    let most =
        |shares: &dyn Fn(&ThreadResult) -> f64| results.iter().map(shares).fold(0.0, f64::max);
    let cpu_s = results
        .iter()
        .map(|thread_result| thread_result.usage.cpu.as_secs_f64())
        .sum();
    Generator {
        cpu_s,
        cpu_us_per_request: ratio(cpu_s * 1e6, float(tally.answers())),
        busiest_share: most(&|thread_result| share(thread_result, thread_result.usage.cpu)),
        kept_waiting_share: most(&|thread_result| {
            share(thread_result, thread_result.usage.kept_waiting)
        }),
        busy_turn: latency(&tally.turn),
        peak_memory_bytes: usage::peak_memory(),
        limit: None,
    }
}

/// Why the generator was the limit, if it was: in an open loop only if the rate was not achieved.
pub(super) fn limit(report: &Report) -> Option<String> {
    let generator = &report.generator;
    let achieved = (report.open_loop.as_ref()).is_some_and(|open| open.achieved_share >= ACHIEVED);
    // Requests that cannot be sent are no limit of the generator.
    if achieved || report.errors.invalid > 0 {
        return None;
    }
    if generator.busiest_share >= BUSY_SHARE {
        return Some(format!(
            "a thread of the generator was busy for {:.0} % of its time",
            generator.busiest_share * 100.0
        ));
    }
    late(report)
}

/// The lag of the generator, where it affects the latencies: in the usual case, or in the tail.
fn late(report: &Report) -> Option<String> {
    let lag = &report.open_loop.as_ref()?.lag;
    let percent = [50.0, 99.0].into_iter().find(|&percent| {
        let lag = lag.at(percent);
        lag > TOLERATED_LAG_US && lag > report.response.at(percent) / 10.0
    })?;
    Some(format!(
        "requests left late: lag p{percent} {:.0} us of a response p{percent} of {:.0} us",
        lag.at(percent),
        report.response.at(percent)
    ))
}

/// Conditions that affect the figures of a report.
pub(crate) fn warnings(report: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(why) = &report.ended_early {
        warnings.push(format!("the run ended early: {why}"));
    }
    warnings.extend(report.agents.iter().flat_map(agent_warnings));
    if report.changed > 0 {
        let (changed, first) = (report.changed, report.first_change.as_deref());
        warnings.push(format!(
            "{changed} responses differ from the first one of their target; the first: {}",
            first.unwrap_or("unknown")
        ));
    }
    if let Some(limit) = &report.generator.limit {
        warnings.push(format!(
            "the generator was the limit: {limit}; read rates as \"at least\""
        ));
    } else if let Some(late) = late(report) {
        warnings.push(format!("{late}: the latencies include it"));
    }
    if report.generator.kept_waiting_share > DISTURBED_SHARE {
        warnings.push(format!(
            "the generator waited for a core for {:.0} % of the time",
            report.generator.kept_waiting_share * 100.0
        ));
    }
    if let Some(open) = &report.open_loop {
        if open.unsent > 0 {
            warnings.push(format!(
                "{} requests were due and never found a connection: the true response times are longer",
                open.unsent
            ));
        } else if open.achieved_share < 0.99 {
            let percent = open.achieved_share * 100.0;
            warnings.push(format!(
                "only {percent:.1} % of the requests due were sent in the measured time and succeeded"
            ));
        }
    }
    let failed = report.errors.total();
    if failed > 0 {
        let first = report.first_failure.as_deref().unwrap_or("unknown");
        warnings.push(format!(
            "{failed} failures, none of them in the rate; the first: {first}"
        ));
    }
    warnings.extend(end_warning(report));
    let others =
        (report.invalid.iter()).filter(|what| Some(*what) != report.first_failure.as_ref());
    warnings.extend(others.map(|what| format!("not sent: {what}")));
    warnings
}

/// A warning about what hung at the end of the load.
fn end_warning(report: &Report) -> Option<String> {
    let InFlight { age, overdue, .. } = &report.in_flight;
    if *overdue == 0 {
        return None;
    }
    let after = time(report.in_flight.overdue_after_us);
    let (count, oldest) = (age.count, time(age.max_us));
    let nothing = if report.answered == 0 {
        "no request was answered; "
    } else {
        ""
    };
    Some(format!(
        "{nothing}{overdue} of {} in flight at the end, the oldest for {oldest}, had no response after {after}, and \
         count as errors",
        count + report.in_flight.connections
    ))
}

/// Conditions that concern one agent of several.
fn agent_warnings(agent: &AgentFigures) -> Vec<String> {
    let name = &agent.name;
    let mut warnings = Vec::new();
    if let Some(why) = &agent.lost {
        warnings.push(format!(
            "{name} was lost after {:.1} s: {why}; {:.1} % of the load is missing from then on, and all that it did is \
             missing in the figures: at least {} responses and {} failures",
            agent.lost_after_s.unwrap_or_default(),
            agent.share * 100.0,
            agent.answered,
            agent.errors.total()
        ));
    }
    warnings.extend(agent.notes.iter().map(|note| format!("{name}: {note}")));
    if agent.start_delay_us + agent.clock_error_us > START_TOLERANCE_US {
        warnings.push(format!(
            "{name} started {:.2} ms late, by a clock that is known to {:.2} ms",
            agent.start_delay_us / 1000.0,
            agent.clock_error_us / 1000.0
        ));
    }
    warnings
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::stats::ResponseTimes;
    use crate::usage::Usage;

    pub(crate) fn sample(cpu_ms: u64) -> Report {
        let mut tally = Tally::new(1);
        for us in 1..=1000 {
            let time = Duration::from_micros(us);
            tally.count_status(200);
            tally.count_response(
                0,
                &ResponseTimes {
                    response: time,
                    service: time,
                    first_byte: time,
                    body_bytes: 7,
                },
            );
        }
        tally.count_failure(None, Failure::Reset);
        tally.note(|| "gone".into());
        tally.finish(10);
        let thread_result = ThreadResult {
            usage: Usage {
                cpu: Duration::from_millis(cpu_ms),
                kept_waiting: Duration::from_millis(100),
            },
            began: std::time::Instant::now(),
            measured: Duration::from_secs(1),
            answered: 1000,
            accounted: Duration::from_secs(1),
            live_at_end: 10,
            start_delay: Duration::ZERO,
            gave_up: None,
        };
        let config = Config::new(vec![Target::get("http://a/").unwrap()]);
        from_results(
            &config,
            &Slice::of(&config),
            &[thread_result],
            &tally,
            SystemTime::UNIX_EPOCH,
        )
    }

    #[test]
    fn figures_match_their_definitions() {
        let report = sample(500);
        assert!((report.requests_per_s - 1000.0).abs() < 1e-6);
        assert!((report.response.at(50.0) - 500.0).abs() < 1.0);
        assert!((report.response.mean_us - 500.5).abs() < 1.0);
        assert!((report.response.stdev_us - 288.7).abs() < 1.0);
        assert!((report.generator.cpu_us_per_request - 500.0).abs() < 1e-6);
        assert_eq!(report.errors.total(), 1);
        assert_eq!(report.body_bytes, 7000);
        assert_eq!(report.generator.limit, None);
        assert_eq!(report.warnings.len(), 2, "{:?}", report.warnings);
    }

    #[test]
    fn a_busy_or_late_generator_is_reported() {
        assert!(sample(950).generator.limit.is_some());
        let mut report = sample(500);
        let mut lag = Times::default();
        lag.record(Duration::from_micros(80));
        report.open_loop = Some(OpenLoop {
            lag: latency(&lag),
            ..OpenLoop::default()
        });
        assert!(limit(&report).is_some());
        let mut lag = Times::default();
        lag.record(Duration::from_micros(45));
        report.open_loop.as_mut().unwrap().lag = latency(&lag);
        assert_eq!(limit(&report), None);
        // A rate that was achieved had no limit; the lag is a warning of its own.
        let mut report = sample(950);
        let mut lag = Times::default();
        lag.record(Duration::from_micros(800));
        report.open_loop = Some(OpenLoop {
            achieved_share: 0.995,
            lag: latency(&lag),
            ..OpenLoop::default()
        });
        assert_eq!(limit(&report), None);
        report.generator.limit = None;
        let found = warnings(&report);
        assert!(
            found.iter().any(|one| one.contains("requests left late")),
            "{found:?}"
        );
    }
}
