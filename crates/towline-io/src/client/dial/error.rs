//! Errors of a dial.

use std::fmt;
use std::io;

/// Phase that a dial had reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialPhase {
    Resolve,
    Connect,
    Proxy,
    Tls,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialErrorKind {
    Dns,
    Connect,
    Tls,
    /// The proxy refused, or violated its protocol.
    Proxy,
    /// The deadline passed, in `phase`.
    Timeout,
}

/// A message for the user, free of secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialError {
    pub kind: DialErrorKind,
    pub phase: DialPhase,
    pub message: String,
    /// Status of the response with which an HTTP proxy refused.
    pub proxy_status: Option<u16>,
    /// `errno` of the failed system call.
    pub os_error: Option<i32>,
}

impl DialError {
    pub(crate) fn new(kind: DialErrorKind, message: impl Into<String>) -> Self {
        let phase = match kind {
            DialErrorKind::Dns => DialPhase::Resolve,
            DialErrorKind::Connect | DialErrorKind::Timeout => DialPhase::Connect,
            DialErrorKind::Proxy => DialPhase::Proxy,
            DialErrorKind::Tls => DialPhase::Tls,
        };
        Self {
            kind,
            phase,
            message: message.into(),
            proxy_status: None,
            os_error: None,
        }
    }

    /// The connection is established, but registering it with epoll failed.
    pub(crate) fn registration(error: &io::Error) -> Self {
        let message = format!("the new connection could not be watched: {error}");
        Self::new(DialErrorKind::Connect, message).because(error)
    }

    pub(crate) fn timeout(phase: DialPhase, message: impl Into<String>) -> Self {
        Self {
            phase,
            ..Self::new(DialErrorKind::Timeout, message)
        }
    }

    pub(crate) fn because(mut self, error: &io::Error) -> Self {
        self.os_error = error.raw_os_error();
        self
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for DialError {}

/// The system's error message, without its number.
pub(super) fn os_message(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((message, _)) => message.to_owned(),
        None => text,
    }
}
