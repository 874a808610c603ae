//! The [`ClientDriver`] of all HTTP/2 connections of a blocking client, without a thread of its own.
//!
//! Its calls wait in `h2_wait`, where one of the waiting threads polls for all. The lock is never held over a wait.
//! Output is flushed on every unlock, as far as the kernel accepts it.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use towline_proto::OwnedHead;

use super::config::BlockingConfig;
use super::shared_pool::SharedPool;
use crate::client::connection_info::ConnectionInfo;
use crate::client::dial::Established;
use crate::client::driver::{CallEvent, CallId, ClientDriver, ClientDriverConfig};
use crate::client::fork;
use crate::client::pool::SlotId;
use crate::client::request::CallError;
use crate::client::route::Route;
use crate::conn::id::ConnId;
use crate::engine::EngineConfig;

pub(super) struct H2Driver {
    /// Readable whenever a turn has work.
    pub(super) fd: RawFd,
    /// `fork::generation()` of the process that made it.
    generation: u64,
    state: Mutex<DriverState>,
    /// Held while changed limits are passed to the pool, so that the last one passed is right.
    reporting: Mutex<()>,
}

/// The state behind the lock.
pub(super) struct DriverState {
    pub(super) driver: ManuallyDrop<ClientDriver>,
    pub(super) calls: CallSlots,
    /// The calls whose threads are parked, the most recent last.
    pub(super) parked: BTreeSet<CallId>,
    pub(super) leader: Leader,
    /// The slots of the connections in the pool.
    slots: HashMap<ConnId, SlotId>,
}

/// Which thread polls for all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leader {
    None,
    /// The thread that waits for this call was woken to poll; it will, or will elect another.
    Elected(CallId),
    Polling,
}

/// The events of all calls.
#[derive(Default)]
pub(super) struct CallSlots {
    /// By `CallId::index`.
    slots: Vec<Option<(CallId, CallSlot)>>,
}

impl CallSlots {
    pub(super) fn insert(&mut self, call: CallId) {
        let index = call.index();
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, || None);
        }
        self.slots[index] = Some((call, CallSlot::default()));
    }

    pub(super) fn get_mut(&mut self, call: CallId) -> Option<&mut CallSlot> {
        let (of, slot) = self.slots.get_mut(call.index())?.as_mut()?;
        (*of == call).then_some(slot)
    }

    pub(super) fn remove(&mut self, call: CallId) {
        if let Some(slot) = self.slots.get_mut(call.index())
            && slot.as_ref().is_some_and(|(of, _)| *of == call)
        {
            *slot = None;
        }
    }
}

/// Events of a call that its thread has not taken yet.
#[derive(Default)]
pub(super) struct CallSlot {
    /// The final head.
    pub(super) head: Option<OwnedHead>,
    pub(super) informational: Vec<OwnedHead>,
    pub(super) failure: Option<Box<CallError>>,
    /// The thread to unpark when something arrives.
    pub(super) parked_thread: Option<Thread>,
}

/// An HTTP/2 connection. It is closed when it is dropped.
pub(super) struct H2Conn {
    pub(super) driver: Arc<H2Driver>,
    pub(super) id: ConnId,
    /// Slot of the connection in the pool.
    pub(super) slot: SlotId,
}

impl H2Driver {
    pub(super) fn new(config: &BlockingConfig) -> io::Result<Self> {
        let mut driver = ClientDriver::for_external_pool(ClientDriverConfig {
            dial: Arc::clone(&config.dial),
            limits: Arc::clone(&config.limits),
            engine: EngineConfig {
                // The threads that wait have nothing else to do.
                spare_buffers: 2,
                ..EngineConfig::default()
            },
            ..ClientDriverConfig::default()
        })?;
        // From now on the descriptor becomes readable when work is left.
        driver.turn(Some(Duration::ZERO))?;
        while driver.next_event().is_some() {}
        Ok(Self {
            fd: driver.as_raw_fd(),
            generation: fork::generation(),
            state: Mutex::new(DriverState {
                driver: ManuallyDrop::new(driver),
                calls: CallSlots::default(),
                parked: BTreeSet::new(),
                leader: Leader::None,
                slots: HashMap::new(),
            }),
            reporting: Mutex::new(()),
        })
    }

