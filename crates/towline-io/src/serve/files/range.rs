//! The Range field (RFC 9110 14).
//!
//! One range is served as 206. A request for several gets the whole file, which 14.2 allows and every client
//! must expect: `multipart/byteranges` is mainly used for attacks with thousands of overlapping parts.

/// Part of the `size` bytes to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selection {
    Whole,
    Part {
        offset: u64,
        bytes: u64,
    },
    /// The range is outside the file: 416.
    Unsatisfiable,
}

/// Selects the part. A malformed header or an unknown unit is ignored (14.2).
pub(super) fn select(range: &[u8], size: u64) -> Selection {
    let Some((unit, set)) = split_once(range.trim_ascii(), b'=') else {
        return Selection::Whole;
    };
    if !unit.eq_ignore_ascii_case(b"bytes") {
        return Selection::Whole;
    }
    let Some((first, last)) = split_once(set.trim_ascii(), b'-') else {
        return Selection::Whole;
    };
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => part(first, last, size),
        (Some(first), None) if last.is_empty() => part(first, u64::MAX, size),
        (None, Some(suffix)) if first.is_empty() => match suffix.min(size) {
            0 => Selection::Unsatisfiable,
            bytes => Selection::Part {
                offset: size - bytes,
                bytes,
            },
        },
        // A list also ends here: its comma is not a digit.
        _ => Selection::Whole,
    }
}

fn part(first: u64, last: u64, size: u64) -> Selection {
    if first >= size {
        return Selection::Unsatisfiable;
    }
    Selection::Part {
        offset: first,
        bytes: last.min(size - 1) - first + 1,
    }
}

fn split_once(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let index = bytes.iter().position(|&byte| byte == at)?;
    Some((&bytes[..index], &bytes[index + 1..]))
}

/// Parses 1*DIGIT; a number that overflows becomes the maximum, "to the end".
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, &digit| {
        let value = u64::from(digit.is_ascii_digit().then(|| digit - b'0')?);
        Some(number.saturating_mul(10).saturating_add(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part_of_ten(range: &str) -> Option<(u64, u64)> {
        match select(range.as_bytes(), 10) {
            Selection::Part { offset, bytes } => Some((offset, bytes)),
            _ => None,
        }
    }

    #[test]
    fn single_ranges() {
        assert_eq!(part_of_ten("bytes=0-0"), Some((0, 1)));
        assert_eq!(part_of_ten("bytes=2-5"), Some((2, 4)));
        assert_eq!(part_of_ten("Bytes=9-"), Some((9, 1)));
        assert_eq!(part_of_ten("bytes=5-99"), Some((5, 5)));
        assert_eq!(part_of_ten("bytes=-3"), Some((7, 3)));
        assert_eq!(part_of_ten("bytes=-99"), Some((0, 10)));
        assert_eq!(part_of_ten("bytes=1-99999999999999999999999"), Some((1, 9)));
    }

    #[test]
    fn unsatisfiable_ranges() {
        for range in [
            "bytes=10-",
            "bytes=10-20",
            "bytes=-0",
            "bytes=99999999999999999999999-",
        ] {
            assert_eq!(
                select(range.as_bytes(), 10),
                Selection::Unsatisfiable,
                "{range}"
            );
        }
        assert_eq!(select(b"bytes=0-", 0), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=-5", 0), Selection::Unsatisfiable);
    }

    #[test]
    fn all_other_ranges_select_the_whole_file() {
        for range in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-2",
            "bytes=a-b",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=0-1,3-4",
            "bytes=1",
            "items=0-1",
            "bytes=0x1-2",
            "bytes=--1",
            "bytes=1-2-3",
        ] {
            assert_eq!(select(range.as_bytes(), 10), Selection::Whole, "{range}");
        }
    }
}
