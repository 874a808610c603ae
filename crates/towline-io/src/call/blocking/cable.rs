//! One connection as the pool holds it: shared, so that a protocol with several exchanges at once can
//! hand it to several threads.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::line::Line;
use crate::addr::PeerAddr;
use crate::call::dial::DialTimings;
use crate::tls::TlsInfo;

/// What stays true of a connection for as long as it lives, and after.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    pub remote: PeerAddr,
    pub local: PeerAddr,
    pub tls: Option<TlsInfo>,
    pub timings: DialTimings,
}

/// The name of a connection in the pool.
#[derive(Clone)]
pub(super) struct Cable {
    pub(super) fd: RawFd,
    pub(super) facts: Arc<ConnectionFacts>,
    line: Arc<Mutex<Line>>,
}

impl Cable {
    pub(super) fn new(line: Line, timings: DialTimings) -> Self {
        let facts = ConnectionFacts {
            remote: line.peer.remote_addr().clone(),
            local: line.peer.local_addr().clone(),
            tls: line.peer.tls(),
            timings,
        };
        Self {
            fd: line.fd(),
            facts: Arc::new(facts),
            line: Arc::new(Mutex::new(line)),
        }
    }

    pub(super) fn open(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
