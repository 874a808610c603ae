//! Verification of a response. Pure: bytes in, verdict out.

use std::io::Read;

use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use sha2::{Digest, Sha256};
use towline_proto::Field;

use crate::capture::{Captured, Lack};
use crate::target::{Coding, Expect};

/// Limit of coded and decoded bodies whose expected size is unknown.
const MAX_BYTES: usize = 64 << 20;

/// The status of a WebSocket handshake (RFC 6455 4.1); messages have no status of their own.
const SWITCHED: u16 = 101;

/// The difference between a complete, well-framed response and the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    Status,
    /// A text message instead of a binary one, or vice versa.
    Kind,
    /// The expected header of this index is missing or different.
    Field(usize),
    /// An expected trailer is missing or different.
    Trailer,
    /// Not the expected body after decoding, or not decodable.
    Coding,
    Content,
    /// The response lacks the value of this index.
    Capture(usize, Lack),
}

/// The last coded body that was verified: an equal one needs no decoding.
#[derive(Debug, Default)]
pub(crate) struct VerifiedBody(Vec<u8>);

/// The response being received.
#[derive(Debug, Default)]
pub(crate) struct Check {
    status: u16,
    length: u64,
    differs: bool,
    wrong_kind: bool,
    wrong_trailers: bool,
    missing: Option<usize>,
    /// `None` for most targets, whose bodies are compared at most: so a request in flight stays small.
    kept: Option<Box<Kept>>,
}

/// State of the checks that keep something of the body.
#[derive(Debug, Default)]
struct Kept {
    hash: Option<Sha256>,
    coded_body: Option<CodedBody>,
    captured: Option<Captured>,
}

/// A coded body being received.
#[derive(Debug)]
enum CodedBody {
    /// Content-Encoding names another coding.
    OtherCoding,
    /// Equal to the verified body so far.
    Unchanged,
    Buffered(Vec<u8>),
    TooLong,
}

impl Check {
    pub(crate) fn begin<'a>(
        &mut self,
        status: u16,
        fields: impl Iterator<Item = Field<'a>> + Clone,
        expect: &Expect,
    ) {
        self.status = status;
        self.length = 0;
        self.differs = false;
        self.wrong_kind = false;
        self.wrong_trailers = !expect.trailers.is_empty();
        self.missing = None;
        self.kept = None;
        if !expect.fields.is_empty() {
            self.missing = missing(&expect.fields, &fields);
        }
        if expect.keeps() {
            self.kept = Some(Box::new(Kept::begin(fields, expect)));
        }
    }

    /// Checks a complete WebSocket message.
    pub(crate) fn message(
        &mut self,
        data: &[u8],
        kind_is_right: bool,
        expect: &Expect,
        verified: &VerifiedBody,
    ) {
        self.begin(SWITCHED, std::iter::empty(), expect);
        self.wrong_kind = !kind_is_right;
        self.data(data, expect, verified);
    }

    pub(crate) fn data(&mut self, data: &[u8], expect: &Expect, verified: &VerifiedBody) {
        let at = usize::try_from(self.length).unwrap_or(usize::MAX);
        self.length += data.len() as u64;
        if let Some(kept) = &mut self.kept {
            kept.data(at, data, expect, verified);
            if kept.coded_body.is_some() {
                return;
            }
        }
        if let Some(body) = &expect.body {
            let wanted = body.get(at..).and_then(|rest| rest.get(..data.len()));
            self.differs |= wanted != Some(data);
        }
    }

    /// Checks the trailers at the end of a body.
    pub(crate) fn trailers<'a>(
        &mut self,
        fields: &(impl Iterator<Item = Field<'a>> + Clone),
        expect: &Expect,
    ) {
        self.wrong_trailers = missing(&expect.trailers, fields).is_some();
    }

    /// The status has precedence: an error page also has other headers and another body.
    pub(crate) fn end(&mut self, expect: &Expect, verified: &mut VerifiedBody) -> Option<Mismatch> {
        let status_is_right = match expect.status {
            Some(status) => self.status == status,
            None => (200..400).contains(&self.status),
        };
        if !status_is_right {
            return Some(Mismatch::Status);
        }
        if self.wrong_kind {
            return Some(Mismatch::Kind);
        }
        if let Some(missing) = self.missing {
            return Some(Mismatch::Field(missing));
        }
        if self.wrong_trailers {
            return Some(Mismatch::Trailer);
        }
        if expect.length.is_some_and(|length| length != self.length) {
            return Some(Mismatch::Content);
        }
        let coded_body = (self.kept.as_mut()).and_then(|kept| kept.coded_body.take());
        if let (Some(coded_body), Some(coding)) = (coded_body, expect.coding) {
            let is_right = coded_body.verify(self.length, coding, expect, verified);
            return (!is_right).then_some(Mismatch::Coding);
        }
        let body_length = expect.body.as_ref().map(|body| body.len() as u64);
        let hash = (self.kept.as_mut())
            .and_then(|kept| kept.hash.take())
            .map(|hash| hash.finalize().into());
        let differs = self.differs
            || body_length.is_some_and(|length| length != self.length)
            || hash != expect.sha256;
        differs.then_some(Mismatch::Content)
    }

    pub(crate) fn take_captured(&mut self) -> Option<Captured> {
        self.kept.as_mut()?.captured.take()
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }
}

