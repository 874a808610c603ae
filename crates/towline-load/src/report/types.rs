//! The figures of a run.

use serde::{Deserialize, Serialize};
use towline_io::quic::QuicCounts;

/// One run. Rates count successful responses only; times are in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub tool: String,
    pub version: String,
    /// When the measured time began, in seconds since 1970.
    pub began_unix_s: f64,
    pub setup: Setup,
    /// The measured time.
    pub measured_s: f64,
    /// Complete responses that passed their checks; messages that were echoed correctly.
    pub answered: u64,
    /// `answered` per second of the measured time.
    pub requests_per_s: f64,
    /// Bytes of the response bodies.
    pub body_bytes: u64,
    /// All bytes received, without TLS.
    pub received_bytes: u64,
    pub received_bytes_per_s: f64,
    /// Open loop: corrected, from the intended start. Closed loop: the same as `service`.
    pub response: Latency,
    /// Uncorrected: from sending to the last byte.
    pub service: Latency,
    /// From sending to the head of the response.
    pub first_byte: Latency,
    /// From the dial to a usable connection, lookup and TLS included.
    pub connect: Latency,
    /// Figures of each target, if there are several: the steps of a session, or the parts of a mix.
    #[serde(default)]
    pub steps: Vec<Step>,
    pub open_loop: Option<OpenLoop>,
    pub errors: Errors,
    /// Refused by a server at its limit (see the refusal statuses): not in the rate, and no errors.
    pub refused: u64,
    /// Description of the first failure.
    pub first_failure: Option<String>,
    /// Descriptions of what made requests invalid, such as the row and the column of a value: each once, the first ten. They were not
    /// sent.
    #[serde(default)]
    pub invalid: Vec<String>,
    /// Requests in flight when the measured time ended.
    #[serde(default)]
    pub in_flight: InFlight,
    /// The latencies with those of the requests that timed out, at the time that they had waited: thresholds judge
    /// these. `None`: no request timed out.
    #[serde(default)]
    pub with_timeouts: Option<Latencies>,
    /// Responses with another status or length than the first successful one of their target, where
    /// nothing else is expected: no errors.
    #[serde(default)]
    pub changed: u64,
    /// Description of the first such response.
    #[serde(default)]
    pub first_change: Option<String>,
    /// Why the run ended before its time: a server that was lost.
    #[serde(default)]
    pub ended_early: Option<String>,
    /// Statuses of complete responses, in ascending order. With `WebSockets`: of refused handshakes, and
    /// the codes of the server's close frames.
    pub statuses: Vec<StatusCount>,
    pub live_connections: LiveConnections,
    pub reconnects: u64,
    /// HTTP/3: what QUIC counted.
    #[serde(default)]
    pub quic: Option<Quic>,
    pub series: Vec<Second>,
    pub generator: Generator,
    /// Conditions that affect the figures.
    pub warnings: Vec<String>,
    /// The agents that shared the load; none if it was sent from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentFigures>,
}

/// The three latencies of requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    pub response: Latency,
    pub service: Latency,
    pub first_byte: Latency,
}

/// Requests without a response when the measured time ended, and what became of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InFlight {
    /// How long they had waited then; `count` is their number.
    pub age: Latency,
    /// Connections that were being opened then, or on which the server allowed no request.
    pub connections: u64,
    /// Requests and connections of these that got no response, or were not open, within `overdue_after_us` of their start: they are among the
    /// errors.
    pub overdue: u64,
    /// The timeout; at the end of a closed loop a multiple of the response times, if that is less.
    pub overdue_after_us: f64,
}

/// One of the agents that shared a load. Figures of a lost agent are those of its last sign of life, without latencies;
/// they are not part of the whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentFigures {
    pub name: String,
    pub threads: usize,
    /// Part of the load that it was to send.
    pub share: f64,
    /// Why nothing was received from it in the end.
    pub lost: Option<String>,
    /// Seconds from the start to its loss.
    pub lost_after_s: Option<f64>,
    pub answered: u64,
    pub requests_per_s: f64,
    pub errors: Errors,
    pub first_failure: Option<String>,
    pub response: Latency,
    pub open_loop: Option<OpenLoop>,
    pub generator: Generator,
    /// Time from the common start to its own, on its clock.
    pub start_delay_us: f64,
    /// Difference of its monotonic clock from that of the controller.
    pub clock_ahead_us: f64,
    /// Bound of the error of its clock, aligned to that of the controller: half the shortest round trip.
    pub clock_error_us: f64,
    /// Observations of the run.
    pub notes: Vec<String>,
}

impl AgentFigures {
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }
}

/// Packets of all connections since they were opened, warm-up included. Losses are those of the generator's own
/// packets: of the server's it only sees what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quic {
    #[serde(default)]
    pub connections: u64,
    /// Connections that began with early data (0-RTT), and those of which the server accepted it. The others were
    /// connected after a round trip more.
    #[serde(default)]
    pub early_sent: u64,
    #[serde(default)]
    pub early_accepted: u64,
    pub sent_packets: u64,
    pub lost_packets: u64,
    pub sent_datagrams: u64,
    pub received_datagrams: u64,
    pub congestion_events: u64,
}

