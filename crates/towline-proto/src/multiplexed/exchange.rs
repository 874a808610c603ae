//! The request and the response of a stream: the states of its two directions, whatever frames carry them.

use crate::body::Method;
use crate::error::CloseReason;
use crate::head::OwnedFields;
use crate::head::is_forbidden_trailer;
use crate::{BodySize, Field, Fields, Limits, Side, StreamError, UserError};

use super::fault::Fault;
use super::fields::{RequestInfo, check_trailers};
use super::head::{BODY_TOO_LARGE, Request, Response};
use super::response::{BodyPlan, response_plan};
use super::states::{RecvState, SendState, Tunnel};
use crate::pending_events::PendingEvents;

/// The messages of a stream.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub recv_state: RecvState,
    pub send_state: SendState,
    pub tunnel: Tunnel,
    pub method: Method,
    pub pending: PendingEvents,
    /// The client waits for `100 Continue` before it sends its body.
    pub awaits_continue: bool,
    interim_responses: u32,
    /// Announced body bytes that are still to come.
    pub announced: Option<u64>,
    pub received_bytes: u64,
    /// Received trailers.
    pub trailers: Option<Box<OwnedFields>>,
    pub failure: Option<StreamError>,
}

/// The rules of messages that a peer can break, with the codes of its protocol.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageRules {
    /// More interim responses than allowed.
    pub interim: Fault,
    /// A body that is not as long as announced.
    pub body_length: Fault,
    /// A body over the limit.
    pub body: Fault,
}

/// Consequences of a request's head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BegunRequest {
    /// A body follows, which the program reads.
    pub has_body: bool,
    /// A tunnel whose client has ended its direction already.
    pub is_half_closed: bool,
    /// The client sends its body without waiting.
    pub is_body_due: bool,
}

/// Consequences of a response's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BegunResponse {
    /// An interim response: the final one is still due.
    Interim,
    /// The tunnel is open.
    Tunnel,
    /// The server refuses the tunnel.
    TunnelRefused,
    Final,
}

/// Reason for which nothing can be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NothingToRead {
    /// More may come.
    Pending,
    /// The end was read just now.
    NowDone,
    End,
    Failed,
}

/// The next step of `finish`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The end is still to be sent, after the trailers.
    End,
    /// The end is sent with the last byte of the body, or has been.
    Whole,
    /// The message had been finished before.
    Already,
}

impl Exchange {
    /// Begins anew. What [`end`](Self::end) has cleared is left as it is.
    #[inline]
    pub fn begin(&mut self) {
        // Field by field, since replacing the whole would construct and drop the few fields that own memory.
        let Self {
            recv_state,
            send_state,
            tunnel,
            method,
            pending,
            awaits_continue,
            interim_responses,
            announced,
            received_bytes,
            trailers: _,
            failure: _,
        } = self;
        *recv_state = RecvState::default();
        *send_state = SendState::default();
        *tunnel = Tunnel::default();
        *method = Method::default();
        *pending = PendingEvents::default();
        *awaits_continue = false;
        *interim_responses = 0;
        *announced = None;
        *received_bytes = 0;
    }

    /// Frees memory.
    #[inline]
    pub fn end(&mut self) {
        self.trailers = None;
        self.failure = None;
    }

    pub fn has_failed(&self) -> bool {
        self.recv_state == RecvState::Failed
    }

    /// Whether everything that the program writes is discarded.
    pub fn is_unwanted(&self) -> bool {
        self.send_state == SendState::Discard
    }

    /// Leaves an open tunnel if the program has sent all; whether it has.
    pub fn leaves_tunnel(&mut self) -> bool {
        let leaves = self.send_state == SendState::Complete && self.tunnel == Tunnel::Open;
        if leaves {
            self.tunnel = Tunnel::None;
        }
        leaves
    }

    /// Whether the program has finished its message and needs no more of the other one.
    #[inline]
    pub fn is_complete(&self, side: Side) -> bool {
        let is_read = match (side, self.tunnel) {
            (Side::Server, Tunnel::None | Tunnel::Requested) => true,
            (Side::Client, _) | (_, Tunnel::Open) => self.recv_state == RecvState::Done,
        };
        self.send_state == SendState::Complete && is_read
    }

    /// Fails both directions; whether the program is to be told. After finishing its direction of a tunnel it still
    /// reads the other.
    pub fn fail(&mut self, side: Side) -> bool {
        let is_done = side == Side::Server
            && self.send_state == SendState::Complete
            && self.tunnel != Tunnel::Open;
        self.recv_state = RecvState::Failed;
        self.send_state = SendState::Failed;
        self.pending.take(!0);
        !is_done
    }

