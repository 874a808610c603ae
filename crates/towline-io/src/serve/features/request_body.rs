//! Request bodies with a content coding, decoded for the application (`--decompress-requests`).
//!
//! Decoding happens as the application reads: a read takes only the coded bytes that it needs, and the peer gets credit
//! for those. So a body that inflates a thousandfold costs what is read of it. Two bounds end a body: its decoded size,
//! and its ratio, because a framework that reads whole bodies into memory is not helped by streaming.

use towline_proto::{Field, StreamMut, StreamRead, Version};

use super::super::refusals::{Reason, Undecodable};
use super::super::request_line::RequestLine;
use super::builtin::BuiltinResponse;
use crate::coding::Coding;
use crate::coding::decode::{DecodeError, Decoder};

/// Codings of one body. Two occur where a proxy compresses what is compressed; more only in attacks.
const MAX_CODINGS: usize = 2;
/// Decoded bytes for each coded one, as Apache's `DeflateInflateRatioLimit`. Text has 3 to 20, logs up to 100; deflate
/// reaches 1,032.
const MAX_RATIO: u64 = 200;
/// Decoded bytes that are not judged by their ratio.
const RATIO_FREE_BYTES: u64 = 1 << 20;
/// Coded bytes that are taken from the connection at once.
const INPUT_BYTES: usize = 16 * 1024;

/// The codings that the server decodes, and the bound of a decoded body.
#[derive(Debug, Clone)]
pub struct RequestDecoding {
    pub codings: Vec<Coding>,
    pub max_bytes: u64,
}

/// How a body is passed to the application.
#[derive(Default)]
pub enum Content {
    /// As it was received.
    #[default]
    Plain,
    Coded(Box<BodyDecoder>),
    /// The application does not get the request.
    Refused(Box<BuiltinResponse>),
}

const BROKEN: Undecodable = Undecodable::new(
    400,
    Reason::ContentCoding,
    "a body that its content-encoding does not describe (RFC 9110 8.4)",
);
const TOO_LARGE: Undecodable = Undecodable::new(
    413,
    Reason::BodyTooLarge,
    "the decoded body is larger than --limit-decompressed-body or --limit-request-body",
);
const RATIO: Undecodable = Undecodable::new(
    413,
    Reason::BodyTooLarge,
    "the decoded body is more than 200 times as large as the coded one",
);

impl RequestDecoding {
    /// Decides about the body of a request.
    pub fn content<'a>(
        &self,
        line: &RequestLine<'_>,
        fields: impl IntoIterator<Item = Field<'a>>,
    ) -> Content {
        let mut names = Vec::new();
        let mut count = 0;
        for field in fields {
            if !field.name.eq_ignore_ascii_case(b"content-encoding") {
                continue;
            }
            for name in field.value.split(|&byte| byte == b',') {
                let name = name.trim_ascii();
                if name.is_empty() || name.eq_ignore_ascii_case(b"identity") {
                    continue;
                }
                count += 1;
                let known = Coding::named(name).is_some_and(|known| self.codings.contains(&known));
                if !known || count > MAX_CODINGS {
                    let accepted = self.codings.iter().map(|coding| coding.name());
                    let accepted = accepted.collect::<Vec<_>>().join(", ");
                    let refusal = BuiltinResponse::unsupported_coding(line, accepted);
                    return Content::Refused(Box::new(refusal));
                }
                names.extend_from_slice(name);
                names.push(b',');
            }
        }
        match Decoder::new(&names, Some(self.max_bytes)) {
            Ok(Some(decoder)) => Content::Coded(Box::new(BodyDecoder::new(decoder, line))),
            _ => Content::Plain,
        }
    }
}

/// The outcome of a read; what was decoded has been appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyRead {
    /// There may be more.
    Data,
    /// More must arrive first.
    Pending,
    End,
    /// The client has left.
    Failed,
}

/// Where coded bytes come from.
pub trait CodedBody {
    /// Takes at most `max` bytes, for which the peer gets credit.
    fn read(&mut self, max: usize) -> StreamRead<'_>;
}

impl CodedBody for StreamMut<'_> {
    fn read(&mut self, max: usize) -> StreamRead<'_> {
        StreamMut::read(self, max)
    }
}

/// Decodes one body.
pub struct BodyDecoder {
    decoder: Decoder,
    /// Coded bytes that were taken from the connection.
    input: Vec<u8>,
    used: usize,
    received: u64,
    method: Vec<u8>,
    target: Vec<u8>,
    version: Version,
}

