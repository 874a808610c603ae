//! The load of one thread: an engine, its connections, and the requests due on them.
//!
//! ```text
//! prepare ─► load: turn { poll until the next start ─► dials ─► responses ─► starts that are due } ─► ThreadResult
//!    ▲          └─► await_rest ─┐
//!    └──────────────────────────┘ the next slice
//! ```
//!
//! A permit allows one request to be sent on a connection. In a closed loop it is used at once; in an
//! open loop permits wait for the schedule, the oldest first.

mod accounting;
mod barrier;
mod batch_flush;
mod conn_state;
mod connect;
mod ending;
mod first_response;
mod origins;
mod outage;
mod repeated;
mod responses;
mod send;
mod send_modes;
mod slot;
mod staged;
mod users;
mod wakeup;
mod websocket;
mod window;

use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_io::client::DialConfig;
use towline_io::{ConnConfig, ConnId, Engine, EngineConfig};

use crate::check::VerifiedBody;
use crate::config::{Config, LoopMode, Mix, Until};
use crate::schedule::{Schedule, Share};
use crate::slice::{Slice, Stop};
use crate::stats::{Failure, Tally};
use accounting::MonitorHandle;
pub(crate) use accounting::ThreadResult;
use batch_flush::BatchFlush;
use conn_state::{ConnEvent, ConnState, advance};
pub(crate) use conn_state::{failure_of, failure_on_stream};
pub(crate) use connect::{dial_config, not_negotiated, service};
use first_response::FirstResponse;
pub(crate) use first_response::FirstResponses;
use origins::Origin;
pub(crate) use origins::Routes;
use outage::Outage;
use repeated::Repeated;
use send::RequestTemplates;
use send_modes::Due;
pub(crate) use send_modes::write_whole;
use slot::{SendPermit, Slot, State};
use users::Users;
use wakeup::WakeupCompensation;
use websocket::WsContext;
use window::{Alignment, Window};

/// Shortest and longest interval between checks of timeouts, reconnections and the stop flag.
const SHORTEST_TICK: Duration = Duration::from_millis(2);
const LONGEST_TICK: Duration = Duration::from_millis(20);

/// How long late requests are still sent after the server responds again: a minimum, and a part of
/// the measured time. That is enough for the backlog of a stall, but not for that of an overload.
const SHORTEST_GRACE: Duration = Duration::from_millis(100);
const GRACE_PART: u32 = 10;

/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Before a slice.
    Connecting,
    Running,
    /// Open loop, after the measured time: requests that were due in it and found no free connection are
    /// still sent, so that the wait counts in their latency.
    Late,
    /// Nothing new is sent; outstanding responses that count are awaited.
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
    /// Number of slices so far: each draws its own arrivals.
    slices: u64,
    engine: Engine<ConnState>,
    service: Arc<ConnConfig>,
    dial_config: Arc<DialConfig>,
    origins: Vec<Origin>,
    /// By destination.
    outages: Vec<Option<Outage>>,
    users: Option<Users>,
    gave_up: Option<String>,
    /// Time from the common start to that of this thread.
    start_delay: Duration,
    templates: RequestTemplates,
    /// `None`: requests differ from each other.
    repeated: Option<Repeated>,
    ws_context: WsContext,
    slots: Vec<Slot>,
    /// Slots that carry requests, from the first on; all, unless stages say otherwise.
    active: usize,
    /// A permit is used at once: a closed loop without barrier and stages.
    uses_permits: bool,
    permits: VecDeque<SendPermit>,
    /// Connections with a piece to send, soonest first.
    due: BinaryHeap<Due>,
    /// Connections to close when all output is sent: slot and serial.
    closing: Vec<(u32, u32)>,
    /// The last verified coded body of each target.
    verified: Vec<VerifiedBody>,
    /// The first response of each target.
    first: Vec<FirstResponse>,
    first_responses: FirstResponses,
    /// `None`: a closed loop.
    schedule: Option<Schedule>,
    /// Requests that may still be sent.
    budget: Option<u64>,
    until: Until,
    window: Window,
    /// How long a request may take: the timeout, or less at the end of the load.
    patience: Duration,
    /// The age of the oldest request in flight, at the last tick.
    oldest: Duration,
    /// Permits that wait for the next tick, since all their last requests were invalid.
    paused: Vec<SendPermit>,
    /// When late requests are no longer sent.
    late_until: Instant,
    phase: Phase,
    tick_at: Instant,
    /// The end of the last turn.
    turned_at: Instant,
    wakeup: WakeupCompensation,
    /// Requests without a response, including those that wait for a connection of their own.
    in_flight: u64,
    dialling: usize,
    live: u64,
    tally: Tally,
    monitored: Option<MonitorHandle>,
    batch: BatchFlush,
}

