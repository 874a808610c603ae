//! Decides which requests have a line: rules that exclude, a share of the successes, slow requests always.

use std::ops::RangeInclusive;
use std::time::Duration;

/// `--access-log-exclude`, `--access-log-sample`, `--access-log-slow`.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    pub exclude: Vec<Rule>,
    /// The share of the successes that is written; `None`: all.
    pub sample: Option<f64>,
    pub slow: Option<Duration>,
}

/// Whether a request has a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    Always,
    Never,
    /// With the probability of the sample.
    Sampled,
}

/// `PATH`, `STATUS` or `STATUS:PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    statuses: RangeInclusive<u16>,
    /// `*` stands for any bytes, also for none.
    path: Box<[u8]>,
}

impl Filter {
    /// Decides about a request. `duration`: of its response, if it is one that can be slow.
    pub fn decide(&self, status: u16, path: &[u8], duration: Option<Duration>) -> Decision {
        if self.slow.is_some() && duration >= self.slow {
            Decision::Always
        } else if self.exclude.iter().any(|rule| rule.covers(status, path)) {
            Decision::Never
        } else if self.sample.is_some() && (100..400).contains(&status) {
            Decision::Sampled
        } else {
            Decision::Always
        }
    }
}

impl Rule {
    pub fn parse(text: &str) -> Option<Self> {
        let (statuses, path) = match text.split_once(':') {
            _ if text.starts_with(['/', '*']) => (0..=u16::MAX, text),
            Some((statuses, path)) => (statuses_of(statuses)?, path),
            None => (statuses_of(text)?, "*"),
        };
        path.starts_with(['/', '*']).then(|| Self {
            statuses,
            path: path.as_bytes().into(),
        })
    }

    fn covers(&self, status: u16, path: &[u8]) -> bool {
        self.statuses.contains(&status) && matches(&self.path, path)
    }
}

/// `404`, or a class such as `2xx`.
fn statuses_of(text: &str) -> Option<RangeInclusive<u16>> {
    let (digits, count) = match text.strip_suffix("xx") {
        Some(class) if class.len() == 1 => (class, 100),
        None if text.len() == 3 => (text, 1),
        _ => return None,
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    let first = digits.parse::<u16>().ok().filter(|_| is_number)? * count;
    (100..600)
        .contains(&first)
        .then(|| first..=first + count - 1)
}

/// Whether a pattern with `*` matches the whole path. At worst the product of both lengths.
fn matches(pattern: &[u8], path: &[u8]) -> bool {
    let (mut p, mut at) = (0, 0);
    // Where to try again: behind the last `*`, with one byte more for it.
    let mut again = None;
    while at < path.len() {
        match pattern.get(p) {
            Some(b'*') => {
                p += 1;
                again = Some((p, at));
            }
            Some(byte) if *byte == path[at] => {
                p += 1;
                at += 1;
            }
            _ => {
                let Some((after, from)) = again else {
                    return false;
                };
                again = Some((after, from + 1));
                (p, at) = (after, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
