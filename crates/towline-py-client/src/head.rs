//! The head of a response, from the wire or from a Python transport.
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use towline_proto::{Field, HeadRef, OwnedHead, Version};

/// Python objects are created only when a property is read.
#[derive(Debug)]
pub struct Head {
    pub status: u16,
    pub version: Version,
    text: Text,
    pub flags: HeadFlags,
}

#[derive(Debug)]
enum Text {
    Wire(OwnedHead),
    Parts {
        reason: Vec<u8>,
        fields: Vec<(Vec<u8>, Vec<u8>)>,
    },
}

/// The header fields that decide how a response is processed.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct HeadFlags {
    pub content_length: Option<u64>,
    pub has_coding: bool,
    pub has_location: bool,
    pub has_cookies: bool,
}

impl Head {
    pub fn from_wire(wire: OwnedHead) -> Self {
        let view = wire.view();
        let mut flags = HeadFlags::default();
        for field in view.fields() {
            flags.record(field.name, field.value);
        }
        Self {
            status: view.status(),
            version: view.version(),
            flags,
            text: Text::Wire(wire),
        }
    }

    pub fn from_parts(
        status: u16,
        version: Version,
        reason: Vec<u8>,
        fields: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let mut flags = HeadFlags::default();
        for (name, value) in &fields {
            flags.record(name, value);
        }
        Self {
            status,
            version,
            flags,
            text: Text::Parts { reason, fields },
        }
    }

    /// Empty if the server sent none.
    pub fn reason(&self) -> &[u8] {
        match &self.text {
            Text::Wire(wire) => wire.view().reason(),
            Text::Parts { reason, .. } => reason,
        }
    }

    /// Calls `f` with every field, in the order of the wire.
    pub fn each_field(&self, mut f: impl FnMut(Field<'_>)) {
        match &self.text {
            Text::Wire(wire) => wire.view().fields().for_each(f),
            Text::Parts { fields, .. } => {
                for (name, value) in fields {
                    f(Field { name, value });
                }
            }
        }
    }

    /// The values of all fields of that name, joined with commas (RFC 9110 5.3).
    pub fn joined(&self, name: &[u8]) -> Option<Vec<u8>> {
        let mut joined: Option<Vec<u8>> = None;
        self.each_field(|field| {
            if !field.name.eq_ignore_ascii_case(name) {
                return;
            }
            match &mut joined {
                None => joined = Some(field.value.to_vec()),
                Some(joined) => {
                    joined.extend_from_slice(b", ");
                    joined.extend_from_slice(field.value);
                }
            }
        });
        joined
    }

    /// `[(name, value), ...]` in the order and the case of the wire.
    pub fn to_list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        match &self.text {
            Text::Wire(wire) => view_to_list(py, &wire.view()),
            Text::Parts { fields, .. } => {
                let fields = fields.iter().map(|(name, value)| Field { name, value });
                pairs(py, fields)
            }
        }
    }

    pub fn version_name(&self) -> &'static str {
        match self.version {
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2",
            Version::Http3 => "HTTP/3",
        }
    }
}

pub fn view_to_list<'py>(py: Python<'py>, head: &HeadRef<'_>) -> PyResult<Bound<'py, PyList>> {
    pairs(py, head.fields())
}

fn pairs<'py, 'a>(
    py: Python<'py>,
    fields: impl Iterator<Item = Field<'a>>,
) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for field in fields {
        let pair = [PyBytes::new(py, field.name), PyBytes::new(py, field.value)];
        list.append(PyTuple::new(py, pair)?)?;
    }
    Ok(list)
}

impl HeadFlags {
    fn record(&mut self, name: &[u8], value: &[u8]) {
        match name.len() {
            8 if name.eq_ignore_ascii_case(b"location") => self.has_location = true,
            10 if name.eq_ignore_ascii_case(b"set-cookie") => self.has_cookies = true,
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                // The wire core has rejected values that are not numbers.
                let digits = std::str::from_utf8(value).ok();
                self.content_length = digits.and_then(|digits| digits.parse().ok());
            }
            16 if name.eq_ignore_ascii_case(b"content-encoding") => self.has_coding = true,
            _ => {}
        }
    }
}
