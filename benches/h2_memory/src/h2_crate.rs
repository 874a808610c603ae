//! The `h2` crate without a runtime: polled by hand, over a pipe without locks, so that only its own work is
//! measured.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::RecvStream;
use h2::client::{self, ResponseFuture, SendRequest};
use h2::server;
use http::header::{CONTENT_LENGTH, HeaderName};
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{AUTHORITY, PATH, REQUEST_FIELDS, RESPONSE_FIELDS, Shape, Subject, Totals};

#[derive(Default)]
struct Channel {
    bytes: Vec<u8>,
    read: usize,
}

/// One end of two channels.
struct Pipe {
    incoming: Rc<RefCell<Channel>>,
    outgoing: Rc<RefCell<Channel>>,
}

impl AsyncRead for Pipe {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let way = &mut *self.incoming.borrow_mut();
        let n = to.remaining().min(way.bytes.len() - way.read);
        if n == 0 {
            return Poll::Pending;
        }
        to.put_slice(&way.bytes[way.read..way.read + n]);
        way.read += n;
        if way.read == way.bytes.len() {
            way.bytes.clear();
            way.read = 0;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.outgoing.borrow_mut().bytes.extend_from_slice(data);
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let way = &mut *self.outgoing.borrow_mut();
        let mut n = 0;
        for slice in slices {
            way.bytes.extend_from_slice(slice);
            n += slice.len();
        }
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

pub struct EndPair {
    asking: SendRequest<Bytes>,
    client: client::Connection<Pipe, Bytes>,
    server: server::Connection<Pipe, Bytes>,
    asked: Vec<ResponseFuture>,
    bodies: Vec<RecvStream>,
    request: Request<()>,
    response_fields: HeaderMap,
}

fn fields(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|&(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
}

impl EndPair {
    pub fn new() -> Self {
        let ways: [Rc<RefCell<Channel>>; 2] = Default::default();
        let [up, down] = ways;
        let ends = [(&down, &up), (&up, &down)].map(|(incoming, outgoing)| Pipe {
            incoming: Rc::clone(incoming),
            outgoing: Rc::clone(outgoing),
        });
        let [near, far] = ends;
        let cx = &mut Context::from_waker(Waker::noop());
        let mut opening = pin!(client::handshake(near));
        let mut accepting = pin!(server::handshake(far));
        let Poll::Ready(Ok((asking, client))) = opening.as_mut().poll(cx) else {
            panic!("no client");
        };
        let Poll::Ready(Ok(server)) = accepting.as_mut().poll(cx) else {
            panic!("no server");
        };
        let uri = format!("http://{AUTHORITY}{PATH}");
        let mut request = Request::new(());
        *request.uri_mut() = uri.parse::<Uri>().expect("a URI");
        *request.headers_mut() = fields(&REQUEST_FIELDS);
        Self {
            asking,
            client,
            server,
            asked: Vec::new(),
            bodies: Vec::new(),
            request,
            response_fields: fields(&RESPONSE_FIELDS),
        }
    }

    fn turn_client(&mut self) {
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut self.client).poll(cx).is_pending());
    }

    fn turn_server(&mut self, body: &'static [u8], totals: &mut Totals) {
        let cx = &mut Context::from_waker(Waker::noop());
        while let Poll::Ready(accepted) = self.server.poll_accept(cx) {
            let (request, mut answering) = accepted.expect("open").expect("good");
            totals.fields += request.headers().len();
            totals.requests += 1;
            let mut response = Response::new(());
            *response.headers_mut() = self.response_fields.clone();
            let length = HeaderValue::from(body.len());
            response.headers_mut().insert(CONTENT_LENGTH, length);
            let mut stream = answering.send_response(response, false).expect("open");
            stream
                .send_data(Bytes::from_static(body), true)
                .expect("open");
        }
    }

    fn read(&mut self, totals: &mut Totals) {
        let cx = &mut Context::from_waker(Waker::noop());
        for mut response in self.asked.drain(..) {
            let Poll::Ready(Ok(response)) = Pin::new(&mut response).poll(cx) else {
                panic!("no answer");
            };
            totals.fields += response.headers().len();
            self.bodies.push(response.into_body());
        }
        for mut body in self.bodies.drain(..) {
            while let Poll::Ready(Some(data)) = body.poll_data(cx) {
                let data = data.expect("good");
                totals.body_bytes += data.len();
                let _ = body.flow_control().release_capacity(data.len());
            }
            assert!(body.is_end_stream());
            totals.responses += 1;
        }
    }
}

impl Subject for EndPair {
    fn name(&self) -> &'static str {
        "h2"
    }

    fn exchange(&mut self, shape: Shape, totals: &mut Totals) {
        let cx = &mut Context::from_waker(Waker::noop());
        for _ in 0..shape.at_once {
            assert!(self.asking.poll_ready(cx).is_ready());
            let mut request = Request::new(());
            *request.uri_mut() = self.request.uri().clone();
            *request.headers_mut() = self.request.headers().clone();
            let (response, _) = self.asking.send_request(request, true).expect("room");
            self.asked.push(response);
        }
        self.turn_client();
        self.turn_server(shape.body, totals);
        self.turn_client();
        self.read(totals);
    }
}
