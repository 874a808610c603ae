//! Header blocks as frames.

use super::frame::{self, FrameType, HEADER_BYTES, flag};

/// Writes the length of the HEADERS frame that starts at `start` and ends with `out`; bytes over `most` go into
/// CONTINUATION frames (RFC 9113 6.10).
pub(super) fn end_block(out: &mut Vec<u8>, start: usize, max: usize, id: u32) {
    let block = start + HEADER_BYTES;
    let len = out.len() - block;
    let [_, l0, l1, l2] = (len.min(max) as u32).to_be_bytes();
    out[start..start + 3].copy_from_slice(&[l0, l1, l2]);
    if len <= max {
        return;
    }
    out[start + 4] &= !flag::END_HEADERS;
    let rest = out.split_off(block + max);
    let mut pieces = rest.chunks(max).peekable();
    while let Some(piece) = pieces.next() {
        let flags = if pieces.peek().is_none() {
            flag::END_HEADERS
        } else {
            0
        };
        frame::header(out, FrameType::Continuation, flags, id, piece.len());
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_block_is_cut_into_continuations() {
        let mut out = b"before".to_vec();
        frame::header(&mut out, FrameType::Headers, flag::END_HEADERS | 1, 5, 0);
        out.extend_from_slice(&[7; 25]);
        end_block(&mut out, 6, 10, 5);
        let mut at = 6;
        let mut seen = Vec::new();
        while let Some(header) = frame::FrameHeader::parse(&out[at..]) {
            seen.push((header.frame_type, header.flags, header.len, header.stream));
            at += HEADER_BYTES + header.len as usize;
        }
        assert_eq!(at, out.len());
        assert_eq!(
            seen,
            [
                (FrameType::Headers, 1, 10, 5),
                (FrameType::Continuation, 0, 10, 5),
                (FrameType::Continuation, flag::END_HEADERS, 5, 5),
            ]
        );
    }
}