impl Kept {
    fn begin<'a>(mut fields: impl Iterator<Item = Field<'a>> + Clone, expect: &Expect) -> Self {
        let captured =
            (!expect.captures.is_empty()).then(|| Captured::begin(&expect.captures, &fields));
        let coded_body = expect.coding.map(|coding| {
            let coding = coding.name().as_bytes();
            let matches = fields.any(|field| {
                is(&field, "content-encoding") && field.value.eq_ignore_ascii_case(coding)
            });
            if matches {
                CodedBody::Unchanged
            } else {
                CodedBody::OtherCoding
            }
        });
        let hashes = expect.sha256.is_some() && coded_body.is_none();
        Self {
            hash: hashes.then(Sha256::default),
            coded_body,
            captured,
        }
    }

    fn data(&mut self, at: usize, data: &[u8], expect: &Expect, verified: &VerifiedBody) {
        if let Some(captured) = &mut self.captured {
            captured.data(data);
        }
        if let Some(coded_body) = &mut self.coded_body {
            coded_body.data(at, data, expect, verified);
        } else if let Some(hash) = &mut self.hash {
            hash.update(data);
        }
    }
}

impl CodedBody {
    fn data(&mut self, at: usize, data: &[u8], expect: &Expect, verified: &VerifiedBody) {
        if matches!(self, Self::Unchanged) {
            let same = verified.0.get(at..).and_then(|rest| rest.get(..data.len())) == Some(data);
            if same {
                return;
            }
            *self = Self::Buffered(verified.0[..at].to_vec());
        }
        if let Self::Buffered(buffered) = self {
            if buffered.len() + data.len() > most_coded(expect) {
                *self = Self::TooLong;
            } else {
                buffered.extend_from_slice(data);
            }
        }
    }

    fn verify(
        self,
        length: u64,
        coding: Coding,
        expect: &Expect,
        verified: &mut VerifiedBody,
    ) -> bool {
        let bytes = match self {
            Self::OtherCoding | Self::TooLong => return false,
            Self::Unchanged if length > 0 && length == verified.0.len() as u64 => return true,
            Self::Unchanged => verified.0[..length as usize].to_vec(),
            Self::Buffered(bytes) => bytes,
        };
        let most = (expect.body.as_ref()).map_or(MAX_BYTES, bytes::Bytes::len);
        let Some(plain) = decoded(coding, &bytes, most) else {
            return false;
        };
        let is_right = (expect.body.as_ref()).is_none_or(|body| *body == plain)
            && (expect.sha256).is_none_or(|hash| hash == <[u8; 32]>::from(Sha256::digest(&plain)));
        if is_right {
            verified.0 = bytes;
        }
        is_right
    }
}

/// The index of the first expected field that is missing or different.
fn missing<'a>(
    expected: &[(Box<str>, Box<[u8]>)],
    fields: &(impl Iterator<Item = Field<'a>> + Clone),
) -> Option<usize> {
    expected.iter().position(|(name, value)| {
        !(fields.clone()).any(|field| is(&field, name) && *field.value == **value)
    })
}

fn is(field: &Field<'_>, name: &str) -> bool {
    field.name.eq_ignore_ascii_case(name.as_bytes())
}

/// Decodes all of `bytes`; `None` if they are malformed, cut, followed by anything else, or larger than
/// `most`.
fn decoded(coding: Coding, bytes: &[u8], most: usize) -> Option<Vec<u8>> {
    let mut plain = Vec::new();
    // One byte over the limit is enough to detect an excess, and lets the decoder verify the checksum.
    let limit = most as u64 + 1;
    match coding {
        // Several members are one body (RFC 1952 2.2).
        Coding::Gzip => MultiGzDecoder::new(bytes)
            .take(limit)
            .read_to_end(&mut plain)
            .ok()?,
        Coding::Deflate => {
            let mut decoder = ZlibDecoder::new(bytes).take(limit);
            let n = decoder.read_to_end(&mut plain).ok()?;
            if !decoder.into_inner().into_inner().is_empty() {
                return None;
            }
            n
        }
    };
    (plain.len() <= most).then_some(plain)
}

