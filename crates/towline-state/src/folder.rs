//! The directory of a store. Whoever can write to it, or to its files, can read and replace every value and can end the
//! processes that have the files mapped. So they must belong to this user, or to root, and nobody else may write to them.
//!
//! The directory is opened once, and its files by that descriptor: nobody can put another directory in its place meanwhile.
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Files of a store, and those of the server that has made its directory.
const FILES: [&str; 8] = [
    "opening",
    "format",
    "format.new",
    "data.mdb",
    "lock.mdb",
    "shared",
    "writer",
    "owner",
];
/// Beginning of the names of FIFOs.
pub const FIFOS: &str = "wake-";
const WRITABLE_BY_OTHERS: u32 = 0o022;

pub struct Folder {
    /// Name of the directory, for messages and for later processes.
    pub path: PathBuf,
    /// `/proc/self/fd/N`, which stays the directory whatever happens to its name. Without `/proc`, the name.
    pub base: PathBuf,
    trusted: Trusted,
    _fd: File,
}

/// Users whose files may be used: this process's, root, and the one that root's server has for its workers.
#[derive(Clone, Copy, Debug)]
struct Trusted {
    user: u32,
    workers: Option<u32>,
}

impl Trusted {
    fn has(self, user: u32) -> bool {
        user == 0 || user == self.user || (self.user == 0 && Some(user) == self.workers)
    }
}

impl Folder {
    /// Open a directory that exists or can be made, and refuse one that others can change. `workers`: a user whose
    /// directory root may use.
    pub fn open(path: &Path, workers: Option<u32>) -> Result<Self> {
        let failed = |action: &str| Error::io(format!("{}: cannot {action}", path.display()));
        // SAFETY: has no preconditions.
        let user = unsafe { libc::geteuid() };
        let trusted = Trusted { user, workers };
        make(path)?;
        let link = fs::symlink_metadata(path).map_err(failed("open the directory"))?;
        if link.is_symlink() && !trusted.has(link.uid()) {
            return refuse(path, &format!("it is a link made by {}", name(link.uid())));
        }
        let fd = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY)
            .open(path)
            .map_err(failed("open the directory"))?;
        let found = fd.metadata().map_err(failed("read its owner"))?;
        let path = path.canonicalize().map_err(failed("find it"))?;
        let by_descriptor = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let is_same =
            |there: fs::Metadata| (there.dev(), there.ino()) == (found.dev(), found.ino());
        let base = if fs::metadata(&by_descriptor).is_ok_and(is_same) {
            by_descriptor
        } else {
            path.clone()
        };
        let folder = Self {
            path,
            base,
            trusted,
            _fd: fd,
        };
        folder.check(&found)?;
        Ok(folder)
    }

    fn check(&self, found: &fs::Metadata) -> Result<()> {
        if !self.trusted.has(found.uid()) {
            let (owner, own) = (name(found.uid()), name(self.trusted.user));
            let text = format!(
                "the directory belongs to {owner}, who could read and change all values, and this process runs as {own}. \
                 Give a directory of {own}, or one that does not exist yet"
            );
            return refuse(&self.path, &text);
        }
        if found.mode() & WRITABLE_BY_OTHERS == 0 {
            return Ok(());
        }
        // One that the user has just made with a generous umask is no danger yet.
        if found.uid() == self.trusted.user && self.names()?.is_empty() {
            let mode = fs::Permissions::from_mode(found.mode() & 0o7777 & !WRITABLE_BY_OTHERS);
            fs::set_permissions(&self.base, mode).map_err(self.failed("", "change its mode"))?;
            if self.names()?.is_empty() {
                return Ok(());
            }
        }
        let text = format!(
            "other users may write to the directory (mode {:04o}), so they could change all values. Take that away \
             (chmod go-w), or give a directory within it, which is made",
            found.mode() & 0o7777
        );
        refuse(&self.path, &text)
    }

    /// Names of what is in the directory.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries =
            fs::read_dir(&self.base).map_err(Error::io(format!("{}", self.path.display())))?;
        Ok(entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect())
    }

    /// Refuse files of a store that are links, or that others may have made or can write to.
    pub fn check_files(&self) -> Result<()> {
        for name in self.names()? {
            if !FILES.contains(&name.as_str()) && !name.starts_with(FIFOS) {
                continue;
            }
            match fs::symlink_metadata(self.base.join(&name)) {
                Ok(found) => self.check_file(&name, &found)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {} // a FIFO whose reader has ended
                Err(error) => return Err(self.failed(&name, "read its owner")(error)),
            }
        }
        Ok(())
    }

    fn check_file(&self, file: &str, found: &fs::Metadata) -> Result<()> {
        let is_right_kind = if file.starts_with(FIFOS) {
            found.file_type().is_fifo()
        } else {
            found.is_file()
        };
        let text = if !is_right_kind {
            "it is a link or a special file, and no file of a store is one".into()
        } else if !self.trusted.has(found.uid()) {
            format!("the file belongs to {}", name(found.uid()))
        } else if found.mode() & WRITABLE_BY_OTHERS != 0 {
            "other users may write to the file (chmod go-w)".into()
        } else {
            return Ok(());
        };
        refuse(&self.path.join(file), &text)
    }

    /// Open a file to read and write. A link is refused, and so is what others can change.
    pub fn open_file(&self, name: &str, create: bool) -> Result<File> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(self.base.join(name));
        let file = match opened {
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return refuse(
                    &self.path.join(name),
                    "it is a link, and no file of a store is one",
                );
            }
            opened => opened.map_err(self.failed(name, "open it"))?,
        };
        let found = file
            .metadata()
            .map_err(self.failed(name, "read its owner"))?;
        self.check_file(name, &found)?;
        Ok(file)
    }

    /// For `map_err`: the failed action on a file.
    pub fn failed(&self, name: &str, action: &str) -> impl FnOnce(io::Error) -> Error + use<> {
        Error::io(format!(
            "{}: cannot {action}",
            self.path.join(name).display()
        ))
    }
}

fn make(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        return refuse(path, "it is not a directory; a store is one");
    }
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(Error::io(format!(
        "{}: cannot make the directory",
        path.display()
    )))
}

fn refuse<T>(path: &Path, text: &str) -> Result<T> {
    Err(Error::Refused(format!("{}: {text}", path.display())))
}

fn name(user: u32) -> String {
    if user == 0 {
        "root".into()
    } else {
        format!("user {user}")
    }
}
