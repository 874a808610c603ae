//! One WebSocket: its state, its events, its timers.
//!
//! ```text
//!            close()                      the peer's close
//!   Open ─────────────► Closing ──────────────────────────────┬─► AwaitingEof (client: the server ends the connection
//!    │ the peer's close: the reply is due ────────────────────┤      first, RFC 6455 7.1.1) ─► Finished
//!    │                     │ no close in time                 └─► Finished (server)
//!    │ end, violation, no pong ──────────────────────────────────► Finished
//! ```

use std::sync::Arc;
use std::time::Instant;

use super::close::CloseFrame;
use super::keepalive::{self, Keepalive};
use super::message::Kind;
use super::state::{Message, Outbox, PendingEvent, Phase, RecvState, SendState};
use super::{Limits, Scratch, Violation, deflate, rules};
use crate::{Side, StreamMut, StreamRead, UserError};

/// An event.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// A whole message.
    Message {
        /// The message's type. Text is valid UTF-8.
        kind: Kind,
        /// The message, valid until the next call on the WebSocket; [`WebSocket::take_message`] returns its
        /// buffer.
        data: &'a [u8],
    },
    /// The peer's ping; the pong is queued already.
    Ping(&'a [u8]),
    /// A pong, solicited or not.
    Pong(&'a [u8]),
    /// The peer's close frame. No event follows.
    Close {
        /// The close code; 1005 if the frame had none.
        code: u16,
        /// The reason, often empty.
        reason: &'a str,
    },
    /// The WebSocket failed. No event follows.
    Failed(Violation),
}

/// Result of polling for the next event.
#[derive(Debug, PartialEq, Eq)]
pub enum PollOutcome<'a> {
    /// An event.
    Event(Event<'a>),
    /// No event yet; wait until the stream is readable.
    Pending,
    /// No event will follow.
    Ended,
}

/// Result of reading ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAhead {
    /// An event waits for [`WebSocket::next_event`].
    Event,
    /// Everything received was read; wait until the stream is readable.
    Pending,
    /// A message is incomplete, and no more of it may be buffered until the program requests a message.
    Full,
    /// No event will follow.
    Ended,
}

/// State of the closing handshake, for the stream when all queued output was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Continue.
    Open,
    /// Closing handshake in progress: continue reading and sending queued output.
    Closing,
    /// Finish the stream: nothing more is sent or read.
    Finished,
}

/// Least part of a compressed message that is read ahead at once: few enough to bound the plain text (132 KB at
/// the highest ratio of DEFLATE), enough that its cost does not matter.
const MIN_PORTION_BYTES: usize = 128;

/// One end of a WebSocket, over a stream that has switched.
#[derive(Debug)]
pub struct WebSocket {
    pub(super) side: Side,
    pub(super) limits: Arc<Limits>,
    pub(super) phase: Phase,
    pub(super) recv: RecvState,
    pub(super) message: Option<Message>,
    /// Payload of the current or last control frame.
    pub(super) control: Vec<u8>,
    pub(super) pending: PendingEvent,
    pub(super) send_state: SendState,
    pub(super) outbox: Outbox,
    pub(super) inbound: Option<deflate::Inbound>,
    pub(super) outbound: Option<deflate::Outbound>,
    pub(super) keepalive: Keepalive,
    pings: u32,
    /// The program polled and there was no event: every received byte has been read.
    pub(super) awaits_data: bool,
}

