//! What becomes of the response to a plain call.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use super::head::Head;
use super::reply::Facts;
use super::response::{self, ResponseCore, Sent};
use super::response_config::Terms;

/// A whole response.
pub struct Whole {
    pub head: Arc<Head>,
    pub content: Py<PyBytes>,
    pub facts: Facts,
}

/// What becomes of a whole response.
pub struct Plan {
    pub terms: Arc<Terms>,
    pub client: Py<PyAny>,
    pub method: Py<PyString>,
    pub url: Py<PyAny>,
    pub arguments: Option<Py<PyDict>>,
    pub follow_redirects: bool,
}

/// A response, or what `_continue` makes of one that leaves something to decide.
pub enum Finished {
    Response(Py<PyAny>),
    Continued(Py<PyAny>),
}

/// Whether the flow has to see a response to a plain call.
pub fn leaves_undecided(head: &Head, terms: &Terms, follow_redirects: bool) -> bool {
    let (marks, status) = (head.marks, head.status);
    let redirects = follow_redirects && marks.has_location && matches!(status, 300..=399);
    redirects || marks.has_cookies || terms.retry_statuses.contains(&status)
}

impl Plan {
    pub fn finish(self, py: Python<'_>, whole: Whole) -> PyResult<Finished> {
        let undecided = leaves_undecided(&whole.head, &self.terms, self.follow_redirects);
        let client = undecided.then(|| self.client.clone_ref(py));
        let state = response::State {
            head: Some(whole.head),
            content: Some(whole.content),
            terms: Some(Arc::clone(&self.terms)),
            timings: whole.facts.timings,
            reused: whole.facts.reused,
            client: Some(self.client),
            sent: Some(Sent {
                method: self.method,
                url: self.url,
                arguments: self.arguments,
            }),
            ..response::State::default()
        };
        let response = ResponseCore::make(py, &self.terms, state)?;
        match client {
            None => Ok(Finished::Response(response)),
            Some(client) => client
                .call_method1(py, intern!(py, "_continue"), (response,))
                .map(Finished::Continued),
        }
    }
}
