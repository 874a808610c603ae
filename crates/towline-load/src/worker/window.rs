//! The phases of a slice, and its measured time: which responses and which latencies belong to it.
//!
//! ```text
//! Connecting ─► Running ─► Late ─► Draining
//!                  └ an aligned window of a closed loop, an interrupt ┘
//! ```

use std::time::{Duration, Instant};

use crate::config::Until;
use crate::stats::Tally;
use crate::usage::Usage;

/// Longer than any run.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How long late requests are still sent after the server responds again: a minimum, and a part of
/// the measured time. That is enough for the backlog of a stall, but not for that of an overload.
const SHORTEST_GRACE: Duration = Duration::from_millis(100);
const GRACE_PART: u32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before a slice.
    Connecting,
    Running,
    /// Open loop, after the measured time: requests that were due in it and found no free connection are
    /// still sent, so that the wait counts in their latency.
    Late,
    /// Nothing new is sent; outstanding responses that count are awaited.
    Draining,
}

/// The measured time and the progress within it.
///
/// Between slices a window is aligned to responses: it opens at the first one after the warm-up and closes
/// at the first one after its planned length. A stall counts as a whole if it begins in the window, and not
/// at all otherwise, so that no part of it is lost in the gap between two slices.
pub(super) struct Window {
    phase: Phase,
    /// Requests count by their intended start, not by their end.
    is_open_loop: bool,
    until: Until,
    begin: Instant,
    start_delay: Duration,
    from: Instant,
    to: Instant,
    /// The next boundary: the beginning of the measured time, or the end of a second.
    mark: Instant,
    /// Usage at the beginning of the measured time.
    usage_before: Option<(Instant, Usage)>,
    /// Usage at the end of an aligned window, or of a closed loop.
    usage_after: Option<(Instant, Usage)>,
    alignment: Alignment,
    /// When late requests are no longer sent.
    late_until: Instant,
    timeout: Duration,
    /// How long a request may take: the timeout, or less at the end of the load.
    request_timeout: Duration,
}

/// The next boundary of a window that is aligned to responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alignment {
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

/// A boundary of an aligned window that has been passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    Opened,
    Closed,
}

impl Window {
    /// A window that never begins.
    pub(super) fn new(until: Until, is_open_loop: bool, timeout: Duration) -> Self {
        let now = Instant::now();
        Self {
            phase: Phase::Connecting,
            is_open_loop,
            until,
            begin: now,
            start_delay: Duration::ZERO,
            from: now + FOREVER,
            to: now + FOREVER,
            mark: now + FOREVER,
            usage_before: None,
            usage_after: None,
            alignment: Alignment::Fixed,
            late_until: now,
            timeout,
            request_timeout: timeout,
        }
    }

    /// Sets the times of a load that begins at `begin`; its boundaries are those of responses if `is_aligned`.
    pub(super) fn begin(&mut self, begin: Instant, warm_up: Duration, is_aligned: bool) {
        let from = begin + warm_up;
        (self.begin, self.from, self.mark) = (begin, from, from);
        let Until::Time(length) = self.until else {
            return;
        };
        self.to = from + length;
        if is_aligned {
            let never = begin + FOREVER;
            (self.from, self.mark, self.to) = (never, never, never);
            self.alignment = Alignment::Opens {
                after: from,
                length,
            };
        }
    }

    /// Begins the load; the thread may be late.
    pub(super) fn run(&mut self, now: Instant) {
        self.phase = Phase::Running;
        self.start_delay = now.saturating_duration_since(self.begin);
    }

    /// Time from the common start to that of this thread.
    pub(super) fn start_delay(&self) -> Duration {
        self.start_delay
    }

    /// Sends what is late, after the measured time.
    pub(super) fn send_late(&mut self, now: Instant) {
        self.phase = Phase::Late;
        self.late_until = now + self.timeout;
    }

    pub(super) fn drain(&mut self) {
        self.phase = Phase::Draining;
    }

    /// Ends the load at once; returns whether the measured time had begun.
    pub(super) fn interrupt(&mut self, now: Instant) -> bool {
        self.to = self.to.min(now);
        now >= self.from
    }

