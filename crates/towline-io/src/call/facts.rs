//! What stays true of a connection for as long as it lives, and after.

use crate::addr::PeerAddr;
use crate::call::dial::DialTimings;
use crate::peer::Peer;
use crate::tls::TlsInfo;

/// Shared by the calls that the connection carries.
#[derive(Clone, Debug)]
pub struct ConnectionFacts {
    pub remote: PeerAddr,
    pub local: PeerAddr,
    pub tls: Option<TlsInfo>,
    pub timings: DialTimings,
}

impl ConnectionFacts {
    pub(super) fn of<S>(peer: &Peer<S>, timings: DialTimings) -> Self {
        Self {
            remote: peer.remote_addr().clone(),
            local: peer.local_addr().clone(),
            tls: peer.tls(),
            timings,
        }
    }
}
