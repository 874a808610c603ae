//! All features of a server around one exchange, so that a face calls five methods and knows no more.
//!
//! ```text
//! Event::Head ─ begin ─┬─ own_answer: static file or metrics ─ OwnAnswer::send ─┐
//!                      │                                                       ├─ end
//!                      └─ application ─ respond ─ write* ─ finish ─────────────┘
//! ```
//!
//! [`Rules`] are fixed at start and shared by all threads of a worker; a [`Site`] is one thread's view
//! of them with the buffers it reuses; a [`Visit`] is what is remembered of one exchange. With nothing
//! configured each call is a branch or two.

mod body;
mod own;

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use towline_proto::{Field, HeadRef, Version};

use self::body::Body;
pub use self::body::Payload;
pub use self::own::OwnAnswer;
use super::access_log::{Entry, Format, Log, Outcome, Writer};
use super::compress::Policy;
use super::files::Mount;
use super::forwarded::{self, Hop, Kind, Origin, TrustedPeers};
use super::metrics::{self, MethodClass, SlotHandle, Slots, StatusClass};
use crate::coding::accept::Accepted;
use crate::coding::encode::EncoderPool;

/// Encoders kept between responses: the memory of two is worth the time, of more it is not.
const KEPT_ENCODERS: usize = 2;

/// The path of the metrics page.
const METRICS_PATH: &[u8] = b"/metrics";

/// What was configured.
#[derive(Default)]
pub struct Rules {
    /// Whose word on the client is taken; `None` reads no such field.
    pub trusted: Option<TrustedPeers>,
    pub mounts: Vec<Mount>,
    pub compression: Option<Policy>,
    pub access_log: Option<(Arc<Format>, Writer)>,
    pub slot: Option<SlotHandle>,
    /// `/metrics` is answered beside the application.
    pub metrics: bool,
}

impl Rules {
    /// The longest prefix wins.
    fn mount(&self, target: &[u8]) -> Option<&Mount> {
        let covering = self.mounts.iter().filter(|mount| mount.covers(target));
        covering.max_by_key(|mount| mount.prefix().len())
    }

    /// The access log was rotated: its file is opened anew before the next line.
    pub fn reopen_logs(&self) {
        if let Some((_, writer)) = &self.access_log {
            writer.reopen();
        }
    }

    /// Without a supervisor's board there is this process alone to report, and nothing was counted.
    fn slots(&self) -> Slots {
        self.slot
            .as_ref()
            .map_or_else(|| Slots::private(1), |slot| slot.slots().clone())
    }
}

/// One thread's view of the rules.
pub struct Site {
    rules: Arc<Rules>,
    log: Option<Log>,
    encoders: EncoderPool,
    pid: u32,
}

/// The first line of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestLine<'a> {
    pub method: &'a [u8],
    pub target: &'a [u8],
    pub version: Version,
}

impl<'a> RequestLine<'a> {
    pub fn of(head: &HeadRef<'a>) -> Self {
        Self {
            method: head.method(),
            target: head.target(),
            version: head.version(),
        }
    }
}

/// What is remembered of one exchange. Reused: [`Site::begin`] forgets everything.
#[derive(Default)]
pub struct Visit {
    started: Option<Instant>,
    method: Option<MethodClass>,
    status: u16,
    body_bytes: u64,
    accepted: Accepted,
    body: Body,
    is_head: bool,
    client: String,
    entry: Entry,
}

