//! What goes through a WebSocket, as the command line says it.

use towline_proto::ws::Kind;

use super::body::Bodies;
use crate::target::{Target, message};

/// As of bodies in a scenario.
const MAX_BYTES: usize = 1 << 30;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MessageOptions {
    bytes: Option<usize>,
    pub(super) binary: bool,
    pub(super) deflate: bool,
}

impl MessageOptions {
    /// `--ws-size`.
    pub(super) fn size(&mut self, value: &str) -> Result<(), String> {
        let bytes = value.parse().ok().filter(|bytes| *bytes <= MAX_BYTES);
        let wrong = || format!("{value:?} is no size of a message: at most 1 GiB");
        self.bytes = Some(bytes.ok_or_else(wrong)?);
        Ok(())
    }

    /// Nothing was said of messages.
    pub(super) fn are_absent(&self) -> bool {
        *self == Self::default()
    }

    /// Makes `target` send what was asked for.
    pub(super) fn apply(self, target: &mut Target, bodies: &Bodies) -> Result<(), String> {
        match (bodies.one()?, self.bytes) {
            (Some(_), Some(_)) => return Err("--ws-size and a body exclude each other".into()),
            (Some((_, Some(_))), None) => {
                return Err("a message is given by --body or --body-file".into());
            }
            (Some((body, None)), None) => target.body = Some(body),
            (None, Some(bytes)) => target.body = Some(message(bytes)),
            (None, None) => {}
        }
        if let Some(messages) = &mut target.messages {
            messages.deflate = self.deflate;
            if self.binary {
                messages.kind = Kind::Binary;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::args::{Command, parse};
    use super::*;

    fn target(line: &str) -> Result<Target, String> {
        match parse(line.split(' ').map(OsString::from))? {
            Command::Run(mut job) => Ok(job.config.targets.remove(0)),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn what_goes_through_a_websocket() {
        let usual = target("-c 9 ws://a/ws").unwrap();
        assert_eq!(usual.body.unwrap().len(), 1024);
        assert_eq!(usual.messages.unwrap().kind, Kind::Text);
        let sized = target("--ws-size 7 --ws-binary --ws-deflate wss://a/ws").unwrap();
        assert_eq!(sized.body.as_deref(), Some(&b"abcdefg"[..]));
        let messages = sized.messages.unwrap();
        assert_eq!((messages.kind, messages.deflate), (Kind::Binary, true));
        let said = target("--body hello ws://a/ws").unwrap();
        let body = said.body.as_deref();
        assert_eq!((&*said.method, body), ("GET", Some(&b"hello"[..])));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("--ws-size 1 http://a/", "ws://"),
            ("--ws-size 1 --body x ws://a/", "exclude"),
            ("--ws-size 1g ws://a/", "no size"),
            ("--form a=b ws://a/", "--body-file"),
            ("-m PUT ws://a/", "no method"),
        ] {
            let why = target(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
