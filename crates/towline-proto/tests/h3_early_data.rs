//! Requests in early data (RFC 8470): which are delivered before the handshake is complete, and how.

use std::sync::Arc;

use towline_proto::{BodySize, Event, Field, Limits, RequestHead, ResponseHead, StreamId};
use towline_testkit::h3::QuicPair;

const HOST: Field<'_> = Field {
    name: b"host",
    value: b"example.org",
};

fn pair() -> QuicPair {
    let mut pair = QuicPair::new(&Arc::new(Limits::client()), &Arc::new(Limits::server()));
    pair.server.begin_early_data();
    pair
}

fn head<'a>(method: &'a [u8], fields: &'a [Field<'a>]) -> RequestHead<'a> {
    RequestHead {
        method,
        target: b"/",
        fields,
    }
}

/// The next request: its method, its values of `early-data`, and whether it has no body.
fn next_request(pair: &mut QuicPair) -> Option<(StreamId, String, Vec<String>, bool)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    match pair.server.next_event()? {
        Event::Head { stream, head, end } => {
            let early = head.fields().filter(|field| field.name == b"early-data");
            let values = early.map(|field| text(field.value)).collect();
            Some((stream, text(head.method()), values, end))
        }
        event => panic!("{event:?}"),
    }
}

fn respond(pair: &mut QuicPair, stream: StreamId) {
    let head = ResponseHead {
        status: 204,
        reason: b"",
        fields: &[],
    };
    pair.server
        .respond(stream, &head, BodySize::Empty)
        .expect("open");
}

#[test]
fn safe_requests_are_marked_and_delivered_at_once() {
    let mut pair = pair();
    for method in [&b"GET"[..], b"HEAD", b"OPTIONS", b"TRACE"] {
        let request = head(method, &[HOST]);
        pair.client.request(&request, BodySize::Empty).unwrap();
        pair.run();
        let (stream, name, early, end) = next_request(&mut pair).expect("delivered");
        assert_eq!((name.as_bytes(), end), (method, true));
        assert_eq!(early, ["1"]);
        respond(&mut pair, stream);
    }
    assert_eq!(pair.server.early_data().delivered, 4);
    pair.server.end_early_data();
    // A block that was sent before: the head that is kept has no mark.
    pair.client
        .request(&head(b"TRACE", &[HOST]), BodySize::Empty)
        .unwrap();
    pair.run();
    assert_eq!(next_request(&mut pair).expect("delivered").2, [""; 0]);
    assert_eq!(pair.server.early_data().delivered, 4);
}

#[test]
fn a_block_that_was_seen_before_is_marked() {
    let mut pair = pair();
    pair.server.end_early_data();
    for is_early in [false, false, true, true, false, false] {
        if is_early {
            pair.server.begin_early_data();
        } else {
            pair.server.end_early_data();
        }
        let request = head(b"GET", &[HOST]);
        pair.client.request(&request, BodySize::Empty).unwrap();
        pair.run();
        let (stream, _, early, _) = next_request(&mut pair).expect("delivered");
        assert_eq!(early.len(), usize::from(is_early));
        respond(&mut pair, stream);
        pair.run();
    }
}

#[test]
fn the_mark_replaces_fields_of_the_client() {
    let named = |name, value| Field { name, value };
    let fields = [
        HOST,
        named(b"early-data", b"0"),
        named(b"x", b"y"),
        named(b"early-data", b"1"),
    ];
    let mut pair = pair();
    pair.client
        .request(&head(b"GET", &fields), BodySize::Empty)
        .unwrap();
    pair.run();
    assert_eq!(next_request(&mut pair).expect("delivered").2, ["1"]);
    // After the handshake it is of a server before this one.
    pair.server.end_early_data();
    pair.client
        .request(&head(b"POST", &fields), BodySize::Empty)
        .unwrap();
    pair.run();
    assert_eq!(next_request(&mut pair).expect("delivered").2, ["0", "1"]);
}

#[test]
fn other_requests_wait_for_the_handshake() {
    let mut pair = pair();
    pair.client
        .request(&head(b"POST", &[HOST]), BodySize::Empty)
        .unwrap();
    let upload = pair
        .client
        .request(&head(b"POST", &[HOST]), BodySize::Known(5))
        .unwrap();
    pair.client.stream(upload).unwrap().write(b"hello").unwrap();
    pair.client.stream(upload).unwrap().finish().unwrap();
    let get_with_body = head(b"GET", &[HOST]);
    let with_body = pair
        .client
        .request(&get_with_body, BodySize::Known(2))
        .unwrap();
    pair.client.stream(with_body).unwrap().write(b"go").unwrap();
    pair.client.stream(with_body).unwrap().finish().unwrap();
    pair.client
        .request(&head(b"get", &[HOST]), BodySize::Empty)
        .unwrap();
    pair.run();
    assert!(next_request(&mut pair).is_none());
    assert_eq!(pair.server.early_data().held, 4);
    pair.server.end_early_data();
    let mut seen = Vec::new();
    while let Some((stream, method, early, end)) = next_request(&mut pair) {
        assert!(early.is_empty());
        seen.push((stream.0, method, end));
    }
    seen.sort();
    let request = |id, method: &str, end| (id, method.to_owned(), end);
    let all = [
        request(0, "POST", true),
        request(4, "POST", false),
        request(8, "GET", false),
        request(12, "get", true),
    ];
    assert_eq!(seen, all);
    let early = pair.server.early_data();
    assert_eq!((early.delivered, early.held), (0, 4));
}

