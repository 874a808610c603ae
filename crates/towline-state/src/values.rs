//! Operations on values. Each is one transaction.
use crate::error::{Error, Result, damaged};
use crate::limits::{Bucket, Grant, Window};
use crate::lmdb::{Db, Position, Txn, WriteTxn};
use crate::messages::{self, Post};
use crate::record::{FIRST_KEY, HEADER_BYTES, MAX_KEY_BYTES, Record, StoredKey, key_of};
use crate::store::{Blocking, Change, Outcome, SHORT_BYTES, SHORT_ITEMS, Store};

/// How long a written value lives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lifetime {
    Forever,
    /// As long as the value that it replaces.
    Keep,
    Milliseconds(u64),
}

/// A condition: the key has this value, or is missing.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    pub key: &'a [u8],
    pub expected: Option<&'a [u8]>,
}

/// A new value, or the removal of one.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    pub key: &'a [u8],
    pub value: Option<&'a [u8]>,
    pub lifetime: Lifetime,
}

/// A part of a scan, and the key at which the next part begins.
#[derive(Debug, Default)]
pub struct Page {
    pub items: Vec<(Vec<u8>, Vec<u8>)>,
    pub next: Option<Vec<u8>>,
}

/// Time that a key has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remaining {
    Missing,
    Forever,
    Milliseconds(u64),
}

impl Store {
    /// Call `found` with the value. `Blocking::Short` refuses to copy a large one.
    ///
    /// The program's most frequent call gives its key unchecked, so internal keys are refused here; `get_many` reads them.
    pub fn get<T>(
        &self,
        blocking: Blocking,
        key: &[u8],
        found: impl Fn(&[u8]) -> T,
    ) -> Result<Option<T>> {
        check_key(key)?;
        if key < FIRST_KEY {
            let text = "a key must not begin with a zero byte";
            return Err(Error::Argument(text.into()));
        }
        let stored = StoredKey::value(key);
        self.read(|txn| match live(txn, &stored, None)? {
            Some(record) if blocking == Blocking::Short && record.value.len() > 2 * SHORT_BYTES => {
                Err(Error::Busy)
            }
            record => Ok(record.map(|record| found(record.value))),
        })
    }

