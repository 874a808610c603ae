//! The value of an `Alt-Svc` header (RFC 7838 3). Strict: a value with a syntax error has no effect at all.

use std::time::Duration;

/// Alternatives taken of one value; further ones are less preferred and ignored.
pub(super) const MAX_ALTERNATIVES: usize = 4;

/// Longest value that is parsed. Real ones have some ten bytes per alternative.
const MAX_VALUE_BYTES: usize = 4096;

/// Lifetime of an alternative without `ma` (RFC 7838 3.1).
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Bound of `ma`: a mistake of a server is forgotten within a season.
pub(super) const LONGEST_LIFETIME: Duration = Duration::from_secs(90 * 24 * 3600);

/// The meaning of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AltSvc {
    /// The origin withdraws its alternatives.
    Clear,
    /// Replaces the known alternatives of the origin; the preferred one first. Those with protocols other than `h3`
    /// are left out, so it may be empty.
    Alternatives(Vec<AltValue>),
}

/// An alternative service that speaks HTTP/3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AltValue {
    /// `None`: the host of the origin. In lower case, an IPv6 address without brackets.
    pub(super) host: Option<Box<str>>,
    pub(super) port: u16,
    pub(super) lifetime: Duration,
    /// The alternative stays valid when the network changes.
    pub(super) persist: bool,
}

/// Parses a value; several header lines are joined with commas before (RFC 9110 5.3). `None`: a syntax error.
pub(super) fn parse(value: &[u8]) -> Option<AltSvc> {
    if value.len() > MAX_VALUE_BYTES {
        return None;
    }
    if trim(value) == b"clear" {
        return Some(AltSvc::Clear);
    }
    let mut reader = Reader(value);
    let mut alternatives = Vec::new();
    let mut any = false;
    loop {
        // Empty elements of a list are allowed (RFC 9110 5.6.1.2).
        reader.skip_spaces();
        if !reader.is_empty() && !reader.is_at(b',') {
            any = true;
            let (protocol, found) = reader.alternative()?;
            // A name has one form only (RFC 7838 3): its letters and digits are not percent-encoded.
            let is_usable = protocol == b"h3" && found.port != 0;
            if is_usable && alternatives.len() < MAX_ALTERNATIVES {
                alternatives.push(found);
            }
            reader.skip_spaces();
        }
        if reader.is_empty() {
            return any.then_some(AltSvc::Alternatives(alternatives));
        }
        reader.take(b',')?;
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn is_at(&self, byte: u8) -> bool {
        self.0.first() == Some(&byte)
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    fn skip_spaces(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    /// `protocol-id "=" alt-authority *( OWS ";" OWS parameter )`
    fn alternative(&mut self) -> Option<(&'a [u8], AltValue)> {
        let protocol = self.token()?;
        self.take(b'=')?;
        let authority = self.quoted_string()?;
        let (host, port) = split_authority(&authority)?;
        let mut alternative = AltValue {
            host,
            port,
            lifetime: DEFAULT_LIFETIME,
            persist: false,
        };
        loop {
            self.skip_spaces();
            if self.take(b';').is_none() {
                break;
            }
            self.skip_spaces();
            let name = self.token()?;
            self.take(b'=')?;
            let value = if self.is_at(b'"') {
                self.quoted_string()?
            } else {
                self.token()?.to_vec()
            };
            match name {
                b"ma" => alternative.lifetime = seconds(&value)?.min(LONGEST_LIFETIME),
                // Any other value has no meaning (RFC 7838 3.1).
                b"persist" => alternative.persist = value == b"1",
                _ => {}
            }
        }
        Some((protocol, alternative))
    }

    fn token(&mut self) -> Option<&'a [u8]> {
        let is_token =
            |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
        let end = self.0.iter().position(|byte| !is_token(byte));
        let (token, rest) = self.0.split_at(end.unwrap_or(self.0.len()));
        self.0 = rest;
        (!token.is_empty()).then_some(token)
    }

    /// A quoted string (RFC 9110 5.6.4), without quotes and escapes.
    fn quoted_string(&mut self) -> Option<Vec<u8>> {
        self.take(b'"')?;
        let mut text = Vec::new();
        loop {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let byte = match byte {
                b'"' => return Some(text),
                b'\\' => {
                    let (&escaped, rest) = self.0.split_first()?;
                    self.0 = rest;
                    escaped
                }
                byte => byte,
            };
            let is_text = matches!(byte, b'\t' | b' '..=b'~' | 0x80..=0xff);
            is_text.then(|| text.push(byte))?;
        }
    }
}

/// Splits `[ uri-host ] ":" port`.
fn split_authority(authority: &[u8]) -> Option<(Option<Box<str>>, u16)> {
    let colon = authority.iter().rposition(|&byte| byte == b':')?;
    let (host, port) = (&authority[..colon], &authority[colon + 1..]);
    let port = std::str::from_utf8(port).ok().filter(|_| is_digits(port))?;
    let port = port.parse().ok()?;
    if host.is_empty() {
        return Some((None, port));
    }
    Some((Some(uri_host(host)?), port))
}

/// An IP address or a name in the form of `Route::host`.
pub(super) fn uri_host(host: &[u8]) -> Option<Box<str>> {
    let text = std::str::from_utf8(host).ok()?;
    if let Some(address) = text.strip_prefix('[') {
        let address = address.strip_suffix(']')?;
        let parsed: std::net::Ipv6Addr = address.parse().ok()?;
        return Some(parsed.to_string().into());
    }
    let is_name = text.len() <= 253
        && host
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(byte));
    is_name.then(|| text.to_ascii_lowercase().into())
}

/// `1*DIGIT`; a number beyond the range means as long as possible (RFC 9111 1.2.2).
pub(super) fn seconds(value: &[u8]) -> Option<Duration> {
    if !is_digits(value) {
        return None;
    }
    let seconds = value.iter().fold(0_u64, |sum, digit| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    });
    Some(Duration::from_secs(seconds))
}

