//! Answers that the server gives without the application.

use std::borrow::Cow;

use towline_proto::{BodySize, Field, ResponseHead, StreamId, UserError};

use super::super::files::{AnswerField, FileAnswer, FileBody};
use super::super::metrics::CONTENT_TYPE;
use super::{Payload, Site, Visit};
use crate::conn::Peer;

/// A whole answer, ready to send.
#[derive(Debug)]
pub struct OwnAnswer {
    status: u16,
    fields: Vec<AnswerField>,
    content_length: Option<u64>,
    body: OwnBody,
}

#[derive(Debug)]
enum OwnBody {
    Text(Cow<'static, str>),
    File(FileBody),
}

impl From<FileAnswer> for OwnAnswer {
    fn from(answer: FileAnswer) -> Self {
        Self {
            status: answer.status,
            fields: answer.fields,
            content_length: answer.content_length,
            body: OwnBody::File(answer.body),
        }
    }
}

pub(super) fn metrics_page(method: &[u8], page: impl FnOnce() -> String) -> OwnAnswer {
    if method != b"GET" && method != b"HEAD" {
        let mut answer = plain(405, "Method Not Allowed\n");
        answer.fields.push((b"allow", Cow::Borrowed(b"GET, HEAD")));
        return answer;
    }
    let page = page();
    OwnAnswer {
        status: 200,
        fields: vec![
            (b"content-type", Cow::Borrowed(CONTENT_TYPE.as_bytes())),
            (b"cache-control", Cow::Borrowed(b"no-store")),
        ],
        content_length: Some(page.len() as u64),
        body: OwnBody::Text(page.into()),
    }
}

pub(super) fn not_found() -> OwnAnswer {
    plain(404, "Not Found\n")
}

fn plain(status: u16, text: &'static str) -> OwnAnswer {
    OwnAnswer {
        status,
        fields: vec![(b"content-type", Cow::Borrowed(b"text/plain; charset=utf-8"))],
        content_length: Some(text.len() as u64),
        body: OwnBody::Text(text.into()),
    }
}

impl OwnAnswer {
    /// RFC 9110 15.6.4: a request over `--limit-concurrency`.
    pub fn overloaded() -> Self {
        let mut answer = plain(503, "Service Unavailable");
        answer.fields.push((b"retry-after", Cow::Borrowed(b"1")));
        answer
    }

    /// RFC 9110 15.6.2: a method that the server does not support for any resource.
    pub fn not_implemented() -> Self {
        plain(501, "Not Implemented")
    }

    /// A request that breaks a rule, which the answer names.
    pub fn refused(
        status: u16,
        rule: &'static str,
        fields: impl IntoIterator<Item = (&'static [u8], Vec<u8>)>,
    ) -> Self {
        let mut answer = plain(status, rule);
        let fields = fields.into_iter();
        answer
            .fields
            .extend(fields.map(|(name, value)| (name, Cow::Owned(value))));
        answer
    }

    pub fn status(&self) -> u16 {
        self.status
    }

    /// Sends all of it and ends the exchange's message; a file goes out as the connection takes it.
    /// `defaults`: the fields that the server adds to every response.
    pub fn send<'a, S>(
        self,
        site: &mut Site,
        visit: &mut Visit,
        peer: &mut Peer<S>,
        id: StreamId,
        defaults: impl IntoIterator<Item = Field<'a>>,
    ) -> Result<(), UserError> {
        let own = self
            .fields
            .iter()
            .map(|(name, value)| Field { name, value });
        let mut fields: Vec<Field<'_>> = own.collect();
        // Shortened to the life of our own fields.
        fields.extend(
            defaults
                .into_iter()
                .map(|Field { name, value }| Field { name, value }),
        );
        let length = self.content_length.map_or(BodySize::Empty, BodySize::Known);
        let head = ResponseHead {
            status: self.status,
            reason: b"",
            fields: &fields,
        };
        let payload = match &self.body {
            OwnBody::Text(text) => Payload::Whole(text.as_bytes()),
            // Files have their own way to be compressed: the siblings.
            OwnBody::File(_) => Payload::File,
        };
        site.respond(visit, &mut peer.conn, (id, &head, length), payload)?;
        match self.body {
            OwnBody::File(FileBody::File {
                file,
                offset,
                bytes,
            }) => {
                site.count_body(visit, bytes);
                return peer.send_file(id, file, offset, bytes);
            }
            OwnBody::File(FileBody::Text(text)) => send_text(site, visit, peer, id, text)?,
            OwnBody::Text(text) => send_text(site, visit, peer, id, &text)?,
            OwnBody::File(FileBody::Empty) => {}
        }
        if matches!(length, BodySize::Empty) {
            return Ok(());
        }
        site.finish(visit, &mut peer.conn.stream(id)?, &[])
    }
}

fn send_text<S>(
    site: &Site,
    visit: &mut Visit,
    peer: &mut Peer<S>,
    id: StreamId,
    text: &str,
) -> Result<(), UserError> {
    if visit.is_head {
        return Ok(());
    }
    site.write(visit, &mut peer.conn.stream(id)?, text.as_bytes())
}
