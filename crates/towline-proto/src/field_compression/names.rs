//! The names that are known in advance: those of both static tables (RFC 7541 appendix A, RFC 9204 appendix A), and
//! those that the protocols treat specially.

use crate::Version;
use crate::byte_class::{is_token_bytes, is_value_bytes};

use super::hpack_entries::HPACK_ENTRIES;
use super::qpack_entries::QPACK_ENTRIES;

/// Names of the fields that the connection itself acts on. A decoded field carries it, so that names are not
/// compared again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Name {
    /// Any other field.
    #[default]
    Other,
    /// `:method`
    Method,
    /// `:scheme`
    Scheme,
    /// `:authority`
    Authority,
    /// `:path`
    Path,
    /// `:status`
    Status,
    /// `:protocol` (RFC 8441)
    Protocol,
    /// `host`
    Host,
    /// `content-length`
    ContentLength,
    /// `cookie`
    Cookie,
    /// `expect`
    Expect,
    /// `te`
    Te,
    /// A connection-specific field of HTTP/1.1 (RFC 9113 8.2.2, RFC 9114 4.2); an error when received.
    Connection,
}

impl Name {
    /// The name for this text, in lower case.
    #[inline]
    pub fn of(name: &[u8]) -> Self {
        known(name).map_or(Self::Other, |known| known.name)
    }

    /// True for a field that begins with a colon and is known.
    pub fn is_pseudo(self) -> bool {
        matches!(
            self,
            Self::Method
                | Self::Scheme
                | Self::Authority
                | Self::Path
                | Self::Status
                | Self::Protocol
        )
    }
}

/// Error of a decoded field that makes its message malformed (RFC 9113 8.1.1, RFC 9114 4.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldError {
    /// Not a token in lower case, or an undefined pseudo-header field.
    Name,
    /// A control byte in the value, or whitespace around it.
    Value,
    /// A connection-specific field, or TE other than `trailers`.
    Connection,
}

impl FieldError {
    /// The broken rule, in a message of that version.
    pub fn rule(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::Name, Version::Http3) => "field name is not a lower-case token (RFC 9114 4.2)",
            (Self::Name, _) => "field name is not a lower-case token (RFC 9113 8.2.1)",
            (Self::Value, Version::Http3) => {
                "control byte or outer whitespace in a field value (RFC 9114 10.3)"
            }
            (Self::Value, _) => {
                "control byte or outer whitespace in a field value (RFC 9113 8.2.1)"
            }
            (Self::Connection, Version::Http3) => "connection-specific field (RFC 9114 4.2)",
            (Self::Connection, _) => "connection-specific field (RFC 9113 8.2.2)",
        }
    }

    /// Error of a received name.
    pub fn of_name(name: &[u8], which: Name) -> Option<Self> {
        let lower = |name: &[u8]| is_token_bytes(name) && !name.iter().any(u8::is_ascii_uppercase);
        match which {
            Name::Connection => Some(Self::Connection),
            Name::Other if !lower(name) => Some(Self::Name),
            _ => None,
        }
    }

    /// Error of a value.
    #[inline]
    pub fn of_value(value: &[u8], which: Name) -> Option<Self> {
        let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
        if blank(value.first()) || blank(value.last()) || !is_value_bytes(value) {
            Some(Self::Value)
        } else if which == Name::Te && !value.eq_ignore_ascii_case(b"trailers") {
            Some(Self::Connection)
        } else {
            None
        }
    }
}

/// When an encoder adds the values of a field to its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexingPolicy {
    /// Immediately: the value stays the same over many messages.
    Always,
    /// When it is repeated: the value is often new.
    OnRepeat,
    /// Never: the value is a secret (RFC 7541 7.1.3).
    Never,
    /// Never if it is short enough to be guessed.
    NeverIfShort,
}

/// Adjacent entries of a static table that have the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRange {
    /// Position of the first entry, from 0.
    pub first: u8,
    /// Number of entries; 0: none.
    pub count: u8,
}

const NO_ENTRIES: EntryRange = EntryRange { first: 0, count: 0 };

