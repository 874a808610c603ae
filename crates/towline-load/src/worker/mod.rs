//! One thread's load: an engine, its connections, and what is due on them.
//!
//! ```text
//! prepare ─► load: turn { poll until the next start ─► dials ─► answers ─► starts that are due } ─► Part
//!    ▲          └─► await_rest ─┐
//!    └──────────────────────────┘ the next slice
//! ```
//!
//! A credit is leave to send one request on a connection. In a closed loop it is spent where it comes
//! up; in an open loop credits wait in line for the schedule, the one that has waited longest first.

mod barrier;
mod batch_flush;
mod conn_state;
mod connect;
mod origins;
mod responses;
mod send;
mod send_modes;
mod slot;
mod wakeup;
mod websocket;

use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_io::client::DialConfig;
use towline_io::{ConnId, Engine, EngineConfig, Service};

use crate::check::VerifiedBody;
use crate::config::{Config, LoopMode, Until};
use crate::monitor::{LiveCounters, Monitor};
use crate::schedule::{Schedule, Share};
use crate::session::{Slice, Stop};
use crate::stats::{Failure, Tally};
use crate::usage::Usage;
use batch_flush::BatchFlush;
use conn_state::{ConnEvent, ConnState, advance};
pub(crate) use conn_state::{failure_of, failure_on_stream};
pub(crate) use connect::{NOT_CHOSEN, alpn, service};
use origins::Origin;
pub(crate) use origins::Routes;
use send::RequestTemplates;
use send_modes::Due;
pub(crate) use send_modes::write_whole;
use slot::{SendPermit, Slot, State};
use wakeup::WakeupCompensation;
use websocket::WsContext;

/// How often timeouts, reconnections and the stop flag are looked at, at most and at least.
const SHORTEST_TICK: Duration = Duration::from_millis(2);
const LONGEST_TICK: Duration = Duration::from_millis(20);

/// How long late requests are sent once the server answers again, at least, and as a part of the measured
/// time: what a stall has held up is gone by then, and what an overload leaves is not.
const SHORTEST_GRACE: Duration = Duration::from_millis(100);
const GRACE_PART: u32 = 10;

/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// One thread's account of a slice; what it counted stays with it.
#[derive(Debug)]
pub(crate) struct ThreadResult {
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
    usage_before: Option<(Instant, Usage)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before a slice.
    Connecting,
    Running,
    /// Open loop: the measured time is over, and what was due in it and found no connection is sent still,
    /// so that what held it up counts as its latency.
    Late,
    /// Nothing new is sent; answers to what counts are awaited.
    Draining,
}

impl Phase {
    fn sends(self) -> bool {
        matches!(self, Self::Running | Self::Late)
    }
}

pub(crate) struct Worker {
    config: Arc<Config>,
    share: Share,
    /// How many there have been: each draws its own arrivals.
    slices: u64,
    engine: Engine<ConnState>,
    service: Arc<Service>,
    dial_config: Arc<DialConfig>,
    origins: Vec<Origin>,
    templates: RequestTemplates,
    ws_context: WsContext,
    slots: Vec<Slot>,
    permits: VecDeque<SendPermit>,
    /// Connections with a piece to send, soonest first.
    due: BinaryHeap<Due>,
    /// Connections to hang up when everything is out: slot and serial.
    closing: Vec<(u32, u32)>,
    /// What is known of coded answers, for each target.
    verified: Vec<VerifiedBody>,
    /// `None`: a closed loop.
    schedule: Option<Schedule>,
    /// Requests that may still be sent.
    budget: Option<u64>,
    until: Until,
    window: Window,
    /// The end of the grace for late requests.
    late_until: Instant,
    phase: Phase,
    tick_at: Instant,
    /// The end of the last turn.
    turned_at: Instant,
    wakeup: WakeupCompensation,
    /// Requests sent and not answered, those that wait for their own connection included.
    in_flight: u64,
    dialling: usize,
    live: u64,
    tally: Tally,
    monitored: Option<MonitorHandle>,
    batch: BatchFlush,
}

