//! Facts about a connection that do not change during its life.

use crate::client::dial::DialTimings;
use crate::conn::Conn;
use crate::conn::addr::PeerAddr;
use crate::tls::TlsInfo;

/// Addresses, TLS and dial timings of a connection, shared by its calls.
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
