//! The first line of a request, for logs and routing.

use towline_proto::{HeadRef, Version};

/// The first line of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestLine<'a> {
    pub method: &'a [u8],
    pub target: &'a [u8],
    pub version: Version,
}

impl<'a> RequestLine<'a> {
    pub fn of(head: &HeadRef<'a>) -> Self {
        Self {
            method: head.method(),
            target: head.target(),
            version: head.version(),
        }
    }
}

pub(super) fn version_name(version: Version) -> &'static str {
    match version {
        Version::Http10 => "HTTP/1.0",
        Version::Http11 => "HTTP/1.1",
        Version::Http2 => "HTTP/2.0",
        Version::Http3 => "HTTP/3.0",
    }
}
