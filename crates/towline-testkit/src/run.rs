//! Runs one conformance case with one way to cut its wire.

use std::sync::Arc;
use std::time::Duration;

use towline_proto::{Limits, Side};

use crate::case::Case;
use crate::{App, End};

/// What a case's options say.
#[derive(Clone, Debug)]
pub struct Setup {
    pub side: Side,
    pub app: App,
    pub methods: Vec<String>,
    pub limits: Arc<Limits>,
    pub eof: bool,
    pub wait: Duration,
    pub cuts: bool,
    hide: Option<String>,
}

impl Setup {
    /// # Errors
    /// An option that is not known: a typing error must not change what is tested in silence.
    pub fn of(case: &Case) -> Result<Self, String> {
        let client = case.has("client");
        let mut limits = if client {
            Limits::client()
        } else {
            Limits::server()
        };
        let mut setup = Self {
            side: if client { Side::Client } else { Side::Server },
            app: App::Read,
            methods: vec!["GET".into()],
            limits: Arc::new(Limits::server()),
            eof: case.has("eof"),
            wait: Duration::ZERO,
            cuts: !case.has("nocut"),
            hide: case.option("hide").map(|what| format!("wrote {what}\n")),
        };
        for (name, value) in &case.options {
            let unknown = || format!("{}: option {name}={value} is not known", case.title);
            match name.as_str() {
                "client" | "eof" | "nocut" | "hide" => {}
                "app" => setup.app = app(value).ok_or_else(unknown)?,
                "method" => {
                    setup.methods = value
                        .split(',')
                        .filter(|m| !m.is_empty())
                        .map(str::to_owned)
                        .collect();
                }
                "wait" => setup.wait = seconds(value).ok_or_else(unknown)?,
                "limit_body" => limits.max_body_bytes = Some(value.parse().map_err(|_| unknown())?),
                _ => return Err(unknown()),
            }
        }
        setup.limits = Arc::new(limits);
        Ok(setup)
    }

    /// The event log of a wire whose parts are fed in pieces of these sizes; a part begins a new piece.
    pub fn log(&self, parts: &[Vec<u8>], sizes: &[usize]) -> String {
        let mut end = self.end();
        let mut sizes = sizes.iter().copied();
        for part in parts {
            feed(&mut end, part, &mut sizes);
        }
        if self.eof {
            end.feed_eof();
        }
        end.advance(self.wait);
        let text = end.log_text();
        match &self.hide {
            Some(line) => text.replace(line, ""),
            None => text,
        }
    }

    fn end(&self) -> End {
        match self.side {
            Side::Server => End::server(&self.limits, self.app),
            Side::Client => {
                let target = |method: &str| if method == "CONNECT" { "a:443" } else { "/" };
                let requests: Vec<_> = self
                    .methods
                    .iter()
                    .map(|m| (m.as_str(), target(m)))
                    .collect();
                End::client(&self.limits, &requests)
            }
        }
    }
}

/// Feeds `wire` in pieces of these sizes; what they leave over is the last piece.
pub(crate) fn feed(end: &mut End, wire: &[u8], sizes: &mut impl Iterator<Item = usize>) {
    let mut rest = wire;
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(rest.len());
        let (piece, after) = rest.split_at(size.min(rest.len()));
        end.feed(piece);
        rest = after;
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
