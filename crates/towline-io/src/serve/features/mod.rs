//! All server features around one exchange, behind five methods for the front ends.
//!
//! ```text
//! Event::Head ─ begin ─┬─ may_answer, builtin_response ─ BuiltinResponse::send ─┐
//!                      │                                                      ├─ end
//!                      └─ application ─ respond ─ write* ─ finish ────────────┘
//! ```
//!
//! [`FeatureConfig`] is fixed at start and shared by all threads of a worker; [`Features`] belongs to one
//! thread and has the buffers that it reuses; [`ExchangeRecord`] has the state of one exchange. With no
//! feature configured each call is a branch or two.

mod body;
mod builtin;
pub mod overrides;
pub mod request_body;

use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use towline_proto::{Field, Version};

use self::body::Body;
pub use self::body::{BodyWriter, Payload};
pub use self::builtin::BuiltinResponse;
use self::overrides::{Arrival, Overrides};
use self::request_body::{BodyDecoder, RequestDecoding};
use super::access_log::{Entry, Format, Log, Outcome, Writer};
use super::compress::Policy;
use super::files::Mount;
use super::forwarded;
use super::limits::RateLimit;
use super::metrics::{self, MethodClass, PageFormat, SlotHandle, Slots};
use super::refusals::{Refusals, RefusedFor};
use super::request_id::{self, IdGenerator};
pub use super::request_line::RequestLine;
use super::request_line::version_name;
use super::request_start::queue_time;
use crate::coding::accept_encoding::AcceptEncoding;
use crate::coding::encode::EncoderPool;
use crate::conn::config::Role;

/// Idle encoders per thread: a third would cost more memory than it saves time.
const MAX_IDLE_ENCODERS: usize = 2;

/// Prefix of the paths of http-01 challenges (RFC 8555 8.3).
const CHALLENGE_PREFIX: &[u8] = b"/.well-known/acme-challenge/";

/// The path of the metrics page.
const METRICS_PATH: &[u8] = b"/metrics";

/// Configuration of the features.
#[derive(Default)]
pub struct FeatureConfig {
    /// An option changes requests before the application sees them: [`Features::overrides`].
    pub overrides: bool,
    /// `X-Request-Start` of trusted proxies is read (`--queue-time`).
    pub queue_time: bool,
    pub mounts: Vec<Mount>,
    pub compression: Option<Policy>,
    /// Bodies of requests are decoded.
    pub decoding: Option<RequestDecoding>,
    pub access_log: Option<(Arc<Format>, Writer)>,
    /// Counters and lines of the requests that the server refuses itself.
    pub refusals: Option<Arc<Refusals>>,
    pub slot: Option<SlotHandle>,
    /// The header of the request id (`--request-id-header`), in lower case; `None`: requests have none.
    pub request_id: Option<Box<[u8]>>,
    /// Labels of the metric `towline_build_info`.
    pub build: Vec<(&'static str, String)>,
    /// `--limit-rate`.
    pub rate_limit: Option<RateLimit>,
    /// Serve `/metrics` in addition to the application.
    pub metrics: bool,
    /// Respond to health checks at this path and below it.
    pub health_path: Option<Vec<u8>>,
    /// Folder with the responses to http-01 challenges of ACME (`--acme`), by token.
    pub acme_challenges: Option<PathBuf>,
    /// This process drains.
    pub draining: AtomicBool,
}

impl FeatureConfig {
    /// The mount of a target: the one with the longest prefix.
    fn mount(&self, target: &[u8]) -> Option<&Mount> {
        let covering = self.mounts.iter().filter(|mount| mount.covers(target));
        covering.max_by_key(|mount| mount.prefix().len())
    }

    /// Whether the server may respond to a request of any address before the application: each feature that does so
    /// belongs here.
    fn may_answer(&self) -> bool {
        self.metrics
            || self.health_path.is_some()
            || self.acme_challenges.is_some()
            || self.rate_limit.is_some()
            || !self.mounts.is_empty()
            || self.decoding.is_some()
    }