impl Worker {
    pub(crate) fn new(
        config: &Arc<Config>,
        share: Share,
        first_responses: FirstResponses,
    ) -> io::Result<Self> {
        let engine = Engine::new(EngineConfig {
            max_ready_per_turn: 256,
            turn_time: Duration::from_millis(5),
            ..EngineConfig::default()
        })?;
        let now = Instant::now();
        let origins = origins::origins(config, share);
        let connections = share_of(config.connections as u64, share);
        let templates = RequestTemplates::new(config);
        let prepared = (0..config.targets.len()).map(|target| templates.prepared(target));
        let repeated = Repeated::new(config, &origins, prepared);
        // Responses to requests with values may differ in length.
        let values = config.has_variables() || config.mix == Mix::Session;
        let slot = |n: u64| Slot::new(n as usize % origins.len(), None);
        Ok(Self {
            config: Arc::clone(config),
            share,
            slices: 0,
            engine,
            service: Arc::new(service(config)),
            dial_config: Arc::new(dial_config(config)),
            slots: (0..connections).map(slot).collect(),
            outages: config.destinations().iter().map(|_| None).collect(),
            gave_up: None,
            start_delay: Duration::ZERO,
            users: Users::new(config, connections as usize).map_err(io::Error::other)?,
            active: connections as usize,
            uses_permits: true,
            origins,
            repeated,
            templates,
            ws_context: WsContext::new(config)?,
            permits: VecDeque::new(),
            due: BinaryHeap::new(),
            closing: Vec::new(),
            verified: config
                .targets
                .iter()
                .map(|_| VerifiedBody::default())
                .collect(),
            first: (config.targets.iter())
                .map(|target| FirstResponse::of(target, values))
                .collect(),
            first_responses,
            schedule: None,
            budget: None,
            until: Until::Requests(0),
            window: Window::far(now),
            patience: config.timeout,
            oldest: Duration::ZERO,
            paused: Vec::new(),
            late_until: now,
            phase: Phase::Connecting,
            tick_at: now,
            turned_at: now,
            wakeup: WakeupCompensation::new(),
            in_flight: 0,
            dialling: 0,
            live: 0,
            tally: Tally::new(config.steps()),
            monitored: None,
            batch: BatchFlush::default(),
        })
    }

    /// Resets everything but the connections.
    fn clear(&mut self, slice: &Slice) {
        let seed = self.config.seed.wrapping_add(self.slices << 20);
        self.slices += 1;
        self.phase = Phase::Connecting;
        self.tally.reset();
        self.window = Window::far(Instant::now());
        self.permits.clear();
        self.paused.clear();
        self.patience = self.config.timeout;
        self.schedule = match slice.loop_mode {
            LoopMode::Closed => None,
            LoopMode::Open(rate) => Some(match &self.config.stages {
                Some(stages) => Schedule::staged(stages.clone(), rate.arrivals, self.share, seed),
                None => Schedule::new(rate, self.share, seed),
            }),
        };
        self.until = slice.until;
        self.budget = match slice.until {
            Until::Time(_) => None,
            Until::Requests(all) => Some(share_of(all, self.share)),
        };
        self.active = self.active_at(self.window.begin);
        self.uses_permits =
            self.schedule.is_none() && !self.config.barrier && self.config.stages.is_none();
    }

