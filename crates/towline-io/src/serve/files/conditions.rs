//! Validators and the preconditions on them (RFC 9110 8.8 and 13).

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// Conditional headers of a request; the last of each counts, except lists.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Conditions<'a> {
    pub if_match: Option<&'a [u8]>,
    pub if_none_match: Option<&'a [u8]>,
    pub if_modified_since: Option<&'a [u8]>,
    pub if_unmodified_since: Option<&'a [u8]>,
    pub if_range: Option<&'a [u8]>,
    pub range: Option<&'a [u8]>,
}

impl<'a> Conditions<'a> {
    pub fn from_fields(fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) -> Self {
        let mut conditions = Self::default();
        for (name, value) in fields {
            // Skips most headers by their first letter.
            if !matches!(name.first(), Some(b'i' | b'I' | b'r' | b'R')) {
                continue;
            }
            let is = |wanted: &[u8]| name.eq_ignore_ascii_case(wanted);
            let place = if is(b"if-match") {
                &mut conditions.if_match
            } else if is(b"if-none-match") {
                &mut conditions.if_none_match
            } else if is(b"if-modified-since") {
                &mut conditions.if_modified_since
            } else if is(b"if-unmodified-since") {
                &mut conditions.if_unmodified_since
            } else if is(b"if-range") {
                &mut conditions.if_range
            } else if is(b"range") {
                &mut conditions.range
            } else {
                continue;
            };
            *place = Some(value);
        }
        conditions
    }
}

/// Validators of one version of one representation.
#[derive(Debug, Clone)]
pub(super) struct Validators {
    /// Entity tag with quotes, and `W/` if weak.
    pub etag: String,
    pub modified: SystemTime,
}

/// Age from which a file's tag is strong: a newer file may change again within the clock's tick.
const STABLE_AFTER: Duration = Duration::from_secs(2);

impl Validators {
    /// Entity tag from size and modification time in nanoseconds: strong, so that ranges can use it; weak
    /// while the file is too new (RFC 9110 8.8.1). The name of the coding is part of it, because an encoded
    /// file is another representation.
    pub fn of(data: &Metadata, coding: &str, now: SystemTime) -> Self {
        let nanoseconds = i128::from(data.mtime()) * 1_000_000_000 + i128::from(data.mtime_nsec());
        let modified = data.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let is_stable = now
            .duration_since(modified)
            .is_ok_and(|age| age >= STABLE_AFTER);
        let weak = if is_stable { "" } else { "W/" };
        let dash = if coding.is_empty() { "" } else { "-" };
        let etag = format!("{weak}\"{:x}-{nanoseconds:x}{dash}{coding}\"", data.size());
        // A date before 1970 cannot be written; a date in the future must not be (RFC 9110 8.8.2.1).
        let modified = modified.clamp(SystemTime::UNIX_EPOCH, now.max(SystemTime::UNIX_EPOCH));
        Self { etag, modified }
    }

    pub fn last_modified(&self) -> String {
        httpdate::fmt_http_date(self.modified)
    }

    /// Modification time in whole seconds, as in HTTP dates.
    fn modified_second(&self) -> u64 {
        second(self.modified)
    }
}

fn second(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The outcome of all preconditions, in the order of RFC 9110 13.2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Respond with the file; apply Range if `with_range`.
    Go {
        with_range: bool,
    },
    NotModified,
    Failed,
}

pub(super) fn evaluate(conditions: &Conditions<'_>, current: &Validators) -> Outcome {
    if let Some(list) = conditions.if_match {
        if !matches_list(list, &current.etag, Comparison::Strong) {
            return Outcome::Failed;
        }
    } else if let Some(date) = conditions.if_unmodified_since.and_then(parse_date)
        && current.modified_second() > date
    {
        return Outcome::Failed;
    }
    if let Some(list) = conditions.if_none_match {
        if matches_list(list, &current.etag, Comparison::Weak) {
            return Outcome::NotModified;
        }
    } else if let Some(date) = conditions.if_modified_since.and_then(parse_date)
        && current.modified_second() <= date
    {
        return Outcome::NotModified;
    }
    Outcome::Go {
        with_range: conditions
            .if_range
            .is_none_or(|value| is_unchanged(value, current)),
    }
}

/// If-Range: one strong tag, or the exact date (RFC 9110 13.1.5).
fn is_unchanged(if_range: &[u8], current: &Validators) -> bool {
    let value = if_range.trim_ascii();
    if value.starts_with(b"\"") || value.starts_with(b"W/") {
        return !current.etag.starts_with("W/") && value == current.etag.as_bytes();
    }
    // A date is a strong validator only when the file did not change within its second.
    !current.etag.starts_with("W/") && parse_date(value) == Some(current.modified_second())
}

