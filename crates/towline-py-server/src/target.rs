//! The request target, parsed for both interfaces.
use std::borrow::Cow;

/// Path and query of a request target, both undecoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target<'a> {
    pub path: &'a [u8],
    /// Without the `?`; empty if there is none.
    pub query: &'a [u8],
}

impl<'a> Target<'a> {
    /// Origin, absolute, asterisk or authority form (RFC 9112 3.2). The last two have no path and are returned
    /// unchanged as `path`.
    pub fn parse(target: &'a [u8]) -> Self {
        let target = if target.first() == Some(&b'/') {
            target
        } else {
            without_authority(target)
        };
        match target.iter().position(|&byte| byte == b'?') {
            Some(at) => Self {
                path: &target[..at],
                query: &target[at + 1..],
            },
            None => Self {
                path: target,
                query: b"",
            },
        }
    }
}

/// `http://host/path?query` from its path on.
fn without_authority(target: &[u8]) -> &[u8] {
    let Some(scheme_end) = target.windows(3).position(|bytes| bytes == b"://") else {
        return target;
    };
    let rest = &target[scheme_end + 3..];
    match rest.iter().position(|&byte| byte == b'/' || byte == b'?') {
        Some(at) if rest[at] == b'/' => &rest[at..],
        // An empty path is `/` (RFC 9110 4.2.3), except before a query.
        Some(at) => &rest[at..],
        None => b"/",
    }
}

/// Decodes percent-encoding. A malformed escape is left unchanged, as by `urllib.parse.unquote`.
pub fn percent_decoded(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let escape = match after {
            [high, low, ..] if byte == b'%' => hex(*high).zip(hex(*low)),
            _ => None,
        };
        if let Some((high, low)) = escape {
            out.push(high << 4 | low);
            rest = &after[2..];
        } else {
            out.push(byte);
            rest = after;
        }
    }
    Cow::Owned(out)
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|value| value as u8)
}
