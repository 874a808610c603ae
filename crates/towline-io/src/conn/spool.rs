//! Temporary files for bodies that are too large for memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes in a temporary file without a name in `TMPDIR`: the kernel frees it with the last descriptor, also
/// when the process is killed.
#[derive(Debug)]
pub struct Spool {
    file: File,
    len: u64,
}

impl Spool {
    pub fn create() -> io::Result<Self> {
        static DIR: OnceLock<PathBuf> = OnceLock::new();
        let dir = DIR.get_or_init(std::env::temp_dir);
        let file = unnamed(dir).or_else(|_| unlinked(dir))?;
        Ok(Self { file, len: 0 })
    }

    pub fn append(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, self.len)?;
        self.len += data.len() as u64;
        Ok(())
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads from `offset` and returns the number of bytes; 0 at the end.
    pub fn read_at(&self, space: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(space, offset)
    }

    /// Removes all bytes and gives their disk space back.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.len = 0;
        self.file.set_len(0)
    }
}

#[cfg(target_os = "linux")]
fn unnamed(dir: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
        .custom_flags(libc::O_TMPFILE | libc::O_EXCL)
        .open(dir)
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_dir: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// For file systems without `O_TMPFILE`.
fn unlinked(dir: &Path) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Relaxed);
        let path = dir.join(format!("towline-{}-{number}", std::process::id()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back_and_cleared() {
        for file in [unnamed, unlinked] {
            let Ok(file) = file(&std::env::temp_dir()) else {
                continue;
            };
            let mut spool = Spool { file, len: 0 };
            spool.append(b"one").unwrap();
            spool.append(b"two").unwrap();
            let mut space = [0; 8];
            assert_eq!(spool.read_at(&mut space, 2).unwrap(), 4);
            assert_eq!(&space[..4], b"etwo");
            spool.clear().unwrap();
            assert_eq!((spool.len(), spool.read_at(&mut space, 0).unwrap()), (0, 0));
        }
        assert!(Spool::create().unwrap().is_empty());
    }
}
