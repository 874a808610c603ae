//! The current turn of an engine, or the last one: its clock and what it has served.

use std::time::Instant;

use crate::engine::config::EngineConfig;

pub(crate) struct Turn {
    is_running: bool,
    /// Started from the caller's event loop, which must be woken when work is left.
    in_event_loop: bool,
    /// The engine has made its own descriptor readable.
    rearmed: bool,
    started: Instant,
    now: Instant,
    /// Time set by the front end since the last connection was served.
    clock_override: Option<Instant>,
    served: usize,
    /// Start of the current connection's service.
    service_started: Instant,
    /// Number of connections in the ready list that have not been served in this turn.
    unserved: usize,
}

impl Turn {
    /// A turn that has ended.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            is_running: false,
            in_event_loop: false,
            rearmed: false,
            started: now,
            now,
            clock_override: None,
            served: 0,
            service_started: now,
            unserved: 0,
        }
    }

    /// Starts a turn and returns its time.
    pub(crate) fn begin(&mut self, in_event_loop: bool) -> Instant {
        let now = Instant::now();
        *self = Self {
            is_running: true,
            in_event_loop,
            ..Self::new(now)
        };
        now
    }

    pub(crate) fn end(&mut self) {
        self.is_running = false;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    pub(crate) fn in_event_loop(&self) -> bool {
        self.in_event_loop
    }

    /// Records that the engine's descriptor is made readable. Returns whether it was not before.
    pub(crate) fn rearm(&mut self) -> bool {
        !std::mem::replace(&mut self.rearmed, true)
    }

    /// Time of the turn, sampled when it started or before its last service.
    pub(crate) fn clock(&self) -> Instant {
        self.now
    }

    pub(crate) fn set_clock(&mut self, now: Instant) {
        self.now = now;
        self.clock_override = Some(now);
    }

    /// Sets the number of connections that wait for their service.
    pub(crate) fn set_unserved(&mut self, unserved: usize) {
        self.unserved = unserved;
    }

    pub(crate) fn unserved(&self) -> usize {
        self.unserved
    }

    /// Samples the clock, unless this is the first service. Returns false when the turn has served enough.
    pub(crate) fn allows_service(&mut self, config: &EngineConfig) -> bool {
        if self.served == 0 {
            return true;
        }
        if self.served >= config.max_ready_per_turn {
            return false;
        }
        self.now = self.clock_override.take().unwrap_or_else(Instant::now);
        let most = if self.unserved > 0 {
            config.turn_time
        } else {
            config.turn_time.min(config.service_time)
        };
        self.now.duration_since(self.started) < most
    }

    /// Starts the service of the next connection and returns its time.
    pub(crate) fn begin_service(&mut self) -> Instant {
        self.service_started = self.now;
        self.now
    }

    /// Counts a connection that has left the ready list.
    pub(crate) fn dequeued(&mut self) {
        self.unserved = self.unserved.saturating_sub(1);
    }

    /// Counts a connection that is served.
    pub(crate) fn served(&mut self) {
        self.served += 1;
    }

    /// Whether the current service has lasted as long as it may. Reads the clock.
    pub(crate) fn is_service_over(&self, config: &EngineConfig) -> bool {
        self.service_started.elapsed() >= config.service_time
    }
}
