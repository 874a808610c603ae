//! Series of runs: the highest rate that keeps a goal, and the same load at several concurrencies.
//!
//! The search is a pure state machine: it takes a judgement and returns the next rate.
//!
//! ```text
//! Ramp ──missed──► Bisect ──close enough──► Confirm ──met──► Found
//!   └─max──► Confirm            ▲───────────────┘ missed: below it again
//! ```

use crate::config::{Config, LoopMode};
use crate::error::LoadError;
use crate::report::{BUSY_SHARE, Generator, Report};
use crate::run::run;
use crate::schedule::{Arrivals, Rate};
use crate::session::Outcome;
use crate::slice::Stop;

/// The search ends when this rate is missed too.
const SLOWEST_PER_S: f64 = 1.0;

/// The conditions for a rate to count as sustained.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The percentile of the response times.
    pub percent: f64,
    pub max_us: f64,
    /// Failures as a share of all requests.
    pub error_share: f64,
    /// Responses as a share of what was due.
    pub achieved_share: f64,
}

impl Default for Goal {
    fn default() -> Self {
        Self {
            percent: 99.0,
            max_us: 10_000.0,
            error_share: 0.001,
            achieved_share: 0.99,
        }
    }
}

/// The result of a run at one rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    Met,
    Missed,
}

impl Goal {
    pub fn judge(&self, report: &Report) -> Judgement {
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let (answered, failed) = (report.answered as f64, report.errors.total() as f64);
        let achieved = report
            .open_loop
            .as_ref()
            .map_or(1.0, |open| open.achieved_share);
        let met = report.answered > 0
            && report.response.at(self.percent) <= self.max_us
            && failed <= self.error_share * (answered + failed)
            && achieved >= self.achieved_share;
        if met {
            Judgement::Met
        } else {
            Judgement::Missed
        }
    }
}

/// The search for the highest rate that meets the goal.
#[derive(Clone, Debug)]
pub struct PeakSearch {
    stage: Stage,
    /// Stop when the rates met and missed are within this ratio.
    precision: f64,
    max_per_s: f64,
    /// Runs left: bounds the search on noisy servers.
    runs_left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Ramp { met: f64, next: f64 },
    Bisect { met: f64, missed: f64 },
    Confirm { rate: f64 },
    Found(f64),
    NotFound,
}

impl PeakSearch {
    /// Starts at `first_per_s` and doubles until a miss, up to `max_per_s`.
    pub fn new(first_per_s: f64, max_per_s: f64) -> Self {
        Self {
            stage: Stage::Ramp {
                met: 0.0,
                next: first_per_s.min(max_per_s),
            },
            precision: 1.05,
            max_per_s,
            runs_left: 40,
        }
    }

    /// The rate to try next; `None`: the search is over.
    pub fn next_rate(&self) -> Option<f64> {
        match self.stage {
            Stage::Ramp { next, .. } => Some(next),
            Stage::Bisect { met, missed } => Some(middle(met, missed)),
            Stage::Confirm { rate } => Some(rate),
            Stage::Found(_) | Stage::NotFound => None,
        }
    }

    /// The rate that was met twice.
    pub fn found(&self) -> Option<f64> {
        match self.stage {
            Stage::Found(rate) => Some(rate),
            _ => None,
        }
    }

    pub fn observe(&mut self, judgement: Judgement) {
        let Some(tried) = self.next_rate() else {
            return;
        };
        self.runs_left -= 1;
        self.stage = match (self.stage, judgement) {
            _ if self.runs_left == 0 => Stage::NotFound,
            (Stage::Confirm { .. }, Judgement::Met) => Stage::Found(tried),
            // The first success was luck: search below it.
            (Stage::Confirm { .. }, Judgement::Missed) => self.narrow(tried / 2.0, tried),
            (Stage::Ramp { .. }, Judgement::Met) if tried >= self.max_per_s => {
                Stage::Confirm { rate: tried }
            }
            (Stage::Ramp { .. }, Judgement::Met) => Stage::Ramp {
                met: tried,
                next: (tried * 2.0).min(self.max_per_s),
            },
            (Stage::Ramp { met, .. } | Stage::Bisect { met, .. }, Judgement::Missed) => {
                self.narrow(met, tried)
            }
            (Stage::Bisect { missed, .. }, Judgement::Met) => self.narrow(tried, missed),
            (over, _) => over,
        };
    }

    fn narrow(&self, met: f64, missed: f64) -> Stage {
        if met > 0.0 && missed / met <= self.precision {
            Stage::Confirm { rate: met }
        } else if met == 0.0 && missed <= SLOWEST_PER_S {
            Stage::NotFound
        } else {
            Stage::Bisect { met, missed }
        }
    }
}

/// The geometric mean; below the first rate, if that was missed already, a tenth of it.
fn middle(met: f64, missed: f64) -> f64 {
    if met > 0.0 {
        (met * missed).sqrt()
    } else {
        missed / 10.0
    }
}

/// The result of a search, with all its runs in order.
#[derive(Clone, Debug)]
pub struct Peak {
    /// `None`: no rate kept the goal, or the generator was the limit.
    pub rate_per_s: Option<f64>,
    /// The rate that kept the goal twice, and why the next higher one did not by the generator's fault.
    pub limited: Option<(f64, String)>,
    pub runs: Vec<Report>,
}

/// The lowest rate that was missed, which bounds the peak, and why by the generator's fault.
#[derive(Debug, Default)]
struct Bound(Option<(f64, Option<String>)>);

