//! The load as data: the format of the agent's `open` and of `--scenario FILE`. Strict: an unknown key
//! is an error, since a misspelt one would silently change the load.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Deserialize;

use towline_proto::Protocol;
use towline_proto::ws::Kind;

use crate::capture::Capture;
use crate::config::{Config, Mix, Trust};
use crate::data::Data;
use crate::error::LoadError;
use crate::target::{Coding, Expect, Messages, SendMode, Target};
use crate::variables;

/// Limit of bodies, which are held in memory.
const MAX_BODY_BYTES: usize = 1 << 30;

/// A [`Config`] without its loop mode and its end.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spec {
    targets: Vec<TargetSpec>,
    mix: Mix,
    /// Rows of values: a CSV file, or JSON lines.
    data: Option<PathBuf>,
    connections: usize,
    threads: usize,
    protocol: ProtocolSpec,
    pipeline: usize,
    streams: usize,
    requests_per_connection: Option<u64>,
    says_close: bool,
    barrier: bool,
    connects_in_slice: bool,
    timeout_s: f64,
    connect_timeout_s: f64,
    trust: Trust,
    seed: u64,
    refusal_statuses: Vec<u16>,
    unix_socket: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
enum ProtocolSpec {
    #[default]
    #[serde(rename = "h1")]
    Http1,
    #[serde(rename = "h2")]
    Http2,
    #[serde(rename = "h3")]
    Http3,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TargetSpec {
    url: String,
    /// In reports; method and path if it is absent.
    #[serde(default)]
    name: Option<Box<str>>,
    #[serde(default = "get")]
    method: Box<str>,
    #[serde(default)]
    fields: Vec<(Box<str>, String)>,
    #[serde(default)]
    body: Option<BodySpec>,
    #[serde(default)]
    chunk_bytes: Option<u64>,
    #[serde(default)]
    expect: ExpectSpec,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    send_mode: SendModeSpec,
    /// For a WebSocket (`ws://`), whose `body` is its message; text by default.
    #[serde(default)]
    message: Option<KindSpec>,
    #[serde(default)]
    deflate: bool,
    /// Names of values to take from the response, with their places.
    #[serde(default)]
    capture: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindSpec {
    Text,
    Binary,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ExpectSpec {
    status: Option<u16>,
    length: Option<u64>,
    body: Option<BodySpec>,
    sha256: Option<String>,
    coding: Option<Coding>,
    fields: Vec<(Box<str>, String)>,
    trailers: Vec<(Box<str>, String)>,
}

/// `{"text": ..}`, `{"base64": ..}`, `{"repeat": .., "count": ..}` or `{"file": ..}`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct BodySpec {
    text: Option<String>,
    base64: Option<String>,
    repeat: Option<String>,
    count: Option<usize>,
    file: Option<PathBuf>,
}

/// `"whole"`, `"await_continue"`, `{"pieces": 5, "gap_ms": 1.0}` or `{"drop_after_bytes": 128}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum SendModeSpec {
    Name(String),
    Numbers(SendModeNumbers),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SendModeNumbers {
    pieces: Option<u32>,
    gap_ms: Option<f64>,
    drop_after_bytes: Option<u64>,
}

fn get() -> Box<str> {
    "GET".into()
}

fn one() -> u32 {
    1
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            mix: Mix::default(),
            data: None,
            connections: 10,
            threads: 1,
            protocol: ProtocolSpec::default(),
            pipeline: 1,
            streams: 1,
            requests_per_connection: None,
            says_close: true,
            barrier: false,
            connects_in_slice: false,
            timeout_s: 10.0,
            connect_timeout_s: 5.0,
            trust: Trust::default(),
            seed: 1,
            refusal_statuses: Vec::new(),
            unix_socket: None,
        }
    }
}

impl Default for SendModeSpec {
    fn default() -> Self {
        Self::Name("whole".into())
    }
}

