//! Delays and faults of a response, requested by the query: servers of known behaviour.
//!
//! | query | effect |
//! |---|---|
//! | `delay_us=N` | the response is delayed |
//! | `fast_ms=1&slow_ms=150&slow_share=0.1` | of ten responses nine come after 1 ms, one after 150 ms |
//! | `error_share=0.01` | of a hundred responses one is a 500 |
//! | `fault=NAME`, `fault_share=S` | all responses, or a share of them, are wrong: see `faults` |
//!
//! A share is a pattern, not a probability: of the first n, floor(n x share) are selected, at equal
//! distances, over all connections of the server. At `/ws` the share applies to messages.

use std::time::Duration;

use super::behaviour::{Fault, InjectedFaults};
use super::catalogue;
use super::query::Query;
use super::request::Route;

pub struct Injection {
    delay: Duration,
    slow: Option<(Duration, f64)>,
    error_share: f64,
    fault: Option<(Fault, f64)>,
}

impl Injection {
    /// `None` if the query requests no injection.
    pub fn of(query: &Query<'_>) -> Option<Box<Self>> {
        let ms = |name| query.number::<f64>(name).map(milliseconds);
        let share = |name| query.number::<f64>(name);
        let fast = ms("fast_ms").unwrap_or_default();
        let injection = Self {
            delay: fast + Duration::from_micros(query.number("delay_us").unwrap_or(0)),
            slow: ms("slow_ms")
                .zip(share("slow_share"))
                .map(|(slow, share)| (slow.saturating_sub(fast), share)),
            error_share: share("error_share").unwrap_or(0.0),
            fault: query
                .value("fault")
                .and_then(Fault::named)
                .map(|fault| (fault, share("fault_share").unwrap_or(1.0))),
        };
        let is_plain = injection.delay.is_zero()
            && injection.slow.is_none()
            && injection.error_share <= 0.0
            && injection.fault.is_none();
        (!is_plain).then(|| Box::new(injection))
    }

    /// Changes the route if this request is selected; returns the delay of the response.
    pub fn apply(&self, route: &mut Route, injected: &mut InjectedFaults) -> Duration {
        let mut delay = self.delay;
        if let Some((more, share)) = self.slow
            && injected.slow.sample(share)
        {
            delay += more;
        }
        if self.error_share > 0.0 && injected.errors.sample(self.error_share) {
            *route = Route::Fixed(&catalogue::SERVER_ERROR);
        } else if let Route::Socket(socket) = route {
            // Applies to each of its messages.
            socket.faults = self.fault;
        } else if let Some((fault, share)) = self.fault
            && injected.faults.sample(share)
        {
            *route = Route::Fault(fault);
        }
        delay
    }
}

fn milliseconds(ms: f64) -> Duration {
    Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default()
}
