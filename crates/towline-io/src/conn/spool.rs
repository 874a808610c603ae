//! Temporary files for bodies that are too large for memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::sys::unnamed_file;

/// Bytes in a temporary file without a name in `TMPDIR`: the kernel frees it with the last descriptor, also
/// when the process is killed. Where there is no directory or no space for it, what is appended stays in memory:
/// append no more while `is_full`.
#[derive(Debug, Default)]
pub struct Spool {
    /// `None` until it is needed.
    file: Option<File>,
    file_len: u64,
    /// Follows the file.
    tail: Vec<u8>,
}

impl Spool {
    pub fn append(&mut self, data: &[u8]) {
        if self.tail.is_empty() && self.append_to_file(data).is_ok() {
            self.file_len += data.len() as u64;
        } else {
            self.tail.extend_from_slice(data);
        }
    }

    fn append_to_file(&mut self, data: &[u8]) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(temporary_file()?),
        };
        file.write_all_at(data, self.file_len)
    }

    /// Whether there is no space for more in the file.
    pub fn is_full(&self) -> bool {
        !self.tail.is_empty()
    }

    pub fn len(&self) -> u64 {
        self.file_len + self.tail.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads from `offset` and returns the number of bytes; 0 at the end.
    pub fn read_at(&self, space: &mut [u8], offset: u64) -> io::Result<usize> {
        let in_file = self.file_len.saturating_sub(offset);
        if in_file > 0
            && let Some(file) = &self.file
        {
            let wanted = usize::try_from(in_file).map_or(space.len(), |len| len.min(space.len()));
            return file.read_at(&mut space[..wanted], offset);
        }
        let skipped = usize::try_from(offset.saturating_sub(self.file_len)).unwrap_or(usize::MAX);
        let rest = self.tail.get(skipped..).unwrap_or_default();
        let n = rest.len().min(space.len());
        space[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    /// Removes all bytes and gives their disk space back.
    pub(crate) fn clear(&mut self) {
        self.tail = Vec::new();
        self.file_len = 0;
        self.file = self.file.take().filter(|file| file.set_len(0).is_ok());
    }
}

fn temporary_file() -> io::Result<File> {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let dir = DIR.get_or_init(std::env::temp_dir);
    unnamed_file(dir).or_else(|_| unlinked(dir))
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
        for file in [unnamed_file, unlinked] {
            let Ok(file) = file(&std::env::temp_dir()) else {
                continue;
            };
            let mut spool = Spool {
                file: Some(file),
                ..Spool::default()
            };
            spool.append(b"one");
            spool.append(b"two");
            let mut space = [0; 8];
            assert_eq!(spool.read_at(&mut space, 2).unwrap(), 4);
            assert_eq!(&space[..4], b"etwo");
            spool.clear();
            assert_eq!((spool.len(), spool.read_at(&mut space, 0).unwrap()), (0, 0));
        }
    }

    #[test]
    fn bytes_stay_in_memory_without_space() {
        let path = std::env::temp_dir().join(format!("towline-full-{}", std::process::id()));
        std::fs::write(&path, b"one").unwrap();
        // Cannot be written to, as on a full disk.
        let mut spool = Spool {
            file: Some(File::open(&path).unwrap()),
            file_len: 3,
            tail: Vec::new(),
        };
        std::fs::remove_file(&path).unwrap();
        spool.append(b"two");
        assert!(spool.is_full());
        let mut space = [0; 8];
        let mut read = Vec::new();
        loop {
            let n = spool.read_at(&mut space, read.len() as u64).unwrap();
            read.extend_from_slice(&space[..n]);
            if n == 0 {
                break;
            }
        }
        assert_eq!((read.as_slice(), spool.len()), (&b"onetwo"[..], 6));
        spool.clear();
        spool.append(b"three");
        assert_eq!((spool.is_full(), spool.len()), (false, 5));
    }
}
