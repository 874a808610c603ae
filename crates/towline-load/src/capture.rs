//! Values taken from a response, for later requests of the same session.
//!
//! | place | value |
//! |---|---|
//! | `json:` a string | its content |
//! | `json:` a number, an object, true, false | its text, as the response has it: `1.50`, `{"a": 1}` |
//! | `header:` | the first header of the name |
//! | `cookie:` | the last cookie of the name that the response sets and does not remove |
//!
//! Anything else is a [`Lack`]: null is one, and a missing key is another.

use std::collections::HashMap;
use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use towline_io::coding::decode::{DecodeError, Decoder};
use towline_proto::Field;

use crate::data;

/// Limit of a decoded body from which a value is taken: it is held and parsed. Bounds the memory of a connection, and is
/// far above the responses from which sessions take tokens.
const MAX_BODY_BYTES: usize = 16 << 20;

/// A value to take from a response, and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capture {
    pub name: Box<str>,
    pub source: Source,
}

/// The place of a value in a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// Keys and indices from the root of a JSON body.
    Json(Vec<Box<str>>),
    /// The first header of this name.
    Header(Box<str>),
    /// The value of this cookie in Set-Cookie.
    Cookie(Box<str>),
}

/// The reason why a response does not have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Missing,
    Null,
    /// A JSON string with half of a surrogate pair, which is no character.
    NoText,
    NoBody,
    NoJson,
    Coding,
    TooLarge,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "is not in the response",
            Self::Null => "is null in the response",
            Self::NoText => "has half of a surrogate pair in the response (RFC 8259 8.2)",
            Self::NoBody => "is not in the response, which has no body",
            Self::NoJson => "is not in the response, whose body is not JSON",
            Self::Coding => "is not in the response, whose body does not have its Content-Encoding",
            Self::TooLarge => {
                return write!(
                    f,
                    "is not looked for in a body of more than {} MiB",
                    MAX_BODY_BYTES >> 20
                );
            }
        })
    }
}

impl Capture {
    /// `json:a.b.0`, `header:NAME` or `cookie:NAME`. In a key, `\.` is a dot and `\\` a backslash.
    pub fn parse(name: &str, source: &str) -> Result<Self, String> {
        let wrong = || format!("{source:?} is not json:KEY.KEY, header:NAME or cookie:NAME");
        let (kind, place) = source.split_once(':').ok_or_else(wrong)?;
        if place.is_empty() {
            return Err(wrong());
        }
        Ok(Self {
            name: name.into(),
            source: match kind {
                "json" => Source::Json(keys(place)),
                "header" => Source::Header(place.into()),
                "cookie" => Source::Cookie(place.into()),
                _ => return Err(wrong()),
            },
        })
    }

    /// The failure of a response without the value.
    pub(crate) fn failure(&self, lack: Lack) -> String {
        format!("the value {} {lack}", self.name)
    }
}

fn keys(place: &str) -> Vec<Box<str>> {
    let mut keys = vec![String::new()];
    let mut rest = place.chars();
    while let Some(char) = rest.next() {
        match (char, keys.last_mut()) {
            ('.', _) => keys.push(String::new()),
            ('\\', Some(key)) => key.push(rest.next().unwrap_or('\\')),
            (other, Some(key)) => key.push(other),
            (_, None) => {}
        }
    }
    keys.into_iter().map(Into::into).collect()
}

/// The values of one response, while it is received.
#[derive(Debug)]
pub(crate) struct Captured {
    values: Vec<Option<Box<[u8]>>>,
    /// `None`: no value is in the body.
    body: Option<Box<CapturedBody>>,
}

impl Captured {
    pub(crate) fn begin<'a>(
        captures: &[Capture],
        fields: &(impl Iterator<Item = Field<'a>> + Clone),
    ) -> Self {
        let named = |name: &str| {
            let name = name.to_owned();
            (fields.clone())
                .filter(move |field| field.name.eq_ignore_ascii_case(name.as_bytes()))
                .map(|field| field.value)
        };
        let value = |capture: &Capture| match &capture.source {
            Source::Json(_) => None,
            Source::Header(name) => named(name).next().map(Box::from),
            Source::Cookie(name) => last_cookie(named("set-cookie"), name.as_bytes()),
        };
        let in_body = |capture: &Capture| matches!(capture.source, Source::Json(_));
        let codings = || {
            named("content-encoding")
                .collect::<Vec<_>>()
                .join(&b","[..])
        };
        Self {
            values: captures.iter().map(value).collect(),
            body: (captures.iter().any(in_body)).then(|| Box::new(CapturedBody::begin(&codings()))),
        }
    }

    pub(crate) fn data(&mut self, data: &[u8]) {
        if let Some(body) = &mut self.body {
            body.data(data);
        }
    }

