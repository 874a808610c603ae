//! What becomes of the response to a plain call.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use super::head::Head;
use super::reply::CallInfo;
use super::response::{self, ResponseCore, Sent};
use super::response_config::ResponseConfig;

/// A whole response.
pub struct BufferedResponse {
    pub head: Arc<Head>,
    pub content: Py<PyBytes>,
    pub facts: CallInfo,
}

/// What becomes of a whole response.
pub struct ResponseFinish {
    pub terms: Arc<ResponseConfig>,
    pub client: Py<PyAny>,
    pub method: Py<PyString>,
    pub url: Py<PyAny>,
    pub arguments: Option<Py<PyDict>>,
    pub follow_redirects: bool,
}

/// A response, or what `_finish_in_python` makes of one that leaves something to decide.
pub enum FinishOutcome {
    Response(Py<PyAny>),
    Coroutine(Py<PyAny>),
}

/// Whether the flow has to see a response to a plain call.
pub fn needs_flow(head: &Head, terms: &ResponseConfig, follow_redirects: bool) -> bool {
    let (marks, status) = (head.marks, head.status);
    let redirects = follow_redirects && marks.has_location && matches!(status, 300..=399);
    redirects || marks.has_cookies || terms.retry_statuses.contains(&status)
}

impl ResponseFinish {
    pub fn finish(self, py: Python<'_>, whole: BufferedResponse) -> PyResult<FinishOutcome> {
        let needs_flow = needs_flow(&whole.head, &self.terms, self.follow_redirects);
        let client = needs_flow.then(|| self.client.clone_ref(py));
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
            None => Ok(FinishOutcome::Response(response)),
            Some(client) => client
                .call_method1(py, intern!(py, "_finish_in_python"), (response,))
                .map(FinishOutcome::Coroutine),
        }
    }
}