/// A name of a static table, or a specially treated one.
#[derive(Debug, Clone, Copy)]
pub struct KnownName {
    pub text: &'static [u8],
    pub name: Name,
    pub policy: IndexingPolicy,
    /// Entries with this name in HPACK's static table.
    pub hpack: EntryRange,
    /// Entries with this name in QPACK's static table, in up to two ranges.
    pub qpack: [EntryRange; 2],
}

/// Each known name.
#[rustfmt::skip]
const NAMES: [(&str, Name, IndexingPolicy); 77] = [
    (":authority", Name::Authority, IndexingPolicy::Always),
    (":method", Name::Method, IndexingPolicy::Always),
    (":path", Name::Path, IndexingPolicy::OnRepeat),
    (":scheme", Name::Scheme, IndexingPolicy::Always),
    (":status", Name::Status, IndexingPolicy::Always),
    ("accept-charset", Name::Other, IndexingPolicy::Always),
    ("accept-encoding", Name::Other, IndexingPolicy::Always),
    ("accept-language", Name::Other, IndexingPolicy::Always),
    ("accept-ranges", Name::Other, IndexingPolicy::Always),
    ("accept", Name::Other, IndexingPolicy::Always),
    ("access-control-allow-origin", Name::Other, IndexingPolicy::Always),
    ("age", Name::Other, IndexingPolicy::OnRepeat),
    ("allow", Name::Other, IndexingPolicy::Always),
    ("authorization", Name::Other, IndexingPolicy::Never),
    ("cache-control", Name::Other, IndexingPolicy::Always),
    ("content-disposition", Name::Other, IndexingPolicy::Always),
    ("content-encoding", Name::Other, IndexingPolicy::Always),
    ("content-language", Name::Other, IndexingPolicy::Always),
    ("content-length", Name::ContentLength, IndexingPolicy::OnRepeat),
    ("content-location", Name::Other, IndexingPolicy::OnRepeat),
    ("content-range", Name::Other, IndexingPolicy::OnRepeat),
    ("content-type", Name::Other, IndexingPolicy::Always),
    ("cookie", Name::Cookie, IndexingPolicy::NeverIfShort),
    ("date", Name::Other, IndexingPolicy::OnRepeat),
    ("etag", Name::Other, IndexingPolicy::OnRepeat),
    ("expect", Name::Expect, IndexingPolicy::Always),
    ("expires", Name::Other, IndexingPolicy::OnRepeat),
    ("from", Name::Other, IndexingPolicy::Always),
    ("host", Name::Host, IndexingPolicy::Always),
    ("if-match", Name::Other, IndexingPolicy::OnRepeat),
    ("if-modified-since", Name::Other, IndexingPolicy::OnRepeat),
    ("if-none-match", Name::Other, IndexingPolicy::OnRepeat),
    ("if-range", Name::Other, IndexingPolicy::OnRepeat),
    ("if-unmodified-since", Name::Other, IndexingPolicy::OnRepeat),
    ("last-modified", Name::Other, IndexingPolicy::OnRepeat),
    ("link", Name::Other, IndexingPolicy::Always),
    ("location", Name::Other, IndexingPolicy::OnRepeat),
    ("max-forwards", Name::Other, IndexingPolicy::Always),
    ("proxy-authenticate", Name::Other, IndexingPolicy::Always),
    ("proxy-authorization", Name::Other, IndexingPolicy::Never),
    ("range", Name::Other, IndexingPolicy::OnRepeat),
    ("referer", Name::Other, IndexingPolicy::OnRepeat),
    ("refresh", Name::Other, IndexingPolicy::Always),
    ("retry-after", Name::Other, IndexingPolicy::Always),
    ("server", Name::Other, IndexingPolicy::Always),
    ("set-cookie", Name::Other, IndexingPolicy::Never),
    ("strict-transport-security", Name::Other, IndexingPolicy::Always),
    ("transfer-encoding", Name::Connection, IndexingPolicy::Always),
    ("user-agent", Name::Other, IndexingPolicy::Always),
    ("vary", Name::Other, IndexingPolicy::Always),
    ("via", Name::Other, IndexingPolicy::Always),
    ("www-authenticate", Name::Other, IndexingPolicy::Always),
    (":protocol", Name::Protocol, IndexingPolicy::Always),
    ("te", Name::Te, IndexingPolicy::Always),
    ("connection", Name::Connection, IndexingPolicy::Always),
    ("keep-alive", Name::Connection, IndexingPolicy::Always),
    ("proxy-connection", Name::Connection, IndexingPolicy::Always),
    ("upgrade", Name::Connection, IndexingPolicy::Always),
    ("access-control-allow-headers", Name::Other, IndexingPolicy::OnRepeat),
    ("x-content-type-options", Name::Other, IndexingPolicy::OnRepeat),
    ("x-xss-protection", Name::Other, IndexingPolicy::OnRepeat),
    ("access-control-allow-credentials", Name::Other, IndexingPolicy::OnRepeat),
    ("access-control-allow-methods", Name::Other, IndexingPolicy::OnRepeat),
    ("access-control-expose-headers", Name::Other, IndexingPolicy::OnRepeat),
    ("access-control-request-headers", Name::Other, IndexingPolicy::OnRepeat),
    ("access-control-request-method", Name::Other, IndexingPolicy::OnRepeat),
    ("alt-svc", Name::Other, IndexingPolicy::OnRepeat),
    ("content-security-policy", Name::Other, IndexingPolicy::OnRepeat),
    ("early-data", Name::Other, IndexingPolicy::OnRepeat),
    ("expect-ct", Name::Other, IndexingPolicy::OnRepeat),
    ("forwarded", Name::Other, IndexingPolicy::OnRepeat),
    ("origin", Name::Other, IndexingPolicy::OnRepeat),
    ("purpose", Name::Other, IndexingPolicy::OnRepeat),
    ("timing-allow-origin", Name::Other, IndexingPolicy::OnRepeat),
    ("upgrade-insecure-requests", Name::Other, IndexingPolicy::OnRepeat),
    ("x-forwarded-for", Name::Other, IndexingPolicy::OnRepeat),
    ("x-frame-options", Name::Other, IndexingPolicy::OnRepeat),
];

