//! Names of connections within an endpoint.

use quinn_proto::ConnectionHandle;

/// Number of a connection in its endpoint; used again after the connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(pub(crate) usize);

impl Key {
    pub(crate) fn handle(self) -> ConnectionHandle {
        ConnectionHandle(self.0)
    }
}
