//! The event log: the events of a connection, one line each, in text that does not depend on how the wire was
//! cut.

use std::fmt::Write;

use towline_proto::{HeadRef, Side, StreamId, Version};

use crate::notation::escape;

/// Consecutive body bytes are one line; `Readable` and `Writable` are not logged, because they depend on how the
/// bytes were cut.
#[derive(Clone, Debug, Default)]
pub struct Log {
    text: String,
    body: Option<(StreamId, Vec<u8>)>,
}

impl Log {
    /// A line of its own. Ends the body line that may be open.
    pub fn line(&mut self, line: &str) {
        self.end_body();
        self.text.push_str(line);
        self.text.push('\n');
    }

    pub fn head(&mut self, side: Side, stream: StreamId, head: &HeadRef<'_>, end: bool) {
        let end = if end { " end" } else { "" };
        match side {
            Side::Server => {
                let (method, target) = (escape(head.method()), escape(head.target()));
                self.line(&format!(
                    "request {} {method} {target} {}{end}",
                    stream.0,
                    version(head.version())
                ));
                if let Some(protocol) = head.protocol() {
                    self.field(b":protocol", protocol);
                }
            }
            Side::Client => self.status_line("response", stream, head, end),
        }
        self.fields(head);
    }

    pub fn interim(&mut self, stream: StreamId, head: &HeadRef<'_>) {
        self.status_line("interim", stream, head, "");
        self.fields(head);
    }

    fn status_line(&mut self, kind: &str, stream: StreamId, head: &HeadRef<'_>, end: &str) {
        let reason = escape(head.reason());
        let space = if reason.is_empty() { "" } else { " " };
        let version = version(head.version());
        self.line(&format!(
            "{kind} {} {}{space}{reason} {version}{end}",
            stream.0,
            head.status()
        ));
    }

    fn fields(&mut self, head: &HeadRef<'_>) {
        for field in head.fields() {
            self.field(field.name, field.value);
        }
    }

    pub fn field(&mut self, name: &[u8], value: &[u8]) {
        self.line(&format!("  {}: {}", escape(name), escape(value)));
    }

    /// Body bytes; consecutive ones of one stream become one line.
    pub fn body(&mut self, stream: StreamId, data: &[u8]) {
        match &mut self.body {
            Some((open, bytes)) if *open == stream => bytes.extend_from_slice(data),
            _ => {
                self.end_body();
                self.body = Some((stream, data.to_vec()));
            }
        }
    }

    fn end_body(&mut self) {
        if let Some((stream, bytes)) = self.body.take() {
            // Writing to a `String` cannot fail.
            let _ = writeln!(self.text, "body {} {}", stream.0, escape(&bytes));
        }
    }

    /// The whole log. A body line that is still open shows what has arrived of it.
    pub fn text(&self) -> String {
        let mut log = self.clone();
        log.end_body();
        log.text
            .lines()
            .map(str::trim_end)
            .flat_map(|line| [line, "\n"])
            .collect()
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2",
        Version::Http3 => "HTTP/3",
    }
}
