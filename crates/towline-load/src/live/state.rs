//! State of the live view: the plan of the run, and its progress.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::config::{Config, LoopMode, Until};
use crate::monitor::{AgentState, EndedSeconds, Monitor, Snapshot};
use crate::stats::Interval;

/// The current rate is that of the last second.
const RECENT: Duration = Duration::from_secs(1);

/// More seconds than any terminal has columns.
const MAX_SECONDS: usize = 1000;

pub(super) struct State {
    pub(super) has_colors: bool,
    pub(super) title: String,
    /// The counted unit.
    pub(super) unit: &'static str,
    pub(super) connections: usize,
    pub(super) until: Until,
    pub(super) warm_up: Duration,
    pub(super) snapshot: Snapshot,
    /// Responses and failures of each second that has ended.
    pub(super) seconds: VecDeque<(u64, u64)>,
    /// Response times of all seconds that have ended, in nanoseconds.
    pub(super) times: Option<Histogram<u64>>,
    recent: VecDeque<(Instant, u64)>,
    /// Seconds, by worker, that not all workers have published yet.
    incomplete: Vec<VecDeque<Interval>>,
    /// By worker: nothing more comes from it.
    gone: Vec<bool>,
    /// Empty: the load is sent from here.
    pub(super) agents: Vec<AgentState>,
}

impl State {
    pub(super) fn new(config: &Config, has_colors: bool) -> Self {
        Self {
            has_colors,
            title: title(config),
            unit: if config.is_websocket_load() {
                "messages"
            } else {
                "requests"
            },
            connections: config.connections,
            until: config.until,
            warm_up: config.total_warm_up(),
            snapshot: Snapshot::default(),
            seconds: VecDeque::new(),
            times: None,
            recent: VecDeque::new(),
            incomplete: Vec::new(),
            gone: Vec::new(),
            agents: Vec::new(),
        }
    }

    pub(super) fn update(&mut self, monitor: &Monitor, now: Instant) {
        self.agents = monitor.agents();
        self.observe(monitor.snapshot(), monitor.take_seconds(), now);
    }

    fn observe(&mut self, snapshot: Snapshot, ended_seconds: Vec<EndedSeconds>, now: Instant) {
        self.recent.push_back((now, snapshot.answered));
        while self.recent.len() > 2 && now - self.recent[1].0 >= RECENT {
            self.recent.pop_front();
        }
        self.snapshot = snapshot;
        self.incomplete
            .resize_with(ended_seconds.len(), VecDeque::new);
        self.gone = ended_seconds.iter().map(|ended| ended.is_gone).collect();
        for (incomplete, ended) in self.incomplete.iter_mut().zip(ended_seconds) {
            incomplete.extend(ended.seconds);
        }
        // A second is complete when every worker has published it, or will not.
        while self.incomplete.iter().any(|of| !of.is_empty())
            && (self.incomplete.iter().zip(&self.gone)).all(|(of, gone)| *gone || !of.is_empty())
        {
            let parts: Vec<_> = (self.incomplete.iter_mut())
                .filter_map(VecDeque::pop_front)
                .collect();
            self.end_second(&parts);
        }
    }

    fn end_second(&mut self, parts: &[Interval]) {
        let answered = parts.iter().map(|part| part.answered).sum();
        let failed = parts.iter().map(|part| part.failed).sum();
        self.seconds.push_back((answered, failed));
        if self.seconds.len() > MAX_SECONDS {
            self.seconds.pop_front();
        }
        for part in parts {
            let times = part.times();
            match &mut self.times {
                // All have the same bounds.
                Some(all) => _ = all.add(times),
                None => self.times = Some(times),
            }
        }
    }

    /// Current responses per second.
    pub(super) fn rate(&self) -> f64 {
        let (Some((first, before)), Some((last, after))) =
            (self.recent.front(), self.recent.back())
        else {
            return 0.0;
        };
        per_s(after.saturating_sub(*before), *last - *first)
    }

    /// Responses per second since the measured time began.
    pub(super) fn mean_rate(&self) -> f64 {
        let elapsed = self.snapshot.elapsed.unwrap_or_default();
        let mut measured = elapsed.saturating_sub(self.warm_up);
        if let Until::Time(time) = self.until {
            measured = measured.min(time);
        }
        per_s(self.snapshot.answered, measured)
    }

    /// Completed share of the run, and the remaining time if it is known.
    pub(super) fn progress(&self) -> (f64, Option<Duration>) {
        let elapsed = self.snapshot.elapsed.unwrap_or_default();
        match self.until {
            Until::Time(time) => {
                let total = (time + self.warm_up).as_secs_f64();
                let share = (elapsed.as_secs_f64() / total).min(1.0);
                (share, Some((time + self.warm_up).saturating_sub(elapsed)))
            }
            #[expect(clippy::cast_precision_loss, reason = "for the eye")]
            Until::Requests(all) => {
                let snapshot = &self.snapshot;
                let done =
                    snapshot.answered + snapshot.refused + snapshot.failed.iter().sum::<u64>();
                let share = (done as f64 / all.max(1) as f64).min(1.0);
                let left = elapsed.as_secs_f64() * (1.0 - share) / share;
                (share, Duration::try_from_secs_f64(left).ok())
            }
        }
    }

