//! Alternatives of origins with their lifetimes, and the times for which failed ones are not tried. Pure: the
//! clock is an argument.
//!
//! ```text
//!            ┌──────────── observe (ma) ────────────┐
//! unknown ───┴─► usable ──failed──► broken ─(time)─► usable again ──failed──► broken, twice as long
//!    ▲             │                  │
//!    └── expired, clear, forget ──────┘            succeeded: the next failure counts as the first
//! ```

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::field::{self, AltSvc, AltValue};

/// Origins kept; the one that expires first makes room for another.
const MAX_ORIGINS: usize = 1000;

/// Time for which an alternative is not tried after its first failure. One lost packet may be the cause, so it is short.
const FIRST_BROKEN: Duration = Duration::from_secs(60);

/// Bound of that time, which doubles with each failure: where UDP is blocked, one call in an hour tries again.
const LONGEST_BROKEN: Duration = Duration::from_secs(3600);

/// Host and port of an alternative, or of an origin.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Authority {
    /// In the form of `Route::host`.
    pub(super) host: Box<str>,
    pub(super) port: u16,
}

/// An alternative as it is kept in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) origin: Authority,
    pub(super) alternative: Authority,
    pub(super) lifetime: Duration,
    pub(super) persist: bool,
}

/// The known alternatives of all origins.
#[derive(Debug, Default)]
pub(super) struct Cache {
    /// By host; each has one entry for each of its ports.
    hosts: HashMap<Box<str>, Vec<Entry>>,
    origins: usize,
    /// The records have changed since `take_changed`.
    changed: bool,
}

#[derive(Debug)]
struct Entry {
    port: u16,
    alternatives: Vec<Alternative>,
}

#[derive(Debug)]
struct Alternative {
    authority: Authority,
    /// `None`: not advertised, but known in advance, and kept for its failures.
    advertised: Option<Advertised>,
    broken: Option<Broken>,
    /// All failures so far.
    failures: u32,
}

#[derive(Clone, Copy, Debug)]
struct Advertised {
    until: Instant,
    persist: bool,
}

#[derive(Clone, Copy, Debug)]
struct Broken {
    until: Instant,
    failures: u32,
}

impl Alternative {
    fn is_broken(&self, now: Instant) -> bool {
        self.broken.is_some_and(|broken| now < broken.until)
    }

    /// Time from which it may be forgotten.
    fn needed_until(&self) -> Option<Instant> {
        let advertised = self.advertised.map(|known| known.until);
        let broken = self.broken.map(|broken| broken.until);
        advertised.max(broken)
    }
}

impl Cache {
    /// Applies the `Alt-Svc` of a response of the origin that is `age` old. False: it is not valid.
    pub(super) fn observe(
        &mut self,
        (host, port): (&str, u16),
        value: &[u8],
        age: Duration,
        now: Instant,
    ) -> bool {
        match field::parse(value) {
            None => return false,
            Some(AltSvc::Clear) => self.forget(host, port),
            Some(AltSvc::Alternatives(values)) => {
                let fresh = |value: &AltValue| value.lifetime > age;
                let values: Vec<_> = values.into_iter().filter(fresh).collect();
                if values.is_empty() {
                    self.forget(host, port);
                    return true;
                }
                let alternatives = values.into_iter().map(|value| {
                    let authority = Authority {
                        host: value.host.unwrap_or_else(|| host.into()),
                        port: value.port,
                    };
                    let advertised = Advertised {
                        // Bounded by the parser, so within the range of the clock.
                        until: now + value.lifetime.saturating_sub(age),
                        persist: value.persist,
                    };
                    (authority, advertised)
                });
                let alternatives: Vec<_> = alternatives.collect();
                self.replace((host, port), &alternatives, now);
            }
        }
        true
    }

    /// The alternative to use now: the first that has not failed recently, else the first.
    pub(super) fn find(&self, host: &str, port: u16, now: Instant) -> Option<&Authority> {
        let entry = self.entry(host, port)?;
        let valid = || {
            let all = entry.alternatives.iter();
            all.filter(|each| each.advertised.is_some_and(|known| now < known.until))
        };
        let usable = valid().find(|each| !each.is_broken(now));
        let found = usable.or_else(|| valid().next())?;
        Some(&found.authority)
    }

