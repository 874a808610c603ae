//! Handshakes of both protocols as wire texts, in one piece and in pieces of 1 to 7 bytes.

use super::*;
use crate::client::route::Credentials;

/// Returns all bytes sent and the outcome. The proxy sends its responses one after the other, each once all of
/// the client's bytes are sent.
fn run(
    proxy: &Proxy,
    route: &Route,
    addr: Option<&str>,
    responses: &[&[u8]],
    piece: usize,
) -> (Vec<u8>, Result<Step, Refusal>) {
    let addr = addr.map(|addr| addr.parse().unwrap());
    let mut handshake = match ProxyHandshake::new(proxy, route, addr) {
        Ok(handshake) => handshake,
        Err(refusal) => return (Vec::new(), Err(refusal)),
    };
    let mut out = Vec::new();
    let mut step = Ok(Step::More);
    for response in responses {
        while let Some(&byte) = handshake.outgoing().first() {
            out.push(byte);
            handshake.sent(1);
        }
        for bytes in response.chunks(piece) {
            assert_eq!(step, Ok(Step::More), "bytes after the end");
            step = handshake.received(bytes);
            if step.is_err() {
                return (out, step);
            }
        }
    }
    (out, step)
}

/// `run`, with the responses in one piece and in small pieces, which have the same outcome.
fn run_in_pieces(
    proxy: &Proxy,
    route: &Route,
    addr: Option<&str>,
    responses: &[&[u8]],
) -> (Vec<u8>, Result<Step, Refusal>) {
    let whole = run(proxy, route, addr, responses, usize::MAX);
    for piece in 1..8 {
        assert_eq!(
            run(proxy, route, addr, responses, piece),
            whole,
            "in pieces of {piece}"
        );
    }
    whole
}

fn origin() -> Route {
    let mut route = Route::plain("example.com", 443);
    route.secure = true;
    route
}

fn http() -> Proxy {
    Proxy::new(ProxyScheme::Http, "proxy", 3128)
}

fn socks(scheme: ProxyScheme) -> Proxy {
    Proxy::new(scheme, "proxy", 1080)
}

fn refused(text: &str, status: Option<u16>) -> Result<Step, Refusal> {
    Err(Refusal {
        text: text.to_owned(),
        status,
        address_specific: text.contains("(reply ")
            && !["7)", "9)"].iter().any(|end| text.ends_with(end)),
    })
}

#[test]
fn a_tunnel_is_requested_and_established() {
    let mut proxy = http();
    proxy.credentials = Some(Credentials::new("Aladdin", "open sesame"));
    proxy.headers = vec![(b"x-team".to_vec(), b"blue".to_vec())];
    let (out, end) = run_in_pieces(
        &proxy,
        &origin(),
        None,
        &[b"HTTP/1.1 200 OK\r\nvia: p\r\n\r\n"],
    );
    assert_eq!(end, Ok(Step::Done));
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\
         Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\nx-team: blue\r\n\r\n"
    );
    let mut v6 = origin();
    v6.host = "2001:db8::1".into();
    let (out, _) = run_in_pieces(&http(), &v6, None, &[b"HTTP/1.0 200\r\n\r\n"]);
    assert!(
        out.starts_with(b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n")
    );
}

