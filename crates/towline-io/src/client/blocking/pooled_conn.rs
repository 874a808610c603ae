//! A connection as the pool stores it and calls use it.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::h1_conn::H1Conn;
use super::h2_conn::H2Conn;
use crate::client::connection_info::ConnectionInfo;
use crate::client::dial::DialTimings;
use crate::client::pool::SlotId;
use crate::conn::Conn;

/// A pooled connection: one HTTP/1 call at a time, or a shared HTTP/2 connection.
#[derive(Clone)]
pub(super) struct PooledConn {
    pub(super) fd: RawFd,
    pub(super) info: Arc<ConnectionInfo>,
    pub(super) kind: ConnKind,
}

#[derive(Clone)]
pub(super) enum ConnKind {
    /// HTTP/1: one call at a time.
    H1(Arc<Mutex<H1Conn>>),
    /// HTTP/2: many.
    H2(Arc<H2Conn>),
}

impl PooledConn {
    /// `slot`: its slot in the pool.
    pub(super) fn new(
        peer: Conn<()>,
        slot: SlotId,
        timings: DialTimings,
        generation: u64,
        now: Instant,
    ) -> io::Result<Self> {
        Ok(Self {
            fd: peer.as_raw_fd(),
            info: Arc::new(ConnectionInfo::of(&peer, timings)),
            kind: if peer.is_shared() {
                ConnKind::H2(Arc::new(H2Conn::new(peer, slot, generation, now)?))
            } else {
                let conn = H1Conn::new(peer, generation, now)?;
                ConnKind::H1(Arc::new(Mutex::new(conn)))
            },
        })
    }

    /// Calls that it carries at once, as far as known.
    pub(super) fn capacity(&self) -> u32 {
        match &self.kind {
            ConnKind::H1(_) => 1,
            ConnKind::H2(h2) => h2.limit(),
        }
    }

    /// All descriptors that it holds open.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> {
        let more = match &self.kind {
            ConnKind::H1(_) => None,
            ConnKind::H2(h2) => Some(h2.wake_pipe_fds()),
        };
        std::iter::once(self.fd).chain(more.into_iter().flatten())
    }
}

pub(super) fn open(conn: &Mutex<H1Conn>) -> MutexGuard<'_, H1Conn> {
    conn.lock().unwrap_or_else(PoisonError::into_inner)
}
