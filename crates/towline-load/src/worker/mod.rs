//! The load of one thread: an engine, its connections, and the requests due on them.
//!
//! ```text
//! prepare ─► load: turn { poll until the next start ─► dials ─► responses ─► starts that are due } ─► ThreadResult
//!    ▲          └─► await_rest ─┐
//!    └──────────────────────────┘ the next slice
//! ```
//!
//! Each part of a worker keeps its own rules: [`Window`] the phases and what counts, [`Permits`] the schedule and the
//! budget, [`Slots`] the connections and what is in flight.
//!
//! A permit allows one request to be sent on a connection. In a closed loop it is used at once; in an
//! open loop permits wait for the schedule, the oldest first.

mod accounting;
mod barrier;
mod batch_flush;
mod conn_state;
mod connect;
mod ending;
mod events;
mod origins;
mod outage;
mod permits;
mod repeated;
mod responses;
mod send;
mod send_modes;
mod slot;
mod staged;
mod templates;
mod users;
mod verification;
mod wakeup;
mod websocket;
mod window;
mod writer;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_io::generator::GeneratorEngine;
use towline_io::{ConnId, EngineConfig};

use crate::config::{Config, LoopMode};
use crate::schedule::Share;
use crate::slice::{Slice, Stop};
use crate::stats::{Failure, Tally};
use accounting::MonitorHandle;
pub(crate) use accounting::ThreadResult;
use batch_flush::BatchFlush;
use conn_state::ConnState;
use connect::Dialer;
pub(crate) use connect::{dial_config, not_negotiated, service};
use events::{ConnEvent, advance};
pub(crate) use events::{failure_of, failure_on_stream};
pub(crate) use origins::Routes;
use origins::{Origin, Origins};
use permits::{Permits, share_of};
use repeated::Repeated;
use send_modes::DelayedSends;
pub(crate) use send_modes::write_whole;
use slot::{Slots, State};
pub(crate) use verification::FirstResponses;
use verification::Verification;
use wakeup::Timer;
use window::{Phase, Window};
use writer::RequestWriter;

/// Shortest and longest interval between checks of timeouts, reconnections and the stop flag.
const SHORTEST_TICK: Duration = Duration::from_millis(2);
const LONGEST_TICK: Duration = Duration::from_millis(20);

pub(crate) struct Worker {
    config: Arc<Config>,
    engine: GeneratorEngine<ConnState>,
    dialer: Dialer,
    origins: Origins,
    slots: Slots,
    permits: Permits,
    window: Window,
    timer: Timer,
    writer: RequestWriter,
    /// `None`: requests differ from each other.
    repeated: Option<Repeated>,
    delayed: DelayedSends,
    verification: Verification,
    batch: BatchFlush,
    tally: Tally,
    monitored: Option<MonitorHandle>,
}

impl Worker {
    pub(crate) fn new(
        config: &Arc<Config>,
        share: Share,
        first_responses: FirstResponses,
    ) -> io::Result<Self> {
        let engine = GeneratorEngine::new(EngineConfig {
            max_ready_per_turn: 256,
            turn_time: Duration::from_millis(5),
            ..EngineConfig::default()
        })?;
        let connections = share_of(config.connections as u64, share) as usize;
        let origins = Origins::new(config, share, connections);
        let writer = RequestWriter::new(config, connections)?;
        Ok(Self {
            config: Arc::clone(config),
            engine,
            dialer: Dialer::new(config),
            slots: Slots::new(connections, origins.len()),
            permits: Permits::new(share),
            window: Window::new(config.until, false, config.timeout),
            timer: Timer::new(Instant::now()),
            repeated: Repeated::new(config, &origins, &writer.templates),
            origins,
            writer,
            delayed: DelayedSends::default(),
            verification: Verification::new(config, first_responses),
            batch: BatchFlush::default(),
            tally: Tally::new(config.steps()),
            monitored: None,
        })
    }

    /// Resets everything but the connections.
    fn clear(&mut self, slice: &Slice) {
        self.tally.reset();
        self.permits.reset(&self.config, slice);
        let is_open_loop = slice.loop_mode != LoopMode::Closed;
        self.window = Window::new(slice.until, is_open_loop, self.config.timeout);
        let active = self.active_at(self.window.at(Duration::ZERO));
        self.slots.set_active(active);
    }

