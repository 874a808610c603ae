//! Flow control (RFC 9113 5.2 and 6.9): the windows of both directions.

/// The largest window there can be (RFC 9113 6.9.1).
const MAX_WINDOW: i64 = 0x7fff_ffff;

/// A window that would pass 2^31 - 1, or bytes beyond a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Overflow;

/// Bytes that we may send. A lowered setting can make it negative (RFC 9113 6.9.2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SendWindow(i32);

impl SendWindow {
    pub fn of(bytes: u32) -> Self {
        Self(i32::try_from(bytes).unwrap_or(i32::MAX))
    }

    #[inline]
    pub fn bytes(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    #[inline]
    pub fn take(&mut self, n: usize) {
        debug_assert!(n <= self.bytes(), "more than the window");
        self.0 -= i32::try_from(n).unwrap_or(i32::MAX);
    }

    /// A `WINDOW_UPDATE`, or the difference that a changed setting makes.
    pub fn shift(&mut self, by: i64) -> Result<(), Overflow> {
        let bytes = i64::from(self.0) + by;
        if bytes > MAX_WINDOW {
            return Err(Overflow);
        }
        // A setting lowered repeatedly cannot go below the bytes sent and not yet credited.
        self.0 = i32::try_from(bytes).unwrap_or(i32::MIN);
        Ok(())
    }
}

/// Bytes that the peer may send. Read bytes are returned as credit, announced in halves of the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RecvWindow {
    /// Bytes that it may still send.
    left: i64,
    /// Bytes that it may send when all is read.
    size: u32,
    /// Bytes read and not yet announced.
    credit: u32,
}

impl RecvWindow {
    pub fn of(size: u32) -> Self {
        Self {
            left: i64::from(size),
            size,
            credit: 0,
        }
    }

    /// Accounts for received bytes.
    #[inline]
    pub fn receive(&mut self, n: u32) -> Result<(), Overflow> {
        let left = self.left - i64::from(n);
        // An empty frame needs no window, and ours may be negative (RFC 9113 6.9.1 and 6.9.2).
        if left < 0 && n > 0 {
            return Err(Overflow);
        }
        self.left = left;
        Ok(())
    }

    /// Returns credit for bytes; the increment if a window update is due.
    #[inline]
    pub fn release(&mut self, n: u32) -> Option<u32> {
        self.credit += n;
        if self.credit < self.size / 2 || self.credit == 0 {
            return None;
        }
        let credit = std::mem::take(&mut self.credit);
        self.left += i64::from(credit);
        Some(credit)
    }

    /// Announces all credit; the increment, if there is one.
    pub fn release_all(&mut self) -> Option<u32> {
        let credit = std::mem::take(&mut self.credit);
        self.left += i64::from(credit);
        (credit > 0).then_some(credit)
    }

    /// Doubles the window, up to `max`: the reader keeps up, so the window is what limits the peer. Returns
    /// the increment, if there is one.
    pub fn grow(&mut self, max: u32) -> Option<u32> {
        let size = self.size.saturating_mul(2).min(max);
        let more = size.checked_sub(self.size).filter(|&more| more > 0)?;
        self.size = size;
        self.left += i64::from(more);
        Some(more)
    }

    /// Applies our setting, after the peer's acknowledgement.
    pub fn resize(&mut self, from: u32, to: u32) {
        self.left += i64::from(to) - i64::from(from);
        self.size = to;
    }

    /// Bytes that the peer may still send.
    pub fn left(self) -> u64 {
        u64::try_from(self.left).unwrap_or(0)
    }

    /// Whether the window is used up, so that the peer cannot send.
    pub fn is_exhausted(self) -> bool {
        self.left <= 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lowered_setting_makes_a_window_negative_and_updates_raise_it() {
        let mut window = SendWindow::of(65_535);
        window.take(60_000);
        window.shift(-65_535).unwrap();
        assert_eq!((window, window.bytes()), (SendWindow(-60_000), 0));
        window.shift(60_001).unwrap();
        assert_eq!(window.bytes(), 1);
        assert_eq!(window.shift(MAX_WINDOW), Err(Overflow));
        assert_eq!(window.bytes(), 1);
        window.shift(MAX_WINDOW - 1).unwrap();
    }

    #[test]
    fn credit_is_announced_in_halves_of_the_window() {
        let mut window = RecvWindow::of(100);
        assert_eq!(window.receive(101), Err(Overflow));
        window.receive(100).unwrap();
        assert!(window.is_exhausted());
        assert_eq!(window.release(49), None);
        assert_eq!(window.release(1), Some(50));
        assert_eq!(window.receive(51), Err(Overflow));
        window.receive(50).unwrap();
        assert_eq!(window.release(50), Some(50));
    }

    #[test]
    fn a_window_doubles_up_to_its_maximum() {
        let mut window = RecvWindow::of(100);
        window.receive(100).unwrap();
        assert_eq!(window.release(100), Some(100));
        assert_eq!(
            [250; 3].map(|max| window.grow(max)),
            [Some(100), Some(50), None]
        );
        assert_eq!(window.receive(251), Err(Overflow));
        window.receive(250).unwrap();
        // A window that is larger already stays as it is.
        assert_eq!(window.grow(1), None);
    }

    #[test]
    fn an_empty_window_returns_no_credit() {
        let mut window = RecvWindow::of(0);
        assert_eq!(window.receive(1), Err(Overflow));
        assert_eq!(window.release(0), None);
    }
}
