//! Mutable state of Python objects, and the thread of an event loop.
//!
//! On the usual build the GIL excludes other threads: a [`StateCell`] is a `RefCell`, and a [`LoopThread`] is nothing. On a
//! free-threaded interpreter a cell has a lock, and the objects of a loop know its thread.
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

#[cfg(not(Py_GIL_DISABLED))]
pub use with_gil::{LoopThread, Opened, Peeked, StateCell};
#[cfg(Py_GIL_DISABLED)]
pub use without_gil::{LoopThread, Opened, Peeked, StateCell};

/// References to `object` that exist in all.
///
/// Without the GIL the number is exact where the thread that has created the object asks, or where no other thread has it:
/// the creator's count is its own, and what others count is one atomic number.
pub fn references<T>(object: &Py<T>) -> isize {
    // SAFETY: the object is alive; this reads fields of it.
    let count = unsafe { ffi::Py_REFCNT(object.as_ptr()) };
    // Writes of another thread to the object, before it gave up its reference, have happened before what follows.
    #[cfg(Py_GIL_DISABLED)]
    std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
    count as isize
}

/// A dict to iterate over: a copy where other threads may change the original meanwhile.
pub fn stable<'py>(dict: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyDict>> {
    if cfg!(Py_GIL_DISABLED) {
        return dict.copy();
    }
    Ok(dict.clone())
}

#[cfg(not(Py_GIL_DISABLED))]
mod with_gil {
    use std::cell::{Ref, RefCell, RefMut};

    use pyo3::prelude::*;

    pub type Opened<'a, T> = RefMut<'a, T>;
    pub type Peeked<'a, T> = Ref<'a, T>;

    /// State that one thread at a time may have open.
    ///
    /// A cell must not stay open while Python code can run. A finaliser that runs all the same gets `None` from `try_open`.
    #[derive(Debug, Default)]
    pub struct StateCell<T>(RefCell<T>);

    // SAFETY: every access needs a `Python` token, so it happens on the one thread that holds the GIL; the
    // `RefCell` rejects the second of two overlapping accesses.
    unsafe impl<T: Send> Sync for StateCell<T> {}

    impl<T> StateCell<T> {
        pub const fn new(value: T) -> Self {
            Self(RefCell::new(value))
        }

        /// Panics (a `PanicException` in Python) if this thread has it open already.
        pub fn open<'a>(&'a self, _py: Python<'_>) -> Opened<'a, T> {
            self.0.borrow_mut()
        }

        /// `None` if this thread has it open already.
        pub fn try_open<'a>(&'a self, _py: Python<'_>) -> Option<Opened<'a, T>> {
            self.0.try_borrow_mut().ok()
        }

        /// `None` if any thread has it open.
        pub fn open_if_free<'a>(&'a self, py: Python<'_>) -> Option<Opened<'a, T>> {
            self.try_open(py)
        }

        /// For `tp_traverse`, which runs under the GIL but gets no token. `None`: the cell is open, and the collector must
        /// not visit its references.
        pub fn peek(&self) -> Option<Peeked<'_, T>> {
            self.0.try_borrow().ok()
        }
    }

    /// The thread of an event loop. With the GIL its objects work in other threads as far as those of asyncio do.
    #[derive(Debug, Default)]
    pub struct LoopThread(());

    impl LoopThread {
        #[inline]
        pub fn check(&self) -> PyResult<()> {
            Ok(())
        }

        #[inline]
        pub fn moved_here(&self) {}
    }
}

#[cfg(Py_GIL_DISABLED)]
mod without_gil {
    use std::cell::UnsafeCell;
    use std::marker::PhantomData;
    use std::ops::{Deref, DerefMut};
    use std::ptr::NonNull;
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
    use std::time::{Duration, Instant};

    use pyo3::exceptions::PyRuntimeError;
    use pyo3::prelude::*;

    /// A cell is open for some instructions, so another thread tries this often before it sleeps.
    const SPINS: u32 = 100;
    /// A pause between two looks at a cell, after the first ones.
    const PAUSE: Duration = Duration::from_micros(50);
    /// Longer than any cell is open. Two threads that wait for each other's cells end in an error then.
    const MAX_WAIT: Duration = Duration::from_secs(10);

    /// A number of this thread, other than 0. A later thread may have the number of one that has ended.
    fn this_thread() -> usize {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        PLACE.with(|place| std::ptr::from_ref(place).addr())
    }

    /// State that one thread at a time may have open. Others wait, detached from the interpreter.
    ///
    /// A cell must not stay open while Python code can run. A finaliser that runs all the same gets `None` from `try_open`.
    #[derive(Debug, Default)]
    pub struct StateCell<T> {
        /// The thread that has it open, or 0.
        holder: AtomicUsize,
        value: UnsafeCell<T>,
    }