    /// The values of keys, from one snapshot.
    pub fn get_many(&self, blocking: Blocking, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>> {
        if blocking == Blocking::Short && keys.len() > 4 * SHORT_ITEMS {
            return Err(Error::Busy);
        }
        keys.iter().try_for_each(|key| check_key(key))?;
        self.read(|txn| {
            let now = txn.now();
            let mut bytes = 0;
            let mut values = Vec::with_capacity(keys.len());
            for key in keys {
                let record = live(txn, &StoredKey::value(key), Some(now))?;
                bytes += record.map_or(0, |record| record.value.len());
                if blocking == Blocking::Short && bytes > 2 * SHORT_BYTES {
                    return Err(Error::Busy);
                }
                values.push(record.map(|record| record.value.to_vec()));
            }
            Ok(values)
        })
    }

    pub fn set(
        &self,
        blocking: Blocking,
        key: &[u8],
        value: &[u8],
        lifetime: Lifetime,
    ) -> Result<()> {
        let write = Write {
            key,
            value: Some(value),
            lifetime,
        };
        check_key(key)?;
        self.change(blocking, value.len() + key.len(), 1, |txn, now| {
            put(txn, write, now).map(Outcome::Changed)
        })
    }

    /// Remove keys; returns how many existed.
    pub fn delete(&self, blocking: Blocking, keys: &[&[u8]]) -> Result<usize> {
        keys.iter().try_for_each(|key| check_key(key))?;
        self.change(blocking, 0, keys.len(), |txn, now| {
            let mut removed = 0;
            for key in keys {
                removed += usize::from(remove(txn, key, now)?);
            }
            Ok(if removed == 0 {
                Outcome::Unchanged(0)
            } else {
                Outcome::Changed(removed)
            })
        })
    }

    /// Make all writes and publish all posts if all checks hold.
    pub fn apply(
        &self,
        blocking: Blocking,
        checks: &[Check<'_>],
        writes: &[Write<'_>],
        posts: &[Post<'_>],
    ) -> Result<bool> {
        let opened = self.opened()?;
        checks.iter().try_for_each(|check| check_key(check.key))?;
        writes.iter().try_for_each(|write| check_key(write.key))?;
        posts
            .iter()
            .try_for_each(|post| messages::check_post(post, opened.settings))?;
        let added =
            |write: &Write<'_>| write.value.map_or(0, |value| value.len() + write.key.len());
        let bytes = writes.iter().map(added).sum::<usize>()
            + posts.iter().map(|post| post.message.len()).sum::<usize>();
        let log_bytes = opened.settings.log_bytes();
        let items = checks.len() + writes.len() + posts.len();
        let holds = self.change(blocking, bytes, items, |txn, now| {
            for check in checks {
                let current = live(txn, &StoredKey::value(check.key), Some(now))?;
                if current.map(|record| record.value) != check.expected {
                    return Ok(Outcome::Unchanged(false));
                }
            }
            for write in writes {
                put(txn, *write, now)?;
            }
            for post in posts {
                messages::append(txn, *post, log_bytes)?;
            }
            let has_changes = !writes.is_empty() || !posts.is_empty();
            Ok(if has_changes {
                Outcome::Changed(true)
            } else {
                Outcome::Unchanged(true)
            })
        })?;
        if holds && !posts.is_empty() {
            opened.shared.wake();
        }
        Ok(holds)
    }

    /// Add to a decimal integer; a missing one counts as 0 and gets the lifetime.
    pub fn add(
        &self,
        blocking: Blocking,
        key: &[u8],
        delta: i64,
        lifetime: Lifetime,
    ) -> Result<i64> {
        check_key(key)?;
        self.change(blocking, key.len() + 20, 1, |txn, now| {
            let current = live(txn, &StoredKey::value(key), Some(now))?;
            let is_new = current.is_none();
            let number = current.map_or(Some(0), |record| integer(record.value));
            let sum = number
                .and_then(|number| number.checked_add(delta))
                .ok_or(Error::NotInteger)?;
            let text = sum.to_string();
            let lifetime = if is_new { lifetime } else { Lifetime::Keep };
            put(
                txn,
                Write {
                    key,
                    value: Some(text.as_bytes()),
                    lifetime,
                },
                now,
            )?;
            Ok(Outcome::Changed(sum))
        })
    }

    pub fn remaining(&self, key: &[u8]) -> Result<Remaining> {
        check_key(key)?;
        self.read(|txn| {
            let now = txn.now();
            Ok(match live(txn, &StoredKey::value(key), Some(now))? {
                None => Remaining::Missing,
                Some(record) if record.expires == 0 => Remaining::Forever,
                Some(record) => Remaining::Milliseconds(record.expires - now),
            })
        })
    }

    /// Change the lifetime of a key; false if it does not exist.
    pub fn expire(&self, blocking: Blocking, key: &[u8], lifetime: Lifetime) -> Result<bool> {
        check_key(key)?;
        let opened = self.opened()?;
        self.change(blocking, 0, 1, |txn, now| {
            let Some(value) =
                live(txn, &StoredKey::value(key), Some(now))?.map(|record| record.value.to_vec())
            else {
                return Ok(Outcome::Unchanged(false));
            };
            opened.reserve(Change {
                blocking,
                bytes: value.len(),
                items: 1,
            })?;
            put(
                txn,
                Write {
                    key,
                    value: Some(&value),
                    lifetime,
                },
                now,
            )?;
            Ok(Outcome::Changed(true))
        })
    }

    /// Keys from `from` on that have the prefix, in order, with or without their values. Internal keys are left out if the
    /// prefix is empty.
    ///
    /// A part ends before a value with which it would be long. `Blocking::Short` refuses one that begins with a large value.
    pub fn scan(
        &self,
        blocking: Blocking,
        prefix: &[u8],
        from: Option<&[u8]>,
        limit: usize,
        values: bool,
    ) -> Result<Page> {
        check_prefix(prefix)?;
        from.map_or(Ok(()), check_prefix)?;
        let begin = if prefix.is_empty() { FIRST_KEY } else { prefix };
        let stored = StoredKey::value(from.unwrap_or(begin));
        self.read(|txn| {
            let now = txn.now();
            let mut page = Page::default();
            let mut cursor = txn.cursor(Db::Values)?;
            let mut item = cursor.seek(stored.as_bytes())?;
            let (mut visited, mut bytes) = (0, 0);
            while let Some((stored, data)) = item {
                let Some(key) = key_of(stored).filter(|key| key.starts_with(prefix)) else {
                    break;
                };
                if visited >= limit || bytes > SHORT_BYTES {
                    page.next = Some(key.to_vec());
                    break;
                }
                visited += 1;
                let record = Record::read(data).ok_or_else(damaged)?;
                let len = if values { record.value.len() } else { 0 };
                if !page.items.is_empty() && bytes + len > SHORT_BYTES {
                    page.next = Some(key.to_vec());
                    break;
                }
                if blocking == Blocking::Short && len > 2 * SHORT_BYTES {
                    return Err(Error::Busy);
                }
                if record.is_live(now) {
                    let value = if values {
                        record.value.to_vec()
                    } else {
                        Vec::new()
                    };
                    bytes += key.len() + value.len();
                    page.items.push((key.to_vec(), value));
                }
                item = cursor.next()?;
            }
            Ok(page)
        })
    }

    /// Take from a token bucket (`limits.rs`). It is removed when it would be full again.
    pub fn take_tokens(
        &self,
        blocking: Blocking,
        key: &[u8],
        (capacity, per_second): (f64, f64),
        cost: f64,
    ) -> Result<Grant> {
        if !(capacity > 0.0 && per_second > 0.0 && cost >= 0.0) {
            return Err(Error::Argument(
                "a bucket has a capacity and a rate above 0, and a cost of at least 0".into(),
            ));
        }
        self.limit(blocking, key, |value, now| {
            let before = value.and_then(Bucket::read);
            let (bucket, grant) = Bucket::take(before, capacity, per_second, cost, now);
            let lifetime = milliseconds(capacity / per_second) + 1000;
            (bucket.bytes(), lifetime, grant)
        })
    }

    /// Count events in a sliding window (`limits.rs`).
    pub fn take_window(
        &self,
        blocking: Blocking,
        key: &[u8],
        (limit, seconds): (u64, f64),
        cost: u64,
    ) -> Result<Grant> {
        if !(0.001..1e9).contains(&seconds) {
            return Err(Error::Argument(
                "a window has at least 0.001 seconds".into(),
            ));
        }
        let window_ms = milliseconds(seconds);
        self.limit(blocking, key, |value, now| {
            let before = value.and_then(Window::read).unwrap_or_default();
            let (window, grant) = before.take(limit, window_ms, cost, now);
            (window.bytes(), 2 * window_ms + 1, grant)
        })
    }

    /// Replace the state of a limit, if the request is allowed: a refused one changes nothing.
    fn limit<const N: usize>(
        &self,
        blocking: Blocking,
        key: &[u8],
        take: impl Fn(Option<&[u8]>, u64) -> ([u8; N], u64, Grant),
    ) -> Result<Grant> {
        check_key(key)?;
        self.change(blocking, key.len() + N, 1, |txn, now| {
            let current = live(txn, &StoredKey::value(key), Some(now))?;
            let (state, lifetime, grant) = take(current.map(|record| record.value), now);
            if !grant.is_allowed {
                return Ok(Outcome::Unchanged(grant));
            }
            put(
                txn,
                Write {
                    key,
                    value: Some(&state),
                    lifetime: Lifetime::Milliseconds(lifetime),
                },
                now,
            )?;
            Ok(Outcome::Changed(grant))
        })
    }

    fn change<T>(
        &self,
        blocking: Blocking,
        bytes: usize,
        items: usize,
        function: impl FnMut(&mut WriteTxn<'_>, u64) -> Result<Outcome<T>>,
    ) -> Result<T> {
        self.opened()?.write(
            Change {
                blocking,
                bytes,
                items,
            },
            function,
        )
    }
}

/// The record of a key that has not expired. `now`: `None` reads the clock, if the record needs it.
fn live<'t>(txn: &'t Txn<'_>, key: &StoredKey, now: Option<u64>) -> Result<Option<Record<'t>>> {
    let Some(bytes) = txn.get(Db::Values, key.as_bytes())? else {
        return Ok(None);
    };
    let record = Record::read(bytes).ok_or_else(damaged)?;
    let is_live = record.expires == 0 || record.is_live(now.unwrap_or_else(|| txn.now()));
    Ok(is_live.then_some(record))
}

/// Store or remove a value, and keep the index of expiry true.
fn put(txn: &mut WriteTxn<'_>, write: Write<'_>, now: u64) -> Result<()> {
    let Some(value) = write.value else {
        return remove(txn, write.key, now).map(drop);
    };
    let stored = StoredKey::value(write.key);
    let before = match txn.get(Db::Values, stored.as_bytes())? {
        None => 0,
        Some(bytes) => Record::read(bytes).ok_or_else(damaged)?.expires,
    };
    let expires = match write.lifetime {
        Lifetime::Keep if before > now => before,
        Lifetime::Forever | Lifetime::Keep => 0,
        Lifetime::Milliseconds(lifetime) => now.saturating_add(lifetime.max(1)),
    };
    if before != expires {
        if before != 0 {
            txn.remove(Db::Expiry, StoredKey::expiry(before, write.key).as_bytes())?;
        }
        if expires != 0 {
            txn.put(
                Db::Expiry,
                StoredKey::expiry(expires, write.key).as_bytes(),
                0,
                Position::Sorted,
            )?;
        }
    }
    let record = Record {
        expires,
        written: (now / 1000) as u32,
        value,
    };
    let space = txn.put(
        Db::Values,
        stored.as_bytes(),
        HEADER_BYTES + value.len(),
        Position::Sorted,
    )?;
    record.write(space);
    Ok(())
}

/// Remove a key; whether it existed, and had not expired.
pub fn remove(txn: &mut WriteTxn<'_>, key: &[u8], now: u64) -> Result<bool> {
    let stored = StoredKey::value(key);
    let Some(bytes) = txn.get(Db::Values, stored.as_bytes())? else {
        return Ok(false);
    };
    let record = Record::read(bytes).ok_or_else(damaged)?;
    let (expires, is_live) = (record.expires, record.is_live(now));
    if expires != 0 {
        txn.remove(Db::Expiry, StoredKey::expiry(expires, key).as_bytes())?;
    }
    txn.remove(Db::Values, stored.as_bytes())?;
    Ok(is_live)
}

/// Milliseconds of a time in seconds, at most 30,000 years.
#[allow(clippy::cast_sign_loss)] // a negative time becomes 0
pub fn milliseconds(seconds: f64) -> u64 {
    (seconds.min(1e12) * 1000.0) as u64
}

/// A decimal integer as `add` writes it: digits, after a minus sign or not.
fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(Error::Argument("a key has at least one byte".into()));
    }
    check_prefix(key)
}

fn check_prefix(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY_BYTES {
        let text = format!(
            "a key has at most {MAX_KEY_BYTES} bytes, this one has {}",
            key.len()
        );
        return Err(Error::Argument(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn integers_are_strict() {
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!(integer(b"9223372036854775807"), Some(i64::MAX));
        for text in [
            &b""[..],
            b"-",
            b"+1",
            b" 1",
            b"1.0",
            b"9223372036854775808",
            b"00000000000000000001",
        ] {
            assert_eq!(integer(text), None);
        }
    }
}
