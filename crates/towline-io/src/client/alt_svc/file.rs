//! The file in which alternatives outlive the process: text, one alternative in a line.
//!
//! ```text
//! towline alt-svc 1
//! example.com 443 alt.example.com 8443 1767225600 0
//! ```
//!
//! Host and port of the origin, host and port of the alternative, seconds since 1970 at which it expires, and 1 if it
//! outlives a change of networks (`persist`, RFC 7838 3.1). It is replaced atomically and readable by its owner only,
//! since it tells which sites have been visited.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::cache::{Authority, Record};
use super::field;

const HEADER: &str = "towline alt-svc 1";

/// Longest file that is read: the most origins with the longest names need half of it.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;

/// Reads the alternatives that have not expired. No file: none. `Err` is a message for the user.
pub(super) fn read(path: &Path, now: SystemTime) -> Result<Vec<Record>, String> {
    let named = |message: &str| format!("{}: {message}", path.display());
    let mut text = String::new();
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(|error| named(&error.to_string()))?,
    };
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    match read {
        Ok(bytes) if bytes as u64 <= MAX_FILE_BYTES => {}
        Ok(_) => {
            return Err(named(
                "longer than 4 MiB, so not a file of alternative services",
            ));
        }
        Err(error) => return Err(named(&error.to_string())),
    }
    parse(&text, now).map_err(|line| {
        named(&format!(
            "line {line} is not of a file of alternative services; delete the file to start anew"
        ))
    })
}