impl BodyDecoder {
    fn new(decoder: Decoder, line: &RequestLine<'_>) -> Self {
        Self {
            decoder,
            input: Vec::new(),
            used: 0,
            received: 0,
            method: line.method.to_vec(),
            target: line.target.to_vec(),
            version: line.version,
        }
    }

    /// Appends at most `max` decoded bytes to `out`. An error is returned after the bytes before it.
    pub fn read(
        &mut self,
        source: &mut impl CodedBody,
        out: &mut Vec<u8>,
        max: usize,
    ) -> Result<BodyRead, Undecodable> {
        let start = out.len();
        let mut filled = start;
        out.resize(start + max, 0);
        let outcome = loop {
            if filled == out.len() {
                break Ok(BodyRead::Data);
            }
            match self.decode(&mut out[filled..]) {
                Ok(0) => {}
                Ok(produced) => {
                    filled += produced;
                    continue;
                }
                // The decoder returns it again.
                Err(_) if filled > start => break Ok(BodyRead::Data),
                Err(error) => break Err(error),
            }
            // All input is used.
            match source.read(INPUT_BYTES) {
                StreamRead::Data(bytes) => {
                    self.received += bytes.len() as u64;
                    self.input.clear();
                    self.input.extend_from_slice(bytes);
                    self.used = 0;
                }
                StreamRead::End => match self.decoder.finish() {
                    Ok(()) => break Ok(BodyRead::End),
                    Err(_) if filled > start => break Ok(BodyRead::Data),
                    Err(error) => break Err(refusal_of(&error)),
                },
                StreamRead::Pending if filled > start => break Ok(BodyRead::Data),
                StreamRead::Pending => break Ok(BodyRead::Pending),
                StreamRead::Failed => break Ok(BodyRead::Failed),
            }
        };
        out.truncate(filled);
        outcome
    }

    fn decode(&mut self, out: &mut [u8]) -> Result<usize, Undecodable> {
        let allowed = RATIO_FREE_BYTES + MAX_RATIO * self.received;
        if self.decoder.produced() > allowed {
            return Err(RATIO);
        }
        let step = self.decoder.decode(&self.input[self.used..], out);
        let step = step.map_err(|error| refusal_of(&error))?;
        self.used += step.consumed;
        Ok(step.produced)
    }

    /// The response to a body that cannot be decoded.
    pub fn refusal(&self, why: Undecodable) -> BuiltinResponse {
        let line = RequestLine {
            method: &self.method,
            target: &self.target,
            version: self.version,
        };
        BuiltinResponse::undecodable(&line, why)
    }
}

