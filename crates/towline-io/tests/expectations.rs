//! `Expect: 100-continue` (RFC 9110 10.1.1) in the asynchronous and the blocking client.

use std::io::Read;
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::MAX_WAIT;
use crate::support::calls::{DriverHarness, Scripted, head, ok, request, route, send};
use bytes::Bytes;
use towline_io::client::{
    BlockingClient, BlockingConfig, Body, CallEvent, CallOptions, OutgoingRequest, Route,
    WaitPolicy, WriteOutcome,
};

const BODY: &[u8] = b"expected body";
const NO_BODY_FOR: Duration = Duration::from_millis(100);

/// Reaction of the server to the head.
#[derive(Clone, Copy, PartialEq)]
enum Reaction {
    Continues,
    Refuses,
    Waits,
}

const REACTIONS: [Reaction; 3] = [Reaction::Continues, Reaction::Refuses, Reaction::Waits];

fn server(reaction: Reaction) -> Scripted {
    Scripted::new(move |_, mut stream| {
        while head(&mut stream).is_some() {
            assert_no_body(&mut stream);
            match reaction {
                Reaction::Continues => send(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n"),
                Reaction::Waits => {}
                Reaction::Refuses => {
                    send(&mut stream, "HTTP/1.1 417 No\r\ncontent-length: 0\r\n\r\n");
                    assert_no_body(&mut stream);
                    continue;
                }
            }
            let mut body = [0; BODY.len()];
            stream.read_exact(&mut body).unwrap();
            assert_eq!(body, BODY);
            send(&mut stream, &ok("thanks"));
        }
    })
}

/// Asserts that no byte of the body is sent before `100 Continue`.
fn assert_no_body(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(NO_BODY_FOR)).unwrap();
    let mut byte = [0];
    assert!(
        !matches!(stream.peek(&mut byte), Ok(1)),
        "the body was sent without 100 Continue"
    );
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
}

fn put(route: &Arc<Route>, body: Body) -> OutgoingRequest {
    let mut put = request(route, "PUT", "/", body);
    Arc::make_mut(&mut put.head).push(b"expect", b"100-continue");
    put
}

fn bodies() -> [Body; 2] {
    [
        Body::Bytes(Bytes::from_static(BODY)),
        Body::Known(BODY.len() as u64),
    ]
}

fn expected(reaction: Reaction) -> u16 {
    if reaction == Reaction::Refuses {
        417
    } else {
        200
    }
}

/// Repeats each case until it passes once: a busy machine may add a second, but an unneeded wait would occur
/// each time.
fn once_undisturbed(claim: impl Fn(Reaction, Body)) {
    let start = Instant::now();
    for reaction in REACTIONS {
        for number in 0..bodies().len() {
            let attempt = || {
                let [bytes, known] = bodies();
                claim(reaction, if number == 0 { bytes } else { known });
            };
            while let Err(failure) = catch_unwind(AssertUnwindSafe(attempt)) {
                if start.elapsed() > 2 * MAX_WAIT {
                    resume_unwind(failure);
                }
            }
        }
    }
}

#[test]
fn a_body_waits_for_the_response_to_expect() {
    once_undisturbed(|reaction, body| {
        let server = server(reaction);
        let route = route(server.addr);
        let start = Instant::now();
        let mut harness = DriverHarness::new(|_| {});
        let call = harness.begin(put(&route, body));
        let status = loop {
            match harness.event(call) {
                CallEvent::Head { .. } => {
                    break harness.driver.take_head(call).unwrap().view().status();
                }
                CallEvent::Writable => {
                    harness
                        .driver
                        .write(call, Bytes::from_static(BODY))
                        .unwrap();
                    harness.driver.finish(call, &[]).unwrap();
                }
                CallEvent::Failed(error) => panic!("{error:?}"),
                _ => assert!(reaction == Reaction::Continues),
            }
        };
        assert_eq!(status, expected(reaction));
        assert_eq!(
            start.elapsed() > Duration::from_secs(1),
            reaction == Reaction::Waits
        );
        harness.driver.cancel(call);
        // The connection of an incomplete request is not kept.
        let status = harness.driver.status();
        assert_eq!(status.idle, usize::from(reaction != Reaction::Refuses));
        assert_eq!(status.active, 0);
    });
}

#[test]
fn a_blocking_body_waits_for_the_response_to_expect() {
    once_undisturbed(|reaction, body| {
        let server = server(reaction);
        let route = route(server.addr);
        let start = Instant::now();
        let client = BlockingClient::new(BlockingConfig::default());
        let mut never = || false;
        let mut policy = WaitPolicy::new(&mut never, None);
        let streamed = body.is_streamed();
        let options = CallOptions::default();
        let mut call = client
            .begin(put(&route, body), options, &mut policy)
            .unwrap();
        if streamed {
            let written = call.write(Bytes::from_static(BODY), &mut policy).unwrap();
            assert_eq!(
                written == WriteOutcome::Responded,
                reaction == Reaction::Refuses
            );
            call.finish(&[], &mut policy).unwrap();
        }
        let head = call.await_head(&mut policy).unwrap();
        assert_eq!(head.view().status(), expected(reaction));
        assert_eq!(
            start.elapsed() > Duration::from_secs(1),
            reaction == Reaction::Waits
        );
        drop(call);
        let status = client.status();
        assert_eq!(status.idle, usize::from(reaction != Reaction::Refuses));
        assert_eq!(status.active, 0);
    });
}
