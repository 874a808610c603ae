//! A connection that becomes a WebSocket: a handshake before the first credit, then messages as requests are.
//!
//! ```text
//! dialled ─► Asked ──101──► Open ──message, answer, message ...──► the server's close, or ours when it is spent
//!              └ any other answer, or none in time: as a dial that has failed
//! ```

use std::io;
use std::sync::Arc;
use std::time::Instant;

use towline_io::{ConnId, Peer};
use towline_proto::ws::{self, Ahead, Shared, WebSocket};
use towline_proto::{Event, StreamId};

use super::conn_state::{Line, Step, failure_of};
use super::slot::{Start, State};
use super::{Phase, Worker};
use crate::check::Known;
use crate::config::Config;
use crate::stats::Failure;
use crate::target::Target;
use crate::websocket::{self, Denied, Handshake, Parting};

/// The close code of a purpose fulfilled (RFC 6455 7.4.1).
const NORMAL: u16 = 1000;

/// What a connection is becoming, or has become.
pub(super) struct Socket {
    stage: Stage,
    /// Messages that were under way when bytes last came: no more of those bytes are answers.
    answerable: usize,
}

enum Stage {
    /// ... and, between the head of the answer and the switch, what was agreed on.
    Asked(Handshake, Option<WebSocket>),
    Open(WebSocket, StreamId),
}

/// What every WebSocket of a thread shares.
pub(super) struct Sockets {
    shared: Shared,
    limits: Arc<ws::Limits>,
    /// Frames on their way into a connection.
    scratch: Vec<u8>,
}

impl Socket {
    /// Bytes have come, and so many messages are under way.
    pub(super) fn heard(&mut self, under_way: usize) {
        self.answerable = under_way;
    }
}

impl Sockets {
    pub(super) fn new(config: &Config) -> io::Result<Self> {
        Ok(Self {
            shared: Shared::new(towline_io::seed()?),
            limits: websocket::limits(config.longest_message()),
            scratch: Vec::new(),
        })
    }

    /// Goes on to the next end of something.
    pub(super) fn advance(
        &mut self,
        peer: &mut Peer<Line>,
        targets: &[Target],
        known: &[Known],
        now: Instant,
    ) -> Step {
        while let Some(event) = peer.conn.next_event() {
            let Some(socket) = peer.state.socket.as_deref_mut() else {
                return Step::Wait;
            };
            match (event, &mut socket.stage) {
                (Event::Head { head, .. }, Stage::Asked(handshake, agreed)) => {
                    match handshake.end(&head, &self.limits, now) {
                        Ok(socket) => *agreed = Some(socket),
                        Err(denied) => return Step::Denied(denied),
                    }
                }
                (Event::Switched { stream }, Stage::Asked(_, agreed)) => {
                    if let Some(agreed) = agreed.take() {
                        socket.stage = Stage::Open(agreed, stream);
                        return Step::Opened;
                    }
                }
                (Event::Closed(error), _) => {
                    let end = Step::Closed(failure_of(&error), error.rule.into());
                    // What came before the end is an answer still.
                    return match self.read(peer, targets, known, now) {
                        Step::Wait => end,
                        step => step,
                    };
                }
                _ => {}
            }
        }
        self.read(peer, targets, known, now)
    }

    fn read(
        &mut self,
        peer: &mut Peer<Line>,
        targets: &[Target],
        known: &[Known],
        now: Instant,
    ) -> Step {
        let line = &mut peer.state;
        let Some(Socket {
            stage: Stage::Open(socket, stream),
            answerable,
        }) = line.socket.as_deref_mut()
        else {
            return Step::Wait;
        };
        let Ok(mut stream) = peer.conn.stream(*stream) else {
            return Step::Wait;
        };
        let ahead = socket.read_ahead(&mut stream, now, &mut self.shared, usize::MAX);
        // Pongs, and the answer to a close. A refusal is about a stream that has failed, which reading has told.
        let _ = socket.flush(&mut stream, &mut self.shared);
        if ahead != Ahead::Event {
            return Step::Wait;
        }
        let parting = match socket.next_event() {
            Some(ws::Event::Message { kind, data }) => match line.flights.front_mut() {
                Some(flight) if *answerable > 0 => {
                    *answerable -= 1;
                    let target = flight.target as usize;
                    let expect = &targets[target].expect;
                    let sent = targets[target].messages.map(|messages| messages.kind);
                    (flight.check).message(data, sent == Some(kind), expect, &known[target]);
                    return Step::Answered(0);
                }
                _ => Some(Parting::wrong("a message that answers none of ours")),
            },
            event => event.and_then(|event| Parting::of(&event)),
        };
        parting.map_or(Step::Wait, |parting| Step::Parted(Box::new(parting)))
    }