impl Site {
    /// Call it in the worker, after the fork.
    pub fn new(rules: Arc<Rules>) -> Self {
        let log = rules.access_log.as_ref();
        Self {
            log: log.map(|(format, writer)| Log::new(Arc::clone(format), writer.clone())),
            encoders: EncoderPool::new(KEPT_ENCODERS),
            pid: std::process::id(),
            rules,
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What trusted proxies say about the client of this request.
    pub fn origin<'a>(&self, peer: Hop, fields: impl IntoIterator<Item = Field<'a>>) -> Origin {
        match &self.rules.trusted {
            Some(trusted) => forwarded::resolve(
                trusted,
                Kind::XForwarded,
                peer,
                fields.into_iter().map(pair),
            ),
            None => Origin::default(),
        }
    }

    /// A request came at `now`. `client`: as proxies or else the socket name it; `None` on a Unix socket.
    pub fn begin<'a>(
        &self,
        visit: &mut Visit,
        (line, client, now): (&RequestLine<'_>, Option<IpAddr>, Instant),
        fields: impl IntoIterator<Item = Field<'a>> + Clone,
    ) {
        visit.started = Some(now);
        visit.status = 0;
        visit.body_bytes = 0;
        visit.body = Body::Plain;
        visit.is_head = line.method == b"HEAD";
        if let Some(slot) = &self.rules.slot {
            slot.request_started();
            visit.method = Some(MethodClass::of(line.method));
        }
        if self.rules.compression.is_some() {
            visit.accepted = Accepted::from_fields(fields.clone().into_iter().map(pair));
        }
        if let Some(log) = &self.log {
            visit.client.clear();
            if let Some(ip) = client {
                // Writing to a String cannot fail.
                let _ = write!(visit.client, "{ip}");
            }
            let line = (line.method, line.target, version_name(line.version));
            log.format()
                .begin(&mut visit.entry, line, fields.into_iter().map(pair));
        }
    }

    /// The application is called at `now`: until then the request had to wait.
    pub fn called(&self, visit: &Visit, now: Instant) {
        if let (Some(slot), Some(started)) = (&self.rules.slot, visit.started) {
            slot.request_waited(now.saturating_duration_since(started));
        }
    }

    /// What the server answers by itself. `metrics_only`: the listener has nothing else.
    pub fn own_answer<'a>(
        &self,
        line: &RequestLine<'_>,
        fields: impl IntoIterator<Item = Field<'a>>,
        metrics_only: bool,
    ) -> Option<OwnAnswer> {
        if !metrics_only && !self.rules.metrics && self.rules.mounts.is_empty() {
            return None;
        }
        let path = line
            .target
            .split(|&byte| byte == b'?')
            .next()
            .unwrap_or_default();
        if (metrics_only || self.rules.metrics) && path == METRICS_PATH {
            return Some(own::metrics_page(line.method, || {
                metrics::render(&self.rules.slots(), metrics::monotonic_ns())
            }));
        }
        if metrics_only {
            return Some(own::not_found());
        }
        let mount = self.rules.mount(line.target)?;
        // They are looked at several times.
        let fields: Vec<_> = fields.into_iter().map(pair).collect();
        let fields = fields.iter().copied();
        mount
            .answer(line.method, line.target, fields, SystemTime::now())
            .map(OwnAnswer::from)
    }

    /// The exchange is over, answered or not. Calling it twice counts once.
    pub fn end(&mut self, visit: &mut Visit, now: Instant) {
        let Some(started) = visit.started.take() else {
            return;
        };
        if let Body::Encoded(encoding) = std::mem::take(&mut visit.body) {
            self.encoders.give(encoding.encoder);
        }
        let duration = now.saturating_duration_since(started);
        if let Some(log) = &mut self.log {
            let outcome = Outcome {
                client: &visit.client,
                pid: self.pid,
                ended: SystemTime::now(),
                duration,
                body_bytes: visit.body_bytes,
                reason: towline_proto::standard_reason(visit.status),
            };
            log.write(&visit.entry, &outcome);
        }
        if let (Some(slot), Some(method)) = (&self.rules.slot, visit.method) {
            slot.request_ended(method, StatusClass::of(visit.status), duration);
            if let Some(log) = &self.log {
                let lost = log.writer().take_unreported();
                if lost > 0 {
                    slot.dropped_log_lines.fetch_add(lost, Relaxed);
                }
            }
        }
    }
}

fn pair(field: Field<'_>) -> (&[u8], &[u8]) {
    (field.name, field.value)
}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2.0",
    }
}

#[cfg(test)]
mod tests;
