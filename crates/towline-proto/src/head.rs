//! Heads: as the program passes them, and as views into the receive buffer.

/// Protocol version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2
    Http2,
    /// HTTP/3
    Http3,
}

/// One field line: name as written or received, value without surrounding whitespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// A token; compare it ignoring case.
    pub name: &'a [u8],
    /// The value; bytes above 0x7f are allowed (obs-text).
    pub value: &'a [u8],
}

/// A request to send.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead<'a> {
    /// A token, case-sensitive.
    pub method: &'a [u8],
    /// In the form its method needs (RFC 9112 3.2); `Host` is the program's duty on every version.
    pub target: &'a [u8],
    /// Sent in this order and as written; missing framing fields are appended.
    pub fields: &'a [Field<'a>],
}

/// A response to send.
#[derive(Debug, Clone, Copy)]
pub struct ResponseHead<'a> {
    /// 100..=599.
    pub status: u16,
    /// Empty: the standard phrase.
    pub reason: &'a [u8],
    /// Sent in this order. Content-Length, Transfer-Encoding and Connection are honoured or refused, never
    /// repeated.
    pub fields: &'a [Field<'a>],
}

/// Position of one field line, as offsets from the start of the head.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FieldSpan {
    pub name: u32,
    pub name_len: u32,
    pub value: u32,
    pub value_len: u32,
}

/// Positions of the parts of the start line. A request has method and target, a response a reason (stored in
/// `target`) and a status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StartLine {
    /// HTTP/1: 0.
    pub method: u32,
    pub method_len: u32,
    pub target: u32,
    pub target_len: u32,
    /// `:protocol` of an extended CONNECT; length 0: none.
    pub protocol: u32,
    pub protocol_len: u32,
    pub status: u16,
    pub version: Version,
}

impl Default for StartLine {
    fn default() -> Self {
        Self {
            method: 0,
            method_len: 0,
            target: 0,
            target_len: 0,
            protocol: 0,
            protocol_len: 0,
            status: 0,
            version: Version::Http11,
        }
    }
}

/// A received head: a view into the receive buffer (HTTP/2: into the decoded block), valid until the next call on
/// the connection.
///
/// HTTP/2 heads look like those of HTTP/1: pseudo-fields are not among the [`fields`](Self::fields), `:authority`
/// is the first of them under the name `host`, and several `cookie` fields are joined into one.
#[derive(Debug, Clone, Copy)]
pub struct HeadRef<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) line: StartLine,
    pub(crate) fields: &'a [FieldSpan],
}

impl<'a> HeadRef<'a> {
    /// Request method; empty for a response.
    #[inline]
    pub fn method(&self) -> &'a [u8] {
        slice(self.bytes, self.line.method, self.line.method_len)
    }

    /// Request target as received; empty for a response. HTTP/2: `:path`, or `:authority` of a CONNECT
    /// that is not an extended one.
    #[inline]
    pub fn target(&self) -> &'a [u8] {
        if self.line.status == 0 {
            self.third()
        } else {
            &[]
        }
    }

    /// Response status; 0 for a request.
    pub fn status(&self) -> u16 {
        self.line.status
    }

    /// Response reason phrase as received, possibly empty.
    pub fn reason(&self) -> &'a [u8] {
        if self.line.status == 0 {
            &[]
        } else {
            self.third()
        }
    }

    /// `:protocol` of an extended CONNECT (RFC 8441), which requests a tunnel of that protocol to the target:
    /// `websocket`. `None` for any other request.
    pub fn protocol(&self) -> Option<&'a [u8]> {
        (self.line.protocol_len > 0)
            .then(|| slice(self.bytes, self.line.protocol, self.line.protocol_len))
    }

    /// Version of the message.
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// The field lines in order, names as received. In a request with an absolute-form target the
    /// value of `Host` is the target's authority (RFC 9112 3.2.2).
    pub fn fields(&self) -> Fields<'a> {
        Fields {
            bytes: self.bytes,
            spans: self.fields.iter(),
        }
    }

    /// Value of the first field of that name, ignoring case.
    pub fn field(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.fields()
            .find(|field| field.name.eq_ignore_ascii_case(name))
            .map(|field| field.value)
    }

    /// Copies the head, so that it outlives the receive buffer.
    pub fn to_owned_head(&self) -> OwnedHead {
        let mut owned = OwnedHead::default();
        owned.copy_from(self);
        owned
    }

    fn third(&self) -> &'a [u8] {
        slice(self.bytes, self.line.target, self.line.target_len)
    }
}

