//! The static table (RFC 7541 appendix A), and the names that HTTP/2 treats specially.

use crate::byte_class::{is_token_bytes, is_value_bytes};

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
    /// A connection-specific field of HTTP/1.1 (RFC 9113 8.2.2); an error when received.
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

/// Error of a decoded field that makes its message malformed (RFC 9113 8.1.1).
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
    /// The broken rule.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Name => "field name is not a lower-case token (RFC 9113 8.2.1)",
            Self::Value => "control byte or outer whitespace in a field value (RFC 9113 8.2.1)",
            Self::Connection => "connection-specific field (RFC 9113 8.2.2)",
        }
    }

    /// Error of a received name.
    pub(super) fn of_name(name: &[u8], which: Name) -> Option<Self> {
        let lower = |name: &[u8]| is_token_bytes(name) && !name.iter().any(u8::is_ascii_uppercase);
        match which {
            Name::Connection => Some(Self::Connection),
            Name::Other if !lower(name) => Some(Self::Name),
            _ => None,
        }
    }

    /// Error of a value.
    #[inline]
    pub(super) fn of_value(value: &[u8], which: Name) -> Option<Self> {
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

/// When the encoder adds the values of a field to the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexingPolicy {
    /// Immediately: the value stays the same over many messages.
    Always,
    /// When it is repeated: the value is often new.
    OnRepeat,
    /// Never: the value is a secret (RFC 7541 7.1.3).
    Never,
    /// Never if it is short enough to be guessed.
    NeverIfShort,
}

/// A name of the static table, or a specially treated one.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownName {
    pub text: &'static [u8],
    /// The first entry of the static table with that name; 0: none.
    pub index: u8,
    /// Number of such entries.
    pub entries: u8,
    pub name: Name,
    pub policy: IndexingPolicy,
}

const fn known_entry(
    text: &'static [u8],
    index: u8,
    name: Name,
    policy: IndexingPolicy,
) -> KnownName {
    KnownName {
        text,
        index,
        entries: 0,
        name,
        policy,
    }
}

/// The name of each static entry from index 1 on, and its value.
pub(super) const ENTRIES: [(&[u8], &[u8]); 61] = [
    (b":authority", b""),
    (b":method", b"GET"),
    (b":method", b"POST"),
    (b":path", b"/"),
    (b":path", b"/index.html"),
    (b":scheme", b"http"),
    (b":scheme", b"https"),
    (b":status", b"200"),
    (b":status", b"204"),
    (b":status", b"206"),
    (b":status", b"304"),
    (b":status", b"400"),
    (b":status", b"404"),
    (b":status", b"500"),
    (b"accept-charset", b""),
    (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""),
    (b"accept-ranges", b""),
    (b"accept", b""),
    (b"access-control-allow-origin", b""),
    (b"age", b""),
    (b"allow", b""),
    (b"authorization", b""),
    (b"cache-control", b""),
    (b"content-disposition", b""),
    (b"content-encoding", b""),
    (b"content-language", b""),
    (b"content-length", b""),
    (b"content-location", b""),
    (b"content-range", b""),
    (b"content-type", b""),
    (b"cookie", b""),
    (b"date", b""),
    (b"etag", b""),
    (b"expect", b""),
    (b"expires", b""),
    (b"from", b""),
    (b"host", b""),
    (b"if-match", b""),
    (b"if-modified-since", b""),
    (b"if-none-match", b""),
    (b"if-range", b""),
    (b"if-unmodified-since", b""),
    (b"last-modified", b""),
    (b"link", b""),
    (b"location", b""),
    (b"max-forwards", b""),
    (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""),
    (b"range", b""),
    (b"referer", b""),
    (b"refresh", b""),
    (b"retry-after", b""),
    (b"server", b""),
    (b"set-cookie", b""),
    (b"strict-transport-security", b""),
    (b"transfer-encoding", b""),
    (b"user-agent", b""),
    (b"vary", b""),
    (b"via", b""),
    (b"www-authenticate", b""),
];

/// Entries of the static table.
pub(super) const STATIC_ENTRIES: u32 = ENTRIES.len() as u32;

/// Names that the static table lacks.
const MORE: [KnownName; 6] = [
    known_entry(b":protocol", 0, Name::Protocol, IndexingPolicy::Always),
    known_entry(b"te", 0, Name::Te, IndexingPolicy::Always),
    known_entry(b"connection", 0, Name::Connection, IndexingPolicy::Always),
    known_entry(b"keep-alive", 0, Name::Connection, IndexingPolicy::Always),
    known_entry(
        b"proxy-connection",
        0,
        Name::Connection,
        IndexingPolicy::Always,
    ),
    known_entry(b"upgrade", 0, Name::Connection, IndexingPolicy::Always),
];

