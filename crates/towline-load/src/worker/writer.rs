//! Writing requests to connections: as they are, with the values of a user, or as a message of a WebSocket.

use std::io;

use towline_io::Conn;
use towline_proto::StreamId;

use super::conn_state::ConnState;
use super::send_modes;
use super::slot::QueuedRequest;
use super::templates::{NotSent, RequestTemplates};
use super::users::Users;
use super::websocket::WsContext;
use crate::config::Config;
use crate::target::Target;

pub(super) struct RequestWriter {
    pub(super) templates: RequestTemplates,
    pub(super) users: Option<Users>,
    pub(super) websockets: WsContext,
}

impl RequestWriter {
    /// A writer for `slots` connections.
    pub(super) fn new(config: &Config, slots: usize) -> io::Result<Self> {
        Ok(Self {
            templates: RequestTemplates::new(config),
            users: Users::new(config, slots).map_err(io::Error::other)?,
            websockets: WsContext::new(config)?,
        })
    }

    /// Writes the part of a request that may be sent now; `is_last`: of its connection.
    pub(super) fn begin(
        &mut self,
        conn: &mut Conn<ConnState>,
        slot: u32,
        queued: &QueuedRequest,
        (is_last, targets): (bool, &[Target]),
    ) -> Result<StreamId, NotSent> {
        if conn.state.socket.is_some() {
            let begun = (self.websockets).send(conn, &targets[queued.target as usize]);
            return begun.ok_or(NotSent::Unavailable);
        }
        if let Some(users) = &mut self.users
            && let Some(begun) = users.begin(conn, slot, queued.target, is_last)
        {
            return begun;
        }
        let template = self.templates.of(queued.target);
        let begun = send_modes::begin(conn, template, is_last, queued.follows.is_some());
        let stream = begun.map_err(NotSent::of)?;
        conn.track_request(stream);
        Ok(stream)
    }
}
