//! Redirects from a plain address to the one with TLS (`--redirect-https`).

use towline_proto::is_host;

use super::request_line::RequestLine;

const HTTPS_PORT: u16 = 443;

/// The URL of a request on the `port` that has TLS. `host`: the value of the Host field, which is the authority of
/// HTTP/2. `Err`: the rule that the request violates.
///
/// Everything comes from the request: the protocol core has checked the target, and only a host with an optional port
/// is used, so that no header can be injected and no other URL be named.
pub fn https_url(
    line: &RequestLine<'_>,
    host: Option<&[u8]>,
    port: u16,
) -> Result<Vec<u8>, &'static str> {
    let authority = host.filter(|host| is_host(host));
    let authority = authority.ok_or("a redirect needs a host (RFC 9110 7.2)")?;
    let path = path(line.target).ok_or("a redirect needs a path (RFC 9110 7.1)")?;
    let mut url = b"https://".to_vec();
    url.extend_from_slice(without_port(authority));
    if port != HTTPS_PORT {
        url.extend_from_slice(format!(":{port}").as_bytes());
    }
    if !path.starts_with(b"/") {
        url.push(b'/');
    }
    url.extend_from_slice(path);
    Ok(url)
}

/// Path and query of a target in origin form or absolute form (RFC 9112 3.2).
fn path(target: &[u8]) -> Option<&[u8]> {
    if !target.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    if target.starts_with(b"/") {
        return Some(target);
    }
    let start = target.windows(3).position(|three| three == b"://")? + 3;
    let rest = &target[start..];
    let end = rest.iter().position(|byte| b"/?".contains(byte));
    Some(&rest[end.unwrap_or(rest.len())..])
}

fn without_port(authority: &[u8]) -> &[u8] {
    match authority.iter().rposition(|&byte| byte == b':') {
        Some(colon) if !authority[colon..].contains(&b']') => &authority[..colon],
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use towline_proto::Version;

    use super::*;

    fn url(target: &str, host: &str, port: u16) -> Result<String, &'static str> {
        let line = RequestLine {
            method: b"GET",
            target: target.as_bytes(),
            version: Version::Http11,
        };
        let host = (host != "-").then_some(host.as_bytes());
        https_url(&line, host, port).map(|url| String::from_utf8(url).unwrap())
    }

    #[test]
    fn the_url_has_the_host_and_the_path_of_the_request() {
        for (target, host, port, expected) in [
            (
                "/a?b=//c",
                "example.org",
                443,
                "https://example.org/a?b=//c",
            ),
            ("/", "example.org:80", 443, "https://example.org/"),
            ("/", "example.org:8080", 8443, "https://example.org:8443/"),
            ("/", "[::1]:80", 443, "https://[::1]/"),
            ("/", "[::1]", 444, "https://[::1]:444/"),
            ("/", "a:", 443, "https://a/"),
            ("//evil.example/", "a", 443, "https://a//evil.example/"),
            ("/@evil.example", "a", 443, "https://a/@evil.example"),
            ("http://a/b?c", "a", 443, "https://a/b?c"),
            ("http://a", "a", 443, "https://a/"),
            ("http://a?b", "a", 443, "https://a/?b"),
        ] {
            assert_eq!(url(target, host, port).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn without_a_valid_host_or_a_path_there_is_none() {
        for host in [
            "-",
            "",
            "a b",
            "a\r\nx: y",
            "user@a",
            "a/b",
            "a:b",
            "[::1",
            "a?b",
            "a#b",
            "\u{e4}",
        ] {
            assert!(url("/", host, 443).is_err(), "{host:?}");
        }
        for target in ["*", "a:80", "/\r\nx: y", "/\u{e4}", ""] {
            assert!(url(target, "a", 443).is_err(), "{target:?}");
        }
    }
}
