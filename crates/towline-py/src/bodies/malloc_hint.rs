//! Memory for large bodies, which come and go.
use std::hint::black_box;
use std::sync::Once;

/// From this size on glibc maps a block of its own and gives it back when it is freed, at first.
const LARGE: usize = 128 * 1024;
/// What it is shown. It then keeps up to twice as much that is free.
const SHOWN: usize = 4 * 1024 * 1024;

/// Before a body of `length` bytes is allocated.
///
/// A block that the system has just given costs a fault for every page that is touched, and those of 256 KB more
/// than all else that is done with them. glibc learns from the first larger block that is freed to keep such blocks
/// (`mallopt(3)`, "dynamic mmap threshold"), unless the environment has set its bounds; so it is shown one, once.
pub fn expect(length: usize) {
    static SHOW: Once = Once::new();
    if length >= LARGE {
        SHOW.call_once(|| drop(black_box(Vec::<u8>::with_capacity(SHOWN))));
    }
}
