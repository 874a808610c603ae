//! Two ends of `towline_proto::Connection`, driven as the epoll turn drives them.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

use towline_proto::{
    BodySize, BufferPool, Connection, Event, Field, Limits, Protocol, ProtocolPolicy, RequestHead,
    ResponseHead, StreamId, StreamRead,
};

use crate::{AUTHORITY, PATH, REQUEST_FIELDS, RESPONSE_FIELDS, Shape, Subject, Totals};

pub struct EndPair {
    client: Connection,
    server: Connection,
    buffers: BufferPool,
    now: Instant,
}

fn field<'a>((name, value): (&'a str, &'a str)) -> Field<'a> {
    Field {
        name: name.as_bytes(),
        value: value.as_bytes(),
    }
}

fn transfer(
    from: &mut Connection,
    to: &mut Connection,
    buffers: &mut BufferPool,
    now: Instant,
) -> bool {
    let mut slices = [IoSlice::new(&[]); 64];
    let count = from.send_slices(&mut slices);
    let space = to.recv_space(buffers);
    let mut n = 0;
    for slice in &slices[..count] {
        let take = slice.len().min(space.len() - n);
        space[n..n + take].copy_from_slice(&slice[..take]);
        n += take;
    }
    if n > 0 {
        to.received(now, n);
        from.sent(now, n);
    }
    n > 0
}

impl EndPair {
    pub fn new() -> Self {
        let now = Instant::now();
        Self {
            client: Connection::client_with_protocol(
                Arc::new(Limits::client()),
                Protocol::Http2,
                now,
            ),
            server: Connection::server_with_policy(
                Arc::new(Limits::server()),
                ProtocolPolicy::Http2,
                now,
            ),
            buffers: BufferPool::new(64 * 1024, 4),
            now,
        }
    }

    fn answer(&mut self, stream: StreamId, body: &[u8]) {
        let head = ResponseHead {
            status: 200,
            reason: b"",
            fields: &RESPONSE_FIELDS.map(field),
        };
        let size = BodySize::Known(body.len() as u64);
        self.server.respond(stream, &head, size).expect("open");
        let mut stream = self.server.stream(stream).expect("open");
        stream.write(body).expect("room");
        stream.finish().expect("complete");
    }
}

fn read(conn: &mut Connection, id: StreamId, totals: &mut Totals) {
    loop {
        match conn.stream(id).expect("open").read(64 * 1024) {
            StreamRead::Data(data) => totals.body_bytes += data.len(),
            StreamRead::Pending => return,
            StreamRead::End => {
                totals.responses += 1;
                return;
            }
            StreamRead::Failed => panic!("failed"),
        }
    }
}

impl Subject for EndPair {
    fn name(&self) -> &'static str {
        "towline"
    }

    fn exchange(&mut self, shape: Shape, totals: &mut Totals) {
        let fields = [("host", AUTHORITY), REQUEST_FIELDS[0], REQUEST_FIELDS[1]].map(field);
        let head = RequestHead {
            method: b"GET",
            target: PATH.as_bytes(),
            fields: &fields,
        };
        for _ in 0..shape.at_once {
            self.client.request(&head, BodySize::Empty).expect("room");
        }
        self.now = Instant::now();
        while transfer(
            &mut self.client,
            &mut self.server,
            &mut self.buffers,
            self.now,
        ) {
            while let Some(event) = self.server.next_event() {
                if let Event::Head { stream, head, .. } = event {
                    // `host` is a pseudo-header field for the others.
                    totals.fields += head.fields().count() - 1;
                    totals.requests += 1;
                    self.answer(stream, shape.body);
                }
            }
        }
        self.server.release(&mut self.buffers);
        while transfer(
            &mut self.server,
            &mut self.client,
            &mut self.buffers,
            self.now,
        ) {
            while let Some(event) = self.client.next_event() {
                match event {
                    Event::Head { stream, head, .. } => {
                        totals.fields += head.fields().count();
                        read(&mut self.client, stream, totals);
                    }
                    Event::Readable(stream) => read(&mut self.client, stream, totals),
                    event => panic!("{event:?}"),
                }
            }
        }
        self.client.release(&mut self.buffers);
    }
}
