//! Sending responses.
//!
//! Most heads of a connection are equal, except for the date, which changes once a second. Such a head is
//! validated and compressed once: while the encoder would produce the same block for the same fields
//! ([`generation`](super::hpack::Encoder::generation)), the cached one is sent.

use crate::body::Method;
use crate::{BodySize, DateSource, ErrorCode, Field, ResponseHead, Side, StreamId, UserError};

use super::Connection;
use super::encode;
use super::frame::{self, HEADER_BYTES};
use super::pending_events::PendingEvents;
use super::rules::Fault;
use super::send::{MAX_CACHED_BLOCK_BYTES, check_fields};
use super::stream::{EndStream, SendState, Tunnel};
use super::streams::StreamKey;

/// A head with more text is not cached: cached heads are kept by idle connections.
const MAX_CACHED_TEXT_BYTES: usize = 1024;

/// Cache of the head of the last responses.
#[derive(Debug, Default)]
pub(super) struct HeadCache {
    /// The [`fingerprint`] of the last head. A head is cached when it is repeated.
    last_fingerprint: u64,
    cached: Option<Box<CachedHead>>,
}

/// A valid head and its encoded block.
#[derive(Debug)]
struct CachedHead {
    status: u16,
    /// Lengths of each name and its value.
    lens: Box<[(u16, u16)]>,
    /// Names and values, concatenated.
    text: Box<[u8]>,
    lengths: ContentLengths,
    generation: u32,
    block: Box<[u8]>,
}

/// Result of a cache lookup, with the Content-Length among the fields of the head.
#[derive(Debug, Clone, Copy)]
enum HeadLookup {
    Miss(Option<u64>),
    Hit(Option<u64>),
}

/// The Content-Length of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ContentLengths {
    /// Given by the program, among its fields.
    given: Option<u64>,
    /// Added after them.
    added: Option<u64>,
}

impl CachedHead {
    fn of(head: &ResponseHead<'_>, lengths: ContentLengths, generation: u32, block: &[u8]) -> Self {
        let lens = |field: &Field<'_>| (field.name.len() as u16, field.value.len() as u16);
        let texts = head.fields.iter().flat_map(|f| [f.name, f.value]);
        Self {
            status: head.status,
            lens: head.fields.iter().map(lens).collect(),
            text: texts.flatten().copied().collect(),
            lengths,
            generation,
            block: block.into(),
        }
    }

    #[inline]
    fn matches(&self, head: &ResponseHead<'_>) -> bool {
        if self.status != head.status || self.lens.len() != head.fields.len() {
            return false;
        }
        let mut text = &self.text[..];
        for (field, &(name_len, value_len)) in head.fields.iter().zip(&self.lens) {
            let lens = (usize::from(name_len), usize::from(value_len));
            if lens != (field.name.len(), field.value.len()) {
                return false;
            }
            let (name, behind) = text.split_at(lens.0);
            let (value, behind) = behind.split_at(lens.1);
            if value != field.value || name != field.name {
                return false;
            }
            text = behind;
        }
        true
    }
}

impl HeadCache {
    /// Looks the head up.
    #[inline]
    fn lookup(&self, head: &ResponseHead<'_>) -> Option<HeadLookup> {
        let cached = self.cached.as_ref()?;
        cached
            .matches(head)
            .then_some(HeadLookup::Hit(cached.lengths.given))
    }

    /// Records a valid head that was encoded, with a block that can be reused.
    fn record(
        &mut self,
        head: &ResponseHead<'_>,
        lengths: ContentLengths,
        generation: u32,
        block: &[u8],
    ) {
        let fingerprint = fingerprint(head, lengths.added);
        let is_repeated = std::mem::replace(&mut self.last_fingerprint, fingerprint) == fingerprint;
        if is_repeated
            && block.len() <= MAX_CACHED_BLOCK_BYTES
            && text_bytes(head) <= MAX_CACHED_TEXT_BYTES
        {
            self.cached = Some(Box::new(CachedHead::of(head, lengths, generation, block)));
        }
    }
}

