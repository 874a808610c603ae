//! The choice of the protocol of a connection.

use std::sync::Arc;
use std::time::Instant;

use towline_proto::{BufferPool, Connection, Event, Limits, Protocol, ProtocolPolicy, UserError};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn feed(conn: &mut Connection, bytes: &[u8], now: Instant) {
    let mut buffers = BufferPool::new(64 * 1024, 1);
    conn.recv_space(&mut buffers)[..bytes.len()].copy_from_slice(bytes);
    conn.received(now, bytes.len());
}

fn server(policy: ProtocolPolicy, now: Instant) -> Connection {
    Connection::server_with_policy(Arc::new(Limits::server()), policy, now)
}

#[test]
fn the_first_bytes_choose_the_protocol_at_every_cut() {
    let now = Instant::now();
    for cut in 1..PREFACE.len() {
        let mut conn = server(ProtocolPolicy::Either, now);
        assert_eq!(conn.protocol(), None);
        feed(&mut conn, &PREFACE[..cut], now);
        assert_eq!(conn.protocol(), None, "{cut}");
        assert!(!conn.has_events());
        assert!(conn.next_event().is_none());
        feed(&mut conn, &PREFACE[cut..], now);
        assert_eq!(conn.protocol(), Some(Protocol::Http2));
    }
    for cut in 1..REQUEST.len() {
        let mut conn = server(ProtocolPolicy::Either, now);
        feed(&mut conn, &REQUEST[..cut], now);
        assert_eq!(conn.protocol(), Some(Protocol::Http1), "{cut}");
        feed(&mut conn, &REQUEST[cut..], now);
        assert!(matches!(conn.next_event(), Some(Event::Head { .. })));
    }
}

#[test]
fn an_incomplete_preface_is_a_header_timeout() {
    let now = Instant::now();
    let mut conn = server(ProtocolPolicy::Either, now);
    feed(&mut conn, b"PRI", now);
    let deadline = conn.deadline().expect("a head is awaited");
    conn.handle_timeout(deadline);
    assert!(matches!(conn.next_event(), Some(Event::Closed(_))));
}

#[test]
fn the_protocol_can_be_set_before_the_first_byte() {
    let now = Instant::now();
    let mut conn = server(ProtocolPolicy::Either, now);
    assert_eq!(conn.set_protocol(Protocol::Http2), Ok(()));
    assert_eq!(conn.protocol(), Some(Protocol::Http2));
    assert_eq!(
        conn.set_protocol(Protocol::Http1),
        Err(UserError::WrongProtocol)
    );

    let mut conn = server(ProtocolPolicy::Either, now);
    assert_eq!(conn.set_protocol(Protocol::Http1), Ok(()));
    feed(&mut conn, REQUEST, now);
    assert_eq!(
        conn.set_protocol(Protocol::Http2),
        Err(UserError::WrongProtocol)
    );
    assert_eq!(conn.protocol(), Some(Protocol::Http1));
}
