//! The order of targets for each origin of a thread.

use std::sync::Arc;

use towline_io::client::Route;
use towline_io::{ClientTls, ClientTlsSettings};

use crate::config::{Config, Mix, Trust};
use crate::schedule::{Random, Share};
use crate::target::Destination;

pub(super) struct Origin {
    pub(super) route: Arc<Route>,
    /// The target whose WebSocket each connection becomes.
    pub(super) handshake: Option<usize>,
    /// The target of the next request; `advance` selects the following one.
    pub(super) next: u32,
    targets: Vec<u32>,
    /// Cumulative weights of the targets; empty if they are used in turn.
    sums: Vec<u64>,
    at: usize,
    random: Random,
}

/// Routes to the origins, with common TLS settings.
pub(crate) struct Routes(Arc<ClientTls>);

impl Routes {
    pub(crate) fn new(config: &Config) -> Self {
        Self(Arc::new(ClientTls::new(ClientTlsSettings {
            trust: match &config.trust {
                Trust::Any => towline_io::Trust::Insecure,
                Trust::System => towline_io::Trust::System,
                Trust::Path(path) => towline_io::Trust::Path(path.clone()),
            },
            never_resume: true,
            ..ClientTlsSettings::default()
        })))
    }

    /// The route for `(secure, host, port)` of a target's `origin`.
    pub(crate) fn to(&self, (secure, host, port): (bool, &str, u16)) -> Arc<Route> {
        Arc::new(if secure {
            Route::secure(host, port, Arc::clone(&self.0))
        } else {
            Route::plain(host, port)
        })
    }
}

pub(super) fn origins(config: &Config, share: Share) -> Vec<Origin> {
    let routes = Routes::new(config);
    let origin = |key: Destination<'_>| {
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
            ..Origin::new(route, &weighted, config.mix, Random::new(!seed))
        }
    };
    config.destinations().into_iter().map(origin).collect()
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
        };
        origin.advance();
        origin
    }

    pub(super) fn advance(&mut self) {
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
