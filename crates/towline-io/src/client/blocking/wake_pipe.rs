//! What rings at a thread that sleeps on descriptors.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

pub(super) struct Bell {
    ear: UnixStream,
    tone: UnixStream,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let (ear, tone) = UnixStream::pair()?;
        ear.set_nonblocking(true)?;
        tone.set_nonblocking(true)?;
        Ok(Self { ear, tone })
    }

    pub(super) fn ring(&self) {
        // Full: it is ringing already.
        let _ = (&self.tone).write(&[0]);
    }

    /// It has been heard.
    pub(super) fn hush(&self) {
        let _ = (&self.ear).read(&mut [0; 64]);
    }

    /// Readable from a ring until `hush`.
    pub(super) fn fd(&self) -> RawFd {
        self.ear.as_raw_fd()
    }

    /// All that it holds open.
    pub(super) fn fds(&self) -> [RawFd; 2] {
        [self.ear.as_raw_fd(), self.tone.as_raw_fd()]
    }
}