    /// Puts a message into its connection.
    pub(super) fn send(&mut self, peer: &mut Peer<Line>, target: &Target) -> Option<StreamId> {
        let (Some(message), Some(messages)) = (&target.body, target.messages) else {
            return None;
        };
        let Stage::Open(socket, id) = &mut peer.state.socket.as_deref_mut()?.stage else {
            return None;
        };
        let stream = peer.conn.stream(*id).ok()?;
        let means = (&mut self.shared, &mut self.scratch);
        websocket::send(socket, stream, message, messages, means).then_some(*id)
    }
}

impl Worker {
    /// The target whose WebSocket the connections of a slot become, if any.
    pub(super) fn handshake_of(&self, slot: u32) -> Option<usize> {
        self.origins[self.slots[slot as usize].origin].handshake
    }

    /// Asks for a WebSocket on a connection that has just been made: the slot is dialling still.
    pub(super) fn upgrade(
        &mut self,
        slot: u32,
        id: ConnId,
        (begun, start): (Instant, Option<Start>),
        now: Instant,
    ) {
        let (Some(index), Some(peer)) = (self.handshake_of(slot), self.engine.peer(id)) else {
            return self.not_opened(slot, start, Failure::Connect, false, now);
        };
        let target = &self.config.targets[index];
        // What cannot be sent was refused before the run.
        let Ok(handshake) = Handshake::begin(&mut peer.conn, target, &mut self.sockets.shared)
        else {
            self.engine.abort(id);
            return self.not_opened(slot, start, Failure::Connect, false, now);
        };
        peer.state.slot = Some(slot);
        peer.state.socket = Some(Box::new(Socket {
            stage: Stage::Asked(handshake, None),
            answerable: 0,
        }));
        self.dialling += 1;
        self.slots[slot as usize].state = State::Upgrading { id, begun, start };
        self.engine.settle(id);
    }

    pub(super) fn upgraded(&mut self, id: ConnId, now: Instant) {
        if let Some(peer) = self.engine.peer(id)
            && let Some(slot) = peer.state.slot
            && let State::Upgrading { begun, start, .. } = self.slots[slot as usize].state
        {
            self.dialling -= 1;
            self.opened(slot, id, begun, start, now);
        }
    }

    /// The server has answered with anything but a WebSocket.
    pub(super) fn denied(&mut self, id: ConnId, denied: &Denied, now: Instant) {
        let Some(slot) = (self.engine.peer(id)).and_then(|peer| peer.state.slot.take()) else {
            return;
        };
        self.engine.abort(id);
        let State::Upgrading { start, .. } = self.slots[slot as usize].state else {
            return;
        };
        let refused =
            (denied.status).is_some_and(|status| self.config.refusal_statuses.contains(&status));
        if let Some(status) = denied.status
            && (self.phase == Phase::Connecting || self.counts(now, now))
        {
            self.tally.status(status);
        }
        self.not_upgraded(slot, start, (denied.failure, refused), &denied.rule, now);
    }

    pub(super) fn not_upgraded(
        &mut self,
        slot: u32,
        start: Option<Start>,
        (failure, refused): (Failure, bool),
        rule: &str,
        now: Instant,
    ) {
        self.dialling -= 1;
        if !refused {
            self.tally.note(|| rule.into());
        }
        self.not_opened(slot, start, failure, refused, now);
    }

    /// Gives up a handshake that takes too long, and says whether it has.
    pub(super) fn gave_up_upgrade(&mut self, slot: usize, now: Instant) -> bool {
        let State::Upgrading { id, begun, .. } = self.slots[slot].state else {
            return false;
        };
        if now < begun + self.config.connect_timeout {
            return false;
        }
        self.over(id, Failure::Timeout, "no WebSocket in time", now);
        self.engine.abort(id);
        true
    }

    /// A WebSocket has ended before its connection.
    pub(super) fn parted(&mut self, id: ConnId, parting: &Parting, now: Instant) {
        if let Some(code) = parting.code
            && self.counts(now, now)
        {
            self.tally.status(code);
        }
        self.over(id, parting.failure, &parting.rule, now);
        // The answer to a close leaves first.
        self.engine.settle(id);
        self.engine.hang_up(id);
    }

    /// Says goodbye, where a connection is a WebSocket.
    pub(super) fn farewell(&mut self, id: ConnId, now: Instant) {
        if let Some(peer) = self.engine.peer(id)
            && let Some(socket) = peer.state.socket.as_deref_mut()
            && let Stage::Open(socket, stream) = &mut socket.stage
            && let Ok(mut stream) = peer.conn.stream(*stream)
            && socket.close(now, NORMAL, "").is_ok()
        {
            let _ = socket.flush(&mut stream, &mut self.sockets.shared);
            self.engine.settle(id);
        }
    }
}

impl Drop for Worker {
    /// No WebSocket goes without a word.
    fn drop(&mut self) {
        for index in 0..self.slots.len() {
            if let State::Open(id) = self.slots[index].state {
                self.farewell(id, Instant::now());
            }
        }
    }
}
