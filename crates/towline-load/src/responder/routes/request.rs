//! A request, as far as its response depends on it.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use towline_proto::ws::handshake::{Acceptance, Refusal};
use towline_proto::{BodySize, StreamId};

use super::behaviour::{Fault, Faults};
use super::job::{CollectResponse, DrainResponse};
use super::responses::Fixed;

pub struct PendingRequest {
    pub stream: StreamId,
    pub route: Route,
    /// Content-Length of the body.
    pub length: Option<u64>,
    /// The client waits for 100 before it sends the body.
    pub expects: bool,
}

pub enum Route {
    Fixed(&'static Fixed),
    Text(String),
    Document(Bytes),
    Gzip,
    /// Count and size of chunks.
    Pieces(usize, usize),
    /// A hundred events at once.
    Ticks,
    Bytes(u64, BodySize),
    Echo,
    Collect(CollectResponse),
    Drain(DrainResponse),
    /// 2,000 bytes, chunked, after a delay.
    Req(Duration),
    Later(Box<Route>, Duration),
    Chunked,
    Events(EventPlan),
    File(PathBuf),
    Fault(Fault),
    /// A WebSocket handshake, valid or not.
    Socket(Box<UpgradeRequest>),
    WsRefused(Box<Refusal>),
    /// The faults injected so far.
    InjectedFaults,
}

impl Route {
    /// The delay that is part of the response.
    pub fn delay(&self) -> Duration {
        match self {
            Self::Req(delay) | Self::Later(_, delay) => *delay,
            _ => Duration::ZERO,
        }
    }
}

/// Parameters of an event stream: a `count` of 0 is endless; each event has its number and `data_bytes`
/// of text.
#[derive(Clone, Copy)]
pub struct EventPlan {
    pub per_s: u64,
    pub count: u64,
    pub data_bytes: usize,
}

/// A valid handshake.
pub struct UpgradeRequest {
    pub accepted: Acceptance,
    pub faults: Faults,
}
