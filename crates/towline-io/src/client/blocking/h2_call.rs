//! One call on a connection that it shares with others.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use towline_proto::{Field, OwnedHead, StreamId, StreamMut, StreamRead, StreamStats, UserError};

use super::Ended;
use super::call::{self, Written};
use super::h1_exchange::overdue;
use super::h2_conn::{Failure, Rider, Shared, Vain, Wait, Wire};
use super::read_buffer::Rest;
use super::shared_pool::Desk;
use super::wait_policy::{Patience, Stop};
use crate::client::conn_ext::{duplicate, write_body, write_request};
use crate::client::request::{Body, CallError, CallOptions, CallPhase, Prepared, Timeouts};
use crate::client::retry::{self, Standing};

/// Bytes of an unread body that are skipped to spare the server a reset.
const MOST_DRAINED: usize = 64 * 1024;

/// Bytes taken from the connection at once, and of a whole body that need not wait to be asked for.
const MOST_PULLED: usize = 64 * 1024;

/// A place on a shared connection. It is given up when this is dropped, and the connection goes on.
pub(super) struct Ride {
    shared: Arc<Shared>,
    desk: Arc<Desk>,
    stream: StreamId,
    timeouts: Timeouts,
    begun: Instant,
    reused: bool,
    again: Again,
    /// The body waits for the server to want it.
    held: bool,
    upload: Upload,
    has_head: bool,
    /// Why it failed.
    failure: Option<Failure>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Upload {
    /// It was given whole, or is finished.
    Done,
    /// The program writes it.
    Open,
}

/// When its program may send it once more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    Never,
    /// When the server has not begun with it.
    Unbegun,
    Any,
}

/// Why a call could not begin.
pub(super) enum Refused {
    /// The connection takes no more calls now.
    Crowded,
    Failed(Box<CallError>),
}

impl Ride {
    /// Writes the request as far as it is at hand.
    pub(super) fn begin(
        shared: Arc<Shared>,
        desk: &Arc<Desk>,
        prepared: &Prepared,
        options: &CallOptions,
        reused: bool,
    ) -> Result<Self, Refused> {
        let begun = Instant::now();
        let written = shared.with(desk, |wire| {
            let stream = write_request(&mut wire.peer, prepared)?;
            wire.riders.insert(stream, Rider::default());
            Ok(stream)
        });
        match written {
            Ok(stream) => Ok(Self {
                stream,
                timeouts: options.timeouts,
                begun,
                reused,
                again: match prepared.body.is_replayable() {
                    false => Again::Never,
                    true if prepared.idempotent => Again::Any,
                    true => Again::Unbegun,
                },
                held: prepared.holds_back(),
                upload: if prepared.body.is_streamed() {
                    Upload::Open
                } else {
                    Upload::Done
                },
                has_head: false,
                failure: None,
                shared,
                desk: Arc::clone(desk),
            }),
            Err(UserError::NotIdle) => {
                desk.give_back(shared.slot(), Instant::now());
                Err(Refused::Crowded)
            }
            Err(error) => {
                desk.give_back(shared.slot(), Instant::now());
                Err(Refused::Failed(Box::new(CallError::local(error))))
            }
        }
    }

    // The response.

    /// Waits for the final head; whether that is all there is. A body that has come with it whole is
    /// taken at once.
    pub(super) fn await_head(
        &mut self,
        body: &Body,
        rest: &mut Rest,
        informational: &mut Vec<OwnedHead>,
        patience: &mut Patience<'_>,
    ) -> Result<(OwnedHead, bool), Ended> {
        self.await_continue(body, informational, patience)?;
        let stream = self.stream;
        let (head, is_over) = self.wait(CallPhase::Head, None, patience, |wire| {
            let rider = wire.riders.get_mut(stream)?;
            informational.append(&mut rider.informational);
            let Some((head, end)) = rider.head.take() else {
                return rider.failure.take().map(Err);
            };
            let is_whole =
                |body: StreamMut<'_>| body.end_received() && body.buffered() <= MOST_PULLED;
            let body = wire.peer.conn.stream(stream);
            let is_over =
                end || (body.is_ok_and(is_whole) && pull(wire, stream, MOST_PULLED, rest));
            Some(Ok((head, is_over)))
        })?;
        self.has_head = true;
        Ok((head, is_over))
    }