    /// Number of the times for which an alternative was not tried and that are over.
    pub(super) fn generation(
        &self,
        (host, port): (&str, u16),
        alternative: &Authority,
        now: Instant,
    ) -> u32 {
        let entry = self.entry(host, port);
        let mut all = entry.into_iter().flat_map(|entry| &entry.alternatives);
        let found = all.find(|each| each.authority == *alternative);
        found.map_or(0, |found| found.failures - u32::from(found.is_broken(now)))
    }

    /// Whether an alternative has failed so recently that it is not tried.
    pub(super) fn is_broken(
        &self,
        (host, port): (&str, u16),
        alternative: &Authority,
        now: Instant,
    ) -> bool {
        self.entry(host, port).is_some_and(|entry| {
            let mut all = entry.alternatives.iter();
            all.any(|each| each.authority == *alternative && each.is_broken(now))
        })
    }

    /// Records that an alternative could not be reached.
    pub(super) fn failed(
        &mut self,
        (host, port): (&str, u16),
        alternative: &Authority,
        now: Instant,
    ) {
        if self.find_mut(host, port, alternative).is_none() {
            self.add_unadvertised((host, port), alternative, now);
        }
        if let Some(alternative) = self.find_mut(host, port, alternative) {
            let failures = alternative.broken.map_or(0, |broken| broken.failures);
            alternative.broken = Some(Broken {
                until: now + broken_time(failures),
                failures: failures.saturating_add(1),
            });
            alternative.failures = alternative.failures.saturating_add(1);
        }
    }

    /// Records that an alternative has been reached.
    pub(super) fn succeeded(&mut self, host: &str, port: u16, alternative: &Authority) {
        if let Some(alternative) = self.find_mut(host, port, alternative) {
            alternative.broken = None;
        }
    }

    /// Removes the alternatives of an origin. Failures are kept.
    pub(super) fn forget(&mut self, host: &str, port: u16) {
        let Some(entry) = self.entry_mut(host, port) else {
            return;
        };
        let mut any = false;
        for alternative in &mut entry.alternatives {
            any |= alternative.advertised.take().is_some();
        }
        entry.alternatives.retain(|each| each.broken.is_some());
        let is_empty = entry.alternatives.is_empty();
        self.changed |= any;
        if is_empty {
            self.remove(host, port);
        }
    }

    /// The valid alternatives, for a file.
    pub(super) fn records(&self, now: Instant) -> Vec<Record> {
        let mut records = Vec::new();
        for (host, entries) in &self.hosts {
            for entry in entries {
                for alternative in &entry.alternatives {
                    let Some(known) = alternative.advertised.filter(|known| now < known.until)
                    else {
                        continue;
                    };
                    records.push(Record {
                        origin: Authority {
                            host: host.clone(),
                            port: entry.port,
                        },
                        alternative: alternative.authority.clone(),
                        lifetime: known.until - now,
                        persist: known.persist,
                    });
                }
            }
        }
        records
    }

    /// Adds an alternative from a file.
    pub(super) fn add(&mut self, record: Record, now: Instant) {
        let Record {
            origin,
            alternative,
            lifetime,
            persist,
        } = record;
        let advertised = Advertised {
            until: now + lifetime,
            persist,
        };
        match self.entry_mut(&origin.host, origin.port) {
            Some(entry) if entry.alternatives.len() < field::MAX_ALTERNATIVES => {
                entry.alternatives.push(Alternative {
                    authority: alternative,
                    advertised: Some(advertised),
                    broken: None,
                    failures: 0,
                });
            }
            Some(_) => {}
            None => {
                let key = (&*origin.host, origin.port);
                self.replace(key, &[(alternative, advertised)], now);
            }
        }
    }

    /// Whether the records have changed since the last `take_changed`.
    pub(super) fn is_changed(&self) -> bool {
        self.changed
    }

