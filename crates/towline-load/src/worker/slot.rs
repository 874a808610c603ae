//! The slots of a thread: each holds one connection, which is opened again when it closes.
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

/// A connection that is being opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingDial {
    pub(super) begun: Instant,
    /// The request that waits for it.
    pub(super) queued: Option<QueuedRequest>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Absent {
        due: Option<Instant>,
    },
    Dialling(PendingDial),
    /// Connected, and the WebSocket handshake is sent.
    Upgrading(ConnId, PendingDial),
    Open(ConnId),
}

/// All slots, and the counts of their connections and requests.
pub(super) struct Slots {
    all: Vec<Slot>,
    /// Slots that carry requests, from the first on; all, unless stages say otherwise.
    active: usize,
    /// Open connections.
    live: u64,
    /// Connections whose WebSocket handshake is not over.
    upgrading: u64,
    /// Requests without a response, including those that wait for a connection of their own.
    in_flight: u64,
    /// The age of the oldest request in flight, at the last tick.
    oldest: Duration,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) origin: usize,
    state: State,
    /// Number of the connection: permits of an earlier one are void.
    serial: u32,
    /// Requests sent on the connection.
    pub(super) used: u64,
    /// Requests among them whose stream failed alone.
    pub(super) failed: u64,
    was_open: bool,
    pause: Duration,
}

impl Slots {
    /// Slots for `count` connections, which go to `origins` in turn.
    pub(super) fn new(count: usize, origins: usize) -> Self {
        let slot = |n| Slot {
            origin: n % origins,
            state: State::Absent { due: None },
            serial: 0,
            used: 0,
            failed: 0,
            was_open: false,
            pause: FIRST_PAUSE,
        };
        Self {
            all: (0..count).map(slot).collect(),
            active: count,
            live: 0,
            upgrading: 0,
            in_flight: 0,
            oldest: Duration::ZERO,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.all.iter()
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> &Slot {
        &self.all[slot as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.all[slot as usize]
    }

    #[inline]
    pub(super) fn state(&self, slot: u32) -> State {
        self.all[slot as usize].state
    }

    #[inline]
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    pub(super) fn upgrading(&self) -> u64 {
        self.upgrading
    }

    #[inline]
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    #[inline]
    pub(super) fn begin_request(&mut self) {
        self.in_flight += 1;
    }

    #[inline]
    pub(super) fn end_requests(&mut self, count: usize) {
        self.in_flight -= count as u64;
    }

    pub(super) fn oldest(&self) -> Duration {
        self.oldest
    }

    /// Begins a search for the oldest request.
    pub(super) fn forget_oldest(&mut self) {
        self.oldest = Duration::ZERO;
    }

    pub(super) fn note_age(&mut self, age: Duration) {
        self.oldest = self.oldest.max(age);
    }

    #[inline]
    pub(super) fn is_active(&self, slot: u32) -> bool {
        (slot as usize) < self.active
    }

    /// Lets the first `active` slots carry requests; returns how many did before.
    pub(super) fn set_active(&mut self, active: usize) -> usize {
        std::mem::replace(&mut self.active, active)
    }

    /// The connection of a slot, if it is open, and still the one with this number.
    pub(super) fn open_with(&self, slot: u32, serial: u32) -> Option<ConnId> {
        match self.all[slot as usize] {
            Slot {
                state: State::Open(id),
                serial: current,
                ..
            } if current == serial => Some(id),
            _ => None,
        }
    }

    /// The slot has no connection; it is due for one then, or, without `due`, when a request or a stage needs one.
    pub(super) fn wait(&mut self, slot: u32, due: Option<Instant>) {
        self.set(slot, State::Absent { due });
    }

    pub(super) fn dial(&mut self, slot: u32, opening: PendingDial) {
        self.set(slot, State::Dialling(opening));
    }

    pub(super) fn upgrade(&mut self, slot: u32, id: ConnId, opening: PendingDial) {
        self.set(slot, State::Upgrading(id, opening));
    }

    /// Holds a new connection; returns whether the slot had one before.
    pub(super) fn open(&mut self, slot: u32, id: ConnId) -> bool {
        self.set(slot, State::Open(id));
        let slot = &mut self.all[slot as usize];
        slot.serial = slot.serial.wrapping_add(1);
        (slot.used, slot.failed) = (0, 0);
        std::mem::replace(&mut slot.was_open, true)
    }

    /// Ends a connection, and with it the permits for it.
    pub(super) fn close(&mut self, slot: u32) {
        self.set(slot, State::Absent { due: None });
        let slot = &mut self.all[slot as usize];
        slot.serial = slot.serial.wrapping_add(1);
    }

    /// The slot has failed to connect, or its server refuses: it tries again after a pause.
    pub(super) fn retry(&mut self, slot: u32, now: Instant) {
        let at = self.all[slot as usize].retry_at(now);
        self.close(slot);
        self.wait(slot, Some(at));
    }

    /// Changes a state, and the counts of states.
    fn set(&mut self, slot: u32, state: State) {
        let state = std::mem::replace(&mut self.all[slot as usize].state, state);
        for (state, by) in [(state, -1), (self.all[slot as usize].state, 1)] {
            match state {
                State::Open(_) => self.live = self.live.wrapping_add_signed(by),
                State::Upgrading(..) => self.upgrading = self.upgrading.wrapping_add_signed(by),
                State::Absent { .. } | State::Dialling(_) => {}
            }
        }
    }
}

impl Slot {
    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn was_open(&self) -> bool {
        self.was_open
    }

    /// The next connection is the first: none was lost.
    pub(super) fn forget_connection(&mut self) {
        self.was_open = false;
    }

    #[inline]
    pub(super) fn serial(&self) -> u32 {
        self.serial
    }

    /// Whether a permit is still valid.
    #[inline]
    pub(super) fn admits(&self, permit: &SendPermit) -> bool {
        self.serial == permit.serial
    }

    /// The server has answered: the next failure is the first again.
    pub(super) fn reset_pause(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    /// When to try again after a failure.
    fn retry_at(&mut self, now: Instant) -> Instant {
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
