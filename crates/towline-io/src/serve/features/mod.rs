//! All features of a server around one exchange, so that a face calls five methods and knows no more.
//!
//! ```text
//! Event::Head ─ begin ─┬─ own_answer: static file or metrics ─ OwnAnswer::send ─┐
//!                      │                                                       ├─ end
//!                      └─ application ─ respond ─ write* ─ finish ─────────────┘
//! ```
//!
//! [`FeatureConfig`] are fixed at start and shared by all threads of a worker; a [`Features`] is one thread's view
//! of them with the buffers it reuses; a [`ExchangeRecord`] is what is remembered of one exchange. With nothing
//! configured each call is a branch or two.

mod body;
mod builtin;

use std::fmt::Write;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use towline_proto::{Field, HeadRef, Version};

use self::body::Body;
pub use self::body::Payload;
pub use self::builtin::BuiltinResponse;
use super::access_log::{Entry, Format, Log, Outcome, Writer};
use super::compress::Policy;
use super::files::Mount;
use super::forwarded::{self, Kind, Origin, PeerIp, TrustedPeers};
use super::metrics::{self, MethodClass, SlotHandle, Slots, StatusClass};
use crate::coding::accept::Accepted;
use crate::coding::encode::EncoderPool;

/// Encoders kept between responses: the memory of two is worth the time, of more it is not.
const MAX_IDLE_ENCODERS: usize = 2;

/// The path of the metrics page.
const METRICS_PATH: &[u8] = b"/metrics";

/// What was configured.
#[derive(Default)]
pub struct FeatureConfig {
    /// Whose word on the client is taken; `None` reads no such field.
    pub trusted: Option<TrustedPeers>,
    pub mounts: Vec<Mount>,
    pub compression: Option<Policy>,
    pub access_log: Option<(Arc<Format>, Writer)>,
    pub slot: Option<SlotHandle>,
    /// `/metrics` is answered beside the application.
    pub metrics: bool,
}

impl FeatureConfig {
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
pub struct Features {
    config: Arc<FeatureConfig>,
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

/// What is remembered of one exchange. Reused: [`Features::begin`] forgets everything.
#[derive(Default)]
pub struct ExchangeRecord {
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

impl Features {
    /// Call it in the worker, after the fork.
    pub fn new(config: Arc<FeatureConfig>) -> Self {
        let log = config.access_log.as_ref();
        Self {
            log: log.map(|(format, writer)| Log::new(Arc::clone(format), writer.clone())),
            encoders: EncoderPool::new(MAX_IDLE_ENCODERS),
            pid: std::process::id(),
            config,
        }
    }

    pub fn config(&self) -> &FeatureConfig {
        &self.config
    }

    /// What trusted proxies say about the client of this request.
    pub fn origin<'a>(&self, peer: PeerIp, fields: impl IntoIterator<Item = Field<'a>>) -> Origin {
        match &self.config.trusted {
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
        record: &mut ExchangeRecord,
        (line, client, now): (&RequestLine<'_>, Option<IpAddr>, Instant),
        fields: impl IntoIterator<Item = Field<'a>> + Clone,
    ) {
        record.started = Some(now);
        record.status = 0;
        record.body_bytes = 0;
        record.body = Body::Plain;
        record.is_head = line.method == b"HEAD";
        if let Some(slot) = &self.config.slot {
            slot.request_started();
            record.method = Some(MethodClass::of(line.method));
        }
        if self.config.compression.is_some() {
            record.accepted = Accepted::from_fields(fields.clone().into_iter().map(pair));
        }
        if let Some(log) = &self.log {
            record.client.clear();
            if let Some(ip) = client {
                // Writing to a String cannot fail.
                let _ = write!(record.client, "{ip}");
            }
            let line = (line.method, line.target, version_name(line.version));
            log.format()
                .begin(&mut record.entry, line, fields.into_iter().map(pair));
        }
    }

    /// The application is called at `now`: until then the request had to wait.
    pub fn application_called(&self, record: &ExchangeRecord, now: Instant) {
        if let (Some(slot), Some(started)) = (&self.config.slot, record.started) {
            slot.request_waited(now.saturating_duration_since(started));
        }
    }

    /// What the server answers by itself. `metrics_only`: the listener has nothing else.
    pub fn builtin_response<'a>(
        &self,
        line: &RequestLine<'_>,
        fields: impl IntoIterator<Item = Field<'a>>,
        metrics_only: bool,
    ) -> Option<BuiltinResponse> {
        if !metrics_only && !self.config.metrics && self.config.mounts.is_empty() {
            return None;
        }
        let path = line
            .target
            .split(|&byte| byte == b'?')
            .next()
            .unwrap_or_default();
        if (metrics_only || self.config.metrics) && path == METRICS_PATH {
            return Some(builtin::metrics_page(line.method, || {
                metrics::render(&self.config.slots(), metrics::monotonic_ns())
            }));
        }
        if metrics_only {
            return Some(builtin::not_found());
        }
        let mount = self.config.mount(line.target)?;
        // They are looked at several times.
        let fields: Vec<_> = fields.into_iter().map(pair).collect();
        let fields = fields.iter().copied();
        mount
            .response(line.method, line.target, fields, SystemTime::now())
            .map(BuiltinResponse::from)
    }

    /// The exchange is over, answered or not. Calling it twice counts once.
    pub fn end(&mut self, record: &mut ExchangeRecord, now: Instant) {
        let Some(started) = record.started.take() else {
            return;
        };
        if let Body::Encoded(encoding) = std::mem::take(&mut record.body) {
            self.encoders.release(encoding.encoder);
        }
        let duration = now.saturating_duration_since(started);
        if let Some(log) = &mut self.log {
            let outcome = Outcome {
                client: &record.client,
                pid: self.pid,
                ended: SystemTime::now(),
                duration,
                body_bytes: record.body_bytes,
                reason: towline_proto::standard_reason(record.status),
            };
            log.write(&record.entry, &outcome);
        }
        if let (Some(slot), Some(method)) = (&self.config.slot, record.method) {
            slot.request_ended(method, StatusClass::of(record.status), duration);
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
