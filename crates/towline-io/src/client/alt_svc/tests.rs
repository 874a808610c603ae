//! Routes of calls, and what their responses and dials teach.

use std::sync::atomic::{AtomicU32, Ordering};

use towline_proto::{Connection, Event, Limits, Protocol};

use super::*;
use crate::client::route::{Proxy, ProxyScheme};
use crate::tls::ClientTls;

fn secure(host: &str) -> Arc<Route> {
    Arc::new(Route::secure(host, 443, Arc::new(ClientTls::default())))
}

/// Calls `use_head` with a response that was received as `text`.
fn with_head(text: &str, use_head: impl FnOnce(&HeadRef<'_>)) {
    let now = Instant::now();
    let mut conn =
        Connection::client_with_protocol(Arc::new(Limits::client()), Protocol::Http1, now);
    let request = towline_proto::RequestHead {
        method: b"GET",
        target: b"/",
        fields: &[towline_proto::Field {
            name: b"host",
            value: b"a",
        }],
    };
    conn.request(&request, towline_proto::BodySize::Empty)
        .unwrap();
    let mut buffers = towline_proto::BufferPool::new(4096, 1);
    conn.recv_space(&mut buffers)[..text.len()].copy_from_slice(text.as_bytes());
    conn.received(now, text.len());
    match conn.next_event() {
        Some(Event::Head { head, .. }) => use_head(&head),
        other => panic!("{other:?}"),
    }
}

fn observe(http3: &Arc<Http3>, route: &Route, lines: &str, now: Instant) {
    let text = format!("HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n");
    with_head(&text, |head| http3.observe(route, head, now));
}

fn shown(route: Option<Arc<Route>>) -> String {
    route.map_or_else(String::new, |route| {
        let alternative = route.alternative.as_deref().unwrap();
        let only = if alternative.is_only { " only" } else { "" };
        format!(
            "{}:{} {}{only}",
            alternative.host, alternative.port, alternative.generation
        )
    })
}

#[test]
fn an_origin_is_called_over_its_advertised_alternative() {
    let now = Instant::now();
    let http3 = Arc::new(Http3::new(Http3Policy::Advertised));
    let route = secure("a");
    assert_eq!(shown(http3.alternative(&route, now)), "");
    observe(
        &http3,
        &route,
        "Alt-Svc: h2=\":1\"\r\nAlt-svc: h3=\":444\"\r\n",
        now,
    );
    let over = http3.alternative(&route, now).unwrap();
    assert_eq!(shown(Some(Arc::clone(&over))), "a:444 0");
    assert!(Arc::ptr_eq(&over, &http3.alternative(&route, now).unwrap()));
    // The alternative is for this origin only, and the certificate must name it.
    assert_eq!(over.server_name(), "a");
    assert_eq!(shown(http3.alternative(&secure("b"), now)), "");
    // A response over it teaches the origin as well.
    observe(&http3, &over, "alt-svc: h3=\"b:1\"\r\n", now);
    assert_eq!(shown(http3.alternative(&route, now)), "b:1 0");
    assert!(http3.alternative(&over, now).is_none());
    observe(&http3, &route, "alt-svc: h3\r\n", now);
    assert_eq!(shown(http3.alternative(&route, now)), "b:1 0");
    observe(
        &http3,
        &route,
        "age: 90\r\nalt-svc: h3=\":1\"; ma=60\r\n",
        now,
    );
    assert_eq!(shown(http3.alternative(&route, now)), "");
}

#[test]
fn a_failure_rests_the_alternative_and_then_begins_a_generation() {
    let start = Instant::now();
    let http3 = Arc::new(Http3::new(Http3Policy::Advertised));
    let route = secure("a");
    observe(&http3, &route, "alt-svc: h3=\":443\"\r\n", start);
    let over = http3.alternative(&route, start).unwrap();
    http3.failed(&over, start);
    // The connections that TCP has won go on being used.
    assert!(Arc::ptr_eq(
        &over,
        &http3.alternative(&route, start).unwrap()
    ));
    assert!(http3.is_broken(&over, start));
    let later = start + Duration::from_secs(61);
    let next = http3.alternative(&route, later).unwrap();
    assert_eq!(shown(Some(Arc::clone(&next))), "a:443 1");
    assert!(!http3.is_broken(&next, later) && next != over);
    http3.succeeded(&next);
    assert_eq!(shown(http3.alternative(&route, later)), "a:443 1");
}

#[test]
fn a_misdirected_request_ends_the_use_of_the_alternative() {
    let now = Instant::now();
    let http3 = Arc::new(Http3::new(Http3Policy::Advertised));
    let route = secure("a");
    observe(&http3, &route, "alt-svc: h3=\":443\"\r\n", now);
    let over = http3.alternative(&route, now).unwrap();
    let misdirected = "HTTP/1.1 421 Misdirected Request\r\ncontent-length: 0\r\n\r\n";
    // The origin itself may respond so, also on a connection that TCP has won.
    with_head(misdirected, |head| http3.observe(&over, head, now));
    assert_eq!(shown(http3.alternative(&route, now)), "a:443 0");
    http3.misdirected(&over, now);
    assert_eq!(shown(http3.alternative(&route, now)), "");
    assert_eq!(over.over_tcp(), *route);
}

#[test]
fn alternatives_are_named_to_their_servers() {
    let now = Instant::now();
    let named = |policy, lines: &str| {
        let (http3, route) = (Arc::new(Http3::new(policy)), secure("a"));
        observe(&http3, &route, lines, now);
        let over = http3.alternative(&route, now).unwrap();
        over.alternative.as_deref().unwrap().alt_used.clone()
    };
    for (policy, lines, value) in [
        (Http3Policy::Advertised, "alt-svc: h3=\":443\"\r\n", "a"),
        (Http3Policy::Advertised, "alt-svc: h3=\":444\"\r\n", "a:444"),
        (Http3Policy::Prior, "alt-svc: h3=\"b:443\"\r\n", "b"),
        (Http3Policy::Prior, "alt-svc: h3=\"[::1]:443\"\r\n", "[::1]"),
        (Http3Policy::Prior, "alt-svc: h3=\":443\"\r\n", ""),
        (Http3Policy::Prior, "", ""),
        (Http3Policy::Only, "alt-svc: h3=\":444\"\r\n", ""),
    ] {
        assert_eq!(
            named(policy, lines).as_deref().unwrap_or(""),
            value,
            "{policy:?} {lines}"
        );
    }
}

#[test]
fn prior_knowledge_names_the_origin_itself() {
    let now = Instant::now();
    let route = secure("a");
    let prior = Arc::new(Http3::new(Http3Policy::Prior));
    assert_eq!(shown(prior.alternative(&route, now)), "a:443 0");
    prior.failed(&prior.alternative(&route, now).unwrap(), now);
    assert!(prior.is_broken(&prior.alternative(&route, now).unwrap(), now));
    observe(&prior, &route, "alt-svc: h3=\":444\"\r\n", now);
    assert_eq!(shown(prior.alternative(&route, now)), "a:444 0");
    let only = Arc::new(Http3::new(Http3Policy::Only));
    observe(&only, &route, "alt-svc: h3=\":444\"\r\n", now);
    assert_eq!(shown(only.alternative(&route, now)), "a:443 0 only");
}

#[test]
fn routes_that_quic_cannot_serve_stay_on_tcp() {
    let now = Instant::now();
    let http3 = Arc::new(Http3::new(Http3Policy::Prior));
    let secure = Route::clone(&secure("a"));
    let proxy = Proxy::new(ProxyScheme::Socks5, "p", 1080);
    let mut proxied = secure.clone();
    proxied.proxy = Some(Arc::new(proxy));
    let mut unix = secure.clone();
    unix.uds = Some("/socket".into());
    for route in [
        Route::plain("a", 80),
        proxied,
        unix,
        secure.over_http1(),
        Route::clone(&secure.for_websocket()),
    ] {
        assert!(http3.alternative(&Arc::new(route.clone()), now).is_none());
        assert!(route.no_http3_reason().is_some());
    }
    assert!(secure.no_http3_reason().is_none());
    let over = http3.alternative(&Arc::new(secure), now).unwrap();
    assert!(over.over_http1().alternative.is_none());
    assert!(over.for_websocket().alternative.is_none());
}

#[test]
fn the_file_keeps_what_was_learned() {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!(
        "towline-http3-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    );
    let path = std::env::temp_dir().join(name);
    let now = Instant::now();
    let route = secure("a");
    let open = || Http3::with_file(Http3Policy::Advertised, path.clone()).map(Arc::new);
    let first = open().unwrap();
    observe(&first, &route, "alt-svc: h3=\"b:1\"\r\n", now);
    // The first change is written at once, by a helper thread, later ones when the client is closed.
    let start = Instant::now();
    while !std::fs::read_to_string(&path)
        .unwrap()
        .contains("a 443 b 1 ")
    {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(2));
    }
    observe(&first, &route, "alt-svc: h3=\"c:1\"\r\n", now);
    // The close of a client saves, too. The helper may still hold `first`, and drop it later.
    first.save().unwrap();
    drop(first);
    let second = open().unwrap();
    assert_eq!(shown(second.alternative(&route, Instant::now())), "c:1 0");
    drop(second);
    std::fs::write(&path, "no such file").unwrap();
    let message = open().unwrap_err();
    assert!(message.contains("delete the file"), "{message}");
    std::fs::remove_file(&path).unwrap();
    assert!(Http3::with_file(Http3Policy::Advertised, "/nonexistent/x".into()).is_err());
}

#[test]
fn alternatives_that_are_known_beforehand_are_used_at_once() {
    let now = Instant::now();
    let known = |value: &str| [("a".to_owned(), 443, value.to_owned())];
    let policy = Http3Policy::Advertised;
    let http3 = Http3::with_known(policy, &known("h3=\"b:444\"; ma=60")).unwrap();
    assert_eq!(shown(http3.alternative(&secure("a"), now)), "b:444 0");
    assert_eq!(shown(http3.alternative(&secure("b"), now)), "");
    let later = now + Duration::from_secs(61);
    assert_eq!(shown(http3.alternative(&secure("a"), later)), "");
    assert_eq!(
        Http3::with_known(policy, &known("h3")).unwrap_err(),
        "\"h3\" of a:443 is not a value of Alt-Svc (RFC 7838 3)"
    );
}
