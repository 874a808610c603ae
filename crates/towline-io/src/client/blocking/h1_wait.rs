//! The waits of a call over HTTP/1, in `recv(2)` or `poll(2)` on its own connection.

use std::time::Instant;

use towline_proto::OwnedHead;

use super::h1_conn::{H1Conn, RecvProgress, with_buffers};
use super::h1_exchange::{Exchange, HeadState, Upload};
use super::outcome::BlockingError;
use super::wait_policy::{Stop, WaitPolicy};
use crate::client::call_error;
use crate::client::conn_ext::EXPECT_CONTINUE_TIMEOUT;
use crate::client::request::{Body, CallError, CallErrorKind, CallPhase};

impl Exchange {
    /// Waits with the body until the server sends 100 Continue or a response, or the time for that has passed (RFC 9110
    /// 10.1.1). Whether to send the body.
    pub(super) fn await_continue(
        &mut self,
        conn: &mut H1Conn,
        body: &Body,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<bool, BlockingError> {
        if !self.awaits_continue {
            return Ok(true);
        }
        let until = Instant::now() + EXPECT_CONTINUE_TIMEOUT;
        loop {
            let known = self.informational.len();
            self.take_events(conn);
            if !matches!(self.head_state, HeadState::Awaited) {
                if self.upload == Upload::GivenUp {
                    return Ok(false);
                }
                // A success instead of 100 (Continue): the server takes the body all the same.
                break;
            }
            self.check(conn, CallPhase::Head)?;
            let new = &self.informational[known..];
            if new.iter().any(|head| head.view().status() == 100) {
                break;
            }
            if self.flush(conn) {
                self.step(conn, CallPhase::Head, policy)?;
                continue;
            }
            let mut wait = policy.phase(Instant::now(), None);
            wait.end_at(Some(until));
            let slice = wait.first_slice();
            if with_buffers(|buffers| conn.recv_within(buffers, slice)) == RecvProgress::Nothing {
                match wait.next_slice() {
                    Ok(_) => {}
                    Err(Stop::Phase) => break,
                    Err(stop) => return Err(self.stopped(conn, CallPhase::Head, stop)),
                }
            }
        }
        self.awaits_continue = false;
        self.queue_body(conn, body).map_err(BlockingError::Failed)?;
        Ok(true)
    }

    /// Waits until the final head has arrived.
    pub(super) fn await_head(
        &mut self,
        conn: &mut H1Conn,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<OwnedHead, BlockingError> {
        loop {
            self.take_events(conn);
            if let Some(head) = self.head_state.take() {
                return Ok(head);
            }
            self.check(conn, CallPhase::Head)?;
            if self.is_only_call
                && !self.awaits_continue
                && self.sent == self.queued
                && conn.received == 0
            {
                let got = with_buffers(|buffers| conn.recv_spinning(buffers));
                if got != RecvProgress::Nothing {
                    continue;
                }
            }
            self.step(conn, CallPhase::Head, policy)?;
        }
    }

    /// Sends or receives once, waiting if necessary. The caller checks events and buffer space afterwards.
    pub(super) fn step(
        &mut self,
        conn: &mut H1Conn,
        phase: CallPhase,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        let sending = self.flush(conn);
        self.wait(conn, sending, phase, policy)
    }

    /// As `step`, while the request is being written: what is sent at once may be all that the caller waits for.
    pub(super) fn step_writing(
        &mut self,
        conn: &mut H1Conn,
        phase: CallPhase,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        let sending = self.flush(conn);
        if !sending && (self.is_read || self.wants_body()) && !conn.has_send_failed() {
            return Ok(());
        }
        self.wait(conn, sending, phase, policy)
    }

    /// Waits until bytes could be sent (`sending`: some are left) or received.
    fn wait(
        &mut self,
        conn: &mut H1Conn,
        sending: bool,
        phase: CallPhase,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<(), BlockingError> {
        let (doing, timeout) = if sending {
            (CallPhase::Send, self.timeouts.write)
        } else {
            (phase, self.timeouts.read)
        };
        let mut wait = policy.phase(conn.now, timeout);
        let mut slice = wait.first_slice();
        loop {
            let got = if sending {
                let before = self.sent;
                if let Err(error) = conn.poll(slice) {
                    return Err(self.broken(conn, doing, &error));
                }
                self.flush(conn);
                match with_buffers(|buffers| conn.recv_at_once(buffers)) {
                    RecvProgress::Received => RecvProgress::Received,
                    _ if self.sent > before || conn.has_send_failed() => RecvProgress::Received,
                    RecvProgress::Nothing | RecvProgress::Full => RecvProgress::Nothing,
                }
            } else {
                with_buffers(|buffers| conn.recv_within(buffers, slice))
            };
            if got != RecvProgress::Nothing {
                return Ok(());
            }
            slice = wait
                .next_slice()
                .map_err(|stop| self.stopped(conn, doing, stop))?;
        }
    }

    fn stopped(&self, conn: &H1Conn, phase: CallPhase, stop: Stop) -> BlockingError {
        match stop_error(stop, phase) {
            Some(error) => self.ended(conn, error),
            None => BlockingError::Interrupted,
        }
    }
}

/// The error of a wait in `phase` that was stopped; `None` if the program interrupted it.
pub(super) fn stop_error(stop: Stop, phase: CallPhase) -> Option<CallError> {
    let kind = match (stop, phase) {
        (Stop::Interrupted, _) => return None,
        (Stop::Total, _) => CallErrorKind::TotalTimeout,
        (Stop::Phase, CallPhase::Send) => CallErrorKind::WriteTimeout,
        (Stop::Phase, _) => CallErrorKind::ReadTimeout,
    };
    Some(call_error::timeout(kind, phase))
}