    /// The values; `Err` has the index of the first that is missing.
    pub(crate) fn end(mut self, captures: &[Capture]) -> Result<Vec<Box<[u8]>>, (usize, Lack)> {
        let body = self.body.take().map_or(Ok(Vec::new()), |body| body.end());
        let json = (body.as_deref())
            .map_err(|lack| *lack)
            .and_then(|body| parsed(body));
        let value = |(index, capture): (usize, &Capture)| {
            let value = match &capture.source {
                Source::Json(path) => json.and_then(|json| text_of(json, path)),
                _ => self.values[index].take().ok_or(Lack::Missing),
            };
            value.map_err(|lack| (index, lack))
        };
        captures.iter().enumerate().map(value).collect()
    }
}

/// A body from which a value is taken, decoded as it arrives.
struct CapturedBody {
    decoder: Option<Decoder>,
    /// Before an error.
    plain: Result<Vec<u8>, Lack>,
}

impl fmt::Debug for CapturedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CapturedBody").field(&self.plain).finish()
    }
}

impl CapturedBody {
    fn begin(codings: &[u8]) -> Self {
        let decoder = Decoder::new(codings, Some(MAX_BODY_BYTES as u64));
        Self {
            plain: decoder.as_ref().map(|_| Vec::new()).map_err(lack_of),
            decoder: decoder.unwrap_or_default(),
        }
    }

    fn data(&mut self, data: &[u8]) {
        let Ok(plain) = &mut self.plain else {
            return;
        };
        let decoded = match &mut self.decoder {
            Some(decoder) => decoder
                .decode_to_end(data, plain)
                .map_err(|error| lack_of(&error)),
            None if plain.len() + data.len() > MAX_BODY_BYTES => Err(Lack::TooLarge),
            None => {
                plain.extend_from_slice(data);
                Ok(())
            }
        };
        if let Err(lack) = decoded {
            self.plain = Err(lack);
        }
    }

    fn end(self) -> Result<Vec<u8>, Lack> {
        let plain = self.plain?;
        if let Some(decoder) = &self.decoder {
            decoder.finish().map_err(|error| lack_of(&error))?;
        }
        if plain.is_empty() {
            return Err(Lack::NoBody);
        }
        Ok(plain)
    }
}

fn lack_of(error: &DecodeError) -> Lack {
    match error {
        DecodeError::TooLarge { .. } | DecodeError::Work => Lack::TooLarge,
        _ => Lack::Coding,
    }
}

/// The whole body, validated. Some servers write a byte order mark, which a parser may ignore (RFC 8259 8.1).
fn parsed(body: &[u8]) -> Result<&RawValue, Lack> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    serde_json::from_slice(body).map_err(|_| Lack::NoJson)
}

/// The content of a string, the text of anything else.
fn text_of(root: &RawValue, path: &[Box<str>]) -> Result<Box<[u8]>, Lack> {
    let value = find(root, path).ok_or(Lack::Missing)?;
    if value.get() == "null" {
        return Err(Lack::Null);
    }
    let text = data::text_of(value).map_err(|_| Lack::NoText)?;
    Ok(text.into_boxed_bytes())
}

/// The value at `path`. Of equal keys the last one counts, as in browsers. An index below 0 counts from the end. A key
/// may have dots: `a.b` is found in `{"a.b": 1}` if it is not in `{"a": {}}`.
fn find<'a>(value: &'a RawValue, path: &[Box<str>]) -> Option<&'a RawValue> {
    let Some((key, rest)) = path.split_first() else {
        return Some(value);
    };
    if value.get().starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(value.get()).ok()?;
        let at = match key.strip_prefix('-') {
            Some(back) => items.len().checked_sub(index(back)?)?,
            None => index(key)?,
        };
        return find(items.get(at)?, rest);
    }
    let members: HashMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
    (1..=path.len()).find_map(|keys| {
        let member = members.get(&path[..keys].join("."))?;
        find(member, &path[keys..])
    })
}

fn index(digits: &str) -> Option<usize> {
    let strict = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    strict.then(|| digits.parse().ok()).flatten()
}

/// The value of the last cookie `name` that these values of Set-Cookie leave in a browser (RFC 6265 5.3): an expired one
/// removes the cookie of the same domain and path.
fn last_cookie<'a>(lines: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> Option<Box<[u8]>> {
    let mut kept: Vec<Cookie<'_>> = Vec::new();
    for cookie in lines.filter_map(|line| Cookie::parse(line, name)) {
        kept.retain(|one| one.domain != cookie.domain || one.path != cookie.path);
        if !cookie.is_expired {
            kept.push(cookie);
        }
    }
    kept.last().map(|cookie| cookie.value.into())
}

struct Cookie<'a> {
    value: &'a [u8],
    domain: Vec<u8>,
    /// `/` if it is not given: the paths of requests are not known here.
    path: &'a [u8],
    is_expired: bool,
}

