//! A UDP socket of tests: two queues of datagrams, which a simulated network empties and fills.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quinn_proto::EcnCodepoint;

/// One datagram on its way.
#[derive(Clone, Debug)]
pub(crate) struct Datagram {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) ecn: Option<EcnCodepoint>,
    pub(crate) bytes: Vec<u8>,
}

/// The socket; its clones share the queues.
#[derive(Clone, Debug)]
pub(crate) struct MemorySocket {
    addr: SocketAddr,
    /// Datagrams that may wait to be sent. Over it the socket is full, as a kernel's buffer.
    send_buffer: usize,
    queues: Arc<Mutex<Queues>>,
}

#[derive(Default, Debug)]
struct Queues {
    sent: VecDeque<Datagram>,
    received: VecDeque<Datagram>,
}

impl MemorySocket {
    pub(crate) fn new(addr: SocketAddr, send_buffer: usize) -> Self {
        Self {
            addr,
            send_buffer,
            queues: Arc::default(),
        }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends `contents`, cut into datagrams of `segment_bytes`. False: the socket is full, and nothing is sent.
    pub(crate) fn send(
        &self,
        to: SocketAddr,
        ecn: Option<EcnCodepoint>,
        contents: &[u8],
        segment_bytes: usize,
    ) -> bool {
        let mut queues = self.queues();
        if queues.sent.len() >= self.send_buffer {
            return false;
        }
        let datagrams = contents.chunks(segment_bytes).map(|bytes| Datagram {
            from: self.addr,
            to,
            ecn,
            bytes: bytes.to_vec(),
        });
        queues.sent.extend(datagrams);
        true
    }

    /// The next datagram for the network.
    pub(crate) fn take_sent(&self) -> Option<Datagram> {
        self.queues().sent.pop_front()
    }

    /// A datagram from the network.
    pub(crate) fn deliver(&self, datagram: Datagram) {
        self.queues().received.push_back(datagram);
    }

    pub(crate) fn receive(&self) -> Option<Datagram> {
        self.queues().received.pop_front()
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
