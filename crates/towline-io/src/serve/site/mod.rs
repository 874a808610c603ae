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
use std::time::{Instant, SystemTime};

use towline_proto::{HeadRef, Version};

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
    /// Lines that the log has lost, as far as the slot knows.
    dropped_lines: u64,
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
            dropped_lines: 0,
            rules,
        }
    }

    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// What trusted proxies say about the client of this request.
    pub fn origin(&self, peer: Hop, head: &HeadRef<'_>) -> Origin {
        match &self.rules.trusted {
            Some(trusted) => forwarded::resolve(trusted, Kind::XForwarded, peer, pairs(head)),
            None => Origin::default(),
        }
    }

    /// A request has come. `client`: as proxies or else the socket name it; `None` on a Unix socket.
    pub fn begin(
        &self,
        visit: &mut Visit,
        head: &HeadRef<'_>,
        client: Option<IpAddr>,
        now: Instant,
    ) {
        visit.started = Some(now);
        visit.status = 0;
        visit.body_bytes = 0;
        visit.body = Body::Plain;
        visit.is_head = head.method() == b"HEAD";
        if let Some(slot) = &self.rules.slot {
            slot.request_started();
            visit.method = Some(MethodClass::of(head.method()));
        }
        if self.rules.compression.is_some() {
            visit.accepted = Accepted::from_fields(pairs(head));
        }
        if let Some(log) = &self.log {
            visit.client.clear();
            if let Some(ip) = client {
                // Writing to a String cannot fail.
                let _ = write!(visit.client, "{ip}");
            }
            let line = (head.method(), head.target(), version_name(head.version()));
            log.format().begin(&mut visit.entry, line, pairs(head));
        }
    }

    /// What the server answers by itself. `metrics_only`: the listener has nothing else.
    pub fn own_answer(&self, head: &HeadRef<'_>, metrics_only: bool) -> Option<OwnAnswer> {
        if !metrics_only && !self.rules.metrics && self.rules.mounts.is_empty() {
            return None;
        }
        let target = head.target();
        let path = target
            .split(|&byte| byte == b'?')
            .next()
            .unwrap_or_default();
        if (metrics_only || self.rules.metrics) && path == METRICS_PATH {
            return Some(own::metrics_page(head.method(), || {
                metrics::render(&self.rules.slots(), metrics::monotonic_ns())
            }));
        }
        if metrics_only {
            return Some(own::not_found());
        }
        let mount = self.rules.mount(target)?;
        mount
            .answer(head.method(), target, pairs(head), SystemTime::now())
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
                let dropped = log.writer().dropped();
                if dropped != self.dropped_lines {
                    // Several threads of a worker read the same count: the slot holds the total.
                    slot.dropped_log_lines
                        .fetch_max(dropped, std::sync::atomic::Ordering::Relaxed);
                    self.dropped_lines = dropped;
                }
            }
        }
    }
}

fn pairs<'a>(head: &HeadRef<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone {
    head.fields().map(|field| (field.name, field.value))
}

fn version_name(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2",
    }
}

#[cfg(test)]
mod tests;
