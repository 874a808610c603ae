//! Negotiation of permessage-deflate (RFC 7692 5 and 7.1): offers, responses, and the syntax of their header
//! field (RFC 6455 9.1).

use super::{Config, Direction, Params};

const NAME: &[u8] = b"permessage-deflate";
const MAX_BITS: u8 = 15;

/// A `Sec-WebSocket-Extensions` that does not follow its grammar, or a response that does not follow the offer:
/// the handshake must fail (RFC 6455 9.1, RFC 7692 7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MalformedExtension;

/// Server: chooses among the offers in the values of all `Sec-WebSocket-Extensions` fields. The first acceptable
/// offer is chosen; others are declined by omission. Returns the negotiated parameters.
pub fn server_accept<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    config: &Config,
) -> Result<Option<Params>, MalformedExtension> {
    let mut chosen = None;
    for value in values {
        // The whole list is parsed, so that errors after the chosen offer are found too.
        for extension in Extensions::new(value) {
            let (name, params) = extension?;
            if chosen.is_none() && name.eq_ignore_ascii_case(NAME) {
                chosen = ExtensionParams::read(&params, Sender::Client)
                    .map(|offer| offer.accept(config));
            }
        }
    }
    Ok(chosen)
}

/// Client: the value to offer.
pub fn client_offer(config: &Config) -> Vec<u8> {
    let mut offer = field_value(config.server, config.client);
    if config.client.window_bits == MAX_BITS {
        offer.extend_from_slice(b"; client_max_window_bits");
    }
    offer
}

/// Client: parses the response to [`client_offer`] of the same config (`None`: nothing was offered). A response
/// that was not solicited, or that exceeds the offer, is malformed.
pub fn client_accept<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    config: Option<&Config>,
) -> Result<Option<Params>, MalformedExtension> {
    let mut agreed = None;
    for value in values {
        for extension in Extensions::new(value) {
            let (name, params) = extension?;
            let config = config.ok_or(MalformedExtension)?;
            if agreed.is_some() || !name.eq_ignore_ascii_case(NAME) {
                return Err(MalformedExtension);
            }
            let response =
                ExtensionParams::read(&params, Sender::Server).ok_or(MalformedExtension)?;
            agreed = Some(response.agree(config).ok_or(MalformedExtension)?);
        }
    }
    Ok(agreed)
}

impl Params {
    /// Server: the header value of the response.
    pub fn response_value(&self) -> Vec<u8> {
        field_value(self.server, self.client)
    }
}

/// The extension with the parameters that differ from their defaults.
fn field_value(server: Direction, client: Direction) -> Vec<u8> {
    let mut value = NAME.to_vec();
    for (direction, name) in [
        (server, &b"; server_no_context_takeover"[..]),
        (client, b"; client_no_context_takeover"),
    ] {
        if !direction.takeover {
            value.extend_from_slice(name);
        }
    }
    for (direction, name) in [
        (server, &b"; server_max_window_bits="[..]),
        (client, b"; client_max_window_bits="),
    ] {
        if direction.window_bits < MAX_BITS {
            value.extend_from_slice(name);
            value.extend_from_slice(direction.window_bits.to_string().as_bytes());
        }
    }
    value
}

/// Sender of the parameters: only a client's `client_max_window_bits` may be without a value (RFC 7692 7.1.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    Client,
    Server,
}

/// The parameters of one offer or response.
#[derive(Debug, Default)]
struct ExtensionParams {
    server_no_takeover: bool,
    client_no_takeover: bool,
    server_bits: Option<u8>,
    /// `Some(15)` also if it has no value.
    client_bits: Option<u8>,
}

