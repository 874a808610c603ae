//! A WebSocket on the calling threads: it has a `ClientDriver` of its own, which runs only while a thread is in here.
//!
//! One thread may receive while others send. A thread that has to wait sleeps on the driver's descriptor, without
//! the lock; of several, one sleeps there and the others wait until it has run a turn.
//!
//! ```text
//!   receive, send, close ─lock─► ClientDriver ─► done
//!        └─ no event yet ─► wait ─► [driver] poll(2) ─lock─► turn ─► condvar ─► all check again
//! ```

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use towline_proto::OwnedHead;
use towline_proto::ws::{Kind, SendError};

use super::h1_conn::poll;
use super::outcome::BlockingError;
use super::wait_policy::WaitPolicy;
use crate::client::driver::{CallEvent, CallId, ClientDriver, ClientDriverConfig};
use crate::client::fork;
use crate::client::request::{CallError, CallErrorKind, CallOptions, CallPhase, OutgoingRequest};
use crate::client::websocket::{Outgoing, WebSocketConfig, WsClosed, WsReceived, WsSendError};

/// An open WebSocket. Dropping it closes the connection without a close frame.
pub struct BlockingWebSocket {
    generation: u64,
    fd: std::os::fd::RawFd,
    id: CallId,
    inner: Mutex<Inner>,
    turned: Condvar,
}

struct Inner {
    /// `None`: it was aborted.
    driver: Option<ClientDriver>,
    /// A thread sleeps on the descriptor.
    polling: bool,
    /// Counts turns that had events.
    turns: u64,
    /// A thread is receiving.
    receiving: bool,
}

/// The result of a WebSocket handshake.
pub enum UpgradeOutcome {
    Granted(OwnedHead, Box<BlockingWebSocket>),
    /// Another response, with the first part of its content.
    Refused(OwnedHead, Vec<u8>),
}

/// The result of [`BlockingWebSocket::receive`].
#[derive(Debug)]
pub enum WsRecvOutcome {
    Message(Kind, Vec<u8>),
    Closed(WsClosed),
    /// The given time has passed.
    TimedOut,
    /// Another thread is receiving.
    Busy,
}

