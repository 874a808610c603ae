//! Which generation of the process this is: a child of fork(2) must not use what its parent's threads
//! and sockets are in the middle of.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCHING: Once = Once::new();

/// Another number in every process of a line of forks. What was made in another generation is left
/// alone: its locks may be held by threads that do not exist here.
pub fn generation() -> u64 {
    WATCHING.call_once(|| {
        // SAFETY: the handler does one atomic addition, which is allowed in a child of fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_another_generation() {
        let before = generation();
        // SAFETY: the child only compares two numbers and ends without running anything else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let differs = generation() != before;
            // SAFETY: ends the child at once, with none of the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!differs)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(generation(), before);
    }
}
