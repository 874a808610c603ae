//! Events for the program, of a connection of either protocol.

use crate::Event;

use super::signal::Signal;
use super::timing::Timing;

/// The order of a connection's events.
pub(crate) trait Events: Timing {
    fn next_signal(&mut self) -> Option<Signal>;

    #[inline]
    fn next_event(&mut self) -> Option<Event<'_>> {
        let signal = self.next_signal()?;
        self.core().event(signal)
    }

    /// The next event that needs no input.
    #[inline]
    fn next_pending_event(&mut self) -> Option<Signal> {
        let Some(key) = self.core().first_eventful() else {
            // Before anything after the GOAWAY, however the input was cut.
            return self.core_mut().take_going_away();
        };
        let signal = self.core_mut().take_event(key);
        if self.core().is_client() && matches!(signal, Signal::Failed(..)) {
            self.mark_closed(key);
        }
        Some(signal)
    }
}
