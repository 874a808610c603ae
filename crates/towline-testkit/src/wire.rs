//! Builders of HTTP/1 messages; they validate nothing, so that they can build invalid ones too.

/// `METHOD target HTTP/1.1` with `Host: a` and further fields, each a complete line without CRLF.
pub fn request(method: &str, target: &str, fields: &[&str], body: &[u8]) -> Vec<u8> {
    let mut out = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n").into_bytes();
    finish_head(&mut out, fields);
    out.extend_from_slice(body);
    out
}

pub fn get(target: &str) -> Vec<u8> {
    request("GET", target, &[], b"")
}

/// `HTTP/1.1 status` with fields, each a complete line without CRLF.
pub fn response(status: u16, fields: &[&str], body: &[u8]) -> Vec<u8> {
    let mut out = format!("HTTP/1.1 {status} Reason\r\n").into_bytes();
    finish_head(&mut out, fields);
    out.extend_from_slice(body);
    out
}

/// A chunked body: one chunk for each part, then the last chunk and the trailer lines.
pub fn chunked<B: AsRef<[u8]>>(parts: &[B], trailers: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend_from_slice(format!("{:x}\r\n", part.as_ref().len()).as_bytes());
        out.extend_from_slice(part.as_ref());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n");
    finish_head(&mut out, trailers);
    out
}

fn finish_head(out: &mut Vec<u8>, fields: &[&str]) {
    for field in fields {
        out.extend_from_slice(field.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// The status of every response sent by a server, with `, close` if the head has it. Only for responses with
/// `Content-Length` or without a body, which is what the scripted programs send.
pub fn status_lines(mut sent: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while sent.starts_with(b"HTTP/1.") {
        let Some(end) = sent.windows(4).position(|w| w == b"\r\n\r\n") else {
            lines.push("an unfinished head".to_owned());
            break;
        };
        let head = String::from_utf8_lossy(&sent[..end]).to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap_or("").trim_end().to_owned();
        let close = if head.contains("\r\nconnection: close") {
            ", close"
        } else {
            ""
        };
        let length = head
            .split("\r\n")
            .find_map(|line| line.strip_prefix("content-length:"))
            .and_then(|value| value.trim().parse::<usize>().ok())
            .unwrap_or(0);
        lines.push(format!("{status}{close}"));
        sent = &sent[(end + 4 + length).min(sent.len())..];
    }
    if !sent.is_empty() {
        lines.push(format!("further {}", crate::notation::escape(sent)));
    }
    lines
}
