//! The calls of a driver: for each, the state of its response, and the waiters of the tasks that wait for it.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::{
    CallError, CallEvent, CallId, CallOptions, CallRead, ClientDriver, OutgoingRequest,
    WebSocketConfig,
};
use towline_proto::OwnedHead;

use super::super::collector::{BodyError, BodyLimits, Collector};
use super::super::errors;
use super::super::finish::BufferedResponse;
use super::super::head::Head;
use super::super::reply::CallInfo;
use towline_py_common::task_future::TaskFuture;

/// The event that lets an operation make progress.
pub enum WaitFor {
    /// The next event of the call's response.
    Read(CallId),
    /// Room for more of the call's request body.
    Write(CallId),
    /// Room for a message of the call's WebSocket, or its end.
    Send(CallId),
    /// The next turn, which may have ended a dial or closed the driver.
    Turn,
}

/// The engine with its calls. Nothing here runs Python code: waiters and objects to drop are handed out instead.
pub struct CallTable {
    pub driver: ClientDriver,
    /// Indexed by the lower half of the call id.
    slots: Vec<Option<Slot>>,
    /// Waiters to wake once the table is closed.
    pub woken: Vec<Py<TaskFuture>>,
    /// Informational (1xx) responses to report once the table is closed, each with its callback.
    pub informational: Vec<(Py<PyAny>, OwnedHead)>,
}

/// The Python objects of a removed call, to be dropped once the table is closed.
pub struct RemovedCall(#[expect(dead_code, reason = "held to be dropped")] Slot);

struct Slot {
    id: CallId,
    stage: Stage,
    head: Option<Arc<Head>>,
    read_waiter: Option<Py<TaskFuture>>,
    write_waiter: Option<Py<TaskFuture>>,
    /// WebSocket: tasks that wait for room to send, or for the end of the closing handshake.
    send_waiters: Vec<Py<TaskFuture>>,
    on_informational: Option<Py<PyAny>>,
}

/// ```text
/// AwaitingHead ─Head─► Buffering ─end─► Buffered           (mode Buffered)
///   ├────────────Head─► Streaming                          (mode Streamed)
///   │                     ▲ accepted
///   └────────────Head─► ReadingRejection ─end─► Rejected   (mode WebSocket)
///   any ─► Failed
/// ```
enum Stage {
    AwaitingHead(ResponseMode),
    Buffering(Collector),
    Buffered(Py<PyBytes>),
    Streaming,
    ReadingRejection(Vec<u8>),
    Rejected(Vec<u8>),
    Failed(CallFailure),
}

/// How the response of a call is delivered.
#[derive(Debug, Clone, Copy)]
pub enum ResponseMode {
    /// Head and body together.
    Buffered(BodyLimits),
    /// The head; the body is then read on demand.
    Streamed,
    /// An open WebSocket, or the response that rejects it.
    WebSocket,
}

/// The response to an opening handshake: the head, and the content if the server has rejected it.
pub type WsHandshake = (Arc<Head>, Option<Vec<u8>>);

#[derive(Debug)]
pub enum CallFailure {
    Call(Box<CallError>),
    Body(BodyError),
    /// The iterator of the request body has raised an exception.
    Program(PyErr),
}

impl CallFailure {
    pub fn to_error(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => errors::call_error(py, error),
            Self::Body(error) => error.to_error(),
            Self::Program(error) => error.clone_ref(py),
        }
    }
}

/// The result of one read of a streamed body.
pub enum ReadOutcome {
    Data(Py<PyBytes>),
    End,
    Pending,
}

impl CallTable {
    pub fn new(driver: ClientDriver) -> Self {
        Self {
            driver,
            slots: Vec::new(),
            woken: Vec::new(),
            informational: Vec::new(),
        }
    }

    pub fn start(
        &mut self,
        request: OutgoingRequest,
        options: CallOptions,
        mode: ResponseMode,
        on_informational: Option<Py<PyAny>>,
    ) -> Result<CallId, Box<CallError>> {
        let id = self.driver.begin(request, options)?;
        self.insert(id, mode, on_informational);
        Ok(id)
    }

    pub fn start_websocket(
        &mut self,
        request: OutgoingRequest,
        options: CallOptions,
        config: WebSocketConfig,
    ) -> Result<CallId, Box<CallError>> {
        let id = self.driver.begin_websocket(request, options, config)?;
        self.insert(id, ResponseMode::WebSocket, None);
        Ok(id)
    }

