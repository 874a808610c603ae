//! Files at paths that are known in advance: logs, pid files, results.
//!
//! In a directory that everybody may write to, such as `/tmp`, another user may have made the file, or a link to one that is
//! not theirs. Such files are refused and such links are not followed, as with the kernel's `fs.protected_symlinks` and
//! `fs.protected_regular`, which not every system has set. Links elsewhere, and those of root and of this user, are followed.
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

const WRITABLE_BY_ALL: u32 = 0o002;

/// Use of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Remove the present content.
    Replace,
    /// Without waiting for the reader of a FIFO.
    Append,
}

/// Open a file to write, and make it with this mode if it does not exist.
pub fn open(path: &Path, output: Output, mode: u32) -> io::Result<File> {
    let opened = |flags| {
        let waits = if output == Output::Append {
            libc::O_NONBLOCK
        } else {
            0
        };
        let mut options = OpenOptions::new();
        options.write(true).append(output == Output::Append);
        options
            .create(true)
            .truncate(false)
            .mode(mode)
            .custom_flags(flags | waits)
            .open(path)
    };
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let file = match fs::metadata(parent.unwrap_or(Path::new("."))) {
        Ok(folder) if folder.mode() & WRITABLE_BY_ALL != 0 => in_shared(path, &folder, opened)?,
        _ => opened(0)?,
    };
    if output == Output::Replace && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

fn in_shared(
    path: &Path,
    folder: &Metadata,
    opened: impl Fn(i32) -> io::Result<File>,
) -> io::Result<File> {
    // SAFETY: has no preconditions.
    let user = unsafe { libc::geteuid() };
    let check = |what: &str, found: &Metadata| {
        let owner = found.uid();
        if owner == 0 || owner == user || owner == folder.uid() {
            return Ok(());
        }
        let text = format!("{what} of user {owner}, in a directory that all users may write to");
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    };
    match opened(libc::O_NOFOLLOW) {
        // The system's reason for a link is ELOOP or EACCES.
        Err(error) => match fs::symlink_metadata(path) {
            Ok(link) if link.is_symlink() => {
                check("it is a link", &link)?;
                opened(0)
            }
            _ => Err(error),
        },
        Ok(file) => {
            check("it is a file", &file.metadata()?)?;
            Ok(file)
        }
    }
}
