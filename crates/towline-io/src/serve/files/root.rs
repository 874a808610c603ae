//! Opens files that are below a directory for certain, also during concurrent renames.
//!
//! The root is opened once. On Linux `openat2(RESOLVE_BENEATH)` refuses paths that leave it in the same step
//! that opens them, so there is no race. On other systems, in sandboxes without that call, and for absolute
//! symlinks that may lead back inside, the path is canonicalised, compared, and then walked segment by
//! segment with `O_NOFOLLOW`, so that a link created after the comparison is not followed.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::sys::{open_beneath, owned};

/// Non-blocking: opening a FIFO must not block until it has a writer.
const FLAGS: i32 = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;

/// A directory from which files are served.
#[derive(Debug)]
pub(super) struct Root {
    directory: File,
    /// Canonical path at start-up: a deployment that moves a symlink needs a reload.
    path: PathBuf,
}

impl Root {
    pub fn open(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let flags = libc::O_DIRECTORY | libc::O_CLOEXEC;
        let directory = File::options().read(true).custom_flags(flags).open(&path)?;
        Ok(Self { directory, path })
    }

    /// Opens the file at `relative`, a path without dot segments, below the root.
    pub fn file(&self, relative: &[u8]) -> io::Result<File> {
        let relative = if relative.is_empty() { b"." } else { relative };
        let path = CString::new(relative).map_err(|_| io::Error::from(io::ErrorKind::NotFound))?;
        match open_beneath(self.directory.as_raw_fd(), &path, FLAGS) {
            Err(error) if needs_walk(&error) => self.walk(relative),
            other => other,
        }
    }

    fn walk(&self, relative: &[u8]) -> io::Result<File> {
        let real = self.path.join(OsStr::from_bytes(relative)).canonicalize()?;
        let Ok(below) = real.strip_prefix(&self.path) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let mut current = self.directory.try_clone()?;
        for segment in below.components() {
            let name = CString::new(segment.as_os_str().as_bytes())?;
            current = open_at(current.as_raw_fd(), &name, FLAGS | libc::O_NOFOLLOW)?;
        }
        if below.as_os_str().is_empty() {
            return open_at(current.as_raw_fd(), c".", FLAGS);
        }
        Ok(current)
    }
}

fn open_at(directory: RawFd, name: &CStr, flags: i32) -> io::Result<File> {
    // SAFETY: a valid C string and an open descriptor; the new one has no other owner.
    unsafe { owned(libc::openat(directory, name.as_ptr(), flags)) }.map(File::from)
}

/// Whether to fall back to the walk: the kernel does not have the call, a sandbox forbids it, a rename
/// interfered, or the path leaves the root and may come back.
fn needs_walk(error: &io::Error) -> bool {
    let unsupported = error.kind() == io::ErrorKind::Unsupported;
    let codes = [
        libc::ENOSYS,
        libc::EPERM,
        libc::EXDEV,
        libc::EAGAIN,
        libc::E2BIG,
        libc::EINVAL,
    ];
    unsupported
        || error
            .raw_os_error()
            .is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::super::testing::Directory;
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    /// Reads by both methods, which must agree.
    fn read(root: &Root, relative: &str) -> Option<String> {
        let contents = |file: io::Result<File>| {
            let mut text = String::new();
            file.ok()?.read_to_string(&mut text).ok()?;
            Some(text)
        };
        let quick = contents(root.file(relative.as_bytes()));
        assert_eq!(
            quick,
            contents(root.walk(relative.as_bytes())),
            "{relative}"
        );
        quick
    }

    #[test]
    fn links_are_followed_inside_the_root_only() {
        let directory = Directory::new("links");
        directory.write("outside.txt", "secret");
        directory.write("root/a.txt", "a");
        directory.write("root/sub/b.txt", "b");
        let (base, root) = (directory.path().to_owned(), directory.path().join("root"));
        symlink("../outside.txt", root.join("leaves")).unwrap();
        symlink(base.join("outside.txt"), root.join("leaves-absolute")).unwrap();
        symlink("..", root.join("parent")).unwrap();
        symlink("sub/b.txt", root.join("stays")).unwrap();
        symlink(
            root.canonicalize().unwrap().join("a.txt"),
            root.join("stays-absolute"),
        )
        .unwrap();
        symlink("../root/a.txt", root.join("leaves-and-returns")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        symlink("/", root.join("slash")).unwrap();
        let root = Root::open(&root).unwrap();
        assert_eq!(read(&root, "a.txt").unwrap(), "a");
        assert_eq!(read(&root, "sub/b.txt").unwrap(), "b");
        assert_eq!(read(&root, "stays").unwrap(), "b");
        assert_eq!(read(&root, "stays-absolute").unwrap(), "a");
        assert_eq!(read(&root, "leaves-and-returns").unwrap(), "a");
        for outside in [
            "leaves",
            "leaves-absolute",
            "parent/outside.txt",
            "loop",
            "slash/etc/passwd",
            "nothing",
        ] {
            assert_eq!(read(&root, outside), None, "{outside}");
        }
        // Independent of the checks of the path before.
        assert_eq!(read(&root, "../outside.txt"), None);
        assert_eq!(read(&root, "/etc/passwd"), None);
    }

    /// Swaps a directory for a link to the outside repeatedly: files outside are never read.
    #[test]
    fn concurrent_renames_never_expose_files_outside() {
        let directory = Directory::new("race");
        directory.write("secret/f", "secret");
        directory.write("root/real/f", "public");
        let root_path = directory.path().join("root");
        symlink("../secret", root_path.join("link")).unwrap();
        symlink("real", root_path.join("spot")).unwrap();
        let root = Root::open(&root_path).unwrap();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let mut seen = std::collections::BTreeSet::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for target in ["../secret", "real"] {
                        let _ = std::fs::remove_file(root_path.join("new"));
                        let _ = symlink(target, root_path.join("new"));
                        let _ = std::fs::rename(root_path.join("new"), root_path.join("spot"));
                    }
                }
            });
            for _ in 0..2000 {
                for file in [root.file(b"spot/f"), root.walk(b"spot/f")] {
                    let mut text = String::new();
                    if let Ok(mut file) = file {
                        file.read_to_string(&mut text).unwrap();
                        seen.insert(text);
                    }
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["public"]);
    }
}
