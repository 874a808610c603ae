//! Properties of every input, whatever the peer sends.

use std::sync::Arc;

use towline_proto::{ErrorSource, Limits};

use crate::run::feed;
use crate::{App, End, Random};

/// Checks a request stream sent to a server. Panics if a property does not hold. `seed` chooses the program, the
/// size of the receive buffers and the cuts.
pub fn check_requests(wire: &[u8], seed: u64) {
    let app = [App::Read, App::Ignore, App::Switch, App::Read][seed as usize % 4];
    let limits = Arc::new(Limits::server());
    let end = assert_same_events_at_every_cut(wire, seed, || {
        End::server(&limits, app).with_buffers(buffer_bytes(seed))
    });
    if app == App::Read {
        assert_first_request_agrees_with_httparse(wire, &end);
    }
    assert_closed_after_violation(end);
}

/// Checks a response stream sent to a client with one request. (Surplus bytes are a violation before a second
/// request is sent and a response to it afterwards: with two, the events would depend on the cuts.)
pub fn check_responses(wire: &[u8], seed: u64) {
    let method = ["GET", "HEAD", "GET+upgrade", "CONNECT"][seed as usize % 4];
    let target = if method == "CONNECT" { "a:443" } else { "/" };
    let limits = Arc::new(Limits::client());
    let client = || End::client(&limits, &[(method, target)]).with_buffers(buffer_bytes(seed));
    let end = assert_same_events_at_every_cut(wire, seed, client);
    assert_first_response_agrees_with_httparse(wire, &end);
    assert_closed_after_violation(end);
}

/// Heads and bodies grow beyond small buffers; the events must not depend on it.
fn buffer_bytes(seed: u64) -> usize {
    if seed & 16 == 0 { 16 * 1024 } else { 64 * 1024 }
}

/// Checks a chunked body of an otherwise valid request.
pub fn check_chunked(body: &[u8], seed: u64) {
    let mut wire = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    wire.extend_from_slice(body);
    check_requests(&wire, seed);
}

/// Feeds the wire whole, byte by byte and in random pieces; returns the end that received it whole.
fn assert_same_events_at_every_cut(wire: &[u8], seed: u64, make: impl Fn() -> End) -> End {
    let run = |sizes: &[usize]| {
        let mut end = make();
        let mut sizes = sizes.iter().copied();
        feed(&mut end, wire, &mut sizes);
        assert_bounded(&end, wire.len());
        end
    };
    let whole = run(&[]);
    let expected = log_without_100(&whole);
    let mut random = Random::new(seed);
    for sizes in [
        vec![1; wire.len()],
        random.pieces(wire.len()),
        random.pieces(wire.len()),
    ] {
        let found = log_without_100(&run(&sizes));
        assert!(
            found == expected,
            "cut into {sizes:?}:\n{found}\nbut whole:\n{expected}"
        );
    }
    whole
}

/// Whether a 100 is sent depends on what has already arrived, so it may differ between cuts.
fn log_without_100(end: &End) -> String {
    end.log_text().replace("wrote 100\n", "")
}

/// Asserts that memory does not exceed the received bytes by more than the pending responses and the window.
fn assert_bounded(end: &End, wire_bytes: usize) {
    assert!(
        end.conn.pending_bytes() <= 256 * 1024,
        "{} bytes pending",
        end.conn.pending_bytes()
    );
    assert!(
        end.written().len() <= 4 * 1024 + 512 * (1 + wire_bytes / 16),
        "{} written",
        end.written().len()
    );
}

/// Asserts that the connection accepts nothing after a violation.
fn assert_closed_after_violation(mut end: End) {
    let Some(error) = end.conn.error() else {
        return;
    };
    if error.source != ErrorSource::Peer {
        return;
    }
    let interest = end.conn.interest();
    assert!(interest.shutdown || interest.closed, "{error}: still open");
    assert!(
        !end.conn.is_reusable() && !end.conn.is_idle(),
        "{error}: to be used again"
    );
    let before = end.log.text();
    end.feed(b"GET /again HTTP/1.1\r\nHost: a\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    end.feed_eof();
    assert_eq!(before, end.log.text(), "events after a violation");
}

/// Asserts that a request accepted by us is accepted, with the same framing, by `httparse`.
fn assert_first_request_agrees_with_httparse(wire: &[u8], end: &End) {
    let log = end.log.text();
    let Some(line) = log
        .lines()
        .next()
        .filter(|line| line.starts_with("request 1 "))
    else {
        return;
    };
    let start = wire.iter().position(|b| !b"\r\n".contains(b)).unwrap_or(0);
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut request = httparse::Request::new(&mut fields);
    let parsed = request.parse(&wire[start..]);
    assert!(
        matches!(parsed, Ok(httparse::Status::Complete(_))),
        "httparse: {parsed:?} for {log}"
    );
    let has_body = has_body(request.headers);
    assert_eq!(
        line.ends_with(" end"),
        !has_body,
        "httparse sees another framing: {log}"
    );
    assert_eq!(
        field_lines(&log),
        request.headers.len(),
        "httparse sees other fields: {log}"
    );
}

fn assert_first_response_agrees_with_httparse(wire: &[u8], end: &End) {
    let log = end.log.text();
    let Some(line) = log.lines().next() else {
        return;
    };
    if !line.starts_with("response 1 ") && !line.starts_with("interim 1 ") {
        return;
    }
    let start = wire.iter().position(|b| !b"\r\n".contains(b)).unwrap_or(0);
    let mut fields = [httparse::EMPTY_HEADER; 128];
    let mut response = httparse::Response::new(&mut fields);
    let parsed = response.parse(&wire[start..]);
    assert!(
        matches!(parsed, Ok(httparse::Status::Complete(_))),
        "httparse: {parsed:?} for {log}"
    );
    let status = line.split(' ').nth(2).and_then(|s| s.parse().ok());
    assert_eq!(status, response.code, "httparse sees another status: {log}");
    assert_eq!(
        field_lines(&log),
        response.headers.len(),
        "httparse sees other fields: {log}"
    );
}

/// Number of indented lines after the first line of a log.
fn field_lines(log: &str) -> usize {
    log.lines()
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .count()
}

fn has_body(fields: &[httparse::Header<'_>]) -> bool {
    fields.iter().any(|field| {
        field.name.eq_ignore_ascii_case("transfer-encoding")
            || field.name.eq_ignore_ascii_case("content-length")
                && field.value.iter().any(|b| (b'1'..=b'9').contains(b))
    })
}
