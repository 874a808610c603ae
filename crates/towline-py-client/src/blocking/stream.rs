//! `Client.stream` on the fast path: waits for the head natively and leaves the body to be read.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::super::core::upper_case;
use super::super::finish::needs_flow;
use super::super::response::{ResponseCore, State};
use super::super::sent_request::SentRequest;
use super::body::SyncBody;
use super::client::ClientCore;
use super::reply::SyncReply;

/// Returns the response with its body unread, and whether the flow in Python has to handle it. None: the call cannot
/// take the fast path.
#[pyfunction]
#[pyo3(signature = (client, method, url, arguments, /))]
pub fn open_stream(
    client: &Bound<'_, ClientCore>,
    method: &Bound<'_, PyAny>,
    url: &Bound<'_, PyAny>,
    arguments: &Bound<'_, PyDict>,
) -> PyResult<Option<(Py<PyAny>, bool)>> {
    let py = client.py();
    let Ok(method) = method.cast_exact::<PyString>() else {
        return Ok(None);
    };
    let method = upper_case(method)?;
    // Python decides whether anything else is a valid method.
    if !method
        .to_str()?
        .bytes()
        .all(|byte| byte.is_ascii_uppercase())
    {
        return Ok(None);
    }
    let arguments = Some(arguments).filter(|arguments| !arguments.is_empty());
    let Some(fast) = client.get().resolve(client, &method, url, arguments)? else {
        return Ok(None);
    };
    let sent = SentRequest::new(&fast.request, &fast.options, fast.follow_redirects);
    let called = fast.pool.get().call(py, fast.request, fast.options);
    let (call, head) = called.map_err(|error| sent.attach(client.as_any(), error))?;
    let needs_flow = needs_flow(&head, &fast.config, fast.follow_redirects);
    let (timings, reused) = (call.timings(), call.is_reused());
    let head = Arc::new(head);
    let reply = SyncReply::make(py, Arc::clone(&head), Arc::new(SyncBody::new(call, None)))?;
    let state = State {
        head: Some(head),
        config: Some(Arc::clone(&fast.config)),
        timings,
        reused,
        reply: Some(reply.into_any()),
        client: Some(client.clone().into_any().unbind()),
        sent: Some(sent),
        ..State::default()
    };
    Ok(Some((
        ResponseCore::make(py, &fast.config, state)?,
        needs_flow,
    )))
}
