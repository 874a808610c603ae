//! Framing and connection fields of a head, collected while its fields are scanned.

use crate::body::{Coding, Length, trim_ows};

/// Expect (RFC 9110 10.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Expect {
    #[default]
    Nothing,
    Continue,
    Other,
}

/// The Host lines: none, the index of the only one among the fields, or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Host {
    #[default]
    Absent,
    Index(u32),
    Repeated,
}

/// Options of the Connection field (RFC 9110 7.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ConnectionOptions {
    pub close: bool,
    pub keep_alive: bool,
    pub upgrade: bool,
}

impl ConnectionOptions {
    /// Adds a Connection line.
    #[inline]
    pub fn add(&mut self, value: &[u8]) {
        if value == b"keep-alive" {
            self.keep_alive = true;
        } else {
            self.add_list(value);
        }
    }

    fn add_list(&mut self, value: &[u8]) {
        for option in value.split(|&byte| byte == b',').map(trim_ows) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
            self.upgrade |= option.eq_ignore_ascii_case(b"upgrade");
        }
    }
}

/// The fields of a head that the connection itself acts on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HeadInfo {
    pub length: Length,
    pub coding: Coding,
    pub host: Host,
    pub options: ConnectionOptions,
    /// An Upgrade field is there.
    pub upgrade: bool,
    pub expect: Expect,
}

impl HeadInfo {
    /// Examines one field, the `index`-th. Most fields fail the first comparison.
    #[inline]
    pub fn record(&mut self, name: &[u8], value: &[u8], index: usize) {
        match (name.len(), name[0] | 0x20) {
            (4, b'h') if is(name, b"Host", b"host") => self.host(index),
            (14, b'c') if is(name, b"Content-Length", b"content-length") => self.length.add(value),
            (17, b't') if is(name, b"Transfer-Encoding", b"transfer-encoding") => {
                self.coding.add(value);
            }
            (10, b'c') if is(name, b"Connection", b"connection") => self.options.add(value),
            (7, b'u') if is(name, b"Upgrade", b"upgrade") => self.upgrade = true,
            (6, b'e') if is(name, b"Expect", b"expect") => self.expect(value),
            _ => {}
        }
    }

    fn host(&mut self, index: usize) {
        self.host = match self.host {
            Host::Absent => Host::Index(index as u32),
            _ => Host::Repeated,
        };
    }

    fn expect(&mut self, value: &[u8]) {
        self.expect = match (self.expect, value.eq_ignore_ascii_case(b"100-continue")) {
            (Expect::Nothing | Expect::Continue, true) => Expect::Continue,
            _ => Expect::Other,
        };
    }
}

/// Compares a name of `N` bytes ignoring case; the two usual spellings compare as whole words.
#[inline]
fn is<const N: usize>(name: &[u8], usual: &[u8; N], lower: &[u8; N]) -> bool {
    match name.first_chunk::<N>() {
        Some(name) => name == usual || name == lower || name.eq_ignore_ascii_case(lower),
        None => false,
    }
}
