//! Reads response bodies and writes streamed request bodies, at the program's pace.

use bytes::Bytes;
use towline_proto::{BodySize, Field, StreamError, StreamRead, UserError};

use super::call::{ResponseState, StreamHandle, Upload};
use super::{CallEvent, CallId, CallRead, ClientDriver, Stage};
use crate::client::conn_ext::MAX_SKIPPED_BODY_BYTES;
use crate::client::request::{CallError, CallErrorKind, CallPhase};
use crate::conn::id::ConnId;

/// Next step of a read, computed before the connection is borrowed.
enum Step {
    Data,
    Pending,
    End,
    Failed,
}

impl ClientDriver {
    /// Reads up to `max` bytes of the body.
    pub fn read(&mut self, id: CallId, max: usize) -> CallRead<'_> {
        let Some(call) = self.call(id) else {
            return CallRead::End;
        };
        let Some(StreamHandle { conn, stream, .. }) = call.handle() else {
            return self.read_nothing(id);
        };
        match self.step(id, conn) {
            Step::Data => {}
            Step::Pending => return CallRead::Pending,
            Step::End if self.is_sending(id) => {
                self.await_upload(id);
                return CallRead::Pending;
            }
            Step::End => {
                self.complete(id);
                return CallRead::End;
            }
            Step::Failed => return self.read_failure(id, conn),
        }
        match self.engine.conn(conn).map(|peer| peer.proto.stream(stream)) {
            Some(Ok(body)) => match body.into_read(max) {
                StreamRead::Data(data) => CallRead::Data(data),
                _ => CallRead::Pending,
            },
            _ => CallRead::End,
        }
    }

    /// Sends the window updates that `read` has produced. For a program outside a turn that may not read
    /// again soon.
    pub fn flush_window_updates(&mut self) {
        let has_updates = self.touched.filter(|_| !self.in_turn).is_some_and(|conn| {
            let peer = self.engine.conn(conn);
            // QUIC knows itself whether it has to send one.
            peer.is_some_and(|peer| {
                peer.io.quic().is_some() || peer.is_shared() && peer.proto.pending_bytes() > 0
            })
        });
        if has_updates {
            self.flush_touched();
        }
    }

    /// Result of a read without a connection: the call waits for one, or is over.
    fn read_nothing(&mut self, id: CallId) -> CallRead<'_> {
        let Some(call) = self.call_mut(id) else {
            return CallRead::End;
        };
        match (&call.stage, &call.error) {
            (_, Some(error)) => CallRead::Failed(error.clone()),
            (Stage::Over, None) => CallRead::End,
            _ => CallRead::Pending,
        }
    }

    /// Parses framing, and receives from the socket as long as it is readable.
    fn step(&mut self, id: CallId, conn: ConnId) -> Step {
        if self.touched.is_some_and(|touched| touched != conn) {
            self.flush_touched();
        }
        let now = self.now();
        let (Some(peer), buffers) = self.engine.conn_and_buffers(conn) else {
            return Step::End;
        };
        let Some(call) = self.calls.get_mut(id.index as usize) else {
            return Step::End;
        };
        let Some(StreamHandle { stream, .. }) = call.handle() else {
            return Step::End;
        };
        if !call.has_head() {
            // The head comes first, as an event.
            return Step::Pending;
        }
        self.touched = Some(conn);
        loop {
            let Ok(mut body) = peer.proto.stream(stream) else {
                return Step::End;
            };
            if body.available() > 0 {
                call.reader_waits = false;
                return Step::Data;
            }
            match body.read(1) {
                StreamRead::End => return Step::End,
                StreamRead::Failed => return Step::Failed,
                StreamRead::Data(_) | StreamRead::Pending => {}
            }
            if !peer.may_receive() || !peer.receive(buffers, now) {
                break;
            }
        }
        // Asking again is no progress: the read timeout runs from the first time.
        if !std::mem::replace(&mut call.reader_waits, true) {
            call.times.progress = now;
        }
        self.flush_touched();
        self.schedule_deadline(id);
        Step::Pending
    }

    /// Whether the request is still being sent, to a server that has not refused it. The call is not over before that,
    /// even if its response is complete.
    pub(in crate::client) fn is_sending(&mut self, id: CallId) -> bool {
        let Some(call) = self.calls.get(id.index as usize) else {
            return false;
        };
        let has_body = call.request.body.size() != BodySize::Empty;
        if !has_body || call.response == ResponseState::Refusal || call.upload == Upload::Tunnel {
            return false;
        }
        let Some(StreamHandle { conn, stream, .. }) = call.handle() else {
            return false;
        };
        let Some(peer) = self.engine.conn(conn) else {
            return false;
        };
        // The rest of a stream is sent when its call is over, too, unless no thread may poll then.
        let has_unsent = if peer.is_shared() {
            let body = peer.proto.stream(stream);
            self.has_external_pool && body.is_ok_and(|body| body.queued() > 0)
        } else {
            peer.proto.pending_bytes() > 0 || peer.is_sending_files()
        };
        !peer.has_send_failed() && (has_unsent || self.wants_body(id))
    }

    /// Whether more of a streamed body is to be written. False also if the server does not need the rest.
    pub fn wants_body(&mut self, id: CallId) -> bool {
        let Some(call) = self.call(id) else {
            return false;
        };
        match call.stage {
            Stage::Over => false,
            Stage::Waiting(_) | Stage::Resting(_) | Stage::AwaitingSettings(_) => true,
            Stage::Active(handle) => {
                let is_open = call.upload == Upload::Open;
                let peer = self.engine.conn(handle.conn).filter(|_| is_open);
                let body = peer.and_then(|peer| peer.proto.stream(handle.stream).ok());
                body.is_some_and(|body| !body.is_body_unwanted())
            }
        }
    }

    /// The program has read the end of the response and waits for that of its request.
    fn await_upload(&mut self, id: CallId) {
        if let Some(call) = self.call_mut(id) {
            (call.response, call.reader_waits) = (ResponseState::End, true);
        }
        self.await_sent(id);
        self.flush_touched();
        self.schedule_deadline(id);
        // The bytes that were sent may have been the last.
        self.wake_at_end(id);
    }

    /// Has `wake_at_end` called when more of the request has been sent.
    fn await_sent(&mut self, id: CallId) {
        let handle = self.call(id).and_then(super::Call::handle);
        if let Some(StreamHandle { conn, stream, .. }) = handle
            && let Some(peer) = self.engine.conn(conn)
            && let Ok(mut body) = peer.proto.stream(stream)
        {
            body.await_sent();
        }
    }

    /// Wakes the reader of a complete response when the request has been sent.
    pub(super) fn wake_at_end(&mut self, id: CallId) {
        let waits = self
            .call(id)
            .is_some_and(|call| call.is_read() && call.reader_waits);
        if waits && self.is_sending(id) {
            self.await_sent(id);
        } else if waits {
            if let Some(call) = self.call_mut(id) {
                call.reader_waits = false;
            }
            self.push_event(id, CallEvent::Readable);
        }
    }

    fn read_failure(&mut self, id: CallId, conn: ConnId) -> CallRead<'_> {
        let Some(peer) = self.engine.conn(conn) else {
            return self.read_nothing(id);
        };
        if peer.is_shared() {
            // The failure event is queued behind the events of other streams.
            self.flush_touched();
            return CallRead::Pending;
        }
        while peer.proto.next_event().is_some() {}
        if let Some(error) = peer.proto.error().cloned() {
            self.on_exchange_failed(id, &StreamError::Connection(error));
            // The failure is returned here: drop its event.
            self.events.retain(|(call, _)| *call != id);
        }
        self.read_nothing(id)
    }

    /// Returns the bytes received and not yet read, framing included; at most the window.
    pub fn buffered(&mut self, id: CallId) -> usize {
        let handle = self.call(id).and_then(super::Call::handle);
        let Some(StreamHandle { conn, stream, .. }) = handle else {
            return 0;
        };
        let peer = self.engine.conn(conn);
        let body = peer.and_then(|peer| peer.proto.stream(stream).ok());
        body.map_or(0, |body| body.buffered())
    }

    /// Queues bytes of a streamed body; large ones by reference. Returns the room that is left: 0 means
    /// to wait for [`CallEvent::Writable`](super::CallEvent::Writable). Bytes written after the end of the response are discarded.
    pub fn write(&mut self, id: CallId, data: Bytes) -> Result<usize, Box<CallError>> {
        let room = self.on_body(id, |body| {
            body.write_shared(data)?;
            Ok(body.send_capacity())
        })?;
        Ok(room.unwrap_or(usize::MAX))
    }

    /// Returns how many bytes may be written now. 0 before the request has got its connection, and while it
    /// waits for 100 (Continue).
    pub fn room(&mut self, id: CallId) -> usize {
        let handle = self.call(id).and_then(super::Call::handle);
        let Some(StreamHandle { conn, stream, .. }) = handle else {
            return 0;
        };
        if self
            .call(id)
            .is_some_and(|call| call.continue_deadline.is_some())
        {
            return 0;
        }
        let peer = self.engine.conn(conn);
        let body = peer.and_then(|peer| peer.proto.stream(stream).ok());
        body.map_or(0, |mut body| body.send_capacity())
    }

    /// Ends a streamed body.
    pub fn finish(&mut self, id: CallId, trailers: &[Field<'_>]) -> Result<(), Box<CallError>> {
        self.on_body(id, |body| body.finish_with(trailers))?;
        if let Some(call) = self.call_mut(id) {
            call.upload = Upload::Done;
        }
        self.wake_at_end(id);
        self.schedule_deadline(id);
        Ok(())
    }

    /// Runs `work` on the request body, then schedules a flush. `None`: the body is no longer needed.
    fn on_body<T>(
        &mut self,
        id: CallId,
        work: impl FnOnce(&mut towline_proto::StreamMut<'_>) -> Result<T, UserError>,
    ) -> Result<Option<T>, Box<CallError>> {
        let Some(call) = self.call(id) else {
            return Ok(None);
        };
        let handle = match (&call.stage, &call.error) {
            (_, Some(error)) => return Err(error.clone()),
            (Stage::Over, None) => return Ok(None),
            (Stage::Waiting(_) | Stage::AwaitingSettings(_) | Stage::Resting(_), None) => {
                return Err(Box::new(CallError::new(
                    CallErrorKind::LocalProtocol,
                    CallPhase::Pool,
                    "body bytes before the request has a connection",
                )));
            }
            (Stage::Active(handle), None) => *handle,
        };
        let Some(peer) = self.engine.conn(handle.conn) else {
            return Ok(None);
        };
        let local = |error| Box::new(CallError::local(error));
        let mut body = peer.proto.stream(handle.stream).map_err(local)?;
        let done = match work(&mut body) {
            Ok(done) => done,
            // The stream has failed, which an event will report, or the response came first.
            Err(UserError::StreamFailed | UserError::AlreadyFinished) => return Ok(None),
            Err(error) => return Err(local(error)),
        };
        let now = self.now();
        if let Some(call) = self.call_mut(id) {
            call.times.progress = now;
        }
        self.schedule_flush(handle.conn);
        self.schedule_deadline(id);
        Ok(Some(done))
    }

    /// Cancels a call, or frees one that is over. Its slot is free at once.
    pub fn cancel(&mut self, id: CallId) {
        let Some(call) = self.call(id) else {
            return;
        };
        match call.stage {
            Stage::Over | Stage::Resting(_) => {}
            Stage::Waiting(waiter) => {
                self.pool.cancel(waiter);
            }
            Stage::AwaitingSettings(_) => self.release_unused(id),
            Stage::Active(handle) => {
                if call.has_head() && call.upload == Upload::Done {
                    self.drain(handle);
                }
                let now = self.now();
                self.release(handle, now);
                if !self.in_turn && !self.unflushed.is_empty() {
                    // The reset of its stream must be sent, even if nothing else is.
                    self.engine.rearm();
                }
            }
        }
        self.calls.try_remove(id.index as usize);
        if !self.events.is_empty() {
            self.events.retain(|(call, _)| *call != id);
        }
        self.run_pool_actions();
    }

    /// Discards the received part of a response, up to a limit.
    fn drain(&mut self, handle: StreamHandle) {
        let peer = self.engine.conn(handle.conn);
        let Some(Ok(mut body)) = peer.map(|peer| peer.proto.stream(handle.stream)) else {
            return;
        };
        let mut left = MAX_SKIPPED_BODY_BYTES;
        while left > 0
            && let StreamRead::Data(data) = body.read(left)
        {
            left -= data.len();
        }
    }
}
