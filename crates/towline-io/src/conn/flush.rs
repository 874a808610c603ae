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
const SLICES: usize = 64;

const FEW_SLICES: usize = 4;

/// Result of one write: bytes offered to the kernel, bytes accepted, and whether all output was offered.
struct WriteOutcome {
    offered: usize,
    sent: usize,
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
        self.try_flush(now, budget).unwrap_or_else(|error| {
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

    /// Like `flush`, but returns a failure to the caller.
    pub(crate) fn try_flush(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        match self.output {
            Output::Broken => return Ok(FlushOutcome::All),
            Output::Finished if self.io.tls().is_none() => return Ok(FlushOutcome::All),
            _ => {}
        }
        let repeated = match self.repeat {
            Some(_) => self.flush_repeated(now),
            None => Ok(FlushOutcome::All),
        };
        let flushed = match &self.io {
            _ if !matches!(repeated, Ok(FlushOutcome::All)) => repeated,
            Transport::Stream(stream) if stream.tls.is_none() => self.flush_plain(now, budget),
            Transport::Stream(_) => self.flush_tls(now, budget),
            Transport::Quic(_) => Ok(self.flush_quic(now, budget)),
        };
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

    fn flush_plain(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        let mut done = 0;
        loop {
            if self.send_allowance == Some(0) {
                return Ok(FlushOutcome::All);
            }
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
                if write.sent > 0 {
                    self.proto.sent(now, write.sent);
                    self.count_sent(now, write.sent);
                    self.spend_allowance(write.sent);
                }
                if write.sent < write.offered {
                    // The kernel's buffer is full, and the poll reports when it is not.
                    self.proto.sent(now, 0);
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
        if let Some(max_bytes) = self.send_allowance {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.proto.send_slices(&mut slices);
            let mut cut = [IoSlice::new(&[]); SLICES];
            let count = cut_to(&slices[..count], max_bytes, &mut cut);
            return self.write(&cut[..count], false);
        }
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

    fn write(&self, slices: &[IoSlice<'_>], offered_all: bool) -> io::Result<WriteOutcome> {
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

    /// Writes pending records, then encrypts plain bytes in portions of rustls' buffer size.
    fn flush_tls(&mut self, now: Instant, budget: usize) -> io::Result<FlushOutcome> {
        let mut done = 0;
        loop {
            let Some((tls, socket)) = tls_of(&mut self.io) else {
                return Ok(FlushOutcome::All);
            };
            if tls.wants_write() {
                match tls.flush(socket)? {
                    Some(plain) if plain > 0 => {
                        self.proto.sent(now, plain);
                        self.count_sent(now, plain);
                    }
                    Some(_) => {}
                    None => {
                        self.proto.sent(now, 0);
                        return Ok(FlushOutcome::Blocked);
                    }
                }
                continue;
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
            let mut cut = [IoSlice::new(&[]); SLICES];
            let slices = match self.send_allowance {
                Some(max_bytes) => {
                    let count = cut_to(&slices[..count], max_bytes, &mut cut);
                    &cut[..count]
                }
                None => &slices[..count],
            };
            if slices.is_empty() || !tls.accepts_plaintext() {
                return Ok(FlushOutcome::All);
            }
            let taken = tls.encrypt(slices)?;
            done += taken;
            self.spend_allowance(taken);
        }
    }

    fn spend_allowance(&mut self, bytes: usize) {
        if let Some(allowance) = &mut self.send_allowance {
            *allowance = allowance.saturating_sub(bytes as u64);
        }
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

fn tls_of(io: &mut Transport) -> Option<(&mut Session, &Socket)> {
    let stream = io.stream_mut()?;
    Some((stream.tls.as_deref_mut()?, &stream.socket))
}

/// Copies the first `max_bytes` bytes of `slices` to `cut` and returns the number of slices.
fn cut_to<'a>(slices: &'a [IoSlice<'a>], max_bytes: u64, cut: &mut [IoSlice<'a>]) -> usize {
    let mut left = usize::try_from(max_bytes).unwrap_or(usize::MAX);
    let mut count = 0;
    for (slice, out) in slices.iter().zip(cut) {
        if left == 0 {
            break;
        }
        let part = &slice[..slice.len().min(left)];
        left -= part.len();
        *out = IoSlice::new(part);
        count += 1;
    }
    count
}
