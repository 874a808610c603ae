//! WebSocket messages given on the command line.

use towline_proto::ws::Kind;

use super::body::Bodies;
use crate::target::{Target, message};

/// Limit of a message, as of bodies in a scenario.
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
        let wrong = || format!("{value:?} is not a size of a message, at most 1 GiB");
        self.bytes = Some(bytes.ok_or_else(wrong)?);
        Ok(())
    }

    /// Whether no message option was given.
    pub(super) fn are_absent(&self) -> bool {
        *self == Self::default()
    }

    /// Applies the options to `target`.
    pub(super) fn apply(self, target: &mut Target, bodies: &Bodies) -> Result<(), String> {
        match (bodies.one()?, self.bytes) {
            (Some(_), Some(_)) => return Err("--ws-size and a body exclude each other".into()),
            (Some((_, Some(_))), None) => {
                return Err("give a message with --body or --body-file".into());
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

    use super::super::args::parse;
    use super::super::job::Command;
    use super::*;

    fn target(line: &str) -> Result<Target, String> {
        match parse(line.split(' ').map(OsString::from))? {
            Command::Run(mut job) => Ok(job.config.targets.remove(0)),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn message_options_are_applied() {
        let usual = target("-c 9 ws://a/ws").unwrap();
        assert_eq!(usual.body.unwrap().len(), 1024);
        assert_eq!(usual.messages.unwrap().kind, Kind::Text);
        let sized = target("--ws-size 7 --ws-binary --ws-deflate wss://a/ws").unwrap();
        assert_eq!(sized.body.as_deref(), Some(&b"abcdefg"[..]));
        let messages = sized.messages.unwrap();
        assert_eq!((messages.kind, messages.deflate), (Kind::Binary, true));
        let target = target("--body hello ws://a/ws").unwrap();
        let body = target.body.as_deref();
        assert_eq!((&*target.method, body), ("GET", Some(&b"hello"[..])));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            ("--ws-size 1 http://a/", "ws://"),
            ("--ws-size 1 --body x ws://a/", "exclude"),
            ("--ws-size 1g ws://a/", "not a size"),
            ("--form a=b ws://a/", "--body-file"),
            ("-m PUT ws://a/", "no method"),
        ] {
            let why = target(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
