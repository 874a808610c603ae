//! The wait of a call in the pool's queue: for a connection that another call releases, or by driving a dial on this
//! thread.

use std::time::{Duration, Instant};

use super::acquire::{broken, no_connection, poll_entry, watch};
use super::h1_conn::poll;
use super::outcome::BlockingError;
use super::pooled_conn::PooledConn;
use super::shared_pool::{QueueEntry, SharedPool};
use super::wait_policy::WaitPolicy;
use super::waiter_mailbox::{Message, PendingDial};
use crate::client::dial::Progress;
use crate::client::pool::Lease;
use crate::client::request::CallError;

impl SharedPool {
    /// Waits for the connection or the failure of `entry`, and drives a dial meanwhile if the pool asks for it.
    pub(super) fn wait(
        &self,
        entry: &QueueEntry,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Lease<PooledConn>, BlockingError> {
        let mut driving = None;
        match self.wait_driving(entry, &mut driving, policy) {
            Ok(lease) => {
                self.release_dial(driving, entry);
                Ok(lease)
            }
            Err(ended) => {
                self.cancel_wait(entry, driving, Instant::now());
                Err(ended)
            }
        }
    }

    /// Handles the waiter's messages until one ends the wait. `driving` is the dial that this thread drives.
    fn wait_driving(
        &self,
        entry: &QueueEntry,
        driving: &mut Option<PendingDial>,
        policy: &mut WaitPolicy<'_>,
    ) -> Result<Lease<PooledConn>, BlockingError> {
        let mut wait = policy.phase(Instant::now(), None);
        let mut has_slept = false;
        loop {
            while let Some(message) = entry.waiter.next() {
                match message {
                    Message::Assigned(lease) => return Ok(lease),
                    Message::Failed(error) => return Err(BlockingError::Failed(error)),
                    Message::Dial(pending) => *driving = Some(pending),
                    Message::DropDial(slot) => {
                        driving.take_if(|pending| pending.slot == slot);
                    }
                    Message::Recheck => {}
                }
            }
            if let Some(pending) = driving
                && let Some(over) = self.drive(pending, Instant::now())
            {
                let slot = pending.slot;
                *driving = None;
                match over {
                    Ok(conn) => self.dialled(slot, conn, &entry.waiter, Instant::now()),
                    Err(error) => self.dial_failed(slot, error, &entry.waiter),
                }
                continue;
            }
            let bound = entry.waiter.bound();
            wait.end_at(bound.map(|(at, _)| at));
            let slice = if has_slept {
                let timeout_error = |stop| no_connection(stop, bound.map(|(_, kind)| kind));
                wait.next_slice().map_err(timeout_error)?
            } else {
                wait.first_slice()
            };
            has_slept = true;
            if let Err(error) = sleep(entry, driving.as_ref(), slice)
                && let Some(pending) = driving.take()
            {
                self.dial_failed(pending.slot, broken(&error), &entry.waiter);
            }
        }
    }

    /// The waiter got another connection while it was dialling: pools its dial if it is done, else hands it
    /// to another waiter.
    fn release_dial(&self, driving: Option<PendingDial>, entry: &QueueEntry) {
        let Some(mut pending) = driving else {
            return;
        };
        let (slot, now) = (pending.slot, Instant::now());
        if pending.dial.is_none() {
            return self.hand_over(Some(pending));
        }
        match self.advance(&mut pending, now) {
            Progress::Pending => self.hand_over(Some(pending)),
            Progress::Failed(error) => {
                self.dial_failed(slot, CallError::dial(&error), &entry.waiter);
            }
            Progress::Done(established) => match self.connect(&pending, *established, now) {
                Ok(conn) => self.dialled(slot, conn, &entry.waiter, now),
                Err(error) => self.dial_failed(slot, broken(&error), &entry.waiter),
            },
        }
    }
}

/// Sleeps until a message arrives or the dial can continue, for `slice` at most.
fn sleep(
    entry: &QueueEntry,
    driving: Option<&PendingDial>,
    slice: Duration,
) -> std::io::Result<()> {
    let Some(pending) = driving else {
        entry.waiter.park(slice);
        return Ok(());
    };
    let mut entries = Vec::with_capacity(4);
    let most = watch(pending, &mut entries, slice, Instant::now());
    if let Ok(fd) = entry.waiter.wake_pipe() {
        entries.push(poll_entry(fd, libc::POLLIN));
    }
    if !entry.waiter.has_messages() {
        poll(&mut entries, most)?;
    }
    Ok(())
}
