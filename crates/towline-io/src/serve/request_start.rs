//! `X-Request-Start`: when a load balancer has received a request. There is no standard. Apache sends `t=` and
//! microseconds, nginx (`t=${msec}`) seconds with decimals, Heroku milliseconds alone.

use std::time::{Duration, SystemTime};

/// Longer than any load balancer waits: the clocks differ.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(600);

/// Time from the start to `now`. `None`: malformed, in the future, or too long ago.
pub fn queue_time(value: &[u8], now: SystemTime) -> Option<Duration> {
    let value = value.trim_ascii();
    let value = value.strip_prefix(b"t=").unwrap_or(value);
    let mut parts = value.splitn(2, |&byte| byte == b'.');
    let (whole, decimals) = (number(parts.next()?)?, parts.next());
    // The number shows its unit: since 2001 there are ten digits of seconds.
    let unit_ns: u128 = match whole {
        1_000_000_000..1_000_000_000_000 => 1_000_000_000,
        1_000_000_000_000..1_000_000_000_000_000 => 1_000_000,
        1_000_000_000_000_000.. => 1_000,
        _ => return None,
    };
    let fraction_ns = match decimals {
        Some(digits) => u128::from(number(digits)?) * unit_ns / 10_u128.pow(digits.len() as u32),
        None => 0,
    };
    let start_ns = u128::from(whole) * unit_ns + fraction_ns;
    let now_ns = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_nanos();
    let elapsed = u64::try_from(now_ns.checked_sub(start_ns)?).ok()?;
    Some(Duration::from_nanos(elapsed)).filter(|&elapsed| elapsed <= MAX_QUEUE_TIME)
}

/// `1*DIGIT`, at most 18.
fn number(digits: &[u8]) -> Option<u64> {
    let is_number = (1..=18).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        let digits = digits.iter().map(|digit| u64::from(digit - b'0'));
        digits.fold(0, |number, digit| number * 10 + digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elapsed_us(value: &str) -> Option<u128> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_micros(1_764_200_000_500_250);
        queue_time(value.as_bytes(), now).map(|elapsed| elapsed.as_micros())
    }

    #[test]
    fn the_unit_is_seen_from_the_number() {
        for value in [
            "t=1764200000500000",
            "1764200000500000",
            " t=1764200000500000 ",
        ] {
            assert_eq!(elapsed_us(value), Some(250), "{value}");
        }
        for value in [
            "t=1764200000.500",
            "1764200000.500",
            "1764200000500",
            "t=1764200000500",
        ] {
            assert_eq!(elapsed_us(value), Some(250), "{value}");
        }
        assert_eq!(elapsed_us("t=1764200000.50025"), Some(0));
        assert_eq!(elapsed_us("t=1764200000500.25"), Some(0));
        assert_eq!(elapsed_us("t=1764200000"), Some(500_250));
    }

    #[test]
    fn what_cannot_be_is_ignored() {
        for value in [
            "",
            "t=",
            "t",
            "x",
            "t=-1764200000500000",
            "+1764200000",
            "0",
            "1",
            "t=17642",
            "1764200000.",
            ".5",
            "1764200000.5.5",
            "1764200000,5",
            "t=1764200001.0",
            "1764199400.5",
            "1764200000.0000000000000000000",
            "99999999999999999999",
            "999999999999999999",
            "1e9",
        ] {
            assert_eq!(elapsed_us(value), None, "{value}");
        }
        assert!(elapsed_us("1764199400.51").is_some(), "ten minutes");
    }
}
