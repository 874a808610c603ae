//! What a loop_driver knows of its calls: the driver and, beside each call of it, who waits for what.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::client::{
    CallError, CallEvent, CallId, CallOptions, CallRead, Caller, Prepared, WebSocketTerms,
};
use towline_proto::OwnedHead;

use super::super::collector::{BodyError, BodyLimits, Collector};
use super::super::errors;
use super::super::finish::BufferedResponse;
use super::super::head::Head;
use super::super::reply::CallInfo;
use super::waiter::Waiter;

/// Everything in it happens under the GIL and without running Python code.
pub struct CallTable {
    pub driver: Caller,
    /// By the lower half of a call's number.
    slots: Vec<Option<Slot>>,
    /// Whom to wake once the desk is closed.
    pub woken: Vec<Py<Waiter>>,
    /// Interim responses to report, once the desk is closed.
    pub interim: Vec<(Py<PyAny>, OwnedHead)>,
}

/// A call that is over, with whatever Python objects it held.
pub struct RemovedCall(#[expect(dead_code, reason = "held to be dropped")] Slot);

struct Slot {
    id: CallId,
    stage: Stage,
    head: Option<Arc<Head>>,
    reader: Option<Py<Waiter>>,
    writer: Option<Py<Waiter>>,
    /// Of a WebSocket: all who wait for room, or for its end.
    send_waiters: Vec<Py<Waiter>>,
    on_interim: Option<Py<PyAny>>,
}

/// ```text
/// Sent ─Head─► Collecting ─end─► Collected      (the whole response is wanted)
///   ├────Head─► Streaming                       (the head is wanted; the body is outcome)
///   │             ▲ granted
///   └────Head─► Refusing ─end─► Refused         (a WebSocket is wanted)
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

/// What a call is made for.
#[derive(Debug, Clone, Copy)]
pub enum ResponseMode {
    Buffered(BodyLimits),
    Streamed,
    WebSocket,
}

/// What became of a request for a WebSocket: the head, and the content of an answer that refuses it.
pub type WsHandshake = (Arc<Head>, Option<Vec<u8>>);

#[derive(Debug)]
pub enum CallFailure {
    Call(Box<CallError>),
    Body(BodyError),
}

impl CallFailure {
    pub fn to_error(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => errors::call_error(py, error),
            Self::Body(refusal) => refusal.to_error(),
        }
    }
}

/// What reading gave.
pub enum ReadOutcome {
    Data(Py<PyBytes>),
    End,
    Pending,
}

impl CallTable {
    pub fn new(driver: Caller) -> Self {
        Self {
            driver,
            slots: Vec::new(),
            woken: Vec::new(),
            interim: Vec::new(),
        }
    }

    pub fn begin(
        &mut self,
        request: Prepared,
        options: CallOptions,
        mode: ResponseMode,
        on_interim: Option<Py<PyAny>>,
    ) -> Result<CallId, Box<CallError>> {
        let id = self.driver.begin(request, options)?;
        self.enter(id, mode, on_interim);
        Ok(id)
    }

    pub fn begin_websocket(
        &mut self,
        request: Prepared,
        options: CallOptions,
        terms: WebSocketTerms,
    ) -> Result<CallId, Box<CallError>> {
        let id = self.driver.begin_websocket(request, options, terms)?;
        self.enter(id, ResponseMode::WebSocket, None);
        Ok(id)
    }

