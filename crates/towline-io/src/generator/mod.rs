//! An engine for load generators, with what servers and clients do not need: repeated exchanges, requests that are
//! sent in pieces, and turns that begin at a precise time.
//!
//! [`GeneratorEngine`] is an [`Engine`] with its own way to receive and to send: the state of each connection has a
//! [`Generated`], and a connection on which that is unused behaves as any other.

mod pieces;
mod precise_wait;
mod repeat;
mod state;

use std::io;
use std::ops::{Deref, DerefMut};
use std::time::Instant;

use towline_proto::BufferPool;

use crate::conn::flush::FlushOutcome;
use crate::quic::QuicCounts;
use crate::{Conn, ConnId, Engine, EngineConfig};
pub use precise_wait::{PreciseWait, exact_timers};
use repeat::RepeatedResponses;
pub use state::{Generated, GeneratorState};

/// The engine of a load generator.
pub struct GeneratorEngine<S> {
    engine: Engine<S>,
    responses: RepeatedResponses,
    precise_wait: PreciseWait,
}

impl<S> Deref for GeneratorEngine<S> {
    type Target = Engine<S>;

    fn deref(&self) -> &Engine<S> {
        &self.engine
    }
}

impl<S> DerefMut for GeneratorEngine<S> {
    fn deref_mut(&mut self) -> &mut Engine<S> {
        &mut self.engine
    }
}

impl<S: GeneratorState> GeneratorEngine<S> {
    pub fn new(config: EngineConfig) -> io::Result<Self> {
        Ok(Self {
            engine: Engine::new(config)?,
            responses: RepeatedResponses::default(),
            precise_wait: PreciseWait::default(),
        })
    }

    /// Starts a turn as [`PreciseWait::turn_start_by`] does.
    pub fn turn_start_by(&mut self, at: Instant) -> io::Result<()> {
        self.precise_wait.turn_start_by(&mut self.engine, at)
    }

    /// Like [`Engine::next_ready`].
    pub fn next_ready(&mut self) -> Option<ConnId> {
        let responses = &mut self.responses;
        (self.engine).next_ready_with(|conn, buffers, now, budget| {
            conn.receive_generated(buffers, responses, now, budget);
        })
    }

    /// Like [`Engine::flush_and_rearm`].
    pub fn flush_and_rearm(&mut self, id: ConnId) {
        let now = self.engine.now();
        if let Some(conn) = self.engine.conn(id)
            && conn.is_repeating()
        {
            let sent = conn.send_repeated(now);
            // The core has no part in it: no output, no timers and no buffers change.
            if matches!(sent, Ok(FlushOutcome::All)) {
                return;
            }
            conn.end_generated(sent, now);
        }
        self.engine.flush_and_rearm_with(id, Conn::flush_generated);
    }

    /// Sets the bytes of a verified response: see [`Conn::repeat_exchange`].
    pub fn set_repeated_response(&mut self, index: usize, bytes: &[u8]) {
        self.responses.set(index, bytes);
    }

    /// Whether responses that differ from the expected one are kept for [`Conn::response_sample`].
    pub fn sample_responses(&mut self, index: usize, wants_sample: bool) {
        self.responses.sample(index, wants_sample);
    }
}

impl<S> Conn<S> {
    /// Number of HTTP bytes received so far.
    pub fn received_bytes(&self) -> u64 {
        self.traffic.received
    }

    /// Packets so far; `None` if the transport is not QUIC.
    pub fn quic_counts(&self) -> Option<QuicCounts> {
        Some(self.io.quic()?.conn.counts())
    }
}

impl<S: GeneratorState> Conn<S> {
    /// Number of bytes of requests that are not written to the socket yet.
    pub fn unsent_bytes(&self) -> usize {
        let repeat = self.state.generated().repeat.as_ref();
        self.proto.pending_bytes() + repeat.map_or(0, |repeat| repeat.unsent)
    }

    /// Flushes, unless the request is sent in pieces, and receives.
    fn receive_generated(
        &mut self,
        buffers: &mut BufferPool,
        responses: &mut RepeatedResponses,
        now: Instant,
        budget: usize,
    ) {
        let generated = self.state.generated();
        if generated.allowance.is_some() {
            self.receive(buffers, now);
        } else if generated.repeat.is_none() || !self.receive_repeated(buffers, responses, now) {
            self.begin_service(buffers, now, budget);
        }
    }

    /// Sends the rest of a repeated request, or of a piece, or else what the protocol has to send.
    fn flush_generated(&mut self, now: Instant, budget: usize) -> FlushOutcome {
        let generated = self.state.generated();
        if !generated.sends() || !self.is_output_open() {
            return self.flush(now, budget);
        }
        if generated.allowance.is_some() {
            let sent = self.send_piece(now);
            return self.end_generated(sent, now);
        }
        let sent = self.send_repeated(now);
        match self.end_generated(sent, now) {
            FlushOutcome::All => self.flush(now, budget),
            outcome => outcome,
        }
    }

    /// Records how sending in the generator's own way has ended.
    fn end_generated(&mut self, sent: io::Result<FlushOutcome>, now: Instant) -> FlushOutcome {
        let flushed = self.end_flush(sent);
        self.flush_outcome(flushed, now)
    }
}