impl Spec {
    /// Reads the files that it names. The result is a closed loop of ten seconds.
    pub fn config(self) -> Result<Config, LoadError> {
        let targets = self.targets.into_iter().map(TargetSpec::target);
        let config = Config {
            mix: self.mix,
            data: (self.data.as_deref())
                .map(|path| Data::read(path).map(Arc::new))
                .transpose()?,
            connections: self.connections,
            threads: self.threads,
            protocol: match self.protocol {
                ProtocolSpec::Http1 => Protocol::Http1,
                ProtocolSpec::Http2 => Protocol::Http2,
                ProtocolSpec::Http3 => Protocol::Http3,
            },
            pipeline: self.pipeline,
            streams: self.streams,
            requests_per_connection: self.requests_per_connection,
            says_close: self.says_close,
            barrier: self.barrier,
            connects_in_slice: self.connects_in_slice,
            timeout: seconds("timeout_s", self.timeout_s)?,
            connect_timeout: seconds("connect_timeout_s", self.connect_timeout_s)?,
            trust: self.trust,
            seed: self.seed,
            refusal_statuses: self.refusal_statuses,
            unix_socket: self.unix_socket,
            ..Config::new(targets.collect::<Result<_, _>>()?)
        };
        config.check()?;
        variables::check(&config)?;
        Ok(config)
    }
}

impl TargetSpec {
    fn target(self) -> Result<Target, LoadError> {
        let mut target = Target::get(&self.url)?;
        target.name = self.name;
        target.method = self.method;
        target.fields = pairs(self.fields);
        if let Some(body) = self.body {
            target.body = Some(body.bytes()?);
        }
        match &mut target.messages {
            Some(messages) => {
                *messages = Messages {
                    kind: self.message.map_or(Kind::Text, KindSpec::kind),
                    deflate: self.deflate,
                }
            }
            None if self.message.is_some() || self.deflate => {
                return Err(wrong("message and deflate need a WebSocket (ws://)".into()));
            }
            None => {}
        }
        target.chunk_bytes = self.chunk_bytes;
        target.weight = self.weight;
        target.send_mode = self.send_mode.send_mode()?;
        let expect = self.expect;
        target.expect = Expect {
            status: expect.status,
            length: expect.length,
            body: expect.body.map(BodySpec::bytes).transpose()?,
            sha256: expect.sha256.as_deref().map(sha256).transpose()?,
            coding: expect.coding,
            fields: pairs(expect.fields),
            trailers: pairs(expect.trailers),
            captures: (self.capture.iter())
                .map(|(name, source)| Capture::parse(name, source).map_err(wrong))
                .collect::<Result<_, _>>()?,
        };
        Ok(target)
    }
}

impl KindSpec {
    fn kind(self) -> Kind {
        match self {
            Self::Text => Kind::Text,
            Self::Binary => Kind::Binary,
        }
    }
}

impl BodySpec {
    fn bytes(self) -> Result<Bytes, LoadError> {
        match self {
            Self {
                text: Some(text),
                base64: None,
                repeat: None,
                count: None,
                file: None,
            } => Ok(text.into()),
            Self {
                text: None,
                base64: Some(digits),
                repeat: None,
                count: None,
                file: None,
            } => {
                let bytes = STANDARD.decode(digits);
                bytes
                    .map(Bytes::from)
                    .map_err(|error| wrong(format!("invalid base64 of a body: {error}")))
            }
            Self {
                text: None,
                base64: None,
                repeat: Some(unit),
                count: Some(count),
                file: None,
            } => {
                let length = unit.len().checked_mul(count);
                if length.is_none_or(|length| length > MAX_BODY_BYTES) {
                    return Err(wrong("a repeated body is larger than 1 GiB".into()));
                }
                Ok(unit.repeat(count).into())
            }
            Self {
                text: None,
                base64: None,
                repeat: None,
                count: None,
                file: Some(path),
            } => std::fs::read(&path)
                .map(Bytes::from)
                .map_err(|error| wrong(format!("{}: {error}", path.display()))),
            _ => Err(wrong(
                "a body is one of text, base64, file, or repeat with count".into(),
            )),
        }
    }
}

