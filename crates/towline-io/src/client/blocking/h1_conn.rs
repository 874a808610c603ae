//! An HTTP/1 connection and its socket, for a thread that may block on it. The socket is in blocking mode, so
//! that one system call both waits for a response and reads it; reads that must not wait use `MSG_DONTWAIT`.
//! `SO_RCVTIMEO` bounds a read and is set only when it changes.

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::Socket;
use towline_proto::BufferPool;

use crate::client::adaptive_spin::{AdaptiveSpin, SPIN_TIME};
use crate::client::connection_info::ConnectionInfo;
use crate::client::connection_log::CloseRecord;
use crate::client::fork;
use crate::conn::flush::FlushOutcome;
use crate::conn::{Conn, failure_rule};
use crate::tls::RecvOutcome;

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecvProgress {
    /// Bytes, the end of input or a failure: take the events.
    Received,
    /// Nothing arrived in time, or a signal interrupted the wait.
    Nothing,
    /// The receive buffer is full: the program has to read first.
    Full,
}

/// A connection that one thread uses at a time.
pub(super) struct H1Conn {
    pub(super) peer: ManuallyDrop<Conn<()>>,
    /// The value of `SO_RCVTIMEO`; `None` before it is set.
    recv_timeout: Option<Duration>,
    send_failed: bool,
    spin: AdaptiveSpin,
    /// Bytes of HTTP received for the current exchange.
    pub(super) received: u64,
    /// The latest time that this thread has read from the clock.
    pub(super) now: Instant,
    /// The process that opened it.
    generation: u64,
    _close_record: CloseRecord,
}

impl H1Conn {
    pub(super) fn new(
        peer: Conn<()>,
        info: &Arc<ConnectionInfo>,
        generation: u64,
        now: Instant,
    ) -> io::Result<Self> {
        socket(&peer)?.set_nonblocking(false)?;
        Ok(Self {
            peer: ManuallyDrop::new(peer),
            recv_timeout: None,
            send_failed: false,
            spin: AdaptiveSpin::default(),
            received: 0,
            now,
            generation,
            _close_record: CloseRecord::new(info),
        })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.peer.as_raw_fd()
    }

    /// Whether an idle connection can carry another request: neither its end nor a byte has arrived. TLS
    /// records without application data (session tickets) are processed. Checked for every request, however
    /// short the idle time: it costs 0.14 microseconds, a POST cannot be retried, and a stray response must
    /// not be taken for this call's.
    pub(super) fn is_quiet(&mut self, buffers: &mut BufferPool, now: Instant) -> bool {
        self.now = now;
        self.recv(buffers, libc::MSG_DONTWAIT) == RecvProgress::Nothing
            && self.peer.proto.is_reusable()
    }

    /// Sends as much as the kernel accepts. Whether bytes are left.
    pub(super) fn flush(&mut self) -> bool {
        if self.send_failed {
            return false;
        }
        // `sendfile` has no flag for not waiting.
        let with_file = self.peer.is_sending_files();
        if with_file {
            self.set_nonblocking(true);
        }
        let flushed = self.peer.try_flush(self.now, usize::MAX);
        if with_file {
            self.set_nonblocking(false);
        }
        self.send_failed = flushed.is_err();
        matches!(flushed, Ok(FlushOutcome::Blocked))
    }

    fn set_nonblocking(&self, on: bool) {
        // The call succeeded when the connection was made, so it does not fail now.
        let _ = socket(&self.peer).and_then(|socket| socket.set_nonblocking(on));
    }

    /// The kernel refused output. A response that the server sent before may still be readable.
    pub(super) fn has_send_failed(&self) -> bool {
        self.send_failed
    }

    /// Reads without waiting.
    pub(super) fn recv_at_once(&mut self, buffers: &mut BufferPool) -> RecvProgress {
        self.recv(buffers, libc::MSG_DONTWAIT)
    }

    /// Polls for input for a moment if that has succeeded lately.
    pub(super) fn recv_spinning(&mut self, buffers: &mut BufferPool) -> RecvProgress {
        if !self.spin.should_spin() {
            return RecvProgress::Nothing;
        }
        let started = Instant::now();
        loop {
            let got = self.recv(buffers, libc::MSG_DONTWAIT);
            if got != RecvProgress::Nothing {
                self.spin.on_hit();
                return got;
            }
            if started.elapsed() > SPIN_TIME {
                self.spin.on_miss();
                return got;
            }
            std::hint::spin_loop();
        }
    }

