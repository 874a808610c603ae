//! The queue of requests from the I/O thread to the worker threads, and the connections that come back.
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use pyo3::prelude::*;
use towline_io::ConnId;

use super::control::ServerControl;
use super::request::Request;
use super::shared_conn::{BoxedConn, ServiceQueue, SharedConn};

/// A complete request and its connection.
pub struct QueuedRequest {
    pub id: ConnId,
    pub conn: QueuedConn,
    pub request: Request,
    pub queued: Instant,
}

pub enum QueuedConn {
    /// Checked out to the worker that takes the request.
    Exclusive(BoxedConn),
    Shared(Arc<SharedConn>),
}

/// State that the I/O thread and the workers share.
pub struct WorkQueue {
    capacity: usize,
    queue: Mutex<Queue>,
    available: Condvar,
    returned: Mutex<Vec<(ConnId, BoxedConn)>>,
    pub service_queue: Arc<ServiceQueue>,
    pub control: Arc<ServerControl>,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<QueuedRequest>,
    is_closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkQueue {
    pub fn new(capacity: usize, control: Arc<ServerControl>) -> Self {
        Self {
            capacity,
            queue: Mutex::default(),
            available: Condvar::new(),
            returned: Mutex::default(),
            service_queue: Arc::new(ServiceQueue::new(control.clone())),
            control,
        }
    }

    // The I/O thread.

    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    pub fn room(&self) -> usize {
        self.capacity
            .saturating_sub(lock(&self.queue).requests.len())
    }

    pub fn put(&self, request: QueuedRequest) {
        let mut queue = lock(&self.queue);
        queue.requests.push_back(request);
        self.control.set_queued(queue.requests.len());
        drop(queue);
        self.available.notify_one();
    }

    pub fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.available.notify_all();
    }

    /// Whether a connection has come back or needs service.
    pub fn has_returned(&self) -> bool {
        !lock(&self.returned).is_empty() || !self.service_queue.is_empty()
    }

    pub fn take_returned(&self) -> Vec<(ConnId, BoxedConn)> {
        std::mem::take(&mut *lock(&self.returned))
    }

    // A worker.

    /// The next request; `None` when the queue is closed. The GIL is released only if the queue is empty.
    pub fn take(&self, py: Python<'_>) -> Option<QueuedRequest> {
        {
            let mut queue = lock(&self.queue);
            if let Some(request) = self.pop(&mut queue) {
                return Some(request);
            }
            if queue.is_closed {
                return None;
            }
        }
        py.detach(|| {
            let mut queue = lock(&self.queue);
            loop {
                if let Some(request) = self.pop(&mut queue) {
                    return Some(request);
                }
                if queue.is_closed {
                    return None;
                }
                queue = self
                    .available
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        })
    }

    fn pop(&self, queue: &mut Queue) -> Option<QueuedRequest> {
        let request = queue.requests.pop_front()?;
        self.control.set_queued(queue.requests.len());
        Some(request)
    }

    pub fn return_conn(&self, id: ConnId, peer: BoxedConn) {
        let was_empty = {
            let mut returned = lock(&self.returned);
            returned.push((id, peer));
            returned.len() == 1
        };
        if was_empty {
            self.control.wake();
        }
    }
}