fn parse_date(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    httpdate::parse_http_date(text).ok().map(second)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// Matches `*` or a list of tags. A tag may contain a comma, so tags are parsed by their quotes.
fn matches_list(list: &[u8], etag: &str, comparison: Comparison) -> bool {
    if list.trim_ascii() == b"*" {
        return true;
    }
    let (opaque, is_weak) = match etag.strip_prefix("W/") {
        Some(opaque) => (opaque, true),
        None => (etag, false),
    };
    let mut rest = list;
    loop {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(b",") {
            rest = after;
            continue;
        }
        let (tag, tag_is_weak) = match rest.strip_prefix(b"W/") {
            Some(tag) => (tag, true),
            None => (rest, false),
        };
        let Some(inside) = tag.strip_prefix(b"\"") else {
            return false;
        };
        let Some(end) = inside.iter().position(|&byte| byte == b'"') else {
            return false;
        };
        let (tag, after) = tag.split_at(end + 2);
        let comparable = comparison == Comparison::Weak || !(is_weak || tag_is_weak);
        if comparable && tag == opaque.as_bytes() {
            return true;
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATE: &str = "Sun, 09 Sep 2001 01:46:40 GMT";
    const BEFORE: &str = "Sun, 09 Sep 2001 01:46:39 GMT";
    const AFTER: &str = "Sun, 09 Sep 2001 01:46:41 GMT";

    fn current(etag: &str) -> Validators {
        let modified = SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_500);
        Validators {
            etag: etag.into(),
            modified,
        }
    }

    fn outcome(etag: &str, fields: &[(&str, &str)]) -> Outcome {
        let fields = fields
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        evaluate(&Conditions::from_fields(fields), &current(etag))
    }

    const GO: Outcome = Outcome::Go { with_range: true };

    #[test]
    fn if_none_match_compares_weakly() {
        let response = |value| outcome("\"a,b\"", &[("If-None-Match", value)]);
        for same in [
            "\"a,b\"",
            "W/\"a,b\"",
            "*",
            "\"x\", \"a,b\"",
            ",, W/\"x\",\"a,b\"",
            " \"a,b\" ",
        ] {
            assert_eq!(response(same), Outcome::NotModified, "{same}");
        }
        for other in ["\"x\"", "", "a,b", "\"a", "\"a\",\"b\"", "junk \"a,b\""] {
            assert_eq!(response(other), GO, "{other}");
        }
        assert_eq!(
            outcome("W/\"a\"", &[("if-none-match", "\"a\"")]),
            Outcome::NotModified
        );
    }

    #[test]
    fn if_modified_since_counts_only_without_tags() {
        assert_eq!(
            outcome("\"a\"", &[("If-Modified-Since", DATE)]),
            Outcome::NotModified
        );
        assert_eq!(
            outcome("\"a\"", &[("If-Modified-Since", AFTER)]),
            Outcome::NotModified
        );
        assert_eq!(outcome("\"a\"", &[("If-Modified-Since", BEFORE)]), GO);
        assert_eq!(outcome("\"a\"", &[("If-Modified-Since", "yesterday")]), GO);
        assert_eq!(
            outcome(
                "\"a\"",
                &[("If-None-Match", "\"b\""), ("If-Modified-Since", AFTER)]
            ),
            GO
        );
    }

    #[test]
    fn if_match_compares_strongly() {
        assert_eq!(outcome("\"a\"", &[("If-Match", "\"a\"")]), GO);
        assert_eq!(outcome("\"a\"", &[("If-Match", "*")]), GO);
        assert_eq!(
            outcome("\"a\"", &[("If-Match", "W/\"a\"")]),
            Outcome::Failed
        );
        assert_eq!(
            outcome("W/\"a\"", &[("If-Match", "W/\"a\"")]),
            Outcome::Failed
        );
        assert_eq!(
            outcome("\"a\"", &[("If-Unmodified-Since", BEFORE)]),
            Outcome::Failed
        );
        assert_eq!(outcome("\"a\"", &[("If-Unmodified-Since", DATE)]), GO);
        assert_eq!(
            outcome(
                "\"a\"",
                &[("If-Match", "\"a\""), ("If-Unmodified-Since", BEFORE)]
            ),
            GO
        );
    }

    #[test]
    fn if_range_requires_a_strong_validator() {
        let with_range = |etag, value| outcome(etag, &[("If-Range", value)]) == GO;
        assert!(with_range("\"a\"", "\"a\"") && with_range("\"a\"", DATE));
        for changed in ["\"b\"", "W/\"a\"", BEFORE, AFTER, "junk", ""] {
            assert!(!with_range("\"a\"", changed), "{changed}");
        }
        assert!(!with_range("W/\"a\"", "W/\"a\"") && !with_range("W/\"a\"", DATE));
    }

    #[test]
    fn tags_depend_on_size_time_and_coding() {
        let directory = super::super::testing::Directory::new("tags");
        let path = directory.write("a", "hello");
        let data = std::fs::metadata(&path).unwrap();
        let fresh = Validators::of(&data, "", SystemTime::now());
        assert!(fresh.etag.starts_with("W/\"5-"), "{}", fresh.etag);
        let later = SystemTime::now() + Duration::from_secs(10);
        let is_stable = Validators::of(&data, "", later);
        assert_eq!(format!("W/{}", is_stable.etag), fresh.etag);
        assert!(Validators::of(&data, "br", later).etag.ends_with("-br\""));
        let past = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
        assert_eq!(
            second(Validators::of(&data, "", past).modified),
            5,
            "never in the future"
        );
    }
}