impl ExtensionParams {
    /// Parses the parameters. `None`: one is unknown, repeated, or has an invalid value (RFC 7692 7.1).
    fn read(list: &[Param<'_>], sender: Sender) -> Option<Self> {
        let mut params = Self::default();
        for (name, value) in list {
            let value = value.as_deref();
            match *name {
                b"server_no_context_takeover" if value.is_none() => {
                    once(&mut params.server_no_takeover)?;
                }
                b"client_no_context_takeover" if value.is_none() => {
                    once(&mut params.client_no_takeover)?;
                }
                b"server_max_window_bits" if params.server_bits.is_none() => {
                    params.server_bits = Some(window_bits(value?)?);
                }
                b"client_max_window_bits" if params.client_bits.is_none() => {
                    params.client_bits = Some(match value {
                        Some(value) => window_bits(value)?,
                        None if sender == Sender::Client => MAX_BITS,
                        None => return None,
                    });
                }
                _ => return None,
            }
        }
        Some(params)
    }

    /// A server's parameters for an offer. A client that cannot limit its window is asked to keep no context
    /// instead, which is always allowed (RFC 7692 7.1.1.2).
    fn accept(&self, config: &Config) -> Params {
        let limited = config.client.window_bits < MAX_BITS;
        Params {
            server: narrowed(config.server, self.server_no_takeover, self.server_bits),
            client: Direction {
                takeover: config.client.takeover
                    && !self.client_no_takeover
                    && !(limited && self.client_bits.is_none()),
                window_bits: self
                    .client_bits
                    .map_or(MAX_BITS, |bits| bits.min(config.client.window_bits)),
            },
        }
    }

    /// A client's parameters for a response. The server may always choose less than was offered.
    fn agree(&self, config: &Config) -> Option<Params> {
        let server_bits = self.server_bits.unwrap_or(MAX_BITS);
        let server_keeps = !self.server_no_takeover;
        if server_bits > config.server.window_bits || (server_keeps && !config.server.takeover) {
            return None;
        }
        Some(Params {
            server: Direction {
                takeover: server_keeps,
                window_bits: server_bits,
            },
            client: narrowed(config.client, self.client_no_takeover, self.client_bits),
        })
    }
}

/// The parameters that one end wants for a direction, narrowed by those of the other end.
fn narrowed(wanted: Direction, no_takeover: bool, bits: Option<u8>) -> Direction {
    Direction {
        takeover: wanted.takeover && !no_takeover,
        window_bits: wanted.window_bits.min(bits.unwrap_or(MAX_BITS)),
    }
}

fn once(flag: &mut bool) -> Option<()> {
    (!std::mem::replace(flag, true)).then_some(())
}

/// 8 to 15, without sign or leading zero.
fn window_bits(value: &[u8]) -> Option<u8> {
    match value {
        [digit @ b'8'..=b'9'] => Some(digit - b'0'),
        [b'1', digit @ b'0'..=b'5'] => Some(10 + digit - b'0'),
        _ => None,
    }
}

type Param<'a> = (&'a [u8], Option<Vec<u8>>);

/// The extensions of one field value: `1#extension`, empty elements allowed as in every list (RFC 9110 5.6.1.2).
struct Extensions<'a> {
    rest: &'a [u8],
}

impl<'a> Extensions<'a> {
    fn new(value: &'a [u8]) -> Self {
        Self { rest: value }
    }

    fn extension(&mut self) -> Result<(&'a [u8], Vec<Param<'a>>), MalformedExtension> {
        let name = self.token()?;
        let mut params = Vec::new();
        while self.skip(b';') {
            self.blanks();
            let name = self.token()?;
            let value = if self.skip(b'=') {
                self.blanks();
                Some(self.value()?)
            } else {
                None
            };
            params.push((name, value));
        }
        match self.rest {
            [] | [b',', ..] => Ok((name, params)),
            _ => Err(MalformedExtension),
        }
    }

    fn token(&mut self) -> Result<&'a [u8], MalformedExtension> {
        let end = self.rest.iter().position(|byte| !is_token(*byte));
        let (token, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        if token.is_empty() {
            Err(MalformedExtension)
        } else {
            Ok(token)
        }
    }

    /// A token, or a quoted string that holds one (RFC 6455 9.1).
    fn value(&mut self) -> Result<Vec<u8>, MalformedExtension> {
        let [b'"', rest @ ..] = self.rest else {
            return self.token().map(<[u8]>::to_vec);
        };
        self.rest = rest;
        let mut value = Vec::new();
        loop {
            match self.rest {
                [b'"', rest @ ..] => {
                    self.rest = rest;
                    return if value.is_empty() {
                        Err(MalformedExtension)
                    } else {
                        Ok(value)
                    };
                }
                [b'\\', byte, rest @ ..] | [byte, rest @ ..] if is_token(*byte) => {
                    value.push(*byte);
                    self.rest = rest;
                }
                _ => return Err(MalformedExtension),
            }
        }
    }

    fn skip(&mut self, byte: u8) -> bool {
        self.blanks();
        if self.rest.first() == Some(&byte) {
            self.rest = &self.rest[1..];
            true
        } else {
            false
        }
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_ascii_start();
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Result<(&'a [u8], Vec<Param<'a>>), MalformedExtension>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.skip(b',') {}
        if self.rest.is_empty() {
            return None;
        }
        let extension = self.extension();
        if extension.is_err() {
            self.rest = &[];
        }
        Some(extension)
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
