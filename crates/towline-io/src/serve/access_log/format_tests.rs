//! One exchange with every atom, and peers that try to forge lines.

use super::*;

type Fields<'a> = &'a [(&'a str, &'a str)];

fn bytes(fields: Fields<'_>) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
}

fn outcome() -> Outcome<'static> {
    Outcome {
        client: "192.0.2.7",
        pid: 42,
        ended: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000),
        duration: Duration::from_micros(1_234_567),
        body_bytes: 512,
        refused: None,
        scheme: "https",
        reason: b"Not Found",
    }
}

fn line(format: &str, target: &str, request: Fields<'_>, response: Fields<'_>) -> String {
    let format = Format::compile(format).unwrap();
    let mut entry = Entry::default();
    format.begin(
        &mut entry,
        (b"GET", target.as_bytes(), "HTTP/1.1"),
        bytes(request),
    );
    format.on_response(&mut entry, 404, bytes(response));
    let mut out = Vec::new();
    format.render(&entry, &outcome(), &mut Stamp::default(), &mut out);
    String::from_utf8(out).unwrap()
}

const REQUEST: Fields<'_> = &[
    ("Referer", "http://r/"),
    ("User-Agent", "curl/8"),
    ("Authorization", "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="),
    ("X-Id", "abc"),
];

#[test]
fn every_atom_has_its_value() {
    let expected = [
        ("h", "192.0.2.7"),
        ("l", "-"),
        ("u", "Aladdin"),
        ("r", "GET /a?b=1&c HTTP/1.1"),
        ("m", "GET"),
        ("U", "/a"),
        ("q", "b=1&c"),
        ("H", "HTTP/1.1"),
        ("s", "404"),
        ("st", "Not Found"),
        ("B", "512"),
        ("b", "512"),
        ("f", "http://r/"),
        ("a", "curl/8"),
        ("T", "1"),
        ("M", "1234"),
        ("D", "1234567"),
        ("L", "1.234567"),
        ("p", "<42>"),
        ("{x-id}i", "abc"),
        ("{X-ID}i", "abc"),
        ("{Nope}i", "-"),
        ("{etag}o", "W/\\\"1\\\""),
        ("{nope}o", "-"),
        ("{HTTP_X_ID}e", "abc"),
        ("{REMOTE_ADDR}e", "192.0.2.7"),
        ("{RAW_URI}e", "/a?b=1&c"),
        ("{QUERY_STRING}e", "b=1&c"),
        ("{WHATEVER}e", "-"),
    ];
    for (atom, text) in expected {
        let rendered = line(
            &format!("<%({atom})s>"),
            "/a?b=1&c",
            REQUEST,
            &[("ETag", "W/\"1\"")],
        );
        assert_eq!(rendered, format!("<{text}>"), "{atom}");
    }
}

