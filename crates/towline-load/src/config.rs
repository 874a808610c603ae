//! The configuration of a run.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use towline_proto::ws::{Kind, Scratch};
use towline_proto::{BodySize, Connection, Field, Limits, Protocol, RequestHead};

use crate::data::Data;
use crate::error::LoadError;
use crate::hosts::serialized;
use crate::schedule::Rate;
use crate::stages::Stages;
use crate::target::{Destination, Messages, SendMode, Target};
use crate::template::{has_placeholders, sample};
use crate::websocket::{Handshake, OWN_FIELDS};

/// More targets than these are counted together: each has histograms of its own.
const MAX_STEPS: usize = 100;

/// One run of load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "independent options")]
pub struct Config {
    /// Connections are distributed over the origins in turn; each uses the targets of its origin.
    pub targets: Vec<Target>,
    pub mix: Mix,
    /// Rows of values for requests with `{{name}}`: one for each request, or for each session.
    #[serde(with = "serialized::data")]
    pub data: Option<Arc<Data>>,
    /// Total, divided among the threads.
    pub connections: usize,
    pub threads: usize,
    /// HTTP/1.1, or HTTP/2: by ALPN for https targets, otherwise by prior knowledge. HTTP/3 at once, without Alt-Svc.
    #[serde(with = "serialized::ProtocolDef")]
    pub protocol: Protocol,
    /// HTTP/3: connections after the first resume its session and send their first requests in early data (0-RTT).
    pub early_data: bool,
    /// HTTP/1.1: pipelined requests per connection; with `WebSockets`, messages in flight.
    pub pipeline: usize,
    /// HTTP/2: concurrent streams per connection, up to the server's limit.
    pub streams: usize,
    /// Requests after which a connection is replaced; `Some(1)`: a fresh connection for each request,
    /// whose setup counts as part of the latency.
    pub requests_per_connection: Option<u64>,
    /// HTTP/1.1: the last request of a connection has `Connection: close`. Otherwise the generator closes the connection
    /// after the response, unannounced.
    pub says_close: bool,
    /// All connections send their next request at the same moment, when all have their responses; on
    /// fresh connections, a connection storm. One thread, a closed loop.
    pub barrier: bool,
    /// A slice begins without connections: it opens them in its measured time, and closes them after it.
    pub connects_in_slice: bool,
    pub loop_mode: LoopMode,
    pub until: Until,
    /// Load before the measured time. A ramp lengthens it.
    pub warm_up: Duration,
    /// Closed loop: connections are opened one after the other over this time. Open loop: see
    /// [`Rate::ramp`].
    pub ramp: Duration,
    /// Closed loop: the number of connections over time, `connections` being the most. Open loop: the rate
    /// over time.
    pub stages: Option<Stages>,
    /// From sending to the last byte of the response; checked about twenty times in its duration.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    pub trust: Trust,
    pub seed: u64,
    /// A Unix socket to which all connections go; the URLs still give Host and the path.
    pub unix_socket: Option<PathBuf>,
    /// Ends the run when a destination has had no connection and only failed dials for this time, and at
    /// the start when none of its first dials succeeds. `None`: dials go on until the end of the run.
    pub give_up_after: Option<Duration>,
    /// Statuses with which a server refuses requests at its limit: counted apart, neither successes nor
    /// failures. If any is given, connections that the server refuses, or closes before any response,
    /// count in the same way.
    pub refusal_statuses: Vec<u16>,
    /// Whether several targets have figures of their own in the report. Those of a session always have.
    pub reports_targets: bool,
}

/// The order of targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mix {
    #[default]
    InTurn,
    /// By weight.
    AtRandom,
    /// Each connection is a user that sends the requests of all targets in order, and then again.
    Session,
    /// Each connection repeats one target; the connection that replaces it takes the next one.
    PerConnection,
}

/// The event that starts a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum LoopMode {
    /// The previous response.
    #[default]
    Closed,
    /// The schedule.
    Open(Rate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Until {
    /// Measured time, without warm-up.
    Time(Duration),
    /// Total requests, failed ones included, without warm-up.
    Requests(u64),
}

/// Verification of the server's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// None: the server under load is usually our own.
    #[default]
    Any,
    System,
    Path(PathBuf),
}

