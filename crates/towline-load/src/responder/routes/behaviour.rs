//! Behaviour of the whole server, its faults, and the log of those that were injected.

use std::time::{Duration, Instant};

use super::spin::Spin;
use super::stall::{Stall, StallPlan};

/// The application whose responses are served.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub enum App {
    #[default]
    Catalogue,
    /// The application of Hornbeam.
    HelloWorld,
}

/// A response that is wrong in one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One bit of the body is wrong.
    OneByte,
    /// A body one byte shorter, with a matching length.
    Short,
    /// A body one byte longer, with a matching length.
    Long,
    /// The connection ends in the middle of the body; with HTTP/2 the stream.
    Truncated,
    /// The connection ends without a response.
    EarlyClose,
    /// Bytes that are not HTTP, then the end.
    Garbage,
    /// The right response, followed by an unsolicited one.
    Twice,
    /// The response comes before the body has been read.
    Early,
    /// No response.
    Hang,
    /// A WebSocket text is echoed as binary, or vice versa.
    Kind,
}

impl Fault {
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "one-byte" => Self::OneByte,
            "short" => Self::Short,
            "long" => Self::Long,
            "truncated" => Self::Truncated,
            "early-close" => Self::EarlyClose,
            "garbage" => Self::Garbage,
            "twice" => Self::Twice,
            "early" => Self::Early,
            "hang" => Self::Hang,
            "kind" => Self::Kind,
            _ => return None,
        })
    }
}

/// The fault of a share of the messages.
pub type Faults = Option<(Fault, f64)>;

#[derive(Default)]
pub struct Behaviour {
    pub app: App,
    /// Delay of every response.
    pub delay: Duration,
    /// Time before a delayed response at which the server stops sleeping and polls.
    pub poll_before_due: Duration,
    /// Close a connection with this response.
    pub requests_per_connection: Option<u64>,
    /// Refuse the first request on connections beyond this number.
    pub max_connections: Option<usize>,
    pub injected: InjectedFaults,
    /// Set by `set_stall` and `set_spin`.
    pub stall: Option<Stall>,
    pub spin: Option<Spin>,
}

/// Faults injected so far.
#[derive(Default)]
pub struct InjectedFaults {
    pub requests: u64,
    pub slow: ShareSampler,
    pub errors: ShareSampler,
    pub faults: ShareSampler,
    /// Begin and end of each stall, in nanoseconds of the monotonic clock.
    pub stalls: Vec<(u64, u64)>,
}

/// Selects a share of a sequence, at equal distances.
#[derive(Default)]
pub struct ShareSampler {
    /// Accumulated share since the last hit.
    due: f64,
    pub hit: u64,
}

impl ShareSampler {
    /// Whether the next element is selected: of the first n, floor(n x share) are.
    pub fn sample(&mut self, share: f64) -> bool {
        self.due += share.min(1.0);
        // Tolerates rounding: ten times 0.1 is 1.
        let hits = self.due > 1.0 - 1e-9;
        if hits {
            self.due -= 1.0;
            self.hit += 1;
        }
        hits
    }
}

impl Behaviour {
    /// Enables stalls with this plan.
    pub fn set_stall(&mut self, plan: StallPlan) {
        self.stall = Some(Stall::new(plan, Instant::now()));
    }

    /// Adds CPU time: `steps_per_request` for each request, and `percent` of each turn.
    pub fn set_spin(&mut self, steps_per_request: u64, percent: f64) {
        self.spin = Some(Spin::new(steps_per_request, percent));
    }

    pub fn next_stall(&self) -> Option<Instant> {
        self.stall.as_ref().and_then(Stall::next)
    }

    pub fn stall_if_due(&mut self) {
        if let Some(stall) = &mut self.stall {
            stall.if_due(self.injected.requests, &mut self.injected.stalls);
        }
    }

    pub fn spin(&self) {
        if let Some(spin) = &self.spin {
            spin.request();
        }
    }

    pub fn end_of_turn(&mut self) {
        if let Some(spin) = &mut self.spin {
            spin.turn();
        }
    }

    /// Whether to refuse a connection: with its first request, so that the client receives the response.
    pub fn refuses(&self, request: u64, open: usize) -> bool {
        request == 1 && self.max_connections.is_some_and(|most| open > most)
    }

    /// Whether to close the connection with this request.
    pub fn is_last(&self, request: u64) -> bool {
        self.requests_per_connection
            .is_some_and(|most| request >= most)
    }
}

impl InjectedFaults {
    pub fn json(&self) -> String {
        let stalls: Vec<String> = self
            .stalls
            .iter()
            .map(|(from, to)| format!("[{from},{to}]"))
            .collect();
        format!(
            r#"{{"requests":{},"slow":{},"errors":{},"faults":{},"stalls":[{}]}}"#,
            self.requests,
            self.slow.hit,
            self.errors.hit,
            self.faults.hit,
            stalls.join(",")
        )
    }
}