impl Quic {
    /// Share of the connections whose early data was accepted.
    #[expect(clippy::cast_precision_loss, reason = "a share, for reading")]
    pub fn early_share(&self) -> f64 {
        self.early_accepted as f64 / (self.connections.max(1)) as f64
    }
}

impl From<QuicCounts> for Quic {
    fn from(counts: QuicCounts) -> Self {
        Self {
            connections: counts.connections,
            early_sent: counts.early_sent,
            early_accepted: counts.early_accepted,
            sent_packets: counts.sent_packets,
            lost_packets: counts.lost_packets,
            sent_datagrams: counts.sent_datagrams,
            received_datagrams: counts.received_datagrams,
            congestion_events: counts.congestion_events,
        }
    }
}

/// The configuration of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    pub targets: Vec<String>,
    pub connections: usize,
    pub threads: usize,
    /// `h1`, `h2`, `h3`, or `ws` if the load consists of messages.
    pub protocol: String,
    pub pipeline: usize,
    /// HTTP/2 and HTTP/3: concurrent streams on each connection.
    pub streams: usize,
    pub requests_per_connection: Option<u64>,
    /// `None`: a closed loop.
    pub rate_per_s: Option<f64>,
    pub poisson: bool,
    /// The stages, as given: of the rate in an open loop, otherwise of connections.
    #[serde(default)]
    pub stages: Option<String>,
    pub duration_s: Option<f64>,
    pub requests: Option<u64>,
    pub warm_up_s: f64,
    pub timeout_s: f64,
    pub seed: u64,
}

impl Setup {
    /// The version of HTTP, if its connections have streams.
    pub(crate) fn multiplexed_version(&self) -> Option<&'static str> {
        match self.protocol.as_str() {
            "h2" => Some("HTTP/2"),
            "h3" => Some("HTTP/3"),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub count: u64,
    pub mean_us: f64,
    pub stdev_us: f64,
    pub min_us: f64,
    pub max_us: f64,
    pub percentiles: Vec<Percentile>,
}

/// The requests of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Name of the target, or its method and path.
    pub name: String,
    pub answered: u64,
    /// Failures of its requests. Failed dials belong to no target.
    pub failed: u64,
    pub response: Latency,
    pub first_byte: Latency,
    /// Latencies with those of requests that timed out, see [`Report`].
    #[serde(default)]
    pub with_timeouts: Option<Latencies>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Percentile {
    pub percent: f64,
    pub us: f64,
}

impl Latency {
    /// Microseconds at one of the recorded percents; 0 when nothing was recorded.
    pub fn at(&self, percent: f64) -> f64 {
        self.percentiles
            .iter()
            .find(|known| (known.percent - percent).abs() < 1e-9)
            .map_or(0.0, |known| known.us)
    }
}

/// How well the schedule was kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenLoop {
    pub target_per_s: f64,
    /// Share of the requests due in the measured time that were sent in it and succeeded.
    pub achieved_share: f64,
    /// Due in the measured time, without a free connection until after its end.
    pub unsent: u64,
    /// Due in the measured time, with a free connection only after its end: sent late, so that the wait
    /// counts in the response times.
    #[serde(default)]
    pub late: u64,
    /// Lateness of the generator although a connection was free.
    pub lag: Latency,
    /// Time without a free connection.
    pub connection_wait: Latency,
}

/// Failures by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Errors {
    /// Lookup, TCP, TLS.
    pub connect: u64,
    pub timeout: u64,
    /// The connection ended before the response was complete.
    pub reset: u64,
    /// The response, or unexpected input, violates the rules of HTTP or WebSocket.
    pub protocol: u64,
    /// Not the expected status, or, when none is, not 2xx or 3xx.
    pub status: u64,
    /// Not the expected length or bytes, or a message of the other kind.
    pub content: u64,
    /// HTTP/2: the server reset the stream.
    pub stream_reset: u64,
    /// HTTP/2: not processed by the server: reset with `REFUSED_STREAM`, or above the last stream of its GOAWAY.
    pub unprocessed: u64,
    /// Not sent: the values of the request make no valid one.
    #[serde(default)]
    pub invalid: u64,
}

impl Errors {
    pub fn total(&self) -> u64 {
        let of_connections = self.connect + self.timeout + self.reset + self.protocol;
        let of_streams = self.stream_reset + self.unprocessed;
        of_connections + of_streams + self.status + self.content + self.invalid
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusCount {
    pub status: u16,
    pub count: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveConnections {
    pub wanted: u64,
    pub fewest: u64,
    pub at_end: u64,
}

/// One second of the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    pub answered: u64,
    pub failed: u64,
    pub received_bytes: u64,
    pub live_connections: u64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub max_us: f64,
}

/// The generator's own cost, and whether it and not the server was the limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Generator {
    pub cpu_s: f64,
    pub cpu_us_per_request: f64,
    /// CPU time of the thread that used most, of the time it had.
    pub busiest_share: f64,
    /// The largest share of its time that a thread was ready and did not get a core.
    pub kept_waiting_share: f64,
    /// Time between two polls of the sockets: a response may have waited that long.
    pub busy_turn: Latency,
    pub peak_memory_bytes: u64,
    /// Why the generator was the limit, if it was: rates then read "at least".
    pub limit: Option<String>,
}