    /// Reads, waiting for `most` at most.
    pub(super) fn recv_within(&mut self, buffers: &mut BufferPool, most: Duration) -> RecvProgress {
        // Zero would wait for ever.
        let most = most.max(Duration::from_millis(1));
        if self.recv_timeout != Some(most)
            && socket(&self.peer)
                .and_then(|socket| socket.set_read_timeout(Some(most)))
                .is_ok()
        {
            self.recv_timeout = Some(most);
        }
        self.recv(buffers, 0)
    }

    fn recv(&mut self, buffers: &mut BufferPool, flags: libc::c_int) -> RecvProgress {
        let peer = &mut *self.peer;
        let space = peer.proto.recv_space(buffers);
        if space.is_empty() {
            return RecvProgress::Full;
        }
        let result = match peer.io.stream_mut() {
            Some(stream) => stream.recv_once(space, flags),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        if !matches!(result, Ok(RecvOutcome::WouldBlock)) {
            self.now = Instant::now();
        }
        match result {
            Ok(RecvOutcome::Data { bytes, .. }) => {
                self.received += bytes as u64;
                self.peer.proto.received(self.now, bytes);
            }
            Ok(RecvOutcome::WouldBlock) => return RecvProgress::Nothing,
            Ok(RecvOutcome::Eof) => {
                self.peer.input.over = true;
                self.peer.proto.received_eof(self.now);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return RecvProgress::Nothing;
            }
            Err(error) => self.peer.on_failure(self.now, failure_rule(&error)),
        }
        RecvProgress::Received
    }

    /// Sleeps until the socket is writable, or readable if there is buffer space, for `most` at most.
    pub(super) fn poll(&self, most: Duration) -> io::Result<()> {
        let reads = self.peer.proto.interest().read;
        let events = libc::POLLOUT | if reads { libc::POLLIN } else { 0 };
        let mut entry = libc::pollfd {
            fd: self.fd(),
            events,
            revents: 0,
        };
        poll(std::slice::from_mut(&mut entry), most).map(drop)
    }
}

impl Drop for H1Conn {
    fn drop(&mut self) {
        // In a forked child the socket is the parent's: nothing is sent on it, and
        // `SharedPool::close_after_fork` closes it.
        if self.generation == fork::generation() {
            self.peer.close(Instant::now());
            // SAFETY: the field is not used again.
            unsafe { ManuallyDrop::drop(&mut self.peer) };
        }
    }
}

/// The stream socket of an HTTP/1 connection.
fn socket(peer: &Conn<()>) -> io::Result<&Socket> {
    peer.io.socket().ok_or(io::ErrorKind::Unsupported.into())
}

thread_local! {
    static BUFFERS: RefCell<BufferPool> = RefCell::new(BufferPool::new(BUFFER_BYTES, 2));
}

const BUFFER_BYTES: usize = 64 * 1024;

/// Runs `act` with the receive buffers of this thread.
pub(super) fn with_buffers<T>(act: impl FnOnce(&mut BufferPool) -> T) -> T {
    let mut act = Some(act);
    let done = BUFFERS.try_with(|buffers| {
        let mut buffers = buffers.try_borrow_mut().ok()?;
        act.take().map(|act| act(&mut buffers))
    });
    match (done, act) {
        (Ok(Some(value)), _) => value,
        // The thread-local storage no longer exists while the thread ends.
        (_, Some(act)) => act(&mut BufferPool::new(BUFFER_BYTES, 0)),
        (_, None) => unreachable!("what was taken has been called"),
    }
}

/// `poll(2)`; a signal ends it like a timeout.
pub(super) fn poll(entries: &mut [libc::pollfd], most: Duration) -> io::Result<usize> {
    // Rounded up: waking too early would spin through the last millisecond.
    let millis = most.as_micros().div_ceil(1000);
    let millis = libc::c_int::try_from(millis).unwrap_or(libc::c_int::MAX);
    // SAFETY: valid pollfds that outlive the call, as many as stated.
    let count = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, millis) };
    usize::try_from(count).or_else(|_| match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        error => Err(error),
    })
}
