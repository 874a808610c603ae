//! A pipe that wakes a thread sleeping in poll(2).

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

pub(super) struct WakePipe {
    reader: UnixStream,
    writer: UnixStream,
}

impl WakePipe {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        Ok(Self { reader, writer })
    }

    pub(super) fn notify(&self) {
        // Full: the thread is being woken already.
        let _ = (&self.writer).write(&[0]);
    }

    /// Reads the pending wake-ups.
    pub(super) fn clear(&self) {
        let _ = (&self.reader).read(&mut [0; 64]);
    }

    /// Readable from `notify` until `clear`.
    pub(super) fn fd(&self) -> RawFd {
        self.reader.as_raw_fd()
    }
}
