//! Calling: from a [`Route`] to a connection that speaks to its origin.

mod acquire_timer;
pub mod blocking;
mod conn_ext;
mod connection_info;
pub mod dial;
pub mod driver;
pub mod pool;
pub mod request;
pub mod retry;
pub mod route;
pub mod websocket;

pub use crate::fork;
pub use blocking::{
    Blocking, BlockingCall, BlockingConfig, BlockingSocket, Ended, Heard, Patience, Shaken, Taken,
    Trailer, Written,
};
pub use connection_info::ConnectionFacts;
pub use dial::{
    Dial, DialConfig, DialError, DialErrorKind, DialPhase, DialTimings, Established, Keepalive,
    Overrides, Progress, Resolver, Watch,
};
pub use driver::{CallEvent, CallId, CallRead, Caller, CallerConfig, Flush};
pub use pool::{Action, Lease, OriginId, Pool, PoolLimits, PoolStatus, SlotId, WaiterId};
pub use request::{
    Backoff, Body, CallError, CallErrorKind, CallOptions, CallPhase, Prepared, RequestText, Stale,
    Timeouts, Timings,
};
pub use route::{Credentials, Proxy, ProxyScheme, Route};
pub use websocket::{Closed, Outgoing, Received, SendRefusal, WebSocketTerms};