#[test]
fn presets_are_formats() {
    let combined = line("combined", "/", REQUEST, &[]);
    assert!(combined.starts_with("192.0.2.7 - Aladdin ["), "{combined}");
    assert!(
        combined.ends_with(r#"] "GET / HTTP/1.1" 404 512 "http://r/" "curl/8""#),
        "{combined}"
    );
    assert!(line("common", "/", REQUEST, &[]).ends_with(r#""GET / HTTP/1.1" 404 512"#));
    assert_eq!(line("100%% %(s)s%%", "/", &[], &[]), "100% 404%");
    assert_eq!(line("", "/", &[], &[]), "");
}

#[test]
fn errors_name_the_atom() {
    for (bad, named) in [
        ("%(z)s", "%(z)s"),
        ("%h", "\"%h\""),
        ("a %(h", "\"%(h\""),
        ("%(h)d", "\"%(h)d\""),
        ("%({x}z)s", "%({x}z)s"),
        ("%({}i)s", "%({}i)s"),
        ("%({xi)s", "%({xi)s"),
        ("%", "\"%\""),
    ] {
        let error = Format::compile(bad).unwrap_err().to_string();
        assert!(error.contains(named), "{bad}: {error}");
    }
}

#[test]
fn peers_cannot_forge_a_line() {
    let request: Fields<'_> = &[
        ("user-agent", "x\" 200\r\n127.0.0.1 - - \"GET /admin"),
        ("x", "\u{1b}]0;title\u{7}"),
        ("authorization", "Basic YQpiOmM="),
    ];
    let format = "%(r)s %(u)s \"%(a)s\" %({x}i)s %({y}o)s";
    let rendered = line(format, "/\n\u{9b}", request, &[("y", "a\nb")]);
    assert!(
        rendered.bytes().all(|byte| (b' '..=b'~').contains(&byte)),
        "{rendered}"
    );
    assert_eq!(
        rendered.matches('"').count() - rendered.matches("\\\"").count(),
        2
    );
    assert!(rendered.contains(r"a\x0ab"));
    let json = line("json", "/\n", request, &[]);
    assert!(!json.contains('\n') && !json.contains("200\r"), "{json}");
}

#[test]
fn basic_users_are_decoded() {
    let user = |value: &str| line("%(u)s", "/", &[("authorization", value)], &[]);
    assert_eq!(user("basic YTpi"), "a");
    assert_eq!(user("Basic Og=="), "-");
    assert_eq!(user("Basic"), "-");
    assert_eq!(user("Bearer YTpi"), "-");
    assert_eq!(user("Basic ????"), "-");
    assert_eq!(user("Basic dXNlcm5hbWU6cGFzcw=="), "username");
    assert!(!user("Basic YTpzZWNyZXQ=").contains("secret"));
}

#[test]
fn json_is_complete() {
    let json = line("json", "/a?b=\"", &[("User-Agent", "caf\u{e9}")], &[]);
    assert!(json.starts_with("{\"time\":\"2001-09-"), "{json}");
    let rest = json.split_once(",\"client\"").unwrap().1;
    assert_eq!(
        rest,
        r#":"192.0.2.7","method":"GET","path":"/a","query":"b=\"","version":"HTTP/1.1","scheme":"https","#
            .to_owned()
            + r#""status":404,"bytes":512,"duration_us":1234567,"duration_ms":1234.567,"host":null,"#
            + r#""referer":null,"user_agent":"café","traceparent":null,"pid":42}"#
    );
}

#[test]
fn an_exchange_without_a_response_is_logged() {
    let format = Format::compile("%(s)s %(b)s %(h)s").unwrap();
    let mut entry = Entry::default();
    format.begin(&mut entry, (b"GET", b"/", "HTTP/1.1"), []);
    let mut out = Vec::new();
    let outcome = Outcome {
        client: "",
        body_bytes: 0,
        ..outcome()
    };
    format.render(&entry, &outcome, &mut Stamp::default(), &mut out);
    assert_eq!(out, b"- - -");
}

#[test]
fn an_entry_can_be_reused() {
    let format = Format::compile("%({a}i)s %({b}o)s %(s)s").unwrap();
    let mut entry = Entry::default();
    format.begin(&mut entry, (b"GET", b"/", "HTTP/1.1"), bytes(&[("a", "1")]));
    format.on_response(&mut entry, 200, bytes(&[("b", "2")]));
    let capacity = (entry.text.capacity(), entry.request_fields.capacity());
    format.begin(&mut entry, (b"GET", b"/", "HTTP/1.1"), []);
    let mut out = Vec::new();
    format.render(&entry, &outcome(), &mut Stamp::default(), &mut out);
    assert_eq!(out, b"- - -");
    assert_eq!(
        (entry.text.capacity(), entry.request_fields.capacity()),
        capacity
    );
}

#[test]
fn a_filter_sees_the_path_without_its_query_and_no_slow_tunnel() {
    use Decision::{Always, Never, Sampled};
    let slow = Duration::from_secs(1);
    let filter = Filter {
        exclude: crate::serve::access_log::Rule::parse("/h")
            .into_iter()
            .collect(),
        sample: Some(0.5),
        slow: Some(slow),
    };
    let options = FormatOptions {
        filter,
        ..FormatOptions::default()
    };
    let format = Format::compile_with("json", options).unwrap();
    let decide = |method: &str, target: &str, status, duration| {
        let mut entry = Entry::default();
        let line = (method.as_bytes(), target.as_bytes(), "HTTP/2");
        format.begin(&mut entry, line, []);
        format.on_response(&mut entry, status, []);
        format.decide(&entry, duration)
    };
    assert_eq!(decide("GET", "/h?a", 200, Duration::ZERO), Never);
    assert_eq!(decide("GET", "/h?a", 200, slow), Always);
    assert_eq!(decide("GET", "/ws", 101, slow), Sampled);
    assert_eq!(decide("CONNECT", "/ws", 200, slow), Sampled);
}