    /// The phase of the run.
    pub(super) fn stage(&self) -> &'static str {
        match self.snapshot.elapsed {
            None => "connecting",
            Some(elapsed) if elapsed < self.warm_up => "warming up",
            Some(_) if self.snapshot.is_draining => "awaiting the last responses",
            Some(_) => "measuring",
        }
    }
}

fn title(config: &Config) -> String {
    let url = config.targets.first().map(crate::Target::url);
    let more = match config.targets.len() {
        0 | 1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    let loop_mode = match config.loop_mode {
        LoopMode::Closed if config.barrier => "barrier".into(),
        LoopMode::Closed => "closed loop".into(),
        LoopMode::Open(rate) => format!("open loop at {}/s", rate.per_s),
    };
    let fresh = if config.is_fresh() { "fresh " } else { "" };
    format!(
        "{}{more} · {} {fresh}connections · {loop_mode}",
        url.unwrap_or_default(),
        config.connections
    )
}

#[expect(clippy::cast_precision_loss, reason = "for the eye")]
fn per_s(count: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 {
        count as f64 / seconds
    } else {
        0.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::monitor::Monitor;
    use crate::stats::{Failure, ResponseTimes, Tally};
    use crate::target::Target;

    fn ended(seconds: Vec<Interval>) -> EndedSeconds {
        EndedSeconds {
            seconds,
            is_gone: false,
        }
    }

    /// Five seconds of two workers, with 1000 responses and one failure per worker in each second.
    pub(in crate::live) fn sample(until: Until) -> State {
        let mut config = Config::new(vec![Target::get("http://127.0.0.1:8000/hello").unwrap()]);
        config.until = until;
        config.connections = 50;
        let mut state = State::new(&config, true);
        let mut tallies = [Tally::new(1), Tally::new(1)];
        let load_started = Instant::now();
        for second in 1..=5_u32 {
            let at = load_started + Duration::from_secs(u64::from(second));
            let mut ended_seconds = Vec::new();
            for tally in &mut tallies {
                for n in 1..=500 {
                    let time = Duration::from_micros(n * 4);
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
                tally.end_second(25);
                ended_seconds.push(ended(vec![tally.series.last().unwrap().clone()]));
            }
            let monitor = Monitor::default();
            for tally in &tallies {
                let now = Snapshot {
                    live_connections: 25,
                    in_flight: 1,
                    ..Snapshot::default()
                };
                monitor.counters().publish(tally, now, &[]);
            }
            let snapshot = Snapshot {
                elapsed: Some(at - load_started),
                ..monitor.snapshot()
            };
            state.observe(snapshot, ended_seconds, at);
        }
        state
    }

    #[test]
    fn seconds_and_counts_of_all_workers_add_up() {
        let state = sample(Until::Time(Duration::from_secs(20)));
        assert_eq!(state.seconds, [(1000, 2); 5]);
        assert_eq!(
            (state.snapshot.answered, state.snapshot.failed[2]),
            (5000, 10)
        );
        assert_eq!(state.snapshot.live_connections, 50);
        assert!((state.rate() - 1000.0).abs() < 1.0);
        assert!((state.mean_rate() - 1000.0).abs() < 1.0);
        let p50 = state.times.as_ref().unwrap().value_at_percentile(50.0);
        assert!(p50.abs_diff(1_000_000) < 20_000, "{p50}");
        let (share, left) = state.progress();
        assert!((share - 0.25).abs() < 1e-9);
        assert_eq!(left, Some(Duration::from_secs(15)));
        let (share, left) = sample(Until::Requests(10_020)).progress();
        assert!((share - 0.5).abs() < 1e-9);
        assert!(left.unwrap().abs_diff(Duration::from_secs(5)) < Duration::from_millis(1));
    }

    #[test]
    fn a_second_waits_for_the_slowest_worker() {
        let mut state = sample(Until::Requests(1));
        let now = Instant::now() + Duration::from_secs(60);
        let one = Interval::default();
        let both = |first, second| vec![ended(first), ended(second)];
        state.observe(Snapshot::default(), both(vec![one.clone()], vec![]), now);
        assert_eq!(state.seconds.len(), 5);
        state.observe(Snapshot::default(), both(vec![], vec![one.clone()]), now);
        assert_eq!(state.seconds.len(), 6);
        // A worker that is gone is not waited for.
        let mut seconds = both(vec![one], vec![]);
        seconds[1].is_gone = true;
        state.observe(Snapshot::default(), seconds, now);
        assert_eq!(state.seconds.len(), 7);
    }
}
