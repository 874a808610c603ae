//! Close frames: codes, reasons and payloads.

use super::rules::{self, MAX_REASON_BYTES};
use super::{SendError, Violation};

/// The code reported for a close frame without one (RFC 6455 7.1.5).
pub(super) const NO_STATUS: u16 = 1005;

/// A close frame to send: its code, unless it has none, and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct CloseFrame {
    pub code: Option<u16>,
    pub reason: Box<str>,
}

impl CloseFrame {
    /// A close frame of the program, validated.
    pub fn new(code: u16, reason: &str) -> Result<Self, SendError> {
        if !may_be_sent(code) {
            return Err(SendError::InvalidCode);
        }
        if reason.len() > MAX_REASON_BYTES {
            return Err(SendError::TooLong);
        }
        Ok(Self {
            code: Some(code),
            reason: reason.into(),
        })
    }

    /// The reply to the peer's close frame: with the same code (RFC 6455 5.5.1), and with its reason as the packages
    /// `websockets` and wsproto send it.
    pub fn echo(code: u16, reason: &str) -> Self {
        Self {
            code: (code != NO_STATUS).then_some(code),
            reason: reason.into(),
        }
    }

    /// The close frame for a failure, with its rule as the reason; `None` if the code must not be sent.
    pub fn failure(violation: Violation) -> Option<Self> {
        may_be_sent(violation.code).then(|| Self {
            code: Some(violation.code),
            reason: violation.rule.into(),
        })
    }

    pub fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(2 + self.reason.len());
        if let Some(code) = self.code {
            payload.extend_from_slice(&code.to_be_bytes());
            payload.extend_from_slice(self.reason.as_bytes());
        }
        payload
    }
}

/// Parses the payload of a received close frame.
pub(super) fn parse(payload: &[u8]) -> Result<(u16, &str), Violation> {
    match payload {
        [] => Ok((NO_STATUS, "")),
        [_] => Err(rules::SHORT_CLOSE),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            if !may_be_sent(code) {
                return Err(rules::CLOSE_CODE);
            }
            let reason = std::str::from_utf8(reason).map_err(|_| rules::CLOSE_REASON)?;
            Ok((code, reason))
        }
    }
}

/// Codes allowed in a close frame: those of RFC 6455 7.4.1, those registered since (1012 to 1014), and the ranges
/// for frameworks and applications.
fn may_be_sent(code: u16) -> bool {
    matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        for code in [
            1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1014, 3000, 4999,
        ] {
            assert_eq!(parse(&u16::to_be_bytes(code)), Ok((code, "")));
            assert!(CloseFrame::new(code, "").is_ok());
        }
        for code in [
            0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535,
        ] {
            assert_eq!(parse(&u16::to_be_bytes(code)), Err(rules::CLOSE_CODE));
            assert_eq!(CloseFrame::new(code, ""), Err(SendError::InvalidCode));
        }
    }

    #[test]
    fn payloads() {
        assert_eq!(parse(b""), Ok((NO_STATUS, "")));
        assert_eq!(parse(b"\x03"), Err(rules::SHORT_CLOSE));
        assert_eq!(parse(b"\x03\xe8bye"), Ok((1000, "bye")));
        assert_eq!(parse(b"\x03\xe8\xed\xa0\x80"), Err(rules::CLOSE_REASON));
        let long = "x".repeat(MAX_REASON_BYTES);
        assert_eq!(CloseFrame::new(1000, &long).unwrap().payload().len(), 125);
        assert_eq!(
            CloseFrame::new(1000, &format!("{long}x")),
            Err(SendError::TooLong)
        );
        assert_eq!(CloseFrame::echo(NO_STATUS, "").payload(), b"");
        assert_eq!(CloseFrame::echo(1001, "bye").payload(), b"\x03\xe9bye");
    }
}