impl Bound {
    fn observe(&mut self, per_s: f64, judgement: Judgement, generator: &Generator) {
        let is_lower = self.0.as_ref().is_none_or(|(rate, _)| per_s <= *rate);
        if judgement == Judgement::Missed && is_lower {
            let busy = || {
                (generator.busiest_share >= BUSY_SHARE)
                    .then(|| "a thread of the generator was busy all the time".to_owned())
            };
            self.0 = Some((per_s, generator.limit.clone().or_else(busy)));
        }
    }

    fn limit(self) -> Option<String> {
        self.0.and_then(|(_, limit)| limit)
    }
}

/// Searches with runs of `config`, whose loop mode is replaced.
pub fn find_peak(
    config: &Config,
    goal: &Goal,
    search: PeakSearch,
    stop: &Stop,
    on_report: impl FnMut(&Report, Judgement),
) -> Result<Peak, LoadError> {
    let mut run = |config: &Config| run(config, stop);
    let run = &mut run;
    Series { config, stop, run }.find_peak(goal, search, on_report)
}

/// One run of `config` for each number of connections, in the order given.
pub fn connections_sweep(
    config: &Config,
    connections: &[usize],
    stop: &Stop,
    on_report: impl FnMut(&Report),
) -> Result<Vec<Outcome>, LoadError> {
    let mut run = |config: &Config| run(config, stop);
    let run = &mut run;
    Series { config, stop, run }.connections_sweep(connections, on_report)
}

/// Runs of variants of a configuration, here or on several agents.
pub(crate) struct Series<'a> {
    pub(crate) config: &'a Config,
    pub(crate) stop: &'a Stop,
    pub(crate) run: &'a mut dyn FnMut(&Config) -> Result<Outcome, LoadError>,
}

impl Series<'_> {
    pub(crate) fn find_peak(
        self,
        goal: &Goal,
        mut search: PeakSearch,
        mut on_report: impl FnMut(&Report, Judgement),
    ) -> Result<Peak, LoadError> {
        let arrivals = match self.config.loop_mode {
            LoopMode::Open(rate) => rate.arrivals,
            LoopMode::Closed => Arrivals::Constant,
        };
        let mut runs = Vec::new();
        let mut bound = Bound::default();
        while let Some(per_s) = search.next_rate().filter(|_| !self.stop.is_requested()) {
            let loop_mode = LoopMode::Open(Rate {
                per_s,
                arrivals,
                ramp: self.config.ramp,
            });
            let config = Config {
                loop_mode,
                ..self.config.clone()
            };
            let report = (self.run)(&config)?.report;
            let judgement = goal.judge(&report);
            on_report(&report, judgement);
            if !self.stop.is_requested() {
                search.observe(judgement);
                bound.observe(per_s, judgement, &report.generator);
            }
            runs.push(report);
        }
        let limited = search.found().zip(bound.limit());
        Ok(Peak {
            rate_per_s: search.found().filter(|_| limited.is_none()),
            limited,
            runs,
        })
    }

    pub(crate) fn connections_sweep(
        self,
        connections: &[usize],
        mut on_report: impl FnMut(&Report),
    ) -> Result<Vec<Outcome>, LoadError> {
        let mut outcomes = Vec::new();
        for &connections in connections {
            if self.stop.is_requested() {
                break;
            }
            let threads = self.config.threads.min(connections);
            let config = Config {
                connections,
                threads,
                ..self.config.clone()
            };
            let outcome = (self.run)(&config)?;
            on_report(&outcome.report);
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches with a server whose capacity at the nth run is `capacity(n)`.
    fn search(first: f64, most: f64, capacity: impl Fn(usize) -> f64) -> (Option<f64>, usize) {
        let mut search = PeakSearch::new(first, most);
        let mut runs = 0;
        while let Some(rate) = search.next_rate() {
            let met = rate <= capacity(runs);
            search.observe(if met {
                Judgement::Met
            } else {
                Judgement::Missed
            });
            runs += 1;
            assert!(runs <= 40);
        }
        (search.found(), runs)
    }

    #[test]
    fn the_peak_is_found_within_its_precision_from_either_side() {
        for capacity in [150.0, 1000.0, 12_345.0, 987_654.0] {
            for first in [100.0, 5_000.0] {
                let (found, runs) = search(first, 1e7, |_| capacity);
                let found = found.unwrap();
                assert!(
                    found <= capacity && found >= capacity / 1.05,
                    "{found} of {capacity}"
                );
                assert!(runs <= 25, "{runs}");
            }
        }
    }

    #[test]
    fn bounds_are_kept() {
        assert_eq!(search(1000.0, 6000.0, |_| 1e9).0, Some(6000.0));
        assert_eq!(search(1000.0, 1e6, |_| 0.0).0, None);
    }

    #[test]
    fn a_rate_met_by_luck_is_not_confirmed() {
        // The first ten runs are too good; the true capacity is half of theirs.
        let (found, _) = search(100.0, 1e6, |run| if run < 10 { 8000.0 } else { 4000.0 });
        let found = found.unwrap();
        assert!((4000.0 / 1.05..=4000.0).contains(&found), "{found}");
    }

    #[test]
    fn a_peak_is_limited_by_the_lowest_rate_that_was_missed() {
        let fine = Generator::default();
        let busy = Generator {
            busiest_share: 0.95,
            ..Generator::default()
        };
        let limit = |runs: &[(f64, Judgement, &Generator)]| {
            let mut bound = Bound::default();
            for &(per_s, judgement, generator) in runs {
                bound.observe(per_s, judgement, generator);
            }
            bound.limit().is_some()
        };
        assert!(limit(&[
            (1000.0, Judgement::Missed, &busy),
            (700.0, Judgement::Met, &fine)
        ]));
        assert!(!limit(&[
            (1000.0, Judgement::Missed, &busy),
            (700.0, Judgement::Missed, &fine)
        ]));
        assert!(!limit(&[(1000.0, Judgement::Met, &busy)]));
    }
}
