//! A connection as the pool stores it and calls use it.

use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::h1_conn::H1Conn;
use super::h2_driver::H2Conn;
use crate::client::connection_info::ConnectionInfo;
use crate::client::dial::DialTimings;
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
    pub(super) fn h1(
        peer: Conn<()>,
        timings: DialTimings,
        generation: u64,
        now: Instant,
    ) -> io::Result<Self> {
        let info = Arc::new(ConnectionInfo::of(&peer, timings));
        Ok(Self {
            fd: peer.as_raw_fd(),
            kind: ConnKind::H1(Arc::new(Mutex::new(H1Conn::new(
                peer, &info, generation, now,
            )?))),
            info,
        })
    }

    pub(super) fn h2(conn: H2Conn) -> io::Result<Self> {
        let (fd, info) = conn.describe().ok_or(io::ErrorKind::NotConnected)?;
        Ok(Self {
            fd,
            info,
            kind: ConnKind::H2(Arc::new(conn)),
        })
    }

    /// Calls that it carries at once; `None`: its server has not announced that.
    pub(super) fn capacity(&self) -> Option<u32> {
        match &self.kind {
            ConnKind::H1(_) => Some(1),
            ConnKind::H2(h2) => h2.limit(),
        }
    }

    pub(super) fn h2_conn(&self) -> Option<Arc<H2Conn>> {
        match &self.kind {
            ConnKind::H1(_) => None,
            ConnKind::H2(h2) => Some(Arc::clone(h2)),
        }
    }
}

pub(super) fn open(conn: &Mutex<H1Conn>) -> MutexGuard<'_, H1Conn> {
    conn.lock().unwrap_or_else(PoisonError::into_inner)
}