    /// Opens the connections that a slice begins with, and reopens those that have closed since the last
    /// one, so that connecting is not part of the slice. Each is tried once.
    pub(crate) fn prepare(&mut self, slice: &Slice, stop: &Stop) -> io::Result<()> {
        self.clear(slice);
        // Processes what has ended in the meantime.
        self.engine.turn_start_by(Instant::now())?;
        self.process_events();
        if self.config.is_fresh() || self.config.connects_in_slice {
            return Ok(());
        }
        let ramps = slice.loop_mode == LoopMode::Closed && !self.config.ramp.is_zero();
        let now = Instant::now();
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            // The first connection to each origin shows whether there is a server.
            let comes_later =
                (ramps && !slot.was_open || index >= self.active) && index >= self.outages.len();
            if matches!(slot.state, State::Absent { .. }) && !comes_later {
                self.dial(index as u32, None, now);
            }
        }
        let deadline = now + self.config.connect_timeout;
        while self.dialling > 0 && Instant::now() < deadline && !stop.is_requested() {
            self.turn()?;
        }
        match self.unreachable() {
            Some(error) => Err(io::Error::other(error)),
            None => Ok(()),
        }
    }

    /// Runs the load of a slice, from `begin` on.
    pub(crate) fn load(
        &mut self,
        warm_up: Duration,
        begin: Instant,
        aligned: bool,
        stop: &Stop,
    ) -> io::Result<ThreadResult> {
        self.begin(warm_up, begin, aligned);
        loop {
            self.turn()?;
            let now = self.engine.clock();
            self.close_without_response(now);
            if stop.is_requested() || self.gave_up.is_some() {
                self.interrupt(now);
                return Ok(self.thread_result(now));
            }
            if self.phase == Phase::Running && now >= self.window.to {
                self.phase = Phase::Late;
                self.late_until = now + self.config.timeout;
                self.begin_end(now, false);
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

    /// Waits for the requests in flight, so that their responses do not count in the next slice.
    pub(crate) fn await_rest(&mut self, stop: &Stop) -> io::Result<()> {
        self.phase = Phase::Draining;
        while self.in_flight > 0 && !stop.is_requested() {
            self.turn()?;
        }
        if self.config.connects_in_slice {
            // The requests may have been sent on the other connections.
            while self.dialling > 0 && !stop.is_requested() {
                self.turn()?;
            }
            self.close_all();
        }
        Ok(())
    }

    fn begin(&mut self, warm_up: Duration, begin: Instant, aligned: bool) {
        if let Some(monitored) = &self.monitored {
            monitored.monitor.begin(begin);
        }
        let from = begin + warm_up;
        self.window.begin = begin;
        self.window.from = from;
        self.window.mark = from;
        if let Until::Time(length) = self.until {
            self.window.to = from + length;
            // A thread without connections has no responses to align to.
            if aligned && !self.slots.is_empty() {
                self.window.from = begin + FOREVER;
                self.window.mark = begin + FOREVER;
                self.window.to = begin + FOREVER;
                self.window.alignment = Alignment::Opens {
                    after: from,
                    length,
                };
            }
        }
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        self.start_delay = now.saturating_duration_since(begin);
        self.phase = Phase::Running;
        self.mark(now);
        let count = self.slots.len() as u32;
        for index in 0..count {
            match self.slots[index as usize].state {
                State::Open(id) => {
                    self.grant_permits(index, now);
                    self.engine.flush_and_rearm(id);
                }
                State::Absent { .. } if index as usize >= self.active => {
                    self.slots[index as usize].state = State::Absent { due: None };
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

    fn is_over(&mut self) -> bool {
        match self.phase {
            Phase::Connecting | Phase::Late => false,
            Phase::Running => self.budget == Some(0) && self.in_flight == 0,
            // Connections between slices are opened before the next one.
            Phase::Draining if self.window.alignment != Alignment::Fixed => self.in_flight == 0,
            Phase::Draining => self.is_idle(),
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

    /// The deadline of the next poll.
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

    /// Processes everything that a poll has made ready.
    fn process_events(&mut self) {
        let on_wake = self.engine.clock();
        self.take_dial_results(on_wake);
        self.start_due();
        self.send_pieces(on_wake);
        let mut served = false;
        // A flushed connection may become ready again.
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
        // A dial may complete without a poll.
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

    /// Processes all events of a connection.
    fn service_conn(&mut self, id: ConnId) {
        let now = self.engine.clock();
        self.mark(now);
        self.count_received(id);
        loop {
            let Some(conn) = self.engine.conn(id) else {
                return;
            };
            let (targets, verified) = (&self.config.targets, &mut self.verified);
            if conn.take_repeated() {
                self.on_repeated(id, now);
                break;
            }
            if conn.is_unsolicited() {
                let rule = "response bytes without a request (RFC 9112 6.3)";
                self.on_closed(id, Failure::Protocol, rule, now);
                return self.engine.abort(id);
            }
            let step = if conn.state.socket.is_some() {
                self.ws_context.advance(conn, targets, verified, now)
            } else {
                advance(conn, targets, verified, now)
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
                ConnEvent::WsFailed(failure) => return self.on_ws_failed(id, &failure, now),
                ConnEvent::UnexpectedUpgrade => {
                    let rule = "an unsolicited upgrade (RFC 9110 7.8)";
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
        let Some(conn) = self.engine.conn(id) else {
            return;
        };
        let all = conn.received_bytes();
        let news = all - std::mem::replace(&mut conn.state.counted_bytes, all);
        if news > 0 {
            conn.state.last_received_at = Some(now);
        }
        if let Some(socket) = &mut conn.state.socket {
            socket.on_received(conn.state.pending.len());
        }
        if self.window.usage_before.is_some() && self.phase == Phase::Running {
            self.tally.count_received(news);
        }
    }

    fn tick(&mut self, now: Instant) {
        self.tick_at = now + (self.config.timeout / 20).clamp(SHORTEST_TICK, LONGEST_TICK);
        self.publish();
        self.sample_responses();
        if self.phase == Phase::Connecting {
            return;
        }
        if self.window.usage_before.is_some() && self.phase == Phase::Running {
            self.tally.sample_live(self.live);
        }
        self.expire(now);
        self.resume_paused(now);
        if self.phase == Phase::Running {
            self.check_outages(now);
            self.follow_stages(now);
        }
        self.open_due(now);
    }
}

/// The share of one thread in `total`; the first threads take the remainder.
fn share_of(total: u64, share: Share) -> u64 {
    let (of, index) = (u64::from(share.of), u64::from(share.index));
    total / of + u64::from(index < total % of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        let results: Vec<_> = (0..4)
            .map(|index| share_of(10, Share { index, of: 4 }))
            .collect();
        assert_eq!(results, [3, 3, 2, 2]);
    }
}
