//! The answer to a request beyond `--limit-concurrency`, which no application sees.
use towline_proto::{BodySize, Connection, Field, ResponseHead, StreamId, UserError};

use super::fields::DefaultFields;

/// RFC 9110 15.6.4: over --limit-concurrency.
pub fn overloaded(
    conn: &mut Connection,
    stream: StreamId,
    defaults: &mut DefaultFields,
) -> Result<(), UserError> {
    const BODY: &[u8] = b"Service Unavailable";
    defaults.refresh();
    let mut fields = vec![
        Field {
            name: b"content-type",
            value: b"text/plain; charset=utf-8",
        },
        Field {
            name: b"retry-after",
            value: b"1",
        },
    ];
    fields.extend(defaults.missing(|_| false));
    let head = ResponseHead {
        status: 503,
        reason: b"",
        fields: &fields,
    };
    conn.respond(stream, &head, BodySize::Known(BODY.len() as u64))?;
    let mut stream = conn.stream(stream)?;
    stream.write(BODY)?;
    stream.finish()
}