impl BlockingWebSocket {
    /// Requests a WebSocket and waits for the response.
    pub fn open(
        config: ClientDriverConfig,
        request: OutgoingRequest,
        options: CallOptions,
        settings: WebSocketConfig,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<UpgradeOutcome, BlockingError> {
        let mut driver = ClientDriver::new(config).map_err(|error| {
            let (kind, phase) = (CallErrorKind::Connect, CallPhase::Pool);
            BlockingError::Failed(Box::new(CallError {
                os_error: error.raw_os_error(),
                ..CallError::new(kind, phase, error.to_string())
            }))
        })?;
        let id = driver
            .begin_websocket(request, options, settings)
            .map_err(BlockingError::Failed)?;
        driver.flush();
        let mut phase = policy.phase(Instant::now(), None);
        let mut slice = phase.first_slice();
        let mut head: Option<OwnedHead> = None;
        let mut content = Vec::new();
        loop {
            take_turn(&mut driver, Some(slice));
            while let Some((_, event)) = driver.next_event() {
                match event {
                    CallEvent::Head { .. } => head = driver.take_head(id),
                    CallEvent::Failed(error) if head.is_none() => {
                        return Err(BlockingError::Failed(error));
                    }
                    _ => {}
                }
            }
            driver.flush();
            if head.is_some() && driver.is_websocket(id) {
                break;
            }
            if head.is_some() && driver.refusal(id, &mut content).is_some() {
                break;
            }
            slice = phase.next_slice().map_err(|_| BlockingError::Interrupted)?;
        }
        let Some(head) = head else {
            return Err(BlockingError::Interrupted);
        };
        if !driver.is_websocket(id) {
            driver.cancel(id);
            return Ok(UpgradeOutcome::Refused(head, content));
        }
        let socket = Self {
            generation: fork::generation(),
            fd: driver.as_raw_fd(),
            id,
            inner: Mutex::new(Inner {
                driver: Some(driver),
                polling: false,
                turns: 0,
                receiving: false,
            }),
            turned: Condvar::new(),
        };
        Ok(UpgradeOutcome::Granted(head, Box::new(socket)))
    }

    /// Returns the next message.
    pub fn receive(
        &self,
        until: Option<Instant>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WsRecvOutcome, BlockingError> {
        if std::mem::replace(&mut self.open_inner()?.receiving, true) {
            return Ok(WsRecvOutcome::Busy);
        }
        let received = self.recv_message(until, policy);
        if let Ok(mut inner) = self.open_inner() {
            inner.receiving = false;
            if let Some(driver) = &mut inner.driver {
                driver.stop_receiving(self.id);
            }
        }
        received
    }

    fn recv_message(
        &self,
        until: Option<Instant>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<WsRecvOutcome, BlockingError> {
        loop {
            let mut inner = self.open_inner()?;
            let seen = inner.turns;
            let Some(driver) = &mut inner.driver else {
                return Err(given_up());
            };
            let received = driver.receive(self.id, until, |kind, data| (kind, data.to_vec()));
            driver.flush();
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

    /// Sends a message or a ping, waiting for buffer space. Input is processed meanwhile: pings are answered.
    pub fn send(
        &self,
        what: &Outgoing<'_>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Result<(), WsSendError>, BlockingError> {
        loop {
            let mut inner = self.open_inner()?;
            let seen = inner.turns;
            let Some(driver) = &mut inner.driver else {
                return Err(given_up());
            };
            let sent = driver.send_message(self.id, what.clone());
            driver.flush();
            if !inner.polling {
                inner.turn();
            }
            drop(inner);
            self.turned.notify_all();
            match sent {
                Err(WsSendError::NoRoom) => self.wait(seen, policy)?,
                sent => return Ok(sent),
            }
        }
    }

    /// Closes with the closing handshake and waits for its end, which has a timeout of its own.
    pub fn close(
        &self,
        code: u16,
        reason: &str,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Result<(), SendError>, BlockingError> {
        {
            let mut inner = self.open_inner()?;
            let Some(driver) = &mut inner.driver else {
                return Ok(Ok(()));
            };
            if let Err(mistake) = driver.close_websocket(self.id, code, reason) {
                return Ok(Err(mistake));
            }
            driver.flush();
            inner.turns += 1;
        }
        self.turned.notify_all();
        loop {
            let inner = self.open_inner()?;
            let seen = inner.turns;
            let over = inner
                .driver
                .as_ref()
                .is_none_or(|driver| driver.is_over(self.id));
            drop(inner);
            if over {
                return Ok(Ok(()));
            }
            self.wait(seen, policy)?;
        }
    }

    /// Closes the connection without a close frame.
    pub fn abort(&self) {
        if let Ok(mut inner) = self.open_inner() {
            if let Some(driver) = &mut inner.driver {
                driver.cancel(self.id);
            }
            inner.turns += 1;
            drop(inner);
            self.turned.notify_all();
        }
    }

    pub fn subprotocol(&self) -> Option<Vec<u8>> {
        let inner = self.open_inner().ok()?;
        let chosen = inner.driver.as_ref()?.subprotocol(self.id)?;
        Some(chosen.to_vec())
    }

    /// How it ended, once the messages before have been received.
    pub fn closed(&self) -> Option<WsClosed> {
        let inner = self.open_inner().ok()?;
        inner.driver.as_ref()?.closed(self.id).cloned()
    }

    /// Waits until the event counter exceeds `seen`.
    fn wait(&self, seen: u64, policy: &mut WaitPolicy<'_>) -> Result<(), BlockingError> {
        let mut phase = policy.phase(Instant::now(), None);
        let mut slice = phase.first_slice();
        loop {
            let mut inner = self.open_inner()?;
            if inner.turns != seen {
                return Ok(());
            }
            if inner.polling {
                let waited = self.turned.wait_timeout(inner, slice);
                drop(waited.unwrap_or_else(PoisonError::into_inner));
            } else {
                inner.polling = true;
                drop(inner);
                self.sleep(slice);
                let mut inner = self.open_inner()?;
                inner.polling = false;
                inner.turn();
                drop(inner);
                self.turned.notify_all();
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
        // A failure here occurs in the following turn as well.
        let _ = poll(std::slice::from_mut(&mut entry), most);
    }

    fn open_inner(&self) -> Result<MutexGuard<'_, Inner>, BlockingError> {
        if self.generation != fork::generation() {
            // A thread of the parent process may hold its lock.
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
    /// Runs one turn without waiting.
    fn turn(&mut self) {
        let Some(driver) = &mut self.driver else {
            return;
        };
        take_turn(driver, Some(Duration::ZERO));
        while driver.next_event().is_some() {
            self.turns += 1;
        }
        driver.flush();
    }
}

fn take_turn(driver: &mut ClientDriver, wait: Option<Duration>) {
    // An interrupted system call; input stays readable.
    let _ = driver.turn(wait);
}

fn given_up() -> BlockingError {
    BlockingError::Failed(Box::new(CallError::closed()))
}

impl Drop for BlockingWebSocket {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // The connection and its poll belong to the parent process.
            let inner = self.inner.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(inner.driver.take());
        }
    }
}