fn refusal_of(error: &DecodeError) -> Undecodable {
    match error {
        DecodeError::Work => RATIO,
        error if error.is_limit() => TOO_LARGE,
        _ => BROKEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coding::encode::Encoder;

    /// A body that arrives in pieces, with a pause before each.
    struct Pieces<'w> {
        left: Vec<&'w [u8]>,
        taken: usize,
        pauses: bool,
    }

    impl CodedBody for Pieces<'_> {
        fn read(&mut self, max: usize) -> StreamRead<'_> {
            self.pauses = !self.pauses;
            if self.pauses {
                return StreamRead::Pending;
            }
            let Some(piece) = self.left.first_mut() else {
                return StreamRead::End;
            };
            let (now, later) = piece.split_at(max.min(piece.len()));
            *piece = later;
            if later.is_empty() {
                self.left.remove(0);
            }
            self.taken += now.len();
            StreamRead::Data(now)
        }
    }

    fn pieces<'w>(pieces: &[&'w [u8]]) -> Pieces<'w> {
        Pieces {
            left: pieces
                .iter()
                .copied()
                .filter(|piece| !piece.is_empty())
                .collect(),
            taken: 0,
            pauses: false,
        }
    }

    fn encoded(name: &str, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(Coding::named(name.as_bytes()).unwrap()).unwrap();
        encoder.write(body, &mut out).unwrap();
        encoder.finish(&mut out).unwrap();
        out
    }

    fn content(codings: &str, max_bytes: u64) -> Content {
        let policy = RequestDecoding {
            codings: vec![Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd],
            max_bytes,
        };
        let line = RequestLine {
            method: b"POST",
            target: b"/up",
            version: Version::Http11,
        };
        let fields = codings.split('|').map(|value| Field {
            name: b"Content-Encoding",
            value: value.as_bytes(),
        });
        policy.content(&line, fields)
    }

    fn decoder(codings: &str, max_bytes: u64) -> BodyDecoder {
        match content(codings, max_bytes) {
            Content::Coded(decoder) => *decoder,
            _ => panic!("{codings} is not decoded"),
        }
    }

    fn read_all(mut decoder: BodyDecoder, mut body: Pieces<'_>, max: usize) -> (Vec<u8>, u16) {
        let mut out = Vec::new();
        loop {
            let before = out.len();
            match decoder.read(&mut body, &mut out, max) {
                Ok(BodyRead::End) => return (out, 200),
                Ok(BodyRead::Failed) => return (out, 0),
                Ok(BodyRead::Data) => assert!((before + 1..=before + max).contains(&out.len())),
                Ok(BodyRead::Pending) => assert_eq!(out.len(), before),
                Err(why) => return (out, why.status),
            }
        }
    }

    #[test]
    fn every_cut_gives_the_body_and_every_truncation_400() {
        let body: Vec<u8> = (0..600_u32)
            .flat_map(|n| (n * n).to_string().into_bytes())
            .collect();
        for name in ["gzip", "br", "zstd"] {
            let wire = encoded(name, &body);
            for cut in 0..=wire.len() {
                let (before, after) = wire.split_at(cut);
                for max in [7, 65_536] {
                    let read = read_all(decoder(name, 1 << 20), pieces(&[before, after]), max);
                    assert_eq!(read, (body.clone(), 200), "{name} {cut}");
                }
                if (1..wire.len()).contains(&cut) {
                    let (out, status) = read_all(decoder(name, 1 << 20), pieces(&[before]), 512);
                    assert!(
                        body.starts_with(&out) && status == 400,
                        "{name} {cut}: {status}"
                    );
                }
            }
            let (_, status) = read_all(decoder(name, 1 << 20), pieces(&[b"\xff\xffno"]), 512);
            assert_eq!(status, 400, "{name}");
        }
    }

    #[test]
    fn a_read_takes_no_more_input_than_it_needs() {
        let wire = encoded("gzip", &vec![0; 64 << 20]);
        let mut body = pieces(&[&wire]);
        let mut decoder = decoder("gzip", u64::MAX);
        let mut out = Vec::new();
        while decoder.read(&mut body, &mut out, 1000) != Ok(BodyRead::Data) {}
        assert_eq!((out.len(), body.taken), (1000, INPUT_BYTES));
    }

    #[test]
    fn sizes_and_ratios_are_bounded() {
        let bomb = encoded("gzip", &vec![0; 64 << 20]);
        let (out, status) = read_all(decoder("gzip", u64::MAX), pieces(&[&bomb]), 65_536);
        assert_eq!(status, 413);
        let bound = RATIO_FREE_BYTES + MAX_RATIO * bomb.len() as u64;
        assert!((out.len() as u64) < bound + 65_536, "{}", out.len());
        let twice = encoded("gzip", &bomb);
        let (out, status) = read_all(decoder("gzip, gzip", u64::MAX), pieces(&[&twice]), 65_536);
        assert!(
            status == 413 && out.len() < 3 << 20,
            "{status} {}",
            out.len()
        );
        let small = encoded("gzip", &vec![0; 1 << 20]);
        assert_eq!(
            read_all(decoder("gzip", 1 << 20), pieces(&[&small]), 65_536).1,
            200
        );
        let (out, status) = read_all(decoder("gzip", 999_999), pieces(&[&small]), 65_536);
        assert_eq!((out.len(), status), (999_999, 413));
    }

    #[test]
    fn codings_are_chosen_by_the_header() {
        let both = encoded("br", &encoded("gzip", b"hello"));
        for header in ["gzip, br", "gzip|br", "identity, X-GZIP,br"] {
            let read = read_all(decoder(header, 100), pieces(&[&both]), 64);
            assert_eq!(read, (b"hello".to_vec(), 200), "{header}");
        }
        for header in ["", "identity", ",|identity,"] {
            assert!(matches!(content(header, 1), Content::Plain), "{header}");
        }
        for header in ["compress", "gzip, aws-chunked", "gzip, gzip, gzip"] {
            let Content::Refused(response) = content(header, 1) else {
                panic!("{header} is accepted")
            };
            assert_eq!(response.status(), 415, "{header}");
        }
    }
}
