//! HTTP/2 connections that another pool has dialled and assigns calls to: those of the blocking client. The pool of
//! the driver only counts their calls; it neither dials nor queues.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::{CallId, ClientDriver, ClientDriverConfig, ConnState};
use crate::client::connection_info::ConnectionInfo;
use crate::client::connection_log::CloseRecord;
use crate::client::dial::Established;
use crate::client::pool::{Lease, PoolLimits};
use crate::client::request::{CallError, CallOptions, OutgoingRequest};
use crate::client::retry_policy::RetryContext;
use crate::client::route::Route;
use crate::conn::id::ConnId;

/// Limits of a driver whose connections another pool has dialled: the other pool has the limits.
const NO_LIMITS: PoolLimits = PoolLimits {
    max_connections: usize::MAX,
    max_connections_per_host: usize::MAX,
    max_keepalive: usize::MAX,
    keepalive_expiry: None,
    max_connection_age: None,
    max_queue: Some(0),
};

impl ClientDriver {
    /// Creates a driver of connections that another pool has dialled.
    pub(in crate::client) fn for_external_pool(config: ClientDriverConfig) -> io::Result<Self> {
        let mut driver = Self::new(ClientDriverConfig {
            pool: NO_LIMITS,
            ..config
        })?;
        driver.has_external_pool = true;
        Ok(driver)
    }

    /// Adds an HTTP/2 connection.
    pub(in crate::client) fn insert_h2(
        &mut self,
        route: &Arc<Route>,
        established: Established,
    ) -> io::Result<ConnId> {
        let timings = established.timings;
        let conn = self
            .engine
            .add_established(established, &self.conn_config)?;
        let capacity = self.send_preface(conn);
        let now = self.engine.now();
        let slot = self.pool.insert(route, conn, capacity, now);
        if let Some(peer) = self.engine.conn(conn) {
            let h2 = std::mem::take(&mut peer.state.h2);
            let info = Arc::new(ConnectionInfo::of(peer, timings));
            peer.state = ConnState {
                h2,
                slot: Some(slot),
                _close_record: Some(CloseRecord::new(&info)),
                info: Some(info),
                ..ConnState::default()
            };
        }
        Ok(conn)
    }

    /// Sends GOAWAY on a connection without calls and closes it.
    pub(in crate::client) fn discard(&mut self, conn: ConnId) {
        if let Some(slot) = self.engine.conn(conn).and_then(|peer| peer.state.slot) {
            self.pool.remove(slot);
        }
        self.close_conn(conn);
    }

    /// Returns the number of calls that a connection carries at once. 0: it takes no more; `None`: its server has not
    /// announced it.
    pub(in crate::client) fn stream_limit(&mut self, conn: ConnId) -> Option<u32> {
        let Some(peer) = self.engine.conn(conn) else {
            return Some(0);
        };
        match peer.state.slot {
            Some(slot) if !self.pool.is_retired(slot) => {
                let limit = u32::try_from(peer.proto.stream_limit()).unwrap_or(u32::MAX);
                (limit == 0 || peer.proto.settings_received()).then_some(limit)
            }
            _ => Some(0),
        }
    }

    /// Whether a connection carries no call.
    pub(in crate::client) fn is_idle(&mut self, conn: ConnId) -> bool {
        let peer = self.engine.conn(conn);
        peer.is_none_or(|peer| peer.state.h2.is_idle())
    }

    /// Returns the descriptor of a connection and what is known about it.
    pub(in crate::client) fn describe_conn(
        &mut self,
        conn: ConnId,
    ) -> Option<(RawFd, Arc<ConnectionInfo>)> {
        let peer = self.engine.conn(conn)?;
        Some((peer.as_raw_fd(), peer.state.info.clone()?))
    }

    /// Returns the right to begin a call on a connection. `None`: it takes no more calls now.
    pub(in crate::client) fn lease(&mut self, conn: ConnId) -> Option<Lease<ConnId>> {
        let peer = self.engine.conn(conn)?;
        if peer.proto.stream_capacity() == 0 {
            return None;
        }
        self.pool.lease_on(peer.state.slot?)
    }

    /// Starts a call on a leased connection and writes its request.
    pub(in crate::client) fn begin_on(
        &mut self,
        lease: &Lease<ConnId>,
        request: OutgoingRequest,
        options: CallOptions,
    ) -> Result<CallId, Box<CallError>> {
        let now = self.now();
        let id = self.add_call(request, options, None, now);
        let started = self.start(id, lease, now);
        self.run_pool_actions();
        started.map(|()| id).map_err(|error| {
            self.calls.try_remove(id.index as usize);
            Box::new(error)
        })
    }

    /// Whether the body of the request waits for 100 (Continue).
    pub(in crate::client) fn awaits_continue(&self, id: CallId) -> bool {
        self.call(id)
            .is_some_and(|call| call.continue_deadline.is_some())
    }

    /// Whether the response is here to its end, in at most `max` bytes.
    pub(in crate::client) fn is_received(&mut self, id: CallId, max: usize) -> bool {
        let Some(handle) = self.call(id).and_then(super::Call::handle) else {
            return true;
        };
        let peer = self.engine.conn(handle.conn);
        let body = peer.and_then(|peer| peer.proto.stream(handle.stream).ok());
        body.is_some_and(|body| body.end_received() && body.buffered() <= max)
    }

    /// Returns the request of a failed call, for another connection, and what decides about that. `None`: it would
    /// fail again.
    pub(in crate::client) fn take_failed_request(
        &mut self,
        id: CallId,
    ) -> Option<(OutgoingRequest, RetryContext)> {
        let call = self.call_mut(id)?;
        let retry_context = call.retry_context?;
        let empty = OutgoingRequest::empty(&call.request.route);
        Some((std::mem::replace(&mut call.request, empty), retry_context))
    }

    /// Whether the server of a connection has announced its limits, or the connection has failed.
    pub(in crate::client) fn knows_limits(&mut self, conn: ConnId) -> bool {
        let peer = self.engine.conn(conn);
        peer.is_none_or(|peer| peer.proto.extended_connect().is_some())
    }

    pub(in crate::client) fn has_limit_changes(&self) -> bool {
        !self.limit_changes.is_empty()
    }

    /// Returns the connections whose `stream_limit` may have changed.
    pub(in crate::client) fn take_limit_changes(&mut self) -> Vec<ConnId> {
        std::mem::take(&mut self.limit_changes)
    }
}
