//! Writing the output of a connection to its socket: one `writev` when the kernel has room, and no system
//! call when there is no output.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use socket2::Socket;
use towline_proto::Side;

use crate::conn::file_body::FileFlush;
use crate::conn::transport::Transport;
use crate::conn::{Conn, Output, failure_rule};
use crate::tls::Session;

/// Slices of one `writev`: sixteen pipelined responses of four slices each.
pub(crate) const SLICES: usize = 64;

const FEW_SLICES: usize = 4;

/// Result of one write: bytes offered to the kernel, bytes accepted, and whether all output was offered.
pub(crate) struct WriteOutcome {
    offered: usize,
    pub(crate) sent: usize,
    offered_all: bool,
}

/// Outcome of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushOutcome {
    /// All output has been written.
    All,
    /// The kernel accepts no more for now.
    Blocked,
    /// The budget is used up; the connection continues in its next service.
    Budget,
}

impl<S> Conn<S> {
    /// Sends pending output, at most `budget` bytes and one write more. A failure is passed to the protocol.
    pub(crate) fn flush(&mut self, now: Instant, budget: usize) -> FlushOutcome {
        let flushed = self.try_flush(now, budget);
        self.flush_outcome(flushed, now)
    }

    /// Like `flush`, but returns a failure to the caller.
    pub(crate) fn try_flush(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        if !self.is_output_open() {
            return Ok(FlushOutcome::All);
        }
        let flushed = match &self.io {
            Transport::Stream(stream) if stream.tls.is_none() => self.flush_plain(now, budget),
            Transport::Stream(_) => self.flush_tls(now, budget),
            Transport::Quic(_) => Ok(self.flush_quic(now, budget)),
        };
        self.end_flush(flushed)
    }

    /// Whether anything may be sent, if only a `close_notify`.
    pub(crate) fn is_output_open(&self) -> bool {
        match self.output {
            Output::Open | Output::Blocked => true,
            Output::Broken => false,
            Output::Finished => self.io.tls().is_some(),
        }
    }

    /// Records how a flush has ended.
    pub(crate) fn end_flush(
        &mut self,
        flushed: io::Result<FlushOutcome>,
    ) -> io::Result<FlushOutcome> {
        let flushed = flushed.inspect_err(|error| {
            if let Some(stream) = self.io.stream_mut() {
                stream.reset_seen |= error.kind() == io::ErrorKind::ConnectionReset;
            }
        })?;
        if self.output != Output::Finished {
            self.output = match flushed {
                FlushOutcome::Blocked => Output::Blocked,
                FlushOutcome::All | FlushOutcome::Budget => Output::Open,
            };
        }
        Ok(flushed)
    }

    /// Passes a failure to the protocol.
    pub(crate) fn flush_outcome(
        &mut self,
        flushed: io::Result<FlushOutcome>,
        now: Instant,
    ) -> FlushOutcome {
        flushed.unwrap_or_else(|error| {
            if self.proto.side() == Side::Client && !self.input.over {
                // A server that refuses an upload responds before it closes, and the response may be readable.
                self.output = Output::Broken;
                self.files.clear();
                self.input.readable = true;
                self.input.closed = true;
            } else {
                self.on_failure(now, failure_rule(&error));
            }
            FlushOutcome::All
        })
    }

    fn flush_plain(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        let mut done = 0;
        loop {
            let write = self.write_once()?;
            if write.offered == 0 {
                match self.flush_file(now)? {
                    FileFlush::Sent(bytes) => done += bytes,
                    FileFlush::Queued => {}
                    FileFlush::Idle => return Ok(FlushOutcome::All),
                    FileFlush::Blocked => return Ok(FlushOutcome::Blocked),
                }
            } else {
                done += write.sent;
                if !self.on_written(&write, now) {
                    return Ok(FlushOutcome::Blocked);
                }
                // The write may have made room for other streams.
                if write.offered_all && self.files.is_empty() && self.proto.pending_bytes() == 0 {
                    return Ok(FlushOutcome::All);
                }
            }
            if done >= budget {
                return Ok(FlushOutcome::Budget);
            }
        }
    }

