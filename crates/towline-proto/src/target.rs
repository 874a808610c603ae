//! The request target and the Host field (RFC 9112 3.2).

use crate::ConnectionError;

use crate::byte_class::{has_byte, is_reg_name_byte, reg_name_end};

const FORM: ConnectionError =
    ConnectionError::peer(400, "request target of no known form (RFC 9112 3.2)");
const HOST: ConnectionError = ConnectionError::peer(400, "malformed host (RFC 9112 3.2)");

/// Checks a target of visible ASCII against the forms allowed for its method. For the absolute form, returns the
/// position of its authority, which takes precedence over the Host field (RFC 9112 3.2.2).
pub fn check_target(
    method: &[u8],
    target: &[u8],
) -> Result<Option<(usize, usize)>, ConnectionError> {
    match target.first() {
        // No client sends a fragment, and parsers disagree on it.
        _ if has_byte(target, b'#') => Err(FORM),
        Some(b'/') if method != b"CONNECT" => Ok(None),
        Some(b'*') if target.len() == 1 && method == b"OPTIONS" => Ok(None),
        _ if method == b"CONNECT" => check_authority_form(target),
        _ => check_absolute_form(target).map(Some),
    }
}

/// `uri-host ":" port`, the port required (RFC 9112 3.2.3).
fn check_authority_form(target: &[u8]) -> Result<Option<(usize, usize)>, ConnectionError> {
    let has_port = target.last().is_some_and(u8::is_ascii_digit);
    if has_port && is_host(target) && !target.starts_with(b":") && host_len(target) < target.len() {
        return Ok(None);
    }
    Err(FORM)
}

/// `scheme "://" authority [ path ] [ "?" query ]`
fn check_absolute_form(target: &[u8]) -> Result<(usize, usize), ConnectionError> {
    let scheme = target.iter().position(|&byte| byte == b':').ok_or(FORM)?;
    let name = &target[..scheme];
    let is_scheme = name.first().is_some_and(u8::is_ascii_alphabetic)
        && name
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte));
    if !is_scheme || !target[scheme..].starts_with(b"://") {
        return Err(FORM);
    }
    let start = scheme + 3;
    let end = target[start..]
        .iter()
        .position(|byte| b"/?".contains(byte))
        .map_or(target.len(), |len| start + len);
    if start == end || !is_host(&target[start..end]) {
        return Err(FORM);
    }
    Ok((start, end - start))
}

/// Checks the value of a Host field. It may be empty (RFC 9110 7.2).
pub fn check_host(value: &[u8]) -> Result<(), ConnectionError> {
    if value.is_empty() || is_host(value) {
        Ok(())
    } else {
        Err(HOST)
    }
}

/// `uri-host [ ":" port ]` (RFC 3986 3.2.2). Userinfo is not part of it.
pub fn is_host(value: &[u8]) -> bool {
    let (host, port) = value.split_at(host_len(value));
    let host_ok = !host.starts_with(b"[") || is_ip_literal(host);
    let port_ok = match port {
        [] => true,
        [b':', digits @ ..] => is_port(digits),
        _ => false,
    };
    host_ok && port_ok && !host.is_empty()
}

/// `*DIGIT`, and a number that a port can have: parsers cut a larger one in different ways.
fn is_port(digits: &[u8]) -> bool {
    digits.iter().all(u8::is_ascii_digit) && (digits.len() < 5 || port_number(digits) <= 65535)
}

fn port_number(digits: &[u8]) -> u32 {
    let digits = digits.iter().map(|digit| u32::from(digit - b'0'));
    digits.fold(0, |port, digit| {
        port.saturating_mul(10).saturating_add(digit)
    })
}

/// Length of the host in `host:port`.
fn host_len(value: &[u8]) -> usize {
    if value.starts_with(b"[") {
        let end = value.iter().position(|&byte| byte == b']');
        return end.map_or(value.len(), |at| at + 1);
    }
    reg_name_end(value)
}

fn is_ip_literal(host: &[u8]) -> bool {
    host.len() > 3
        && host.ends_with(b"]")
        && host[1..host.len() - 1]
            .iter()
            .all(|&byte| byte == b':' || (byte != b'%' && is_reg_name_byte(byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for good in [
            "a",
            "a.b:80",
            "a:",
            "a:65535",
            "a:00080",
            "[::1]",
            "[::1]:8080",
            "127.0.0.1:1",
            "a_b",
            "xn--a",
            "%41",
        ] {
            assert!(is_host(good.as_bytes()), "{good}");
        }
        for bad in [
            "a b",
            "a/b",
            "a@b",
            "a:b",
            "a:1:2",
            "[::1",
            "::1",
            "[]",
            "[::1]a",
            "a]",
            ":80",
            "a:65536",
            "a:99999",
            "a:99999999999999999999",
            "a,b\0",
            "é",
            "[a[b]]",
        ] {
            assert!(!is_host(bad.as_bytes()), "{bad}");
        }
    }

    #[test]
    fn targets() {
        let good = [
            ("GET", "/", None),
            ("GET", "/a?b//c", None),
            ("OPTIONS", "*", None),
            ("CONNECT", "a:443", None),
            ("CONNECT", "[::1]:443", None),
            ("GET", "http://a/x?y", Some((7, 1))),
            ("GET", "https://a.b:80", Some((8, 6))),
            ("GET", "http://a?x", Some((7, 1))),
        ];
        for (method, target, authority) in good {
            assert_eq!(
                check_target(method.as_bytes(), target.as_bytes()),
                Ok(authority),
                "{target}"
            );
        }
        for (method, target) in [
            ("GET", "foo"),
            ("GET", "!"),
            ("GET", "*"),
            ("OPTIONS", "**"),
            ("CONNECT", "/"),
            ("CONNECT", "a"),
            ("CONNECT", "a:"),
            ("CONNECT", ":1"),
            ("GET", "http:///x"),
            ("GET", "http:a"),
            ("GET", "://a"),
            ("GET", "http://u@a/"),
            ("GET", "/a#b"),
            ("GET", "1http://a"),
            ("GET", "a:443"),
            ("GET", ""),
        ] {
            assert!(
                check_target(method.as_bytes(), target.as_bytes()).is_err(),
                "{method} {target}"
            );
        }
    }
}
