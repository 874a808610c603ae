//! One answer held against what it must be. Pure: bytes in, verdict out.

use sha2::{Digest, Sha256};

use crate::target::Expect;

/// What was wrong with an answer that was complete and well framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Status,
    Content,
}

/// The answer in hand.
#[derive(Debug, Default)]
pub(crate) struct Check {
    status: u16,
    length: u64,
    differs: bool,
    hash: Option<Box<Sha256>>,
}

impl Check {
    pub(crate) fn begin(&mut self, status: u16, expect: &Expect) {
        self.status = status;
        self.length = 0;
        self.differs = false;
        self.hash = expect.sha256.map(|_| Box::default());
    }

    pub(crate) fn data(&mut self, data: &[u8], expect: &Expect) {
        if let Some(body) = &expect.body {
            let at = usize::try_from(self.length).unwrap_or(usize::MAX);
            let wanted = body.get(at..).and_then(|rest| rest.get(..data.len()));
            self.differs |= wanted != Some(data);
        }
        if let Some(hash) = &mut self.hash {
            hash.update(data);
        }
        self.length += data.len() as u64;
    }

    /// The status wins: an error page has another body, and that is not the news.
    pub(crate) fn end(&mut self, expect: &Expect) -> Option<Fault> {
        let status_is_right = match expect.status {
            Some(status) => self.status == status,
            None => (200..400).contains(&self.status),
        };
        if !status_is_right {
            return Some(Fault::Status);
        }
        let body_length = expect.body.as_ref().map(|body| body.len() as u64);
        let differs = self.differs
            || [expect.length, body_length]
                .into_iter()
                .flatten()
                .any(|length| length != self.length)
            || self
                .hash
                .take()
                .map(|hash| <[u8; 32]>::from(hash.finalize()))
                != expect.sha256;
        differs.then_some(Fault::Content)
    }

    pub(crate) fn status(&self) -> u16 {
        self.status
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn verdict(expect: &Expect, status: u16, pieces: &[&[u8]]) -> Option<Fault> {
        let mut check = Check::default();
        check.begin(status, expect);
        for piece in pieces {
            check.data(piece, expect);
        }
        check.end(expect)
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
                assert_eq!(verdict(expect, 200, pieces), Some(Fault::Content));
            }
        }
        let length = Expect {
            length: Some(5),
            ..Expect::default()
        };
        assert_eq!(verdict(&length, 200, &[b"hellO"]), None);
        assert_eq!(verdict(&length, 200, &[b"hell"]), Some(Fault::Content));
    }

    #[test]
    fn statuses() {
        let any = Expect::default();
        for (status, fault) in [
            (200, None),
            (204, None),
            (304, None),
            (404, Some(Fault::Status)),
        ] {
            assert_eq!(verdict(&any, status, &[]), fault);
        }
        let not_found = Expect {
            status: Some(404),
            ..Expect::default()
        };
        assert_eq!(verdict(&not_found, 404, &[b"x"]), None);
        assert_eq!(verdict(&not_found, 200, &[]), Some(Fault::Status));
    }
}