/// A received head that has been copied: two allocations, whatever its fields.
#[derive(Debug, Clone, Default)]
pub struct OwnedHead {
    bytes: Vec<u8>,
    line: StartLine,
    fields: Vec<FieldSpan>,
}

impl OwnedHead {
    /// The head as a [`HeadRef`].
    #[inline]
    pub fn view(&self) -> HeadRef<'_> {
        HeadRef {
            bytes: &self.bytes,
            line: self.line,
            fields: &self.fields,
        }
    }

    /// Copies another head into the memory of this one.
    pub fn copy_from(&mut self, head: &HeadRef<'_>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(head.bytes);
        self.line = head.line;
        self.fields.clear();
        self.fields.extend_from_slice(head.fields);
    }

    /// Sets a field, instead of those of this name that the peer has sent.
    pub fn set_field(&mut self, name: &[u8], value: &[u8]) {
        let Self { bytes, fields, .. } = self;
        fields.retain(|span| !slice(bytes, span.name, span.name_len).eq_ignore_ascii_case(name));
        fields.push(append_field(bytes, Field { name, value }));
    }
}

/// Appends a field to `bytes`. Returns where it is.
fn append_field(bytes: &mut Vec<u8>, field: Field<'_>) -> FieldSpan {
    let name = bytes.len() as u32;
    bytes.extend_from_slice(field.name);
    let value = bytes.len() as u32;
    bytes.extend_from_slice(field.value);
    FieldSpan {
        name,
        name_len: field.name.len() as u32,
        value,
        value_len: field.value.len() as u32,
    }
}

fn slice(bytes: &[u8], start: u32, len: u32) -> &[u8] {
    &bytes[start as usize..start as usize + len as usize]
}

/// Iterator over field lines.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    spans: std::slice::Iter<'a, FieldSpan>,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8], spans: &'a [FieldSpan]) -> Self {
        Self {
            bytes,
            spans: spans.iter(),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Field<'a>;

    #[inline]
    fn next(&mut self) -> Option<Field<'a>> {
        let span = self.spans.next()?;
        Some(Field {
            name: slice(self.bytes, span.name, span.name_len),
            value: slice(self.bytes, span.value, span.value_len),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.spans.size_hint()
    }
}

impl ExactSizeIterator for Fields<'_> {}

/// Fields about framing, routing, authentication or the format of the content are not allowed in a trailer
/// section (RFC 9110 6.5.1).
pub(crate) fn is_forbidden_trailer(name: &[u8]) -> bool {
    const FORBIDDEN: [&[u8]; 20] = [
        b"content-length",
        b"transfer-encoding",
        b"host",
        b"connection",
        b"keep-alive",
        b"upgrade",
        b"te",
        b"trailer",
        b"expect",
        b"max-forwards",
        b"range",
        b"authorization",
        b"proxy-authorization",
        b"cookie",
        b"set-cookie",
        b"content-encoding",
        b"content-type",
        b"content-range",
        b"proxy-authenticate",
        b"www-authenticate",
    ];
    FORBIDDEN
        .iter()
        .any(|forbidden| name.eq_ignore_ascii_case(forbidden))
}

/// Fields copied out of the receive buffer.
#[derive(Debug, Clone, Default)]
pub(crate) struct OwnedFields {
    bytes: Vec<u8>,
    spans: Vec<FieldSpan>,
}

impl OwnedFields {
    pub fn of<'a>(fields: impl Iterator<Item = Field<'a>>) -> Self {
        let mut owned = Self::default();
        for field in fields {
            let span = append_field(&mut owned.bytes, field);
            owned.spans.push(span);
        }
        owned
    }

    pub fn fields(&self) -> Fields<'_> {
        Fields::new(&self.bytes, &self.spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_set_replaces_those_of_its_name() {
        let wire = b"X-Id: 1\r\nHost: a\r\nx-id: 2\r\n";
        let span = |name, name_len, value| FieldSpan {
            name,
            name_len,
            value,
            value_len: 1,
        };
        let received = HeadRef {
            bytes: wire,
            line: StartLine::default(),
            fields: &[span(0, 4, 6), span(9, 4, 15), span(18, 4, 24)],
        };
        let mut owned = received.to_owned_head();
        owned.set_field(b"x-ID", b"33");
        let fields = |head: &OwnedHead| -> Vec<(Vec<u8>, Vec<u8>)> {
            let fields = head.view().fields();
            fields
                .map(|field| (field.name.into(), field.value.into()))
                .collect()
        };
        assert_eq!(
            fields(&owned),
            [
                (b"Host".into(), b"a".into()),
                (b"x-ID".into(), b"33".into())
            ]
        );
        owned.copy_from(&received);
        assert_eq!(fields(&owned).len(), 3);
    }
}
