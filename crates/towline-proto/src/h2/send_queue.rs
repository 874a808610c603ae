//! Who sends next: streams whose bytes wait take turns, the most urgent first (RFC 9218).
//!
//! ```text
//!   write ──window, room, nobody waits──► SendBuffer ──► transport
//!     └──────► outbox ──turns──► pump ──────▲
//! ```
//!
//! A DATA frame goes into the send buffer only while little waits there, so that control frames and urgent
//! streams are never far behind. What is left over stays with its stream and costs nobody else anything.

use bytes::Bytes;

use super::Connection;
use super::frame::{self, HEADER_BYTES, Kind, flag};
use super::stream::{End, Notices, Priority};
use super::streams::{At, Streams};

/// Frames of DATA that earn a small window update more than this count for nothing.
const MOST_EARNED: u32 = 1000;

/// Streams that can send, by urgency; each list goes through the streams themselves.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lists: [Option<List>; 8],
}

#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl Turns {
    pub fn is_empty(&self) -> bool {
        self.lists.iter().all(Option::is_none)
    }

    pub fn first(&self) -> Option<At> {
        self.lists
            .iter()
            .flatten()
            .next()
            .map(|list| At(list.first))
    }

    fn list(&mut self, priority: Priority) -> &mut Option<List> {
        &mut self.lists[usize::from(priority.urgency & 7)]
    }

    /// Behind the others of its urgency.
    pub fn add(&mut self, streams: &mut Streams, at: At) {
        let stream = streams.at_mut(at);
        if std::mem::replace(&mut stream.is_listed, true) {
            return;
        }
        stream.next_listed = None;
        let list = self.list(stream.priority);
        match list {
            Some(list) => {
                streams.at_mut(At(list.last)).next_listed = Some(at.0);
                list.last = at.0;
            }
            None => {
                *list = Some(List {
                    first: at.0,
                    last: at.0,
                });
            }
        }
    }

    /// In front of the others: it goes on.
    fn add_first(&mut self, streams: &mut Streams, at: At) {
        let stream = streams.at_mut(at);
        let list = self.list(stream.priority);
        stream.is_listed = true;
        stream.next_listed = list.map(|list| list.first);
        *list = Some(List {
            first: at.0,
            last: list.map_or(at.0, |list| list.last),
        });
    }

    pub fn remove(&mut self, streams: &mut Streams, at: At) {
        let stream = streams.at_mut(at);
        if !std::mem::replace(&mut stream.is_listed, false) {
            return;
        }
        let next = stream.next_listed.take();
        let list = self.list(stream.priority);
        let Some(List { first, last }) = *list else {
            return;
        };
        if first == at.0 {
            *list = next.map(|first| List { first, last });
            return;
        }
        let mut before = first;
        while let Some(place) = streams.at(At(before)).next_listed {
            if place == at.0 {
                break;
            }
            before = place;
        }
        streams.at_mut(At(before)).next_listed = next;
        if last == at.0 {
            *list = Some(List {
                first,
                last: before,
            });
        }
    }
}

/// Body bytes of the program.
#[derive(Debug)]
pub(super) enum Data<'a> {
    Copied(&'a [u8]),
    Shared(Bytes),
}

impl Data<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Copied(data) => data.len(),
            Self::Shared(data) => data.len(),
        }
    }
}

impl Connection {
    /// Sends body bytes, or lets them wait. `last`: nothing follows.
    pub(super) fn send_data(&mut self, at: At, data: Data<'_>, last: bool) {
        let n = data.len();
        let may_pass = n <= self.send_window.bytes() && self.has_room() && self.turns.is_empty();
        let stream = self.streams.at_mut(at);
        let passes = may_pass && stream.outbox.is_empty() && n <= stream.send_window.bytes();
        if passes {
            return self.frame_whole(at, &data, last);
        }
        match data {
            Data::Copied(data) => stream.outbox.push(data),
            Data::Shared(data) => stream.outbox.push_shared(data),
        }
        if last {
            stream.outbox.end = End::Due;
        }
        if self.lacks_credit(at) {
            return self.starve(at);
        }
        self.window_moved(at);
        self.pump();
        if self.send_capacity(at) == 0 {
            self.streams.at_mut(at).notices.set(Notices::WRITER_WAITS);
        }
    }

    /// DATA goes into the send buffer while less than this waits there.
    fn has_room(&self) -> bool {
        self.send.pending() < self.limits.send_window_bytes
    }

    /// Frames all of it at once.
    fn frame_whole(&mut self, at: At, data: &Data<'_>, last: bool) {
        let n = data.len();
        self.send_window.take(n);
        let stream = self.streams.at_mut(at);
        stream.send_window.take(n);
        let id = stream.id;
        if last {
            stream.outbox.end = End::Sent;
        }
        let most = self.peer.max_frame as usize;
        stream.stats.sent += (n + n.div_ceil(most) * HEADER_BYTES) as u64;
        let mut from = 0;
        while from < n {
            let to = n.min(from + most);
            let ends = last && to == n;
            self.begin_frame(id, to - from, ends);
            match data {
                Data::Copied(data) => self.send.push(&data[from..to]),
                Data::Shared(data) if to - from == n => self.send.push_shared(data.clone()),
                Data::Shared(data) => self.send.push_piece(data.slice(from..to)),
            }
            from = to;
        }
        if last {
            self.check_over(at);
        }
    }