    // SAFETY: `holder` lets one thread at a time have a reference to the value.
    unsafe impl<T: Send> Sync for StateCell<T> {}

    /// The value of an open cell.
    pub struct Opened<'a, T> {
        value: NonNull<T>,
        holder: &'a AtomicUsize,
        lifetime: PhantomData<&'a mut T>,
    }

    pub type Peeked<'a, T> = Opened<'a, T>;

    impl<T> StateCell<T> {
        pub const fn new(value: T) -> Self {
            Self {
                holder: AtomicUsize::new(0),
                value: UnsafeCell::new(value),
            }
        }

        /// Panics (a `PanicException` in Python) if this thread has it open already.
        pub fn open<'a>(&'a self, py: Python<'_>) -> Opened<'a, T> {
            self.try_open(py).expect("this state is in use already")
        }

        /// `None` if this thread has it open already.
        pub fn try_open<'a>(&'a self, py: Python<'_>) -> Option<Opened<'a, T>> {
            let opened = self.peek();
            if opened.is_none() {
                return self.wait(py);
            }
            opened
        }

        /// `None` if any thread has it open.
        pub fn open_if_free<'a>(&'a self, _py: Python<'_>) -> Option<Opened<'a, T>> {
            self.peek()
        }

        /// For `tp_traverse`, while all threads are stopped. `None`: the cell is open, and the collector must not visit its
        /// references.
        pub fn peek(&self) -> Option<Peeked<'_, T>> {
            let taken = self
                .holder
                .compare_exchange(0, this_thread(), Acquire, Relaxed);
            taken.ok().map(|_| Opened {
                // SAFETY: the pointer of an `UnsafeCell` is not null.
                value: unsafe { NonNull::new_unchecked(self.value.get()) },
                holder: &self.holder,
                lifetime: PhantomData,
            })
        }

        /// Waits until another thread has closed it. A collection stops all attached threads, also the one that has it open,
        /// if that waits for a lock of the interpreter: so this thread must be detached, and must not take the cell meanwhile.
        #[cold]
        fn wait(&self, py: Python<'_>) -> Option<Opened<'_, T>> {
            if self.holder.load(Relaxed) == this_thread() {
                return None;
            }
            for _ in 0..SPINS {
                std::hint::spin_loop();
                if let Some(opened) = self.peek() {
                    return Some(opened);
                }
            }
            let since = Instant::now();
            loop {
                let holder = &self.holder;
                py.detach(|| {
                    std::thread::yield_now();
                    while holder.load(Relaxed) != 0 && since.elapsed() < MAX_WAIT {
                        std::thread::sleep(PAUSE);
                    }
                });
                if let Some(opened) = self.peek() {
                    return Some(opened);
                }
                assert!(
                    since.elapsed() < MAX_WAIT,
                    "another thread has this state open for too long"
                );
            }
        }
    }

    impl<'a, T> Opened<'a, T> {
        /// A part of the value, as `RefMut::filter_map` gives it.
        pub fn filter_map<U>(
            mut opened: Self,
            part: impl FnOnce(&mut T) -> Option<&mut U>,
        ) -> Result<Opened<'a, U>, Self> {
            let Some(value) = part(&mut opened).map(NonNull::from) else {
                return Err(opened);
            };
            let holder = opened.holder;
            std::mem::forget(opened);
            Ok(Opened {
                value,
                holder,
                lifetime: PhantomData,
            })
        }
    }

    impl<T> Deref for Opened<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: points into the cell, which outlives this and is open for this alone.
            unsafe { self.value.as_ref() }
        }
    }

    impl<T> DerefMut for Opened<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as in `deref`.
            unsafe { self.value.as_mut() }
        }
    }

    impl<T> Drop for Opened<'_, T> {
        fn drop(&mut self) {
            self.holder.store(0, Release);
        }
    }

    /// The thread of an event loop, to which the objects of the loop belong: the first one that uses them.
    #[derive(Debug, Default)]
    pub struct LoopThread(AtomicUsize);

    impl LoopThread {
        /// Raises `RuntimeError` in another thread.
        pub fn check(&self) -> PyResult<()> {
            let (this, owner) = (this_thread(), self.0.load(Relaxed));
            if owner == this
                || owner == 0 && self.0.compare_exchange(0, this, Relaxed, Relaxed).is_ok()
            {
                return Ok(());
            }
            Err(PyRuntimeError::new_err(
                "this object belongs to the event loop of another thread: use loop.call_soon_threadsafe or \
                 asyncio.run_coroutine_threadsafe",
            ))
        }

        /// Notes that the loop runs on this thread now.
        pub fn moved_here(&self) {
            self.0.store(this_thread(), Relaxed);
        }
    }
}
