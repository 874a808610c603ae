//! Addresses of the two ends of a connection.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use socket2::SockAddr;

use crate::serve::forwarded::PeerIp;

/// Address of one end of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum PeerAddr {
    /// Unknown: an unnamed Unix socket, or a PROXY header without an address.
    #[default]
    None,
    /// IPv4-mapped addresses of a dual-stack listener are converted to IPv4.
    Inet(SocketAddr),
    Unix(Box<Path>),
}

impl PeerAddr {
    pub(crate) fn from_sock_addr(addr: &SockAddr) -> Self {
        if let Some(inet) = addr.as_socket() {
            return Self::Inet(canonical(inet));
        }
        addr.as_pathname()
            .map_or(Self::None, |path| Self::Unix(path.into()))
    }

    pub(crate) fn from_inet(addr: SocketAddr) -> Self {
        Self::Inet(canonical(addr))
    }

    /// The IP address and port, if it has one.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(addr) => Some(*addr),
            _ => None,
        }
    }
}

impl From<&PeerAddr> for PeerIp {
    fn from(address: &PeerAddr) -> Self {
        address
            .inet()
            .map_or(Self::Unix, |address| Self::Ip(address.ip()))
    }
}

impl fmt::Display for PeerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Inet(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Converts `::ffff:192.0.2.1` to 192.0.2.1, as logs and allow lists have it.
fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V4(_) => addr,
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => addr,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_become_ipv4() {
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:80".parse().unwrap();
        assert_eq!(canonical(mapped).to_string(), "192.0.2.1:80");
        let plain: SocketAddr = "[2001:db8::1]:80".parse().unwrap();
        assert_eq!(canonical(plain), plain);
    }
}