impl Connection {
    pub fn respond(
        &mut self,
        id: StreamId,
        head: &ResponseHead<'_>,
        size: BodySize,
    ) -> Result<(), UserError> {
        if self.side != Side::Server {
            return Err(UserError::WrongSide);
        }
        let key = self.find(id)?;
        let stream = self.streams.get(key);
        match stream.send_state {
            SendState::Head => {}
            SendState::Failed => return Err(UserError::StreamFailed),
            _ => return Err(UserError::WrongOrder),
        }
        if let Some(hit) = self.head_cache.lookup(head) {
            return self.respond_final(key, head, size, hit);
        }
        if !(100..=599).contains(&head.status) {
            return Err(UserError::InvalidStatus);
        }
        if head.status == 101 {
            return Err(UserError::UpgradeNotPossible);
        }
        let framing = check_fields(head.fields)?;
        if framing.protocol.is_some() {
            // Only requests have it (RFC 8441 4).
            return Err(UserError::InvalidFieldName);
        }
        if head.status < 200 {
            if size != BodySize::Empty {
                return Err(UserError::InvalidStatus);
            }
            let stream = self.streams.get_mut(key);
            stream.awaits_continue &= head.status != 100;
            let id = stream.id;
            self.write_response(id, head, None, false);
            return Ok(());
        }
        self.respond_final(key, head, size, HeadLookup::Miss(framing.length))
    }

    fn respond_final(
        &mut self,
        key: StreamKey,
        head: &ResponseHead<'_>,
        size: BodySize,
        lookup: HeadLookup,
    ) -> Result<(), UserError> {
        let (HeadLookup::Hit(given) | HeadLookup::Miss(given)) = lookup;
        let stream = self.streams.get_mut(key);
        let is_good = (200..300).contains(&head.status);
        if stream.tunnel == Tunnel::Requested && is_good {
            if given.is_some() {
                return Err(UserError::InvalidContentLength);
            }
            stream.tunnel = Tunnel::Open;
            stream.send_state = SendState::Body(None);
            let id = stream.id;
            self.write_response(id, head, None, false);
            self.notify(key, PendingEvents::SWITCHED);
            return Ok(());
        }
        let plan = response_plan(stream.method, head.status, size, given)?;
        stream.tunnel = Tunnel::None;
        stream.awaits_continue = false;
        stream.send_state = plan.next;
        if plan.end {
            stream.outbox.end = EndStream::Sent;
        }
        let id = stream.id;
        let hides_length = head.status == 204;
        let added = plan.length.filter(|_| given.is_none() && !hides_length);
        if !(matches!(lookup, HeadLookup::Hit(_)) && self.write_cached(id, added, plan.end)) {
            self.write_uncached(id, head, ContentLengths { given, added }, plan.end);
        }
        self.check_closed(key);
        Ok(())
    }

    /// Writes the cached block; false if the current block would be different.
    fn write_cached(&mut self, id: u32, added: Option<u64>, end: bool) -> bool {
        let generation = self.encoder.generation();
        let Some(cached) = &self.head_cache.cached else {
            return false;
        };
        if cached.lengths.added != added || Some(cached.generation) != generation {
            return false;
        }
        let start = self.send.end();
        let written = self
            .send
            .fill(|out| frame::headers(out, id, end, &cached.block));
        self.last_frame = (!end).then_some((id, start));
        self.induced_bytes += written;
        true
    }

    fn write_uncached(
        &mut self,
        id: u32,
        head: &ResponseHead<'_>,
        lengths: ContentLengths,
        end: bool,
    ) {
        let generation = self.encoder.generation();
        let start = self.write_response(id, head, lengths.added, end);
        // If fields were added to the table, the next block for the same head is different.
        if let Some(generation) = generation.filter(|_| self.encoder.generation() == generation) {
            let block = &self.send.from(start)[HEADER_BYTES..];
            self.head_cache.record(head, lengths, generation, block);
        }
    }

