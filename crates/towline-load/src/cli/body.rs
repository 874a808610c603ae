//! Bodies given on the command line: texts, files, forms.

use std::fmt::Write as _;
use std::path::Path;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::values;

#[derive(Clone, Debug, Default)]
pub(super) struct Bodies {
    plain: Option<Bytes>,
    /// Encoded as sent.
    form: Vec<u8>,
    parts: Vec<FormPart>,
}

/// A part of a multipart form (RFC 7578).
#[derive(Clone, Debug)]
struct FormPart {
    name: String,
    file_name: Option<String>,
    content_type: Option<String>,
    content: Vec<u8>,
}

/// A body, and its content type if it implies one.
pub(super) type Body = (Bytes, Option<String>);

impl Bodies {
    pub(super) fn text(&mut self, text: &str) {
        self.plain = Some(Bytes::copy_from_slice(text.as_bytes()));
    }

    pub(super) fn file(&mut self, path: &str) -> Result<(), String> {
        self.plain = Some(read(path)?);
        Ok(())
    }

    pub(super) fn form(&mut self, pair: &str) -> Result<(), String> {
        values::form_pair(pair, &mut self.form)
    }

    /// `NAME=VALUE`, or `NAME=@FILE[;type=TYPE][;filename=NAME]` as in curl.
    pub(super) fn part(&mut self, text: &str) -> Result<(), String> {
        let wrong = || format!("{text:?} is not NAME=VALUE or NAME=@FILE[;type=TYPE]");
        let (name, value) = text.split_once('=').ok_or_else(wrong)?;
        let Some(file) = value.strip_prefix('@') else {
            self.parts.push(FormPart {
                name: name.into(),
                file_name: None,
                content_type: None,
                content: value.into(),
            });
            return Ok(());
        };
        let mut pieces = file.split(';');
        let path = pieces.next().unwrap_or_default();
        let base = Path::new(path).file_name().unwrap_or_default();
        let mut part = FormPart {
            name: name.into(),
            file_name: Some(base.to_string_lossy().into_owned()),
            content_type: Some("application/octet-stream".into()),
            content: Vec::new(),
        };
        for piece in pieces {
            match piece.trim().split_once('=') {
                Some(("type", kind)) if is_field_value(kind) => {
                    part.content_type = Some(kind.into());
                }
                Some(("filename", name)) => part.file_name = Some(name.into()),
                _ => return Err(wrong()),
            }
        }
        part.content = read(path)?.into();
        self.parts.push(part);
        Ok(())
    }

    /// The body that was given, if any.
    pub(super) fn one(&self) -> Result<Option<Body>, String> {
        let is_form = !self.form.is_empty();
        let is_multipart = !self.parts.is_empty();
        if usize::from(self.plain.is_some()) + usize::from(is_form) + usize::from(is_multipart) > 1
        {
            return Err("a body, a form and a multipart form exclude each other".into());
        }
        if is_form {
            let form = Bytes::copy_from_slice(&self.form);
            return Ok(Some((
                form,
                Some("application/x-www-form-urlencoded".into()),
            )));
        }
        if is_multipart {
            return Ok(Some(multipart(&self.parts)));
        }
        Ok(self.plain.clone().map(|body| (body, None)))
    }
}

/// The boundary is a hash of the contents: the same form gives the same bytes, and it does not occur in
/// them.
fn multipart(parts: &[FormPart]) -> Body {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(&part.content);
    }
    let boundary = hash.finalize()[..16]
        .iter()
        .fold(String::from("towline-"), |text, byte| {
            format!("{text}{byte:02x}")
        });
    let mut body = Vec::new();
    for part in parts {
        let mut head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"",
            quoted(&part.name)
        );
        if let Some(name) = &part.file_name {
            let _ = write!(head, "; filename=\"{}\"", quoted(name));
        }
        if let Some(kind) = &part.content_type {
            let _ = write!(head, "\r\nContent-Type: {kind}");
        }
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(b"\r\n\r\n");
        body.extend_from_slice(&part.content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    let kind = format!("multipart/form-data; boundary={boundary}");
    (body.into(), Some(kind))
}

/// Quoted as browsers do (HTML Standard, 4.10.21.8).
fn quoted(name: &str) -> String {
    name.replace('"', "%22")
        .replace('\r', "%0D")
        .replace('\n', "%0A")
}

fn is_field_value(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() || byte == b' ')
}

pub(super) fn read(path: &str) -> Result<Bytes, String> {
    std::fs::read(Path::new(path))
        .map(Bytes::from)
        .map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multipart_form_is_as_rfc_7578_writes_it() {
        let path = std::env::temp_dir().join(format!("towline-part-{}.txt", std::process::id()));
        std::fs::write(&path, "in a file").unwrap();
        let mut bodies = Bodies::default();
        bodies.part("greeting=hello=you").unwrap();
        let file = format!(
            "up\"load=@{};type=text/plain;filename=a b.txt",
            path.display()
        );
        bodies.part(&file).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (body, kind) = bodies.one().unwrap().unwrap();
        let kind = kind.unwrap();
        let boundary = kind.strip_prefix("multipart/form-data; boundary=").unwrap();
        let wanted = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"greeting\"\r\n\r\nhello=you\r\n\
             --{boundary}\r\nContent-Disposition: form-data; name=\"up%22load\"; \
             filename=\"a b.txt\"\r\nContent-Type: text/plain\r\n\r\nin a file\r\n--{boundary}--\r\n"
        );
        assert_eq!(body, wanted);
        assert!(bodies.part("nothing").is_err());
        assert!(bodies.part("a=@/no/such").unwrap_err().contains("/no/such"));
        assert!(bodies.part("a=@/dev/null;size=3").is_err());
        bodies.form("a=b").unwrap();
        assert!(bodies.one().is_err());
    }
}
