//! Options of requests and of the responses that they must get.

use super::body::{Bodies, read};
use super::messages::MessageOptions;
use super::values;
use crate::spec;
use crate::target::{Coding, Expect, SendMode, Target};
use towline_io::client::Credentials;

#[derive(Default)]
pub(super) struct RequestArgs {
    pub(super) method: Option<String>,
    /// The method of ab's file options, used if no method is given.
    upload_method: Option<&'static str>,
    pub(super) weights: Vec<u32>,
    fields: Vec<(Box<str>, Box<[u8]>)>,
    content_type: Option<String>,
    bodies: Bodies,
    pub(super) messages: MessageOptions,
    send_mode: Option<SendMode>,
    chunk_bytes: Option<u64>,
    expect: Expect,
}

impl RequestArgs {
    /// Applies an option; false if it is another one.
    pub(super) fn option(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match name {
            "weights" => {
                let weight = |text: &str| {
                    let number = text.parse::<u32>();
                    number.map_err(|_| format!("{text:?} is not a weight"))
                };
                self.weights = values::list(value, weight)?;
            }
            "method" => self.method = Some(value.into()),
            "header" => self.fields.push(values::header(value)?),
            "content-type" => self.content_type = Some(value.into()),
            "auth" => {
                let (user, password) = value.split_once(':').unwrap_or((value, ""));
                let basic = Credentials::new(user, password).basic();
                self.fields.push(("Authorization".into(), basic.into()));
            }
            "cookie" => self.fields.push(("Cookie".into(), value.as_bytes().into())),
            "put" => self.upload("PUT", value)?,
            "body" => self.bodies.text(value),
            "body-file" => self.bodies.file(value)?,
            "form" => self.bodies.form(value)?,
            "multipart" => self.bodies.part(value)?,
            "ws-size" => self.messages.size(value)?,
            "chunk-bytes" => self.chunk_bytes = Some(values::count(value)?),
            "drop-after" => {
                let bytes = value
                    .parse()
                    .map_err(|_| format!("{value:?} is not a number"))?;
                self.send_mode(SendMode::DropAfterBytes(bytes))?;
            }
            "slow-pieces" => {
                let (pieces, gap) = values::pieces(value)?;
                self.send_mode(SendMode::Pieces { pieces, gap })?;
            }
            "expect-status" => self.expect.status = Some(values::status(value)?),
            "expect-coding" => {
                self.expect.coding = Some(match value {
                    "gzip" => Coding::Gzip,
                    "deflate" => Coding::Deflate,
                    _ => return Err(format!("{value:?} is neither gzip nor deflate")),
                });
            }
            "expect-field" => self.expect.fields.push(values::header(value)?),
            "expect-length" => {
                let length = value
                    .parse()
                    .map_err(|_| format!("{value:?} is not a length"))?;
                self.expect.length = Some(length);
            }
            "expect-file" => self.expect.body = Some(read(value)?),
            "expect-sha256" => {
                let hash = spec::sha256(value).map_err(|error| error.to_string())?;
                self.expect.sha256 = Some(hash);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn send_mode(&mut self, send_mode: SendMode) -> Result<(), String> {
        match self.send_mode.replace(send_mode) {
            None => Ok(()),
            Some(_) => {
                Err("--slow-pieces, --expect-continue and --drop-after exclude each other".into())
            }
        }
    }

    /// ab's `-p` and `-u`.
    pub(super) fn upload(&mut self, method: &'static str, path: &str) -> Result<(), String> {
        self.bodies.file(path)?;
        self.upload_method.get_or_insert(method);
        Ok(())
    }

    /// The target of a URL.
    pub(super) fn target(&self, index: usize, url: &str) -> Result<Target, String> {
        let mut target = Target::get(url).map_err(|error| error.to_string())?;
        target.weight = self.weights.get(index).copied().unwrap_or(1);
        target.fields.clone_from(&self.fields);
        target.expect = self.expect.clone();
        target.send_mode = self.send_mode.unwrap_or_default();
        target.chunk_bytes = self.chunk_bytes;
        if target.messages.is_some() {
            if self.method.is_some() {
                return Err(
                    "a WebSocket has no method: it begins with a GET (RFC 6455 4.1)".into(),
                );
            }
            self.messages.apply(&mut target, &self.bodies)?;
            return Ok(target);
        }
        if !self.messages.are_absent() {
            return Err("--ws-size, --ws-binary and --ws-deflate need ws:// or wss://".into());
        }
        let (body, own_type) = self.bodies.one()?.unzip();
        target.body = body;
        if let Some(kind) = self.content_type.as_ref().or(own_type.flatten().as_ref()) {
            let field = ("Content-Type".into(), kind.as_bytes().into());
            target.fields.push(field);
        }
        let method = match (&self.method, self.upload_method, &target.body) {
            (Some(method), _, _) => method,
            (None, Some(method), _) => method,
            (None, None, Some(_)) => "POST",
            (None, None, None) => "GET",
        };
        target.method = method.into();
        Ok(target)
    }
}