/// What somebody outside sees.
struct MonitorHandle {
    monitor: Monitor,
    counters: Arc<LiveCounters>,
    /// Seconds handed over.
    seconds: usize,
}

impl Window {
    /// None yet.
    fn far(now: Instant) -> Self {
        Self {
            begin: now,
            from: now + FOREVER,
            to: now + FOREVER,
            mark: now + FOREVER,
            usage_before: None,
        }
    }
}

impl Worker {
    pub(crate) fn new(config: &Arc<Config>, share: Share) -> io::Result<Self> {
        let engine = Engine::new(EngineConfig {
            max_ready_per_turn: 256,
            turn_time: Duration::from_millis(5),
            ..EngineConfig::default()
        })?;
        let now = Instant::now();
        let origins = origins::origins(config, share);
        let connections = share_of(config.connections as u64, share);
        let slot = |n: u64| Slot::new(n as usize % origins.len(), None);
        Ok(Self {
            config: Arc::clone(config),
            share,
            slices: 0,
            engine,
            service: Arc::new(service(config)),
            dial_config: Arc::new(DialConfig {
                connect_timeout: Some(config.connect_timeout),
                alpn: vec![alpn(config.protocol).to_vec()],
                ..DialConfig::default()
            }),
            slots: (0..connections).map(slot).collect(),
            origins,
            templates: RequestTemplates::new(config),
            ws_context: WsContext::new(config)?,
            permits: VecDeque::new(),
            due: BinaryHeap::new(),
            closing: Vec::new(),
            verified: config
                .targets
                .iter()
                .map(|_| VerifiedBody::default())
                .collect(),
            schedule: None,
            budget: None,
            until: Until::Requests(0),
            window: Window::far(now),
            late_until: now,
            phase: Phase::Connecting,
            tick_at: now,
            turned_at: now,
            wakeup: WakeupCompensation::new(),
            in_flight: 0,
            dialling: 0,
            live: 0,
            tally: Tally::new(),
            monitored: None,
            batch: BatchFlush::default(),
        })
    }

    /// As new, but for the connections.
    fn clear(&mut self, slice: &Slice) {
        let seed = self.config.seed.wrapping_add(self.slices << 20);
        self.slices += 1;
        self.phase = Phase::Connecting;
        self.tally.reset();
        self.window = Window::far(Instant::now());
        self.permits.clear();
        self.schedule = match slice.loop_mode {
            LoopMode::Closed => None,
            LoopMode::Open(rate) => Some(Schedule::new(rate, self.share, seed)),
        };
        self.until = slice.until;
        self.budget = match slice.until {
            Until::Time(_) => None,
            Until::Requests(all) => Some(share_of(all, self.share)),
        };
    }

