//! Priorities of responses (RFC 9218).

/// The client's priority for a response (RFC 9218).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Priority {
    /// 0 (first) to 7.
    pub urgency: u8,
    /// Sent interleaved with others of its urgency. Also the default if no priority was given, against RFC
    /// 9218 4.2: one long download must not block everything else of a client that does not use priorities.
    pub incremental: bool,
}

impl Default for Priority {
    fn default() -> Self {
        Self {
            urgency: 3,
            incremental: true,
        }
    }
}

impl Priority {
    /// Parses a `priority` field or frame: a dictionary (RFC 8941 3.2) of which only `u` and `i` matter.
    /// Malformed members are ignored.
    pub fn of(value: &[u8]) -> Self {
        let mut priority = Self {
            incremental: false,
            ..Self::default()
        };
        for member in value.split(|&byte| byte == b',') {
            match member.trim_ascii() {
                [b'u', b'=', urgency @ b'0'..=b'7'] => priority.urgency = urgency - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_parsed() {
        let of = |value: &str| {
            let Priority {
                urgency,
                incremental,
            } = Priority::of(value.as_bytes());
            (urgency, incremental)
        };
        assert_eq!(of(""), (3, false));
        assert_eq!(of("u=0"), (0, false));
        assert_eq!(of("u=7, i"), (7, true));
        assert_eq!(of("i=?1,u=2"), (2, true));
        assert_eq!(of("i=?0, u=9, x=3;y, u=-1"), (3, false));
    }
}
