//! Blocking reads and writes of a checked-out connection, by `poll(2)` on its socket.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use towline_proto::BufferPool;

use crate::conn::flush::FlushOutcome;
use crate::conn::{Conn, Output};

/// Outcome of a wait on one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Bytes were read, or everything has been sent: check the connection's events.
    Done,
    /// The caller's time is over.
    TimedOut,
    /// The connection has ended; its events have the reason.
    Closed,
}

/// Reason for which one `poll` returned.
enum PollOutcome {
    Ready,
    /// A timeout of the protocol has passed and has been handled.
    ProtocolTimeout,
    /// The caller's time is over.
    CallerTimeout,
}

impl<S> Conn<S> {
    /// Reads from the socket, waiting until `until` (`None`: as long as the timeouts of the protocol allow).
    /// Handle all events of `next_event` afterwards, whatever the result.
    pub fn read_blocking(
        &mut self,
        buffers: &mut BufferPool,
        until: Option<Instant>,
    ) -> io::Result<WaitOutcome> {
        loop {
            let now = Instant::now();
            // The peer may wait for queued output before it continues: `100 Continue`.
            self.flush(now, usize::MAX);
            if self.is_over() {
                return Ok(WaitOutcome::Closed);
            }
            self.input.readable = true;
            let has_room = !self.proto.recv_space(buffers).is_empty();
            if !has_room || self.receive(buffers, now) {
                return Ok(WaitOutcome::Done);
            }
            match self.sleep(libc::POLLIN, until)? {
                PollOutcome::Ready => {}
                PollOutcome::ProtocolTimeout => return Ok(WaitOutcome::Done),
                PollOutcome::CallerTimeout => return Ok(WaitOutcome::TimedOut),
            }
        }
    }

    /// Sends all pending output, for as long as `until` and the timeouts of the protocol allow.
    pub fn flush_blocking(&mut self, until: Option<Instant>) -> io::Result<WaitOutcome> {
        loop {
            let flushed = self.flush(Instant::now(), usize::MAX);
            if self.is_over() {
                return Ok(WaitOutcome::Closed);
            }
            if flushed != FlushOutcome::Blocked {
                return Ok(WaitOutcome::Done);
            }
            if matches!(self.sleep(0, until)?, PollOutcome::CallerTimeout) {
                return Ok(WaitOutcome::TimedOut);
            }
        }
    }

    /// Whether nothing can be read or sent any more.
    fn is_over(&self) -> bool {
        self.proto.interest().closed || (self.input.over && self.proto.error().is_some())
    }

    /// Waits for one of the events `wanted`, and for room to write when the output is blocked.
    fn sleep(&mut self, wanted: libc::c_short, until: Option<Instant>) -> io::Result<PollOutcome> {
        let blocked = self.output == Output::Blocked;
        let events = if blocked {
            wanted | libc::POLLOUT
        } else {
            wanted
        };
        loop {
            let now = Instant::now();
            let deadline = self.proto.deadline();
            if until.is_some_and(|until| until <= now) {
                return Ok(PollOutcome::CallerTimeout);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                // The timer runs only while we wait for the peer, and this thread may have done other things.
                if poll_one(self.as_raw_fd(), events, Some(Duration::ZERO))? {
                    return Ok(self.on_ready());
                }
                self.proto.handle_timeout(now);
                return Ok(PollOutcome::ProtocolTimeout);
            }
            let next = [until, deadline].into_iter().flatten().min();
            if poll_one(self.as_raw_fd(), events, next.map(|next| next - now))? {
                return Ok(self.on_ready());
            }
        }
    }

    fn on_ready(&mut self) -> PollOutcome {
        if self.output == Output::Blocked {
            self.output = Output::Open;
        }
        PollOutcome::Ready
    }
}

/// Waits for one of `events` or an error; returns false when the time is over.
fn poll_one(fd: RawFd, events: libc::c_short, timeout: Option<Duration>) -> io::Result<bool> {
    // Rounded up: waking too early would spin through the last millisecond.
    let millis = timeout.map_or(-1, |timeout| {
        libc::c_int::try_from(timeout.as_millis() + 1).unwrap_or(libc::c_int::MAX)
    });
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: an initialized pollfd that outlives the call.
    match unsafe { libc::poll(&raw mut entry, 1, millis) } {
        0 => Ok(false),
        n if n > 0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}