    /// Reopens the access log's file before the next line, after a rotation.
    pub fn reopen_logs(&self) {
        if let Some((_, writer)) = &self.access_log {
            writer.reopen();
        }
    }

    /// Makes health checks fail unless another worker accepts connections.
    pub fn begin_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Whether new connections should come: the server is not about to stop, and this worker accepts them or, in a
    /// reload, another one does.
    fn is_ready(&self) -> bool {
        let Some(slot) = &self.slot else {
            return !self.draining.load(Relaxed);
        };
        let slots = slot.slots();
        let is_stopping = slots
            .slot(0)
            .is_some_and(|first| first.stopping.load(Relaxed) != 0);
        let mut in_use = slots.in_use();
        !is_stopping
            && (!self.draining.load(Relaxed)
                || in_use.any(|slot| slot.accepting.load(Relaxed) != 0))
    }

    /// Slots of all workers; without a supervisor one empty slot of this process.
    fn slots(&self) -> Slots {
        self.slot
            .as_ref()
            .map_or_else(|| Slots::private(1), |slot| slot.slots().clone())
    }
}

/// The features of one thread.
pub struct Features {
    config: Arc<FeatureConfig>,
    /// [`FeatureConfig::may_answer`], computed once: the only test of a request that no feature answers.
    may_answer: bool,
    log: Option<Log>,
    encoders: EncoderPool,
    ids: Option<IdGenerator>,
    /// Refusals by rate, to be sent again.
    refusals: [Option<builtin::KeptRefusal>; 8],
    pid: u32,
}

/// The end of a connection that has sent a request.
#[derive(Debug, Clone, Copy)]
pub struct Sender {
    /// The address from the proxies, else from the socket; `None` on a Unix socket.
    pub client: Option<IpAddr>,
    /// The role of the listener.
    pub role: Role,
    /// A trusted proxy has received the request over TLS.
    pub used_https: bool,
}

/// State of one exchange, for the log and the metrics. Reusable: [`Features::begin`] resets it.
#[derive(Default)]
pub struct ExchangeRecord {
    started: Option<Instant>,
    method: Option<(MethodClass, Version)>,
    status: u16,
    body_bytes: u64,
    accepted: AcceptEncoding,
    body: Body,
    is_head: bool,
    refused: Option<RefusedFor>,
    /// Decodes the body of the request. Assigned anew for each exchange, if [`FeatureConfig::decoding`] is set.
    pub decoder: Option<Box<BodyDecoder>>,
    scheme: &'static str,
    client: String,
    entry: Entry,
}

impl Features {
    /// Creates the features. Call it in the worker, after the fork.
    pub fn new(config: Arc<FeatureConfig>) -> Self {
        let log = config.access_log.as_ref();
        Self {
            log: log.map(|(format, writer)| Log::new(Arc::clone(format), writer.clone())),
            encoders: EncoderPool::new(MAX_IDLE_ENCODERS),
            pid: std::process::id(),
            ids: config
                .request_id
                .as_ref()
                .and_then(|_| IdGenerator::new().ok()),
            refusals: [const { None }; 8],
            may_answer: config.may_answer(),
            config,
        }
    }

    pub fn config(&self) -> &FeatureConfig {
        &self.config
    }