impl<'a> Cookie<'a> {
    /// `None`: it has another name, or none (RFC 6265 5.2).
    fn parse(line: &'a [u8], name: &[u8]) -> Option<Self> {
        let mut parts = line.split(|byte| *byte == b';');
        let (found, value) = pair(parts.next()?)?;
        if found != name {
            return None;
        }
        let (mut domain, mut path) = (Vec::new(), &b"/"[..]);
        let (mut by_age, mut by_date) = (None, None);
        for (attribute, text) in parts.filter_map(pair) {
            match attribute.to_ascii_lowercase().as_slice() {
                b"domain" => {
                    domain = text.strip_prefix(b".").unwrap_or(text).to_ascii_lowercase();
                }
                b"path" if text.starts_with(b"/") => path = text,
                b"path" => path = b"/",
                b"max-age" => by_age = is_past_age(text).or(by_age),
                b"expires" => by_date = is_past(text).or(by_date),
                _ => {}
            }
        }
        Some(Self {
            value,
            domain,
            path,
            is_expired: by_age.or(by_date).unwrap_or(false),
        })
    }
}

fn pair(part: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = part.iter().position(|byte| *byte == b'=')?;
    Some((part[..at].trim_ascii(), part[at + 1..].trim_ascii()))
}

fn is_past_age(seconds: &[u8]) -> Option<bool> {
    let digits = seconds.strip_prefix(b"-").unwrap_or(seconds);
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.len() < seconds.len() || digits.iter().all(|digit| *digit == b'0'))
}