    /// Opens the connections that a slice begins with, and those again that have died since the one
    /// before it, so that their making is no part of it. Each is tried once here.
    pub(crate) fn prepare(&mut self, slice: &Slice, stop: &Stop) -> io::Result<()> {
        self.clear(slice);
        // What has ended meanwhile is said now.
        self.engine.turn_start_by(Instant::now())?;
        self.process_events();
        if self.config.is_fresh() {
            return Ok(());
        }
        let ramps = slice.loop_mode == LoopMode::Closed && !self.config.ramp.is_zero();
        let now = Instant::now();
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            let comes_later = ramps && !slot.was_open;
            if matches!(slot.state, State::Absent { .. }) && !comes_later {
                self.dial(index as u32, None, now);
            }
        }
        let patience = now + self.config.connect_timeout;
        while self.dialling > 0 && Instant::now() < patience && !stop.is_requested() {
            self.turn()?;
        }
        Ok(())
    }

    /// All of a slice's load, from `begin` on.
    pub(crate) fn load(
        &mut self,
        warm_up: Duration,
        begin: Instant,
        stop: &Stop,
    ) -> io::Result<ThreadResult> {
        self.begin(warm_up, begin);
        loop {
            self.turn()?;
            let now = self.engine.clock();
            if stop.is_requested() {
                self.window.to = self.window.to.min(now);
                self.count_unsent();
                return Ok(self.thread_result(now));
            }
            if self.phase == Phase::Running && now >= self.window.to {
                self.phase = Phase::Late;
                self.late_until = now + self.config.timeout;
            }
            if self.phase == Phase::Late && (now >= self.late_until || !self.has_backlog()) {
                self.phase = Phase::Draining;
                self.count_unsent();
            }
            if self.is_over() {
                return Ok(self.thread_result(now));
            }
        }
    }

    /// Waits for what is in flight, so that no answer comes to the wrong slice. It is not counted.
    pub(crate) fn await_rest(&mut self, stop: &Stop) -> io::Result<()> {
        self.phase = Phase::Draining;
        while self.in_flight > 0 && !stop.is_requested() {
            self.turn()?;
        }
        Ok(())
    }

    /// What the last slice counted.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) fn monitor(&mut self, monitor: &Monitor) {
        self.monitored = Some(MonitorHandle {
            monitor: monitor.clone(),
            counters: monitor.counters(),
            seconds: 0,
        });
    }

    fn publish(&mut self) {
        let Some(monitored) = &mut self.monitored else {
            return;
        };
        let draining = self.phase == Phase::Draining;
        (monitored.counters).publish(&self.tally, self.live, self.in_flight, draining);
        let ended = self
            .tally
            .series
            .get(monitored.seconds..)
            .unwrap_or_default();
        if !ended.is_empty() && monitored.counters.publish_seconds(ended) {
            monitored.seconds += ended.len();
        }
    }

    fn begin(&mut self, warm_up: Duration, begin: Instant) {
        if let Some(monitored) = &self.monitored {
            monitored.monitor.begin(begin);
        }
        let from = begin + warm_up;
        self.window.begin = begin;
        self.window.from = from;
        self.window.mark = from;
        if let Until::Time(time) = self.until {
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
                    self.grant_permits(index, now);
                    self.engine.settle(id);
                }
                State::Absent { .. } if self.config.is_fresh() => self.permit(index, now),
                State::Absent { .. } => {
                    let due = begin + self.config.ramp * index / count;
                    self.slots[index as usize].state = State::Absent { due: Some(due) };
                }
                State::Dialling { .. } | State::Upgrading { .. } => {}
            }
        }
        self.open_due(now);
    }

    fn is_over(&self) -> bool {
        match self.phase {
            Phase::Connecting | Phase::Late => false,
            Phase::Running => self.budget == Some(0) && self.in_flight == 0,
            // What a closed loop has in flight at the end came too late for it.
            Phase::Draining => self.schedule.is_none() || self.in_flight == 0,
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        let at = self.wake_at();
        self.wakeup.on_sleep(self.turned_at, at);
        self.engine.turn_start_by(at)?;
        self.wakeup.on_wake(self.engine.clock());
        self.process_events();
        Ok(())
    }

    /// Until when a turn may wait.
    fn wake_at(&self) -> Instant {
        let mut at = self.tick_at;
        if self.phase == Phase::Running {
            at = at.min(self.window.to);
        }
        if let Some(start) = self.next_start() {
            at = at.min(self.wakeup.wake_before(start));
        }
        self.next_piece().map_or(at, |piece| at.min(piece))
    }

    /// What follows the poll.
    fn process_events(&mut self) {
        let on_wake = self.engine.clock();
        self.take_dial_results(on_wake);
        self.start_due();
        self.send_pieces(on_wake);
        let mut served = false;
        // Who is settled may have more to say.
        loop {
            while let Some(id) = self.engine.next_ready() {
                served = true;
                self.service_conn(id);
                self.start_due();
            }
            if !self.flush_batch() {
                break;
            }
        }
        // A dial may be over at once, and no poll tells.
        self.take_dial_results(self.engine.clock());
        self.close_sent(on_wake);
        self.release_barrier();
        self.engine.turn_end();
        let now = Instant::now();
        self.turned_at = now;
        if served && self.phase == Phase::Running {
            self.tally.turn.record(now - on_wake);
        }
        self.mark(now);
        if now >= self.tick_at {
            self.tick(now);
        }
    }

    /// Everything that one connection has to say.
    fn service_conn(&mut self, id: ConnId) {
        let now = self.engine.clock();
        self.mark(now);
        self.count_received(id);
        loop {
            let Some(peer) = self.engine.peer(id) else {
                return;
            };
            let (targets, verified) = (&self.config.targets, &mut self.verified);
            let step = if peer.state.socket.is_some() {
                self.ws_context.advance(peer, targets, verified, now)
            } else {
                advance(peer, targets, verified, now)
            };
            match step {
                ConnEvent::Idle => break,
                ConnEvent::Completed(index) => self.on_response(id, index, now),
                ConnEvent::StreamFailed(index, failure, rule) => {
                    self.on_stream_failed(id, index, failure, rule, now);
                }
                ConnEvent::Closed(failure, rule) => {
                    self.on_closed(id, failure, &rule, now);
                    break;
                }
                ConnEvent::WsOpened => self.on_upgraded(id, now),
                ConnEvent::WsRefused(refusal) => return self.on_ws_refused(id, &refusal, now),
                ConnEvent::WsClosed(closed) => return self.on_ws_closed(id, &closed, now),
                ConnEvent::UnexpectedUpgrade => {
                    let rule = "an upgrade that was not asked for (RFC 9110 7.8)";
                    self.on_closed(id, Failure::Protocol, rule, now);
                    self.engine.abort(id);
                    return;
                }
            }
        }
        self.grant_deferred(id, now);
        self.flush_batched(id);
    }

    fn count_received(&mut self, id: ConnId) {
        let now = self.engine.clock();
        let Some(peer) = self.engine.peer(id) else {
            return;
        };
        let all = peer.received_bytes();
        let news = all - std::mem::replace(&mut peer.state.counted_bytes, all);
        if news > 0 {
            peer.state.last_received_at = Some(now);
        }
        if let Some(socket) = &mut peer.state.socket {
            socket.on_received(peer.state.pending.len());
        }
        if self.window.usage_before.is_some() && self.phase == Phase::Running {
            self.tally.count_received(news);
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
        self.tally.sample_live(self.live);
        if self.window.usage_before.is_none() {
            self.window.usage_before = Some((now, Usage::of_this_thread()));
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
        self.publish();
        if self.phase == Phase::Connecting {
            return;
        }
        if self.window.usage_before.is_some() && self.phase == Phase::Running {
            self.tally.sample_live(self.live);
        }
        self.expire(now);
        self.open_due(now);
    }

    fn thread_result(&mut self, now: Instant) -> ThreadResult {
        let measured = match self.until {
            Until::Time(_) => self.window.to.saturating_duration_since(self.window.from),
            Until::Requests(_) => now.saturating_duration_since(self.window.from),
        };
        let (counted_from, before) = self
            .window
            .usage_before
            .unwrap_or((now, Usage::of_this_thread()));
        self.tally.finish(self.live);
        ThreadResult {
            usage: Usage::of_this_thread().since(before),
            accounted: now - counted_from,
            measured,
            live_at_end: self.live,
        }
    }
}

/// What of `whole` falls to one of several; the first ones take the rest.
fn share_of(whole: u64, share: Share) -> u64 {
    let (of, index) = (u64::from(share.of), u64::from(share.index));
    whole / of + u64::from(index < whole % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        let results: Vec<_> = (0..4)
            .map(|index| share_of(10, Share { index, of: 4 }))
            .collect();
        assert_eq!(results, [3, 3, 2, 2]);
    }
}
