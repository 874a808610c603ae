//! The poll of an engine, with the events of its last wait.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use mio::{Events, Poll, Registry, Waker};

use crate::conn::id::Source;

pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    waker: Arc<Waker>,
}

impl Poller {
    /// Events that do not fit stay in the kernel, which keeps the descriptor readable.
    pub(crate) fn new(max_events: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), Source::Wake.token())?);
        Ok(Self {
            poll,
            events: Events::with_capacity(max_events),
            waker,
        })
    }

    pub(crate) fn registry(&self) -> &Registry {
        self.poll.registry()
    }

    pub(crate) fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }

    /// Makes the descriptor readable.
    pub(crate) fn wake(&self) {
        // A counter that is full keeps the descriptor readable just as well.
        let _ = self.waker.wake();
    }

    /// Waits for events. An interrupted wait has none.
    pub(crate) fn wait(&mut self, wait: Option<Duration>) -> io::Result<()> {
        match self.poll.poll(&mut self.events, wait) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                self.events.clear();
                Ok(())
            }
            result => result,
        }
    }

    /// Takes the events of the last wait. Return them with [`reuse`](Self::reuse).
    pub(crate) fn take_events(&mut self) -> Events {
        std::mem::replace(&mut self.events, Events::with_capacity(0))
    }

    pub(crate) fn reuse(&mut self, events: Events) {
        self.events = events;
    }
}
