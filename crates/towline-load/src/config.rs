//! Everything about a run that is decided before it.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use towline_proto::{Connection, Field, Limits, RequestHead};

use crate::schedule::Rate;
use crate::target::Target;

/// One run of load.
#[derive(Clone, Debug)]
pub struct Config {
    /// Connections are dealt out to the origins in turn; each asks its own origin's targets.
    pub targets: Vec<Target>,
    pub mix: Mix,
    /// In all. Each thread has its part.
    pub connections: usize,
    pub threads: usize,
    /// Requests in flight per connection.
    pub pipeline: usize,
    /// After so many requests a connection is closed and made anew; `Some(1)`: a fresh connection each
    /// time, whose making counts as part of the latency.
    pub requests_per_connection: Option<u64>,
    pub pace: Pace,
    pub until: Until,
    /// Load before the measured time. A ramp lengthens it.
    pub warm_up: Duration,
    /// Closed loop: connections come one after the other over this time. Open loop: see [`Rate::ramp`].
    pub ramp: Duration,
    /// From sending to the last byte of the answer; looked at about every twentieth part of it.
    pub timeout: Duration,
    pub connect_timeout: Duration,
    pub trust: Trust,
    pub seed: u64,
}

/// Which target is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    #[default]
    InTurn,
    /// By weight.
    AtRandom,
}

/// What starts a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Pace {
    /// The answer before it.
    #[default]
    Closed,
    /// The clock.
    Open(Rate),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Measured time, without warm-up.
    Time(Duration),
    /// Requests in all, failed ones included. There is no warm-up then.
    Requests(u64),
}

/// Whose certificates are believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Everybody's: the load is on our own server as a rule.
    #[default]
    Anybody,
    System,
    Path(PathBuf),
}

/// Why there was no run.
#[derive(Debug)]
pub enum LoadError {
    /// The caller asked for what cannot be.
    Config(String),
    Io(io::Error),
}

impl Config {
    /// One thread, ten connections, a closed loop for ten seconds.
    pub fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            mix: Mix::default(),
            connections: 10,
            threads: 1,
            pipeline: 1,
            requests_per_connection: None,
            pace: Pace::Closed,
            until: Until::Time(Duration::from_secs(10)),
            warm_up: Duration::ZERO,
            ramp: Duration::ZERO,
            timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(5),
            trust: Trust::default(),
            seed: 1,
        }
    }

    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let wrong = |why: &str| Err(LoadError::Config(why.into()));
        if self.targets.is_empty() {
            return wrong("there is no URL");
        }
        if self.threads == 0 || self.pipeline == 0 || self.requests_per_connection == Some(0) {
            return wrong("threads, pipelining and requests per connection are at least 1");
        }
        if self.connections < self.threads * self.origins().len() {
            return wrong("every thread needs a connection to every origin");
        }
        if u32::try_from(self.connections).is_err() || self.pipeline > 1024 {
            return wrong("too many connections, or more than 1024 requests ahead on each");
        }
        if let Pace::Open(rate) = self.pace
            && !(rate.per_s.is_finite() && rate.per_s > 0.0)
        {
            return wrong("the rate is a positive number");
        }
        if self.mix == Mix::AtRandom {
            for origin in self.origins() {
                let of = self
                    .targets
                    .iter()
                    .filter(|target| target.origin() == origin);
                if of.map(|target| u64::from(target.weight)).sum::<u64>() == 0 {
                    return wrong("the weights of an origin's targets add up to nothing");
                }
            }
        }
        self.targets.iter().try_for_each(check_target)
    }

    /// The origins in the order of their first target.
    pub(crate) fn origins(&self) -> Vec<(bool, &str, u16)> {
        let mut seen = HashSet::new();
        let origins = self.targets.iter().map(Target::origin);
        origins.filter(|origin| seen.insert(*origin)).collect()
    }

    /// Load before anything counts.
    pub(crate) fn lead(&self) -> Duration {
        let ramp = match self.pace {
            Pace::Closed => self.ramp,
            Pace::Open(rate) => rate.ramp,
        };
        match self.until {
            Until::Time(_) => self.warm_up.max(ramp),
            Until::Requests(_) => Duration::ZERO,
        }
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.requests_per_connection == Some(1)
    }
}

/// The wire core is asked whether it would send this.
fn check_target(target: &Target) -> Result<(), LoadError> {
    let fields = target.whole_fields();
    let fields: Vec<_> = fields
        .iter()
        .map(|(name, value)| Field { name, value })
        .collect();
    let head = RequestHead {
        method: target.method.as_bytes(),
        target: target.path.as_bytes(),
        fields: &fields,
    };
    let mut conn = Connection::client(Arc::new(Limits::client()), Instant::now());
    conn.request_ahead(&head, target.body.clone())
        .map_err(|error| LoadError::Config(format!("{}: {error}", target.url())))?;
    Ok(())
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(why) => f.write_str(why),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_sent_is_refused_before_the_run() {
        let target = Target::get("http://a/").unwrap();
        let base = Config::new(vec![target.clone()]);
        assert!(base.check().is_ok());
        let broken = |change: fn(&mut Config)| {
            let mut config = base.clone();
            change(&mut config);
            config.check().is_err()
        };
        assert!(broken(|config| config.targets.clear()));
        assert!(broken(|config| config.threads = 11));
        assert!(broken(|config| config.pipeline = 0));
        assert!(broken(|config| config.targets[0].method = "G T".into()));
        assert!(broken(|config| {
            config.targets[0]
                .fields
                .push(("a".into(), b"b\r\nc"[..].into()));
        }));
        assert!(broken(|config| {
            config.mix = Mix::AtRandom;
            config.targets[0].weight = 0;
        }));
    }
}
