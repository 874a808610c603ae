//! SOCKS 5 (RFC 1928) with user and password (RFC 1929).
//!
//! ```text
//! methods ─► Method ─┬─────────────► request ─► Reply ─► Done
//!                    └─► Password ──────┘
//! ```

use std::net::{IpAddr, SocketAddr};

use super::{Refusal, Step};
use crate::client::route::Credentials;

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USER_PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

#[derive(Debug)]
pub(super) struct Socks {
    state: State,
    /// Bytes of the message being received: 262 at most.
    message: Vec<u8>,
    request: Vec<u8>,
    /// Message of the sub-negotiation (RFC 1929), if there are credentials.
    login: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Method,
    Password,
    Reply,
}

/// Destination that the proxy is to connect to, as encoded in a request.
#[derive(Debug)]
pub(super) struct Target(Vec<u8>);

impl Target {
    /// Encodes type, address and port (RFC 1928 5).
    pub(super) fn new(host: &str, port: u16, addr: Option<SocketAddr>) -> Result<Self, Refusal> {
        let mut bytes = Vec::new();
        let ip = addr.map(|addr| addr.ip()).or_else(|| host.parse().ok());
        match ip {
            Some(IpAddr::V4(ip)) => {
                bytes.push(IPV4);
                bytes.extend(ip.octets());
            }
            Some(IpAddr::V6(ip)) => {
                bytes.push(IPV6);
                bytes.extend(ip.octets());
            }
            None => {
                bytes.push(NAME);
                push_with_length(host.as_bytes(), &mut bytes).ok_or_else(|| {
                    Refusal::new("cannot resolve a name of that length (RFC 1928 5)")
                })?;
            }
        }
        bytes.extend(addr.map_or(port, |addr| addr.port()).to_be_bytes());
        Ok(Self(bytes))
    }
}

impl Socks {
    pub(super) fn start(
        credentials: Option<&Credentials>,
        target: Target,
        outbox: &mut Vec<u8>,
    ) -> Result<Self, Refusal> {
        let mut request = vec![VERSION, CONNECT, 0];
        request.extend(target.0);
        let login = credentials.map(login).transpose()?;
        if login.is_some() {
            outbox.extend([VERSION, 2, NO_AUTHENTICATION, USER_PASSWORD]);
        } else {
            outbox.extend([VERSION, 1, NO_AUTHENTICATION]);
        }
        Ok(Self {
            state: State::Method,
            message: Vec::new(),
            request,
            login,
        })
    }

    pub(super) fn received(
        &mut self,
        mut bytes: &[u8],
        outbox: &mut Vec<u8>,
    ) -> Result<Step, Refusal> {
        loop {
            let (now, rest) = bytes.split_at(self.missing().min(bytes.len()));
            self.message.extend_from_slice(now);
            bytes = rest;
            self.check()?;
            if self.message.len() < self.expected_length() {
                if bytes.is_empty() {
                    return Ok(Step::More);
                }
                continue;
            }
            let message = std::mem::take(&mut self.message);
            match self.state {
                State::Method if message[1] == USER_PASSWORD => {
                    self.state = State::Password;
                    outbox.extend(self.login.take().unwrap_or_default());
                }
                State::Method | State::Password => {
                    self.state = State::Reply;
                    outbox.append(&mut self.request);
                }
                State::Reply => return Ok(Step::Done),
            }
        }
    }

    /// Bytes of the message that have not arrived, as far as its length is known.
    pub(super) fn missing(&self) -> usize {
        self.expected_length() - self.message.len()
    }

    /// Length of the message, as far as its first bytes determine it.
    fn expected_length(&self) -> usize {
        match (self.state, self.message.get(3), self.message.get(4)) {
            (State::Method | State::Password, ..) => 2,
            (State::Reply, None, _) => 4,
            (State::Reply, Some(&IPV4), _) => 10,
            (State::Reply, Some(&IPV6), _) => 22,
            (State::Reply, Some(_), None) => 5,
            (State::Reply, Some(_), Some(&length)) => 7 + usize::from(length),
        }
    }

    /// Refuses an invalid message before it is complete: some proxies close without sending the rest.
    fn check(&self) -> Result<(), Refusal> {
        let version = if self.state == State::Password {
            1
        } else {
            VERSION
        };
        match (self.state, &self.message[..]) {
            (_, [first, ..]) if *first != version => Err(Refusal::new("does not speak SOCKS 5")),
            (State::Method, [_, NO_METHOD]) => Err(Refusal::new(if self.login.is_some() {
                "accepts neither no authentication nor user and password"
            } else {
                "requires credentials"
            })),
            (State::Method, [_, NO_AUTHENTICATION]) => Ok(()),
            (State::Method, [_, USER_PASSWORD]) if self.login.is_some() => Ok(()),
            (State::Method, [_, _]) => Err(Refusal::new(
                "chose a method that was not offered (RFC 1928 3)",
            )),
            (State::Password, [_, code]) if *code != 0 => {
                Err(Refusal::new("does not accept the user or the password"))
            }
            (State::Reply, [_, code, ..]) if *code != 0 => Err(Refusal {
                address_specific: (1..=6).contains(code) || *code == 8,
                ..Refusal::new(reply_text(*code))
            }),
            (State::Reply, [_, _, _, kind, ..]) if ![IPV4, NAME, IPV6].contains(kind) => {
                Err(Refusal::new("sent an unknown address type (RFC 1928 6)"))
            }
            _ => Ok(()),
        }
    }
}

/// Encodes the user and the password (RFC 1929 2). An empty password, of a URL like `user@host`, is sent as other
/// clients do.
fn login(credentials: &Credentials) -> Result<Vec<u8>, Refusal> {
    let mut bytes = vec![1];
    let password = credentials.password();
    let pushed = push_with_length(credentials.user(), &mut bytes).and_then(|()| {
        if password.is_empty() {
            bytes.push(0);
            return Some(());
        }
        push_with_length(password, &mut bytes)
    });
    pushed.ok_or_else(|| {
        Refusal::new("takes a user and a password of 1 to 255 bytes (RFC 1929 2)")
    })?;
    Ok(bytes)
}

/// Appends one byte of length, 1 to 255, and the bytes.
fn push_with_length(text: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let length = u8::try_from(text.len()).ok().filter(|length| *length > 0)?;
    out.push(length);
    out.extend_from_slice(text);
    Some(())
}

/// Describes a reply code (RFC 1928 6).
fn reply_text(code: u8) -> String {
    let reason = match code {
        1 => "general failure",
        2 => "not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "time to live expired",
        7 => "it does not know CONNECT",
        8 => "it does not know this type of address",
        _ => "unassigned reason",
    };
    format!("cannot connect: {reason} (reply {code})")
}
