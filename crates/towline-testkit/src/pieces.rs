//! Cutting wire bytes into pieces.

/// Feeds `wire` in pieces of `sizes`; the last piece is the rest.
pub fn in_pieces(
    wire: &[u8],
    sizes: &mut impl Iterator<Item = usize>,
    mut feed: impl FnMut(&[u8]),
) {
    let mut rest = wire;
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(rest.len());
        let (piece, after) = rest.split_at(size.min(rest.len()));
        feed(piece);
        rest = after;
    }
}
