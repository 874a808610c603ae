//! The race of QUIC with TCP: which attempts of a dial run. Pure: the clock is an argument.
//!
//! ```text
//!            ┌─ head start is over, or QUIC has failed ─► TCP runs, too ─┬─ TCP connects ──► TCP wins
//! QUIC runs ─┤                                                           └─ QUIC connects ─► QUIC wins
//!            ├─ QUIC connects ─► QUIC wins                      (each has failed: the dial has failed)
//!            └─ QUIC fails without a rival (HTTP/3 alone) ─► the dial has failed
//! ```

use std::time::{Duration, Instant};

/// Time that QUIC has for itself: the most that a blocked UDP port delays a call. QUIC needs one round trip, and TCP with
/// TLS two, so that TCP wins only if packets are lost.
pub(super) const HEAD_START: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tcp {
    /// Not part of the race.
    Excluded,
    /// Starts at this time; `None`: not before the addresses are known.
    Waiting(Option<Instant>),
    Running,
    Failed,
}

/// State of a race; see the module's picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Race {
    quic_runs: bool,
    tcp: Tcp,
}

impl Race {
    /// A race that starts now. `same_host`: TCP needs the addresses that QUIC looks up, so it cannot be earlier.
    pub(super) fn new(now: Instant, same_host: bool) -> Self {
        Self {
            quic_runs: true,
            tcp: Tcp::Waiting((!same_host).then_some(now + HEAD_START)),
        }
    }

    /// QUIC without a rival.
    pub(super) fn quic_only() -> Self {
        Self {
            quic_runs: true,
            tcp: Tcp::Excluded,
        }
    }

    /// Records that QUIC has sent its first packet.
    pub(super) fn on_first_packet(&mut self, now: Instant) {
        if let Tcp::Waiting(at) = &mut self.tcp {
            *at = Some(now + HEAD_START);
        }
    }

    /// Whether TCP is to be started now; true once.
    pub(super) fn starts_tcp(&mut self, now: Instant) -> bool {
        let is_due = match self.tcp {
            Tcp::Waiting(at) => !self.quic_runs || at.is_some_and(|at| at <= now),
            Tcp::Excluded | Tcp::Running | Tcp::Failed => false,
        };
        if is_due {
            self.tcp = Tcp::Running;
        }
        is_due
    }

    pub(super) fn on_quic_failed(&mut self) {
        self.quic_runs = false;
    }

    pub(super) fn on_tcp_failed(&mut self) {
        self.tcp = Tcp::Failed;
    }

    pub(super) fn runs_quic(&self) -> bool {
        self.quic_runs
    }

    pub(super) fn runs_tcp(&self) -> bool {
        self.tcp == Tcp::Running
    }

    /// Whether no attempt is left.
    pub(super) fn is_lost(&self) -> bool {
        !self.quic_runs && matches!(self.tcp, Tcp::Excluded | Tcp::Failed)
    }

    /// Time at which TCP starts.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.tcp {
            Tcp::Waiting(at) => at,
            Tcp::Excluded | Tcp::Running | Tcp::Failed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Input {
        FirstPacket,
        QuicFails,
        TcpFails,
        /// A quarter of the head start passes.
        Time,
    }

    const INPUTS: [Input; 4] = [
        Input::FirstPacket,
        Input::QuicFails,
        Input::TcpFails,
        Input::Time,
    ];

    /// The rules of the race again, as a plain record of what has happened.
    #[derive(Default)]
    struct History {
        first_packet: Option<u32>,
        quic_failed: bool,
        tcp_failed: bool,
        tcp_started: Option<u32>,
        ticks: u32,
    }

    fn check(race: &mut Race, history: &mut History, start: Instant, kind: Kind, inputs: &[Input]) {
        let now = start + HEAD_START / 4 * history.ticks;
        let starts = race.starts_tcp(now);
        let from = match kind {
            Kind::OtherHost => Some(history.first_packet.unwrap_or(0)),
            Kind::SameHost | Kind::Only => history.first_packet,
        };
        let is_time = from.is_some_and(|from| history.ticks >= from + 4);
        let expected =
            kind != Kind::Only && history.tcp_started.is_none() && (is_time || history.quic_failed);
        assert_eq!(starts, expected, "{inputs:?}");
        if starts {
            history.tcp_started = Some(history.ticks);
        }
        assert!(!race.starts_tcp(now), "once");
        let is_lost = history.quic_failed && (kind == Kind::Only || history.tcp_failed);
        assert_eq!(race.is_lost(), is_lost, "{inputs:?}");
        assert_eq!(race.runs_quic(), !history.quic_failed);
        let tcp_runs = history.tcp_started.is_some() && !history.tcp_failed;
        assert_eq!(race.runs_tcp(), tcp_runs, "{inputs:?}");
        // Something runs, or is scheduled, or an input must come, unless the race is lost.
        assert!(is_lost || race.runs_quic() || race.runs_tcp());
        let is_waiting = kind != Kind::Only && history.tcp_started.is_none();
        let at = from.filter(|_| is_waiting);
        assert_eq!(
            race.deadline(),
            at.map(|at| start + HEAD_START / 4 * at + HEAD_START),
            "{inputs:?}"
        );
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Kind {
        SameHost,
        OtherHost,
        Only,
    }

    const LENGTH: u32 = 8;

    #[test]
    fn every_order_of_events_starts_tcp_once_and_in_time() {
        let start = Instant::now();
        for kind in [Kind::SameHost, Kind::OtherHost, Kind::Only] {
            for number in 0..4_usize.pow(LENGTH) {
                let inputs: Vec<_> = (0..LENGTH)
                    .map(|place| INPUTS[number / 4_usize.pow(place) % 4])
                    .collect();
                let mut race = match kind {
                    Kind::Only => Race::quic_only(),
                    _ => Race::new(start, kind == Kind::SameHost),
                };
                let mut history = History::default();
                for (count, input) in inputs.iter().enumerate() {
                    match input {
                        Input::FirstPacket if history.first_packet.is_some() => break,
                        Input::FirstPacket => {
                            history.first_packet = Some(history.ticks);
                            race.on_first_packet(start + HEAD_START / 4 * history.ticks);
                        }
                        Input::QuicFails if history.quic_failed => break,
                        Input::QuicFails => {
                            history.quic_failed = true;
                            race.on_quic_failed();
                        }
                        Input::TcpFails if history.tcp_started.is_none() || history.tcp_failed => {
                            break;
                        }
                        Input::TcpFails => {
                            history.tcp_failed = true;
                            race.on_tcp_failed();
                        }
                        Input::Time => history.ticks += 1,
                    }
                    check(&mut race, &mut history, start, kind, &inputs[..=count]);
                }
            }
        }
    }
}
