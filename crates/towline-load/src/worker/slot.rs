//! A slot for one connection, which is reopened in it when it closes.
//!
//! ```text
//!  Absent ──due──► Dialling ──done──► Open ──end──► Absent (until the back-off is over)
//!    ▲                 │ └─ws─► Upgrading ─101─┘         │
//!    │                 └───────┴─failed (longer back-off)┘
//!    └ with fresh connections a request makes it due, otherwise the clock
//! ```

use std::time::{Duration, Instant};

use towline_io::ConnId;

/// Back-off between two attempts to connect: doubled by each failure, so that a dead server costs no
/// core.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A request that waits for its own connection: a fresh one, or the one after `DropAfterBytes`.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedRequest {
    pub(super) target: u32,
    pub(super) intended: Instant,
    /// When the first half was sent, for the second half of `DropAfterBytes`, which is sent whole.
    pub(super) follows: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Absent {
        due: Option<Instant>,
    },
    Dialling {
        begun: Instant,
        queued: Option<QueuedRequest>,
    },
    /// Connected, and the WebSocket handshake is sent.
    Upgrading {
        id: ConnId,
        begun: Instant,
        queued: Option<QueuedRequest>,
    },
    Open(ConnId),
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) origin: usize,
    pub(super) state: State,
    /// Number of the connection: permits of an earlier one are void.
    pub(super) serial: u32,
    /// Requests sent on the connection.
    pub(super) used: u64,
    /// Requests among them whose stream failed alone.
    pub(super) failed: u64,
    pub(super) was_open: bool,
    pause: Duration,
}

impl Slot {
    pub(super) fn new(origin: usize, due: Option<Instant>) -> Self {
        Self {
            origin,
            state: State::Absent { due },
            serial: 0,
            used: 0,
            failed: 0,
            was_open: false,
            pause: FIRST_PAUSE,
        }
    }

    pub(super) fn on_connected(&mut self, id: ConnId) {
        self.state = State::Open(id);
        self.serial = self.serial.wrapping_add(1);
        self.used = 0;
        self.failed = 0;
        self.was_open = true;
    }

    pub(super) fn closed(&mut self, due: Option<Instant>) {
        self.state = State::Absent { due };
        self.serial = self.serial.wrapping_add(1);
    }

    /// The server has answered: the next failure is the first again.
    pub(super) fn reset_pause(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    /// When to try again after a failure.
    pub(super) fn retry_at(&mut self, now: Instant) -> Instant {
        let at = now + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        at
    }
}

/// Allows one request to be sent on a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendPermit {
    pub(super) slot: u32,
    pub(super) serial: u32,
    pub(super) since: Instant,
}
