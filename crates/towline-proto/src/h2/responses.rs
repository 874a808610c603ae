//! Responses, sent.
//!
//! Most of a connection's heads are one head over and over, but for the date, which stands for a second. Such a head
//! is checked and compressed once: while the encoder would make of the same fields the same block
//! ([`changes`](super::hpack::Encoder::changes)), the one that it made is sent again as it stands.

use crate::body::Method;
use crate::{BodySize, ErrorCode, Field, ResponseHead, Side, StreamId, UserError};

use super::Connection;
use super::encode;
use super::frame::{self, HEADER_BYTES};
use super::rules::Fault;
use super::send::{MOST_BLOCK_BYTES, check_fields};
use super::stream::{End, Notices, Sending, Tunnel};
use super::streams::At;

/// A head of more text is made anew each time: what is remembered stays with a connection at rest.
const MOST_TEXT_BYTES: usize = 1024;

/// The head that the last responses had.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    /// The [`outline`] of the head before. One that comes once is not worth being remembered.
    before: u64,
    known: Option<Box<Known>>,
}

/// A head that was good, and what it became.
#[derive(Debug)]
struct Known {
    status: u16,
    /// Of each name and its value.
    lens: Box<[(u16, u16)]>,
    /// Names and values behind one another.
    text: Box<[u8]>,
    lengths: Lengths,
    changes: u32,
    block: Box<[u8]>,
}

/// Whether a head is the known one, and the Content-Length among its fields.
#[derive(Debug, Clone, Copy)]
enum Seen {
    Anew(Option<u64>),
    Again(Option<u64>),
}

/// The Content-Length of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lengths {
    /// By the program, among its fields.
    given: Option<u64>,
    /// By us, behind them.
    added: Option<u64>,
}

impl Known {
    fn of(head: &ResponseHead<'_>, lengths: Lengths, changes: u32, block: &[u8]) -> Self {
        let lens = |field: &Field<'_>| (field.name.len() as u16, field.value.len() as u16);
        let texts = head.fields.iter().flat_map(|f| [f.name, f.value]);
        Self {
            status: head.status,
            lens: head.fields.iter().map(lens).collect(),
            text: texts.flatten().copied().collect(),
            lengths,
            changes,
            block: block.into(),
        }
    }

