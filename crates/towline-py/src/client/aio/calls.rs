//! What a hub knows of its calls: the caller and, beside each call of it, who waits for what.
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use towline_io::call::{
    CallError, CallEvent, CallId, CallOptions, CallRead, Caller, Prepared, WebSocketTerms,
};
use towline_proto::KeptHead;

use super::super::collector::{Bounds, Collector, Refusal};
use super::super::errors;
use super::super::finish::Whole;
use super::super::head::Head;
use super::super::reply::Facts;
use super::waiter::Waiter;

/// Everything in it happens under the GIL and without running Python code.
pub struct Desk {
    pub caller: Caller,
    /// By the lower half of a call's number.
    slots: Vec<Option<Slot>>,
    /// Whom to wake once the desk is closed.
    pub woken: Vec<Py<Waiter>>,
    /// Interim responses to report, once the desk is closed.
    pub interim: Vec<(Py<PyAny>, KeptHead)>,
}

/// A call that is over, with whatever Python objects it held.
pub struct PutAway(#[expect(dead_code, reason = "held to be dropped")] Slot);

struct Slot {
    id: CallId,
    stage: Stage,
    head: Option<Arc<Head>>,
    reader: Option<Py<Waiter>>,
    writer: Option<Py<Waiter>>,
    /// Of a WebSocket: all who wait for room, or for its end.
    others: Vec<Py<Waiter>>,
    on_interim: Option<Py<PyAny>>,
}

/// ```text
/// Sent ─Head─► Collecting ─end─► Collected      (the whole response is wanted)
///   ├────Head─► Streaming                       (the head is wanted; the body is pulled)
///   │             ▲ granted
///   └────Head─► Refusing ─end─► Refused         (a WebSocket is wanted)
///   any ─► Failed
/// ```
enum Stage {
    Sent(Want),
    Collecting(Collector),
    Collected(Py<PyBytes>),
    Streaming,
    Refusing(Vec<u8>),
    Refused(Vec<u8>),
    Failed(Failure),
}

/// What a call is made for.
#[derive(Debug, Clone, Copy)]
pub enum Want {
    Whole(Bounds),
    Head,
    WebSocket,
}

/// What became of a request for a WebSocket: the head, and the content of an answer that refuses it.
pub type Handshaken = (Arc<Head>, Option<Vec<u8>>);

#[derive(Debug)]
pub enum Failure {
    Call(Box<CallError>),
    Refused(Refusal),
}

impl Failure {
    pub fn to_error(&self, py: Python<'_>) -> PyErr {
        match self {
            Self::Call(error) => errors::call_error(py, error),
            Self::Refused(refusal) => refusal.to_error(),
        }
    }
}

/// What reading gave.
pub enum Pulled {
    Data(Py<PyBytes>),
    End,
    Pending,
}

impl Desk {
    pub fn new(caller: Caller) -> Self {
        Self {
            caller,
            slots: Vec::new(),
            woken: Vec::new(),
            interim: Vec::new(),
        }
    }

    pub fn begin(
        &mut self,
        request: Prepared,
        options: CallOptions,
        want: Want,
        on_interim: Option<Py<PyAny>>,
    ) -> Result<CallId, Box<CallError>> {
        let id = self.caller.begin(request, options)?;
        self.enter(id, want, on_interim);
        Ok(id)
    }

    pub fn begin_websocket(
        &mut self,
        request: Prepared,
        options: CallOptions,
        terms: WebSocketTerms,
    ) -> Result<CallId, Box<CallError>> {
        let id = self.caller.begin_websocket(request, options, terms)?;
        self.enter(id, Want::WebSocket, None);
        Ok(id)
    }

    fn enter(&mut self, id: CallId, want: Want, on_interim: Option<Py<PyAny>>) {
        let index = index(id);
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some(Slot {
            id,
            stage: Stage::Sent(want),
            head: None,
            reader: None,
            writer: None,
            others: Vec::new(),
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
                let (writer, others) = (slot.writer.take(), std::mem::take(&mut slot.others));
                self.woken.extend(writer.into_iter().chain(others));
            }
            CallEvent::Informational(head) => {
                let callback = self.slot(id).and_then(|slot| slot.on_interim.as_ref());
                if let Some(callback) = callback {
                    let callback = callback.clone_ref(py);
                    self.interim.push((callback, head));
                }
            }
            CallEvent::Switched => self.wake(id),
            CallEvent::Failed(error) => self.fail(id, Failure::Call(error)),
        }
    }

    fn take_head(&mut self, py: Python<'_>, id: CallId) {
        let Some(kept) = self.caller.take_head(id) else {
            return;
        };
        let head = Arc::new(Head::received(kept));
        let Some(slot) = self.slot(id) else { return };
        slot.head = Some(Arc::clone(&head));
        match slot.stage {
            Stage::Sent(Want::Whole(bounds)) => match Collector::new(&head, bounds) {
                Ok(collector) => {
                    slot.stage = Stage::Collecting(collector);
                    self.collect(py, id);
                }
                Err(refusal) => self.fail(id, Failure::Refused(refusal)),
            },
            Stage::Sent(Want::Head) => {
                slot.stage = Stage::Streaming;
                self.wake(id);
            }
            Stage::Sent(Want::WebSocket) => {
                let granted = self.caller.is_websocket(id);
                let Some(slot) = self.slot(id) else { return };
                if granted {
                    slot.stage = Stage::Streaming;
                    self.wake(id);
                } else {
                    slot.stage = Stage::Refusing(Vec::new());
                    self.hear_refusal(id);
                }
            }
            _ => {}
        }
    }

    /// Reads what there is of an answer that refuses a WebSocket.
    fn hear_refusal(&mut self, id: CallId) {
        let Some(Some(slot)) = self.slots.get_mut(index(id)) else {
            return;
        };
        if let Stage::Refusing(content) = &mut slot.stage
            && self.caller.refusal(id, content).is_some()
        {
            slot.stage = Stage::Refused(std::mem::take(content));
            self.wake(id);
        }
    }

    fn readable(&mut self, py: Python<'_>, id: CallId) {
        match self.slot(id).map(|slot| &slot.stage) {
            Some(Stage::Collecting(_)) => self.collect(py, id),
            Some(Stage::Refusing(_)) => self.hear_refusal(id),
            Some(_) => self.wake(id),
            None => {}
        }
    }

    /// Reads what is there of a body that is collected.
    fn collect(&mut self, py: Python<'_>, id: CallId) {
        let Some(Some(slot)) = self.slots.get_mut(index(id)) else {
            return;
        };
        let Stage::Collecting(collector) = &mut slot.stage else {
            return;
        };
        slot.stage = loop {
            match self.caller.read(id, usize::MAX) {
                CallRead::Data(data) => {
                    if let Err(refusal) = collector.push(py, data) {
                        break Stage::Failed(Failure::Refused(refusal));
                    }
                }
                CallRead::Pending => return,
                CallRead::End => match std::mem::replace(&mut slot.stage, Stage::Streaming) {
                    Stage::Collecting(collector) => match collector.finish(py) {
                        Ok(content) => break Stage::Collected(content),
                        Err(refusal) => break Stage::Failed(Failure::Refused(refusal)),
                    },
                    _ => return,
                },
                CallRead::Failed(error) => break Stage::Failed(Failure::Call(error)),
            }
        };
        self.wake(id);
    }

    /// A failure is the last thing that a call hears, whoever waits for whatever.
    fn fail(&mut self, id: CallId, failure: Failure) {
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
        let others = std::mem::take(&mut slot.others);
        self.woken
            .extend(waiters.into_iter().flatten().chain(others));
    }

    /// The response, once it is whole; the call is then put away.
    pub fn take_whole(&mut self, id: CallId) -> Option<Result<Whole, Failure>> {
        let slot = self.slot(id)?;
        if matches!(slot.stage, Stage::Sent(_) | Stage::Collecting(_)) {
            return None;
        }
        let facts = self.facts(id);
        let slot = self.put_away(id)?;
        match (slot.stage, slot.head) {
            (Stage::Collected(content), Some(head)) => Some(Ok(Whole {
                head,
                content,
                facts,
            })),
            (Stage::Failed(failure), _) => Some(Err(failure)),
            _ => None,
        }
    }

    /// The head, once it is there; the call goes on as a reply.
    pub fn take_reply(&mut self, id: CallId) -> Option<Result<Arc<Head>, Failure>> {
        let slot = self.slot(id)?;
        match &slot.stage {
            Stage::Streaming => slot.head.clone().map(Ok),
            Stage::Failed(_) => match self.put_away(id)?.stage {
                Stage::Failed(failure) => Some(Err(failure)),
                _ => None,
            },
            _ => None,
        }
    }

    /// The WebSocket, which goes on, or the answer that refuses it.
    pub fn take_handshaken(&mut self, id: CallId) -> Option<Result<Handshaken, Failure>> {
        let slot = self.slot(id)?;
        match &slot.stage {
            Stage::Streaming => slot.head.clone().map(|head| Ok((head, None))),
            Stage::Refused(_) | Stage::Failed(_) => {
                let slot = self.put_away(id)?;
                match (slot.stage, slot.head) {
                    (Stage::Refused(content), Some(head)) => Some(Ok((head, Some(content)))),
                    (Stage::Failed(failure), _) => Some(Err(failure)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// An answer, or a failure, is there although the body may still be on its way out.
    pub fn is_answered(&mut self, id: CallId) -> bool {
        self.slot(id)
            .is_none_or(|slot| !matches!(slot.stage, Stage::Sent(_)))
    }

    pub fn pull(&mut self, py: Python<'_>, id: CallId, max: usize) -> Result<Pulled, Failure> {
        match self.caller.read(id, max) {
            CallRead::Data(data) => {
                let data = PyBytes::new(py, data).unbind();
                self.caller.send_credit();
                Ok(Pulled::Data(data))
            }
            CallRead::Pending => Ok(Pulled::Pending),
            CallRead::End => Ok(Pulled::End),
            CallRead::Failed(error) => Err(Failure::Call(error)),
        }
    }

    pub fn facts(&self, id: CallId) -> Facts {
        Facts {
            timings: self.caller.timings(id),
            reused: self.caller.is_reused(id),
        }
    }

    pub fn set_reader(&mut self, id: CallId, waiter: Option<Py<Waiter>>) -> Option<Py<Waiter>> {
        let slot = self.slot(id)?;
        std::mem::replace(&mut slot.reader, waiter)
    }

    pub fn set_writer(&mut self, id: CallId, waiter: Option<Py<Waiter>>) -> Option<Py<Waiter>> {
        let slot = self.slot(id)?;
        std::mem::replace(&mut slot.writer, waiter)
    }

    /// Waits for room of a WebSocket, or for its end.
    pub fn add_other(&mut self, id: CallId, waiter: Py<Waiter>) {
        match self.slot(id) {
            Some(slot) => slot.others.push(waiter),
            None => self.woken.push(waiter),
        }
    }

    /// Somebody has still to fetch what came.
    pub fn has_answers(&self) -> bool {
        self.slots.iter().any(Option::is_some)
    }

    /// Ends a call, whatever its state. What is returned is to be dropped when the desk is closed.
    pub fn cancel(&mut self, id: CallId) -> Option<PutAway> {
        self.put_away(id).map(PutAway)
    }

    fn put_away(&mut self, id: CallId) -> Option<Slot> {
        self.caller.cancel(id);
        self.slot(id)?;
        self.slots[index(id)].take()
    }

    pub fn traverse(&self, visit: &pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::PyTraverseError> {
        for slot in self.slots.iter().flatten() {
            visit.call(&slot.reader)?;
            visit.call(&slot.writer)?;
            for waiter in &slot.others {
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
