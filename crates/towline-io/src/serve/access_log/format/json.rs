//! Access log lines as JSON objects.

use std::io::Write;

use super::{Decision, Entry, Format, Outcome};
use crate::serve::access_log::escape::push_json;
use crate::serve::access_log::timestamp::Stamp;

impl Format {
    pub(super) fn render_json(
        &self,
        entry: &Entry,
        outcome: &Outcome<'_>,
        stamp: &mut Stamp,
        out: &mut Vec<u8>,
        members: &[(&'static str, usize)],
    ) {
        out.extend_from_slice(b"{\"time\":\"");
        stamp.rfc3339_ms(outcome.ended, out);
        out.push(b'"');
        let known = |text: &'static str| Some(text.as_bytes()).filter(|text| !text.is_empty());
        let client = Some(outcome.client.as_bytes()).filter(|client| !client.is_empty());
        let method = Some(entry.method()).filter(|method| !method.is_empty());
        push_member(out, "client", client);
        push_member(out, "method", method);
        push_member(out, "path", Some(entry.path()));
        push_member(out, "query", Some(entry.query()));
        push_member(out, "version", known(entry.version));
        push_member(out, "scheme", known(outcome.scheme));
        // Writing to a Vec cannot fail.
        let _ = match entry.status {
            0 => write!(out, ",\"status\":null"),
            status => write!(out, ",\"status\":{status}"),
        };
        let (bytes, micros) = (outcome.body_bytes, outcome.duration.as_micros());
        let _ = write!(
            out,
            ",\"bytes\":{bytes},\"duration_us\":{micros},\"duration_ms\":{}.{:03}",
            micros / 1000,
            micros % 1000
        );
        for (name, index) in members {
            push_member(out, name, entry.request_field(*index));
        }
        if let Some(refused) = outcome.refused {
            push_member(out, "refused", Some(refused.reason.label().as_bytes()));
            push_member(out, "refused_rule", Some(refused.rule.as_bytes()));
        }
        if !self.headers.is_empty() {
            out.extend_from_slice(b",\"headers\":{");
            let start = out.len();
            for &index in &self.headers {
                push_header(out, &self.request_fields[index], entry.request_field(index));
            }
            // Each is preceded by a comma.
            out.remove(start);
            out.push(b'}');
        }
        if let Some(sample) = self.filter.sample {
            let is_sampled = self.decide(entry, outcome.duration) == Decision::Sampled;
            let rate = if is_sampled { sample } else { 1.0 };
            let _ = write!(out, ",\"sample_rate\":{rate}");
        }
        let _ = write!(out, ",\"pid\":{}}}", outcome.pid);
    }
}

fn push_header(out: &mut Vec<u8>, name: &[u8], value: Option<&[u8]>) {
    out.extend_from_slice(b",\"");
    push_json(out, name);
    out.extend_from_slice(b"\":");
    match value {
        Some(value) => {
            out.push(b'"');
            push_json(out, value);
            out.push(b'"');
        }
        None => out.extend_from_slice(b"null"),
    }
}

fn push_member(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    let _ = write!(out, ",\"{name}\":");
    let Some(value) = value else {
        return out.extend_from_slice(b"null");
    };
    out.push(b'"');
    push_json(out, value);
    out.push(b'"');
}
