//! A WebSocket on the calling threads: a caller of its own, which moves only while some thread is in here.
//!
//! One thread may receive while others send. Whoever has to wait sleeps on the caller's descriptor, without the
//! lock; of several, one sleeps there and the others wait for its word.
//!
//! ```text
//!   receive, say, close ─lock─► ClientDriver ─► done
//!        └─ nothing yet ─► wait ─► [driver] poll(2) ─lock─► turn ─► bell ─► all look again
//! ```

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use towline_proto::OwnedHead;
use towline_proto::ws::{Kind, SendError};

use super::BlockingError;
use super::h1_conn::poll;
use super::wait_policy::WaitPolicy;
use crate::client::driver::{CallEvent, CallId, ClientDriver, ClientDriverConfig};
use crate::client::fork;
use crate::client::request::{CallError, CallErrorKind, CallOptions, CallPhase, OutgoingRequest};
use crate::client::websocket::{Outgoing, WebSocketConfig, WsClosed, WsReceived, WsSendError};

/// A WebSocket that has been granted. Dropping it ends it without a word.
pub struct BlockingWebSocket {
    generation: u64,
    fd: std::os::fd::RawFd,
    id: CallId,
    inner: Mutex<Inner>,
    bell: Condvar,
}

struct Inner {
    /// `None`: it was given up.
    caller: Option<ClientDriver>,
    /// Some thread is asleep on the descriptor.
    driven: bool,
    /// Counts what has happened.
    news: u64,
    /// Some thread is receiving.
    receiving: bool,
}

/// What became of a request for a WebSocket.
pub enum UpgradeOutcome {
    Granted(OwnedHead, Box<BlockingWebSocket>),
    /// Another answer, with the first part of its content.
    Refused(OwnedHead, Vec<u8>),
}

/// What [`BlockingWebSocket::receive`] found.
#[derive(Debug)]
pub enum WsRecvOutcome {
    Message(Kind, Vec<u8>),
    Closed(WsClosed),
    /// The time is over.
    TimedOut,
    /// Another thread is receiving.
    Busy,
}

