//! The states of a request stream and everything that can arrive on it (RFC 9114 4.1), as tables.
//!
//! `+`: accepted, with an event. `-`: accepted or ignored, without an event. `S10c`: the stream is reset or stopped with
//! that code. `C105`: the connection ends with that code. Codes: 100 `NO_ERROR`, 105 `FRAME_UNEXPECTED`, 106
//! `FRAME_ERROR`, 107 `EXCESSIVE_LOAD`, 108 `ID_ERROR`, 10b `REQUEST_REJECTED`, 10c `REQUEST_CANCELLED`, 10d
//! `REQUEST_INCOMPLETE`, 10e `MESSAGE_ERROR`, 200 `QPACK_DECOMPRESSION_FAILED`. Every cell is tested in one piece and
//! byte by byte.

use std::sync::Arc;

use towline_proto::{BodySize, ErrorCode, Field, Limits, Protocol, RequestHead, StreamId};
use towline_testkit::h3::Arrival;
use towline_testkit::h3::frames::{self, frame, headers, varint};
use towline_testkit::{App, End};

/// The stream in question.
const ID: u64 = 4;

/// A server. `head`: a part of the request's head has arrived; `body`: the head has; `trailers`: those have too; `ended`:
/// the whole request has, and the program has not responded; `done`: it has; `early`: it has responded before the end;
/// `failed`: the peer has reset the request and the program is not done; `gone`: it is; `tunnel`: a CONNECT was accepted.
const SERVER: &str = "
                    idle  head  body  trailers  ended  done  early  failed  gone  tunnel
DATA                C105  C200  +     C105      -      -     -      -       -     +
DATA of nothing     C105  C200  -     C105      -      -     -      -       -     -
request             +     C200  S10e  C105      -      -     -      -       -     C105
fields              S10e  C200  -     C105      -      -     -      -       -     C105
malformed head      S10e  C200  S10e  C105      -      -     -      -       -     C105
undecodable head    C200  C200  C200  C105      -      -     -      -       -     C105
head too long       S100  C200  S107  C105      -      -     -      -       -     C105
empty head          C200  C200  C200  C105      -      -     -      -       -     C105
CANCEL_PUSH         C105  C200  C105  C105      -      -     -      -       -     C105
SETTINGS            C105  C200  C105  C105      -      -     -      -       -     C105
PUSH_PROMISE        C105  C200  C105  C105      -      -     -      -       -     C105
GOAWAY              C105  C200  C105  C105      -      -     -      -       -     C105
MAX_PUSH_ID         C105  C200  C105  C105      -      -     -      -       -     C105
PRIORITY_UPDATE     C105  C200  C105  C105      -      -     -      -       -     C105
type of HTTP/2      C105  C200  C105  C105      -      -     -      -       -     C105
unknown             -     C200  -     -         -      -     -      -       -     -
end                 S10d  C106  +     +         -      -     -      -       -     +
end inside a frame  C105  C200  C106  C105      -      -     -      -       -     C106
reset               S10c  S10c  +     +         -      -     -      -       -     +
stop                -     S10c  +     +         +      -     -      -       -     +
";

/// A client. `open`: the request's body is being sent; `sent`: the request is complete; `body`: the head of the response
/// has arrived too; `trailers`: those have too; `ended`: the whole response has, read by the program; `reset`: the
/// program has cancelled it.
const CLIENT: &str = "
                    open  sent  body  trailers  ended  reset
DATA                C105  C105  +     C105      -      -
DATA of nothing     C105  C105  -     C105      -      -
response            +     +     S10e  C105      -      -
interim             +     +     S10e  C105      -      -
fields              S10e  S10e  -     C105      -      -
malformed head      S10e  S10e  S10e  C105      -      -
undecodable head    C200  C200  C200  C105      -      -
head too long       S107  S107  S107  C105      -      -
empty head          C200  C200  C200  C105      -      -
CANCEL_PUSH         C105  C105  C105  C105      -      -
SETTINGS            C105  C105  C105  C105      -      -
PUSH_PROMISE        C108  C108  C108  C108      -      -
GOAWAY              C105  C105  C105  C105      -      -
MAX_PUSH_ID         C105  C105  C105  C105      -      -
PRIORITY_UPDATE     C105  C105  C105  C105      -      -
type of HTTP/2      C105  C105  C105  C105      -      -
unknown             -     -     -     -         -      -
end                 S10e  +     +     +         -      -
end inside a frame  C105  C105  C106  C105      -      -
reset               +     +     +     +         -      -
stop                S10c  -     -     -         -      -
";

#[test]
fn every_input_in_every_state_of_a_server() {
    check(SERVER, server);
}

#[test]
fn every_input_in_every_state_of_a_client() {
    check(CLIENT, client);
}

/// The input with this name in the tables.
fn input(name: &str) -> Vec<Arrival> {
    let bytes = |bytes: Vec<u8>| vec![Arrival::Bytes(ID, bytes)];
    let code = ErrorCode::H3_REQUEST_CANCELLED.0;
    bytes(match name {
        "DATA" => frame(frames::DATA, b"x"),
        "DATA of nothing" => frame(frames::DATA, b""),
        "request" => frames::get(),
        "response" => headers(&[(":status", "200")]),
        "interim" => headers(&[(":status", "103")]),
        "fields" => headers(&[("x", "y")]),
        "malformed head" => headers(&[(":unknown", "")]),
        "undecodable head" => frame(frames::HEADERS, b"\x00\x00\x80"),
        "head too long" => [varint(1), varint(1 << 20)].concat(),
        "empty head" => frame(frames::HEADERS, b""),
        "CANCEL_PUSH" => frame(0x3, b"\x00"),
        "SETTINGS" => frame(frames::SETTINGS, b""),
        "PUSH_PROMISE" => frame(0x5, b"\x00\x00\x00"),
        "GOAWAY" => frame(frames::GOAWAY, b"\x00"),
        "MAX_PUSH_ID" => frame(0xd, b"\x00"),
        "PRIORITY_UPDATE" => frame(0xf_0700, b"\x00u=1"),
        "type of HTTP/2" => frame(0x8, b"1234"),
        "unknown" => frame(0x21, b"x"),
        "end" => return vec![Arrival::End(ID)],
        "end inside a frame" => {
            return vec![Arrival::Bytes(ID, vec![0, 5, b'x']), Arrival::End(ID)];
        }
        "reset" => return vec![Arrival::Reset(ID, code)],
        "stop" => return vec![Arrival::Stop(ID, code)],
        other => panic!("no such input: {other}"),
    })
}

