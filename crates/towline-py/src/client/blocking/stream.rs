//! `Client.stream` for a plain call: the head awaited natively, the body left to be pulled.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::super::core::upper_case;
use super::super::finish::needs_flow;
use super::super::response::{ResponseCore, Sent, State};
use super::body::SyncBody;
use super::client::ClientCore;
use super::reply::SyncReply;

/// The response, its body unread, and whether its status or its fields leave something to decide. None where
/// the call is not plain.
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
    // Whether something else is a method is Python's to judge.
    if !method
        .to_str()?
        .bytes()
        .all(|byte| byte.is_ascii_uppercase())
    {
        return Ok(None);
    }
    let arguments = Some(arguments).filter(|arguments| !arguments.is_empty());
    let Some(found) = client.get().find(client, &method, url, arguments)? else {
        return Ok(None);
    };
    let (call, head) = found
        .pool
        .get()
        .call(py, found.request, found.options, None)?;
    let needs_flow = needs_flow(&head, &found.terms, found.follow_redirects);
    let (timings, reused) = (call.timings(), call.is_reused());
    let head = Arc::new(head);
    let reply = SyncReply::make(py, Arc::clone(&head), Arc::new(SyncBody::new(call)))?;
    let state = State {
        head: Some(head),
        terms: Some(Arc::clone(&found.terms)),
        timings,
        reused,
        reply: Some(reply.into_any()),
        client: Some(client.clone().into_any().unbind()),
        sent: Some(Sent {
            method: method.unbind(),
            url: url.clone().unbind(),
            arguments: arguments.map(|arguments| arguments.clone().unbind()),
        }),
        ..State::default()
    };
    Ok(Some((
        ResponseCore::make(py, &found.terms, state)?,
        needs_flow,
    )))
}
