//! One connection as the pool holds it: shared, so that a protocol with several exchanges at once can
//! hand it to several threads.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::line::Line;
use crate::call::dial::DialTimings;
use crate::call::facts::ConnectionFacts;

/// The name of a connection in the pool.
#[derive(Clone)]
pub(super) struct Cable {
    pub(super) fd: RawFd,
    pub(super) facts: Arc<ConnectionFacts>,
    line: Arc<Mutex<Line>>,
}

impl Cable {
    pub(super) fn new(line: Line, timings: DialTimings) -> Self {
        Self {
            fd: line.fd(),
            facts: Arc::new(ConnectionFacts::of(&line.peer, timings)),
            line: Arc::new(Mutex::new(line)),
        }
    }

    pub(super) fn open(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
