//! Layout of keys and values in the file.
//!
//! ```text
//!  database  key                             value
//!  values    1, key                          expires (u64, ms), written (u32, s), value
//!  expiry    expires (u64, big-endian), key  nothing
//!  log       number (u64, big-endian)        length of the channel (u16), channel, message
//! ```
//!
//! Numbers are little-endian where nothing else is said. The first byte of a key keeps it apart from the names of
//! databases, which LMDB stores in the same tree. 0 as `expires` means never.

/// Longest key of a value: LMDB's 511 bytes, less the time in the index of expiry, and a reserve.
pub const MAX_KEY_BYTES: usize = 480;
/// First byte of all keys of values in the tree.
const VALUE: u8 = 1;
/// First key that is not internal. Keys that begin with 0 are: they come first, are not evicted, and `get` refuses them.
pub const FIRST_KEY: &[u8] = &[1];
/// Bytes before the value.
pub const HEADER_BYTES: usize = 12;

/// A key in the tree, without an allocation.
pub struct StoredKey {
    bytes: [u8; MAX_KEY_BYTES + 9],
    len: usize,
}

impl StoredKey {
    /// `key` has at most `MAX_KEY_BYTES` (`values.rs` checks it).
    pub fn value(key: &[u8]) -> Self {
        Self::with_prefix(&[VALUE], key)
    }

    pub fn expiry(expires: u64, key: &[u8]) -> Self {
        Self::with_prefix(&expires.to_be_bytes(), key)
    }

    fn with_prefix(prefix: &[u8], key: &[u8]) -> Self {
        let mut bytes = [0; MAX_KEY_BYTES + 9];
        let len = prefix.len() + key.len();
        bytes[..prefix.len()].copy_from_slice(prefix);
        bytes[prefix.len()..len].copy_from_slice(key);
        Self { bytes, len }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The program's key of one in the tree; `None`: the item is the name of a database.
pub fn key_of(stored: &[u8]) -> Option<&[u8]> {
    stored.strip_prefix(&[VALUE])
}

/// Time and key of an item in the index of expiry.
pub fn expiry_of(stored: &[u8]) -> Option<(u64, &[u8])> {
    let (time, key) = stored.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*time), key))
}

/// A value with its times.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// Milliseconds of the store's clock (`clock.rs`), or 0.
    pub expires: u64,
    /// Seconds of the same clock.
    pub written: u32,
    pub value: &'a [u8],
}

impl<'a> Record<'a> {
    /// `None` if the bytes are too short to be a record: the file is damaged.
    pub fn read(bytes: &'a [u8]) -> Option<Self> {
        let (expires, rest) = bytes.split_first_chunk::<8>()?;
        let (written, value) = rest.split_first_chunk::<4>()?;
        Some(Self {
            expires: u64::from_le_bytes(*expires),
            written: u32::from_le_bytes(*written),
            value,
        })
    }

    /// Fill `space`, of `HEADER_BYTES` and the length of the value.
    pub fn write(&self, space: &mut [u8]) {
        space[..8].copy_from_slice(&self.expires.to_le_bytes());
        space[8..HEADER_BYTES].copy_from_slice(&self.written.to_le_bytes());
        space[HEADER_BYTES..].copy_from_slice(self.value);
    }

    pub fn is_live(&self, now: u64) -> bool {
        self.expires == 0 || self.expires > now
    }
}

/// A message of the log, if the bytes are one.
pub fn message_of(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>()?;
    rest.split_at_checked(u16::from_le_bytes(*len).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = Record {
            expires: 7,
            written: 9,
            value: b"text",
        };
        let mut space = [0; HEADER_BYTES + 4];
        record.write(&mut space);
        let found = Record::read(&space).unwrap();
        assert_eq!(
            (found.expires, found.written, found.value),
            (7, 9, &b"text"[..])
        );
        assert!(Record::read(&space[..11]).is_none());
        assert!(found.is_live(6) && !found.is_live(7));
    }

    #[test]
    fn keys_keep_their_order_and_are_read_back() {
        assert!(StoredKey::expiry(255, b"b").as_bytes() < StoredKey::expiry(256, b"a").as_bytes());
        assert_eq!(
            expiry_of(StoredKey::expiry(256, b"a").as_bytes()),
            Some((256, &b"a"[..]))
        );
        assert_eq!(key_of(StoredKey::value(b"a").as_bytes()), Some(&b"a"[..]));
        assert_eq!(key_of(b"expiry"), None);
        assert_eq!(message_of(&[3, 0, b'a']), None);
    }
}
