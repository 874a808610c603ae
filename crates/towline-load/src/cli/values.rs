//! Values of options. Parsing is strict, and errors name a valid example.

use std::time::Duration;

/// `10`, `10s`, `500ms`, `250us`, `2m`, `1h`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("{text:?} is not a time such as 10s, 500ms or 2m")),
    };
    let seconds =
        decimal(number).ok_or_else(|| format!("{text:?} is not a time such as 10s"))? * scale;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| *time <= Duration::from_secs(365 * 24 * 3600))
        .ok_or_else(|| format!("{text:?} is too long"))
}

/// A positive number, with a suffix `k` or `M` as in wrk.
pub(super) fn count(text: &str) -> Result<u64, String> {
    let (digits, scale) = scaled(text);
    let number: Option<u64> = strict_digits(digits).and_then(|digits| digits.parse().ok());
    number
        .and_then(|number| number.checked_mul(scale))
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("{text:?} is not a positive number"))
}

#[expect(clippy::cast_precision_loss, reason = "1, a thousand or a million")]
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let (number, scale) = scaled(text);
    decimal(number)
        .map(|number| number * scale as f64)
        .filter(|rate| *rate > 0.0)
        .ok_or_else(|| format!("{text:?} is not a positive number"))
}

/// Zero or more.
pub(super) fn number(text: &str) -> Result<f64, String> {
    decimal(text).ok_or_else(|| format!("{text:?} is not a number"))
}

/// `TIME:TARGET,TIME:TARGET...`
pub(super) fn stages(text: &str) -> Result<Vec<(Duration, f64)>, String> {
    /// Bounds the work for each start of an open loop.
    const MOST: usize = 100;
    let stages = list(text, |stage| {
        let (time, target) = stage
            .split_once(':')
            .ok_or_else(|| format!("{stage:?} is not a time and a target, such as 30s:100"))?;
        let time = duration(time)?;
        if time.is_zero() {
            return Err(format!("{stage:?} has no duration"));
        }
        let (digits, scale) = scaled(target);
        let target = decimal(digits).ok_or_else(|| format!("{target:?} is not a number"))?;
        #[expect(clippy::cast_precision_loss, reason = "1, a thousand or a million")]
        let target = target * scale as f64;
        Ok((time, target))
    })?;
    if stages.len() > MOST {
        return Err(format!("more than {MOST} stages"));
    }
    Ok(stages)
}

pub(super) fn list<T>(
    text: &str,
    one: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    text.split(',').map(one).collect()
}

/// The status of a final response.
pub(super) fn status(text: &str) -> Result<u16, String> {
    let status = strict_digits(text).and_then(|digits| digits.parse().ok());
    status
        .filter(|status| (200..600).contains(status))
        .ok_or_else(|| format!("{text:?} is not a final status, 200 to 599"))
}

/// `N,GAP`
pub(super) fn pieces(text: &str) -> Result<(u32, Duration), String> {
    let wrong = || format!("{text:?} is not a number of pieces and a pause, such as 5,1ms");
    let (pieces, gap) = text.split_once(',').ok_or_else(wrong)?;
    let pieces = count(pieces)?.try_into().map_err(|_| wrong())?;
    Ok((pieces, duration(gap)?))
}

/// `NAME: VALUE`; whitespace around the value is not part of it (RFC 9112 5).
pub(super) fn header(text: &str) -> Result<(Box<str>, Box<[u8]>), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?} is not NAME: VALUE"))?;
    Ok((
        name.into(),
        value.trim_matches([' ', '\t']).as_bytes().into(),
    ))
}

/// `NAME=VALUE`, encoded as forms are (URL Standard, 5).
pub(super) fn form_pair(text: &str, body: &mut Vec<u8>) -> Result<(), String> {
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    if !body.is_empty() {
        body.push(b'&');
    }
    form_encode(name, body);
    body.push(b'=');
    form_encode(value, body);
    Ok(())
}

fn form_encode(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        match byte {
            b' ' => out.push(b'+'),
            b'*' | b'-' | b'.' | b'_' => out.push(byte),
            byte if byte.is_ascii_alphanumeric() => out.push(byte),
            byte => out.extend([
                b'%',
                HEX[usize::from(byte >> 4)],
                HEX[usize::from(byte & 15)],
            ]),
        }
    }
}

fn scaled(text: &str) -> (&str, u64) {
    let scales = [("k", 1_000), ("M", 1_000_000)];
    let found = scales
        .iter()
        .find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    found.unwrap_or((text, 1))
}

fn strict_digits(text: &str) -> Option<&str> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(text)
}

fn decimal(text: &str) -> Option<f64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    strict_digits(whole).and(strict_digits(part))?;
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, ms) in [
            ("10", 10_000),
            ("10s", 10_000),
            ("500ms", 500),
            ("1.5s", 1500),
            ("2m", 120_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "s",
            "-1",
            "+1",
            "1 s",
            "1d",
            "1e3",
            "inf",
            "1.",
            "9999999999h",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_and_rates() {
        assert_eq!(
            (count("64"), count("10k"), rate("1.5k")),
            (Ok(64), Ok(10_000), Ok(1500.0))
        );
        for text in ["0", "", "-1", "+1", "1.5", "k", "99999999999999999999"] {
            assert!(count(text).is_err(), "{text}");
        }
        assert!(rate("0").is_err());
    }

    #[test]
    fn forms() {
        let mut body = Vec::new();
        form_pair("a b=c&d", &mut body).unwrap();
        form_pair("\u{e4}=", &mut body).unwrap();
        assert_eq!(body, b"a+b=c%26d&%C3%A4=");
        assert!(form_pair("a", &mut body).is_err());
    }
}
