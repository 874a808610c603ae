//! Values of the requests that a probe sends: those of the first row, then those of the responses before.

use towline_proto::PreparedRequest;

use crate::capture::Captured;
use crate::config::Config;
use crate::error::LoadError;
use crate::variables::{self, VariableRequest};

pub(super) struct Values<'a> {
    config: &'a Config,
    requests: Vec<Option<VariableRequest>>,
    names: Vec<Box<str>>,
    first_capture: Vec<usize>,
    /// By variable; empty before the response from which one is taken.
    by_variable: Vec<Box<[u8]>>,
}

impl<'a> Values<'a> {
    pub(super) fn new(config: &'a Config) -> Result<Self, LoadError> {
        let row = config.data.as_ref().map_or(&[][..], |data| data.row(0));
        let columns = row.len();
        let mut values: Vec<Box<[u8]>> = row.iter().map(|value| value.as_bytes().into()).collect();
        let (first_capture, captures) = variables::first_captures(config);
        values.resize(columns + captures, Box::default());
        Ok(Self {
            config,
            requests: variables::requests(config)?,
            names: variables::names(config),
            first_capture: first_capture.iter().map(|at| columns + at).collect(),
            by_variable: values,
        })
    }

    /// The request of a target that has values. `Err`: which of them make it invalid.
    pub(super) fn request(&self, target: usize) -> Result<Option<PreparedRequest>, String> {
        let Some(request) = &self.requests[target] else {
            return Ok(None);
        };
        let value = |variable: usize| &*self.by_variable[variable];
        let row = self.config.data.as_deref().map(|data| (data, 0));
        let place = |variables: &[usize]| variables::place(&self.names, row, variables);
        let prepared = request.prepared(false, value);
        prepared
            .map(Some)
            .map_err(|error| request.mistake(error, value, place))
    }

    /// Keeps the values of a response; `Err` names the first that is missing.
    pub(super) fn keep(&mut self, target: usize, found: Captured) -> Result<(), String> {
        let captures = &self.config.targets[target].expect.captures;
        let values =
            (found.end(captures)).map_err(|(index, lack)| captures[index].failure(lack))?;
        let places = &mut self.by_variable[self.first_capture[target]..];
        for (place, value) in places.iter_mut().zip(values) {
            *place = value;
        }
        Ok(())
    }
}