impl BlockingWebSocket {
    /// Asks for a WebSocket and waits for the answer.
    pub fn open(
        config: ClientDriverConfig,
        request: OutgoingRequest,
        options: CallOptions,
        terms: WebSocketConfig,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<UpgradeOutcome, BlockingError> {
        let mut caller = ClientDriver::new(config).map_err(|error| {
            let (kind, phase) = (CallErrorKind::Connect, CallPhase::Pool);
            BlockingError::Failed(Box::new(CallError {
                os_error: error.raw_os_error(),
                ..CallError::new(kind, phase, error.to_string())
            }))
        })?;
        let id = caller
            .begin_websocket(request, options, terms)
            .map_err(BlockingError::Failed)?;
        caller.flush();
        let mut phase = policy.phase(Instant::now(), None);
        let mut slice = phase.first_slice();
        let mut answer: Option<OwnedHead> = None;
        let mut content = Vec::new();
        loop {
            take_turn(&mut caller, Some(slice));
            while let Some((_, event)) = caller.next_event() {
                match event {
                    CallEvent::Head { .. } => answer = caller.take_head(id),
                    CallEvent::Failed(error) if answer.is_none() => {
                        return Err(BlockingError::Failed(error));
                    }
                    _ => {}
                }
            }
            caller.flush();
            if answer.is_some() && caller.is_websocket(id) {
                break;
            }
            if answer.is_some() && caller.refusal(id, &mut content).is_some() {
                break;
            }
            slice = phase.next_slice().map_err(|_| BlockingError::Interrupted)?;
        }
        let Some(head) = answer else {
            return Err(BlockingError::Interrupted);
        };
        if !caller.is_websocket(id) {
            caller.cancel(id);
            return Ok(UpgradeOutcome::Refused(head, content));
        }
        let socket = Self {
            generation: fork::generation(),
            fd: caller.as_raw_fd(),
            id,
            inner: Mutex::new(Inner {
                caller: Some(caller),
                driven: false,
                news: 0,
                receiving: false,
            }),
            bell: Condvar::new(),
        };
        Ok(UpgradeOutcome::Granted(head, Box::new(socket)))
    }

    /// The next message.
    pub fn receive(
        &self,
        until: Option<Instant>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WsRecvOutcome, BlockingError> {
        if std::mem::replace(&mut self.open_inner()?.receiving, true) {
            return Ok(WsRecvOutcome::Busy);
        }
        let heard = self.hear(until, policy);
        if let Ok(mut inner) = self.open_inner() {
            inner.receiving = false;
            if let Some(caller) = &mut inner.caller {
                caller.stop_receiving(self.id);
            }
        }
        heard
    }

    fn hear(
        &self,
        until: Option<Instant>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WsRecvOutcome, BlockingError> {
        loop {
            let mut inner = self.open_inner()?;
            let seen = inner.news;
            let Some(caller) = &mut inner.caller else {
                return Err(given_up());
            };
            let received = caller.receive(self.id, until, |kind, data| (kind, data.to_vec()));
            caller.flush();
            drop(inner);
            match received {
                WsReceived::Message((kind, data)) => return Ok(WsRecvOutcome::Message(kind, data)),
                WsReceived::Closed(closed) => return Ok(WsRecvOutcome::Closed(closed)),
                WsReceived::Failed(error) => return Err(BlockingError::Failed(error)),
                WsReceived::Pending if until.is_some_and(|until| until <= Instant::now()) => {
                    return Ok(WsRecvOutcome::TimedOut);
                }
                WsReceived::Pending => self.wait(seen, policy)?,
            }
        }
    }

    /// Sends a message or a ping, waiting for room. What has come meanwhile is looked at: pings are answered.
    pub fn say(
        &self,
        what: &Outgoing<'_>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Result<(), WsSendError>, BlockingError> {
        loop {
            let mut inner = self.open_inner()?;
            let seen = inner.news;
            let Some(caller) = &mut inner.caller else {
                return Err(given_up());
            };
            let said = caller.say(self.id, what.clone());
            caller.flush();
            if !inner.driven {
                inner.turn();
            }
            drop(inner);
            self.bell.notify_all();
            match said {
                Err(WsSendError::NoRoom) => self.wait(seen, policy)?,
                said => return Ok(said),
            }
        }
    }

    /// Closes in order: waits for the end of the closing handshake, which its own clock bounds.
    pub fn close(
        &self,
        code: u16,
        reason: &str,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Result<(), SendError>, BlockingError> {
        {
            let mut inner = self.open_inner()?;
            let Some(caller) = &mut inner.caller else {
                return Ok(Ok(()));
            };
            if let Err(mistake) = caller.close_websocket(self.id, code, reason) {
                return Ok(Err(mistake));
            }
            caller.flush();
            inner.news += 1;
        }
        self.bell.notify_all();
        loop {
            let inner = self.open_inner()?;
            let seen = inner.news;
            let over = inner
                .caller
                .as_ref()
                .is_none_or(|caller| caller.is_over(self.id));
            drop(inner);
            if over {
                return Ok(Ok(()));
            }
            self.wait(seen, policy)?;
        }
    }

    /// Ends it without a word.
    pub fn abort(&self) {
        if let Ok(mut inner) = self.open_inner() {
            if let Some(caller) = &mut inner.caller {
                caller.cancel(self.id);
            }
            inner.news += 1;
            drop(inner);
            self.bell.notify_all();
        }
    }

    pub fn subprotocol(&self) -> Option<Vec<u8>> {
        let inner = self.open_inner().ok()?;
        let chosen = inner.caller.as_ref()?.subprotocol(self.id)?;
        Some(chosen.to_vec())
    }

    /// How it has ended, once the messages before have been received.
    pub fn closed(&self) -> Option<WsClosed> {
        let inner = self.open_inner().ok()?;
        inner.caller.as_ref()?.closed(self.id).cloned()
    }

    /// Waits until more has happened than `seen`.
    fn wait(&self, seen: u64, policy: &mut WaitPolicy<'_>) -> Result<(), BlockingError> {
        let mut phase = policy.phase(Instant::now(), None);
        let mut slice = phase.first_slice();
        loop {
            let mut inner = self.open_inner()?;
            if inner.news != seen {
                return Ok(());
            }
            if inner.driven {
                let waited = self.bell.wait_timeout(inner, slice);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            } else {
                inner.driven = true;
                drop(inner);
                self.sleep(slice);
                let mut inner = self.open_inner()?;
                inner.driven = false;
                inner.turn();
                drop(inner);
                self.bell.notify_all();
            }
            slice = phase.next_slice().map_err(|_| BlockingError::Interrupted)?;
        }
    }

    fn sleep(&self, most: Duration) {
        let mut entry = libc::pollfd {
            fd: self.fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // What goes wrong here goes wrong in the turn that follows as well.
        let _ = poll(std::slice::from_mut(&mut entry), most);
    }

    fn open_inner(&self) -> Result<MutexGuard<'_, Inner>, BlockingError> {
        if self.generation != fork::generation() {
            // Its lock may be held by a thread of the parent.
            return Err(BlockingError::Failed(Box::new(CallError::new(
                CallErrorKind::Read,
                CallPhase::Body,
                "the WebSocket belongs to the parent process",
            ))));
        }
        Ok(self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inner {
    /// Looks at what is there.
    fn turn(&mut self) {
        let Some(caller) = &mut self.caller else {
            return;
        };
        take_turn(caller, Some(Duration::ZERO));
        while caller.next_event().is_some() {
            self.news += 1;
        }
        caller.flush();
    }
}

fn take_turn(caller: &mut ClientDriver, wait: Option<Duration>) {
    // An interrupted system call; what is there stays there.
    let _ = caller.turn(wait);
}

fn given_up() -> BlockingError {
    BlockingError::Failed(Box::new(CallError::closed()))
}

impl Drop for BlockingWebSocket {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // Its connection and its poll are the parent's.
            let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(inner.caller.take());
        }
    }
}