fn is_digits(value: &[u8]) -> bool {
    !value.is_empty() && value.iter().all(u8::is_ascii_digit)
}

fn trim(value: &[u8]) -> &[u8] {
    let mut reader = Reader(value);
    reader.skip_spaces();
    let mut value = reader.0;
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(value: &str) -> String {
        match parse(value.as_bytes()) {
            None => "error".into(),
            Some(AltSvc::Clear) => "clear".into(),
            Some(AltSvc::Alternatives(found)) => {
                let each = found.iter().map(|alternative| {
                    let host = alternative.host.as_deref().unwrap_or("");
                    let persist = if alternative.persist { " persist" } else { "" };
                    let seconds = alternative.lifetime.as_secs();
                    format!("{host}:{} {seconds}{persist}", alternative.port)
                });
                each.collect::<Vec<_>>().join(", ")
            }
        }
    }

    #[test]
    fn values_of_the_rfc_and_of_servers() {
        for (value, expected) in [
            (r#"h3=":443""#, ":443 86400"),
            (
                r#"h3=":443"; ma=2592000,h3-29=":443"; ma=2592000"#,
                ":443 2592000",
            ),
            (r#"h2="alt.example.com:8000", h2=":443""#, ""),
            (
                r#"h2=":443", h3="Alt.Example.com:8443" ; persist=1;ma=60"#,
                "alt.example.com:8443 60 persist",
            ),
            (r#"h3="[2001:DB8::1]:443""#, "2001:db8::1:443 86400"),
            ("clear", "clear"),
            (" \tclear ", "clear"),
            (r#"h3=":443"; v="46,43"; x=y"#, ":443 86400"),
            (r#", h3=":443" ,, "#, ":443 86400"),
            (r#"h3=":443"; ma=99999999999999999999999"#, ":443 7776000"),
            (r#"h3=":443"; ma="3600""#, ":443 3600"),
            (r#"h3=":443"; persist=2"#, ":443 86400"),
            (r#"h3=":\443""#, ":443 86400"),
            (r#"h3=":0""#, ""),
            (
                r#"h3=":1",h3=":2",h3=":3",h3=":4",h3=":5""#,
                ":1 86400, :2 86400, :3 86400, :4 86400",
            ),
        ] {
            assert_eq!(shown(value), expected, "{value}");
        }
    }

    #[test]
    fn a_syntax_error_has_no_effect() {
        for value in [
            "",
            ",",
            "Clear",
            "h3",
            "h3=",
            "h3=:443",
            r#"h3="443""#,
            r#"h3=":""#,
            r#"h3=":+443""#,
            r#"h3=":65536""#,
            r#"h3=":443"#,
            r#"h3=":443" ma=1"#,
            r#"h3=":443"; ma"#,
            r#"h3=":443"; ma=-1"#,
            r#"h3=":443"; ma=1.5"#,
            r#"h3=":443";"#,
            r#"="x:1""#,
            r#"h3="a b:443""#,
            r#"h3="[::1:443""#,
            r#"h3="[fe80::1%1]:443""#,
            r#"h3="user@a:443""#,
            r#"h3=":443" h3=":444""#,
            r#"clear, h3=":443""#,
            "h3=\":443\u{0}\"",
            r#"h3 =":443""#,
        ] {
            assert_eq!(shown(value), "error", "{value}");
        }
        let long = format!(r#"h3=":443"; x="{}""#, "y".repeat(MAX_VALUE_BYTES));
        assert_eq!(shown(&long), "error");
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(value in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(AltSvc::Alternatives(found)) = parse(&value) {
                prop_assert!(found.len() <= MAX_ALTERNATIVES);
                prop_assert!(found.iter().all(|each| each.lifetime <= LONGEST_LIFETIME && each.port != 0));
            }
        }

        #[test]
        fn a_written_value_is_read_back(
            host in "(|[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?)", port in 1_u16.., ma in 0_u64..10_000_000, persist: bool,
            spaces in "[ \t]{0,2}",
        ) {
            let persist_text = if persist { format!(";{spaces}persist=1") } else { String::new() };
            let value = format!(r#"h2=":1",{spaces}h3="{host}:{port}"{spaces};{spaces}ma={ma}{persist_text}{spaces}"#);
            let expected = AltValue {
                host: (!host.is_empty()).then(|| host.as_str().into()),
                port,
                lifetime: Duration::from_secs(ma).min(LONGEST_LIFETIME),
                persist,
            };
            prop_assert_eq!(parse(value.as_bytes()), Some(AltSvc::Alternatives(vec![expected])));
        }
    }
}
