//! Calling: from a [`Route`] to a connection that speaks to its origin.

pub mod blocking;
pub mod caller;
pub mod dial;
mod facts;
pub mod pool;
pub mod request;
pub mod route;
pub mod rules;
mod waiting;
pub mod websocket;
mod wire;

pub use crate::fork;
pub use blocking::{
    Blocking, BlockingCall, BlockingConfig, BlockingSocket, Ended, Heard, Patience, Shaken, Taken,
    Trailer, Written,
};
pub use caller::{CallEvent, CallId, CallRead, Caller, CallerConfig, Flush};
pub use dial::{
    Dial, DialConfig, DialError, DialErrorKind, DialPhase, DialTimings, Established, Keepalive,
    Overrides, Progress, Resolver, Watch,
};
pub use facts::ConnectionFacts;
pub use pool::{Action, Lease, OriginId, Pool, PoolLimits, PoolStatus, SlotId, WaiterId};
pub use request::{
    Backoff, Body, CallError, CallErrorKind, CallOptions, CallPhase, Prepared, RequestText, Stale,
    Timeouts, Timings,
};
pub use route::{Credentials, Proxy, ProxyScheme, Route};
pub use websocket::{Closed, Outgoing, Received, SendRefusal, WebSocketTerms};
