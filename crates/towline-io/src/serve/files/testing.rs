//! Directories for tests, removed at the end.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

pub(crate) struct Directory(PathBuf);

impl Directory {
    pub fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("towline-files-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file, and creates its directories.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Writes a file that was last modified `seconds` after 2001-09-09T01:46:40Z.
    pub fn write_at(&self, name: &str, text: &str, seconds: u64) -> PathBuf {
        let path = self.write(name, text);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + seconds);
        std::fs::File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