impl WebSocket {
    /// Creates an end after the handshake; `deflate`: the negotiated parameters, and the configuration of the
    /// compressor.
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
            recv: RecvState::default(),
            message: None,
            control: Vec::new(),
            pending: PendingEvent::None,
            send_state: SendState::Idle,
            outbox: Outbox::default(),
            inbound,
            outbound,
            keepalive: Keepalive::Idle { since: now },
            pings: 0,
            awaits_data: false,
        }
    }

    /// Returns the next event from the stream of this WebSocket, reading only as much as it needs.
    pub fn poll(
        &mut self,
        mut stream: StreamMut<'_>,
        now: Instant,
        scratch: &mut Scratch,
    ) -> PollOutcome<'_> {
        match self.fill(&mut stream, now, scratch, usize::MAX) {
            ReadAhead::Event => self
                .next_event()
                .map_or(PollOutcome::Ended, PollOutcome::Event),
            ReadAhead::Pending | ReadAhead::Full => PollOutcome::Pending,
            ReadAhead::Ended => PollOutcome::Ended,
        }
    }

    /// For programs that do not handle pings and pongs: reads until a message, the close or a failure waits
    /// for `next_event`, and sends pongs meanwhile. Until the program requests a message, no more than `max`
    /// bytes of one are read.
    pub fn read_ahead(
        &mut self,
        stream: &mut StreamMut<'_>,
        now: Instant,
        scratch: &mut Scratch,
        max: usize,
    ) -> ReadAhead {
        loop {
            let ahead = self.fill(stream, now, scratch, max);
            match self.pending {
                PendingEvent::Ping => {
                    self.next_event();
                    // Each ping gets its pong as long as there is send capacity. An error means that the
                    // stream has failed, which the next read reports.
                    let _ = self.flush(stream, scratch);
                }
                PendingEvent::Pong => {
                    self.next_event();
                }
                _ => return ahead,
            }
        }
    }

    /// Reads until an event waits, buffering no more than `max` bytes of a message.
    fn fill(
        &mut self,
        stream: &mut StreamMut<'_>,
        now: Instant,
        scratch: &mut Scratch,
        max: usize,
    ) -> ReadAhead {
        while !self.has_event() {
            let awaiting_eof = matches!(self.phase, Phase::AwaitingEof { .. });
            let wanted = self.wanted_bytes();
            if wanted == 0 && !awaiting_eof {
                return ReadAhead::Ended;
            }
            let may = max.saturating_sub(self.held_bytes());
            if may == 0 && !awaiting_eof && !self.recv.is_short() {
                return ReadAhead::Full;
            }
            let wanted = if self.recv.is_short() {
                wanted
            } else {
                wanted.min(self.portion(may))
            };
            match stream.read(wanted) {
                // Bytes after the server's close frame are discarded until the end of the stream.
                StreamRead::Data(_) if awaiting_eof => {}
                StreamRead::Data(data) => {
                    self.receive(now, data, scratch);
                }
                StreamRead::Pending => {
                    self.next_event();
                    return ReadAhead::Pending;
                }
                StreamRead::End | StreamRead::Failed => self.received_eof(now),
            }
        }
        ReadAhead::Event
    }

    /// Number of bytes to read so that the message grows by about `may` at most.
    fn portion(&self, may: usize) -> usize {
        let message = self.message.as_ref();
        if message.is_some_and(|message| message.inflation.is_some()) {
            (may / deflate::MAX_EXPANSION).max(MIN_PORTION_BYTES)
        } else {
            may
        }
    }

    /// Number of buffered bytes of an incomplete message.
    fn held_bytes(&self) -> usize {
        let message = self.message.as_ref().filter(|message| !message.complete);
        message.map_or(0, |message| message.data.len())
    }

    /// The stream ended. Without a close frame before, this is a failure (1006).
    pub fn received_eof(&mut self, _now: Instant) {
        match self.phase {
            Phase::Open | Phase::Closing { .. } => self.fail(rules::TRUNCATED),
            Phase::AwaitingEof { .. } | Phase::Finished => self.phase = Phase::Finished,
        }
        (self.outbox.ping, self.outbox.pong) = (None, None);
    }

    /// To be called at or after `deadline()`; harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        match self.phase {
            Phase::Closing { until } if now >= until => self.fail(rules::NO_CLOSE),
            Phase::AwaitingEof { until } if now >= until => self.phase = Phase::Finished,
            Phase::Open => self.check_keepalive(now),
            _ => {}
        }
    }

    /// The instant at which `handle_timeout` must be called.
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Open => self.keepalive.deadline(&self.limits),
            Phase::Closing { until } | Phase::AwaitingEof { until } => Some(until),
            Phase::Finished => None,
        }
    }

    /// An event is waiting.
    pub fn has_event(&self) -> bool {
        self.pending != PendingEvent::None
    }

    /// Returns the event produced by `receive`, `received_eof` or `handle_timeout`.
    pub fn next_event(&mut self) -> Option<Event<'_>> {
        let pending = std::mem::replace(&mut self.pending, PendingEvent::None);
        self.awaits_data = pending == PendingEvent::None;
        Some(match pending {
            PendingEvent::None => return None,
            PendingEvent::Message => {
                let message = self.message.as_ref()?;
                Event::Message {
                    kind: message.kind,
                    data: &message.data,
                }
            }
            PendingEvent::Ping => Event::Ping(&self.control),
            PendingEvent::Pong => Event::Pong(&self.control),
            PendingEvent::Close => {
                let (code, reason) = super::close::parse(&self.control).ok()?;
                Event::Close { code, reason }
            }
            PendingEvent::Failed(violation) => Event::Failed(violation),
        })
    }

    /// Takes the buffer of the message that was the last event, instead of copying it.
    pub fn take_message(&mut self) -> Option<Vec<u8>> {
        if self.has_event() || !self.message.as_ref()?.complete {
            return None;
        }
        self.message.take().map(|message| message.data)
    }

    /// Returns memory that is not needed between messages to `scratch`: the buffer of the last one. Polling
    /// for the next event does the same.
    pub fn release(&mut self, scratch: &mut Scratch) {
        if !self.has_event() {
            if self
                .message
                .as_ref()
                .is_some_and(|message| message.complete)
                && let Some(message) = self.message.take()
            {
                scratch.recycle(message.data);
            }
            if self.recv.is_between_frames() {
                self.control = Vec::new();
            }
        }
    }

    /// State of the closing handshake.
    pub fn status(&self) -> Status {
        match self.phase {
            Phase::Open => Status::Open,
            Phase::Finished if !self.has_output() => Status::Finished,
            _ => Status::Closing,
        }
    }

    /// Fails the WebSocket: the peer broke a rule, was silent or disconnected.
    pub(super) fn fail(&mut self, violation: Violation) {
        // A second close frame is never sent (RFC 6455 5.5.1).
        if self.phase == Phase::Open {
            self.outbox.close = CloseFrame::failure(violation);
        }
        self.phase = Phase::Finished;
        self.recv = RecvState::Ended;
        self.message = None;
        self.pending = PendingEvent::Failed(violation);
    }

    fn check_keepalive(&mut self, now: Instant) {
        let could_come = self.awaits_data && self.recv.is_between_frames();
        let next = self.pings.wrapping_add(1);
        match self.keepalive.check(now, &self.limits, next, could_come) {
            keepalive::Due::None => {}
            keepalive::Due::Ping(ping) => {
                self.pings = ping;
                self.outbox.ping = Some(ping.to_be_bytes().to_vec());
            }
            keepalive::Due::Timeout => self.fail(rules::NO_PONG),
        }
    }

    /// Sends queued output on the stream of this WebSocket; to be called when it is writable.
    pub fn flush(
        &mut self,
        stream: &mut StreamMut<'_>,
        scratch: &mut Scratch,
    ) -> Result<(), UserError> {
        if !self.has_output() || stream.send_capacity() == 0 {
            return Ok(());
        }
        let mut out = scratch.buffer();
        self.transmit(scratch, &mut out);
        let written = stream.write(&out);
        scratch.recycle(out);
        written
    }
}
