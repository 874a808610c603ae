//! One thread's load: an engine, its connections, and what is due on them.
//!
//! ```text
//! connect ─► run: turn { poll until the next start ─► dials ─► answers ─► starts that are due } ─► Part
//! ```
//!
//! A credit is leave to send one request on a connection. In a closed loop it is spent where it comes
//! up; in an open loop credits wait in line for the schedule, the one that has waited longest first.

mod line;
mod mix;
mod opening;
mod sending;
mod slot;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_io::call::DialConfig;
use towline_io::{ConnId, Engine, EngineConfig, Service};
use towline_proto::Limits;

use crate::check::Fault;
use crate::config::{Config, Pace, Until};
use crate::run::Stop;
use crate::schedule::{Schedule, Share};
use crate::stats::{Answer, Failure, Tally};
use crate::usage::Usage;
use line::{Line, Step, advance};
use mix::Origin;
use sending::Heads;
use slot::{Credit, Slot, State};

/// How often timeouts, reconnections and the stop flag are looked at, at most and at least.
const SHORTEST_TICK: Duration = Duration::from_millis(2);
const LONGEST_TICK: Duration = Duration::from_millis(20);

/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What one thread brings home.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) tally: Tally,
    pub(crate) usage: Usage,
    /// The measured time.
    pub(crate) measured: Duration,
    /// From the first to the last moment of the usage.
    pub(crate) accounted: Duration,
    pub(crate) live_at_end: u64,
}

/// The measured time, and where in it we are.
struct Window {
    begin: Instant,
    from: Instant,
    to: Instant,
    /// When something about the account is due: its beginning, or the end of a second.
    mark: Instant,
    /// The account at the beginning.
    opened: Option<(Instant, Usage)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Running,
    /// Nothing new is sent; answers to what counts are awaited.
    Draining,
}

