//! A checked-out connection on a thread of its own: waiting for the one socket with `poll(2)`.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use towline_proto::BufferPool;

use crate::conn::flush::FlushOutcome;
use crate::conn::{Output, Peer};

/// How a wait on one connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Something was read, or everything is sent: look at the connection.
    Done,
    /// The time that the caller gave is over.
    TimedOut,
    /// The connection has ended; its events say how.
    Closed,
}

/// What ended one sleep.
enum Sleep {
    Ready,
    /// One of the connection's own timeouts, which it has been told of.
    Deadline,
    Until,
}

impl<S> Peer<S> {
    /// Reads from the socket into the wire core, waiting for it until `until` (`None`: as long as the
    /// connection's own timeouts allow). Drain `next_event` afterwards, whatever the result.
    pub fn fill(
        &mut self,
        buffers: &mut BufferPool,
        until: Option<Instant>,
    ) -> io::Result<WaitOutcome> {
        loop {
            let now = Instant::now();
            // An answer may be queued that the peer waits for before it goes on: `100 Continue`.
            self.flush(now, usize::MAX);
            if self.is_over() {
                return Ok(WaitOutcome::Closed);
            }
            self.input.readable = true;
            let has_room = !self.conn.recv_space(buffers).is_empty();
            if !has_room || self.receive(buffers, now) {
                return Ok(WaitOutcome::Done);
            }
            match self.sleep(libc::POLLIN, until)? {
                Sleep::Ready => {}
                Sleep::Deadline => return Ok(WaitOutcome::Done),
                Sleep::Until => return Ok(WaitOutcome::TimedOut),
            }
        }
    }

    /// Sends everything that waits, for as long as `until` and the connection's own timeouts allow.
    pub fn flush_blocking(&mut self, until: Option<Instant>) -> io::Result<WaitOutcome> {
        loop {
            let flushed = self.flush(Instant::now(), usize::MAX);
            if self.is_over() {
                return Ok(WaitOutcome::Closed);
            }
            if flushed != FlushOutcome::Blocked {
                return Ok(WaitOutcome::Done);
            }
            if matches!(self.sleep(0, until)?, Sleep::Until) {
                return Ok(WaitOutcome::TimedOut);
            }
        }
    }

    /// Nothing can be read or sent any more.
    fn is_over(&self) -> bool {
        self.conn.interest().closed || (self.input.over && self.conn.error().is_some())
    }

    /// Sleeps until one of `wanted` is possible, or writing when that is blocked.
    fn sleep(&mut self, wanted: libc::c_short, until: Option<Instant>) -> io::Result<Sleep> {
        let blocked = self.output == Output::Blocked;
        let events = if blocked {
            wanted | libc::POLLOUT
        } else {
            wanted
        };
        loop {
            let now = Instant::now();
            let deadline = self.conn.deadline();
            if until.is_some_and(|until| until <= now) {
                return Ok(Sleep::Until);
            }
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.conn.handle_timeout(now);
                return Ok(Sleep::Deadline);
            }
            let next = [until, deadline].into_iter().flatten().min();
            if poll_one(self.as_raw_fd(), events, next.map(|next| next - now))? {
                self.output = match self.output {
                    Output::Blocked => Output::Open,
                    other => other,
                };
                return Ok(Sleep::Ready);
            }
        }
    }
}

/// Whether one of `events` (or an error) came before the time was over.
fn poll_one(fd: RawFd, events: libc::c_short, timeout: Option<Duration>) -> io::Result<bool> {
    // Rounded up: waking a little too early would spin through the last millisecond.
    let millis = timeout.map_or(-1, |timeout| {
        libc::c_int::try_from(timeout.as_millis() + 1).unwrap_or(libc::c_int::MAX)
    });
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    // SAFETY: one whole pollfd that outlives the call.
    match unsafe { libc::poll(&raw mut entry, 1, millis) } {
        0 => Ok(false),
        n if n > 0 => Ok(true),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}