/// All known names, behind one that means none.
static KNOWN: [KnownName; NAMES.len() + 1] = known_names();

const fn known_names() -> [KnownName; NAMES.len() + 1] {
    let none = KnownName {
        text: b"",
        name: Name::Other,
        policy: IndexingPolicy::OnRepeat,
        hpack: NO_ENTRIES,
        qpack: [NO_ENTRIES; 2],
    };
    let mut known = [none; NAMES.len() + 1];
    let mut i = 0;
    while i < NAMES.len() {
        let (text, name, policy) = NAMES[i];
        let text = text.as_bytes();
        let (hpack, more) = range(&HPACK_ENTRIES, text, 0);
        assert!(range(&HPACK_ENTRIES, text, more).0.count == 0);
        let (first, more) = range(&QPACK_ENTRIES, text, 0);
        let (second, more) = range(&QPACK_ENTRIES, text, more);
        assert!(range(&QPACK_ENTRIES, text, more).0.count == 0);
        known[i + 1] = KnownName {
            text,
            name,
            policy,
            hpack,
            qpack: [first, second],
        };
        i += 1;
    }
    known
}

/// The next entries with that name from `from` on, and the place after them.
const fn range<const N: usize>(
    entries: &[(&[u8], &[u8]); N],
    name: &[u8],
    from: usize,
) -> (EntryRange, usize) {
    let mut first = from;
    while first < N && !same(entries[first].0, name) {
        first += 1;
    }
    let mut end = first;
    while end < N && same(entries[end].0, name) {
        end += 1;
    }
    let count = (end - first) as u8;
    let first = if count == 0 { 0 } else { first as u8 };
    (EntryRange { first, count }, end)
}

