//! SETTINGS (RFC 9113 6.5): ours, which apply once acknowledged, and the peer's.

use crate::Limits;

use super::Connection;
use super::frame;
use super::rules::{self, Fault};

const HEADER_TABLE_SIZE: u16 = 0x1;
const ENABLE_PUSH: u16 = 0x2;
const MAX_CONCURRENT_STREAMS: u16 = 0x3;
const INITIAL_WINDOW_SIZE: u16 = 0x4;
const MAX_FRAME_SIZE: u16 = 0x5;
const MAX_HEADER_LIST_SIZE: u16 = 0x6;
/// RFC 8441 3.
const ENABLE_CONNECT_PROTOCOL: u16 = 0x8;
/// RFC 9218 2.1.
const NO_RFC7540_PRIORITIES: u16 = 0x9;

/// Defaults of the protocol.
pub(super) const DEFAULT_WINDOW: u32 = 65_535;
pub(super) const DEFAULT_FRAME: u32 = 16_384;
const MAX_FRAME: u32 = 0x00ff_ffff;
const MAX_WINDOW: u32 = 0x7fff_ffff;
/// Number of stream windows that one charged frame may change; a setting that changes more is charged as several.
const MOVED_FOR_A_FRAME: usize = 8;

/// The peer's settings.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerSettings {
    pub initial_window: u32,
    pub max_frame: u32,
    pub max_streams: u32,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            initial_window: DEFAULT_WINDOW,
            max_frame: DEFAULT_FRAME,
            // Unlimited by the RFC, which recommends at least 100 (6.5.2).
            max_streams: 100,
        }
    }
}

/// Initial window of a stream once our settings apply.
pub(super) fn stream_window(limits: &Limits) -> u32 {
    limits.http2.stream_window_bytes.min(MAX_WINDOW)
}

/// The longest payload that we accept.
pub(super) fn max_frame(limits: &Limits) -> u32 {
    limits.http2.max_frame_bytes.clamp(DEFAULT_FRAME, MAX_FRAME)
}

impl Connection {
    /// Sends our SETTINGS, followed by the window update of the connection.
    pub(super) fn send_settings(&mut self) {
        let limits = &self.core.limits().http2;
        let mut pairs = [(0, 0); 8];
        let mut count = 0;
        let mut add = |name, value, is_news: bool| {
            if is_news {
                pairs[count] = (name, value);
                count += 1;
            }
        };
        let is_server = self.core.is_server();
        let table = limits.header_table_bytes;
        let window = stream_window(self.core.limits());
        let frame = max_frame(self.core.limits());
        add(HEADER_TABLE_SIZE, table, table != 4096);
        add(ENABLE_PUSH, 0, !is_server);
        add(
            MAX_CONCURRENT_STREAMS,
            limits.max_concurrent_streams,
            is_server,
        );
        add(INITIAL_WINDOW_SIZE, window, window != DEFAULT_WINDOW);
        add(MAX_FRAME_SIZE, frame, frame != DEFAULT_FRAME);
        add(MAX_HEADER_LIST_SIZE, limits.max_header_list_bytes, true);
        let offers_connect = is_server && limits.extended_connect;
        add(ENABLE_CONNECT_PROTOCOL, 1, offers_connect);
        add(NO_RFC7540_PRIORITIES, 1, is_server);
        self.write_control(|out| frame::settings(out, &pairs[..count]));
        let more = self
            .core
            .limits()
            .http2
            .connection_window_bytes
            .min(MAX_WINDOW);
        if let Some(more @ 1..) = more.checked_sub(DEFAULT_WINDOW) {
            self.write_control(|out| frame::window_update(out, 0, more));
            self.recv_window
                .resize(DEFAULT_WINDOW, DEFAULT_WINDOW + more);
        }
    }

    /// The peer has acknowledged our settings: they apply from here on.
    pub(super) fn settings_acknowledged(&mut self) {
        if self.timers.settings.take().is_none() {
            return;
        }
        let window = stream_window(self.core.limits());
        for key in self.core.stream_keys() {
            let stream = self.core.stream_mut(key);
            stream.own.recv_window.resize(DEFAULT_WINDOW, window);
            // Bytes that were read before may be half of the smaller window.
            self.release_capacity(key, 0);
        }
        self.stream_window = window;
        self.decoder
            .set_max_table_bytes(self.core.limits().http2.header_table_bytes);
    }

    /// Applies the peer's settings in order (RFC 9113 6.5.3).
    pub(super) fn settings_received(&mut self, at: usize, len: usize) -> Result<(), Fault> {
        let mut window = self.peer_settings.initial_window;
        for at in (at..at + len).step_by(6) {
            let pair = self.input.consumed(at, 6);
            let name = u16::from_be_bytes([pair[0], pair[1]]);
            let value = frame::word(pair, 2);
            match name {
                INITIAL_WINDOW_SIZE if value > MAX_WINDOW => return Err(rules::SETTING_WINDOW),
                INITIAL_WINDOW_SIZE => window = value,
                _ => self.setting_received(name, value)?,
            }
        }
        if self.core.extended_connect().is_none() {
            self.core.set_extended_connect(false);
        }
        // Once per frame, however often it is repeated: there may be many streams, and no other frame comes
        // between.
        self.initial_window_received(window)?;
        self.write_control(frame::settings_ack);
        // DATA allowed by larger windows is sent after the acknowledgement.
        self.fill_send_buffer();
        Ok(())
    }

    fn setting_received(&mut self, name: u16, value: u32) -> Result<(), Fault> {
        match name {
            HEADER_TABLE_SIZE => self.encoder.set_max_table_bytes(value),
            // A server must not enable it, and clients cannot push.
            ENABLE_PUSH if value > 1 || (value == 1 && self.core.is_client()) => {
                return Err(rules::SETTING);
            }
            MAX_CONCURRENT_STREAMS => self.peer_settings.max_streams = value,
            MAX_FRAME_SIZE if !(DEFAULT_FRAME..=MAX_FRAME).contains(&value) => {
                return Err(rules::SETTING);
            }
            MAX_FRAME_SIZE => self.peer_settings.max_frame = value,
            ENABLE_CONNECT_PROTOCOL
                if value > 1 || (value == 0 && self.core.extended_connect() == Some(true)) =>
            {
                return Err(rules::SETTING);
            }
            ENABLE_CONNECT_PROTOCOL => self.core.set_extended_connect(value == 1),
            NO_RFC7540_PRIORITIES if value > 1 => return Err(rules::SETTING),
            _ => {}
        }
        Ok(())
    }

    /// RFC 9113 6.9.2: the windows of open streams change by the difference, also below zero.
    fn initial_window_received(&mut self, value: u32) -> Result<(), Fault> {
        let by = i64::from(value) - i64::from(self.peer_settings.initial_window);
        self.peer_settings.initial_window = value;
        if by == 0 {
            return Ok(());
        }
        if self.core.is_server() {
            for _ in 0..self.core.stream_count() / MOVED_FOR_A_FRAME {
                self.core.charge_control()?;
            }
        }
        for key in self.core.stream_keys() {
            let stream = self.core.stream_mut(key);
            stream
                .own
                .send_window
                .shift(by)
                .map_err(|_| rules::SETTING_WINDOW)?;
            self.update_send_queue(key);
        }
        Ok(())
    }
}
