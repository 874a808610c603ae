//! Runs one conformance case with one way to cut its wire.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{Limits, Protocol, Side};

use crate::case::Case;
use crate::h3::Arrival;
use crate::h3::notation::arrivals;
use crate::pieces::in_pieces;
use crate::{App, End, ws};

/// The options of a case.
#[derive(Clone, Debug)]
pub struct Setup {
    pub cuts: bool,
    hide: Option<String>,
    subject: Subject,
}

#[derive(Clone, Debug)]
enum Subject {
    Http(Http),
    WebSocket(ws::Setup),
}

/// One end of a connection.
#[derive(Clone, Debug)]
struct Http {
    side: Side,
    protocol: Protocol,
    app: App,
    methods: Vec<String>,
    limits: Arc<Limits>,
    eof: bool,
    wait: Duration,
}

/// Options of every case, which are handled elsewhere.
const COMMON: [&str; 7] = [
    "client",
    "eof",
    "nocut",
    "hide",
    "http2",
    "http3",
    "websocket",
];

impl Setup {
    /// # Errors
    /// An unknown option: a typing error must not silently change what is tested.
    pub fn of(case: &Case) -> Result<Self, String> {
        let options = case.options.iter();
        let own = options.filter(|(name, _)| !COMMON.contains(&name.as_str()));
        let subject = if case.has("websocket") {
            let mut setup = ws::Setup::new(case.side(), case.has("eof"));
            for (name, value) in own {
                option_of_websocket(&mut setup, name, value)
                    .ok_or_else(|| unknown(case, name, value))?;
            }
            Subject::WebSocket(setup)
        } else {
            let mut http = Http::new(case);
            let mut limits = match http.side {
                Side::Client => Limits::client(),
                Side::Server => Limits::server(),
            };
            for (name, value) in own {
                option_of_http(&mut http, &mut limits, name, value)
                    .ok_or_else(|| unknown(case, name, value))?;
            }
            http.limits = Arc::new(limits);
            Subject::Http(http)
        };
        Ok(Self {
            cuts: !case.has("nocut"),
            hide: case.option("hide").map(|what| format!("wrote {what}\n")),
            subject,
        })
    }

    /// Returns the event log of a wire whose parts are fed in pieces of these sizes; each part begins a new
    /// piece.
    pub fn log(&self, parts: &[Vec<u8>], sizes: &[usize]) -> String {
        let text = match &self.subject {
            Subject::Http(http) => http.log(parts, sizes),
            Subject::WebSocket(setup) => setup.log(parts, sizes),
        };
        match &self.hide {
            Some(line) => text.replace(line, ""),
            None => text,
        }
    }
}

fn unknown(case: &Case, name: &str, value: &str) -> String {
    format!("{}: option {name}={value} is not known", case.title)
}

fn option_of_http(http: &mut Http, limits: &mut Limits, name: &str, value: &str) -> Option<()> {
    match name {
        "app" => http.app = app(value)?,
        "method" => {
            let methods = value.split(',').filter(|method| !method.is_empty());
            http.methods = methods.map(str::to_owned).collect();
        }
        "wait" => http.wait = seconds(value)?,
        "limit_interim" => limits.max_interim_responses = value.parse().ok()?,
        "limit_body" => limits.max_body_bytes = Some(value.parse().ok()?),
        "limit_streams" => {
            limits.http2.max_concurrent_streams = value.parse().ok()?;
            limits.http3.max_concurrent_streams = value.parse().ok()?;
        }
        _ => return None,
    }
    Some(())
}

fn option_of_websocket(setup: &mut ws::Setup, name: &str, value: &str) -> Option<()> {
    match name {
        "app" => {
            setup.app = match value {
                "read" => ws::App::Read,
                "echo" => ws::App::Echo,
                "close" => ws::App::Close,
                _ => return None,
            }
        }
        "wait" => setup.wait = seconds(value)?,
        "deflate" => setup.deflate = true,
        "limit_message" => setup.limits.max_message_bytes = value.parse().ok()?,
        _ => return None,
    }
    Some(())
}

impl Http {
    fn new(case: &Case) -> Self {
        Self {
            side: case.side(),
            protocol: match (case.has("http2"), case.has("http3")) {
                (true, _) => Protocol::Http2,
                (_, true) => Protocol::Http3,
                _ => Protocol::Http1,
            },
            app: App::Read,
            methods: vec!["GET".into()],
            limits: Arc::default(),
            eof: case.has("eof"),
            wait: Duration::ZERO,
        }
    }

    fn log(&self, parts: &[Vec<u8>], sizes: &[usize]) -> String {
        let mut end = self.end();
        let mut sizes = sizes.iter().copied();
        for part in parts {
            match self.protocol {
                Protocol::Http3 => feed_streams(&mut end, part, &mut sizes),
                _ => feed(&mut end, part, &mut sizes),
            }
        }
        if self.eof {
            end.feed_eof();
        }
        end.advance(self.wait);
        end.log_text()
    }

    fn end(&self) -> End {
        let target = |method: &str| if method == "CONNECT" { "a:443" } else { "/" };
        let methods = self.methods.iter();
        let requests: Vec<_> = methods.map(|m| (m.as_str(), target(m))).collect();
        match self.side {
            Side::Server => End::server_of(self.protocol, &self.limits, self.app),
            Side::Client => End::client_of(self.protocol, &self.limits, &requests),
        }
    }
}

/// Feeds `wire` in pieces of these sizes; the rest is the last piece.
pub(crate) fn feed(end: &mut End, wire: &[u8], sizes: &mut impl Iterator<Item = usize>) {
    in_pieces(wire, sizes, |piece| end.feed(piece));
}

/// Feeds streams of HTTP/3: each arrival of bytes is cut into pieces of these sizes.
fn feed_streams(end: &mut End, part: &[u8], sizes: &mut impl Iterator<Item = usize>) {
    let mut arrivals = arrivals(part).into_iter().peekable();
    while let Some(arrival) = arrivals.next() {
        let Arrival::Bytes(id, bytes) = arrival else {
            end.arrive(arrival);
            continue;
        };
        // The end of a stream comes with its last bytes, as in a packet.
        let mut last = None;
        in_pieces(&bytes, sizes, |piece| {
            if let Some(piece) = last.replace(piece.to_vec()) {
                end.arrive(Arrival::Bytes(id, piece));
            }
        });
        let last = Arrival::Bytes(id, last.unwrap_or_default());
        match arrivals.next_if_eq(&Arrival::End(id)) {
            Some(ends) => end.arrive_together(vec![last, ends]),
            None => end.arrive(last),
        }
    }
}

fn app(name: &str) -> Option<App> {
    Some(match name {
        "read" => App::Read,
        "ignore" => App::Ignore,
        "close" => App::Close,
        "switch" => App::Switch,
        "manual" => App::Manual,
        _ => return None,
    })
}

fn seconds(text: &str) -> Option<Duration> {
    text.strip_suffix('s')?
        .parse()
        .ok()
        .map(Duration::from_secs)
}
