//! One end of a connection under test: wire text in, an event log and wire text out, on a virtual clock.
#![allow(dead_code, reason = "each test crate uses its part")]

use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{
    BodySize, BufferPool, Connection, Event, Field, Limits, RequestHead, ResponseHead, StreamId,
    StreamRead,
};

pub struct End {
    pub conn: Connection,
    pub buffers: BufferPool,
    pub now: Instant,
}

impl End {
    pub fn server() -> Self {
        Self::server_with(Limits::server())
    }

    pub fn server_with(limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            conn: Connection::server(Arc::new(limits), now),
            buffers: BufferPool::new(64 * 1024, 4),
            now,
        }
    }

    pub fn client() -> Self {
        Self::client_with(Limits::client())
    }

    pub fn client_with(limits: Limits) -> Self {
        let now = Instant::now();
        Self {
            conn: Connection::client(Arc::new(limits), now),
            buffers: BufferPool::new(64 * 1024, 4),
            now,
        }
    }

    /// Feeds `bytes` to the connection as far as it accepts them; returns their number.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let space = self.conn.recv_space(&mut self.buffers);
            let n = space.len().min(bytes.len() - at);
            if n == 0 {
                break;
            }
            space[..n].copy_from_slice(&bytes[at..at + n]);
            self.conn.received(self.now, n);
            at += n;
        }
        at
    }

    pub fn eof(&mut self) {
        self.conn.received_eof(self.now);
    }

    pub fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
        self.conn.handle_timeout(self.now);
    }

    /// All pending events, as text.
    pub fn events(&mut self) -> Vec<String> {
        let mut log = Vec::new();
        while let Some(event) = self.conn.next_event() {
            log.push(describe(&event));
        }
        log
    }

    /// Everything to be sent, as text.
    pub fn sent(&mut self) -> String {
        let mut text = Vec::new();
        while self.conn.pending_bytes() > 0 {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.conn.send_slices(&mut slices);
            let before = text.len();
            slices[..count]
                .iter()
                .for_each(|slice| text.extend_from_slice(slice));
            self.conn.sent(self.now, text.len() - before);
        }
        String::from_utf8(text).expect("text")
    }

    /// Reads the body of `id` as far as possible: the bytes, and how reading ended.
    pub fn read(&mut self, id: u64) -> (String, &'static str) {
        let mut stream = self.conn.stream(StreamId(id)).expect("an open stream");
        let mut body = Vec::new();
        let end = loop {
            match stream.read(usize::MAX) {
                StreamRead::Data(data) => body.extend_from_slice(data),
                StreamRead::Pending => break "pending",
                StreamRead::End => break "end",
                StreamRead::Failed => break "failed",
            }
        };
        (String::from_utf8(body).expect("text"), end)
    }

    pub fn respond(&mut self, id: u64, status: u16, fields: &[(&str, &str)], size: BodySize) {
        self.try_respond(id, status, fields, size)
            .expect("a good response");
    }

    pub fn try_respond(
        &mut self,
        id: u64,
        status: u16,
        fields: &[(&str, &str)],
        size: BodySize,
    ) -> Result<(), towline_proto::UserError> {
        let fields = as_fields(fields);
        let head = ResponseHead {
            status,
            reason: b"",
            fields: &fields,
        };
        self.conn.respond(StreamId(id), &head, size)
    }

    pub fn request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        size: BodySize,
    ) -> Result<StreamId, towline_proto::UserError> {
        let fields = as_fields(fields);
        let head = RequestHead {
            method: method.as_bytes(),
            target: target.as_bytes(),
            fields: &fields,
        };
        self.conn.request(&head, size)
    }

    /// Responds with a short body.
    pub fn send_response(&mut self, id: u64) {
        self.respond(id, 200, &[], BodySize::Known(2));
        let mut stream = self.conn.stream(StreamId(id)).expect("an open stream");
        stream.write(b"ok").expect("room");
        stream.finish().expect("complete");
    }
}

fn as_fields<'a>(fields: &[(&'a str, &'a str)]) -> Vec<Field<'a>> {
    fields
        .iter()
        .map(|(name, value)| Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
        })
        .collect()
}

fn describe(event: &Event<'_>) -> String {
    match event {
        Event::Head { head, end, .. } if head.status() == 0 => format!(
            "{} {}{}",
            String::from_utf8_lossy(head.method()),
            String::from_utf8_lossy(head.target()),
            if *end { " end" } else { "" }
        ),
        Event::Head { head, end, .. } => {
            format!("{}{}", head.status(), if *end { " end" } else { "" })
        }
        Event::Informational { head, .. } => format!("interim {}", head.status()),
        Event::Readable(_) => "readable".into(),
        Event::Writable(_) => "writable".into(),
        Event::HalfClosed(_) => "half closed".into(),
        Event::Switched { .. } => "switched".into(),
        Event::Failed(_, error) => format!("failed: {error}"),
        Event::GoingAway { .. } => "going away".into(),
        Event::Closed(error) => format!("closed: {error}"),
    }
}
