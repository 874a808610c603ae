//! The measured time of a slice: which responses and which latencies belong to it.

use std::time::{Duration, Instant};

use super::conn_state::InFlight;
use super::{FOREVER, Phase, Worker};
use crate::usage::Usage;

/// The measured time and the progress within it.
///
/// Between slices a window is aligned to responses: it opens at the first one after the warm-up and closes
/// at the first one after its planned length. A stall counts as a whole if it begins in the window, and not
/// at all otherwise, so that no part of it is lost in the gap between two slices.
pub(super) struct Window {
    pub(super) begin: Instant,
    pub(super) from: Instant,
    pub(super) to: Instant,
    /// The next boundary: the beginning of the measured time, or the end of a second.
    pub(super) mark: Instant,
    /// Usage at the beginning of the measured time.
    pub(super) usage_before: Option<(Instant, Usage)>,
    /// Usage at the end of an aligned window.
    pub(super) usage_after: Option<(Instant, Usage)>,
    pub(super) alignment: Alignment,
}

/// The next boundary of a window that is aligned to responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alignment {
    /// The boundaries are fixed times.
    Fixed,
    /// Opens at the first response from `after` on, for `length`.
    Opens {
        after: Instant,
        length: Duration,
    },
    /// Closes at the first response from `after` on.
    Closes {
        after: Instant,
    },
    Closed,
}

impl Window {
    /// A window that never begins.
    pub(super) fn far(now: Instant) -> Self {
        Self {
            begin: now,
            from: now + FOREVER,
            to: now + FOREVER,
            mark: now + FOREVER,
            usage_before: None,
            usage_after: None,
            alignment: Alignment::Fixed,
        }
    }
}

impl Worker {
    /// Whether a request that was due at `intended` and ends `now` belongs to the measured time: in a
    /// closed loop by its end, in an open loop by its intended start, so that slow responses count.
    pub(super) fn counts(&self, intended: Instant, now: Instant) -> bool {
        let window = &self.window;
        if self.phase == Phase::Connecting {
            return false;
        }
        if self.schedule.is_some() {
            return intended >= window.from && intended < window.to;
        }
        // The response that opens an aligned window is not in it, the one that closes it is.
        if window.alignment == Alignment::Fixed {
            now >= window.from && now < window.to
        } else {
            now > window.from && now <= window.to
        }
    }

    /// Whether the latency of a request counts. In a closed loop between slices by its start: slow
    /// responses that end after the slice count as well.
    pub(super) fn counts_latency(&self, request: &InFlight, now: Instant) -> bool {
        if self.schedule.is_some() || self.window.alignment == Alignment::Fixed {
            return self.counts(request.intended, now);
        }
        request.sent >= self.window.from && request.sent <= self.window.to
    }

    /// Opens or closes an aligned window: the server has responded, or a request has failed.
    #[inline]
    pub(super) fn align(&mut self, now: Instant) {
        match self.window.alignment {
            Alignment::Fixed | Alignment::Closed => {}
            Alignment::Opens { after, .. } | Alignment::Closes { after } if now < after => {}
            Alignment::Opens { length, .. } => self.open_window(now, length),
            Alignment::Closes { .. } => self.close_window(now),
        }
    }

    #[cold]
    fn open_window(&mut self, now: Instant, length: Duration) {
        if self.phase != Phase::Running {
            return;
        }
        self.window.from = now;
        self.window.mark = now;
        self.window.alignment = Alignment::Closes {
            after: now + length,
        };
        self.mark(now);
    }

    #[cold]
    fn close_window(&mut self, now: Instant) {
        self.window.to = now;
        self.window.alignment = Alignment::Closed;
        self.window.usage_after = Some((now, Usage::of_this_thread()));
        self.note_in_flight(now);
        if self.schedule.is_some() {
            self.phase = Phase::Late;
            self.late_until = now + self.config.timeout;
        } else {
            self.phase = Phase::Draining;
        }
    }

    /// Closes an aligned window that has waited for a response for the whole timeout: the time counts,
    /// with no response in it.
    pub(super) fn close_without_response(&mut self, now: Instant) {
        match self.window.alignment {
            Alignment::Opens { after, length } if now >= after + self.config.timeout => {
                self.open_window(after, length);
                self.close_window(now);
            }
            Alignment::Closes { after } if now >= after + self.config.timeout => {
                self.close_window(now);
            }
            _ => {}
        }
    }
}