    /// The values to change in a request before the application sees it. Call it only if `config().overrides`.
    #[cold]
    pub fn overrides<'a>(
        &self,
        arrival: &Arrival<'_>,
        fields: impl IntoIterator<Item = Field<'a>>,
    ) -> Box<Overrides> {
        let fields: Vec<_> = fields.into_iter().map(pair).collect();
        let fields = fields.iter().copied();
        let config = &self.config;
        let trusted = arrival.address.trusted.as_ref();
        let trusted = trusted.filter(|all| arrival.peer.is_some_and(|peer| all.trusts(peer)));
        let mut overrides = Overrides {
            request_id: self.request_id(trusted.is_some(), fields.clone()),
            ..Overrides::default()
        };
        let Some(trusted) = trusted else {
            return Box::new(overrides);
        };
        let (headers, is_https) = (arrival.address.forwarded, arrival.is_https);
        overrides.authority = forwarded::authority(headers, trusted, fields.clone(), is_https);
        overrides.prefix = forwarded::prefix(headers, fields.clone());
        if config.queue_time {
            let mut starts =
                fields.filter(|field| field.0.eq_ignore_ascii_case(b"x-request-start"));
            let start = starts.next_back().map(|field| field.1);
            let elapsed = start.and_then(|start| queue_time(start, SystemTime::now()));
            let elapsed = elapsed.map(|elapsed| elapsed.saturating_sub(arrival.waited));
            if let (Some(slot), Some(elapsed)) = (&config.slot, elapsed) {
                slot.request_queued(elapsed);
            }
            overrides.queue_time = elapsed;
        }
        Box::new(overrides)
    }

