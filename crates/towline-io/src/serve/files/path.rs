//! Converts a request target to a path below the root.
//!
//! Ambiguous paths are refused rather than normalised: dot segments, empty segments, encoded slashes, NUL.
//! An accepted path is the only spelling of one file below the root.

/// The path of a target, without query and fragment; `None` for targets in another form.
pub(super) fn of_target(target: &[u8]) -> Option<&[u8]> {
    let end = target
        .iter()
        .position(|&byte| byte == b'?' || byte == b'#')
        .unwrap_or(target.len());
    let path = &target[..end];
    path.starts_with(b"/").then_some(path)
}

/// The path after a mount's prefix, without the slash between; the prefix covers whole segments.
pub(super) fn below<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let rest = path.strip_prefix(prefix)?;
    if rest.is_empty() {
        return Some(rest);
    }
    rest.strip_prefix(b"/")
}

/// A decoded path below the root.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Relative {
    /// Path without slashes at either end; empty for the root itself.
    pub bytes: Vec<u8>,
    /// The target ends with a slash, so it is for a directory.
    pub slash: bool,
}

/// Decodes and checks a path; `None` becomes 404, as for a missing file.
pub(super) fn relative(encoded: &[u8], dotfiles: bool) -> Option<Relative> {
    let (encoded, slash) = match encoded.strip_suffix(b"/") {
        Some(rest) => (rest, true),
        None => (encoded, encoded.is_empty()),
    };
    let mut bytes = Vec::with_capacity(encoded.len());
    if encoded.is_empty() {
        return Some(Relative { bytes, slash });
    }
    for segment in encoded.split(|&byte| byte == b'/') {
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        let start = bytes.len();
        decode(segment, &mut bytes)?;
        if !is_name(&bytes[start..], dotfiles) {
            return None;
        }
    }
    Some(Relative { bytes, slash })
}

/// Percent-decodes one segment (RFC 3986 2.1). `None` for an invalid escape and for an escaped slash or NUL.
fn decode(segment: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let mut rest = segment;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let [high, low, after @ ..] = rest else {
            return None;
        };
        let byte = hex(*high)? << 4 | hex(*low)?;
        if byte == b'/' || byte == 0 {
            return None;
        }
        out.push(byte);
        rest = after;
    }
    Some(())
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

fn is_name(segment: &[u8], dotfiles: bool) -> bool {
    match segment {
        [] | b"." | b".." => false,
        // `.well-known` is public (RFC 8615).
        b".well-known" => true,
        [b'.', ..] => dotfiles,
        _ => !segment.contains(&0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(encoded: &str) -> Option<String> {
        relative(encoded.as_bytes(), false).map(|path| {
            let slash = if path.slash { "/" } else { "" };
            String::from_utf8(path.bytes).unwrap() + slash
        })
    }

    #[test]
    fn paths_are_decoded_once() {
        assert_eq!(decoded("a/b.txt").unwrap(), "a/b.txt");
        assert_eq!(decoded("a%20b/%C3%A9.txt").unwrap(), "a b/é.txt");
        assert_eq!(decoded("a/b/").unwrap(), "a/b/");
        assert_eq!(decoded("").unwrap(), "/");
        assert_eq!(decoded("/").unwrap(), "/");
        assert_eq!(decoded("a+b").unwrap(), "a+b");
        assert_eq!(decoded("%2525").unwrap(), "%25", "decoded once");
        assert_eq!(decoded("...").as_deref(), None, "a dotfile");
        assert_eq!(decoded("a..b").unwrap(), "a..b");
    }

    #[test]
    fn ambiguous_paths_and_paths_out_of_the_root_are_refused() {
        for bad in [
            "..",
            "../etc/passwd",
            "a/../b",
            "%2e%2e/x",
            "%2E./x",
            ".%2e/x",
            ".",
            "a/./b",
            "a//b",
            "//a",
            "a%2fb",
            "a%2Fb",
            "..%2f..",
            "%00",
            "a%00.txt",
            "a\0b",
            "%",
            "%2",
            "%zz",
            "%+1",
            "a/%",
        ] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn dotfiles_are_hidden_but_for_well_known() {
        for hidden in [".git/config", "a/.env", ".htpasswd", "%2egit/config"] {
            assert_eq!(decoded(hidden), None, "{hidden}");
            assert!(relative(hidden.as_bytes(), true).is_some(), "{hidden}");
        }
        assert_eq!(
            decoded(".well-known/security.txt").unwrap(),
            ".well-known/security.txt"
        );
        assert!(relative(b"../x", true).is_none());
    }

    #[test]
    fn prefixes_cover_whole_segments_of_a_target() {
        assert_eq!(of_target(b"/a?b=/c"), Some(&b"/a"[..]));
        assert_eq!(of_target(b"/a#x"), Some(&b"/a"[..]));
        assert_eq!(of_target(b"*"), None);
        assert_eq!(of_target(b"http://h/a"), None);
        assert_eq!(below(b"/static/a", b"/static"), Some(&b"a"[..]));
        assert_eq!(below(b"/static", b"/static"), Some(&b""[..]));
        assert_eq!(below(b"/static/", b"/static"), Some(&b""[..]));
        assert_eq!(below(b"/staticx", b"/static"), None);
        assert_eq!(below(b"/a", b""), Some(&b"a"[..]));
    }
}
