//! Forwarding for a worker that is not ready yet.
//!
//! The replacement of a worker that was killed has its UDP sockets, to which the kernel gives a share of all datagrams. Until
//! the replacement has imported its application, a thread forwards them: those of connections to their workers, others,
//! for example of the connections that are gone, to workers that accept connections.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::quic::socket::ReceiveBuffers;
use crate::quic::{UdpSocket, WorkerSecret, Workers};
use crate::serve::metrics::SlotHandle;

/// Time between two looks at the sockets. Short for a client, and 200 system calls per second and socket.
const INTERVAL: Duration = Duration::from_millis(5);

/// Receives of a socket per look: the thread ends in time also under a flood.
const BATCHES: usize = 64;

/// The running thread; it stops on drop. What has not been read stays in the sockets.
pub struct Forwarder {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts the thread. Call it in the worker with this slot, after the fork.
    pub fn start(
        sockets: Vec<UdpSocket>,
        secret: &WorkerSecret,
        slot: SlotHandle,
    ) -> io::Result<Self> {
        let workers = Workers::sender(secret, slot)?;
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new().name("towline-forwarder".into());
        let thread = thread.spawn(move || run(&sockets, &workers, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // Dropping the sender wakes the thread at once.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(sockets: &[UdpSocket], workers: &Workers, stopped: &Receiver<()>) {
    let mut buffers = ReceiveBuffers::new();
    while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        // Otherwise the datagrams wait for this worker.
        if workers.are_accepting() {
            for (index, socket) in sockets.iter().enumerate() {
                forward_all(index, socket, workers, &mut buffers);
            }
        }
    }
}

fn forward_all(index: usize, socket: &UdpSocket, workers: &Workers, buffers: &mut ReceiveBuffers) {
    for _ in 0..BATCHES {
        let Ok(count @ 1..) = socket.receive(buffers) else {
            return;
        };
        for number in 0..count {
            workers.take_own(index, &buffers.message(number), |own| {
                workers.forward_new(index, own);
            });
        }
    }
}
