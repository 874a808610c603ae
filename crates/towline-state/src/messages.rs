//! The log of messages: a publisher appends, and each subscribing process reads from where it is.
//!
//! The log has a bound, beyond which the oldest messages are removed. A reader that is behind them loses them, and learns how
//! many. Nobody waits for a reader, and a reader that has nothing to read sleeps on its FIFO (`shared.rs`).
use std::io::Read as _;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::error::{Error, Result, damaged};
use crate::files::{PAGE, Settings};
use crate::lmdb::{Db, Position, Txn, WriteTxn};
use crate::record::message_of;
use crate::store::{Blocking, Store};

/// Old messages that one publication removes at most. Each adds one, so that the log shrinks if it must.
const REMOVED_AT_ONCE: usize = 16;
/// Bound of the text of a channel.
const MAX_CHANNEL_BYTES: usize = 480;

/// A message to publish.
#[derive(Clone, Copy, Debug)]
pub struct Post<'a> {
    pub channel: &'a [u8],
    pub message: &'a [u8],
}

/// Messages of the log, and the number of those that were removed before they could be read.
#[derive(Debug, Default)]
pub struct Batch {
    pub messages: Vec<(Vec<u8>, Vec<u8>)>,
    pub lost: u64,
    /// Number of the first message after these.
    pub next: u64,
}

/// A position in the log, and the slot through which publishers wake its process.
pub struct LogReader {
    next: u64,
    slot: usize,
    claim: u64,
    fifo: std::fs::File,
    /// Apart from the program's, which it may close.
    store: Store,
}

impl Store {
    /// Publish one message.
    pub fn publish(&self, blocking: Blocking, post: Post<'_>) -> Result<()> {
        self.apply(blocking, &[], &[], &[post]).map(drop)
    }

    /// Begin to read what is published from now on.
    pub fn subscribe(&self) -> Result<LogReader> {
        let store = self.share()?;
        let opened = store.opened()?;
        let guard = opened.lock(Blocking::Wait)?;
        let (slot, claim, fifo): (usize, u64, OwnedFd) = opened.shared.claim(&guard)?;
        let next = opened.env.read(next_number)?;
        drop(guard);
        Ok(LogReader {
            next,
            slot,
            claim,
            fifo: fifo.into(),
            store,
        })
    }
}

impl LogReader {
    /// A descriptor that is readable when there may be messages, after `arm` has returned false.
    pub fn fd(&self) -> RawFd {
        self.fifo.as_raw_fd()
    }

    /// The next messages: at most `limit`, and about `bytes` in all.
    pub fn read(&mut self, limit: usize, bytes: usize) -> Result<Batch> {
        let from = self.next;
        let (batch, next) = self.store.read(|txn| {
            let mut batch = Batch::default();
            let (mut next, mut size) = (from, 0);
            let mut cursor = txn.cursor(Db::Log)?;
            let mut item = cursor.seek(&from.to_be_bytes())?;
            while let Some((key, data)) = item {
                if batch.messages.len() == limit || size > bytes {
                    break;
                }
                let number = number_of(key)?;
                batch.lost += number - next;
                next = number + 1;
                let (channel, message) = message_of(data).ok_or_else(damaged)?;
                size += data.len();
                batch.messages.push((channel.to_vec(), message.to_vec()));
                item = cursor.next()?;
            }
            Ok((batch, next))
        })?;
        self.next = next;
        Ok(Batch { next, ..batch })
    }

    /// Number that the next publication gets.
    pub fn end(&self) -> Result<u64> {
        self.store.read(next_number)
    }

    /// Ask for a wake-up at the next publication. True: there is something to read already, and no wake-up will come.
    pub fn arm(&mut self) -> Result<bool> {
        self.drain();
        let opened = self.store.opened()?;
        opened.shared.arm(self.slot);
        let has_more = opened.env.read(next_number)? > self.next;
        if has_more {
            opened.shared.disarm(self.slot);
        }
        Ok(has_more)
    }

    /// Take the bytes of wake-ups out of the FIFO.
    fn drain(&mut self) {
        let mut bytes = [0; 64];
        while matches!(self.fifo.read(&mut bytes), Ok(read) if read == bytes.len()) {}
    }
}

impl Drop for LogReader {
    fn drop(&mut self) {
        if let Ok(opened) = self.store.opened() {
            opened.shared.release(self.slot, self.claim);
        }
    }
}

/// Append a message, and remove the oldest if the log is too large.
pub fn append(txn: &mut WriteTxn<'_>, post: Post<'_>, log_bytes: u64) -> Result<()> {
    let number = next_number(txn)?;
    let len = 2 + post.channel.len() + post.message.len();
    let space = txn.put(Db::Log, &number.to_be_bytes(), len, Position::Last)?;
    let (head, message) = space.split_at_mut(2 + post.channel.len());
    head[..2].copy_from_slice(&(post.channel.len() as u16).to_le_bytes());
    head[2..].copy_from_slice(post.channel);
    message.copy_from_slice(post.message);
    for _ in 0..REMOVED_AT_ONCE {
        if txn.size(Db::Log)?.pages * PAGE <= log_bytes {
            break;
        }
        // The newest stays: the next number is derived from it.
        let Some(oldest) = first_number(txn)?.filter(|oldest| *oldest != number) else {
            break;
        };
        txn.remove(Db::Log, &oldest.to_be_bytes())?;
    }
    Ok(())
}

/// A message must fit into the log.
pub fn check_post(post: &Post<'_>, settings: Settings) -> Result<()> {
    if post.channel.is_empty() || post.channel.len() > MAX_CHANNEL_BYTES {
        let text = format!(
            "a channel has 1 to {MAX_CHANNEL_BYTES} bytes, this one has {}",
            post.channel.len()
        );
        return Err(Error::Argument(text));
    }
    let bound = settings.log_bytes() / 4;
    if post.message.len() as u64 > bound {
        let len = post.message.len();
        return Err(Error::Argument(format!(
            "a message of this store has at most {bound} bytes, this one has {len}"
        )));
    }
    Ok(())
}

fn next_number(txn: &Txn<'_>) -> Result<u64> {
    let mut cursor = txn.cursor(Db::Log)?;
    cursor
        .last()?
        .map_or(Ok(1), |(key, _)| Ok(number_of(key)? + 1))
}

fn first_number(txn: &Txn<'_>) -> Result<Option<u64>> {
    let mut cursor = txn.cursor(Db::Log)?;
    cursor.first()?.map(|(key, _)| number_of(key)).transpose()
}

fn number_of(key: &[u8]) -> Result<u64> {
    key.try_into()
        .map(u64::from_be_bytes)
        .map_err(|_| damaged())
}