    #[inline]
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    #[inline]
    pub(super) fn sends(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Late)
    }

    /// Whether the measured time has ended, and its end has not been handled.
    pub(super) fn has_ended(&self, now: Instant) -> bool {
        self.phase == Phase::Running && now >= self.to
    }

    /// Whether late requests are no longer sent.
    pub(super) fn is_late_over(&self, now: Instant) -> bool {
        now >= self.late_until
    }

    /// Whether bytes and connections count now.
    #[inline]
    pub(super) fn is_measured(&self) -> bool {
        self.usage_before.is_some() && self.phase == Phase::Running
    }

    /// Whether the boundaries are fixed times, as in a plain run.
    pub(super) fn is_fixed(&self) -> bool {
        self.alignment == Alignment::Fixed
    }

    /// Whether a closed loop has ended, apart from what is in flight: its failures still count.
    pub(super) fn is_rest(&self) -> bool {
        !self.is_open_loop && (self.alignment == Alignment::Closed || self.phase == Phase::Draining)
    }

    /// Whether a plain load is over, apart from what is awaited.
    pub(super) fn is_end(&self) -> bool {
        matches!(self.phase, Phase::Late | Phase::Draining) && self.is_fixed()
    }

    /// Whether something that is no request, such as a dial, counts now.
    pub(super) fn counts_now(&self, now: Instant) -> bool {
        self.phase == Phase::Connecting || self.counts(now, now)
    }

    /// Whether a request that was due at `intended` and ends `now` belongs to the measured time: in a
    /// closed loop by its end, in an open loop by its intended start, so that slow responses count.
    #[inline]
    pub(super) fn counts(&self, intended: Instant, now: Instant) -> bool {
        if self.phase == Phase::Connecting {
            return false;
        }
        if self.is_open_loop {
            return self.is_due(intended);
        }
        // The response that opens an aligned window is not in it, the one that closes it is.
        if self.is_fixed() {
            now >= self.from && now < self.to
        } else {
            now > self.from && now <= self.to
        }
    }

    /// Whether the latency of a request counts. In a closed loop between slices by its start: slow
    /// responses that end after the slice count as well.
    #[inline]
    pub(super) fn counts_latency(&self, intended: Instant, sent: Instant, now: Instant) -> bool {
        if self.is_open_loop || self.is_fixed() {
            return self.counts(intended, now);
        }
        sent >= self.from && sent <= self.to
    }

    /// The time at this offset from the beginning of the load.
    pub(super) fn at(&self, offset: Duration) -> Instant {
        self.begin + offset
    }

    pub(super) fn since_begin(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.begin)
    }

    pub(super) fn end(&self) -> Instant {
        self.to
    }

    /// Whether a request that is due then belongs to the measured time.
    pub(super) fn is_due(&self, intended: Instant) -> bool {
        intended >= self.from && intended < self.to
    }

    pub(super) fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Limits the time that a request may take at the end.
    pub(super) fn limit_request_timeout(&mut self, likely: Duration) {
        self.request_timeout = self.timeout.min(likely);
    }

    /// Passes a boundary of an aligned window: the server has responded, or a request has failed.
    #[inline]
    pub(super) fn align(&mut self, now: Instant) -> Option<Boundary> {
        match self.alignment {
            Alignment::Fixed | Alignment::Closed => None,
            Alignment::Opens { after, .. } | Alignment::Closes { after } if now < after => None,
            Alignment::Opens { .. } => self.open(now).then_some(Boundary::Opened),
            Alignment::Closes { .. } => {
                self.close(now);
                Some(Boundary::Closed)
            }
        }
    }

    /// The boundary of an aligned window that has waited for a response for the whole timeout.
    pub(super) fn missed_boundary(&self, now: Instant) -> Option<Instant> {
        match self.alignment {
            Alignment::Fixed | Alignment::Closed => None,
            Alignment::Opens { after, .. } | Alignment::Closes { after } => {
                (now >= after + self.timeout).then_some(after)
            }
        }
    }

    /// Opens an aligned window; false if it is open or the load does not run.
    #[cold]
    pub(super) fn open(&mut self, at: Instant) -> bool {
        let Alignment::Opens { length, .. } = self.alignment else {
            return false;
        };
        if self.phase != Phase::Running {
            return false;
        }
        self.from = at;
        self.mark = at;
        self.alignment = Alignment::Closes { after: at + length };
        true
    }

    /// Closes an aligned window.
    #[cold]
    pub(super) fn close(&mut self, now: Instant) {
        self.to = now;
        self.alignment = Alignment::Closed;
        self.usage_after = Some((now, Usage::of_this_thread()));
        if self.is_open_loop {
            self.send_late(now);
        } else {
            self.drain();
        }
    }

    /// Shortens the wait for late requests once the server responds, or ends a request, again.
    #[inline]
    pub(super) fn on_server_active(&mut self, now: Instant) {
        if self.phase == Phase::Late {
            let measured = self.to - self.from;
            let grace = (measured / GRACE_PART).max(SHORTEST_GRACE);
            self.late_until = self.late_until.min(self.to.max(now) + grace);
        }
    }

    /// Whether a boundary of a second has been reached.
    #[inline]
    pub(super) fn reaches_mark(&self, now: Instant) -> bool {
        now >= self.mark
    }

    /// Updates the per-second series and the usage at their boundaries.
    #[cold]
    pub(super) fn pass_mark(&mut self, now: Instant, tally: &mut Tally, live: u64) {
        tally.sample_live(live);
        if self.usage_before.is_none() {
            self.usage_before = Some((now, Usage::of_this_thread()));
            self.mark = self.from + Duration::from_secs(1);
        }
        while now >= self.mark && self.mark <= self.to {
            tally.end_second(live);
            self.mark += Duration::from_secs(1);
        }
        if self.mark > self.to {
            self.mark = self.begin + FOREVER;
        }
    }

    /// Ends the time covered by the usage: what follows is no part of the load.
    pub(super) fn end_usage(&mut self, now: Instant) {
        (self.usage_after).get_or_insert_with(|| (now, Usage::of_this_thread()));
    }

    /// The usage, and the time covered by it.
    pub(super) fn usage(&self, now: Instant) -> (Usage, Duration) {
        let current = || (now, Usage::of_this_thread());
        let (from, before) = self.usage_before.unwrap_or_else(current);
        let (to, after) = self.usage_after.unwrap_or_else(current);
        (after.since(before), to.saturating_duration_since(from))
    }

    /// The beginning and the length of the measured time.
    pub(super) fn measured(&self, now: Instant) -> (Instant, Duration) {
        let to = match self.until {
            Until::Time(_) => self.to,
            Until::Requests(_) => now,
        };
        (self.from, to.saturating_duration_since(self.from))
    }
}