    /// The id of a request and the name of its header: the id that a trusted proxy has sent, or a new one. `None`
    /// without `--request-id-header`.
    fn request_id<'a>(
        &self,
        is_trusted: bool,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) -> Option<(Box<[u8]>, String)> {
        let (name, ids) = (self.config.request_id.as_deref()?, self.ids.as_ref()?);
        let mut fields = fields.filter(|_| is_trusted);
        let received = fields.find(|field| field.0.eq_ignore_ascii_case(name));
        let id = match received {
            Some((_, value)) if request_id::is_valid(value) => {
                String::from_utf8_lossy(value).into_owned()
            }
            _ => ids.make(SystemTime::now()),
        };
        Some((name.into(), id))
    }

    /// Notes the scheme of a request, for the access log. Call it after [`begin`](Self::begin).
    pub fn scheme(&self, record: &mut ExchangeRecord, is_https: bool) {
        if self.log.is_some() {
            record.scheme = if is_https { "https" } else { "http" };
        }
    }

    /// Starts the record of a request received at `now`. `client` is the address from the proxies, else from
    /// the socket; `None` on a Unix socket.
    #[inline]
    pub fn begin<'a>(
        &self,
        record: &mut ExchangeRecord,
        (line, client, now): (&RequestLine<'_>, Option<IpAddr>, Instant),
        fields: impl IntoIterator<Item = Field<'a>> + Clone,
    ) {
        record.started = Some(now);
        record.status = 0;
        record.body_bytes = 0;
        record.refused = None;
        record.scheme = "";
        record.body = Body::Plain;
        record.is_head = line.method == b"HEAD";
        if let Some(slot) = &self.config.slot {
            slot.request_started();
            record.method = Some((MethodClass::of(line.method), line.version));
        }
        if self.config.compression.is_some() {
            record.accepted = AcceptEncoding::from_fields(fields.clone().into_iter().map(pair));
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

    /// Records that the application is called at `now`; until then the request was queued.
    #[inline]
    pub fn application_called(&self, record: &ExchangeRecord, now: Instant) {
        if let (Some(slot), Some(started)) = (&self.config.slot, record.started) {
            slot.request_waited(now.saturating_duration_since(started));
        }
    }

    /// Whether [`builtin_response`](Self::builtin_response) may have a response.
    #[inline]
    pub fn may_answer(&self, role: Role) -> bool {
        self.may_answer || role != Role::Application
    }

    /// Response of the server itself, if there is one. Call it only if [`may_answer`](Self::may_answer).
    pub fn builtin_response<'a>(
        &self,
        line: &RequestLine<'_>,
        fields: impl Iterator<Item = Field<'a>> + Clone,
        sender: &Sender,
    ) -> Option<BuiltinResponse> {
        let config = &self.config;
        let metrics_only = sender.role == Role::Metrics;
        let path = line
            .target
            .split(|&byte| byte == b'?')
            .next()
            .unwrap_or_default();
        if (metrics_only || self.config.metrics) && path == METRICS_PATH {
            let mut fields = fields;
            let accept = fields.find(|field| field.name.eq_ignore_ascii_case(b"accept"));
            let format = PageFormat::negotiate(accept.map(|field| field.value));
            return Some(builtin::metrics_page(line.method, format, || {
                let config = &self.config;
                metrics::render(
                    &config.slots(),
                    &config.build,
                    format,
                    metrics::monotonic_ns(),
                )
            }));
        }
        if let Some(prefix) = &config.health_path
            && let Some(check) = path.strip_prefix(prefix.as_slice())
        {
            match check {
                b"" | b"/ready" => return Some(builtin::health(line.method, config.is_ready())),
                b"/live" => return Some(builtin::health(line.method, true)),
                _ => {}
            }
        }
        if metrics_only {
            return Some(builtin::not_found());
        }
        if let Some(folder) = &config.acme_challenges
            && let Some(token) = path.strip_prefix(CHALLENGE_PREFIX)
            && let Some(response) = builtin::acme_challenge(line.method, folder, token)
        {
            return Some(response);
        }
        if let Role::RedirectHttps { port } = sender.role
            && !sender.used_https
            && let Some(response) = builtin::redirect_https(line, fields.clone(), port)
        {
            return Some(response);
        }
        if let Some(limit) = &config.rate_limit {
            let now_ns = metrics::monotonic_ns();
            let admitted = limit.admit(path, fields.clone().map(pair), sender.client, now_ns);
            if let Err(seconds) = admitted {
                if let Some(refusals) = &config.refusals {
                    refusals.on_builtin(builtin::RATE_LIMITED, 429, line, sender.client);
                }
                return Some(BuiltinResponse::rate_limited(seconds));
            }
        }
        let mount = self.config.mount(line.target)?;
        // A mount reads the fields several times.
        let fields: Vec<_> = fields.map(pair).collect();
        let fields = fields.iter().copied();
        mount
            .response(line.method, line.target, fields, SystemTime::now())
            .map(BuiltinResponse::from)
    }

    /// Notes that the server has failed an exchange itself; `status` is that of the response that it sent (0: none).
    /// The refusal itself is counted by the connection.
    pub fn refused(&self, record: &mut ExchangeRecord, status: u16, refused: RefusedFor) {
        if record.status == 0 {
            record.status = status;
        }
        record.refused = Some(refused);
    }

    /// Notes that the application has taken the connection over and sends its 101 itself. The request is counted now;
    /// its line in the access log is written when the record ends.
    pub fn taken_over(&self, record: &mut ExchangeRecord, now: Instant) {
        record.status = 101;
        record.entry.set_status(101);
        if let (Some(slot), Some((method, version)), Some(started)) =
            (&self.config.slot, record.method.take(), record.started)
        {
            let duration = now.saturating_duration_since(started);
            slot.request_ended(method, version, 101, duration);
        }
    }

    /// Ends the record of an exchange, with or without a response. A second call has no effect.
    pub fn end(&mut self, record: &mut ExchangeRecord, now: Instant) {
        let Some(started) = record.started.take() else {
            return;
        };
        if let Body::Encoded(encoding) = std::mem::take(&mut record.body) {
            self.encoders.release(encoding.encoder);
        }
        record.decoder = None;
        let duration = now.saturating_duration_since(started);
        if let Some(log) = &mut self.log {
            let outcome = Outcome {
                client: &record.client,
                pid: self.pid,
                ended: SystemTime::now(),
                duration,
                body_bytes: record.body_bytes,
                reason: towline_proto::standard_reason(record.status),
                refused: record.refused,
                scheme: record.scheme,
            };
            if record.refused.is_some() {
                record.entry.set_status(record.status);
            }
            log.write(&record.entry, &outcome);
        }
        if let (Some(slot), Some((method, version))) = (&self.config.slot, record.method) {
            slot.request_ended(method, version, record.status, duration);
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

#[cfg(test)]
mod tests;
