//! Heads of responses: how a response is sent, and the cache of encoded heads.
//!
//! Most heads of a connection are equal, except for the date, which changes once a second. Such a head is
//! validated and compressed once: while the encoder would produce the same block for the same fields, which its
//! generation tells, the cached one is sent.

use crate::body::Method;
use crate::field_compression::FieldEncoder;
use crate::{BodySize, DateSource, Field, ResponseHead, UserError};

use super::encode;
use super::fields::check_fields;
use super::states::SendState;

/// A longer header block is not cached. A block of this size fits into one frame for every peer.
pub(crate) const MAX_CACHED_BLOCK_BYTES: usize = 256;

/// A head with more text is not cached: cached heads are kept by idle connections.
const MAX_CACHED_TEXT_BYTES: usize = 1024;

/// Cache of the head of the last responses.
#[derive(Debug, Default)]
pub(crate) struct HeadCache {
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
    oldest: u64,
    block: Box<[u8]>,
}

/// An encoded head, with the encoder state that it depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EncodedBlock<'a> {
    pub bytes: &'a [u8],
    /// The encoder's generation.
    pub generation: u32,
    /// QPACK: the oldest entry that it refers to.
    pub oldest: u64,
}

/// A valid head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadLookup {
    /// The Content-Length among its fields.
    pub given: Option<u64>,
    pub is_cached: bool,
}

/// The Content-Length of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContentLengths {
    /// Given by the program, among its fields.
    pub given: Option<u64>,
    /// Added after them.
    pub added: Option<u64>,
}

impl CachedHead {
    fn of(head: &ResponseHead<'_>, lengths: ContentLengths, block: EncodedBlock<'_>) -> Self {
        let lens = |field: &Field<'_>| (field.name.len() as u16, field.value.len() as u16);
        let texts = head.fields.iter().flat_map(|f| [f.name, f.value]);
        Self {
            status: head.status,
            lens: head.fields.iter().map(lens).collect(),
            text: texts.flatten().copied().collect(),
            lengths,
            generation: block.generation,
            oldest: block.oldest,
            block: block.bytes.into(),
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
    /// Looks the head up, or validates it. Only final heads are cached.
    #[inline]
    pub fn check(&self, head: &ResponseHead<'_>, size: BodySize) -> Result<HeadLookup, UserError> {
        match &self.cached {
            Some(cached) if cached.matches(head) => Ok(HeadLookup {
                given: cached.lengths.given,
                is_cached: true,
            }),
            _ => Ok(HeadLookup {
                given: check_head(head, size)?,
                is_cached: false,
            }),
        }
    }

    /// The head found by [`check`](Self::check), if its block would be the same now.
    #[inline]
    pub fn block(&self, added: Option<u64>, generation: Option<u32>) -> Option<EncodedBlock<'_>> {
        let cached = self.cached.as_ref()?;
        let is_same = cached.lengths.added == added && Some(cached.generation) == generation;
        is_same.then_some(EncodedBlock {
            bytes: &cached.block,
            generation: cached.generation,
            oldest: cached.oldest,
        })
    }

    /// Records a valid head that was encoded, with a block that can be reused.
    pub fn record(
        &mut self,
        head: &ResponseHead<'_>,
        lengths: ContentLengths,
        block: EncodedBlock<'_>,
    ) {
        let fingerprint = fingerprint(head, lengths.added);
        let is_repeated = std::mem::replace(&mut self.last_fingerprint, fingerprint) == fingerprint;
        if is_repeated
            && block.bytes.len() <= MAX_CACHED_BLOCK_BYTES
            && text_bytes(head) <= MAX_CACHED_TEXT_BYTES
        {
            self.cached = Some(Box::new(CachedHead::of(head, lengths, block)));
        }
    }
}

/// Validates a head, and returns its Content-Length.
fn check_head(head: &ResponseHead<'_>, size: BodySize) -> Result<Option<u64>, UserError> {
    if !(100..=599).contains(&head.status) {
        return Err(UserError::InvalidStatus);
    }
    if head.status == 101 {
        return Err(UserError::UpgradeNotPossible);
    }
    let framing = check_fields(head.fields)?;
    if framing.protocol.is_some() {
        // Only requests have it (RFC 8441 4, RFC 9220 3).
        return Err(UserError::InvalidFieldName);
    }
    if head.status < 200 && size != BodySize::Empty {
        return Err(UserError::InvalidStatus);
    }
    Ok(framing.length)
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
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyPlan {
    /// A Content-Length that the program did not give.
    pub added: Option<u64>,
    pub end: bool,
    pub next: SendState,
}

/// Decides how a final response ends. `given`: the program's Content-Length.
#[inline]
pub(super) fn response_plan(
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
        // RFC 9110 8.6: in a 304 only the length of the corresponding 200 response, none in a 204.
        let length = length.filter(|_| !matches!(status, 204 | 304));
        return Ok(BodyPlan {
            added: length.filter(|_| given.is_none()),
            end: true,
            next,
        });
    }
    let (length, end, next) = match (size, length) {
        (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        (BodySize::Empty, _) => (Some(0), true, SendState::Complete),
        (_, Some(n)) => (length, n == 0, SendState::Body(length)),
        (_, None) => (None, false, SendState::Body(None)),
    };
    Ok(BodyPlan {
        added: length.filter(|_| given.is_none()),
        end,
        next,
    })
}

/// The response to a client that waits before it sends its body.
pub(crate) const CONTINUE: ResponseHead<'static> = ResponseHead {
    status: 100,
    reason: b"",
    fields: &[],
};

/// Calls `write` with the head of a response of the connection itself, which has only a date.
pub(crate) fn with_own_head(
    status: u16,
    date: Option<DateSource>,
    write: impl FnOnce(&ResponseHead<'_>),
) {
    let date = date.map(|DateSource(date)| date());
    let date = date.as_ref().map(|date| Field {
        name: b"date",
        value: date,
    });
    write(&ResponseHead {
        status,
        reason: b"",
        fields: date.as_slice(),
    });
}

/// Encodes a validated head. `length`: a Content-Length that the program did not give.
pub(crate) fn encode_response(
    encoder: &mut impl FieldEncoder,
    head: &ResponseHead<'_>,
    length: Option<u64>,
    out: &mut Vec<u8>,
) {
    let hides_length = head.status == 204;
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
}