#[test]
fn connect_succeeds_on_2xx_and_reports_other_responses() {
    let endless = [b"HTTP/1.1 200 OK\r\nx: ", &vec![b'a'; 110_000][..]].concat();
    let long = [&endless[..90_000], b"\r\n\r\n"].concat();
    let not_http = || refused("did not respond in HTTP/1.1", None);
    let invalid = || refused("sent an invalid status line (RFC 9112 4)", None);
    let cases: &[(&[u8], Result<Step, Refusal>)] = &[
        (b"HTTP/1.1 204 \r\n\r\n", Ok(Step::Done)),
        (
            b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            Ok(Step::Done),
        ),
        (b"HTTP/1.1 200 OK\r\nx: y\r\n", Ok(Step::More)),
        // RFC 9112 2.2: a line may end in LF alone. The reason phrase is optional, for many its space too.
        (b"HTTP/1.0 200 Connection established\n\n", Ok(Step::Done)),
        (b"HTTP/1.0 200\n\n", Ok(Step::Done)),
        (b"HTTP/1.1 200\nvia: p\n\r\n", Ok(Step::Done)),
        (b"HTTP/1.1 200 OK\r\nvia: p\n\n", Ok(Step::Done)),
        (b"HTTP/1.1  200 OK\r\n\r\n", Ok(Step::Done)),
        (b"HTTP/1.1 200 OK\nx: y\n\r", Ok(Step::More)),
        (&long, Ok(Step::Done)),
        // RFC 9110 9.3.6: framing fields of a 2xx response to CONNECT are ignored.
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\ntransfer-encoding: chunked\r\n\r\n",
            Ok(Step::Done),
        ),
        (
            b"HTTP/1.1 101 Switching\r\n\r\n",
            refused("refuses the tunnel: 101 Switching", Some(101)),
        ),
        (
            b"HTTP/1.1 407 Auth\nProxy-Authenticate: NTLM\nproxy-authenticate:Negotiate abc=\n\n",
            refused(
                "requires credentials (407), with NTLM, Negotiate; only Basic is supported",
                Some(407),
            ),
        ),
        (
            b"\x15\x03\x01\x00\x02\x02\x46",
            refused(
                "did not respond in HTTP/1.1, but in TLS; is its URL https://?",
                None,
            ),
        ),
        (
            b"HTTP/1.1 407 Auth\r\nproxy-authenticate: Basic\r\n\r\n",
            refused("requires credentials (407)", Some(407)),
        ),
        (
            b"HTTP/1.1 403 Not\x1b[31m here\r\n\r\nbody",
            refused("refuses the tunnel: 403 Not[31m here", Some(403)),
        ),
        (
            b"HTTP/1.1 502\r\n\r\n",
            refused("refuses the tunnel: 502", Some(502)),
        ),
        (b"SSH-2.0-OpenSSH", not_http()),
        (b"HTTP/2 200\r\n\r\n", not_http()),
        (b"HTTP/1.1 20\r\n\r\n", invalid()),
        (b"HTTP/1.1 +20 OK\r\n\r\n", invalid()),
        (b"HTTP/1.1 2000 OK\r\n\r\n", invalid()),
        (b"HTTP/1.1\n\n", invalid()),
        (&endless, refused("sent a response head over 100 KiB", None)),
    ];
    for (response, end) in cases {
        assert_eq!(
            &run_in_pieces(&http(), &origin(), None, &[response]).1,
            end,
            "{}",
            response.escape_ascii()
        );
    }
    // A body in the same piece is dropped.
    let body = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    assert_eq!(run(&http(), &origin(), None, &[body], 64).1, Ok(Step::Done));
    let mut proxy = http();
    proxy.credentials = Some(Credentials::new("u", "p"));
    let end = run_in_pieces(&proxy, &origin(), None, &[b"HTTP/1.1 407 no\r\n\r\n"]).1;
    assert_eq!(
        end,
        refused("does not accept the credentials (407)", Some(407))
    );
}

#[test]
fn line_breaks_and_spaces_in_a_connect_request_are_refused() {
    let mut proxy = http();
    proxy.headers = vec![(b"a".to_vec(), b"b\r\nc: d".to_vec())];
    let end = run_in_pieces(&proxy, &origin(), None, &[]).1;
    assert_eq!(
        end,
        refused("was given an invalid header (RFC 9110 5.5)", None)
    );
    let mut route = origin();
    route.host = "a b".into();
    let end = run_in_pieces(&http(), &route, None, &[]).1;
    assert_eq!(
        end,
        refused("cannot connect to a host with spaces in its name", None)
    );
}

const NO_AUTH: &[u8] = b"\x05\x00";
const GRANTED: &[u8] = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x1f\x90";

#[test]
fn a_socks_request_holds_the_name_or_the_address() {
    let request = |scheme, host: &str, addr| {
        let mut route = origin();
        route.host = host.into();
        let (out, end) = run_in_pieces(&socks(scheme), &route, addr, &[NO_AUTH, GRANTED]);
        assert_eq!(end, Ok(Step::Done));
        assert_eq!(out[..3], *b"\x05\x01\x00");
        out[3..].to_vec()
    };
    let h = ProxyScheme::Socks5h;
    assert_eq!(
        request(h, "example.com", None),
        b"\x05\x01\x00\x03\x0bexample.com\x01\xbb"
    );
    assert_eq!(
        request(h, "127.0.0.1", None),
        b"\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb"
    );
    let looked_up = request(ProxyScheme::Socks5, "example.com", Some("[::1]:8443"));
    assert_eq!(
        looked_up,
        b"\x05\x01\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x20\xfb"
    );
}

