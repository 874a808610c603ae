//! Information about a connection that does not change during its life and outlives it.

use crate::client::dial::DialTimings;
use crate::conn::Conn;
use crate::conn::addr::PeerAddr;
use crate::tls::TlsInfo;

/// Shared by the calls that the connection carries.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    pub remote: PeerAddr,
    pub local: PeerAddr,
    pub tls: Option<TlsInfo>,
    pub timings: DialTimings,
}

impl ConnectionInfo {
    pub(super) fn of<S>(peer: &Conn<S>, timings: DialTimings) -> Self {
        Self {
            remote: peer.remote_addr().clone(),
            local: peer.local_addr().clone(),
            tls: peer.tls(),
            timings,
        }
    }
}