impl SendModeSpec {
    fn send_mode(self) -> Result<SendMode, LoadError> {
        let numbers = match self {
            Self::Name(word) => {
                return match word.as_str() {
                    "whole" => Ok(SendMode::Whole),
                    "await_continue" => Ok(SendMode::AwaitContinue),
                    _ => Err(wrong(format!(
                        "send_mode is \"whole\" or \"await_continue\", not {word:?}, or it has numbers"
                    ))),
                };
            }
            Self::Numbers(numbers) => numbers,
        };
        match (numbers.pieces, numbers.gap_ms, numbers.drop_after_bytes) {
            (Some(pieces), Some(ms), None) => Ok(SendMode::Pieces {
                pieces,
                gap: seconds("gap_ms", ms / 1000.0)?,
            }),
            (None, None, Some(bytes)) => Ok(SendMode::DropAfterBytes(bytes)),
            _ => Err(wrong(
                "send_mode has pieces and gap_ms, or drop_after_bytes".into(),
            )),
        }
    }
}

fn pairs(fields: Vec<(Box<str>, String)>) -> Vec<(Box<str>, Box<[u8]>)> {
    let pair = |(name, value): (Box<str>, String)| (name, value.into_bytes().into());
    fields.into_iter().map(pair).collect()
}

fn seconds(name: &str, value: f64) -> Result<Duration, LoadError> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|time| *time <= Duration::from_secs(24 * 3600))
        .ok_or_else(|| {
            wrong(format!(
                "{name} must be a time of at most a day, not {value}"
            ))
        })
}

/// 64 hexadecimal digits.
pub(crate) fn sha256(text: &str) -> Result<[u8; 32], LoadError> {
    let no_hash = || wrong(format!("{text:?} is not 64 hexadecimal digits"));
    let mut hash = [0; 32];
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(no_hash());
    }
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| no_hash())?;
    }
    Ok(hash)
}

