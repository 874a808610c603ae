//! Progress of a dial after each step: the event that it waits for, or its result.

use std::os::fd::RawFd;

use super::error::DialError;
use crate::conn::established::Established;

/// Readiness that a dial waits for. `serial` distinguishes two sockets of one dial with the same descriptor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    pub fd: RawFd,
    pub serial: u32,
    pub readable: bool,
    pub writable: bool,
}

pub enum Progress {
    /// Wait for `fds` and `deadline`, then advance again.
    Pending,
    Done(Box<Established>),
    Failed(DialError),
}
