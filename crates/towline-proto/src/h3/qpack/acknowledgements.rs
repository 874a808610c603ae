//! Instructions for the peer's encoder (RFC 9204 4.4): those that it waits for are sent at once, the rest together.
//!
//! A field section is acknowledged so that its entries can be evicted again, which has time. Each piece on the decoder
//! stream costs both ends a frame, and the peer an acknowledgement of QUIC, as much as a small request does.

use std::time::{Duration, Instant};

use super::Decoder;
use super::instructions::stream_cancellation;

/// Bytes from which on nothing waits: acknowledgements of some 16 sections.
const MAX_WAITING_BYTES: usize = 32;

/// Longest wait: that of an acknowledgement of QUIC (RFC 9000 18.2), which then goes into the same packet.
const MAX_WAIT: Duration = Duration::from_millis(25);

/// Instructions for the decoder stream.
#[derive(Debug, Default)]
pub(crate) struct Acknowledgements {
    bytes: Vec<u8>,
    /// When they are sent at the latest. `None`: at once.
    until: Option<Instant>,
}

impl Acknowledgements {
    /// Acknowledges a decoded section, if it needed entries.
    pub fn section(&mut self, decoder: &mut Decoder, stream: u64, required: u64, now: Instant) {
        if required == 0 {
            return;
        }
        let (was_empty, is_news) = (self.bytes.is_empty(), decoder.is_news(required));
        decoder.acknowledge_section(stream, required, &mut self.bytes);
        if is_news || self.bytes.len() >= MAX_WAITING_BYTES {
            self.until = None;
        } else if was_empty {
            self.until = Some(now + MAX_WAIT);
        }
    }

    /// Tells the peer that no more sections of a stream are decoded.
    pub fn cancel(&mut self, stream: u64) {
        stream_cancellation(stream, &mut self.bytes);
        self.until = None;
    }

    /// Whether there is something that does not wait.
    pub fn is_due(&self, decoder: &Decoder) -> bool {
        decoder.has_unacknowledged_entries() || !self.bytes.is_empty() && self.until.is_none()
    }

    /// When what waits is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Ends the wait if its time is over.
    pub fn expire(&mut self, now: Instant) {
        self.until.take_if(|until| *until <= now);
    }

    /// Takes the bytes for the decoder stream.
    pub fn take(&mut self, decoder: &mut Decoder) -> Vec<u8> {
        decoder.acknowledge_entries(&mut self.bytes);
        self.until = None;
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A decoder with two entries, of which the peer knows.
    fn decoder() -> (Decoder, Acknowledgements) {
        let (mut decoder, mut acknowledgements) = (Decoder::new(220), Acknowledgements::default());
        let insertions = b"\x3f\xbd\x01\xc1\x01a\xc1\x01b";
        decoder.receive(insertions).expect("two entries");
        assert!(
            acknowledgements.is_due(&decoder),
            "the encoder waits for entries"
        );
        assert_eq!(acknowledgements.take(&mut decoder), [2]);
        (decoder, acknowledgements)
    }

    #[test]
    fn sections_are_acknowledged_together() {
        let (mut decoder, mut acknowledgements) = decoder();
        let start = Instant::now();
        for stream in 0..32 {
            assert!(!acknowledgements.is_due(&decoder));
            acknowledgements.section(&mut decoder, stream, 2, start);
        }
        assert!(acknowledgements.is_due(&decoder));
        assert_eq!(acknowledgements.deadline(), None);
        let all: Vec<u8> = (0x80..0xa0).collect();
        assert_eq!(acknowledgements.take(&mut decoder), all);
        assert!(!acknowledgements.is_due(&decoder));
    }

    #[test]
    fn a_section_waits_until_the_deadline_of_the_first() {
        let (mut decoder, mut acknowledgements) = decoder();
        let start = Instant::now();
        acknowledgements.section(&mut decoder, 0, 0, start);
        assert_eq!(acknowledgements.deadline(), None, "no entry was needed");
        acknowledgements.section(&mut decoder, 0, 1, start);
        acknowledgements.section(&mut decoder, 4, 2, start + MAX_WAIT / 2);
        assert_eq!(acknowledgements.deadline(), Some(start + MAX_WAIT));
        acknowledgements.expire(start + MAX_WAIT / 2);
        assert!(!acknowledgements.is_due(&decoder));
        acknowledgements.expire(start + MAX_WAIT);
        assert!(acknowledgements.is_due(&decoder));
        assert_eq!(acknowledgements.take(&mut decoder), [0x80, 0x84]);
    }

    #[test]
    fn what_the_encoder_waits_for_is_sent_at_once() {
        let start = Instant::now();
        let (mut decoder, mut acknowledgements) = decoder();
        acknowledgements.section(&mut decoder, 0, 2, start);
        acknowledgements.cancel(4);
        assert!(acknowledgements.is_due(&decoder));
        assert_eq!(acknowledgements.take(&mut decoder), [0x80, 0x44]);
        decoder.receive(b"\xc1\x01c").expect("an entry");
        acknowledgements.section(&mut decoder, 8, 3, start);
        assert_eq!(acknowledgements.deadline(), None);
        assert!(acknowledgements.is_due(&decoder));
        assert_eq!(acknowledgements.take(&mut decoder), [0x88]);
    }
}