    /// The header of a DATA frame of `len` bytes, which can still be made the last one.
    fn begin_frame(&mut self, id: u32, len: usize, end: bool) {
        self.tail = (!end).then_some((id, self.send.end()));
        let flags = if end { flag::END_STREAM } else { 0 };
        let header = frame::FrameHeader {
            len: len as u32,
            kind: Kind::Data,
            flags,
            stream: id,
        };
        self.send.push(&header.bytes());
        self.updates_earned = (self.updates_earned + 2).min(MOST_EARNED);
    }

    /// Its window or its outbox has changed: it has a turn when it can send.
    pub(super) fn window_moved(&mut self, at: At) {
        let stream = self.streams.at_mut(at);
        if stream.can_send() {
            self.turns.add(&mut self.streams, at);
            return;
        }
        let waits = stream.wants_to_send();
        // A setting can shut a window that was open.
        self.turns.remove(&mut self.streams, at);
        if waits {
            self.watch_window(at);
        }
    }

    /// Puts waiting bytes into the send buffer as far as windows and room allow.
    pub(super) fn pump(&mut self) {
        while self.has_room()
            && let Some(at) = self.turns.first()
        {
            if self.streams.at(at).outbox.is_empty() {
                self.turns.remove(&mut self.streams, at);
                self.send_end(at);
                continue;
            }
            if self.send_window.bytes() == 0 && self.clocks.eof_seen {
                self.starve(at);
                continue;
            }
            if self.send_window.bytes() == 0 {
                self.watch_connection_window();
                return;
            }
            self.take_turn(at);
        }
        if self.turns.is_empty() {
            self.clocks.window.stop();
        }
    }

    /// One frame of a stream that has bytes and a window.
    fn take_turn(&mut self, at: At) {
        let most = self.send_window.bytes().min(self.peer.max_frame as usize);
        let stream = self.streams.at_mut(at);
        let window = stream.send_window.bytes().min(most);
        let piece = stream.outbox.take(window);
        let n = piece.len();
        stream.send_window.take(n);
        stream.send_clock.advance(self.now, n);
        stream.stats.sent += (HEADER_BYTES + n) as u64;
        stream.stats.last_sent = Some(self.now);
        let is_last = stream.outbox.is_empty();
        let ends = is_last && stream.outbox.end == End::Due && stream.last_fields.is_none();
        if ends {
            stream.outbox.end = End::Sent;
        }
        if is_last {
            stream.send_clock.stop();
        }
        let (id, is_clipped) = (stream.id, n == window && !is_last);
        self.send_window.take(n);
        self.clocks.window.advance(self.now, n);
        self.begin_frame(id, n, ends);
        if is_clipped && n < most {
            // A frame that the peer's own window has cut earns it nothing.
            self.updates_earned = self.updates_earned.saturating_sub(2);
        }
        self.send.push_piece(piece);
        self.turns.remove(&mut self.streams, at);
        let stream = self.streams.at(at);
        if !stream.can_send() {
            self.window_moved(at);
        } else if stream.priority.in_turns {
            self.turns.add(&mut self.streams, at);
        } else {
            self.turns.add_first(&mut self.streams, at);
        }
        self.wake_writer(at);
        if ends {
            self.check_over(at);
        }
    }

    fn wake_writer(&mut self, at: At) {
        let low = self.limits.send_window_bytes / 2;
        let stream = self.streams.at_mut(at);
        if stream.outbox.len() < low && stream.notices.take(Notices::WRITER_WAITS) {
            self.notice(at, Notices::WRITABLE);
        }
    }

    /// `END_STREAM` behind the last byte: on the frame before, on trailers or on an empty frame.
    pub(super) fn send_end(&mut self, at: At) {
        let stream = self.streams.at_mut(at);
        stream.outbox.end = End::Sent;
        stream.send_clock.stop();
        let id = stream.id;
        let fields = stream.last_fields.take();
        match (fields, self.tail) {
            (Some(fields), _) => self.write_trailers(id, &fields),
            (None, Some((tail, header))) if tail == id => {
                // Kind and flags stand behind the three bytes of the length.
                if let Some(flags) = self.send.byte_mut(header + 4) {
                    *flags |= flag::END_STREAM;
                }
                self.tail = None;
            }
            _ => {
                self.streams.at_mut(at).stats.sent += HEADER_BYTES as u64;
                self.begin_frame(id, 0, true);
            }
        }
        self.check_over(at);
    }
}
