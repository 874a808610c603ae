//! The HTTP client: from a [`Route`] to calls on a connection to its origin.

mod acquire_timer;
pub mod adaptive_spin;
pub mod alt_svc;
pub mod blocking;
mod call_error;
mod conn_ext;
mod connection_info;
pub mod connection_log;
pub mod dial;
pub mod driver;
pub mod pool;
pub mod request;
mod retry_policy;
pub mod route;
pub mod websocket;

pub use crate::fork;
pub use alt_svc::{Http3, Http3Policy};
pub use blocking::{
    BlockingCall, BlockingClient, BlockingConfig, BlockingError, BlockingWebSocket, FillOutcome,
    ReadOutcome, UpgradeOutcome, WaitPolicy, WriteOutcome, WsRecvOutcome,
};
pub use conn_ext::Trailer;
pub use connection_info::ConnectionInfo;
pub use dial::{
    Dial, DialConfig, DialError, DialErrorKind, DialPhase, DialTimings, Established, HostOverrides,
    Keepalive, Progress, Resolver, Watch,
};
pub use driver::{CallEvent, CallId, CallRead, ClientDriver, ClientDriverConfig, FlushPolicy};
pub use pool::{Action, Lease, OriginId, Pool, PoolLimits, PoolStatus, SlotId, WaiterId};
pub use request::{
    Backoff, Body, CallError, CallErrorKind, CallOptions, CallPhase, OutgoingRequest, RequestText,
    StaleRetry, Timeouts, Timings,
};
pub use route::{Alternative, Credentials, Proxy, ProxyScheme, Route};
pub use websocket::{Outgoing, WebSocketConfig, WsClosed, WsReceived, WsSendError};
