//! BBR (draft-ietf-ccwg-bbr): congestion control by the rate at which data arrives, for networks that lose packets
//! although they are not full.
//!
//! ```text
//!           no growth in 3 rounds,             the queue is gone            5 to 8 rounds,
//! Startup ─────────────────────────► Drain ─────────────────────────► Cruise ────────────────► Up
//!           too many losses            ▲                                      the rate grew     │
//!                                      └───────────── a round, too many losses ────────────────┘
//! any ── 10 s without a round trip as short as the shortest ──► ProbeRtt ── 200 ms ──► Cruise, or Startup
//! ```
//!
//! A round is the time until a packet is acknowledged that was sent after its beginning. Each gives one sample of the rate.
//! The sample is never above the rate at which the data was sent, so early acknowledgements cannot raise it. Losses count
//! once they are more than chance explains: the estimate then falls to what arrived. Time is an argument.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};

/// Gains in percent: of the rate that is sent, and of the product of rate and round trip that may be in flight.
const STARTUP_GAIN: u64 = 400;
const DRAIN_GAIN: u64 = 50;
const UP_GAIN: u64 = 125;
const WINDOW_GAIN: u64 = 200;
/// Share of the estimate that is sent, which lets queues of estimates that are too high drain.
const MARGIN: u64 = 99;
/// The smallest growth in a round for which Startup goes on, and the one that calls for another Up.
const STARTUP_GROWTH: u64 = 125;
const UP_GROWTH: u64 = 112;
const ROUNDS_WITHOUT_GROWTH: u32 = 2;
/// A round has too many losses above three packets and a sixteenth of its bytes. Chance exceeds this bound in one of
/// 10,000 rounds if the network loses 2 %. A queue that overflows exceeds it at once.
const LOSSES_OF_CHANCE: u64 = 3;
const LOST_SHARE: u64 = 16;
/// Lowest share, in percent, that a round with too many losses leaves of the estimate (`CUBIC`'s, RFC 9438 4.6).
const LOSS_FACTOR: u64 = 70;
const INITIAL_WINDOW_BYTES: u64 = 14_720;
const MIN_WINDOW_PACKETS: u64 = 4;
const MIN_RTT_LIFETIME: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
const QUANTUM_TIME_MS: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    Cruise {
        rounds: u32,
    },
    Up,
    /// `until`: once little is in flight.
    ProbeRtt {
        until: Option<Instant>,
        shortest: Duration,
    },
}

/// State at the beginning of a round, and what happened in it.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    delivered_bytes: u64,
    /// When the newest acknowledged packet had been sent.
    acked_sent: Instant,
    lost_bytes: u64,
    is_marked: bool,
    /// The program had nothing more to send, in this round or in the one before, whose packets this one acknowledges.
    is_app_limited: bool,
    was_app_limited: bool,
}

impl Round {
    fn new(now: Instant, acked_sent: Instant, delivered_bytes: u64) -> Self {
        Self {
            began: now,
            delivered_bytes,
            acked_sent,
            lost_bytes: 0,
            is_marked: false,
            is_app_limited: false,
            was_app_limited: true,
        }
    }
}

/// The controller of one path.
#[derive(Clone, Debug)]
pub struct Bbr {
    phase: Phase,
    mtu: u64,
    window_bytes: u64,
    max_window_bytes: u64,
    /// Highest samples of the rate, in bytes per second, of this cycle of Up and Cruise and of the one before.
    rates: [u64; 2],
    /// The estimate before the last Up, or in Startup before the rounds without growth.
    rate_before: u64,
    rounds_without_growth: u32,
    is_full: bool,
    min_rtt: Duration,
    min_rtt_at: Instant,
    round: Round,
    delivered_bytes: u64,
    acked_bytes: u64,
    acked_sent: Instant,
    is_idle: bool,
}

impl Bbr {
    fn new(now: Instant, mtu: u16, max_window_bytes: u64) -> Self {
        Self {
            phase: Phase::Startup,
            mtu: mtu.into(),
            window_bytes: INITIAL_WINDOW_BYTES,
            max_window_bytes,
            rates: [0; 2],
            rate_before: 0,
            rounds_without_growth: 0,
            is_full: false,
            min_rtt: Duration::MAX,
            min_rtt_at: now,
            round: Round::new(now, now, 0),
            delivered_bytes: 0,
            acked_bytes: 0,
            acked_sent: now,
            is_idle: true,
        }
    }

