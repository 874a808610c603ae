//! Failed handshakes of TLS: counted, and in the log of a server if its operator, or that of the client, can mend the cause.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use towline_proto::Side;

use crate::conn::Conn;
use crate::serve::refusals::Reason;
use crate::tls::{NO_CLIENT_CERTIFICATE, Session, lacks_client_certificate, take_refused};

impl<S> Conn<S> {
    #[cold]
    pub(super) fn count_handshake_failure(&self) {
        if let (Some(meter), true) = (&self.count.service.meter, self.io.is_handshaking()) {
            meter.tls_handshake_failures.fetch_add(1, Relaxed);
        }
    }

    #[cold]
    pub(super) fn handshake_failed(&mut self, error: &io::Error, now: Instant) {
        self.count_handshake_failure();
        if self.proto.side() == Side::Client {
            return;
        }
        if self.io.tls().is_some_and(Session::got_plain_http) {
            if let Some(stream) = self.io.stream_mut() {
                stream.answer_plain_http();
            }
            let what = "HTTP without TLS, sent to an address with TLS";
            return self.log_handshake(Reason::PlainHttp, what, now);
        }
        self.log_refused_certificate(lacks_client_certificate(error), now);
    }

    /// Logs the certificate that the handshake has refused, or that `is_absent`.
    pub(super) fn log_refused_certificate(&self, is_absent: bool, now: Instant) {
        let refused = take_refused();
        let what = refused
            .as_deref()
            .or(is_absent.then_some(NO_CLIENT_CERTIFICATE));
        if let Some(what) = what {
            self.log_handshake(Reason::ClientCertificate, what, now);
        }
    }

    fn log_handshake(&self, reason: Reason, what: &str, now: Instant) {
        if let Some(refusals) = &self.count.service.refusals {
            let client = self.remote_addr().inet().map(|address| address.ip());
            refusals.on_connection(reason, what, client, now);
        }
    }
}