    /// Whether the records have changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    fn replace(
        &mut self,
        (host, port): (&str, u16),
        advertised: &[(Authority, Advertised)],
        now: Instant,
    ) {
        let before = match self.entry_mut(host, port) {
            Some(entry) => std::mem::take(&mut entry.alternatives),
            None => Vec::new(),
        };
        let was = |authority: &Authority| before.iter().find(|old| old.authority == *authority);
        let same = before.iter().filter(|old| old.advertised.is_some()).count() == advertised.len()
            && advertised.iter().all(|(authority, known)| {
                let old = was(authority).and_then(|old| old.advertised);
                old.is_some_and(|old| !is_notable(old, *known))
            });
        let alternatives = advertised.iter().map(|(authority, known)| Alternative {
            authority: authority.clone(),
            advertised: Some(*known),
            broken: was(authority).and_then(|old| old.broken),
            failures: was(authority).map_or(0, |old| old.failures),
        });
        let alternatives: Vec<_> = alternatives.collect();
        self.changed |= !same;
        if let Some(entry) = self.entry_mut(host, port) {
            entry.alternatives = alternatives;
        } else {
            self.insert((host, port), alternatives, now);
        }
    }

    fn add_unadvertised(
        &mut self,
        (host, port): (&str, u16),
        alternative: &Authority,
        now: Instant,
    ) {
        let alternative = Alternative {
            authority: alternative.clone(),
            advertised: None,
            broken: None,
            failures: 0,
        };
        match self.entry_mut(host, port) {
            Some(entry) if entry.alternatives.len() < 2 * field::MAX_ALTERNATIVES => {
                entry.alternatives.push(alternative);
            }
            Some(_) => {}
            None => self.insert((host, port), vec![alternative], now),
        }
    }

    fn insert(&mut self, (host, port): (&str, u16), alternatives: Vec<Alternative>, now: Instant) {
        if self.origins >= MAX_ORIGINS {
            self.make_room(now);
        }
        self.origins += 1;
        let entries = self.hosts.entry(host.into()).or_default();
        entries.push(Entry { port, alternatives });
    }

    /// Removes what is not needed any more, or else the origin that is not needed soonest.
    fn make_room(&mut self, now: Instant) {
        let mut soonest: Option<(Instant, Authority)> = None;
        let mut outdated = Vec::new();
        for (host, entries) in &self.hosts {
            for entry in entries {
                let origin = || Authority {
                    host: host.clone(),
                    port: entry.port,
                };
                let needed = entry
                    .alternatives
                    .iter()
                    .filter_map(Alternative::needed_until);
                match needed.max().filter(|until| *until > now) {
                    None => outdated.push(origin()),
                    Some(until) if soonest.as_ref().is_none_or(|(at, _)| until < *at) => {
                        soonest = Some((until, origin()));
                    }
                    Some(_) => {}
                }
            }
        }
        if outdated.is_empty() {
            outdated.extend(soonest.map(|(_, origin)| origin));
        }
        for origin in outdated {
            self.remove(&origin.host, origin.port);
        }
    }

    fn remove(&mut self, host: &str, port: u16) {
        let Some(entries) = self.hosts.get_mut(host) else {
            return;
        };
        let before = entries.len();
        entries.retain(|entry| entry.port != port);
        self.origins -= before - entries.len();
        if entries.is_empty() {
            self.hosts.remove(host);
        }
    }

    fn entry(&self, host: &str, port: u16) -> Option<&Entry> {
        self.hosts
            .get(host)?
            .iter()
            .find(|entry| entry.port == port)
    }

    fn entry_mut(&mut self, host: &str, port: u16) -> Option<&mut Entry> {
        let entries = self.hosts.get_mut(host)?;
        entries.iter_mut().find(|entry| entry.port == port)
    }

    fn find_mut(
        &mut self,
        host: &str,
        port: u16,
        alternative: &Authority,
    ) -> Option<&mut Alternative> {
        let entry = self.entry_mut(host, port)?;
        let mut all = entry.alternatives.iter_mut();
        all.find(|each| each.authority == *alternative)
    }
}

/// Whether a file should have the new lifetime: every response may extend it a little.
fn is_notable(old: Advertised, new: Advertised) -> bool {
    const NOTABLE: Duration = Duration::from_secs(3600);
    let difference = new.until.max(old.until) - new.until.min(old.until);
    old.persist != new.persist || difference > NOTABLE
}

/// Time for which an alternative is not tried after a failure, `failures` having preceded it.
fn broken_time(failures: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failures);
    FIRST_BROKEN.saturating_mul(doubled).min(LONGEST_BROKEN)
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