#[test]
fn a_safe_request_waits_for_its_end_or_the_handshake() {
    for end_comes in [true, false] {
        let mut pair = pair();
        let id = pair
            .client
            .request(&head(b"GET", &[HOST]), BodySize::Unknown)
            .unwrap();
        pair.run();
        assert!(next_request(&mut pair).is_none());
        if end_comes {
            pair.client.stream(id).unwrap().finish().unwrap();
            pair.run();
        } else {
            pair.server.end_early_data();
        }
        let (_, _, early, end) = next_request(&mut pair).expect("delivered");
        assert_eq!((early.len(), end), (usize::from(end_comes), end_comes));
    }
}

#[test]
fn a_held_request_can_be_reset_and_bounded() {
    let mut pair = pair();
    let id = pair
        .client
        .request(&head(b"POST", &[HOST]), BodySize::Unknown)
        .unwrap();
    pair.client
        .stream(id)
        .unwrap()
        .write(&vec![b'x'; 60_000])
        .unwrap();
    pair.run();
    assert!(next_request(&mut pair).is_none());
    pair.client.stream(id).unwrap().reset();
    pair.run();
    pair.server.end_early_data();
    assert!(next_request(&mut pair).is_none());
    assert!(pair.server.is_idle());
}

#[test]
fn a_connection_that_ends_delivers_nothing_that_waits() {
    let mut pair = pair();
    pair.client
        .request(&head(b"POST", &[HOST]), BodySize::Empty)
        .unwrap();
    pair.run();
    let now = pair.clock.now();
    pair.server
        .quic_closed(now, &towline_proto::QuicClose::ByTransport("lost"));
    pair.server.end_early_data();
    while let Some(event) = pair.server.next_event() {
        assert!(!matches!(event, Event::Head { .. }));
    }
}

/// A client in early data and a server after it: what the server gets is what the client sends.
fn early_client() -> QuicPair {
    let mut pair = pair();
    pair.server.end_early_data();
    pair.client.begin_early_data();
    pair
}

#[test]
fn a_client_sends_safe_requests_early_and_others_afterwards() {
    let mut pair = early_client();
    let upload = pair
        .client
        .request(&head(b"POST", &[HOST]), BodySize::Known(2))
        .unwrap();
    pair.client.stream(upload).unwrap().write(b"ab").unwrap();
    let get = pair
        .client
        .request(&head(b"GET", &[HOST]), BodySize::Empty)
        .unwrap();
    let with_body = pair
        .client
        .request(&head(b"GET", &[HOST]), BodySize::Known(1))
        .unwrap();
    pair.run();
    assert_eq!(next_request(&mut pair).expect("early").0, get);
    assert!(next_request(&mut pair).is_none());
    pair.client.end_early_data();
    pair.run();
    let mut later = Vec::new();
    while let Some((stream, ..)) = next_request(&mut pair) {
        later.push(stream);
    }
    later.sort();
    assert_eq!(later, [upload, with_body]);
    let was_early = |id| pair.client.was_sent_early(id);
    assert!(was_early(get));
    assert!(!was_early(upload) && !was_early(with_body));
}

#[test]
fn refused_early_data_was_not_early() {
    let mut pair = early_client();
    let get = pair
        .client
        .request(&head(b"GET", &[HOST]), BodySize::Empty)
        .unwrap();
    pair.run();
    assert!(pair.client.was_sent_early(get));
    pair.client.refuse_early_data();
    assert!(!pair.client.was_sent_early(get));
}

#[test]
fn requests_of_a_connection_that_fails_before_its_handshake_can_be_sent_again() {
    let mut pair = early_client();
    for method in [&b"GET"[..], b"POST"] {
        pair.client
            .request(&head(method, &[HOST]), BodySize::Empty)
            .unwrap();
    }
    pair.run();
    let now = pair.clock.now();
    pair.client
        .quic_closed(now, &towline_proto::QuicClose::ByTransport("lost"));
    let mut failed = 0;
    while let Some(event) = pair.client.next_event() {
        if let Event::Failed(_, error) = event {
            assert!(error.is_unprocessed(), "{error:?}");
            failed += 1;
        }
    }
    assert_eq!(failed, 2);
}