    // Receiving.

    /// A request's head was received. `end`: nothing follows.
    #[inline]
    pub fn begin_request(&mut self, request: Request, end: bool) -> BegunRequest {
        self.method = request.method;
        self.announced = request.length;
        self.awaits_continue = request.awaits_continue;
        self.recv_state = after_head(end);
        let connects = request.method == Method::Connect;
        if connects {
            self.tunnel = Tunnel::Requested;
        }
        let has_body = !end && !connects;
        BegunRequest {
            has_body,
            is_half_closed: connects && end,
            is_body_due: has_body && !request.awaits_continue,
        }
    }

    /// A response's head was received. `end`: nothing follows.
    #[inline]
    pub fn begin_response(
        &mut self,
        response: Response,
        end: bool,
        limits: &Limits,
        rules: &MessageRules,
    ) -> Result<BegunResponse, Fault> {
        if response.status < 200 {
            self.interim_responses += 1;
            if self.interim_responses > limits.max_interim_responses {
                return Err(rules.interim);
            }
            return Ok(BegunResponse::Interim);
        }
        if self.tunnel == Tunnel::Requested && (200..300).contains(&response.status) {
            self.tunnel = Tunnel::Open;
            self.recv_state = after_head(end);
            self.send_state = SendState::Body(None);
            return Ok(BegunResponse::Tunnel);
        }
        let is_bodiless = self.method == Method::Head || matches!(response.status, 204 | 304);
        self.announced = if is_bodiless {
            Some(0)
        } else {
            response.length
        };
        if end && self.lacks_bytes() {
            return Err(rules.body_length);
        }
        let over_limit = |max| self.announced > Some(max);
        if limits.max_body_bytes.is_some_and(over_limit) {
            return Err(rules.body);
        }
        self.recv_state = if end {
            RecvState::Done
        } else {
            RecvState::Body
        };
        if self.tunnel == Tunnel::Requested {
            self.tunnel = Tunnel::None;
            return Ok(BegunResponse::TunnelRefused);
        }
        Ok(BegunResponse::Final)
    }

    /// Announced bytes have not come.
    pub fn lacks_bytes(&self) -> bool {
        self.announced.is_some_and(|announced| announced > 0)
    }

    /// Accounts for `n` body bytes that come, which may be the last ones.
    #[inline]
    pub fn count_body(
        &mut self,
        n: u64,
        last: bool,
        limits: &Limits,
        rules: &MessageRules,
    ) -> Result<(), Fault> {
        if let Some(announced) = self.announced {
            let left = announced.checked_sub(n).ok_or(rules.body_length)?;
            if last && left > 0 {
                return Err(rules.body_length);
            }
            self.announced = Some(left);
        }
        self.received_bytes = self.received_bytes.saturating_add(n);
        let over_limit = |max| self.received_bytes > max;
        if limits.max_body_bytes.is_some_and(over_limit) {
            return Err(rules.body);
        }
        Ok(())
    }

    /// Trailers were received: those that are allowed are kept.
    pub fn keep_trailers(&mut self, fields: Fields<'_>, rules: &MessageRules) -> Result<(), Fault> {
        if self.lacks_bytes() {
            return Err(rules.body_length);
        }
        let allowed = fields.filter(|field| !is_forbidden_trailer(field.name));
        self.trailers = Some(Box::new(OwnedFields::of(allowed)));
        Ok(())
    }

    /// Everything that has come was read.
    #[inline]
    pub fn nothing_to_read(&mut self, side: Side) -> NothingToRead {
        match self.recv_state {
            RecvState::Failed => NothingToRead::Failed,
            RecvState::Ended if side == Side::Client || self.tunnel == Tunnel::Open => {
                self.recv_state = RecvState::Done;
                NothingToRead::NowDone
            }
            RecvState::Ended | RecvState::Done => NothingToRead::End,
            RecvState::Body if self.tunnel == Tunnel::Requested => NothingToRead::End,
            RecvState::Head | RecvState::Body => {
                self.pending.set(PendingEvents::READER_WAITS);
                NothingToRead::Pending
            }
        }
    }

    /// Whether the other message was received to its end.
    pub fn end_received(&self) -> bool {
        matches!(self.recv_state, RecvState::Ended | RecvState::Done)
    }

