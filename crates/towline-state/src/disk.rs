//! Space of a file on the disk.
use std::fs::File;
use std::io;
#[cfg(all(target_os = "linux", not(towline_portable)))]
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

/// Reserve a part of a file. Where the file system cannot, write zeros, if that is allowed. False: nothing is known then.
#[cfg(all(target_os = "linux", not(towline_portable)))]
pub fn reserve(file: &File, from: u64, end: u64, may_write: bool) -> io::Result<bool> {
    loop {
        let (start, len) = (from.cast_signed(), (end - from).cast_signed());
        // SAFETY: an open descriptor.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, start, len) } == 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) if may_write => {
                return write_zeros(file, from, end).map(|()| true);
            }
            Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => return Ok(false),
            _ => return Err(error),
        }
    }
}

/// As the one of Linux, whose system call is missing.
#[cfg(not(all(target_os = "linux", not(towline_portable))))]
pub fn reserve(file: &File, from: u64, end: u64, may_write: bool) -> io::Result<bool> {
    if may_write {
        write_zeros(file, from, end)?;
    }
    Ok(may_write)
}

fn write_zeros(file: &File, from: u64, end: u64) -> io::Result<()> {
    static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
    let mut at = from;
    while at < end {
        let len = (end - at).min(ZEROS.len() as u64);
        file.write_all_at(&ZEROS[..len as usize], at)?;
        at += len;
    }
    Ok(())
}