fn wrong(why: String) -> LoadError {
    LoadError::Config(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(json: &str) -> Result<Config, String> {
        let spec: Spec = serde_json::from_str(json).map_err(|error| error.to_string())?;
        spec.config().map_err(|error| error.to_string())
    }

    fn one(target: &str) -> Result<Target, String> {
        let mut config = config(&format!(r#"{{"targets":[{target}]}}"#))?;
        Ok(config.targets.remove(0))
    }

    #[test]
    fn a_full_specification() {
        let config = config(
            r#"{"targets":[{"url":"http://127.0.0.1:8000/","method":"POST","fields":[["Host","x"]],
                "body":{"repeat":"x","count":256},"weight":3,"send_mode":"await_continue",
                "expect":{"status":200,"length":null,"body":{"text":"ok"},"coding":"gzip",
                "fields":[["location","/target"]]}}],
              "mix":"at_random","connections":50,"threads":1,"pipeline":1,"requests_per_connection":1,
              "barrier":true,"connects_in_slice":true,"timeout_s":5,"connect_timeout_s":0.5,"trust":{"path":"/ca.pem"},"seed":9,
              "refusal_statuses":[503]}"#,
        );
        let config = config.unwrap();
        let target = &config.targets[0];
        assert_eq!(target.body.as_deref(), Some(&[b'x'; 256][..]));
        assert_eq!(target.send_mode, SendMode::AwaitContinue);
        assert_eq!(target.expect.coding, Some(Coding::Gzip));
        assert_eq!(target.expect.body.as_deref(), Some(&b"ok"[..]));
        assert_eq!(&*target.expect.fields[0].1, b"/target");
        assert_eq!(config.connect_timeout, Duration::from_millis(500));
        assert_eq!(config.trust, Trust::Path("/ca.pem".into()));
        assert!(config.barrier && config.connects_in_slice && config.mix == Mix::AtRandom);
        assert_eq!((config.seed, config.refusal_statuses), (9, vec![503]));
    }

    #[test]
    fn every_body_and_every_send_mode() {
        let url = r#""url":"http://a/""#;
        let body = |text: &str| one(&format!(r#"{{{url},"body":{text}}}"#)).unwrap().body;
        assert_eq!(body(r#"{"base64":"AP8="}"#).as_deref(), Some(&[0, 255][..]));
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let read = body(&format!(r#"{{"file":{manifest:?}}}"#)).unwrap();
        assert!(read.starts_with(b"[package]"));
        for (text, send_mode) in [
            ("\"whole\"", SendMode::Whole),
            (
                r#"{"pieces":5,"gap_ms":1.0}"#,
                SendMode::Pieces {
                    pieces: 5,
                    gap: Duration::from_millis(1),
                },
            ),
            (r#"{"drop_after_bytes":1}"#, SendMode::DropAfterBytes(1)),
        ] {
            let target = one(&format!(
                r#"{{{url},"body":{{"text":"ab"}},"send_mode":{text}}}"#
            ));
            assert_eq!(target.unwrap().send_mode, send_mode, "{text}");
        }
    }

    #[test]
    fn messages_of_websockets() {
        let text = one(r#"{"url":"ws://a/ws","body":{"repeat":"x","count":9}}"#).unwrap();
        assert_eq!(text.messages.unwrap().kind, Kind::Text);
        assert_eq!(text.body.as_deref(), Some(&[b'x'; 9][..]));
        let packed =
            one(r#"{"url":"wss://a/","message":"binary","deflate":true,"body":{"base64":"AP8="}}"#);
        let messages = packed.unwrap().messages.unwrap();
        assert_eq!((messages.kind, messages.deflate), (Kind::Binary, true));
    }

    #[test]
    fn hashes() {
        assert_eq!(sha256(&"0f".repeat(32)).unwrap(), [15; 32]);
        assert!(sha256(&"+f".repeat(32)).is_err());
    }

    #[test]
    fn mistakes_are_named() {
        for (json, part) in [
            ("{}", "URL is missing"),
            (r#"{"targetz":[]}"#, "targetz"),
            (r#"{"targets":[{"url":"http://a/","metod":"X"}]}"#, "metod"),
            (r#"{"targets":[{"url":"a"}]}"#, "http://"),
            (
                r#"{"targets":[{"url":"http://a/","body":{"repeat":"x"}}]}"#,
                "repeat with count",
            ),
            (
                r#"{"targets":[{"url":"http://a/","body":{"repeat":"xx","count":9223372036854775808}}]}"#,
                "1 GiB",
            ),
            (
                r#"{"targets":[{"url":"http://a/","body":{"base64":"?"}}]}"#,
                "base64",
            ),
            (
                r#"{"targets":[{"url":"http://a/","send_mode":"fast"}]}"#,
                "fast",
            ),
            (
                r#"{"targets":[{"url":"http://a/","send_mode":{"pieces":2}}]}"#,
                "gap_ms",
            ),
            (
                r#"{"targets":[{"url":"http://a/","chunk_bytes":2}]}"#,
                "needs a body",
            ),
            (
                r#"{"targets":[{"url":"http://a/","message":"text"}]}"#,
                "need a WebSocket",
            ),
            (
                r#"{"targets":[{"url":"ws://a/","message":"texts"}]}"#,
                "texts",
            ),
            (
                r#"{"targets":[{"url":"http://a/"}],"timeout_s":-1}"#,
                "timeout_s",
            ),
            (
                r#"{"targets":[{"url":"http://a/"}],"barrier":true,"threads":2}"#,
                "barrier",
            ),
        ] {
            let why = config(json).unwrap_err();
            assert!(why.contains(part), "{json}: {why}");
        }
    }
}
