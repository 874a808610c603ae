//! One WebSocket: its state, its events, its clocks.
//!
//! ```text
//!            close()                      the peer's close
//!   Open ─────────────► Closing ──────────────────────────────┬─► Parting (client: the server ends the connection
//!    │ the peer's close: the answer is due ───────────────────┤      first, RFC 6455 7.1.1) ─► Finished
//!    │                     │ no close in time                 └─► Finished (server)
//!    │ end, violation, no pong ──────────────────────────────────► Finished
//! ```

use std::sync::Arc;
use std::time::Instant;

use super::alive::{self, Alive};
use super::close::Closing;
use super::incoming::{Message, Reading};
use super::outgoing::Sending;
use super::{Limits, Shared, Violation, deflate, rules};
use crate::{Side, StreamMut, StreamRead, UserError};

/// What a message is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// UTF-8.
    Text,
    /// Any bytes.
    Binary,
}

/// One thing that happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole message.
    Message {
        /// What it is made of. Text has been checked.
        kind: Kind,
        /// The message, valid until the WebSocket is touched again; [`WebSocket::take_message`] gives the buffer.
        data: &'a [u8],
    },
    /// The peer's ping; the pong is due already.
    Ping(&'a [u8]),
    /// A pong, asked for or not.
    Pong(&'a [u8]),
    /// The peer's close frame. No event follows.
    Close {
        /// 1005: it had none.
        code: u16,
        /// Often empty.
        reason: &'a str,
    },
    /// The WebSocket failed. No event follows.
    Failed(Violation),
}

/// What asking for the next event gave.
#[derive(Debug, PartialEq, Eq)]
pub enum Pull<'a> {
    /// It is here.
    Event(Event<'a>),
    /// Nothing yet; the stream will be readable.
    Pending,
    /// There will be no more.
    Over,
}

/// How far reading ahead came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// An event waits for [`WebSocket::next_event`].
    Event,
    /// All that came has been read; the stream will be readable.
    Pending,
    /// A message is under way of which no more may be held before somebody asks for it.
    Full,
    /// There will be no event any more.
    Over,
}

/// What to do with the stream when all that is due has been sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Go on.
    Open,
    /// One or both close frames are on their way; go on reading and sending what is due.
    Closing,
    /// Finish the stream: nothing more is sent or read.
    Finished,
}

/// Which event waits for `next_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    Nothing,
    Message,
    Ping,
    Pong,
    Close,
    Failed(Violation),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    Closing { until: Instant },
    Parting { until: Instant },
    Finished,
}

/// Control frames that wait for `transmit`. One of each: only the newest ping is answered (RFC 6455 5.5.3).
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub ping: Option<Vec<u8>>,
    pub pong: Option<Vec<u8>>,
    pub close: Option<Closing>,
}

/// One end of a WebSocket, over a stream that has switched.
#[derive(Debug)]
pub struct WebSocket {
    pub(super) side: Side,
    pub(super) limits: Arc<Limits>,
    pub(super) phase: Phase,
    pub(super) reading: Reading,
    pub(super) message: Option<Message>,
    /// Payload of the control frame that is being read or was read last.
    pub(super) control: Vec<u8>,
    pub(super) ready: Ready,
    pub(super) sending: Sending,
    pub(super) outbox: Outbox,
    pub(super) inbound: Option<deflate::Inbound>,
    pub(super) outbound: Option<deflate::Outbound>,
    pub(super) alive: Alive,
    pings: u32,
    /// The program has asked for an event and there was none: every byte that came has been read.
    pub(super) hungry: bool,
}

impl WebSocket {
    /// One end of a WebSocket whose handshake is done; `deflate`: what was agreed on, and how to compress.
    pub fn new(
        side: Side,
        limits: Arc<Limits>,
        deflate: Option<(deflate::Params, deflate::Config)>,
        now: Instant,
    ) -> Self {
        let (mut inbound, mut outbound) = (None, None);
        if let Some((params, config)) = deflate {
            let (received, sent) = match side {
                Side::Server => (params.client, params.server),
                Side::Client => (params.server, params.client),
            };
            inbound = Some(deflate::Inbound::new(received));
            outbound = Some(deflate::Outbound::new(sent, &config));
        }
        Self {
            side,
            limits,
            phase: Phase::Open,
            reading: Reading::default(),
            message: None,
            control: Vec::new(),
            ready: Ready::Nothing,
            sending: Sending::Idle,
            outbox: Outbox::default(),
            inbound,
            outbound,
            alive: Alive::Quiet { since: now },
            pings: 0,
            hungry: false,
        }
    }

