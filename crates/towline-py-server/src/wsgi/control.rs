//! Commands to a running `WsgiServer` from other threads and signal handlers, and its figures.
//!
//! ```text
//! Listening ── stop_listening ──► (no new connections) ── drain ──► (requests in flight finish)
//!     └────────────────────────────── stop: run() returns ◄──────────┴── nothing is left
//! ```
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::time::Duration;

use towline_io::serve::metrics::{SlotHandle, monotonic_ns};
use towline_io::{Drain, Engine, EngineWaker};

use super::request::ConnState;
use super::websockets::WebSockets;

/// A waiting thread checks signals and server commands at least this often.
pub const MAX_WAIT: Duration = Duration::from_secs(1);

/// Requested commands and current figures of a server. Atomics, because a signal handler may interrupt any
/// thread anywhere.
pub struct ServerControl {
    remote: EngineWaker,
    stop: AtomicBool,
    /// Treatment of idle connections: they may send one more request, or are closed.
    drain: AtomicBool,
    close_idle: AtomicBool,
    stop_listening: AtomicBool,
    slot: Option<SlotHandle>,
    in_flight: AtomicUsize,
    queued: AtomicUsize,
    connections: AtomicUsize,
    requests: AtomicU64,
    pub websockets: WebSockets,
}

impl ServerControl {
    pub fn new(remote: EngineWaker, slot: Option<SlotHandle>, websockets: WebSockets) -> Self {
        Self {
            remote,
            slot,
            stop: AtomicBool::new(false),
            drain: AtomicBool::new(false),
            close_idle: AtomicBool::new(false),
            stop_listening: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            requests: AtomicU64::new(0),
            websockets,
        }
    }

    // Commands, from any thread.

    pub fn stop(&self) {
        self.command(&self.stop);
    }

    pub fn stop_listening(&self) {
        self.command(&self.stop_listening);
    }

    pub fn drain(&self, drain: Drain) {
        self.command(match drain {
            Drain::Graceful => &self.drain,
            Drain::CloseIdle => &self.close_idle,
        });
    }

    fn command(&self, command: &AtomicBool) {
        command.store(true, Release);
        self.wake();
    }

    /// Wakes the thread that runs the engine. Fails only after the engine has ended.
    pub fn wake(&self) {
        let _ = self.remote.wake();
    }

    // The thread that runs the engine.

    /// Passes pending commands to the engine; true once the loop has to end.
    pub fn apply_commands(&self, engine: &mut Engine<ConnState>) -> bool {
        // Read before `stop_listening`, which is commanded first: an engine that drains and still listens would end
        // without the connections in the kernel's queue.
        let drain = self.drain.swap(false, Acquire);
        let close_idle = self.close_idle.swap(false, Acquire);
        if self.stop_listening.swap(false, Acquire) {
            engine.stop_listening();
        }
        if drain {
            engine.drain(Drain::Graceful);
            self.websockets.end_input();
        }
        if close_idle {
            engine.drain(Drain::CloseIdle);
            self.websockets.end_input();
        }
        self.connections.store(engine.len(), Relaxed);
        if let Some(slot) = &self.slot {
            slot.turned(monotonic_ns());
        }
        self.stop.load(Relaxed) || (engine.is_draining() && engine.is_empty())
    }

    /// Application calls that wait for their client must stop waiting.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Counts a request that is handed to the application.
    pub fn begin_request(&self) {
        self.in_flight.fetch_add(1, Relaxed);
    }

    pub fn end_request(&self) {
        self.in_flight.fetch_sub(1, Relaxed);
        self.count_request();
    }

    pub fn count_request(&self) {
        self.requests.fetch_add(1, Relaxed);
    }

    /// Sets the number of requests that wait for a thread.
    pub fn set_queued(&self, requests: usize) {
        self.queued.store(requests, Relaxed);
    }

    pub fn has_queued(&self) -> bool {
        self.queued.load(Relaxed) > 0
    }

    // Figures.

    /// Requests with the application, without those for `WebSockets`, which have a bound of their own.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Relaxed)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Relaxed)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }
}
