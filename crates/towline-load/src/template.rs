//! Texts with values: `{{name}}` stands for a value of the data or of an earlier response. Pure.

/// A text with places for values.
#[derive(Clone, Debug)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(Box<[u8]>),
    /// The variable of this index.
    Value(usize, Escape),
}

/// The place of a text in the request, which decides how values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// Values are percent-encoded.
    Path,
    /// Control characters, which no header may have, become spaces.
    Header,
    Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    Raw,
    /// Percent-encoded, except for unreserved characters (RFC 3986 2.3).
    Url,
    /// As the inside of a JSON string.
    Json,
}

/// Whether a text has a place for a value.
pub(crate) fn has_placeholders(text: &[u8]) -> bool {
    find(text, *b"{{").is_some()
}

/// The text with a letter for each value, to check the rest of it.
pub(crate) fn sample(text: &[u8]) -> Vec<u8> {
    let (mut rest, mut out) = (text, Vec::new());
    while let Some(begin) = find(rest, *b"{{")
        && let Some(end) = find(&rest[begin..], *b"}}")
    {
        out.extend_from_slice(&rest[..begin]);
        out.push(b'x');
        rest = &rest[begin + end + 2..];
    }
    out.extend_from_slice(rest);
    out
}

fn find(text: &[u8], part: [u8; 2]) -> Option<usize> {
    text.windows(2).position(|window| window == part)
}

impl Template {
    /// `names` are the variables. `{{name:raw}}`, `{{name:url}}` and `{{name:json}}` choose how the value is
    /// written.
    pub(crate) fn parse(text: &[u8], names: &[Box<str>], place: Context) -> Result<Self, String> {
        let (mut rest, mut parts) = (text, Vec::new());
        while let Some(begin) = find(rest, *b"{{") {
            let inner = &rest[begin + 2..];
            let end = find(inner, *b"}}").ok_or("{{ without }}")?;
            let inside = String::from_utf8_lossy(&inner[..end]);
            let (name, escape) = inside.split_once(':').unwrap_or((&inside, ""));
            let name = name.trim();
            let index = names.iter().position(|known| **known == *name);
            let index = index.ok_or_else(|| {
                format!(
                    "{{{{{inside}}}}}: there is no value {name:?}; there are: {}",
                    names.join(", ")
                )
            })?;
            let escape = match (escape.trim(), place) {
                ("", Context::Path) | ("url", _) => Escape::Url,
                ("" | "raw", _) => Escape::Raw,
                ("json", _) => Escape::Json,
                (other, _) => return Err(format!("{other:?} is not raw, url or json")),
            };
            if begin > 0 {
                parts.push(Part::Text(rest[..begin].into()));
            }
            parts.push(Part::Value(index, escape));
            rest = &inner[end + 2..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.into()));
        }
        Ok(Self(parts))
    }

    /// The indices of the variables in the text.
    pub(crate) fn variables(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value(index, _) => Some(*index),
        })
    }

    pub(crate) fn render<'v>(&self, place: Context, value: impl Fn(usize) -> &'v [u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => out.extend_from_slice(text),
                Part::Value(index, escape) => escape.write(value(*index), place, &mut out),
            }
        }
        out
    }
}

impl Escape {
    fn write(self, value: &[u8], place: Context, out: &mut Vec<u8>) {
        let begin = out.len();
        match self {
            Self::Raw => out.extend_from_slice(value),
            Self::Url => percent_encode(value, out, |byte| {
                byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
            }),
            Self::Json => {
                let quoted = serde_json::to_string(&*String::from_utf8_lossy(value));
                let quoted = quoted.unwrap_or_default().into_bytes();
                // Without the quotes around it.
                out.extend_from_slice(
                    quoted
                        .get(1..quoted.len().saturating_sub(1))
                        .unwrap_or_default(),
                );
            }
        }
        match place {
            Context::Body => {}
            Context::Header => {
                let bytes = out[begin..].iter_mut();
                bytes
                    .filter(|byte| byte.is_ascii_control())
                    .for_each(|byte| *byte = b' ');
            }
            Context::Path => {
                let value = out.split_off(begin);
                percent_encode(&value, out, |byte| byte.is_ascii_graphic());
            }
        }
    }
}

fn percent_encode(value: &[u8], out: &mut Vec<u8>, keeps: impl Fn(u8) -> bool) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in value {
        if keeps(byte) {
            out.push(byte);
        } else {
            out.extend([
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str, place: Context) -> String {
        let names = ["user".into(), "note".into()];
        let values = [&b"a&b/\xc3\xa4"[..], b"\"x\"\r\n"];
        let template = Template::parse(text.as_bytes(), &names, place).unwrap();
        String::from_utf8(template.render(place, |index| values[index])).unwrap()
    }

    #[test]
    fn values_are_written_as_their_place_needs() {
        assert_eq!(
            rendered("/u/{{user}}?x=1", Context::Path),
            "/u/a%26b%2F%C3%A4?x=1"
        );
        assert_eq!(rendered("/{{user:raw}}", Context::Path), "/a&b/%C3%A4");
        assert_eq!(rendered("{{ note }}!", Context::Header), "\"x\"  !");
        assert_eq!(
            rendered("{{user}}{{note}}", Context::Body),
            "a&b/\u{e4}\"x\"\r\n"
        );
        assert_eq!(
            rendered(r#"{"n":"{{note:json}}"}"#, Context::Body),
            r#"{"n":"\"x\"\r\n"}"#
        );
        assert_eq!(rendered("{}", Context::Body), "{}");
        assert_eq!(sample(b"/a/{{user}}/{{note:url}}?{}"), b"/a/x/x?{}");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, part) in [
            ("{{usr}}", "there are: user"),
            ("{{user", "without"),
            ("{{user:xml}}", "not raw, url or json"),
        ] {
            let why =
                Template::parse(text.as_bytes(), &["user".into()], Context::Body).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