    /// The next event from the stream that carries this WebSocket: reads exactly as much as it needs.
    pub fn poll(
        &mut self,
        mut stream: StreamMut<'_>,
        now: Instant,
        shared: &mut Shared,
    ) -> Pull<'_> {
        match self.fill(&mut stream, now, shared, usize::MAX) {
            Ahead::Event => self.next_event().map_or(Pull::Over, Pull::Event),
            Ahead::Pending | Ahead::Full => Pull::Pending,
            Ahead::Over => Pull::Over,
        }
    }

    /// For programs that are not told of pings and pongs: reads until a message, the close or a failure waits for
    /// `next_event`, and answers pings on the way. While nobody has asked for a message, no more than `most` bytes
    /// of one are read.
    pub fn read_ahead(
        &mut self,
        stream: &mut StreamMut<'_>,
        now: Instant,
        shared: &mut Shared,
        most: usize,
    ) -> Ahead {
        loop {
            let ahead = self.fill(stream, now, shared, most);
            match self.ready {
                Ready::Ping => {
                    self.next_event();
                    // Each ping has its answer as long as there is room. A refusal is about a stream that has
                    // failed, which the next read tells.
                    let _ = self.flush(stream, shared);
                }
                Ready::Pong => {
                    self.next_event();
                }
                _ => return ahead,
            }
        }
    }

    /// Reads until an event waits, of a message no more than `most` bytes.
    fn fill(
        &mut self,
        stream: &mut StreamMut<'_>,
        now: Instant,
        shared: &mut Shared,
        most: usize,
    ) -> Ahead {
        while !self.has_event() {
            let parting = matches!(self.phase, Phase::Parting { .. });
            let wanted = self.wants();
            if wanted == 0 && !parting {
                return Ahead::Over;
            }
            let may = most.saturating_sub(self.held_bytes());
            if may == 0 && !parting && !self.reading.is_short() {
                return Ahead::Full;
            }
            let wanted = if self.reading.is_short() {
                wanted
            } else {
                wanted.min(may)
            };
            match stream.read(wanted) {
                // What the server sends behind its close frame is dropped; its end is awaited.
                StreamRead::Data(_) if parting => {}
                StreamRead::Data(data) => {
                    self.receive(now, data, shared);
                }
                StreamRead::Pending => {
                    self.next_event();
                    return Ahead::Pending;
                }
                StreamRead::End | StreamRead::Failed => self.received_eof(now),
            }
        }
        Ahead::Event
    }

    /// What is held of a message that is under way.
    fn held_bytes(&self) -> usize {
        let message = self.message.as_ref().filter(|message| !message.complete);
        message.map_or(0, |message| message.data.len())
    }

    /// The stream ended. Without a close frame before it that is a failure (1006).
    pub fn received_eof(&mut self, _now: Instant) {
        match self.phase {
            Phase::Open | Phase::Closing { .. } => self.fail(rules::TRUNCATED),
            Phase::Parting { .. } | Phase::Finished => self.phase = Phase::Finished,
        }
        (self.outbox.ping, self.outbox.pong) = (None, None);
    }

    /// To be called at or after `deadline()`; harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Closing { until } if now >= until => self.fail(rules::NO_CLOSE),
            Phase::Parting { until } if now >= until => self.phase = Phase::Finished,
            Phase::Open => self.check_alive(now),
            _ => {}
        }
    }

    /// When `handle_timeout` must be called next.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open => self.alive.deadline(&self.limits),
            Phase::Closing { until } | Phase::Parting { until } => Some(until),
            Phase::Finished => None,
        }
    }

    /// An event is waiting.
    pub fn has_event(&self) -> bool {
        self.ready != Ready::Nothing
    }

    /// The event that `receive`, `received_eof` or `handle_timeout` has brought.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let ready = std::mem::replace(&mut self.ready, Ready::Nothing);
        self.hungry = ready == Ready::Nothing;
        Some(match ready {
            Ready::Nothing => return None,
            Ready::Message => {
                let message = self.message.as_ref()?;
                Event::Message {
                    kind: message.kind,
                    data: &message.data,
                }
            }
            Ready::Ping => Event::Ping(&self.control),
            Ready::Pong => Event::Pong(&self.control),
            Ready::Close => {
                let (code, reason) = super::close::parse(&self.control).ok()?;
                Event::Close { code, reason }
            }
            Ready::Failed(violation) => Event::Failed(violation),
        })
    }

    /// The buffer of the message that was the last event, instead of a copy.
    pub fn take_message(&mut self) -> Option<Vec<u8>> {
        if self.has_event() || !self.message.as_ref()?.complete {
            return None;
        }
        self.message.take().map(|message| message.data)
    }

    /// Gives memory back that is not needed between messages: the buffer of the last one. Asking for the next event
    /// does it too.
    pub fn release(&mut self, shared: &mut Shared) {
        if !self.has_event() {
            if self
                .message
                .as_ref()
                .is_some_and(|message| message.complete)
                && let Some(message) = self.message.take()
            {
                shared.take_back(message.data);
            }
            if self.reading.is_between_frames() {
                self.control = Vec::new();
            }
        }
    }

    /// What to do with the stream.
    pub fn status(&self) -> Status {
        match self.phase {
            Phase::Open => Status::Open,
            Phase::Finished if !self.has_output() => Status::Finished,
            _ => Status::Closing,
        }
    }

    /// The WebSocket is over: the peer broke a rule, fell silent or went away.
    pub(super) fn fail(&mut self, violation: Violation) {
        // A second close frame is never sent (RFC 6455 5.5.1).
        if self.phase == Phase::Open {
            self.outbox.close = Closing::failure(violation);
        }
        self.phase = Phase::Finished;
        self.reading = Reading::Over;
        self.message = None;
        self.ready = Ready::Failed(violation);
    }

    fn check_alive(&mut self, now: Instant) {
        let could_come = self.hungry && self.reading.is_between_frames();
        let next = self.pings.wrapping_add(1);
        match self.alive.check(now, &self.limits, next, could_come) {
            alive::Due::Nothing => {}
            alive::Due::Ping(ping) => {
                self.pings = ping;
                self.outbox.ping = Some(ping.to_be_bytes().to_vec());
            }
            alive::Due::Silence => self.fail(rules::NO_PONG),
        }
    }

    /// Sends what is due on the stream that carries this WebSocket; to be called when it is writable.
    pub fn flush(
        &mut self,
        stream: &mut StreamMut<'_>,
        shared: &mut Shared,
    ) -> Result<(), UserError> {
        if !self.has_output() || stream.send_capacity() == 0 {
            return Ok(());
        }
        let mut out = shared.buffer();
        self.transmit(shared, &mut out);
        let written = stream.write(&out);
        shared.take_back(out);
        written
    }
}