    /// The trailers, if everything before them `is_read`.
    pub fn trailers(&self, is_read: bool) -> Fields<'_> {
        match &self.trailers {
            Some(trailers) if is_read => trailers.fields(),
            _ => Fields::new(&[], &[]),
        }
    }

    /// The fault that has ended the stream: the status of the response to it (0: there was none) and its rule.
    pub fn refusal(&self) -> Option<(u16, CloseReason, &'static str)> {
        match self.failure.as_ref()? {
            StreamError::Broken { reason, rule } => {
                let status = if *rule == BODY_TOO_LARGE { 413 } else { 0 };
                Some((status, *reason, rule))
            }
            _ => None,
        }
    }

    // Sending.

    /// The head of a request is written.
    #[inline]
    pub fn request(&mut self, info: RequestInfo) {
        self.method = info.method;
        self.send_state = info.next;
        if info.method == Method::Connect {
            self.tunnel = Tunnel::Requested;
        }
    }

    /// Whether a response can be sent now.
    #[inline]
    pub fn check_respond(&self) -> Result<(), UserError> {
        match self.send_state {
            SendState::Head => Ok(()),
            SendState::Failed => Err(UserError::StreamFailed),
            _ => Err(UserError::WrongOrder),
        }
    }

    /// Decides how a final response is sent; `None`: it opens the tunnel. `given`: the program's Content-Length.
    #[inline]
    pub fn respond(
        &mut self,
        status: u16,
        size: BodySize,
        given: Option<u64>,
    ) -> Result<Option<BodyPlan>, UserError> {
        if self.tunnel == Tunnel::Requested && (200..300).contains(&status) {
            if given.is_some() {
                return Err(UserError::InvalidContentLength);
            }
            self.tunnel = Tunnel::Open;
            self.send_state = SendState::Body(None);
            return Ok(None);
        }
        let plan = response_plan(self.method, status, size, given)?;
        self.tunnel = Tunnel::None;
        self.send_state = plan.next;
        Ok(Some(plan))
    }

    /// Whether `100 Continue` is to be sent because the program reads.
    #[inline]
    pub fn takes_continue(&mut self) -> bool {
        std::mem::take(&mut self.awaits_continue) && self.send_state == SendState::Head
    }

    /// Accounts for `n` body bytes of the program.
    #[inline]
    pub fn admit(&mut self, n: usize) -> Result<Admitted, UserError> {
        match &mut self.send_state {
            SendState::Body(Some(left)) => {
                *left = left.checked_sub(n as u64).ok_or(UserError::BodyTooLong)?;
                Ok(match (n, *left) {
                    (0, _) => Admitted::Nothing,
                    (_, left) => Admitted::Sized { last: left == 0 },
                })
            }
            SendState::Body(None) if n == 0 => Ok(Admitted::Nothing),
            SendState::Body(None) => Ok(Admitted::Unsized),
            SendState::Discard => Ok(Admitted::Nothing),
            SendState::Head => Err(UserError::WrongOrder),
            SendState::Complete => Err(UserError::AlreadyFinished),
            SendState::Failed => Err(UserError::StreamFailed),
        }
    }

    /// The program has finished its message. `BodyTooShort` and `StreamFailed` end the stream.
    #[inline]
    pub fn finish(&mut self, trailers: &[Field<'_>]) -> Result<Finish, UserError> {
        let finish = match self.send_state {
            SendState::Complete => return Ok(Finish::Already),
            SendState::Head => return Err(UserError::WrongOrder),
            SendState::Failed => return Err(UserError::StreamFailed),
            SendState::Body(Some(1..)) => return Err(UserError::BodyTooShort),
            SendState::Body(Some(0)) if !trailers.is_empty() => {
                return Err(UserError::TrailersNotPossible);
            }
            SendState::Body(None) => {
                check_trailers(trailers)?;
                Finish::End
            }
            SendState::Body(Some(0)) | SendState::Discard => Finish::Whole,
        };
        self.send_state = SendState::Complete;
        Ok(finish)
    }

    pub fn body_left(&self) -> Option<u64> {
        match self.send_state {
            SendState::Body(left) => left,
            SendState::Discard => Some(0),
            _ => None,
        }
    }
}

/// The state of receiving after the head of a message.
fn after_head(end: bool) -> RecvState {
    if end {
        RecvState::Ended
    } else {
        RecvState::Body
    }
}

/// Body bytes that may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// There are none, or the peer does not need them.
    Nothing,
    /// A part of a body of known size.
    Sized { last: bool },
    /// A part of a body of unknown size.
    Unsized,
}
