//! Users: each connection has a row of the data and, in a session, the values of its earlier responses.
//!
//! ```text
//! first step ─► ... ─► last step ─► the first step again, with the next row
//!     ▲───failure─────────┘
//! ```

use std::sync::Arc;

use towline_io::Conn;
use towline_proto::StreamId;

use super::Worker;
use super::conn_state::ConnState;
use super::templates::NotSent;
use crate::check::{Check, Mismatch};
use crate::config::{Config, Mix};
use crate::data::Data;
use crate::error::LoadError;
use crate::variables::{self, VariableRequest};

pub(super) struct Users {
    data: Option<Arc<Data>>,
    is_session: bool,
    /// Requests with values, by target.
    requests: Vec<Option<VariableRequest>>,
    /// Names of all variables.
    names: Vec<Box<str>>,
    /// Index of the first capture of each target among all.
    first_capture: Vec<usize>,
    /// Users, by slot.
    by_slot: Vec<User>,
}

#[derive(Clone, Default)]
struct User {
    row: Option<usize>,
    captured: Vec<Box<[u8]>>,
}

impl Users {
    /// `None`: no request has values, and none belongs to a session.
    pub(super) fn new(config: &Config, slots: usize) -> Result<Option<Self>, LoadError> {
        let is_session = config.mix == Mix::Session;
        if !config.has_variables() && !is_session {
            return Ok(None);
        }
        let (first_capture, captures) = variables::first_captures(config);
        let user = User {
            row: None,
            captured: vec![Box::default(); captures],
        };
        Ok(Some(Self {
            data: config.data.clone(),
            is_session,
            requests: variables::requests(config)?,
            names: variables::names(config),
            first_capture,
            by_slot: vec![user; slots],
        }))
    }

    /// Writes the request of a target that has values. `None`: it has none.
    pub(super) fn begin(
        &mut self,
        conn: &mut Conn<ConnState>,
        slot: u32,
        target: u32,
        is_last: bool,
    ) -> Option<Result<StreamId, NotSent>> {
        let request = self.requests[target as usize].as_ref()?;
        let user = &mut self.by_slot[slot as usize];
        let mut row: &[Box<str>] = &[];
        if let Some(data) = &self.data {
            if !self.is_session {
                user.row = None;
            }
            row = data.row(*user.row.get_or_insert_with(|| data.next()));
        }
        let (row_index, captured) = (user.row, &self.by_slot[slot as usize].captured);
        let value = |variable: usize| match row.get(variable) {
            Some(value) => value.as_bytes(),
            None => &*captured[variable - row.len()],
        };
        let begun = (request.prepared(is_last, value))
            .and_then(|prepared| conn.proto.request_prepared(&prepared));
        Some(begun.map_err(|error| match NotSent::of(error) {
            NotSent::Invalid(_) => {
                let row = self.data.as_deref().zip(row_index);
                let place = |variables: &[usize]| variables::place(&self.names, row, variables);
                NotSent::Invalid(request.mistake(error, value, place))
            }
            not_sent @ NotSent::Unavailable => not_sent,
        }))
    }

    /// Keeps the values of a response, and ends the session with its last one.
    pub(super) fn on_response(
        &mut self,
        slot: u32,
        target: usize,
        check: &mut Check,
        config: &Config,
    ) -> Option<Mismatch> {
        let captures = &config.targets[target].expect.captures;
        let user = &mut self.by_slot[slot as usize];
        if let Some(captured) = check.take_captured() {
            match captured.end(captures) {
                Err((index, lack)) => return Some(Mismatch::Capture(index, lack)),
                Ok(values) => {
                    let places = &mut user.captured[self.first_capture[target]..];
                    for (place, value) in places.iter_mut().zip(values) {
                        *place = value;
                    }
                }
            }
        }
        if target + 1 == self.requests.len() {
            user.row = None;
        }
        None
    }
}

impl Worker {
    /// Begins the session of `slot` again, after a failure.
    pub(super) fn restart_session(&mut self, slot: u32) {
        if let Some(users) = &mut self.writer.users
            && users.is_session
        {
            users.by_slot[slot as usize].row = None;
            self.origins.restart(self.slots.get(slot).origin);
        }
    }
}