#[test]
fn socks_replies_with_every_address_type_are_accepted() {
    let name = b"\x05\x00\x00\x03\x04host\x00\x50";
    let v6 = b"\x05\x00\x00\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x00\x50";
    for reply in [GRANTED, &name[..], &v6[..]] {
        let end = run_in_pieces(
            &socks(ProxyScheme::Socks5h),
            &origin(),
            None,
            &[NO_AUTH, reply],
        )
        .1;
        assert_eq!(end, Ok(Step::Done));
        for cut in 0..reply.len() {
            let end = run_in_pieces(
                &socks(ProxyScheme::Socks5h),
                &origin(),
                None,
                &[NO_AUTH, &reply[..cut]],
            )
            .1;
            assert_eq!(end, Ok(Step::More));
        }
    }
}

#[test]
fn socks_sends_a_password_only_if_the_proxy_chooses_that_method() {
    let mut proxy = socks(ProxyScheme::Socks5h);
    proxy.credentials = Some(Credentials::new("me", "pass"));
    let (out, end) = run_in_pieces(
        &proxy,
        &origin(),
        None,
        &[b"\x05\x02", b"\x01\x00", GRANTED],
    );
    assert_eq!(end, Ok(Step::Done));
    assert_eq!(
        out,
        b"\x05\x02\x00\x02\x01\x02me\x04pass\x05\x01\x00\x03\x0bexample.com\x01\xbb"
    );
    let end = run_in_pieces(&proxy, &origin(), None, &[b"\x05\x02", b"\x01\x01"]).1;
    assert_eq!(
        end,
        refused("does not accept the user or the password", None)
    );
    let (out, end) = run_in_pieces(&proxy, &origin(), None, &[NO_AUTH, GRANTED]);
    assert_eq!(end, Ok(Step::Done));
    assert!(
        !out.windows(4).any(|window| window == b"pass"),
        "the password was sent although the proxy did not choose that method"
    );
    proxy.credentials = Some(Credentials::new("me", ""));
    let (out, _) = run_in_pieces(
        &proxy,
        &origin(),
        None,
        &[b"\x05\x02", b"\x01\x00", GRANTED],
    );
    assert!(out.starts_with(b"\x05\x02\x00\x02\x01\x02me\x00\x05\x01"));
    proxy.credentials = Some(Credentials::new("", "p"));
    let end = run_in_pieces(&proxy, &origin(), None, &[]).1;
    assert_eq!(
        end,
        refused(
            "takes a user and a password of 1 to 255 bytes (RFC 1929 2)",
            None
        )
    );
}

#[test]
fn socks_refusals_are_described() {
    let plain = socks(ProxyScheme::Socks5h);
    let mut named = plain.clone();
    named.credentials = Some(Credentials::new("u", "p"));
    let cases: &[(&Proxy, &[&[u8]], &str)] = &[
        (&plain, &[b"HTTP/1.1 400"], "does not speak SOCKS 5"),
        (&plain, &[b"\x04\x5a"], "does not speak SOCKS 5"),
        (&plain, &[b"\x05\xff"], "requires credentials"),
        (
            &named,
            &[b"\x05\xff"],
            "accepts neither no authentication nor user and password",
        ),
        (
            &plain,
            &[b"\x05\x02"],
            "chose a method that was not offered (RFC 1928 3)",
        ),
        (
            &plain,
            &[b"\x05\x01"],
            "chose a method that was not offered (RFC 1928 3)",
        ),
        (
            &named,
            &[b"\x05\x02", b"\x05\x00"],
            "does not speak SOCKS 5",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x00\x00\x02"],
            "sent an unknown address type (RFC 1928 6)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x01"],
            "cannot connect: general failure (reply 1)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x02"],
            "cannot connect: not allowed by its rules (reply 2)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x03"],
            "cannot connect: network unreachable (reply 3)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x04"],
            "cannot connect: host unreachable (reply 4)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x05"],
            "cannot connect: connection refused (reply 5)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x06"],
            "cannot connect: time to live expired (reply 6)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x07"],
            "cannot connect: it does not know CONNECT (reply 7)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x08"],
            "cannot connect: it does not know this type of address (reply 8)",
        ),
        (
            &plain,
            &[NO_AUTH, b"\x05\x09"],
            "cannot connect: unassigned reason (reply 9)",
        ),
    ];
    for (proxy, responses, text) in cases {
        assert_eq!(
            run_in_pieces(proxy, &origin(), None, responses).1,
            refused(text, None)
        );
    }
    let mut long = origin();
    long.host = "a".repeat(256).into();
    let end = run_in_pieces(&plain, &long, None, &[]).1;
    assert_eq!(
        end,
        refused("cannot resolve a name of that length (RFC 1928 5)", None)
    );
}
