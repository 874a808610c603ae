//! The directory of a store and its settings: what is made, and what is refused before LMDB opens it.
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Result};

/// Version of the layout (`record.rs`) and of the other files.
const FORMAT: u32 = 1;
pub const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const DEFAULT_SIZE: u64 = 64 * MIB;
const MIN_SIZE: u64 = MIB;
/// Files of a directory in which no store has been made yet; `owner` is the lock of a server.
const OWN_FILES: [&str; 3] = ["opening", "format.new", "owner"];

/// The rule for a full store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// A write that does not fit is refused.
    Error,
    /// Expired values are removed, then those that were written longest ago, approximately.
    Evict,
}

impl WhenFull {
    /// Name in the file `format` and in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Evict => "evict",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Error, Self::Evict]
            .into_iter()
            .find(|rule| rule.name() == name)
    }
}

/// Settings of a store. `None`: those that it has, or the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Bytes of keys and values, with their tree.
    pub size: Option<u64>,
    pub when_full: Option<WhenFull>,
    /// Each write reaches the disk before it is acknowledged, against power cuts.
    pub sync: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub size: u64,
    pub when_full: WhenFull,
    pub sync: bool,
}

impl Settings {
    /// Settings of a new store.
    pub const DEFAULT: Self = Self {
        size: DEFAULT_SIZE,
        when_full: WhenFull::Error,
        sync: false,
    };

    /// Bound of the log of messages.
    pub fn log_bytes(self) -> u64 {
        (self.size / 8).max(MIB / 2)
    }

    /// Size of the map: the values twice, because a page is copied before it is changed, and the log.
    pub fn map_bytes(self) -> u64 {
        (2 * self.size + 2 * self.log_bytes() + 16 * MIB).next_multiple_of(PAGE)
    }

    pub fn with(self, options: Options) -> Self {
        Self {
            size: options.size.unwrap_or(self.size),
            when_full: options.when_full.unwrap_or(self.when_full),
            sync: options.sync.unwrap_or(self.sync),
        }
    }

    pub fn check(self) -> Result<()> {
        if self.size >= MIN_SIZE {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "the size of a store is at least {MIN_SIZE} bytes"
        )))
    }

    fn text(self) -> String {
        let when_full = self.when_full.name();
        let sync = if self.sync { "yes" } else { "no" };
        format!(
            "towline state {FORMAT}\nsize {}\nwhen_full {when_full}\nsync {sync}\n",
            self.size
        )
    }

    /// The settings in a file `format`. `None`: it is not one.
    fn read(text: &str) -> Option<std::result::Result<Self, u32>> {
        let mut lines = text.lines();
        let version: u32 = lines.next()?.strip_prefix("towline state ")?.parse().ok()?;
        if version != FORMAT {
            return Some(Err(version));
        }
        let fields: HashMap<&str, &str> = lines.filter_map(|line| line.split_once(' ')).collect();
        Some(Ok(Self {
            size: fields.get("size")?.parse().ok()?,
            when_full: WhenFull::from_name(fields.get("when_full")?)?,
            sync: *fields.get("sync")? == "yes",
        }))
    }
}

pub fn make_folder(folder: &Path) -> Result<()> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::Refused(format!(
            "{} is not a directory; a store is one",
            folder.display()
        )));
    }
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder);
    made.map_err(Error::io(format!(
        "{}: cannot make the directory",
        folder.display()
    )))
}

/// One process at a time opens a store.
pub fn lock_opening(folder: &Path) -> Result<File> {
    let path = folder.join("opening");
    let failed = || Error::io(format!("{}: cannot lock it", path.display()));
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed())?;
    loop {
        // SAFETY: an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(file);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(failed()(error));
        }
    }
}

/// The settings of the store in the directory; `None` if there is no store yet. Refuses everything else.
pub fn existing_settings(folder: &Path) -> Result<Option<Settings>> {
    let refused = |text: String| Err(Error::Refused(format!("{}: {text}", folder.display())));
    let data = folder.join("data.mdb");
    let text = match fs::read(folder.join("format")) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if data.exists() {
                return refused(
                    "data.mdb is not of Towline: there is no file `format` beside it".into(),
                );
            }
            let other = fs::read_dir(folder)
                .map_err(Error::io(format!("{}", folder.display())))?
                .flatten()
                .find(|entry| !OWN_FILES.iter().any(|own| entry.file_name() == *own));
            return match other {
                Some(entry) => refused(format!(
                    "the directory has other files ({})",
                    entry.file_name().display()
                )),
                None => Ok(None),
            };
        }
        Err(error) => return Err(Error::io(format!("{}", folder.display()))(error)),
    };
    match Settings::read(&text) {
        Some(Ok(settings)) => {
            if data.exists() {
                check_data(&data)?;
            }
            Ok(Some(settings))
        }
        Some(Err(version)) => refused(format!(
            "the store has format {version}, and this version of Towline reads {FORMAT}"
        )),
        None => refused("the file `format` is damaged, or not of Towline".into()),
    }
}

/// Check the two pages from which LMDB starts, and that the file is as long as they say.
fn check_data(path: &Path) -> Result<()> {
    const MAGIC: u32 = 0xBEEF_C0DE;
    let failed = || Error::io(format!("{}: cannot read it", path.display()));
    let damaged = |text: &str| {
        Err(Error::Refused(format!(
            "{} is damaged: {text}",
            path.display()
        )))
    };
    let file = File::open(path).map_err(failed())?;
    let len = file.metadata().map_err(failed())?.len();
    if len == 0 {
        return Ok(()); // its maker was killed before the first transaction
    }
    if len < 2 * PAGE {
        return damaged("it ends within its first pages");
    }
    let mut newest = (0, 0);
    for page in 0..2 {
        let mut meta = [0; 152];
        file.read_exact_at(&mut meta, page * PAGE)
            .map_err(failed())?;
        let number =
            |at: usize| u64::from_le_bytes(meta[at..at + 8].try_into().expect("eight bytes"));
        let (magic, version) = (number(16) as u32, (number(16) >> 32) as u32);
        if magic != MAGIC || version != 1 {
            return damaged("it does not begin as a file of LMDB does");
        }
        newest = newest.max((number(144), number(136)));
    }
    if len < (newest.1 + 1) * PAGE {
        return damaged("it is shorter than its contents");
    }
    Ok(())
}

pub fn write_settings(folder: &Path, settings: Settings) -> Result<()> {
    let (new, path) = (folder.join("format.new"), folder.join("format"));
    let failed = || Error::io(format!("{}: cannot write it", path.display()));
    let _ = fs::remove_file(&new);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .map_err(failed())?;
    file.write_all_at(settings.text().as_bytes(), 0)
        .map_err(failed())?;
    fs::rename(&new, &path).map_err(failed())
}

pub fn other_settings(folder: &Path, settings: Settings) -> Error {
    let Settings {
        size,
        when_full,
        sync,
    } = settings;
    Error::Argument(format!(
        "{} is open with other settings: size {size}, when full {}, sync {sync}",
        folder.display(),
        when_full.name()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_were_written() {
        let settings = Settings {
            size: 5 * MIB,
            when_full: WhenFull::Evict,
            sync: true,
        };
        assert_eq!(Settings::read(&settings.text()), Some(Ok(settings)));
        assert_eq!(Settings::read("towline state 7\n"), Some(Err(7)));
        assert_eq!(Settings::read("towline state 1\nsize x\n"), None);
        assert_eq!(Settings::read("something else"), None);
    }
}