    fn insert(&mut self, id: CallId, mode: ResponseMode, on_informational: Option<Py<PyAny>>) {
        let index = index(id);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Slot {
            id,
            stage: Stage::AwaitingHead(mode),
            head: None,
            read_waiter: None,
            write_waiter: None,
            send_waiters: Vec::new(),
            on_informational,
        });
    }

    fn slot(&mut self, id: CallId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(index(id))?.as_mut()?;
        (slot.id == id).then_some(slot)
    }

    /// Handles an event of the engine; adds the waiters it ends to `woken`.
    pub fn handle(&mut self, py: Python<'_>, id: CallId, event: CallEvent) {
        match event {
            CallEvent::Head { .. } => self.on_head(py, id),
            CallEvent::Readable => self.on_readable(py, id),
            CallEvent::Writable => {
                let Some(slot) = self.slot(id) else { return };
                let (writer, send_waiters) = (
                    slot.write_waiter.take(),
                    std::mem::take(&mut slot.send_waiters),
                );
                self.woken.extend(writer.into_iter().chain(send_waiters));
            }
            CallEvent::Informational(head) => {
                let callback = self
                    .slot(id)
                    .and_then(|slot| slot.on_informational.as_ref());
                if let Some(callback) = callback {
                    let callback = callback.clone_ref(py);
                    self.informational.push((callback, head));
                }
            }
            CallEvent::Switched => self.wake_all(id),
            CallEvent::Failed(error) => self.on_failure(id, CallFailure::Call(error)),
        }
    }

    fn on_head(&mut self, py: Python<'_>, id: CallId) {
        let Some(kept) = self.driver.take_head(id) else {
            return;
        };
        let head = Arc::new(Head::from_wire(kept));
        let Some(slot) = self.slot(id) else { return };
        slot.head = Some(Arc::clone(&head));
        match slot.stage {
            Stage::AwaitingHead(ResponseMode::Buffered(limits)) => {
                match Collector::new(&head, limits) {
                    Ok(collector) => {
                        slot.stage = Stage::Buffering(collector);
                        self.buffer_body(py, id);
                    }
                    Err(error) => self.on_failure(id, CallFailure::Body(error)),
                }
            }
            Stage::AwaitingHead(ResponseMode::Streamed) => {
                slot.stage = Stage::Streaming;
                self.wake_all(id);
            }
            Stage::AwaitingHead(ResponseMode::WebSocket) => {
                let accepted = self.driver.is_websocket(id);
                let Some(slot) = self.slot(id) else { return };
                if accepted {
                    slot.stage = Stage::Streaming;
                    self.wake_all(id);
                } else {
                    slot.stage = Stage::ReadingRejection(Vec::new());
                    self.read_rejection(id);
                }
            }
            _ => {}
        }
    }

    /// Reads the available content of a response that rejects a WebSocket.
    fn read_rejection(&mut self, id: CallId) {
        let Some(Some(slot)) = self.slots.get_mut(index(id)) else {
            return;
        };
        if let Stage::ReadingRejection(content) = &mut slot.stage
            && self.driver.refusal(id, content).is_some()
        {
            slot.stage = Stage::Rejected(std::mem::take(content));
            self.wake_all(id);
        }
    }

    fn on_readable(&mut self, py: Python<'_>, id: CallId) {
        match self.slot(id).map(|slot| &slot.stage) {
            Some(Stage::Buffering(_)) => self.buffer_body(py, id),
            Some(Stage::ReadingRejection(_)) => self.read_rejection(id),
            Some(_) => self.wake_all(id),
            None => {}
        }
    }

    /// Reads the available part of a body that is buffered.
    fn buffer_body(&mut self, py: Python<'_>, id: CallId) {
        let Some(Some(slot)) = self.slots.get_mut(index(id)) else {
            return;
        };
        let Stage::Buffering(collector) = &mut slot.stage else {
            return;
        };
        slot.stage = loop {
            match self.driver.read(id, usize::MAX) {
                CallRead::Data(data) => {
                    if let Err(error) = collector.push(py, data) {
                        break Stage::Failed(CallFailure::Body(error));
                    }
                }
                CallRead::Pending => return,
                CallRead::End => match std::mem::replace(&mut slot.stage, Stage::Streaming) {
                    Stage::Buffering(collector) => match collector.finish(py) {
                        Ok(content) => break Stage::Buffered(content),
                        Err(error) => break Stage::Failed(CallFailure::Body(error)),
                    },
                    _ => return,
                },
                CallRead::Failed(error) => break Stage::Failed(CallFailure::Call(error)),
            }
        };
        self.wake_all(id);
    }

    /// Wakes every waiter of the call: no event follows a failure.
    fn on_failure(&mut self, id: CallId, failure: CallFailure) {
        let Some(slot) = self.slot(id) else { return };
        // A streamed body is read up to the failure first; the read that reaches it reports it.
        if !matches!(slot.stage, Stage::Streaming) {
            slot.stage = Stage::Failed(failure);
        }
        self.wake_all(id);
    }

    fn wake_all(&mut self, id: CallId) {
        let Some(slot) = self.slot(id) else { return };
        let waiters = [slot.read_waiter.take(), slot.write_waiter.take()];
        let send_waiters = std::mem::take(&mut slot.send_waiters);
        self.woken
            .extend(waiters.into_iter().flatten().chain(send_waiters));
    }

    /// The complete response or the failure, and removes the call; `None` while the response is incomplete.
    pub fn take_buffered(&mut self, id: CallId) -> Option<Result<BufferedResponse, CallFailure>> {
        let slot = self.slot(id)?;
        if matches!(slot.stage, Stage::AwaitingHead(_) | Stage::Buffering(_)) {
            return None;
        }
        let info = self.info(id);
        let slot = self.remove(id)?;
        match (slot.stage, slot.head) {
            (Stage::Buffered(content), Some(head)) => Some(Ok(BufferedResponse {
                head,
                content,
                info,
            })),
            (Stage::Failed(failure), _) => Some(Err(failure)),
            _ => None,
        }
    }

    /// The head, once received; the call remains, for its body.
    pub fn take_streamed_head(&mut self, id: CallId) -> Option<Result<Arc<Head>, CallFailure>> {
        let slot = self.slot(id)?;
        match &slot.stage {
            Stage::Streaming => slot.head.clone().map(Ok),
            Stage::Failed(_) => match self.remove(id)?.stage {
                Stage::Failed(failure) => Some(Err(failure)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The response to an opening handshake, once received. If accepted, the call remains, as the WebSocket.
    pub fn take_handshake(&mut self, id: CallId) -> Option<Result<WsHandshake, CallFailure>> {
        let slot = self.slot(id)?;
        match &slot.stage {
            Stage::Streaming => slot.head.clone().map(|head| Ok((head, None))),
            Stage::Rejected(_) | Stage::Failed(_) => {
                let slot = self.remove(id)?;
                match (slot.stage, slot.head) {
                    (Stage::Rejected(content), Some(head)) => Some(Ok((head, Some(content)))),
                    (Stage::Failed(failure), _) => Some(Err(failure)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Ends a call whose request body the program cannot complete. Returns the waiters to wake.
    pub fn fail(&mut self, id: CallId, error: PyErr) -> Vec<Py<TaskFuture>> {
        let Some(slot) = self.slot(id) else {
            return Vec::new();
        };
        slot.stage = Stage::Failed(CallFailure::Program(error));
        self.driver.cancel(id);
        self.wake_all(id);
        std::mem::take(&mut self.woken)
    }

    /// Reads at most `max_bytes` of a streamed body.
    pub fn read(
        &mut self,
        py: Python<'_>,
        id: CallId,
        max_bytes: usize,
    ) -> Result<ReadOutcome, CallFailure> {
        if let Some(slot) = self.slot(id)
            && let Stage::Failed(CallFailure::Program(error)) = &slot.stage
        {
            return Err(CallFailure::Program(error.clone_ref(py)));
        }
        match self.driver.read(id, max_bytes) {
            CallRead::Data(data) => {
                let data = PyBytes::new(py, data).unbind();
                self.driver.flush_window_updates();
                Ok(ReadOutcome::Data(data))
            }
            CallRead::Pending => Ok(ReadOutcome::Pending),
            CallRead::End => Ok(ReadOutcome::End),
            CallRead::Failed(error) => Err(CallFailure::Call(error)),
        }
    }

    pub fn info(&self, id: CallId) -> CallInfo {
        CallInfo {
            timings: self.driver.timings(id),
            reused: self.driver.is_reused(id),
        }
    }

    /// Replaces the read waiter and returns the one before, to be dropped once the table is closed.
    pub fn set_read_waiter(
        &mut self,
        id: CallId,
        waiter: Option<Py<TaskFuture>>,
    ) -> Option<Py<TaskFuture>> {
        let slot = self.slot(id)?;
        std::mem::replace(&mut slot.read_waiter, waiter)
    }

    /// Replaces the write waiter and returns the one before, to be dropped once the table is closed.
    pub fn set_write_waiter(
        &mut self,
        id: CallId,
        waiter: Py<TaskFuture>,
    ) -> Option<Py<TaskFuture>> {
        self.slot(id)?.write_waiter.replace(waiter)
    }

    /// Has `waiter` woken when a WebSocket can send, or has ended.
    pub fn add_send_waiter(&mut self, id: CallId, waiter: Py<TaskFuture>) {
        match self.slot(id) {
            Some(slot) => slot.send_waiters.push(waiter),
            None => self.woken.push(waiter),
        }
    }

    /// Whether responses are left to be fetched.
    pub fn has_responses(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Cancels a call in any state.
    pub fn cancel(&mut self, id: CallId) -> Option<RemovedCall> {
        self.remove(id).map(RemovedCall)
    }

    fn remove(&mut self, id: CallId) -> Option<Slot> {
        self.driver.cancel(id);
        self.slot(id)?;
        self.slots[index(id)].take()
    }

    pub fn traverse(&self, visit: &pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        for slot in self.slots.iter().flatten() {
            visit.call(&slot.read_waiter)?;
            visit.call(&slot.write_waiter)?;
            for waiter in &slot.send_waiters {
                visit.call(waiter)?;
            }
            visit.call(&slot.on_informational)?;
        }
        Ok(())
    }
}

fn index(id: CallId) -> usize {
    id.as_u64() as u32 as usize
}
