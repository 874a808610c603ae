//! How the answer to one request is to be late or wrong, by its own query: servers of known truth.
//!
//! | query | what happens |
//! |---|---|
//! | `delay_us=N` | the answer comes so much later |
//! | `fast_ms=1&slow_ms=150&slow_share=0.1` | of ten answers nine come after 1 ms, one after 150 |
//! | `error_share=0.01` | of a hundred answers one is a 500 |
//! | `fault=NAME`, `fault_share=S` | all answers, or a share of them, are wrong: see `faults` |
//!
//! A share is a pattern, not a chance: of the first n, floor(n x share) are hit, at equal distances. The
//! sequence is the server's, over all its connections. At `/ws` it is messages of which a share is wrong.

use std::time::Duration;

use super::behaviour::InjectedFaults;
use super::catalogue;
use super::faults::Fault;
use super::route::{Query, Route};

pub struct Injection {
    delay: Duration,
    slow: Option<(Duration, f64)>,
    error_share: f64,
    fault: Option<(Fault, f64)>,
}

impl Injection {
    /// None when the query asks for nothing of the kind.
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

    /// Changes the route where this request is one of those; how long the answer is to wait.
    pub fn apply(&self, route: &mut Route, injected: &mut InjectedFaults) -> Duration {
        let mut delay = self.delay;
        if let Some((more, share)) = self.slow
            && injected.slow.sample(share)
        {
            delay += more;
        }
        if self.error_share > 0.0 && injected.errors.sample(self.error_share) {
            *route = Route::Fixed(&catalogue::SERVER_ERROR);
        } else if let Route::Socket(asked) = route {
            // Of its messages, one by one.
            asked.faults = self.fault;
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
