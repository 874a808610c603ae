//! SETTINGS (RFC 9114 7.2.4): ours and the peer's.

use bytes::BytesMut;

use super::Connection;
use super::frame::{self, varint};
use super::rules::{self, Fault};

const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
const QPACK_BLOCKED_STREAMS: u64 = 0x7;
/// RFC 9220 5.
const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
/// A reserved setting, which a peer must ignore (RFC 9114 7.2.4.1).
const RESERVED: u64 = 0x1f * 0x051c + 0x21;

impl Connection {
    /// Writes our SETTINGS.
    pub(super) fn write_settings(&self, out: &mut BytesMut) {
        let limits = &self.core.limits().http3;
        let mut pairs = vec![
            (
                MAX_FIELD_SECTION_SIZE,
                u64::from(limits.max_field_section_bytes),
            ),
            (RESERVED, 0),
        ];
        if limits.qpack_table_bytes > 0 {
            pairs.push((
                QPACK_MAX_TABLE_CAPACITY,
                u64::from(limits.qpack_table_bytes),
            ));
            pairs.push((
                QPACK_BLOCKED_STREAMS,
                u64::from(limits.qpack_blocked_streams),
            ));
        }
        if self.core.is_server() && limits.extended_connect {
            pairs.push((ENABLE_CONNECT_PROTOCOL, 1));
        }
        frame::settings(out, &pairs);
    }

    /// Applies the peer's settings; there is one frame of them.
    pub(super) fn apply_settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let mut names = Vec::new();
        let mut rest = payload;
        let (mut table_bytes, mut max_blocked) = (0, 0);
        let mut extended_connect = false;
        while !rest.is_empty() {
            let (name, n) = varint(rest).ok_or(rules::WRONG_SIZE)?;
            let (value, m) = varint(&rest[n..]).ok_or(rules::WRONG_SIZE)?;
            rest = &rest[n + m..];
            names.push(name);
            match name {
                0x0 | 0x2..=0x5 => return Err(rules::SETTING_OF_HTTP2),
                QPACK_MAX_TABLE_CAPACITY => table_bytes = value,
                QPACK_BLOCKED_STREAMS => max_blocked = value,
                ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(rules::SETTING),
                ENABLE_CONNECT_PROTOCOL => extended_connect = value == 1,
                _ => {}
            }
        }
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(rules::SETTING_TWICE);
        }
        self.core.set_extended_connect(extended_connect);
        self.encoder.set_max_blocked_streams(max_blocked);
        self.encoder.set_max_table_bytes(table_bytes);
        Ok(())
    }
}
