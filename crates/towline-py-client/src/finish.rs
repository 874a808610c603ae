//! The last step of a call on the fast path: makes the `Response`, or leaves it to the flow in Python.
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::head::Head;
use super::reply::CallInfo;
use super::response::{self, ResponseCore};
use super::response_config::ResponseConfig;
use super::sent_request::SentRequest;

/// A complete response.
pub struct BufferedResponse {
    pub head: Arc<Head>,
    pub content: Py<PyBytes>,
    pub info: CallInfo,
}

/// Everything needed to make the `Response` when the call has completed.
pub struct ResponseFinish {
    pub config: Arc<ResponseConfig>,
    pub client: Py<PyAny>,
    pub sent: SentRequest,
    pub follow_redirects: bool,
}

/// The `Response`, or the result of `_finish_in_python`: a coroutine for `AsyncClient`, a response for `Client`.
pub enum FinishOutcome {
    Response(Py<PyAny>),
    FromPython(Py<PyAny>),
}

/// Whether the flow in Python has to handle a response: a redirect, a cookie, a status to retry.
pub fn needs_flow(head: &Head, config: &ResponseConfig, follow_redirects: bool) -> bool {
    let (flags, status) = (head.flags, head.status);
    let redirects = follow_redirects && flags.has_location && matches!(status, 300..=399);
    redirects || flags.has_cookies || config.retry_statuses.contains(&status)
}

impl ResponseFinish {
    /// Sets `request` of an error of the call.
    pub fn failed(&self, py: Python<'_>, error: PyErr) -> PyErr {
        self.sent.attach(self.client.bind(py), error)
    }

    pub fn finish(self, py: Python<'_>, response: BufferedResponse) -> PyResult<FinishOutcome> {
        let needs_flow = needs_flow(&response.head, &self.config, self.follow_redirects);
        let client = needs_flow.then(|| self.client.clone_ref(py));
        let state = response::State {
            head: Some(response.head),
            content: Some(response.content),
            config: Some(Arc::clone(&self.config)),
            timings: response.info.timings,
            reused: response.info.reused,
            client: Some(self.client),
            sent: Some(self.sent),
            ..response::State::default()
        };
        let made = ResponseCore::make(py, &self.config, state)?;
        match client {
            None => Ok(FinishOutcome::Response(made)),
            Some(client) => client
                .call_method1(py, intern!(py, "_finish_in_python"), (made,))
                .map(FinishOutcome::FromPython),
        }
    }
}