impl Config {
    /// One thread, ten connections, a closed loop for ten seconds.
    pub fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            mix: Mix::default(),
            data: None,
            connections: 10,
            threads: 1,
            protocol: Protocol::Http1,
            pipeline: 1,
            streams: 1,
            requests_per_connection: None,
            says_close: true,
            barrier: false,
            connects_in_slice: false,
            loop_mode: LoopMode::Closed,
            until: Until::Time(Duration::from_secs(10)),
            warm_up: Duration::ZERO,
            ramp: Duration::ZERO,
            stages: None,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            early_data: false,
            trust: Trust::default(),
            seed: 1,
            unix_socket: None,
            give_up_after: None,
            refusal_statuses: Vec::new(),
            reports_targets: true,
        }
    }

    /// The number of targets that are counted apart; 1: none.
    pub(crate) fn steps(&self) -> usize {
        let counts_apart = self.reports_targets || self.mix == Mix::Session;
        match self.targets.len() {
            count @ 2..=MAX_STEPS if counts_apart => count,
            _ => 1,
        }
    }

    /// The names of the targets that are counted apart.
    pub(crate) fn step_names(&self) -> Vec<String> {
        let apart = self.steps() > 1;
        let targets = self.targets.iter().filter(|_| apart);
        targets.map(Target::step_name).collect()
    }

    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Config(why.into()));
        if self.targets.is_empty() {
            return wrong("a URL is missing");
        }
        let counts = [self.threads, self.pipeline, self.streams];
        if counts.contains(&0) || self.requests_per_connection == Some(0) {
            return wrong(
                "threads, pipeline, streams and requests per connection must be at least 1",
            );
        }
        match self.protocol {
            Protocol::Http1 | Protocol::Http2 if self.early_data => {
                return wrong("early data (0-RTT) needs HTTP/3");
            }
            Protocol::Http1 if self.streams > 1 => {
                return wrong("concurrent streams need HTTP/2 or HTTP/3");
            }
            Protocol::Http2 | Protocol::Http3 if self.pipeline > 1 => {
                return wrong("HTTP/2 and HTTP/3 have streams, not pipelining");
            }
            Protocol::Http2 if self.targets.iter().any(|target| target.messages.is_some()) => {
                return wrong("WebSockets over HTTP/2 (RFC 8441) are not supported");
            }
            Protocol::Http3 if self.targets.iter().any(|target| target.messages.is_some()) => {
                return wrong("WebSockets over HTTP/3 (RFC 9220) are not supported");
            }
            Protocol::Http3 if self.targets.iter().any(|target| !target.secure) => {
                return wrong("HTTP/3 is always encrypted: the URL begins with https");
            }
            Protocol::Http3 if self.unix_socket.is_some() => {
                return wrong("HTTP/3 uses UDP, not a Unix socket");
            }
            _ => {}
        }
        if self.connections < self.threads * self.destinations().len() {
            return wrong("every thread needs a connection to every origin");
        }
        if u32::try_from(self.connections).is_err() || self.concurrency() > 1024 {
            return wrong("too many connections, or more than 1024 concurrent requests on each");
        }
        if self.barrier && self.threads > 1 {
            return wrong("a barrier needs a single thread");
        }
        let shaped =
            |target: &Target| target.send_mode != SendMode::Whole || target.chunk_bytes.is_some();
        if self.concurrency() > 1 && (self.barrier || self.targets.iter().any(shaped)) {
            return wrong(
                "concurrent requests on a connection must be sent whole, and without a barrier",
            );
        }
        if self.mix == Mix::AtRandom {
            for destination in self.destinations() {
                let of = self
                    .targets
                    .iter()
                    .filter(|target| target.destination() == destination);
                if of.map(|target| u64::from(target.weight)).sum::<u64>() == 0 {
                    return wrong("the weights of an origin's targets add up to 0");
                }
            }
        }
        if self.mix == Mix::PerConnection && self.destinations().len() > 1 {
            return wrong("the targets that connections divide among themselves have one origin");
        }
        let has_variables = self.has_variables();
        (self.targets.iter()).try_for_each(|target| {
            if has_variables {
                check_target(&with_samples(target))
            } else {
                check_target(target)
            }
        })
    }

    /// Whether requests may have values.
    pub(crate) fn has_variables(&self) -> bool {
        let mut expectations = self.targets.iter().map(|target| &target.expect);
        self.data.is_some() || expectations.any(|expect| !expect.captures.is_empty())
    }

    /// Adds the expectation of an echo to WebSocket targets without one.
    pub(crate) fn with_defaults(mut self) -> Self {
        self.targets.iter_mut().for_each(Target::expect_echo);
        self
    }

    /// The distinct destinations of connections, in the order of their first target.
    pub(crate) fn destinations(&self) -> Vec<Destination<'_>> {
        let mut seen = HashSet::new();
        let all = self.targets.iter().map(Target::destination);
        all.filter(|one| seen.insert(*one)).collect()
    }

    /// Whether the load consists of WebSocket messages only.
    pub(crate) fn is_websocket_load(&self) -> bool {
        self.targets.iter().all(|target| target.messages.is_some())
    }

    /// The longest message that may be received.
    pub(crate) fn longest_message(&self) -> usize {
        let each = self.targets.iter().map(Target::longest_message);
        each.max().unwrap_or(0)
    }

    /// Load before the measured time.
    pub(crate) fn total_warm_up(&self) -> Duration {
        let ramp = match self.loop_mode {
            LoopMode::Closed => self.ramp,
            LoopMode::Open(rate) => rate.ramp,
        };
        match self.until {
            Until::Time(_) => self.warm_up.max(ramp),
            Until::Requests(_) => Duration::ZERO,
        }
    }

    /// Concurrent requests on each connection.
    pub(crate) fn concurrency(&self) -> usize {
        match self.protocol {
            Protocol::Http1 => self.pipeline,
            Protocol::Http2 | Protocol::Http3 => self.streams,
        }
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.requests_per_connection == Some(1)
    }
}