    #[inline]
    fn is(&self, head: &ResponseHead<'_>) -> bool {
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

impl Repeated {
    /// Whether the head is the known one.
    #[inline]
    fn seen(&self, head: &ResponseHead<'_>) -> Option<Seen> {
        let known = self.known.as_ref()?;
        known.is(head).then_some(Seen::Again(known.lengths.given))
    }

    /// A good head that was made anew, as a block that would be the same the next time.
    fn note(&mut self, head: &ResponseHead<'_>, lengths: Lengths, changes: u32, block: &[u8]) {
        let outline = outline(head, lengths.added);
        let came_before = std::mem::replace(&mut self.before, outline) == outline;
        if came_before && block.len() <= MOST_BLOCK_BYTES && text_bytes(head) <= MOST_TEXT_BYTES {
            self.known = Some(Box::new(Known::of(head, lengths, changes, block)));
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
        let at = self.find(id)?;
        let stream = self.streams.at(at);
        match stream.sending {
            Sending::Head => {}
            Sending::Failed => return Err(UserError::StreamFailed),
            _ => return Err(UserError::WrongOrder),
        }
        if let Some(again) = self.repeated.seen(head) {
            return self.respond_finally(at, head, size, again);
        }
        if !(100..=599).contains(&head.status) {
            return Err(UserError::InvalidStatus);
        }
        if head.status == 101 {
            return Err(UserError::UpgradeNotPossible);
        }
        let noted = check_fields(head.fields)?;
        if noted.protocol.is_some() {
            // A part of requests alone (RFC 8441 4).
            return Err(UserError::InvalidFieldName);
        }
        if head.status < 200 {
            if size != BodySize::Empty {
                return Err(UserError::InvalidStatus);
            }
            let stream = self.streams.at_mut(at);
            stream.awaits_continue &= head.status != 100;
            let id = stream.id;
            self.write_response(id, head, None, false);
            return Ok(());
        }
        self.respond_finally(at, head, size, Seen::Anew(noted.length))
    }

    fn respond_finally(
        &mut self,
        at: At,
        head: &ResponseHead<'_>,
        size: BodySize,
        seen: Seen,
    ) -> Result<(), UserError> {
        let (Seen::Again(given) | Seen::Anew(given)) = seen;
        let stream = self.streams.at_mut(at);
        let is_good = (200..300).contains(&head.status);
        if stream.tunnel == Tunnel::Asked && is_good {
            if given.is_some() {
                return Err(UserError::InvalidContentLength);
            }
            stream.tunnel = Tunnel::Open;
            stream.sending = Sending::Body(None);
            let id = stream.id;
            self.write_response(id, head, None, false);
            self.notice(at, Notices::SWITCHED);
            return Ok(());
        }
        let plan = response_plan(stream.method, head.status, size, given)?;
        stream.tunnel = Tunnel::No;
        stream.awaits_continue = false;
        stream.sending = plan.next;
        if plan.end {
            stream.outbox.end = End::Sent;
        }
        let id = stream.id;
        let hides_length = head.status == 204;
        let added = plan.length.filter(|_| given.is_none() && !hides_length);
        if !(matches!(seen, Seen::Again(_)) && self.write_again(id, added, plan.end)) {
            self.write_anew(id, head, Lengths { given, added }, plan.end);
        }
        self.check_over(at);
        Ok(())
    }

    /// The known head, with this Content-Length behind its fields; false: it would be another block now.
    fn write_again(&mut self, id: u32, added: Option<u64>, end: bool) -> bool {
        let changes = self.encoder.changes();
        let Some(known) = &self.repeated.known else {
            return false;
        };
        if known.lengths.added != added || Some(known.changes) != changes {
            return false;
        }
        let start = self.send.end();
        let written = self
            .send
            .fill(|out| frame::headers(out, id, end, &known.block));
        self.tail = (!end).then_some((id, start));
        self.provoked += written;
        true
    }

    fn write_anew(&mut self, id: u32, head: &ResponseHead<'_>, lengths: Lengths, end: bool) {
        let changes = self.encoder.changes();
        let start = self.write_response(id, head, lengths.added, end);
        // Otherwise it becomes something else the next time: what was added to the table stands there then.
        if let Some(changes) = changes.filter(|_| self.encoder.changes() == changes) {
            let block = &self.send.from(start)[HEADER_BYTES..];
            self.repeated.note(head, lengths, changes, block);
        }
    }

    /// A checked head. `length`: a Content-Length that the program did not give. Where its first frame begins in the
    /// send buffer.
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

    /// Answers a request that the program never sees.
    pub(super) fn answer(&mut self, id: u32, status: u16, end: bool) -> Result<(), Fault> {
        let head = ResponseHead {
            status,
            reason: b"",
            fields: &[],
        };
        self.write_response(id, &head, Some(0), true);
        if !end {
            self.write_control(|out| frame::reset(out, id, ErrorCode::NO_ERROR));
            self.forget(id);
        }
        self.charge_reset()
    }

    /// More of a body has come than is allowed: 413 where an answer is still due.
    pub(super) fn refuse_body(&mut self, at: At) -> Result<(), Fault> {
        let fault = super::rules::BODY;
        let stream = self.streams.at(at);
        if self.side == Side::Client || stream.sending != Sending::Head {
            return self.break_stream(at, fault);
        }
        let id = stream.id;
        let head = ResponseHead {
            status: 413,
            reason: b"",
            fields: &[],
        };
        self.write_response(id, &head, Some(0), true);
        let fault = Fault {
            code: ErrorCode::NO_ERROR,
            ..fault
        };
        self.break_stream(at, fault)
    }

    pub(super) fn send_continue(&mut self, at: At) {
        let stream = self.streams.at_mut(at);
        if !std::mem::take(&mut stream.awaits_continue) || stream.sending != Sending::Head {
            return;
        }
        let id = stream.id;
        let head = ResponseHead {
            status: 100,
            reason: b"",
            fields: &[],
        };
        self.write_response(id, &head, None, false);
        self.watch_awaited_body(at);
    }
}

/// Heads that differ in this are not the same; what it takes is less than to compare them.
fn outline(head: &ResponseHead<'_>, added: Option<u64>) -> u64 {
    let start = u64::from(head.status) << 32 | added.map_or(0, |length| length.wrapping_add(1));
    head.fields.iter().fold(start, |outline, field| {
        let lens = (field.name.len() as u64) << 16 | field.value.len() as u64;
        outline.wrapping_mul(31).wrapping_add(lens)
    })
}

fn text_bytes(head: &ResponseHead<'_>) -> usize {
    let bytes = |field: &Field<'_>| field.name.len() + field.value.len();
    head.fields.iter().map(bytes).sum()
}

/// How a response is sent.
struct Plan {
    length: Option<u64>,
    end: bool,
    next: Sending,
}

fn response_plan(
    method: Method,
    status: u16,
    size: BodySize,
    given: Option<u64>,
) -> Result<Plan, UserError> {
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
            BodySize::Empty => Sending::Complete,
            _ => Sending::Swallow,
        };
        // RFC 9110 8.6: in a 304 only the length of the response it stands for.
        let length = length.filter(|_| status != 304);
        return Ok(Plan {
            length,
            end: true,
            next,
        });
    }
    Ok(match (size, length) {
        (BodySize::Empty, Some(1..)) => return Err(UserError::InvalidContentLength),
        (BodySize::Empty, _) => Plan {
            length: Some(0),
            end: true,
            next: Sending::Complete,
        },
        (_, Some(n)) => Plan {
            length,
            end: n == 0,
            next: Sending::Body(Some(n)),
        },
        (_, None) => Plan {
            length: None,
            end: false,
            next: Sending::Body(None),
        },
    })
}