/// The special name of this text.
pub const fn name_of(text: &[u8]) -> Name {
    let mut i = 0;
    while i < NAMES.len() {
        if same(NAMES[i].0.as_bytes(), text) {
            return NAMES[i].1;
        }
        i += 1;
    }
    Name::Other
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Found by trial: with it no two names share a slot, which `slots` asserts.
const MULTIPLIER: u64 = 0xf169_f34c_9c97_fe35;
static SLOTS: [u8; 256] = slots();

const fn slot(name: &[u8]) -> usize {
    let len = name.len();
    let last = len - 1;
    let key = u64::from_le_bytes([
        len as u8,
        name[0],
        name[len / 2],
        name[last],
        name[last - len / 8],
        0,
        0,
        0,
    ]);
    (key.wrapping_mul(MULTIPLIER) >> 56) as usize
}

const fn slots() -> [u8; 256] {
    let mut slots = [0; 256];
    let mut i = 0;
    while i < NAMES.len() {
        let slot = slot(NAMES[i].0.as_bytes());
        assert!(slots[slot] == 0);
        slots[slot] = i as u8 + 1;
        i += 1;
    }
    slots
}

/// Looks a name up, which is in lower case.
#[inline]
pub fn known(name: &[u8]) -> Option<&'static KnownName> {
    if name.is_empty() {
        return None;
    }
    let known = &KNOWN[usize::from(SLOTS[slot(name)])];
    (known.text == name).then_some(known)
}

impl EntryRange {
    /// The place of the entry that has this value too.
    #[inline]
    pub fn place_of_value(self, entries: &[(&[u8], &[u8])], value: &[u8]) -> Option<u8> {
        (self.first..self.first + self.count).find(|&place| entries[usize::from(place)].1 == value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_both_tables_is_found_and_no_other() {
        for (place, (name, value)) in HPACK_ENTRIES.into_iter().enumerate() {
            let known = known(name).expect("a static name");
            assert_eq!(known.text, name);
            let found = known.hpack.place_of_value(&HPACK_ENTRIES, value);
            assert_eq!(found.map(usize::from), Some(place));
        }
        for (place, (name, value)) in QPACK_ENTRIES.into_iter().enumerate() {
            let known = known(name).expect("a static name");
            let found = known
                .qpack
                .into_iter()
                .find_map(|range| range.place_of_value(&QPACK_ENTRIES, value));
            assert_eq!(found.map(usize::from), Some(place));
        }
        for (text, name, _) in NAMES {
            assert_eq!(Name::of(text.as_bytes()), name);
        }
        for other in [&b""[..], b"x", b":", b"hosts", b"acceptx", b"x-request-id"] {
            assert!(known(other).is_none());
            assert_eq!(Name::of(other), Name::Other);
        }
        let long = [b"host".to_vec(), vec![b't'; 256]].concat();
        assert!(known(&long).is_none());
    }

    #[test]
    fn invalid_fields_are_found() {
        for good in [&b"a"[..], b"x-1", b"accept", b":path"] {
            assert_eq!(FieldError::of_name(good, Name::of(good)), None);
        }
        for bad in [&b""[..], b"A", b"accepT", b":x", b"a b", b"a:", b"\xe9"] {
            assert_eq!(
                FieldError::of_name(bad, Name::of(bad)),
                Some(FieldError::Name)
            );
        }
        for bad in [&b"connection"[..], b"transfer-encoding", b"upgrade"] {
            assert_eq!(
                FieldError::of_name(bad, Name::of(bad)),
                Some(FieldError::Connection)
            );
        }
        for good in [&b""[..], b"a", b"a \t b", b"\xe9", b"0123456789 abcdefgh"] {
            assert_eq!(FieldError::of_value(good, Name::Other), None);
        }
        for bad in [
            &b" a"[..],
            b"a ",
            b"\t",
            b"a\r",
            b"a\nb",
            b"\0",
            b"\x7f",
            b"0123456789\x1f",
        ] {
            assert_eq!(
                FieldError::of_value(bad, Name::Other),
                Some(FieldError::Value)
            );
        }
        assert_eq!(FieldError::of_value(b"trailers", Name::Te), None);
        assert_eq!(
            FieldError::of_value(b"gzip", Name::Te),
            Some(FieldError::Connection)
        );
    }
}
