//! Values taken from a response, for later requests of the same session.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use towline_proto::Field;

use crate::data::text_of;

/// Limit of a body from which a value is taken: it is held and parsed.
const MAX_BODY_BYTES: usize = 1 << 20;

/// A value to take from a response, and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    pub name: Box<str>,
    pub source: Source,
}

/// The place of a value in a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Keys and indices from the root of a JSON body; none: the body itself.
    Json(Vec<Box<str>>),
    /// The first header of this name.
    Header(Box<str>),
    /// The value of this cookie in Set-Cookie.
    Cookie(Box<str>),
}

impl Capture {
    /// `json:a.b.0`, `header:NAME` or `cookie:NAME`.
    pub fn parse(name: &str, source: &str) -> Result<Self, String> {
        let wrong = || format!("{source:?} is not json:KEY.KEY, header:NAME or cookie:NAME");
        let (kind, place) = source.split_once(':').ok_or_else(wrong)?;
        if place.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            name: name.into(),
            source: match kind {
                "json" => Source::Json(place.split('.').map(Box::from).collect()),
                "header" => Source::Header(place.into()),
                "cookie" => Source::Cookie(place.into()),
                _ => return Err(wrong()),
            },
        })
    }
}

/// The values of one response, while it is received.
#[derive(Debug)]
pub(crate) struct Captured {
    values: Vec<Option<Box<[u8]>>>,
    /// `None`: not needed, or too long.
    body: Option<Vec<u8>>,
}

impl Captured {
    pub(crate) fn begin<'a>(
        captures: &[Capture],
        fields: &(impl Iterator<Item = Field<'a>> + Clone),
    ) -> Self {
        let value = |capture: &Capture| match &capture.source {
            Source::Json(_) => None,
            Source::Header(name) => (fields.clone())
                .find(|field| field.name.eq_ignore_ascii_case(name.as_bytes()))
                .map(|field| field.value.into()),
            Source::Cookie(name) => (fields.clone())
                .filter(|field| field.name.eq_ignore_ascii_case(b"set-cookie"))
                .find_map(|field| cookie(field.value, name.as_bytes()))
                .map(Box::from),
        };
        let in_body = |capture: &Capture| matches!(capture.source, Source::Json(_));
        Self {
            values: captures.iter().map(value).collect(),
            body: captures.iter().any(in_body).then(Vec::new),
        }
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        if let Some(body) = &mut self.body {
            if body.len() + data.len() > MAX_BODY_BYTES {
                self.body = None;
            } else {
                body.extend_from_slice(data);
            }
        }
    }

    /// The values; `Err` is the index of the first that is missing.
    pub(crate) fn end(mut self, captures: &[Capture]) -> Result<Vec<Box<[u8]>>, usize> {
        let json: Option<Value> =
            (self.body.as_ref()).and_then(|body| serde_json::from_slice(body).ok());
        let mut values = Vec::new();
        for (index, capture) in captures.iter().enumerate() {
            let value = match &capture.source {
                Source::Json(path) => {
                    let value = json.as_ref().and_then(|json| find(json, path));
                    value.map(|value| text_of(value).into_boxed_bytes())
                }
                _ => self.values[index].take(),
            };
            values.push(value.ok_or(index)?);
        }
        Ok(values)
    }
}

fn find<'a>(root: &'a Value, path: &[Box<str>]) -> Option<&'a Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        value => value.get(&**key),
    })
}

/// The value of the cookie `name` in a Set-Cookie (RFC 6265 5.2).
fn cookie<'a>(set_cookie: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let pair = set_cookie.split(|byte| *byte == b';').next()?;
    let at = pair.iter().position(|byte| *byte == b'=')?;
    (pair[..at].trim_ascii() == name).then(|| pair[at + 1..].trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn captured(source: &str, body: &str) -> Option<String> {
        let captures = [Capture::parse("x", source).unwrap()];
        let field = |name: &'static str, value: &'static str| Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
        };
        let fields = [
            field("Set-Cookie", "other=1"),
            field("set-cookie", "sid=a=b ; Path=/"),
            field("location", "/next"),
        ];
        let mut response = Captured::begin(&captures, &fields.into_iter());
        let (one, two) = body.as_bytes().split_at(body.len() / 2);
        response.data(one);
        response.data(two);
        let values = response.end(&captures).ok()?;
        Some(String::from_utf8_lossy(&values[0]).into_owned())
    }

    #[test]
    fn values_come_from_body_header_and_cookie() {
        let body = r#"{"a":{"b":["x",{"c":7}]},"t":"y"}"#;
        for (source, value) in [
            ("json:t", Some("y")),
            ("json:a.b.0", Some("x")),
            ("json:a.b.1.c", Some("7")),
            ("json:a.b.2", None),
            ("json:t.x", None),
            ("header:Location", Some("/next")),
            ("header:nothing", None),
            ("cookie:sid", Some("a=b")),
            ("cookie:SID", None),
        ] {
            assert_eq!(captured(source, body).as_deref(), value, "{source}");
        }
        assert_eq!(captured("json:t", "no json"), None);
        let long = format!("{{\"t\":\"{}\"}}", "x".repeat(MAX_BODY_BYTES));
        assert_eq!(captured("json:t", &long), None);
        for source in ["json", "json:", "xml:a"] {
            assert!(Capture::parse("x", source).is_err());
        }
    }
}
