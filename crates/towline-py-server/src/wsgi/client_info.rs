//! Addresses, scheme and TLS of a request: those of its connection, or as forwarded by trusted proxies.
use std::net::SocketAddr;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use towline_io::{Conn, ConnConfig, PeerAddr, TlsInfo};
use towline_proto::OwnedHead;

use super::request::ConnState;
use crate::pem::pem;

pub struct ClientInfo {
    pub remote: Option<SocketAddr>,
    pub local: Option<SocketAddr>,
    pub is_https: bool,
    pub tls: Option<Box<TlsInfo>>,
    pub offers_upgrade: bool,
}

impl ClientInfo {
    pub fn of(conn: &Conn<ConnState>, head: &OwnedHead) -> Self {
        let mut client_info = Self {
            remote: conn.remote_addr().inet(),
            local: conn.local_addr().inet(),
            is_https: conn.is_tls(),
            tls: conn.tls().map(Box::new),
            offers_upgrade: conn.proto.offers_upgrade(),
        };
        if conn.service().trusted.is_some() && conn.has_proven_address() {
            client_info.apply_forwarded(conn.service(), conn.remote_addr(), head);
        }
        client_info
    }

    fn apply_forwarded(&mut self, config: &ConnConfig, remote: &PeerAddr, head: &OwnedHead) {
        let fields = head.view().fields();
        let forwarded = config.origin(remote.into(), fields);
        if let Some((ip, port)) = forwarded.client {
            self.remote = Some(SocketAddr::new(ip, port));
        }
        self.is_https = forwarded.is_https(self.is_https);
    }

    /// Sets `HTTPS` and `SSL_*`, named as by Apache's `mod_ssl`, for applications that check the client's
    /// certificate.
    pub fn put_tls(&self, environ: &Bound<'_, PyDict>) -> PyResult<()> {
        if self.is_https {
            environ.set_item("HTTPS", "on")?;
        }
        let Some(tls) = &self.tls else { return Ok(()) };
        environ.set_item(
            "SSL_PROTOCOL",
            if tls.version == 0x0304 {
                "TLSv1.3"
            } else {
                "TLSv1.2"
            },
        )?;
        if let Some(name) = &tls.server_name {
            environ.set_item("SSL_TLS_SNI", name)?;
        }
        let Some((leaf, chain)) = tls.peer_certs.split_first() else {
            return environ.set_item("SSL_CLIENT_VERIFY", "NONE");
        };
        environ.set_item("SSL_CLIENT_VERIFY", "SUCCESS")?;
        environ.set_item("SSL_CLIENT_S_DN", tls.peer_subject())?;
        environ.set_item("SSL_CLIENT_CERT", pem(leaf.as_ref()))?;
        for (index, certificate) in chain.iter().enumerate() {
            environ.set_item(
                format!("SSL_CLIENT_CERT_CHAIN_{index}"),
                pem(certificate.as_ref()),
            )?;
        }
        Ok(())
    }
}
