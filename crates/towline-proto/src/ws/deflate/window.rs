//! The last bytes of plain text: the context kept between two messages.

use super::Direction;

#[derive(Debug, Default)]
pub(super) struct Window {
    bytes: Vec<u8>,
    /// 0: no context is kept.
    size: usize,
}

impl Window {
    pub fn new(direction: Direction) -> Self {
        Self {
            bytes: Vec::new(),
            size: if direction.takeover {
                1 << direction.window_bits
            } else {
                0
            },
        }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether a context is kept.
    pub fn is_kept(&self) -> bool {
        self.size > 0
    }

    /// Whether it is not full yet.
    pub fn is_filling(&self) -> bool {
        self.bytes.len() < self.size
    }

    /// Appends the plain text of a message. Never holds more than its size.
    pub fn record(&mut self, text: &[u8]) {
        let text = &text[text.len().saturating_sub(self.size)..];
        let surplus = (self.bytes.len() + text.len()).saturating_sub(self.size);
        self.bytes.drain(..surplus);
        self.bytes.reserve_exact(text.len());
        self.bytes.extend_from_slice(text);
    }

    /// The window in the middle of a message that began with `text`.
    pub fn with(&self, text: &[u8]) -> Vec<u8> {
        let text = &text[text.len().saturating_sub(1 << 15)..];
        let kept = (1 << 15) - text.len();
        let before = &self.bytes[self.bytes.len().saturating_sub(kept)..];
        [before, text].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_the_last_recorded_bytes() {
        let mut window = Window::new(Direction {
            takeover: true,
            window_bits: 8,
        });
        let text: Vec<u8> = (0..=255).cycle().take(2_000).collect();
        let mut passed = 0;
        for len in [0, 1, 100, 200, 255, 256, 257, 600, 3] {
            window.record(&text[passed..passed + len]);
            passed += len;
            assert_eq!(window.bytes(), &text[passed.saturating_sub(256)..passed]);
            assert!(window.bytes.capacity() <= 256);
        }
        let mut none = Window::new(Direction {
            takeover: false,
            window_bits: 15,
        });
        none.record(&text);
        assert!(none.bytes().is_empty() && none.bytes.capacity() == 0);
    }
}