pub(crate) struct Worker<'a> {
    config: &'a Config,
    engine: Engine<Line>,
    service: Arc<Service>,
    dial_config: Arc<DialConfig>,
    origins: Vec<Origin>,
    heads: Heads<'a>,
    slots: Vec<Slot>,
    credits: VecDeque<Credit>,
    /// `None`: a closed loop.
    schedule: Option<Schedule>,
    /// Requests that may still be sent.
    budget: Option<u64>,
    window: Window,
    phase: Phase,
    tick_at: Instant,
    /// Requests sent and not answered, those that wait for their own connection included.
    in_flight: u64,
    dialling: usize,
    live: u64,
    tally: Tally,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(config: &'a Config, share: Share) -> io::Result<Self> {
        let engine = Engine::new(EngineConfig {
            max_ready_per_turn: 256,
            turn_time: Duration::from_millis(5),
            ..EngineConfig::default()
        })?;
        let now = Instant::now();
        let origins = mix::origins(config, share);
        let part = |whole: u64| part_of(whole, share);
        let connections = part(config.connections as u64);
        let slot = |n: u64| Slot::new(n as usize % origins.len(), None);
        Ok(Self {
            config,
            engine,
            service: Arc::new(Service::plain(Limits::client())),
            dial_config: Arc::new(DialConfig {
                connect_timeout: Some(config.connect_timeout),
                ..DialConfig::default()
            }),
            slots: (0..connections).map(slot).collect(),
            origins,
            heads: Heads::new(config),
            credits: VecDeque::new(),
            schedule: match config.pace {
                Pace::Closed => None,
                Pace::Open(rate) => Some(Schedule::new(rate, share, config.seed)),
            },
            budget: match config.until {
                Until::Time(_) => None,
                Until::Requests(all) => Some(part(all)),
            },
            window: Window {
                begin: now,
                from: now + FOREVER,
                to: now + FOREVER,
                mark: now + FOREVER,
                opened: None,
            },
            phase: Phase::Connecting,
            tick_at: now,
            in_flight: 0,
            dialling: 0,
            live: 0,
            tally: Tally::new(),
        })
    }

    /// Opens the connections that the load begins with, so that their making is no part of it. Each is
    /// tried once here.
    pub(crate) fn connect(&mut self) -> io::Result<()> {
        let comes_later = self.schedule.is_none() && !self.config.ramp.is_zero();
        if self.config.is_fresh() || comes_later {
            return Ok(());
        }
        for slot in 0..self.slots.len() as u32 {
            self.dial(slot, None, Instant::now());
        }
        let patience = Instant::now() + self.config.connect_timeout;
        while self.dialling > 0 && Instant::now() < patience {
            self.turn()?;
        }
        Ok(())
    }

    /// All of the load, from `begin` on.
    pub(crate) fn run(mut self, begin: Instant, stop: &Stop) -> io::Result<Part> {
        self.begin(begin);
        loop {
            self.turn()?;
            let now = self.engine.clock();
            if stop.is_asked() {
                self.window.to = self.window.to.min(now);
                return Ok(self.part(now));
            }
            if self.phase == Phase::Running && now >= self.window.to {
                self.phase = Phase::Draining;
                self.count_unsent();
            }
            if self.is_over() {
                return Ok(self.part(now));
            }
        }
    }

    fn begin(&mut self, begin: Instant) {
        let from = begin + self.config.lead();
        self.window.begin = begin;
        self.window.from = from;
        self.window.mark = from;
        if let Until::Time(time) = self.config.until {
            self.window.to = from + time;
        }
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        self.phase = Phase::Running;
        self.mark(now);
        let count = self.slots.len() as u32;
        for index in 0..count {
            match self.slots[index as usize].state {
                State::Open(id) => {
                    self.credit_all(index, now);
                    self.engine.settle(id);
                }
                State::Absent { .. } if self.config.is_fresh() => self.credit(index, now),
                State::Absent { .. } => {
                    let due = begin + self.config.ramp * index / count;
                    self.slots[index as usize].state = State::Absent { due: Some(due) };
                }
                State::Dialling { .. } => {}
            }
        }
        self.open_due(now);
    }

    fn is_over(&self) -> bool {
        match self.phase {
            Phase::Connecting => false,
            Phase::Running => self.budget == Some(0) && self.in_flight == 0,
            // What a closed loop has in flight at the end came too late for it.
            Phase::Draining => self.schedule.is_none() || self.in_flight == 0,
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        match self.next_start() {
            Some(at) => self.engine.turn_start_by(at.min(self.tick_at))?,
            None => self.engine.turn_start(Some(self.patience()))?,
        }
        let woken = self.engine.clock();
        self.take_dialled(woken);
        self.start_due();
        let mut served = false;
        while let Some(id) = self.engine.next_ready() {
            served = true;
            self.serve(id);
            self.start_due();
        }
        // A dial may be over at once, and no poll tells.
        self.take_dialled(self.engine.clock());
        self.engine.turn_end();
        let now = Instant::now();
        if served && self.phase == Phase::Running {
            self.tally.turn.record(now - woken);
        }
        self.mark(now);
        if now >= self.tick_at {
            self.tick(now);
        }
        Ok(())
    }

    /// How long a turn without a schedule may wait.
    fn patience(&self) -> Duration {
        let now = Instant::now();
        let next = match self.phase {
            Phase::Running => self.tick_at.min(self.window.to),
            _ => self.tick_at,
        };
        next.saturating_duration_since(now)
            .max(Duration::from_micros(1))
    }

    /// Everything that one connection has to say.
    fn serve(&mut self, id: ConnId) {
        let now = self.engine.clock();
        self.mark(now);
        self.count_received(id);
        loop {
            let Some(peer) = self.engine.peer(id) else {
                return;
            };
            match advance(peer, &self.config.targets, now) {
                Step::Wait => break,
                Step::Answered => self.answered(id, now),
                Step::Closed(failure, rule) => {
                    self.over(id, failure, rule, now);
                    break;
                }
                Step::Unasked => {
                    let rule = "an upgrade that was not asked for (RFC 9110 7.8)";
                    self.over(id, Failure::Protocol, rule, now);
                    self.engine.abort(id);
                    return;
                }
            }
        }
        self.engine.settle(id);
    }

    fn count_received(&mut self, id: ConnId) {
        let Some(peer) = self.engine.peer(id) else {
            return;
        };
        let all = peer.received_bytes();
        let news = all - std::mem::replace(&mut peer.state.counted_bytes, all);
        if self.window.opened.is_some() && self.phase == Phase::Running {
            self.tally.received(news);
        }
    }

    /// The oldest request of a connection has its answer.
    fn answered(&mut self, id: ConnId, now: Instant) {
        let Some(peer) = self.engine.peer(id) else {
            return;
        };
        let line = &mut peer.state;
        let (Some(flight), Some(slot)) = (line.flights.pop_front(), line.slot) else {
            return;
        };
        let fault = line
            .check
            .end(&self.config.targets[flight.target as usize].expect);
        let (status, body_bytes) = (line.check.status(), line.check.length());
        let head_at = line.head_at.take().unwrap_or(now);
        self.in_flight -= 1;
        if self.counts(flight.intended, now) {
            self.tally.status(status);
            match fault {
                Some(Fault::Status) => {
                    self.tally.failed(Failure::Status);
                    self.tally.note(|| format!("status {status}"));
                }
                Some(Fault::Content) => {
                    self.tally.failed(Failure::Content);
                    self.tally
                        .note(|| format!("a body of {body_bytes} bytes is not the expected one"));
                }
                None => self.tally.answered(&Answer {
                    response: now.saturating_duration_since(flight.intended),
                    service: now.saturating_duration_since(flight.sent),
                    first_byte: head_at.saturating_duration_since(flight.sent),
                    body_bytes,
                }),
            }
        }
        self.credit(slot, now);
    }

    fn failed(&mut self, intended: Instant, failure: Failure, now: Instant) {
        if self.counts(intended, now) {
            self.tally.failed(failure);
        }
    }

    /// Whether what was meant to start at `intended` and ends `now` belongs to the measured time: in a
    /// closed loop by its end, in an open one by its start, so that slow answers are not cut off.
    fn counts(&self, intended: Instant, now: Instant) -> bool {
        let at = if self.schedule.is_some() {
            intended
        } else {
            now
        };
        self.phase != Phase::Connecting && at >= self.window.from && at < self.window.to
    }

    /// Keeps the account of seconds and of our own cost.
    #[inline]
    fn mark(&mut self, now: Instant) {
        if now >= self.window.mark {
            self.mark_due(now);
        }
    }

    #[cold]
    fn mark_due(&mut self, now: Instant) {
        self.tally.live(self.live);
        if self.window.opened.is_none() {
            self.window.opened = Some((now, Usage::of_this_thread()));
            self.window.mark = self.window.from + Duration::from_secs(1);
        }
        while now >= self.window.mark && self.window.mark <= self.window.to {
            self.tally.end_second(self.live);
            self.window.mark += Duration::from_secs(1);
        }
        if self.window.mark > self.window.to {
            self.window.mark = self.window.begin + FOREVER;
        }
    }

    fn tick(&mut self, now: Instant) {
        self.tick_at = now + (self.config.timeout / 20).clamp(SHORTEST_TICK, LONGEST_TICK);
        if self.phase == Phase::Connecting {
            return;
        }
        if self.window.opened.is_some() && self.phase == Phase::Running {
            self.tally.live(self.live);
        }
        self.expire(now);
        self.open_due(now);
    }

    /// Ends the connections whose oldest request has waited too long.
    fn expire(&mut self, now: Instant) {
        for index in 0..self.slots.len() {
            let State::Open(id) = self.slots[index].state else {
                continue;
            };
            let oldest = self
                .engine
                .peer(id)
                .and_then(|peer| peer.state.flights.front());
            if oldest.is_some_and(|flight| now >= flight.sent + self.config.timeout) {
                self.over(id, Failure::Timeout, "no answer in time", now);
                self.engine.abort(id);
            }
        }
    }

    fn part(mut self, now: Instant) -> Part {
        let measured = match self.config.until {
            Until::Time(_) => self.window.to.saturating_duration_since(self.window.from),
            Until::Requests(_) => now.saturating_duration_since(self.window.from),
        };
        let (opened, before) = self.window.opened.unwrap_or((now, Usage::of_this_thread()));
        self.tally.finish(self.live);
        Part {
            usage: Usage::of_this_thread().since(before),
            accounted: now - opened,
            measured,
            live_at_end: self.live,
            tally: self.tally,
        }
    }
}

/// What of `whole` falls to one of several; the first ones take the rest.
fn part_of(whole: u64, share: Share) -> u64 {
    let (of, index) = (u64::from(share.of), u64::from(share.index));
    whole / of + u64::from(index < whole % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let parts: Vec<_> = (0..4)
            .map(|index| part_of(10, Share { index, of: 4 }))
            .collect();
        assert_eq!(parts, [3, 3, 2, 2]);
    }
}
