//! Parser for lines that end in CR, LF or CRLF, independent of how the bytes are split.
//!
//! A CR ends its line at once, without waiting for the next byte; a LF that follows it, perhaps in the next
//! piece, belongs to it.

use memchr::memchr2;

/// A line, or an event made of lines, is longer than its bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLong;

pub struct LineParser {
    partial: Vec<u8>,
    max_bytes: usize,
    /// The last byte was a CR.
    after_cr: bool,
}

impl LineParser {
    /// `max_bytes`: the longest line, without its line end.
    pub fn new(max_bytes: usize) -> Self {
        Self {
            partial: Vec::new(),
            max_bytes,
            after_cr: false,
        }
    }

    /// Calls `line` with each line that `bytes` completes, also with those before one that is too long.
    pub fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) -> Result<(), TooLong> {
        self.feed_until(bytes, |bytes| {
            line(bytes);
            Ok(())
        })
    }

    /// Like [`LineParser::feed`], for a callback that may fail.
    pub(super) fn feed_until(
        &mut self,
        bytes: &[u8],
        mut line: impl FnMut(&[u8]) -> Result<(), TooLong>,
    ) -> Result<(), TooLong> {
        let mut rest = bytes;
        if self.after_cr && !rest.is_empty() {
            self.after_cr = false;
            rest = rest.strip_prefix(b"\n").unwrap_or(rest);
        }
        while let Some(end) = memchr2(b'\r', b'\n', rest) {
            if self.partial.len() + end > self.max_bytes {
                return Err(TooLong);
            }
            if self.partial.is_empty() {
                line(&rest[..end])?;
            } else {
                self.partial.extend_from_slice(&rest[..end]);
                line(&self.partial)?;
                self.partial.clear();
                // Memory of a long line is not kept.
                self.partial.shrink_to(4096);
            }
            let after = &rest[end + 1..];
            rest = match (rest[end], after) {
                (b'\r', []) => {
                    self.after_cr = true;
                    after
                }
                (b'\r', [b'\n', later @ ..]) => later,
                _ => after,
            };
        }
        if self.partial.len() + rest.len() > self.max_bytes {
            return Err(TooLong);
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }

    /// Ends the stream and returns the bytes after the last line end, if any.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        self.after_cr = false;
        let last = std::mem::take(&mut self.partial);
        (!last.is_empty()).then_some(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[&[u8]], max_bytes: usize) -> (Vec<Vec<u8>>, Result<(), TooLong>) {
        let mut parser = LineParser::new(max_bytes);
        let mut lines = Vec::new();
        for piece in pieces {
            if let Err(error) = parser.feed(piece, |line| lines.push(line.to_vec())) {
                return (lines, Err(error));
            }
        }
        lines.extend(parser.finish());
        (lines, Ok(()))
    }

    /// Reference implementation: split at CRLF, CR or LF.
    fn reference(text: &[u8]) -> Vec<Vec<u8>> {
        let (mut lines, mut line, mut bytes) = (Vec::new(), Vec::new(), text.iter().peekable());
        while let Some(&byte) = bytes.next() {
            match byte {
                b'\r' => {
                    bytes.next_if_eq(&&b'\n');
                    lines.push(std::mem::take(&mut line));
                }
                b'\n' => lines.push(std::mem::take(&mut line)),
                _ => line.push(byte),
            }
        }
        if !line.is_empty() {
            lines.push(line);
        }
        lines
    }

    #[test]
    fn a_cr_ends_its_line_at_once() {
        let mut parser = LineParser::new(10);
        let mut seen = Vec::new();
        parser
            .feed(b"a\r", |line| seen.push(line.to_vec()))
            .unwrap();
        assert_eq!(seen, [b"a"]);
        parser.feed(b"", |_| panic!("no line")).unwrap();
        parser
            .feed(b"\n", |_| panic!("the LF belongs to the CR"))
            .unwrap();
        parser.feed(b"\n", |line| seen.push(line.to_vec())).unwrap();
        assert_eq!(seen, [&b"a"[..], b""]);
    }

    #[test]
    fn the_bound_is_exact_and_earlier_lines_are_delivered() {
        assert_eq!(lines(&[b"1\n12345\n12345"], 5).1, Ok(()));
        let given = (vec![b"1".to_vec()], Err(TooLong));
        assert_eq!(lines(&[b"1\n123456\n"], 5), given);
        assert_eq!(lines(&[b"1\n12", b"345", b"6"], 5), given);
    }

    proptest! {
        #[test]
        fn every_cut_gives_the_same_lines(
            text in prop::collection::vec(prop::sample::select(&b"ab\r\n"[..]), 0..40),
            a in any::<prop::sample::Index>(),
            b in any::<prop::sample::Index>(),
        ) {
            let (a, b) = (a.index(text.len() + 1), b.index(text.len() + 1));
            let (a, b) = (a.min(b), a.max(b));
            let pieces = [&text[..a], &text[a..b], &text[b..]];
            prop_assert_eq!(lines(&pieces, 100), (reference(&text), Ok(())));
        }
    }
}
