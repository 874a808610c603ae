//! Incremental UTF-8 validation: an invalid byte is found on arrival, wherever the message is cut.

/// Validates text in pieces; a character may be split between them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Validator {
    /// The bytes of an incomplete character.
    partial: [u8; 3],
    partial_len: u8,
}

/// The text is not UTF-8, whatever follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Invalid;

impl Validator {
    pub fn check(&mut self, piece: &[u8]) -> Result<(), Invalid> {
        let rest = self.complete(piece)?;
        let Err(error) = std::str::from_utf8(rest) else {
            return Ok(());
        };
        if error.error_len().is_some() {
            return Err(Invalid);
        }
        let partial = &rest[error.valid_up_to()..];
        self.partial[..partial.len()].copy_from_slice(partial);
        self.partial_len = partial.len() as u8;
        Ok(())
    }

    /// The text ends here.
    pub fn finish(self) -> Result<(), Invalid> {
        if self.partial_len == 0 {
            Ok(())
        } else {
            Err(Invalid)
        }
    }

    /// Completes a partial character; returns the bytes after it.
    fn complete<'a>(&mut self, mut piece: &'a [u8]) -> Result<&'a [u8], Invalid> {
        while self.partial_len > 0
            && let [first, rest @ ..] = piece
        {
            let len = usize::from(self.partial_len);
            let mut character = [0; 4];
            character[..len].copy_from_slice(&self.partial[..len]);
            character[len] = *first;
            piece = rest;
            match std::str::from_utf8(&character[..=len]) {
                Ok(_) => self.partial_len = 0,
                Err(error) if error.error_len().is_some() => return Err(Invalid),
                // Four bytes are a character or an error, so this is the third at most.
                Err(_) => {
                    self.partial[len] = *first;
                    self.partial_len += 1;
                }
            }
        }
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offset of the first invalid byte; the length if the text ends inside a character.
    fn wrong_at(pieces: &[&[u8]]) -> Option<usize> {
        let mut validator = Validator::default();
        let mut before = 0;
        for piece in pieces {
            if validator.check(piece).is_err() {
                return Some(before);
            }
            before += piece.len();
        }
        validator.finish().is_err().then_some(before)
    }

    #[test]
    fn every_cut_gives_the_result_of_the_whole() {
        let texts: [&[u8]; 12] = [
            b"plain",
            "κόσμε 𐍈 \u{10ffff}\u{feff}\0".as_bytes(),
            b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80edited",
            b"\xf4\x90\x80\x80",
            b"\xf8\x88\x80\x80\x80",
            b"\xc0\xaf",
            b"\xe0\x80\xaf",
            b"\xf0\x80\x80\xaf",
            b"ab\x80",
            b"ab\xe2\x82",
            b"\xed\xbf\xbf",
            b"\xf0\x9f\x98",
        ];
        for text in texts {
            let good = std::str::from_utf8(text).is_ok();
            for first in 0..=text.len() {
                for second in first..=text.len() {
                    let pieces = [&text[..first], &text[first..second], &text[second..]];
                    assert_eq!(
                        wrong_at(&pieces).is_none(),
                        good,
                        "{text:x?} {first} {second}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_invalid_byte_is_found_on_arrival() {
        for (text, at) in [
            (&b"\xce\xba\xed\xa0\x80"[..], 3),
            (b"\xf4\x90\x80\x80", 1),
            (b"\xe0\x9f", 1),
            (b"\xff", 0),
        ] {
            let bytes: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(wrong_at(&bytes), Some(at));
        }
    }
}
