//! Detection of fork(2). A child must not use state that its parent's threads were changing: locks may be
//! held by threads that do not exist in the child.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static GENERATION: AtomicU64 = AtomicU64::new(0);
static REGISTER: Once = Once::new();

/// Number of forks between the first process and this one.
pub fn generation() -> u64 {
    REGISTER.call_once(|| {
        // SAFETY: the handler does one atomic addition, which is allowed in a child of fork.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// A value that is created anew in each generation; the old one is left as it was. Lock-free. Values are
/// never freed, so use it only for values that exist once per process.
pub(crate) struct PerGeneration<T>(AtomicPtr<Entry<T>>);

struct Entry<T> {
    generation: u64,
    value: T,
}

impl<T: Default + Send + Sync + 'static> PerGeneration<T> {
    pub(crate) const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    pub(crate) fn current(&self) -> &'static T {
        let generation = generation();
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: the pointee was leaked below and is never freed or changed.
        if let Some(entry) = unsafe { found.as_ref() }
            && entry.generation == generation
        {
            return &entry.value;
        }
        let value = T::default();
        let new = Box::into_raw(Box::new(Entry { generation, value }));
        let placed = self
            .0
            .compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire);
        match placed {
            // SAFETY: leaked just above.
            Ok(_) => unsafe { &(*new).value },
            Err(theirs) => {
                // SAFETY: `new` has not been published.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread of this generation placed it, and it is never freed.
                unsafe { &(*theirs).value }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_another_generation() {
        static NUMBER: PerGeneration<AtomicU64> = PerGeneration::new();
        let before = generation();
        NUMBER.current().store(7, Ordering::Relaxed);
        assert_eq!(NUMBER.current().load(Ordering::Relaxed), 7);
        // SAFETY: the child compares two numbers, creates a small value and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let fresh = generation() != before && NUMBER.current().load(Ordering::Relaxed) == 0;
            // SAFETY: ends the child at once, with none of the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!fresh)) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(generation(), before);
    }
}
