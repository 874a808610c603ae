//! Timestamps of log lines, formatted once a second rather than once a line.

use std::io::Write;
use std::time::SystemTime;

/// Formatted timestamp of the last second.
#[derive(Default)]
pub struct Stamp {
    second: Option<i64>,
    clf: Vec<u8>,
    rfc3339: Vec<u8>,
}

impl Stamp {
    /// `[10/Oct/2000:13:55:36 -0700]`, local time, as gunicorn's `%(t)s`.
    pub(super) fn clf(&mut self, at: SystemTime) -> &[u8] {
        self.refresh(at);
        &self.clf
    }

    /// `2000-10-10T13:55:36-07:00` (RFC 3339).
    pub(super) fn rfc3339(&mut self, at: SystemTime) -> &[u8] {
        self.refresh(at);
        &self.rfc3339
    }

    /// Appends `2000-10-10T13:55:36.123-07:00` (RFC 3339).
    pub(super) fn rfc3339_ms(&mut self, at: SystemTime, out: &mut Vec<u8>) {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        let ms = since.map_or(0, |since| since.subsec_millis());
        let text = self.rfc3339(at);
        // The offset has six characters.
        let (time, offset) = text.split_at(text.len() - 6);
        out.extend_from_slice(time);
        // Writing to a Vec cannot fail.
        let _ = write!(out, ".{ms:03}");
        out.extend_from_slice(offset);
    }

    fn refresh(&mut self, at: SystemTime) {
        let second = match at.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            Err(_) => 0,
        };
        if self.second == Some(second) {
            return;
        }
        self.second = Some(second);
        self.write(&local(second));
    }

    fn write(&mut self, time: &libc::tm) {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let (day, hour, minute, second) = (time.tm_mday, time.tm_hour, time.tm_min, time.tm_sec);
        let year = time.tm_year + 1900;
        let month = usize::try_from(time.tm_mon).unwrap_or(0).min(11);
        let sign = if time.tm_gmtoff < 0 { '-' } else { '+' };
        let offset = time.tm_gmtoff.unsigned_abs() / 60;
        let (hours, minutes) = (offset / 60, offset % 60);
        self.clf.clear();
        self.rfc3339.clear();
        // Writing to a Vec cannot fail.
        let _ = write!(
            self.clf,
            "[{day:02}/{}/{year:04}:{hour:02}:{minute:02}:{second:02} {sign}{hours:02}{minutes:02}]",
            MONTHS[month],
        );
        let _ = write!(
            self.rfc3339,
            "{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{sign}{hours:02}:{minutes:02}",
            month + 1,
        );
    }
}

fn local(second: i64) -> libc::tm {
    // SAFETY: `tm` is plain data for which all zeros are valid.
    let mut time: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid; the _r function keeps no state of its own.
    if unsafe { libc::localtime_r(&raw const second, &raw mut time) }.is_null() {
        // The year is out of the platform's range: use the epoch.
        time.tm_mday = 1;
        time.tm_year = 70;
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(offset: i64) -> libc::tm {
        let mut time = local(0);
        (time.tm_year, time.tm_mon, time.tm_mday) = (100, 9, 10);
        (time.tm_hour, time.tm_min, time.tm_sec) = (13, 55, 36);
        time.tm_gmtoff = offset;
        time
    }

    #[test]
    fn both_forms() {
        let mut stamp = Stamp::default();
        stamp.write(&time(-7 * 3600));
        assert_eq!(stamp.clf, b"[10/Oct/2000:13:55:36 -0700]");
        assert_eq!(stamp.rfc3339, b"2000-10-10T13:55:36-07:00");
        stamp.write(&time(5 * 3600 + 1800));
        assert_eq!(stamp.clf, b"[10/Oct/2000:13:55:36 +0530]");
    }

    #[test]
    fn a_new_second_is_a_new_text() {
        let mut stamp = Stamp::default();
        let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        let first = stamp.clf(at).to_vec();
        assert_eq!(stamp.clf(at + std::time::Duration::from_millis(900)), first);
        assert_ne!(stamp.clf(at + std::time::Duration::from_secs(1)), first);
    }
}