/// A coding adds little to bodies that it cannot shorten.
fn most_coded(expect: &Expect) -> usize {
    (expect.body.as_ref()).map_or(MAX_BYTES, |body| body.len() + body.len() / 8 + 1024)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use flate2::Compression;
    use flate2::bufread::GzEncoder;

    use super::*;

    fn verdict(expect: &Expect, status: u16, pieces: &[&[u8]]) -> Option<Mismatch> {
        verdict_of(expect, status, &[], pieces, &mut VerifiedBody::default())
    }

    fn verdict_of(
        expect: &Expect,
        status: u16,
        fields: &[(&str, &str)],
        pieces: &[&[u8]],
        verified: &mut VerifiedBody,
    ) -> Option<Mismatch> {
        let mut check = Check::default();
        let fields = fields.iter().map(|(name, value)| Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
        });
        check.begin(status, fields, expect);
        for piece in pieces {
            check.data(piece, expect, verified);
        }
        check.end(expect, verified)
    }

    #[test]
    fn each_byte_counts_in_every_kind_of_check() {
        let body = Bytes::from_static(b"hello");
        let kinds = [
            Expect {
                body: Some(body.clone()),
                ..Expect::default()
            },
            Expect {
                sha256: Some(Sha256::digest(&body).into()),
                ..Expect::default()
            },
        ];
        for expect in &kinds {
            assert_eq!(verdict(expect, 200, &[b"hello"]), None);
            assert_eq!(verdict(expect, 200, &[b"he", b"llo"]), None);
            let wrong: [&[&[u8]]; 6] = [
                &[b"hellO"],
                &[b"Hello"],
                &[b"hell"],
                &[b"hello", b"!"],
                &[b"he", b"Llo"],
                &[],
            ];
            for pieces in wrong {
                assert_eq!(verdict(expect, 200, pieces), Some(Mismatch::Content));
            }
        }
        let length = Expect {
            length: Some(5),
            ..Expect::default()
        };
        assert_eq!(verdict(&length, 200, &[b"hellO"]), None);
        assert_eq!(verdict(&length, 200, &[b"hell"]), Some(Mismatch::Content));
    }

    #[test]
    fn messages_of_the_wrong_kind_are_mismatches() {
        let expect = Expect {
            status: Some(SWITCHED),
            body: Some(Bytes::from_static(b"hello")),
            ..Expect::default()
        };
        for (data, kind_is_right, mismatch) in [
            (&b"hello"[..], true, None),
            (b"hello", false, Some(Mismatch::Kind)),
            (b"hellO", true, Some(Mismatch::Content)),
            (b"hell", true, Some(Mismatch::Content)),
            (b"", true, Some(Mismatch::Content)),
        ] {
            let mut check = Check::default();
            check.message(data, kind_is_right, &expect, &VerifiedBody::default());
            assert_eq!(check.end(&expect, &mut VerifiedBody::default()), mismatch);
        }
    }

    #[test]
    fn statuses() {
        let any = Expect::default();
        for (status, mismatch) in [
            (200, None),
            (204, None),
            (304, None),
            (404, Some(Mismatch::Status)),
        ] {
            assert_eq!(verdict(&any, status, &[]), mismatch);
        }
        let not_found = Expect {
            status: Some(404),
            ..Expect::default()
        };
        assert_eq!(verdict(&not_found, 404, &[b"x"]), None);
        assert_eq!(verdict(&not_found, 200, &[]), Some(Mismatch::Status));
    }

    #[test]
    fn expected_trailers_are_there_with_their_values() {
        let expect = Expect {
            trailers: vec![("grpc-status".into(), b"0"[..].into())],
            ..Expect::default()
        };
        let verdict = |trailers: &[(&str, &str)]| {
            let mut check = Check::default();
            check.begin(200, std::iter::empty(), &expect);
            let trailers = trailers.iter().map(|(name, value)| Field {
                name: name.as_bytes(),
                value: value.as_bytes(),
            });
            check.trailers(&trailers, &expect);
            check.end(&expect, &mut VerifiedBody::default())
        };
        let wrong = Some(Mismatch::Trailer);
        assert_eq!(verdict(&[("grpc-message", ""), ("grpc-status", "0")]), None);
        assert_eq!(verdict(&[("grpc-status", "2")]), wrong);
        assert_eq!(verdict(&[]), wrong);
        let mut check = Check::default();
        check.begin(200, std::iter::empty(), &expect);
        let end = check.end(&expect, &mut VerifiedBody::default());
        assert_eq!(end, wrong, "a head without a body");
    }

    #[test]
    fn expected_fields_are_there_with_their_values() {
        let expect = Expect {
            status: Some(302),
            fields: vec![
                ("Location".into(), b"/target"[..].into()),
                ("vary".into(), b"a"[..].into()),
            ],
            ..Expect::default()
        };
        let verdict = |fields: &[(&str, &str)]| {
            verdict_of(&expect, 302, fields, &[], &mut VerifiedBody::default())
        };
        let (right, wrong) = (("location", "/target"), ("location", "/Target"));
        assert_eq!(verdict(&[right, ("Vary", "b"), ("Vary", "a")]), None);
        assert_eq!(verdict(&[wrong, ("vary", "a")]), Some(Mismatch::Field(0)));
        assert_eq!(verdict(&[right, ("vary", "b")]), Some(Mismatch::Field(1)));
    }

    /// `hello` in the zlib format, in one stored block, so that each byte has a known meaning.
    const HELLO: &[u8] = b"\x78\x01\x01\x05\x00\xfa\xffhello\x06\x2c\x02\x15";
    /// The content in two stored blocks.
    const HELLO_TWICE: &[u8] =
        b"\x78\x01\x00\x02\x00\xfd\xffhe\x01\x03\x00\xfc\xffllo\x06\x2c\x02\x15";

    #[test]
    fn a_coded_body_is_compared_decoded_and_cached() {
        let deflated = [("Content-Encoding", "Deflate")];
        let by_body = Expect {
            coding: Some(Coding::Deflate),
            body: Some(Bytes::from_static(b"hello")),
            ..Expect::default()
        };
        let by_hash = Expect {
            coding: Some(Coding::Deflate),
            sha256: Some(Sha256::digest(b"hello").into()),
            ..Expect::default()
        };
        for expect in [&by_body, &by_hash] {
            let mut verified = VerifiedBody::default();
            let mut verdict = |fields: &[(&str, &str)], pieces: &[&[u8]]| {
                verdict_of(expect, 200, fields, pieces, &mut verified)
            };
            for _ in 0..2 {
                assert_eq!(verdict(&deflated, &[HELLO]), None);
                assert_eq!(verdict(&deflated, &[&HELLO[..3], &HELLO[3..]]), None);
            }
            assert_eq!(verdict(&deflated, &[HELLO_TWICE]), None);
            assert_eq!(verdict(&deflated, &[HELLO]), None);
            let wrong = Some(Mismatch::Coding);
            assert_eq!(verdict(&[], &[HELLO]), wrong, "not said");
            assert_eq!(verdict(&[], &[b"hello"]), wrong, "not coded");
            assert_eq!(
                verdict(&deflated, &[&HELLO[..HELLO.len() - 1]]),
                wrong,
                "cut"
            );
            assert_eq!(verdict(&deflated, &[]), wrong, "empty");
            assert_eq!(verdict(&deflated, &[HELLO, b"!"]), wrong, "more behind it");
            for at in 7..HELLO.len() {
                let mut spoilt = HELLO.to_vec();
                spoilt[at] ^= 1;
                assert_eq!(verdict(&deflated, &[&spoilt]), wrong, "byte {at}");
            }
            assert_eq!(verdict(&deflated, &[HELLO]), None);
        }
    }

    #[test]
    fn gzip_is_verified_to_its_last_byte() {
        let expect = Expect {
            coding: Some(Coding::Gzip),
            body: Some(Bytes::from_static(b"hello")),
            ..Expect::default()
        };
        let mut bytes = Vec::new();
        let mut encoder = GzEncoder::new(&b"hello"[..], Compression::default());
        encoder.read_to_end(&mut bytes).unwrap();
        let verdict = |bytes: &[u8]| {
            let gzip = [("content-encoding", "gzip")];
            verdict_of(&expect, 200, &gzip, &[bytes], &mut VerifiedBody::default())
        };
        assert_eq!(verdict(&bytes), None);
        let last = bytes.len() - 1;
        assert_eq!(verdict(&bytes[..last]), Some(Mismatch::Coding));
        // The checksum, eight bytes from the end.
        bytes[last - 7] ^= 1;
        assert_eq!(verdict(&bytes), Some(Mismatch::Coding));
        bytes[last - 7] ^= 1;
        bytes.push(b'x');
        assert_eq!(verdict(&bytes), Some(Mismatch::Coding));
    }

    #[test]
    fn a_decompression_bomb_is_refused() {
        let mut bomb = Vec::new();
        let zeroes = vec![0; 1 << 20];
        let mut encoder = GzEncoder::new(&zeroes[..], Compression::default());
        encoder.read_to_end(&mut bomb).unwrap();
        let expect = Expect {
            coding: Some(Coding::Gzip),
            body: Some(Bytes::from_static(b"hello")),
            ..Expect::default()
        };
        let gzip = [("content-encoding", "gzip")];
        let verdict = verdict_of(&expect, 200, &gzip, &[&bomb], &mut VerifiedBody::default());
        assert_eq!(verdict, Some(Mismatch::Coding));
        bomb.resize(4096, 0);
        let verdict = verdict_of(&expect, 200, &gzip, &[&bomb], &mut VerifiedBody::default());
        assert_eq!(
            verdict,
            Some(Mismatch::Coding),
            "longer than the body could be"
        );
    }
}