    /// Whether it was made before a fork, in the parent process. A thread that does not exist in this process may then
    /// hold the lock.
    pub(super) fn is_from_parent_process(&self) -> bool {
        self.generation != fork::generation()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `act` without waiting.
    pub(super) fn with<T>(&self, pool: &SharedPool, act: impl FnOnce(&mut DriverState) -> T) -> T {
        let mut state = self.lock();
        let value = act(&mut state);
        self.unlock(state, pool, Vec::new());
        value
    }

    /// Processes what has arrived, unless another thread does.
    pub(super) fn turn_at_once(&self, pool: &SharedPool) {
        let mut wake = Vec::new();
        let mut state = self.lock();
        if state.leader == Leader::None {
            state.turn(&mut wake);
        }
        self.unlock(state, pool, wake);
    }

    pub(super) fn unlock(
        &self,
        mut state: MutexGuard<'_, DriverState>,
        pool: &SharedPool,
        mut wake: Vec<Thread>,
    ) {
        state.driver.flush_window_updates();
        state.driver.flush();
        state.elect_leader(&mut wake);
        let is_changed = state.driver.has_limit_changes();
        drop(state);
        for thread in wake {
            thread.unpark();
        }
        if is_changed {
            self.report_limits(pool);
        }
    }

    /// Passes changed limits to the pool. Not under the lock: the pool may drop a connection, which takes it.
    fn report_limits(&self, pool: &SharedPool) {
        let _reporting = self
            .reporting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let changed = state.driver.take_limit_changes();
        let limits: Vec<_> = changed
            .into_iter()
            .filter_map(|conn| {
                let slot = *state.slots.get(&conn)?;
                Some((slot, state.driver.stream_limit(conn)?))
            })
            .collect();
        drop(state);
        for (slot, limit) in limits {
            match limit {
                0 => pool.retire(slot),
                limit => pool.set_capacity(slot, limit),
            }
        }
    }
}

impl DriverState {
    /// Runs a turn, and adds the threads of calls with events to `wake`.
    pub(super) fn turn(&mut self, wake: &mut Vec<Thread>) {
        // An interrupted system call; input stays readable.
        let _ = self.driver.turn(Some(Duration::ZERO));
        while let Some((call, event)) = self.driver.next_event() {
            let Some(slot) = self.calls.get_mut(call) else {
                continue;
            };
            match event {
                CallEvent::Head { .. } => slot.head = self.driver.take_head(call),
                CallEvent::Informational(head) => slot.informational.push(head),
                CallEvent::Failed(error) => slot.failure = Some(error),
                CallEvent::Readable | CallEvent::Writable | CallEvent::Switched => {}
            }
            if let Some(parked_thread) = slot.parked_thread.take() {
                self.parked.remove(&call);
                wake.push(parked_thread);
            }
        }
    }
}

impl H2Conn {
    /// Hands a new connection over to the driver.
    pub(super) fn new(
        driver: &Arc<H2Driver>,
        slot: SlotId,
        route: &Arc<Route>,
        established: Established,
    ) -> io::Result<Self> {
        let mut state = driver.lock();
        let id = state.driver.insert_h2(route, established)?;
        state.slots.insert(id, slot);
        drop(state);
        Ok(Self {
            driver: Arc::clone(driver),
            id,
            slot,
        })
    }

    /// The descriptor of the connection, and what is known about it.
    pub(super) fn describe(&self) -> Option<(RawFd, Arc<ConnectionInfo>)> {
        self.driver.lock().driver.describe_conn(self.id)
    }

    /// Calls that it carries at once; `None`: its server has not announced that.
    pub(super) fn limit(&self) -> Option<u32> {
        self.driver.lock().driver.stream_limit(self.id)
    }

    /// Whether it still accepts calls, as far as can be known without waiting.
    pub(super) fn is_alive(&self, pool: &SharedPool) -> bool {
        let mut wake = Vec::new();
        let mut state = self.driver.lock();
        // The failure of a connection in use is an event, which the leader gets.
        if state.leader == Leader::None && state.driver.is_idle(self.id) {
            state.turn(&mut wake);
        }
        let is_alive = state.driver.stream_limit(self.id) != Some(0);
        self.driver.unlock(state, pool, wake);
        is_alive
    }

    /// Passes its limit to the pool, for a connection that the pool has just got: a report that came before was lost.
    pub(super) fn report_limit(&self, pool: &SharedPool) {
        self.driver
            .with(pool, |state| state.driver.note_limit(self.id));
    }
}

impl Drop for H2Conn {
    fn drop(&mut self) {
        // In a forked child the socket is the parent's.
        if !self.driver.is_from_parent_process() {
            let mut state = self.driver.lock();
            state.slots.remove(&self.id);
            state.driver.discard(self.id);
        }
    }
}

impl Drop for H2Driver {
    fn drop(&mut self) {
        if !self.is_from_parent_process() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: the field is not used again.
            unsafe { ManuallyDrop::drop(&mut state.driver) };
        }
    }
}