    fn acked(&mut self, sent: Instant, bytes: u64) {
        self.acked_bytes += bytes;
        self.acked_sent = self.acked_sent.max(sent);
    }

    fn measure_rtt(&mut self, now: Instant, in_flight: u64) {
        let rtt = now.saturating_duration_since(self.acked_sent);
        if rtt <= self.min_rtt {
            (self.min_rtt, self.min_rtt_at) = (rtt, now);
        }
        let few_bytes = self.probe_rtt_window() + self.mtu;
        let is_old = now.saturating_duration_since(self.min_rtt_at) > MIN_RTT_LIFETIME;
        match &mut self.phase {
            Phase::ProbeRtt { until, shortest } if in_flight <= few_bytes => {
                let at = *until.get_or_insert(now + PROBE_RTT_TIME);
                *shortest = rtt.min(*shortest);
                if now >= at {
                    (self.min_rtt, self.min_rtt_at) = (*shortest, now);
                    if self.is_full {
                        self.cruise();
                    } else {
                        self.phase = Phase::Startup;
                    }
                }
            }
            Phase::ProbeRtt { .. } => {}
            _ if is_old => {
                self.phase = Phase::ProbeRtt {
                    until: None,
                    shortest: Duration::MAX,
                }
            }
            _ => {}
        }
    }

    fn end_round(&mut self, now: Instant, in_flight: u64) {
        let round = self.round;
        let delivered = self.delivered_bytes - round.delivered_bytes;
        let elapsed = now
            .saturating_duration_since(round.began)
            .max(self.acked_sent.saturating_duration_since(round.acked_sent));
        let sample = per_second(delivered, elapsed);
        self.round = Round {
            was_app_limited: round.is_app_limited,
            ..Round::new(now, self.acked_sent, self.delivered_bytes)
        };
        if !round.was_app_limited || sample > self.rate() {
            self.rates[0] = self.rates[0].max(sample);
        }
        let chance = LOSSES_OF_CHANCE * self.mtu + (delivered + round.lost_bytes) / LOST_SHARE;
        let is_congested = round.is_marked || round.lost_bytes > chance;
        if is_congested && self.is_full {
            self.rates = [sample.clamp(self.rate() * LOSS_FACTOR / 100, self.rate()); 2];
        }
        match self.phase {
            Phase::Startup => self.check_growth(is_congested, round.was_app_limited),
            Phase::Cruise { rounds } => {
                let has_grown = self.rate() * 100 >= self.rate_before * UP_GROWTH;
                if rounds == 0 || has_grown {
                    self.probe_up();
                } else {
                    self.phase = Phase::Cruise { rounds: rounds - 1 };
                }
            }
            Phase::Up if is_congested || in_flight * 100 >= self.bdp() * UP_GAIN => {
                self.phase = Phase::Drain;
            }
            // The queue is not gone after a round: the estimate is too high, and newer samples replace it.
            Phase::Drain => self.age_rates(),
            _ => {}
        }
    }

    /// Ends Startup when the rate grows no more.
    fn check_growth(&mut self, is_congested: bool, is_app_limited: bool) {
        if self.rate() * 100 >= self.rate_before * STARTUP_GROWTH {
            (self.rate_before, self.rounds_without_growth) = (self.rate(), 0);
        } else if !is_app_limited {
            self.rounds_without_growth += 1;
        }
        if is_congested || self.rounds_without_growth >= ROUNDS_WITHOUT_GROWTH {
            self.is_full = true;
            self.rate_before = self.rate();
            self.phase = Phase::Drain;
        }
    }

    fn cruise(&mut self) {
        // Flows that share a queue do not probe at the same time.
        let more = (self.delivered_bytes / self.mtu % 4) as u32;
        self.phase = Phase::Cruise { rounds: 4 + more };
    }

    fn probe_up(&mut self) {
        self.phase = Phase::Up;
        self.rate_before = self.rate();
        self.age_rates();
    }

    /// Begins a cycle of samples, unless this one has none that counts.
    fn age_rates(&mut self) {
        if self.rates[0] > 0 {
            self.rates = [0, self.rates[0]];
        }
    }

