//! Pairs of queries and forms, percent-encoded (WHATWG URL, application/x-www-form-urlencoded).

/// The non-empty pairs, not decoded.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|&byte| byte == b'&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| match pair.iter().position(|&byte| byte == b'=') {
            Some(at) => (&pair[..at], &pair[at + 1..]),
            None => (pair, &b""[..]),
        })
}

/// The number of pairs, each decoded as an application would do.
pub fn decoded_pairs(text: &[u8]) -> usize {
    let mut space = Vec::new();
    pairs(text)
        .filter(|(name, value)| {
            space.clear();
            decode(name, &mut space);
            decode(value, &mut space);
            std::hint::black_box(&space);
            true
        })
        .count()
}

/// Invalid escapes are kept.
fn decode(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = tail;
        out.push(match (*first, tail) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high << 4 | low
                }
                _ => b'%',
            },
            (other, _) => other,
        });
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// A query string.
pub struct Query<'a>(pub &'a [u8]);

impl<'a> Query<'a> {
    pub fn value(&self, name: &str) -> Option<&'a str> {
        let found = pairs(self.0).find(|(key, _)| *key == name.as_bytes())?;
        std::str::from_utf8(found.1).ok()
    }

    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.value(name)?.parse().ok()
    }
}
