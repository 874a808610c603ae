//! Calling: from a [`Route`] to a connection that speaks to its origin.

pub mod dial;
pub mod fork;
pub mod route;

pub use dial::{
    Dial, DialConfig, DialError, DialErrorKind, DialPhase, DialTimings, Established, Keepalive,
    Overrides, Progress, Resolver, Watch,
};
pub use route::{Credentials, Proxy, ProxyScheme, Route};