    fn write_once(&self) -> io::Result<WriteOutcome> {
        // A response is usually one slice, so sixty-four need not be prepared.
        let mut few = [IoSlice::new(&[]); FEW_SLICES];
        let count = self.proto.send_slices(&mut few);
        if count < FEW_SLICES {
            return self.write(&few[..count], true);
        }
        let mut many = [IoSlice::new(&[]); SLICES];
        let count = self.proto.send_slices(&mut many);
        self.write(&many[..count], count < SLICES)
    }

    pub(crate) fn write(
        &self,
        slices: &[IoSlice<'_>],
        offered_all: bool,
    ) -> io::Result<WriteOutcome> {
        let offered = slices.iter().map(|slice| slice.len()).sum();
        let more_follows = offered_all && self.files.next_uses_sendfile();
        let sent = loop {
            if offered == 0 {
                break 0;
            }
            let Some(stream) = self.io.stream() else {
                break 0;
            };
            match stream.send_plain(slices, more_follows) {
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                Err(error) => return Err(error),
            }
        };
        Ok(WriteOutcome {
            offered,
            sent,
            offered_all,
        })
    }

    /// Records a write. Returns false if the kernel's buffer is full: the poll reports when it is not.
    #[inline]
    pub(crate) fn on_written(&mut self, write: &WriteOutcome, now: Instant) -> bool {
        if write.sent > 0 {
            self.proto.sent(now, write.sent);
            self.count_sent(now, write.sent);
        }
        let is_complete = write.sent == write.offered;
        if !is_complete {
            self.proto.sent(now, 0);
        }
        is_complete
    }

    /// Writes pending records, then encrypts plain bytes in portions of rustls' buffer size.
    fn flush_tls(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        let mut done = 0;
        loop {
            if !self.flush_records(now)? {
                return Ok(FlushOutcome::Blocked);
            }
            if done >= budget {
                return Ok(FlushOutcome::Budget);
            }
            self.fill_from_files();
            let Some((tls, _)) = tls_of(&mut self.io) else {
                return Ok(FlushOutcome::All);
            };
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.proto.send_slices(&mut slices);
            if count == 0 || !tls.accepts_plaintext() {
                return Ok(FlushOutcome::All);
            }
            done += tls.encrypt(&slices[..count])?;
        }
    }

    /// Writes encrypted records. Returns false if the kernel's buffer is full.
    pub(crate) fn flush_records(&mut self, now: Instant) -> io::Result<bool> {
        while let Some((tls, socket)) = tls_of(&mut self.io)
            && tls.wants_write()
        {
            let Some(plain) = tls.flush(socket)? else {
                self.proto.sent(now, 0);
                return Ok(false);
            };
            if plain > 0 {
                self.proto.sent(now, plain);
                self.count_sent(now, plain);
            }
        }
        Ok(true)
    }

    /// Ends the output: `close_notify` over TLS, then a FIN.
    pub(crate) fn finish_output(&mut self, now: Instant) {
        if matches!(self.output, Output::Finished | Output::Broken) {
            return;
        }
        if let Some((tls, _)) = tls_of(&mut self.io) {
            tls.close_notify();
            if self.flush(now, usize::MAX) == FlushOutcome::Blocked {
                return;
            }
        }
        self.output = Output::Finished;
        if let Some(socket) = self.io.socket() {
            // An error means that the peer has closed already.
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    /// Sends the final `close_notify` or alert, or QUIC's `CONNECTION_CLOSE`, before the connection is dropped.
    pub(crate) fn close(&mut self, now: Instant) {
        if let Transport::Quic(_) = self.io {
            self.close_quic(now);
            return;
        }
        let handshake_done = !self.io.is_handshaking();
        if self.output != Output::Finished
            && let Some((tls, _)) = tls_of(&mut self.io)
        {
            // A pending alert tells the client why its handshake failed.
            if handshake_done {
                tls.close_notify();
            }
            self.flush(now, usize::MAX);
        }
        if self.proto.interest().abort && handshake_done {
            // A FIN would look like the valid end of a body that is delimited by close.
            self.reset_socket();
        }
    }

    /// Makes the socket send a reset when it is dropped.
    pub(crate) fn reset_socket(&self) {
        if let Some(socket) = self.io.socket() {
            // An error means that there is no connection any more.
            let _ = socket.set_linger(Some(Duration::ZERO));
        }
    }
}

pub(crate) fn tls_of(io: &mut Transport) -> Option<(&mut Session, &Socket)> {
    let stream = io.stream_mut()?;
    Some((stream.tls.as_deref_mut()?, &stream.socket))
}