/// The target with a letter in place of each value, without fields whose values follow from the body: a letter is no
/// length.
fn with_samples(target: &Target) -> Target {
    let framing = ["content-length", "transfer-encoding"];
    let is_judged_later = |(name, value): &&(Box<str>, Box<[u8]>)| {
        has_placeholders(value) && framing.iter().any(|one| name.eq_ignore_ascii_case(one))
    };
    let field = |(name, value): &(Box<str>, Box<[u8]>)| (name.clone(), sample(value).into());
    Target {
        path: String::from_utf8_lossy(&sample(target.path.as_bytes())).into(),
        fields: (target.fields.iter())
            .filter(|field| !is_judged_later(field))
            .map(field)
            .collect(),
        ..target.clone()
    }
}

/// Validates a target: its send mode, then its encoding by the protocol core.
fn check_target(target: &Target) -> Result<(), LoadError> {
    if let Some(messages) = target.messages {
        return check_messages(target, messages);
    }
    let body_bytes = target.body.as_ref().map_or(0, |body| body.len() as u64);
    let wrong = match target.send_mode {
        _ if target.chunk_bytes == Some(0) => "a chunk must have at least one byte",
        SendMode::Pieces { pieces: 0, .. } => "there must be at least one piece",
        SendMode::AwaitContinue if body_bytes == 0 => "a request that waits for 100 needs a body",
        SendMode::DropAfterBytes(bytes) if bytes >= body_bytes => {
            "a body must be dropped before its last byte"
        }
        _ if target.chunk_bytes.is_some() && body_bytes == 0 => {
            "a request that is sent in chunks needs a body"
        }
        _ => "",
    };
    if !wrong.is_empty() {
        return Err(LoadError::Config(format!("{}: {wrong}", target.url())));
    }
    let fields = target.whole_fields();
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| Field { name, value })
        .collect();
    let head = RequestHead {
        method: target.method.as_bytes(),
        target: target.path.as_bytes(),
        fields: &fields,
    };
    let mut conn = Connection::client(Arc::new(Limits::client()), Instant::now());
    let size = match &target.body {
        None => BodySize::Empty,
        Some(_) if target.chunk_bytes.is_some() => BodySize::Unknown,
        Some(body) => BodySize::Known(body.len() as u64),
    };
    conn.request(&head, size)
        .map_err(|error| LoadError::Config(format!("{}: {error}", target.url())))?;
    Ok(())
}