    /// Waits until more of the body is here, and takes it as far as `rest` was asked for. Whether that was
    /// the last of it.
    pub(super) fn fill(
        &mut self,
        rest: &mut Rest,
        patience: &mut Patience<'_>,
    ) -> Result<bool, Ended> {
        let stream = self.stream;
        let most = rest.wanted.clamp(1, MOST_PULLED);
        self.wait(CallPhase::Body, None, patience, |wire| {
            if pull(wire, stream, most, rest) {
                return Some(Ok(true));
            }
            if !rest.is_empty() {
                return Some(Ok(false));
            }
            let rider = wire.riders.get_mut(stream)?;
            rider.failure.take().map(Err)
        })
    }

    /// Bytes of the body that are held here and have not been read.
    pub(super) fn buffered(&self) -> usize {
        if self.shared.is_foreign() {
            return 0;
        }
        let stream = self.stream;
        self.shared.with(&self.desk, |wire| {
            let body = wire.peer.conn.stream(stream);
            body.map_or(0, |body| body.buffered())
        })
    }

    // The request.

    /// Holds the body back until the server wants it, has answered, or has had its time
    /// (RFC 9110 10.1.1). Whether the body goes.
    fn await_continue(
        &mut self,
        body: &Body,
        informational: &mut Vec<OwnedHead>,
        patience: &mut Patience<'_>,
    ) -> Result<bool, Ended> {
        if !self.held {
            return Ok(true);
        }
        let stream = self.stream;
        let until = Instant::now() + retry::CONTINUE_WITHIN;
        let is_wanted = self.attend(CallPhase::Head, Some(until), patience, |wire| {
            let rider = wire.riders.get_mut(stream)?;
            let new = rider.informational.drain(..);
            let mut is_wanted = false;
            informational.extend(new.inspect(|head| is_wanted |= head.view().status() == 100));
            if is_wanted {
                return Some(true);
            }
            (rider.head.is_some() || rider.failure.is_some()).then_some(false)
        });
        match is_wanted {
            Ok(true)
            | Err(Vain {
                stop: Stop::Phase, ..
            }) => {}
            Ok(false) => return Ok(false),
            Err(vain) => return Err(self.in_vain(&vain)),
        }
        self.held = false;
        let written = duplicate(body).and_then(|file| {
            self.shared.with(&self.desk, |wire| {
                write_body(&mut wire.peer, stream, body, file)
            })
        });
        match written {
            Ok(()) | Err(UserError::StreamFailed) => Ok(true),
            Err(error) => Err(Ended::Failed(Box::new(CallError::local(error)))),
        }
    }

    /// Sends a piece of a streamed body, waiting for room.
    pub(super) fn write(
        &mut self,
        data: Bytes,
        body: &Body,
        informational: &mut Vec<OwnedHead>,
        patience: &mut Patience<'_>,
    ) -> Result<Written, Ended> {
        if !self.await_continue(body, informational, patience)? {
            return Ok(Written::Answered);
        }
        if !self.on_body(|mut stream| stream.write_shared(data))? {
            return Ok(Written::Answered);
        }
        let stream = self.stream;
        self.wait(CallPhase::Head, None, patience, |wire| {
            let rider = wire.riders.get_mut(stream)?;
            if let Some((head, _)) = &rider.head
                && head.view().status() >= 300
            {
                return Some(Ok(Written::Answered));
            }
            if let Some(failure) = rider.failure.take() {
                return Some(Err(failure));
            }
            match wire.peer.conn.stream(stream) {
                Ok(body) => (body.send_capacity() > 0).then_some(Ok(Written::Taken)),
                // The response is complete and has been taken.
                Err(_) => Some(Ok(Written::Answered)),
            }
        })
    }

