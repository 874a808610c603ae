//! Memory that a process shares with those that are forked from it.

use std::io;
use std::sync::atomic::AtomicU64;

/// An anonymous shared mapping, initially zero, unmapped with its owner.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: only an address and a length; access to the memory is controlled by its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: no address is requested and no file is involved; the result is checked.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            start: start.cast(),
            bytes,
        })
    }

    /// First byte of the mapping, at the beginning of a page.
    pub(crate) fn start(&self) -> *const u8 {
        self.start
    }

    /// The whole words of the mapping. Its users write nothing but such words, or other parts.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: mapped as long as `self`, on a page boundary; any bytes are valid, and atomics may be shared.
        unsafe {
            std::slice::from_raw_parts(self.start.cast(), self.bytes / size_of::<AtomicU64>())
        }
    }

    /// Length of the mapping.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and not accessed after its owner is dropped.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}