    /// Writes a validated head. `length`: a Content-Length that the program did not give. Returns the offset
    /// of its first frame in the send buffer.
    fn write_response(
        &mut self,
        id: u32,
        head: &ResponseHead<'_>,
        length: Option<u64>,
        end: bool,
    ) -> usize {
        let hides_length = head.status == 204;
        self.write_head(id, end, |encoder, out| {
            encode::status(encoder, head.status, out);
            for field in head.fields {
                if hides_length && field.name.eq_ignore_ascii_case(b"content-length") {
                    continue;
                }
                encode::field(encoder, field, out);
            }
            if let Some(length) = length {
                encode::content_length(encoder, length, out);
            }
        })
    }

    /// Responds to a request that is not passed to the program.
    pub(super) fn reject_request(&mut self, id: u32, status: u16, end: bool) -> Result<(), Fault> {
        self.write_refusal(id, status);
        if !end {
            self.write_control(|out| frame::reset(out, id, ErrorCode::NO_ERROR));
            self.remember_reset(id);
        }
        self.charge_reset()
    }

    /// Writes a response of the connection itself: without a body, with a date.
    fn write_refusal(&mut self, id: u32, status: u16) {
        let date = self.limits.date.map(|DateSource(date)| date());
        let date = date.as_ref().map(|date| Field {
            name: b"date",
            value: date,
        });
        let head = ResponseHead {
            status,
            reason: b"",
            fields: date.as_slice(),
        };
        self.write_response(id, &head, Some(0), true);
    }

    /// Rejects a body over the limit: with 413 if there was no response yet.
    pub(super) fn reject_body(&mut self, key: StreamKey) -> Result<(), Fault> {
        let fault = super::rules::BODY;
        let stream = self.streams.get(key);
        if self.side == Side::Client || stream.send_state != SendState::Head {
            return self.reset_stream(key, fault);
        }
        let id = stream.id;
        self.write_refusal(id, 413);
        self.reset_stream(key, super::rules::BODY_REFUSED)
    }

    pub(super) fn send_continue(&mut self, key: StreamKey) {
        let stream = self.streams.get_mut(key);
        if !std::mem::take(&mut stream.awaits_continue) || stream.send_state != SendState::Head {
            return;
        }
        let id = stream.id;
        let head = ResponseHead {
            status: 100,
            reason: b"",
            fields: &[],
        };
        self.write_response(id, &head, None, false);
        self.watch_awaited_body(key);
    }
}

/// A cheap hash: heads with different fingerprints differ.
fn fingerprint(head: &ResponseHead<'_>, added: Option<u64>) -> u64 {
    let start = u64::from(head.status) << 32 | added.map_or(0, |length| length.wrapping_add(1));
    head.fields.iter().fold(start, |fingerprint, field| {
        let lens = (field.name.len() as u64) << 16 | field.value.len() as u64;
        fingerprint.wrapping_mul(31).wrapping_add(lens)
    })
}

fn text_bytes(head: &ResponseHead<'_>) -> usize {
    let bytes = |field: &Field<'_>| field.name.len() + field.value.len();
    head.fields.iter().map(bytes).sum()
}

/// How a response is sent.
struct BodyPlan {
    length: Option<u64>,
    end: bool,
    next: SendState,
}

fn response_plan(
    method: Method,
    status: u16,
    size: BodySize,
    given: Option<u64>,
) -> Result<BodyPlan, UserError> {
    let length = match (size, given) {
        (BodySize::Known(n), Some(given)) if n != given => {
            return Err(UserError::InvalidContentLength);
        }
        (BodySize::Known(n), _) => Some(n),
        (_, given) => given,
    };
    let is_bodiless = method == Method::Head || matches!(status, 204 | 304);
    if is_bodiless {
        let next = match size {
            BodySize::Empty => SendState::Complete,
            _ => SendState::Discard,
        };
        // RFC 9110 8.6: in a 304 only the length of the corresponding 200 response.
        let length = length.filter(|_| status != 304);
        return Ok(BodyPlan {
            length,
            end: true,
            next,
        });
    }
    Ok(match (size, length) {
        (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        (BodySize::Empty, _) => BodyPlan {
            length: Some(0),
            end: true,
            next: SendState::Complete,
        },
        (_, Some(n)) => BodyPlan {
            length,
            end: n == 0,
            next: SendState::Body(Some(n)),
        },
        (_, None) => BodyPlan {
            length: None,
            end: false,
            next: SendState::Body(None),
        },
    })
}