    /// The origin of the requests of a slot.
    fn origin_of(&self, slot: u32) -> &Origin {
        self.origins.of(self.slots.get(slot).origin)
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
        // The first connection to each origin shows whether there is a server.
        let first = self.origins.outages.destinations() as u32;
        for index in 0..self.slots.len() as u32 {
            let slot = self.slots.get(index);
            let comes_later = ramps && !slot.was_open() || !self.slots.is_active(index);
            let is_absent = matches!(slot.state(), State::Absent { .. });
            if is_absent && (index < first || !comes_later) {
                self.dial(index, None, now);
            }
        }
        let deadline = now + self.config.connect_timeout;
        while self.is_connecting() && Instant::now() < deadline && !stop.is_requested() {
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
            if stop.is_requested() || self.origins.outages.has_given_up() {
                self.interrupt(now);
                return Ok(self.thread_result(now));
            }
            if self.window.has_ended(now) {
                self.window.send_late(now);
                self.begin_end(now, false);
            }
            if self.window.phase() == Phase::Late
                && (self.window.is_late_over(now) || !self.has_backlog())
            {
                self.window.drain();
                self.count_unsent();
            }
            if self.is_over() {
                return Ok(self.thread_result(now));
            }
        }
    }

    /// Waits for the requests in flight, so that their responses do not count in the next slice.
    pub(crate) fn await_rest(&mut self, stop: &Stop) -> io::Result<()> {
        self.window.drain();
        while self.slots.in_flight() > 0 && !stop.is_requested() {
            self.turn()?;
        }
        if self.config.connects_in_slice {
            // The requests may have been sent on the other connections.
            while self.is_connecting() && !stop.is_requested() {
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
        // A thread without connections has no responses to align to.
        let is_aligned = aligned && self.slots.len() > 0;
        self.window.begin(begin, warm_up, is_aligned);
        std::thread::sleep(begin.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        self.window.run(now);
        self.mark(now);
        let count = self.slots.len() as u32;
        for slot in 0..count {
            match self.slots.state(slot) {
                State::Open(id) => {
                    self.grant_permits(slot, now);
                    self.engine.flush_and_rearm(id);
                }
                State::Absent { .. } if !self.slots.is_active(slot) => self.slots.wait(slot, None),
                State::Absent { .. } if self.config.is_fresh() => self.permit(slot, now),
                State::Absent { .. } => {
                    let due = begin + self.config.ramp * slot / count;
                    self.slots.wait(slot, Some(due));
                }
                State::Dialling(_) | State::Upgrading(..) => {}
            }
        }
        self.open_due(now);
    }

    fn is_over(&mut self) -> bool {
        match self.window.phase() {
            Phase::Connecting | Phase::Late => false,
            Phase::Running => self.permits.is_spent() && self.slots.in_flight() == 0,
            // Connections between slices are opened before the next one.
            Phase::Draining if !self.window.is_fixed() => self.slots.in_flight() == 0,
            Phase::Draining => self.is_idle(),
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        let end = (self.window.phase() == Phase::Running).then(|| self.window.end());
        let start = self.next_start();
        let at = self.timer.sleep([end, self.delayed.next()], start);
        self.engine.turn_start_by(at)?;
        self.timer.on_wake(self.engine.clock());
        self.process_events();
        Ok(())
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
        if served && self.window.phase() == Phase::Running {
            self.tally.turn.record(now - on_wake);
        }
        self.mark(now);
        if self.timer.end_turn(now) {
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
            let (targets, verified) = (&self.config.targets, self.verification.bodies());
            if conn.take_repeated() {
                self.on_repeated(id, now);
                return self.flush_batched(id);
            }
            if conn.is_unsolicited() {
                let rule = "response bytes without a request (RFC 9112 6.3)";
                self.on_closed(id, Failure::Protocol, rule, now);
                return self.engine.abort(id);
            }
            let step = if conn.state.socket.is_some() {
                self.writer.websockets.advance(conn, targets, verified, now)
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
        if self.window.is_measured() {
            self.tally.count_received(news);
        }
    }

    fn tick(&mut self, now: Instant) {
        let interval = (self.config.timeout / 20).clamp(SHORTEST_TICK, LONGEST_TICK);
        self.timer.set_tick(now + interval);
        self.publish();
        self.sample_responses();
        if self.window.phase() == Phase::Connecting {
            return;
        }
        if self.window.is_measured() {
            self.tally.sample_live(self.slots.live());
        }
        self.expire(now);
        self.resume_paused(now);
        if self.window.phase() == Phase::Running {
            self.check_outages(now);
            self.follow_stages(now);
        }
        self.open_due(now);
    }
}