    /// Ends a streamed body.
    pub(super) fn finish(
        &mut self,
        trailers: &[Field<'_>],
        body: &Body,
        informational: &mut Vec<OwnedHead>,
        patience: &mut Patience<'_>,
    ) -> Result<(), Ended> {
        if self.await_continue(body, informational, patience)? {
            self.on_body(|mut stream| stream.finish_with(trailers))?;
            self.upload = Upload::Done;
        }
        Ok(())
    }

    /// Does something with the body that is being sent; `false`: nobody wants it any more, and the head, or
    /// the failure, says why.
    fn on_body(
        &mut self,
        act: impl FnOnce(StreamMut<'_>) -> Result<(), UserError>,
    ) -> Result<bool, Ended> {
        if self.shared.is_foreign() {
            return Err(call::parents());
        }
        let stream = self.stream;
        let done = (self.shared).with(&self.desk, |wire| {
            wire.peer.conn.stream(stream).and_then(act)
        });
        match done {
            Ok(()) => Ok(true),
            Err(
                UserError::StreamFailed | UserError::AlreadyFinished | UserError::UnknownStream,
            ) => Ok(false),
            Err(error) => Err(Ended::Failed(Box::new(CallError::local(error)))),
        }
    }

    // Waiting.

    fn attend<T>(
        &self,
        phase: CallPhase,
        until: Option<Instant>,
        patience: &mut Patience<'_>,
        ready: impl FnMut(&mut Wire) -> Option<T>,
    ) -> Result<T, Vain> {
        let terms = Wait {
            desk: &self.desk,
            stream: self.stream,
            timeouts: &self.timeouts,
            phase,
            begun: self.begun,
            until,
        };
        self.shared.wait(&terms, patience, ready)
    }

    /// Waits; `ready` may also find that the exchange has failed.
    fn wait<T>(
        &mut self,
        phase: CallPhase,
        until: Option<Instant>,
        patience: &mut Patience<'_>,
        ready: impl FnMut(&mut Wire) -> Option<Result<T, Failure>>,
    ) -> Result<T, Ended> {
        if self.shared.is_foreign() {
            return Err(call::parents());
        }
        match self.attend(phase, until, patience, ready) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(failure)) => Err(self.failed(failure)),
            Err(vain) => Err(self.in_vain(&vain)),
        }
    }

    fn failed(&mut self, failure: Failure) -> Ended {
        let phase = match self.upload {
            _ if self.has_head => CallPhase::Body,
            Upload::Open => CallPhase::Send,
            Upload::Done => CallPhase::Head,
        };
        let error = retry::stream_failure(&failure.why, phase);
        let mut error = self.describe(error, failure.stats);
        error.retryable |= failure.why.is_unprocessed() && self.again != Again::Never;
        self.failure = Some(failure);
        Ended::Failed(Box::new(error))
    }

    fn in_vain(&self, vain: &Vain) -> Ended {
        match overdue(vain.stop, vain.doing) {
            Some(error) => Ended::Failed(Box::new(self.describe(error, vain.stats))),
            None => Ended::Interrupted,
        }
    }

    fn describe(&self, error: CallError, stats: StreamStats) -> CallError {
        CallError {
            retryable: self.again == Again::Any && !self.has_head,
            bytes_sent: stats.sent,
            bytes_received: stats.received,
            reused: self.reused,
            ..error
        }
    }

    /// How the exchange stood when it failed, if that was not its own fault.
    pub(super) fn standing(&self, resends: u8) -> Option<Standing> {
        let failure = self.failure.as_ref()?;
        let standing = Standing {
            reused: self.reused,
            response_started: self.has_head || failure.stats.received > 0,
            unprocessed: false,
            resends,
        };
        standing.failed(&failure.why, self.desk.service.protocols)
    }

    /// It has failed because the server wants it over HTTP/1.1.
    pub(super) fn wants_http1(&self) -> bool {
        let failure = self.failure.as_ref();
        failure.is_some_and(|failure| retry::wants_http1(&failure.why, self.desk.service.protocols))
    }
}

/// Takes up to `most` bytes of a body that are here. Whether that was the last of it: nobody has to do with
/// the stream any more then.
fn pull(wire: &mut Wire, stream: StreamId, most: usize, rest: &mut Rest) -> bool {
    let Ok(mut body) = wire.peer.conn.stream(stream) else {
        return false;
    };
    loop {
        let left = most.saturating_sub(rest.len());
        if left == 0 && !(body.end_received() && body.buffered() == 0) {
            return false;
        }
        match body.read(left.max(1)) {
            StreamRead::Data(data) => rest.push(data),
            StreamRead::Pending | StreamRead::Failed => return false,
            StreamRead::End => {
                rest.trailers = call::trailers_of(&body);
                return true;
            }
        }
    }
}

impl Drop for Ride {
    fn drop(&mut self) {
        if self.shared.is_foreign() {
            return std::mem::forget(Arc::clone(&self.shared));
        }
        let is_taken = self.has_head && self.upload == Upload::Done;
        let stream = self.stream;
        self.shared.with(&self.desk, |wire| {
            wire.riders.remove(stream);
            let Ok(mut body) = wire.peer.conn.stream(stream) else {
                return;
            };
            let mut left = if is_taken { MOST_DRAINED } else { 0 };
            while left > 0
                && let StreamRead::Data(data) = body.read(left)
            {
                left -= data.len();
            }
            // Without effect when both directions are complete.
            body.reset();
        });
        self.desk.give_back(self.shared.slot(), Instant::now());
    }
}
