//! A hint to glibc's allocator about large bodies, which are allocated and freed all the time.
use std::hint::black_box;
use std::sync::Once;

/// Initial size from which glibc allocates a block with `mmap` and unmaps it when it is freed.
const MMAP_THRESHOLD: usize = 128 * 1024;
/// Size of the block that raises the threshold. glibc then keeps up to twice as much free memory.
const HINT_BYTES: usize = 4 * 1024 * 1024;

/// To be called before a body of `length` bytes is allocated.
///
/// A newly mapped block costs a page fault for every page that is touched; for a body of 256 KB these cost more than
/// everything else that is done with it. glibc raises its threshold when the first larger mapped block is freed
/// (`mallopt(3)`, "dynamic mmap threshold"), unless the environment sets it; so one such block is freed here, once.
pub fn before_allocation(length: usize) {
    static HINT: Once = Once::new();
    if length >= MMAP_THRESHOLD {
        HINT.call_once(|| drop(black_box(Vec::<u8>::with_capacity(HINT_BYTES))));
    }
}