/// The name of a static entry by its first index.
const fn of_static(index: usize) -> KnownName {
    let name = match index {
        1 => Name::Authority,
        2 => Name::Method,
        4 => Name::Path,
        6 => Name::Scheme,
        8 => Name::Status,
        28 => Name::ContentLength,
        32 => Name::Cookie,
        35 => Name::Expect,
        38 => Name::Host,
        57 => Name::Connection,
        _ => Name::Other,
    };
    let policy = match index {
        // authorization, proxy-authorization, set-cookie
        23 | 49 | 55 => IndexingPolicy::Never,
        32 => IndexingPolicy::NeverIfShort,
        // :path, age, content-length, -location and -range, date, etag, expires, conditions, last-modified,
        // location, range, referer
        4 | 21 | 28..=30 | 33 | 34 | 36 | 39..=44 | 46 | 50 | 51 => IndexingPolicy::OnRepeat,
        _ => IndexingPolicy::Always,
    };
    known_entry(ENTRIES[index - 1].0, index as u8, name, policy)
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Distinct names in both lists, and one for "none".
const COUNT: usize = 59;

/// All known names; the first means none.
static KNOWN: [KnownName; COUNT] = NAMES.0;

/// `KNOWN`, and the position in it of the name of each static entry.
const NAMES: ([KnownName; COUNT], [u8; ENTRIES.len()]) = names();

const fn names() -> ([KnownName; COUNT], [u8; ENTRIES.len()]) {
    let mut known = [known_entry(b"", 0, Name::Other, IndexingPolicy::Always); COUNT];
    let mut by_index = [0; ENTRIES.len()];
    let mut count = 1;
    let mut index = 1;
    while index <= ENTRIES.len() {
        // Entries of one name are adjacent.
        if index == 1 || !same(ENTRIES[index - 1].0, ENTRIES[index - 2].0) {
            known[count] = of_static(index);
            count += 1;
        }
        by_index[index - 1] = count as u8 - 1;
        known[count - 1].entries += 1;
        index += 1;
    }
    let mut more = 0;
    while more < MORE.len() {
        known[count] = MORE[more];
        count += 1;
        more += 1;
    }
    assert!(count == COUNT);
    (known, by_index)
}

/// Found by trial: with it no two names share a slot, which `slots` asserts.
const MULTIPLIER: u32 = 0x8bab_f391;
static SLOTS: [u8; 256] = slots();

const fn slot(name: &[u8]) -> usize {
    let key = u32::from_le_bytes([
        name.len() as u8,
        name[0],
        name[name.len() / 2],
        name[name.len() - 1],
    ]);
    (key.wrapping_mul(MULTIPLIER) >> 24) as usize
}

const fn slots() -> [u8; 256] {
    let mut slots = [0; 256];
    let mut i = 1;
    while i < COUNT {
        let slot = slot(NAMES.0[i].text);
        assert!(slots[slot] == 0);
        slots[slot] = i as u8;
        i += 1;
    }
    slots
}

/// Looks a name up, which is in lower case.
#[inline]
pub(super) fn known(name: &[u8]) -> Option<&'static KnownName> {
    if name.is_empty() {
        return None;
    }
    let known = &KNOWN[usize::from(SLOTS[slot(name)])];
    (known.text == name).then_some(known)
}

impl KnownName {
    /// The static entry that has this value too.
    #[inline]
    pub fn index_of_value(&self, value: &[u8]) -> Option<u8> {
        (self.index..self.index + self.entries)
            .find(|&index| ENTRIES[usize::from(index) - 1].1 == value)
    }
}

/// Whether the static entry of that index is this field.
pub(super) fn is_static(index: u8, name: &[u8], value: &[u8]) -> bool {
    ENTRIES[usize::from(index) - 1] == (name, value)
}

/// A static entry, stored as one run of bytes.
#[derive(Clone, Copy)]
pub(super) struct StaticEntry {
    start: u16,
    name_len: u8,
    len: u8,
    pub name: Name,
}

const STATIC_BYTES: usize = {
    let (mut bytes, mut i) = (0, 0);
    while i < ENTRIES.len() {
        bytes += ENTRIES[i].0.len() + ENTRIES[i].1.len();
        i += 1;
    }
    bytes
};

const STATIC: ([StaticEntry; ENTRIES.len()], [u8; STATIC_BYTES]) = static_table();
static STATIC_TABLE: [StaticEntry; ENTRIES.len()] = STATIC.0;
static STATIC_TEXT: [u8; STATIC_BYTES] = STATIC.1;

const fn static_table() -> ([StaticEntry; ENTRIES.len()], [u8; STATIC_BYTES]) {
    let none = StaticEntry {
        start: 0,
        name_len: 0,
        len: 0,
        name: Name::Other,
    };
    let mut entries = [none; ENTRIES.len()];
    let mut text = [0; STATIC_BYTES];
    let (mut at, mut i) = (0, 0);
    while i < ENTRIES.len() {
        let (name, value) = ENTRIES[i];
        entries[i] = StaticEntry {
            start: at as u16,
            name_len: name.len() as u8,
            len: (name.len() + value.len()) as u8,
            name: NAMES.0[NAMES.1[i] as usize].name,
        };
        let mut j = 0;
        while j < name.len() + value.len() {
            text[at] = if j < name.len() {
                name[j]
            } else {
                value[j - name.len()]
            };
            at += 1;
            j += 1;
        }
        i += 1;
    }
    (entries, text)
}

impl StaticEntry {
    /// The entry at `index`, from 1.
    #[inline]
    pub fn at(index: u32) -> Self {
        STATIC_TABLE[index as usize - 1]
    }

    /// Name and value, concatenated.
    #[inline]
    pub fn line(self) -> &'static [u8] {
        &STATIC_TEXT[usize::from(self.start)..][..usize::from(self.len)]
    }

    #[inline]
    pub fn name_len(self) -> u32 {
        u32::from(self.name_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_no_other() {
        for (index, (name, value)) in (1..).zip(ENTRIES) {
            let known = known(name).expect("a static name");
            assert_eq!(known.text, name);
            let first = ENTRIES.iter().position(|entry| entry.0 == name);
            assert_eq!(usize::from(known.index), first.expect("it is there") + 1);
            let entry = StaticEntry::at(index);
            assert_eq!(entry.line(), [name, value].concat());
            assert_eq!(
                (entry.name_len() as usize, entry.name),
                (name.len(), known.name)
            );
        }
        for more in MORE {
            assert_eq!(known(more.text).map(|known| known.name), Some(more.name));
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