/// Replaces the file.
pub(super) fn write(path: &Path, records: &[Record], now: SystemTime) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // The name has the process in it: two processes that write at once must not mix.
    name.push(format!(".{}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let write = || {
        let _ = fs::remove_file(&temporary);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(text(records, now).as_bytes())?;
        file.sync_data()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

fn text(records: &[Record], now: SystemTime) -> String {
    let mut text = format!("{HEADER}\n");
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    for record in records {
        let Record {
            origin,
            alternative,
            ..
        } = record;
        let expires = (now + record.lifetime).as_secs();
        let _ = writeln!(
            text,
            "{} {} {} {} {expires} {}",
            origin.host,
            origin.port,
            alternative.host,
            alternative.port,
            u8::from(record.persist)
        );
    }
    text
}

/// `Err`: the number of the line that is wrong.
fn parse(text: &str, now: SystemTime) -> Result<Vec<Record>, usize> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut lines = text.lines().enumerate();
    if lines.next().is_none_or(|(_, first)| first != HEADER) || !text.ends_with('\n') {
        return Err(text.lines().count().max(1));
    }
    let mut records = Vec::new();
    for (index, line) in lines {
        let (record, expires) = parse_line(line).ok_or(index + 1)?;
        if let Some(lifetime) = expires.checked_sub(now).filter(|left| *left > 0) {
            // An expiry far in the future comes from a clock that was wrong.
            let lifetime = Duration::from_secs(lifetime).min(field::LONGEST_LIFETIME);
            records.push(Record { lifetime, ..record });
        }
    }
    Ok(records)
}

fn parse_line(line: &str) -> Option<(Record, u64)> {
    let mut words = line.split(' ');
    let origin = authority(words.next()?, words.next()?)?;
    let alternative = authority(words.next()?, words.next()?)?;
    let expires = number(words.next()?)?;
    let persist = match words.next()? {
        "0" => false,
        "1" => true,
        _ => return None,
    };
    let record = Record {
        origin,
        alternative,
        lifetime: Duration::ZERO,
        persist,
    };
    words.next().is_none().then_some((record, expires))
}

fn authority(host: &str, port: &str) -> Option<Authority> {
    let host = match host.parse::<std::net::IpAddr>() {
        Ok(address) => address.to_string().into(),
        Err(_) => field::uri_host(host.as_bytes()).filter(|_| !host.is_empty())?,
    };
    let port = u16::try_from(number(port)?)
        .ok()
        .filter(|port| *port != 0)?;
    Some(Authority { host, port })
}

fn number(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use proptest::prelude::*;

    use super::*;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    fn now() -> SystemTime {
        UNIX_EPOCH + NOW
    }

    fn record(host: &str, lifetime: u64, persist: bool) -> Record {
        Record {
            origin: Authority {
                host: host.into(),
                port: 443,
            },
            alternative: Authority {
                host: "2001:db8::1".into(),
                port: 8443,
            },
            lifetime: Duration::from_secs(lifetime),
            persist,
        }
    }

    /// A folder that is removed at the end of the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("towline-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_read_back_and_private() {
        let folder = Folder::new("alt-svc");
        let path = folder.0.join("known");
        assert_eq!(read(&path, now()), Ok(Vec::new()));
        let records = [record("a.example", 60, true), record("127.0.0.1", 1, false)];
        fs::write(&path, "before").unwrap();
        write(&path, &records, now()).unwrap();
        assert_eq!(read(&path, now()).as_deref(), Ok(&records[..]));
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        // Expired entries are left out.
        let left = [record("a.example", 59, true)];
        assert_eq!(
            read(&path, now() + Duration::from_secs(1)).as_deref(),
            Ok(&left[..])
        );
    }

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let folder = Folder::new("alt-svc-unwritable");
        let path = folder.0.join("missing").join("known");
        assert_eq!(
            write(&path, &[], now()).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let path = folder.0.join("folder");
        fs::create_dir(&path).unwrap();
        write(&path, &[], now()).unwrap_err();
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        let message = read(&path, now()).unwrap_err();
        assert!(message.contains("folder: "), "{message}");
    }

    #[test]
    fn a_corrupt_file_is_refused_with_the_line() {
        for (text, line) in [
            ("", 1),
            ("\n", 1),
            ("towline alt-svc 2\n", 1),
            ("towline alt-svc 1", 1),
            ("towline alt-svc 1\na 443 b 443 1900000000 0", 2),
            ("towline alt-svc 1\na 443 b 443 1900000000 0\n\n", 3),
            ("towline alt-svc 1\na 443 b 443 1900000000\n", 2),
            ("towline alt-svc 1\na 443 b 443 1900000000 2\n", 2),
            ("towline alt-svc 1\na 443 b 443 +1900000000 0\n", 2),
            ("towline alt-svc 1\na 0 b 443 1900000000 0\n", 2),
            ("towline alt-svc 1\na 443 b 65536 1900000000 0\n", 2),
            ("towline alt-svc 1\na/b 443 b 443 1900000000 0\n", 2),
            ("towline alt-svc 1\na 443 b 443 1900000000 0 0\n", 2),
        ] {
            assert_eq!(parse(text, now()), Err(line), "{text:?}");
        }
        let folder = Folder::new("alt-svc-corrupt");
        let path = folder.0.join("known");
        fs::write(&path, "towline alt-svc 1\nx\n").unwrap();
        let message = read(&path, now()).unwrap_err();
        assert!(
            message.contains("known: line 2 is not of a file"),
            "{message}"
        );
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(read(&path, now()).is_err());
        fs::write(&path, vec![b'x'; MAX_FILE_BYTES as usize + 1]).unwrap();
        assert!(read(&path, now()).unwrap_err().contains("4 MiB"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(towline alt-svc 1\n)?[ -~\n]{0,80}") {
            let _ = parse(&text, now());
        }

        #[test]
        fn records_survive(hosts in proptest::collection::vec("[a-z][a-z0-9.-]{0,20}", 0..20), lifetime in 1_u64..5_000_000) {
            let records: Vec<_> = hosts.iter().map(|host| record(host, lifetime, lifetime % 2 == 0)).collect();
            prop_assert_eq!(parse(&text(&records, now()), now()), Ok(records));
        }
    }
}
