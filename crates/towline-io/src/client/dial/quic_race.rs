//! A dial over QUIC in a race with TCP.

use std::sync::Arc;
use std::time::Instant;

use super::quic_dial::QuicDial;
use super::race::Race;
use super::resolve::at_port;
use super::stream_dial::StreamDial;
use super::{DialConfig, DialError, Established, Progress, Watch};
use crate::client::route::{Alternative, Route};

/// The attempt over QUIC, and when TCP joins.
pub(super) struct QuicRace {
    race: Race,
    quic: QuicDial,
    config: Arc<DialConfig>,
    /// The alternative is on the host of the origin, so TCP can use its addresses.
    same_host: bool,
    is_only: bool,
    /// The failure of QUIC.
    quic_error: Option<DialError>,
}

impl QuicRace {
    pub(super) fn new(
        route: &Arc<Route>,
        alternative: &Alternative,
        config: &Arc<DialConfig>,
        now: Instant,
    ) -> Self {
        let same_host = alternative.host == route.host;
        Self {
            race: race(alternative.is_only, same_host, now),
            quic: QuicDial::start(Arc::clone(route), config, now),
            config: Arc::clone(config),
            same_host,
            is_only: alternative.is_only,
            quic_error: None,
        }
    }

    pub(super) fn rest_until(&mut self, at: Instant) {
        self.race = race(self.is_only, self.same_host, at);
        self.quic.rest_until(at);
    }

    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.quic.set_deadline(deadline);
    }

    pub(super) fn advance(&mut self, stream: &mut StreamDial, now: Instant) -> Progress {
        if self.race.runs_quic() {
            match self.quic.advance(now) {
                Progress::Pending => {}
                Progress::Done(established) => {
                    // A connection that begins with early data has not succeeded yet.
                    let is_confirmed = !established.sends_early_data();
                    if let Some(http3) = self.config.http3.as_ref().filter(|_| is_confirmed) {
                        http3.succeeded(self.quic.route());
                    }
                    return Progress::Done(established);
                }
                Progress::Failed(error) => {
                    self.race.on_quic_failed();
                    self.quic_error = Some(error);
                }
            }
            if let Some(first_packet) = self.quic.take_first_packet() {
                self.race.on_first_packet(first_packet);
            }
        }
        if self.race.starts_tcp(now) {
            stream.clock.begin_phase(now);
            if self.same_host {
                stream.known_addrs = at_port(self.quic.addrs(), stream.route.port).collect();
            }
        }
        if self.race.runs_tcp() {
            match stream.advance(now) {
                Progress::Pending => {}
                Progress::Done(established) => return self.tcp_won(established, now),
                Progress::Failed(error) => {
                    self.race.on_tcp_failed();
                    // The error of TCP says more to most users; that of QUIC is not reported.
                    self.quic_error = Some(error);
                }
            }
        }
        match self.quic_error.take_if(|_| self.race.is_lost()) {
            Some(error) => Progress::Failed(error),
            None => Progress::Pending,
        }
    }

    /// TCP works and QUIC does not: it is not tried again for a while. A server that has answered is only slow.
    fn tcp_won(&mut self, established: Box<Established>, now: Instant) -> Progress {
        let has_failed = !self.race.runs_quic() || !self.quic.is_answered();
        if let Some(http3) = self.config.http3.as_ref().filter(|_| has_failed) {
            http3.failed(self.quic.route(), now);
        }
        Progress::Done(established)
    }

    pub(super) fn deadline(&self, stream: &StreamDial) -> Option<Instant> {
        let quic = self.race.runs_quic().then(|| self.quic.deadline());
        let tcp = self.race.runs_tcp().then(|| stream.deadline());
        let all = [quic.flatten(), tcp.flatten(), self.race.deadline()];
        all.into_iter().flatten().min()
    }

    pub(super) fn fds(&self, stream: &StreamDial, watches: &mut Vec<Watch>) {
        if self.race.runs_quic() {
            self.quic.fds(watches);
        }
        if self.race.runs_tcp() {
            stream.fds(watches);
        }
    }
}

fn race(is_only: bool, same_host: bool, now: Instant) -> Race {
    if is_only {
        Race::quic_only()
    } else {
        Race::new(now, same_host)
    }
}