    fn enter(&mut self, id: CallId, mode: ResponseMode, on_interim: Option<Py<PyAny>>) {
        let index = index(id);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Slot {
            id,
            stage: Stage::AwaitingHead(mode),
            head: None,
            reader: None,
            writer: None,
            send_waiters: Vec::new(),
            on_interim,
        });
    }

    fn slot(&mut self, id: CallId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(index(id))?.as_mut()?;
        (slot.id == id).then_some(slot)
    }

    /// Acts on an event. What it wakes is listed.
    pub fn handle(&mut self, py: Python<'_>, id: CallId, event: CallEvent) {
        match event {
            CallEvent::Head { .. } => self.take_head(py, id),
            CallEvent::Readable => self.readable(py, id),
            CallEvent::Writable => {
                let Some(slot) = self.slot(id) else { return };
                let (writer, send_waiters) =
                    (slot.writer.take(), std::mem::take(&mut slot.send_waiters));
                self.woken.extend(writer.into_iter().chain(send_waiters));
            }
            CallEvent::Informational(head) => {
                let callback = self.slot(id).and_then(|slot| slot.on_interim.as_ref());
                if let Some(callback) = callback {
                    let callback = callback.clone_ref(py);
                    self.interim.push((callback, head));
                }
            }
            CallEvent::Switched => self.wake(id),
            CallEvent::Failed(error) => self.fail(id, CallFailure::Call(error)),
        }
    }

    fn take_head(&mut self, py: Python<'_>, id: CallId) {
        let Some(kept) = self.driver.take_head(id) else {
            return;
        };
        let head = Arc::new(Head::received(kept));
        let Some(slot) = self.slot(id) else { return };
        slot.head = Some(Arc::clone(&head));
        match slot.stage {
            Stage::AwaitingHead(ResponseMode::Buffered(bounds)) => {
                match Collector::new(&head, bounds) {
                    Ok(collector) => {
                        slot.stage = Stage::Buffering(collector);
                        self.collect(py, id);
                    }
                    Err(refusal) => self.fail(id, CallFailure::Body(refusal)),
                }
            }
            Stage::AwaitingHead(ResponseMode::Streamed) => {
                slot.stage = Stage::Streaming;
                self.wake(id);
            }
            Stage::AwaitingHead(ResponseMode::WebSocket) => {
                let granted = self.driver.is_websocket(id);
                let Some(slot) = self.slot(id) else { return };
                if granted {
                    slot.stage = Stage::Streaming;
                    self.wake(id);
                } else {
                    slot.stage = Stage::ReadingRejection(Vec::new());
                    self.read_rejection(id);
                }
            }
            _ => {}
        }
    }

    /// Reads what there is of an answer that refuses a WebSocket.
    fn read_rejection(&mut self, id: CallId) {
        let Some(Some(slot)) = self.slots.get_mut(index(id)) else {
            return;
        };
        if let Stage::ReadingRejection(content) = &mut slot.stage
            && self.driver.refusal(id, content).is_some()
        {
            slot.stage = Stage::Rejected(std::mem::take(content));
            self.wake(id);
        }
    }

    fn readable(&mut self, py: Python<'_>, id: CallId) {
        match self.slot(id).map(|slot| &slot.stage) {
            Some(Stage::Buffering(_)) => self.collect(py, id),
            Some(Stage::ReadingRejection(_)) => self.read_rejection(id),
            Some(_) => self.wake(id),
            None => {}
        }
    }

    /// Reads what is there of a body that is collected.
    fn collect(&mut self, py: Python<'_>, id: CallId) {
        let Some(Some(slot)) = self.slots.get_mut(index(id)) else {
            return;
        };
        let Stage::Buffering(collector) = &mut slot.stage else {
            return;
        };
        slot.stage = loop {
            match self.driver.read(id, usize::MAX) {
                CallRead::Data(data) => {
                    if let Err(refusal) = collector.push(py, data) {
                        break Stage::Failed(CallFailure::Body(refusal));
                    }
                }
                CallRead::Pending => return,
                CallRead::End => match std::mem::replace(&mut slot.stage, Stage::Streaming) {
                    Stage::Buffering(collector) => match collector.finish(py) {
                        Ok(content) => break Stage::Buffered(content),
                        Err(refusal) => break Stage::Failed(CallFailure::Body(refusal)),
                    },
                    _ => return,
                },
                CallRead::Failed(error) => break Stage::Failed(CallFailure::Call(error)),
            }
        };
        self.wake(id);
    }

    /// A failure is the last thing that a call hears, whoever waits for whatever.
    fn fail(&mut self, id: CallId, failure: CallFailure) {
        let Some(slot) = self.slot(id) else { return };
        // A reply that is streamed learns of it when it reads on: what came before comes first.
        if !matches!(slot.stage, Stage::Streaming) {
            slot.stage = Stage::Failed(failure);
        }
        self.wake(id);
    }

    fn wake(&mut self, id: CallId) {
        let Some(slot) = self.slot(id) else { return };
        let waiters = [slot.reader.take(), slot.writer.take()];
        let send_waiters = std::mem::take(&mut slot.send_waiters);
        self.woken
            .extend(waiters.into_iter().flatten().chain(send_waiters));
    }

    /// The response, once it is whole; the call is then put away.
    pub fn take_buffered(&mut self, id: CallId) -> Option<Result<BufferedResponse, CallFailure>> {
        let slot = self.slot(id)?;
        if matches!(slot.stage, Stage::AwaitingHead(_) | Stage::Buffering(_)) {
            return None;
        }
        let facts = self.facts(id);
        let slot = self.remove(id)?;
        match (slot.stage, slot.head) {
            (Stage::Buffered(content), Some(head)) => Some(Ok(BufferedResponse {
                head,
                content,
                facts,
            })),
            (Stage::Failed(failure), _) => Some(Err(failure)),
            _ => None,
        }
    }

    /// The head, once it is there; the call goes on as a reply.
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

    /// The WebSocket, which goes on, or the answer that refuses it.
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

    /// An answer, or a failure, is there although the body may still be on its way out.
    pub fn has_response(&mut self, id: CallId) -> bool {
        self.slot(id)
            .is_none_or(|slot| !matches!(slot.stage, Stage::AwaitingHead(_)))
    }

    pub fn pull(
        &mut self,
        py: Python<'_>,
        id: CallId,
        max: usize,
    ) -> Result<ReadOutcome, CallFailure> {
        match self.driver.read(id, max) {
            CallRead::Data(data) => {
                let data = PyBytes::new(py, data).unbind();
                self.driver.send_credit();
                Ok(ReadOutcome::Data(data))
            }
            CallRead::Pending => Ok(ReadOutcome::Pending),
            CallRead::End => Ok(ReadOutcome::End),
            CallRead::Failed(error) => Err(CallFailure::Call(error)),
        }
    }

    pub fn facts(&self, id: CallId) -> CallInfo {
        CallInfo {
            timings: self.driver.timings(id),
            reused: self.driver.is_reused(id),
        }
    }

    pub fn set_read_waiter(
        &mut self,
        id: CallId,
        waiter: Option<Py<Waiter>>,
    ) -> Option<Py<Waiter>> {
        let slot = self.slot(id)?;
        std::mem::replace(&mut slot.reader, waiter)
    }

    pub fn set_write_waiter(
        &mut self,
        id: CallId,
        waiter: Option<Py<Waiter>>,
    ) -> Option<Py<Waiter>> {
        let slot = self.slot(id)?;
        std::mem::replace(&mut slot.writer, waiter)
    }

    /// Waits for room of a WebSocket, or for its end.
    pub fn add_send_waiter(&mut self, id: CallId, waiter: Py<Waiter>) {
        match self.slot(id) {
            Some(slot) => slot.send_waiters.push(waiter),
            None => self.woken.push(waiter),
        }
    }

    /// Somebody has still to fetch what came.
    pub fn has_responses(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Ends a call, whatever its state. What is returned is to be dropped when the desk is closed.
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
            visit.call(&slot.reader)?;
            visit.call(&slot.writer)?;
            for waiter in &slot.send_waiters {
                visit.call(waiter)?;
            }
            visit.call(&slot.on_interim)?;
        }
        Ok(())
    }
}

fn index(id: CallId) -> usize {
    id.as_u64() as u32 as usize
}
