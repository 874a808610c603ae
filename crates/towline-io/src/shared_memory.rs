//! Memory that a process shares with those that are forked from it, or that inherit its descriptor.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU64;

/// A shared mapping, initially zero, unmapped with its owner.
pub(crate) struct Mapping {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: only an address and a length; access to the memory is controlled by its users.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `file`: a descriptor of [`shared_file`](crate::sys::shared_file), which stays the caller's. Without one the memory
    /// is anonymous.
    pub(crate) fn new(bytes: usize, file: Option<RawFd>) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let flags = match file {
            Some(fd) => reserve(fd, bytes).map(|()| flags)?,
            None => flags | libc::MAP_ANONYMOUS,
        };
        let (any, fd) = (std::ptr::null_mut(), file.unwrap_or(-1));
        // SAFETY: no address is requested, and a file is long enough; the result is checked.
        let start = unsafe { libc::mmap(any, bytes, protection, flags, fd, 0) };
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

/// Sets the length of a file, unless another process has done so: macOS allows it once.
fn reserve(fd: RawFd, bytes: usize) -> io::Result<()> {
    // SAFETY: plain integers, for which zeros are valid.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: fills the given structure; any number may be passed as a descriptor.
    let is_done = unsafe {
        libc::fstat(fd, &raw mut status) == 0
            && (status.st_size >= length || libc::ftruncate(fd, length) == 0)
    };
    is_done.then_some(()).ok_or_else(io::Error::last_os_error)
}
