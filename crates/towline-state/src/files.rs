//! The directory of a store and its settings: what is made, and what is refused before LMDB opens it.
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::error::{Error, Result};
use crate::folder::{FIFOS, Folder};
use crate::verify::{self, Fault};

/// Version of the layout (`record.rs`) and of the other files.
const FORMAT: u32 = 1;
pub const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const DEFAULT_SIZE: u64 = 64 * MIB;
const MIN_SIZE: u64 = MIB;
/// Files of a directory in which no store has been made yet; `owner` is the lock of a server.
const OWN_FILES: [&str; 3] = ["opening", "format.new", "owner"];
/// Files that may be there, too, when the process that made the store was killed before it had finished.
const UNFINISHED: [&str; 4] = ["data.mdb", "lock.mdb", "shared", "writer"];
const FORMAT_BYTES: u64 = 4096;

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
    /// A user whose directory root may use: the one of its server's workers.
    pub workers: Option<u32>,
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

/// One process at a time opens a store.
pub fn lock_opening(folder: &Folder) -> Result<File> {
    let file = folder.open_file("opening", true)?;
    loop {
        // SAFETY: an open descriptor.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } == 0 {
            return Ok(file);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(folder.failed("opening", "lock it")(error));
        }
    }
}

/// The settings of the store in the directory; `None` if there is no store yet. Refuses everything else.
///
/// The file `format` comes last into a new store, so that a store with one is whole.
pub fn existing_settings(folder: &Folder) -> Result<Option<Settings>> {
    let refused = |text: String| Err(Error::Refused(format!("{}: {text}", folder.path.display())));
    folder.check_files()?;
    let names = folder.names()?;
    let has = |name: &str| names.iter().any(|one| one == name);
    if !has("format") {
        if has("format.new") {
            remove_unfinished(folder, &names);
        } else if has("data.mdb") {
            return refused(
                "data.mdb is not of Towline: there is no file `format` beside it".into(),
            );
        }
        let is_own = |name: &String| {
            OWN_FILES.contains(&name.as_str()) || has("format.new") && is_unfinished(name)
        };
        return match names.iter().find(|name| !is_own(name)) {
            Some(other) => refused(format!("the directory has other files ({other})")),
            None => Ok(None),
        };
    }
    let mut bytes = Vec::new();
    folder
        .open_file("format", false)?
        .take(FORMAT_BYTES)
        .read_to_end(&mut bytes)
        .map_err(folder.failed("format", "read it"))?;
    match Settings::read(&String::from_utf8_lossy(&bytes)) {
        Some(Ok(_)) if !has("data.mdb") => {
            refused("data.mdb is missing: its values are lost".into())
        }
        Some(Ok(settings)) => Ok(Some(settings)),
        Some(Err(version)) => refused(format!(
            "the store has format {version}, and this version of Towline reads {FORMAT}"
        )),
        None => refused("the file `format` is damaged, or not of Towline".into()),
    }
}

fn is_unfinished(name: &str) -> bool {
    UNFINISHED.contains(&name) || name.starts_with(FIFOS)
}

fn remove_unfinished(folder: &Folder, names: &[String]) {
    for name in names.iter().filter(|name| is_unfinished(name)) {
        let _ = fs::remove_file(folder.base.join(name));
    }
}

/// Check the file of values before it is mapped: all of it, if no process has it open.
pub fn check_data(folder: &Folder, is_alone: bool) -> Result<()> {
    let file = folder.open_file("data.mdb", false)?;
    let checked = if is_alone {
        verify::pages(&file)
    } else {
        verify::heads(&file)
    };
    checked.map_err(|fault| match fault {
        Fault::Damaged(text) => Error::Refused(format!(
            "{} is damaged: {text}",
            folder.path.join("data.mdb").display()
        )),
        Fault::Io(error) => folder.failed("data.mdb", "read it")(error),
    })
}

/// Write the settings beside the file that has them. `finish_settings` puts them into force.
pub fn write_settings(folder: &Folder, settings: Settings) -> Result<()> {
    let failed = || folder.failed("format", "write it");
    let new = folder.base.join("format.new");
    let _ = fs::remove_file(&new);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .map_err(failed())?;
    file.write_all_at(settings.text().as_bytes(), 0)
        .map_err(failed())
}

pub fn finish_settings(folder: &Folder) -> Result<()> {
    fs::rename(folder.base.join("format.new"), folder.base.join("format"))
        .map_err(folder.failed("format", "write it"))
}

pub fn other_settings(folder: &Folder, settings: Settings) -> Error {
    let Settings {
        size,
        when_full,
        sync,
    } = settings;
    Error::Argument(format!(
        "{} is open with other settings: size {size}, when full {}, sync {sync}",
        folder.path.display(),
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
