//! Accept-Encoding: codings that a client accepts, with their weights (RFC 9110 12.5.3).

use super::{CODINGS, Coding};

/// Weights of one request in thousandths; 0 means not acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptEncoding {
    codings: [Option<u16>; CODINGS.len()],
    identity: Option<u16>,
    /// `*`: all codings not listed.
    others: Option<u16>,
    present: bool,
}

impl Default for AcceptEncoding {
    /// No Accept-Encoding header: identity.
    fn default() -> Self {
        Self {
            codings: [None; CODINGS.len()],
            identity: None,
            others: None,
            present: false,
        }
    }
}

impl AcceptEncoding {
    /// Parses all Accept-Encoding headers of a request. A malformed member is ignored.
    pub fn from_fields<'a>(fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut accepted = Self::default();
        for (name, value) in fields {
            if name.eq_ignore_ascii_case(b"accept-encoding") {
                accepted.add(value);
            }
        }
        accepted
    }

    /// Parses one more header.
    pub fn add(&mut self, value: &[u8]) {
        self.present = true;
        for member in value.split(|&byte| byte == b',') {
            let mut parts = member.splitn(2, |&byte| byte == b';');
            let name = parts.next().unwrap_or_default().trim_ascii();
            let Some(weight) = parts.next().map_or(Some(1000), weight) else {
                continue;
            };
            if name == b"*" {
                self.others = Some(weight);
            } else if name.eq_ignore_ascii_case(b"identity") {
                self.identity = Some(weight);
            } else if let Some(coding) = Coding::named(name) {
                self.codings[coding as usize] = Some(weight);
            }
        }
    }

    /// Weight of a coding, in thousandths.
    pub fn weight(&self, coding: Coding) -> u16 {
        self.codings[coding as usize].or(self.others).unwrap_or(0)
    }

    /// Chooses from the codings offered by the server, in its order of preference; `None` is identity. Among
    /// equal weights the server's order decides. Identity wins only if it is listed with a higher weight.
    pub fn choose(&self, offered: &[Coding]) -> Option<Coding> {
        let mut best = None;
        let mut best_weight = self.identity.unwrap_or(0);
        for &coding in offered {
            let weight = self.weight(coding);
            if weight > best_weight || (best.is_none() && weight == best_weight && weight > 0) {
                best = Some(coding);
                best_weight = weight;
            }
        }
        best
    }

    /// Whether the client has sent the header.
    pub fn is_present(&self) -> bool {
        self.present
    }
}

/// Parses `q=0.123` with optional spaces (RFC 9110 12.4.2) into thousandths.
fn weight(parameter: &[u8]) -> Option<u16> {
    let parameter = parameter.trim_ascii();
    let value = parameter
        .strip_prefix(b"q=")
        .or_else(|| parameter.strip_prefix(b"Q="))?;
    let (&integer, rest) = value.split_first()?;
    let decimals = match rest.split_first() {
        None => &[][..],
        Some((b'.', decimals)) if decimals.len() <= 3 => decimals,
        Some(_) => return None,
    };
    let mut thousandths = match integer {
        b'0' => 0,
        b'1' => 1000,
        _ => return None,
    };
    for (&digit, unit) in decimals.iter().zip([100, 10, 1]) {
        if !digit.is_ascii_digit() {
            return None;
        }
        thousandths += u16::from(digit - b'0') * unit;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Coding::{Brotli, Gzip, Zstd};

    fn chosen(value: &str) -> Option<Coding> {
        let fields = [(&b"Accept-Encoding"[..], value.as_bytes())];
        AcceptEncoding::from_fields(fields).choose(&Coding::ENCODED)
    }

    #[test]
    fn the_servers_order_decides_between_equals() {
        assert_eq!(chosen("gzip, deflate, br, zstd"), Some(Brotli));
        assert_eq!(chosen("gzip, zstd"), Some(Zstd));
        let accepted = AcceptEncoding::from_fields([(&b"accept-encoding"[..], &b"br, gzip"[..])]);
        assert_eq!(accepted.choose(&[Gzip, Brotli]), Some(Gzip));
        assert_eq!(accepted.choose(&[Zstd]), None);
        assert_eq!(accepted.choose(&[]), None);
    }

    #[test]
    fn weights_decide_first() {
        assert_eq!(chosen("br;q=0.5, gzip;q=0.501"), Some(Gzip));
        assert_eq!(chosen("br;q=0, gzip"), Some(Gzip));
        assert_eq!(chosen("gzip; q=0.001"), Some(Gzip));
        assert_eq!(chosen("gzip;q=0.000"), None);
        assert_eq!(chosen("GZIP;Q=1.000"), Some(Gzip));
    }

    #[test]
    fn identity_and_star_have_weights() {
        assert_eq!(chosen("identity"), None);
        assert_eq!(chosen("gzip;q=0.5, identity"), None);
        assert_eq!(chosen("gzip, identity"), Some(Gzip), "equal: the coding");
        assert_eq!(chosen("gzip;q=0.5, identity;q=0"), Some(Gzip));
        assert_eq!(chosen("*"), Some(Brotli));
        assert_eq!(chosen("br;q=0, *"), Some(Zstd));
        assert_eq!(chosen("gzip, *;q=0"), Some(Gzip));
        assert_eq!(chosen("*;q=0"), None);
        assert_eq!(
            chosen("identity;q=0"),
            None,
            "nothing else is accepted either"
        );
    }

    #[test]
    fn absent_and_empty_fields_keep_the_bytes() {
        assert_eq!(AcceptEncoding::default().choose(&Coding::ENCODED), None);
        assert!(!AcceptEncoding::default().is_present());
        assert_eq!(chosen(""), None);
        assert_eq!(chosen(", ,"), None);
        assert_eq!(chosen("deflate, compress"), None);
    }

    #[test]
    fn several_fields_are_one_list_and_x_gzip_is_gzip() {
        let fields = [
            (&b"Accept-Encoding"[..], &b"br;q=0.1"[..]),
            (b"ACCEPT-ENCODING", b"x-gzip"),
        ];
        assert_eq!(
            AcceptEncoding::from_fields(fields).choose(&Coding::ENCODED),
            Some(Gzip)
        );
    }

    #[test]
    fn malformed_weights_are_ignored() {
        for bad in [
            "q=2", "q=1.001", "q=.5", "q=0.1234", "q=-1", "q=0.x", "q=", "q", "", "level=1",
            "q=1 x", "q=00",
        ] {
            assert_eq!(chosen(&format!("br;{bad}, gzip")), Some(Gzip), "{bad:?}");
        }
    }
}
