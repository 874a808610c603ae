//! The order of targets for each origin of a thread.

use std::path::PathBuf;
use std::sync::Arc;

use towline_io::client::{Alternative, Route};
use towline_io::{ClientTls, ClientTlsSettings};
use towline_proto::Protocol;

use super::outage::Outages;
use crate::config::{Config, Mix, Trust};
use crate::schedule::{Random, Share};
use crate::target::Destination;

/// The origins of a thread, and the destinations among them that have no connection.
pub(super) struct Origins {
    all: Vec<Origin>,
    /// A connection has its own origin, whose target it keeps.
    keeps_target: bool,
    pub(super) outages: Outages,
}

pub(super) struct Origin {
    pub(super) route: Arc<Route>,
    /// The target whose WebSocket each connection becomes.
    handshake: Option<usize>,
    /// The target of the next request; `advance` selects the following one.
    next: u32,
    targets: Vec<u32>,
    /// Cumulative weights of the targets; empty if they are used in turn.
    sums: Vec<u64>,
    at: usize,
    random: Random,
    /// Index of its destination in the configuration.
    destination: usize,
}

/// Routes to the origins, with common TLS settings.
pub(crate) struct Routes {
    tls: Arc<ClientTls>,
    unix_socket: Option<PathBuf>,
    http3: bool,
}

impl Routes {
    pub(crate) fn new(config: &Config) -> Self {
        let tls = Arc::new(ClientTls::new(ClientTlsSettings {
            trust: match &config.trust {
                Trust::Any => towline_io::Trust::Insecure,
                Trust::System => towline_io::Trust::System,
                Trust::Path(path) => towline_io::Trust::Path(path.clone()),
            },
            never_resume: !config.early_data,
            ..ClientTlsSettings::default()
        }));
        Self {
            tls,
            unix_socket: config.unix_socket.clone(),
            http3: config.protocol == Protocol::Http3,
        }
    }

    /// The route for `(secure, host, port)` of a target's `origin`.
    pub(crate) fn to(&self, (secure, host, port): (bool, &str, u16)) -> Arc<Route> {
        let route = if secure {
            Route::secure(host, port, Arc::clone(&self.tls))
        } else {
            Route::plain(host, port)
        };
        let alternative = self.http3.then(|| {
            Box::new(Alternative {
                alt_used: None,
                host: host.into(),
                port,
                is_only: true,
                generation: 0,
            })
        });
        Arc::new(Route {
            uds: self.unix_socket.clone(),
            alternative,
            ..route
        })
    }
}

impl Origins {
    /// The origins of a thread with this number of slots.
    pub(super) fn new(config: &Config, share: Share, slots: usize) -> Self {
        let routes = Routes::new(config);
        let destinations = config.destinations();
        let outages = Outages::new(destinations.len());
        let origin = |(destination, key): (usize, Destination<'_>)| {
            let targets = (0_u32..).zip(&config.targets);
            let of = targets.filter(|(_, target)| target.destination() == key);
            let handshake = of.clone().find(|(_, target)| target.messages.is_some());
            let weighted: Vec<_> = of
                .map(|(index, target)| (index, u64::from(target.weight)))
                .collect();
            let seed = config.seed.wrapping_add(u64::from(share.index) << 32);
            let route = routes.to(key.origin);
            Origin {
                handshake: handshake.map(|(index, _)| index as usize),
                destination,
                ..Origin::new(route, &weighted, config.mix, Random::new(!seed))
            }
        };
        let mut all: Vec<_> = destinations.into_iter().enumerate().map(origin).collect();
        let keeps_target = config.mix == Mix::PerConnection;
        if (config.mix == Mix::Session || keeps_target)
            && let Some(route) = all.first().map(|origin| Arc::clone(&origin.route))
        {
            // Each connection keeps its own place among the targets.
            let steps: Vec<_> = (0..config.targets.len() as u32)
                .map(|index| (index, 1))
                .collect();
            let origin = |slot| {
                let mut steps = steps.clone();
                let first = if keeps_target { slot % steps.len() } else { 0 };
                steps.rotate_left(first);
                Origin::new(Arc::clone(&route), &steps, config.mix, Random::new(0))
            };
            all.extend((1..slots).map(origin));
        }
        Self {
            all,
            keeps_target: keeps_target && !config.is_fresh(),
            outages,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    #[inline]
    pub(super) fn of(&self, origin: usize) -> &Origin {
        &self.all[origin]
    }

    /// Selects the target of the next request.
    pub(super) fn advance(&mut self, origin: usize) {
        if !self.keeps_target {
            self.all[origin].advance();
        }
    }

    /// Selects the target of a connection that replaces another one.
    pub(super) fn on_replaced(&mut self, origin: usize) {
        if self.keeps_target {
            self.all[origin].advance();
        }
    }

    /// Begins with the first target again.
    pub(super) fn restart(&mut self, origin: usize) {
        let origin = &mut self.all[origin];
        origin.at = 0;
        origin.advance();
    }

    pub(super) fn have_one_target_each(&self) -> bool {
        self.all.iter().all(|origin| origin.targets.len() == 1)
    }
}

impl Origin {
    fn new(route: Arc<Route>, weighted: &[(u32, u64)], mix: Mix, random: Random) -> Self {
        let mut sum = 0;
        let mut sums = Vec::new();
        if mix == Mix::AtRandom {
            sums.extend(weighted.iter().map(|(_, weight)| {
                sum += weight;
                sum
            }));
        }
        let mut origin = Self {
            route,
            handshake: None,
            next: 0,
            targets: weighted.iter().map(|(index, _)| *index).collect(),
            sums,
            at: 0,
            random,
            destination: 0,
        };
        origin.advance();
        origin
    }

    /// The target of the next request.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    pub(super) fn handshake(&self) -> Option<usize> {
        self.handshake
    }

    pub(super) fn destination(&self) -> usize {
        self.destination
    }

    fn advance(&mut self) {
        let place = match self.sums.last() {
            None => {
                let place = self.at;
                self.at = if place + 1 == self.targets.len() {
                    0
                } else {
                    place + 1
                };
                place
            }
            Some(&sum) => {
                let drawn = self.random.below(sum);
                self.sums.partition_point(|upto| *upto <= drawn)
            }
        };
        self.next = self.targets[place];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(weights: &[(u32, u64)], mix: Mix, n: usize) -> Vec<usize> {
        let route = Arc::new(Route::plain("a", 80));
        let mut origin = Origin::new(route, weights, mix, Random::new(3));
        let mut counts = vec![0; weights.len()];
        for _ in 0..n {
            counts[origin.next as usize] += 1;
            origin.advance();
        }
        counts
    }

    #[test]
    fn turns_are_exact_and_weights_hold_on_average() {
        let weights = [(0, 7), (1, 2), (2, 1), (3, 0)];
        assert_eq!(counts(&weights, Mix::InTurn, 400), [100; 4]);
        let drawn = counts(&weights, Mix::AtRandom, 10_000);
        for (count, expected) in drawn.iter().zip([7000, 2000, 1000, 0_usize]) {
            assert!(count.abs_diff(expected) < 150 && (*count == 0) == (expected == 0));
        }
    }
}