fn start(end: &mut End, control: u64) {
    let bytes = [varint(0), frame(frames::SETTINGS, &[])].concat();
    end.arrive(Arrival::Bytes(control, bytes));
}

/// A server in this state.
fn server(state: &str) -> End {
    let limits = Arc::new(Limits::server());
    let app = match state {
        "done" => App::Read,
        "early" => App::Ignore,
        "tunnel" => App::Switch,
        _ => App::Manual,
    };
    let mut end = End::server_of(Protocol::Http3, &limits, app);
    start(&mut end, 2);
    let post = headers(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
    ]);
    let bytes = |bytes: &[u8]| Arrival::Bytes(ID, bytes.to_vec());
    match state {
        "idle" => {}
        // The last byte is missing: whatever comes makes a bad section of it.
        "head" => end.arrive(bytes(&[1, 3, 0, 0])),
        "tunnel" => {
            let head = headers(&[(":method", "CONNECT"), (":authority", "a:443")]);
            end.arrive(bytes(&head));
        }
        _ => end.arrive(bytes(&post)),
    }
    match state {
        "trailers" => end.arrive(bytes(&headers(&[("x", "y")]))),
        "ended" | "done" => end.arrive(Arrival::End(ID)),
        "failed" | "gone" => end.arrive(Arrival::Reset(ID, 0x10c)),
        _ => {}
    }
    if state == "gone" {
        end.conn.stream(StreamId(ID)).expect("failed").reset();
        end.run_until_idle();
    }
    end
}

/// A client in this state. Its first request is over, so that the second has the same number as on the server.
fn client(state: &str) -> End {
    let mut end = End::h3_client(&Arc::new(Limits::client()));
    start(&mut end, 3);
    let host = Field {
        name: b"host",
        value: b"a",
    };
    let head = RequestHead {
        method: b"POST",
        target: b"/",
        fields: &[host],
    };
    end.conn.request(&head, BodySize::Empty).expect("room");
    end.run_until_idle();
    end.arrive_together(vec![
        Arrival::Bytes(0, headers(&[(":status", "204")])),
        Arrival::End(0),
    ]);
    let size = if state == "open" {
        BodySize::Unknown
    } else {
        BodySize::Empty
    };
    let id = end.conn.request(&head, size).expect("room");
    assert_eq!(id, StreamId(ID));
    end.run_until_idle();
    if matches!(state, "body" | "trailers" | "ended") {
        end.arrive(Arrival::Bytes(ID, headers(&[(":status", "200")])));
    }
    match state {
        "trailers" => end.arrive(Arrival::Bytes(ID, headers(&[("x", "y")]))),
        "ended" => end.arrive(Arrival::End(ID)),
        "reset" => {
            end.conn.stream(id).expect("open").reset();
            end.run_until_idle();
        }
        _ => {}
    }
    end
}

/// The outcome of an input, as in the tables.
fn outcome(mut end: End, arrivals: Vec<Arrival>, bytewise: bool) -> String {
    let before = end.log.text();
    let orders = end.quic.orders(ID).len();
    for arrival in arrivals {
        match arrival {
            Arrival::Bytes(id, bytes) if bytewise => {
                for byte in bytes {
                    end.arrive(Arrival::Bytes(id, vec![byte]));
                }
            }
            arrival => end.arrive(arrival),
        }
    }
    let code = |order: &str| {
        let name = order.split(' ').nth(1).expect("a code");
        let mut codes = (0x100..=0x110).chain(0x200..=0x202).map(ErrorCode);
        let code = codes.find(|code| code.name() == name).expect("known");
        format!("{:x}", code.0)
    };
    if let Some(close) = end.quic.close_order() {
        return format!("C{}", code(close));
    }
    let events = end.log.text();
    let is_failed = events[before.len()..].starts_with("failed");
    let is_ours = events.contains("failed 4 peer: ") && !events.contains("stream reset");
    match end.quic.orders(ID).get(orders) {
        Some(order) if !is_failed || is_ours => format!("S{}", code(order)),
        _ if events == before => "-".into(),
        _ => "+".into(),
    }
}

fn check(table: &str, end: fn(&str) -> End) {
    let mut lines = table.lines().filter(|line| !line.trim().is_empty());
    let states: Vec<&str> = lines.next().expect("a header").split_whitespace().collect();
    let (mut count, mut wrong) = (0, Vec::new());
    for line in lines {
        let (name, cells) = line.split_at(20);
        let name = name.trim();
        let cells: Vec<&str> = cells.split_whitespace().collect();
        assert_eq!(cells.len(), states.len(), "{name}");
        for (state, expected) in states.iter().zip(cells) {
            for bytewise in [false, true] {
                let found = outcome(end(state), input(name), bytewise);
                count += 1;
                if found != expected {
                    wrong.push(format!(
                        "{name} in {state}: {found}, expected {expected}, bytewise {bytewise}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{count} cells:\n{}", wrong.join("\n"));
}