    /// The estimate of the path's rate in bytes per second.
    fn rate(&self) -> u64 {
        self.rates[0].max(self.rates[1])
    }

    /// Bytes in flight at which the path is full and has no queue.
    fn bdp(&self) -> u64 {
        let micros = self.min_rtt.min(Duration::from_secs(60)).as_micros() as u64;
        self.rate().saturating_mul(micros) / 1_000_000
    }

    fn target_window(&self) -> u64 {
        if self.rate() == 0 {
            return u64::MAX;
        }
        let gain = if self.is_full {
            WINDOW_GAIN
        } else {
            STARTUP_GAIN
        };
        let quantum = (self.rate() * QUANTUM_TIME_MS / 1000).clamp(2 * self.mtu, 64 * 1024);
        self.bdp() * gain / 100 + 3 * quantum
    }

    fn min_window(&self) -> u64 {
        MIN_WINDOW_PACKETS * self.mtu
    }

    fn probe_rtt_window(&self) -> u64 {
        (self.bdp() / 2).max(self.min_window())
    }

    /// Bytes per second to send now; no limit before the first round trip.
    fn pacing_rate(&self) -> u64 {
        let gain = match self.phase {
            Phase::Startup => return u64::MAX,
            Phase::Drain => DRAIN_GAIN,
            Phase::Up => UP_GAIN,
            Phase::Cruise { .. } | Phase::ProbeRtt { .. } => 100,
        };
        (self.rate() * gain / 100 * MARGIN / 100).max(self.mtu)
    }
}

fn per_second(bytes: u64, time: Duration) -> u64 {
    let micros = (time.as_micros() as u64).max(1);
    bytes.saturating_mul(1_000_000) / micros
}

impl Controller for Bbr {
    fn on_sent(&mut self, now: Instant, _: u64, _: u64) {
        if std::mem::take(&mut self.is_idle) {
            // The time without packets in flight is no part of a sample, and no time to send more than the rate.
            self.round = Round::new(now, now, self.delivered_bytes);
            self.acked_sent = now;
            if self.phase == Phase::Up {
                self.cruise();
            }
        }
    }

    fn on_ack(&mut self, _: Instant, sent: Instant, bytes: u64, _: bool, _: &RttEstimator) {
        self.acked(sent, bytes);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, _: Option<u64>) {
        let acked = std::mem::take(&mut self.acked_bytes);
        if acked == 0 {
            return;
        }
        self.delivered_bytes += acked;
        self.round.is_app_limited |= app_limited;
        self.is_idle = in_flight == 0;
        self.measure_rtt(now, in_flight);
        if self.acked_sent >= self.round.began {
            self.end_round(now, in_flight);
        }
        if self.phase == Phase::Drain && in_flight <= self.bdp() {
            self.cruise();
        }
        let target = self.target_window();
        if self.is_full {
            self.window_bytes = (self.window_bytes + acked).min(target);
        } else if self.window_bytes < target {
            self.window_bytes += acked;
        }
        let least = self.min_window();
        self.window_bytes = self
            .window_bytes
            .clamp(least, self.max_window_bytes.max(least));
    }

    fn on_congestion_event(&mut self, _: Instant, _: Instant, is_persistent: bool, bytes: u64) {
        self.round.lost_bytes += bytes;
        self.round.is_marked |= bytes == 0;
        if is_persistent {
            self.window_bytes = self.min_window();
        }
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.mtu = mtu.into();
        self.window_bytes = self.window_bytes.max(self.min_window());
    }

    fn window(&self) -> u64 {
        match self.phase {
            Phase::ProbeRtt { .. } => self.window_bytes.min(self.probe_rtt_window()),
            _ => self.window_bytes,
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.window();
        metrics.pacing_rate = Some(self.pacing_rate().saturating_mul(8));
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Makes the controllers of a configuration.
pub(crate) struct BbrConfig {
    /// Highest window: more than the program may have in flight is of no use, and a peer that acknowledges what it has
    /// not received cannot get beyond it.
    pub(crate) max_window_bytes: u64,
}

impl ControllerFactory for BbrConfig {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Bbr::new(now, mtu, self.max_window_bytes))
    }
}

#[cfg(test)]
mod tests;