/// Validates a WebSocket target: options for requests only, then the handshake.
fn check_messages(target: &Target, messages: Messages) -> Result<(), LoadError> {
    let wrong = |why: String| Err(LoadError::Config(format!("{}: {why}", target.url())));
    let expect = &target.expect;
    let own = |(name, _): &&(Box<str>, Box<[u8]>)| {
        OWN_FIELDS.iter().any(|own| name.eq_ignore_ascii_case(own))
    };
    if target.send_mode != SendMode::Whole || target.chunk_bytes.is_some() {
        return wrong("messages are sent whole".into());
    }
    if &*target.method != "GET" {
        return wrong("a WebSocket begins with a GET (RFC 6455 4.1)".into());
    }
    if !matches!(expect.status, None | Some(101))
        || expect.coding.is_some()
        || !expect.fields.is_empty()
    {
        return wrong("a WebSocket's messages are compared by body, length or hash only".into());
    }
    if let Some((name, _)) = target.fields.iter().find(own) {
        return wrong(format!("the handshake sets {name}"));
    }
    let body = target.body.as_deref().unwrap_or_default();
    if messages.kind == Kind::Text && std::str::from_utf8(body).is_err() {
        return wrong("a text message is UTF-8 (RFC 6455 5.6): this one is binary".into());
    }
    let mut conn = Connection::client(Arc::new(Limits::client()), Instant::now());
    Handshake::begin(&mut conn, target, &mut Scratch::new([0; 32]))
        .map(drop)
        .or_else(|error| wrong(error.to_string()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn invalid_configurations_are_refused() {
        let target = Target::get("http://a/").unwrap();
        let base = Config::new(vec![target.clone()]);
        assert!(base.check().is_ok());
        let broken = |change: fn(&mut Config)| {
            let mut config = base.clone();
            change(&mut config);
            config.check().is_err()
        };
        assert!(broken(|config| config.targets.clear()));
        assert!(broken(|config| config.threads = 11));
        assert!(broken(|config| config.pipeline = 0));
        assert!(broken(|config| config.streams = 2));
        assert!(broken(|config| {
            config.protocol = Protocol::Http2;
            config.pipeline = 2;
        }));
        assert!(broken(|config| config.targets[0].method = "G T".into()));
        assert!(broken(|config| {
            config.targets[0]
                .fields
                .push(("a".into(), b"b\r\nc"[..].into()));
        }));
        assert!(broken(|config| {
            config.targets[0] = Target::get("ws://a/").unwrap();
            config.protocol = Protocol::Http2;
        }));
        assert!(broken(|config| {
            config.mix = Mix::AtRandom;
            config.targets[0].weight = 0;
        }));
    }

    #[test]
    fn invalid_websocket_targets_are_refused() {
        let base = Config::new(vec![Target::get("ws://a/").unwrap()]);
        assert!(base.check().is_ok());
        let changed = |change: fn(&mut Target)| {
            let mut config = base.clone();
            change(&mut config.targets[0]);
            config.check()
        };
        assert!(changed(|target| target.body = None).is_ok());
        assert!(changed(|target| target.expect.status = Some(101)).is_ok());
        let protocol = ("Sec-WebSocket-Protocol".into(), b"a, b"[..].into());
        let mut config = base.clone();
        config.targets[0].fields.push(protocol);
        assert!(config.check().is_ok());
        for (change, part) in [
            (
                (|target| target.method = "POST".into()) as fn(&mut Target),
                "GET",
            ),
            (|target| target.chunk_bytes = Some(1), "whole"),
            (|target| target.expect.status = Some(200), "compared"),
            (
                |target| target.body = Some(Bytes::from_static(b"\xff")),
                "UTF-8",
            ),
            (
                |target| target.fields.push(("upgrade".into(), b"x"[..].into())),
                "sets upgrade",
            ),
            (
                |target| target.fields.push(("a".into(), b"b\r\nc"[..].into())),
                "ws://a",
            ),
        ] {
            let why = changed(change).unwrap_err().to_string();
            assert!(why.contains(part), "{why}");
        }
    }
}