/// A date of HTTP, or one in Netscape's form, `Thu, 01-Jan-1970 00:00:00 GMT`.
fn is_past(date: &[u8]) -> Option<bool> {
    let date = std::str::from_utf8(date).ok()?;
    let parsed = httpdate::parse_http_date(date)
        .or_else(|_| httpdate::parse_http_date(&date.replace('-', " ")));
    Some(parsed.ok()? <= SystemTime::now())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::Compression;
    use flate2::bufread::{GzEncoder, ZlibEncoder};

    use super::*;

    /// The value, or the reason why there is none.
    fn captured(source: &str, fields: &[(&str, &str)], body: &[u8]) -> Result<String, Lack> {
        let captures = [Capture::parse("x", source).unwrap()];
        let fields = fields.iter().map(|(name, value)| Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
        });
        let mut response = Captured::begin(&captures, &fields);
        let (one, two) = body.split_at(body.len() / 2);
        response.data(one);
        response.data(two);
        let values = response.end(&captures).map_err(|(_, lack)| lack)?;
        Ok(String::from_utf8_lossy(&values[0]).into_owned())
    }

    #[test]
    fn values_of_json_keep_their_text() {
        let body = concat!(
            r#"{"a":{"b":["x",{"c":7}]},"t":"y","price":1.50,"big":12345678901234567890123,"#,
            r#""e":1e3,"minus":-0.0,"yes":true,"o":{ "k" : 1.50 , "l":[ ]},"l":[1.0, 2],"empty":"","null":null,"#,
            r#""esc":"\u00e9\n\"\ud83d\ude00","half":"\ud83d","a.b":"dotted","x.y.z":[{"v":"deep"}],"#,
            r#""twice":1,"twice":2,"0":"zero","caf\u00e9":"key"}"#
        );
        for (path, value) in [
            ("t", Ok("y")),
            ("a.b.0", Ok("x")),
            ("a.b.1.c", Ok("7")),
            ("a.b.-1.c", Ok("7")),
            ("a.b.-2", Ok("x")),
            ("a.b.-3", Err(Lack::Missing)),
            ("a.b.2", Err(Lack::Missing)),
            ("a.b.+1", Err(Lack::Missing)),
            ("a.b.99999999999999999999", Err(Lack::Missing)),
            ("t.x", Err(Lack::Missing)),
            ("price", Ok("1.50")),
            ("big", Ok("12345678901234567890123")),
            ("e", Ok("1e3")),
            ("minus", Ok("-0.0")),
            ("yes", Ok("true")),
            ("o", Ok(r#"{ "k" : 1.50 , "l":[ ]}"#)),
            ("l", Ok("[1.0, 2]")),
            ("empty", Ok("")),
            ("null", Err(Lack::Null)),
            ("null.x", Err(Lack::Missing)),
            ("none", Err(Lack::Missing)),
            ("esc", Ok("\u{e9}\n\"\u{1f600}")),
            ("half", Err(Lack::NoText)),
            ("a\\.b", Ok("dotted")),
            ("a.b", Ok("[\"x\",{\"c\":7}]")),
            ("x.y.z.0.v", Ok("deep")),
            ("twice", Ok("2")),
            ("0", Ok("zero")),
            ("caf\u{e9}", Ok("key")),
        ] {
            let found = captured(&format!("json:{path}"), &[], body.as_bytes());
            assert_eq!(found.as_deref().map_err(|lack| *lack), value, "{path}");
        }
        let marked = [b"\xef\xbb\xbf", &b" [\"x\"]\r\n"[..]].concat();
        assert_eq!(captured("json:0", &[], &marked).as_deref(), Ok("x"));
        for (body, lack) in [
            (&b""[..], Lack::NoBody),
            (b"no json", Lack::NoJson),
            (b"{\"t\":1} x", Lack::NoJson),
            (b"{\"t\":\"\xff\"}", Lack::NoJson),
            (b"7", Lack::Missing),
        ] {
            assert_eq!(captured("json:t", &[], body), Err(lack), "{body:?}");
        }
        for source in ["json", "json:", "xml:a"] {
            assert!(Capture::parse("x", source).is_err());
        }
    }

    #[test]
    fn values_come_from_coded_bodies_up_to_a_bound() {
        let coded = |mut encoder: Box<dyn Read + '_>| {
            let mut out = Vec::new();
            encoder.read_to_end(&mut out).unwrap();
            out
        };
        let best = Compression::best;
        let gzip = |body: &[u8]| coded(Box::new(GzEncoder::new(body, best())));
        let zlib = |body: &[u8]| coded(Box::new(ZlibEncoder::new(body, best())));
        let body = br#"{"t":"tok"}"#;
        let bomb = format!(r#"{{"t":"{}"}}"#, "x".repeat(MAX_BODY_BYTES));
        let cut = gzip(body);
        for (codings, body, value) in [
            (&["gzip"][..], gzip(body), Ok("tok")),
            (&["deflate"], zlib(body), Ok("tok")),
            (&["deflate, GZip"], gzip(&zlib(body)), Ok("tok")),
            (&["deflate", "gzip"], gzip(&zlib(body)), Ok("tok")),
            (&["identity"], body.to_vec(), Ok("tok")),
            (&["gzip"], cut[..cut.len() - 1].to_vec(), Err(Lack::Coding)),
            (&["gzip"], body.to_vec(), Err(Lack::Coding)),
            (&["gzip"], Vec::new(), Err(Lack::NoBody)),
            (
                &["gzip,gzip,gzip,gzip,gzip,gzip"],
                body.to_vec(),
                Err(Lack::Coding),
            ),
            (&["gzip"], gzip(bomb.as_bytes()), Err(Lack::TooLarge)),
            (&[], bomb.clone().into_bytes(), Err(Lack::TooLarge)),
        ] {
            let fields: Vec<_> = (codings.iter())
                .map(|coding| ("Content-Encoding", *coding))
                .collect();
            let found = captured("json:t", &fields, &body);
            assert_eq!(found.as_deref().map_err(|lack| *lack), value, "{codings:?}");
        }
    }

    #[test]
    fn the_first_header_and_the_last_cookie_count() {
        let fields = [
            ("location", "/next"),
            ("Location", "/later"),
            ("X-Empty", ""),
        ];
        for (name, value) in [
            ("Location", Ok("/next".into())),
            ("x-empty", Ok(String::new())),
            ("nothing", Err(Lack::Missing)),
        ] {
            assert_eq!(captured(&format!("header:{name}"), &fields, b""), value);
        }
        for (lines, value) in [
            (&["other=1", "sid=a=b ; Path=/"][..], Some("a=b")),
            (&["SID=a", "sid", "sidx=1"], None),
            (&["sid=\"a b\"; HttpOnly"], Some("\"a b\"")),
            (&["sid=1", "sid=2"], Some("2")),
            (&["sid=; Max-Age=0", "sid=new"], Some("new")),
            (&["sid=new", "sid=; max-age=-1"], None),
            (
                &["sid=new", "sid=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"],
                None,
            ),
            (
                &["sid=new", "sid=; expires=Thu, 01-Jan-1970 00:00:00 GMT"],
                None,
            ),
            (
                &["sid=new; Expires=Fri, 31 Dec 2999 23:59:59 GMT"],
                Some("new"),
            ),
            (
                &["sid=; Expires=Thu, 01 Jan 1970 00:00:00 GMT; Max-Age=60"],
                Some(""),
            ),
            (&["sid=new", "sid=; Path=/old; Max-Age=0"], Some("new")),
            (
                &["sid=new; Domain=.a.b", "sid=; domain=A.b; Max-Age=0"],
                None,
            ),
            (&["sid=new; Max-Age=soon; Expires=never"], Some("new")),
            (&["sid="], Some("")),
        ] {
            let fields: Vec<_> = lines.iter().map(|line| ("set-cookie", *line)).collect();
            let found = captured("cookie:sid", &fields, b"").ok();
            assert_eq!(found.as_deref(), value, "{lines:?}");
        }
    }
}
