//! Removal of expired values, and eviction from a full store. Both in bounded steps.
use std::sync::atomic::Ordering;

use crate::error::{Result, damaged};
use crate::files::WhenFull;
use crate::lmdb::{Db, WriteTxn};
use crate::record::{FIRST_KEY, Record, StoredKey, expiry_of, key_of};
use crate::store::{Blocking, Change, OpenFiles};
use crate::values::remove;

/// Milliseconds between two removals of expired values by one process.
const SWEEP_EVERY_MS: u64 = 100;
/// Expired values that a write removes besides its own work: about 0.05 ms.
const SWEEP_ITEMS: usize = 32;
/// Values that one round of eviction looks at. It removes the half that was written first.
const EVICTION_SAMPLE: usize = 128;

impl OpenFiles {
    /// As part of a write: remove some expired values, if it is time. The next write goes on if more are left.
    pub fn sweep_if_due(&self, txn: &mut WriteTxn<'_>, now: u64) -> Result<()> {
        if now < self.next_sweep.load(Ordering::Relaxed) {
            return Ok(());
        }
        let removed = remove_expired(txn, now, SWEEP_ITEMS)?;
        self.shared.record_clock();
        let next = if removed == SWEEP_ITEMS {
            now
        } else {
            now + SWEEP_EVERY_MS
        };
        self.next_sweep.store(next, Ordering::Relaxed);
        Ok(())
    }

    /// Remove values from a full store, as it allows; false if nothing was to be removed. The caller is the only writer.
    pub fn make_space(&self, now: u64) -> Result<bool> {
        self.env.remove_dead_readers()?;
        self.reserve(Change {
            blocking: Blocking::Wait,
            bytes: 0,
            items: EVICTION_SAMPLE,
        })?;
        let mut txn = self.env.write()?;
        let mut removed = remove_expired(&mut txn, now, EVICTION_SAMPLE)?;
        if removed == 0 && self.settings.when_full == WhenFull::Evict {
            removed = self.evict(&mut txn, now)?;
        }
        if removed == 0 {
            return Ok(false);
        }
        txn.commit()?;
        Ok(true)
    }

    /// Remove the older half of the next values in the order of keys.
    fn evict(&self, txn: &mut WriteTxn<'_>, now: u64) -> Result<usize> {
        let mut hand = self
            .hand
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (mut sample, mut next) = sample(txn, &hand)?;
        if sample.is_empty() && !hand.is_empty() {
            (sample, next) = self::sample(txn, &[])?;
        }
        *hand = next;
        sample.sort_unstable();
        let older = sample.len().div_ceil(2);
        for (_, key) in &sample[..older] {
            remove(txn, key, now)?;
        }
        Ok(older)
    }
}

type Sample = Vec<(u32, Vec<u8>)>;

/// Times and keys of evictable values from a key on, and the key after them.
fn sample(txn: &WriteTxn<'_>, from: &[u8]) -> Result<(Sample, Vec<u8>)> {
    let from = if from.is_empty() { FIRST_KEY } else { from };
    let mut cursor = txn.cursor(Db::Values)?;
    let mut found = Vec::with_capacity(EVICTION_SAMPLE);
    let mut item = cursor.seek(StoredKey::value(from).as_bytes())?;
    while let Some((stored, record)) = item {
        let Some(key) = key_of(stored) else { break };
        if found.len() == EVICTION_SAMPLE {
            return Ok((found, key.to_vec()));
        }
        let written = Record::read(record).ok_or_else(damaged)?.written;
        found.push((written, key.to_vec()));
        item = cursor.next()?;
    }
    Ok((found, Vec::new()))
}

/// Remove at most `limit` expired values; returns their number.
fn remove_expired(txn: &mut WriteTxn<'_>, now: u64, limit: usize) -> Result<usize> {
    let mut found = Vec::new();
    {
        let mut cursor = txn.cursor(Db::Expiry)?;
        let mut item = cursor.first()?;
        while let Some((stored, _)) = item {
            let Some((expires, key)) = expiry_of(stored) else {
                break;
            };
            if expires > now || found.len() == limit {
                break;
            }
            found.push(key.to_vec());
            item = cursor.next()?;
        }
    }
    for key in &found {
        remove(txn, key, now)?;
    }
    Ok(found.len())
}
