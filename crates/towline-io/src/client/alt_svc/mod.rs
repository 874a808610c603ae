//! Origins that have HTTP/3: what `Alt-Svc` (RFC 7838) or the configuration says, and what has failed.
//!
//! ```text
//!   route of a call ─► Http3::alternative ─► None: TCP
//!                                        └─► the route with the alternative, whose dial is a race with TCP
//!                                            (TCP alone while the alternative rests after a failure)
//!   head of a response ─► observe ─► Cache ─► file
//!   421 over the alternative ─► misdirected ─► Cache; the request is sent to the origin again
//!   outcome of a dial ─► failed, succeeded ─► Cache
//! ```
//!
//! HTTPS records (RFC 9460) are not looked up: the system's resolver does not return them. A program that has a resolver of its
//! own passes what they say (`with_known`).

mod cache;
mod field;
mod file;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use towline_proto::HeadRef;

use super::route::{Alternative, Route, authority};
use crate::fork;
use crate::thread_pool::{FILES, Task};
use cache::{Authority, Cache};

/// Least time between two writes of the file while the client is open.
const SAVE_INTERVAL: Duration = Duration::from_secs(5);

/// Attempts to take the lock, which is held for microseconds.
const MAX_TRIES: usize = 1000;

/// Number of remembered routes over alternatives, indexed by the address of the route of the call.
const RECENT: usize = 16;

/// Which origins are called over HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http3Policy {
    /// Origins that have advertised it.
    Advertised,
    /// Every https origin, in a race with TCP.
    Prior,
    /// Every https origin, and never over TCP.
    Only,
}

/// HTTP/3 of a client; shared by its pools, loops and threads.
pub struct Http3 {
    policy: Http3Policy,
    file: Option<PathBuf>,
    state: Mutex<State>,
    /// Held while the file is written, so that the last write has the last state.
    writing: Mutex<()>,
    /// `fork::generation()` of the process that made it. A child leaves the file to its parent.
    generation: u64,
}

#[derive(Default)]
struct State {
    cache: Cache,
    /// Pairs of the route of a call and that over the alternative, so that equal calls get the same `Arc`.
    recent: [Option<(Arc<Route>, Arc<Route>)>; RECENT],
    last_saved: Option<Instant>,
    /// The write in progress: a task that is dropped may not run.
    saving: Option<Arc<Task<()>>>,
}

impl Http3 {
    pub fn new(policy: Http3Policy) -> Self {
        Self {
            policy,
            file: None,
            state: Mutex::default(),
            writing: Mutex::default(),
            generation: fork::generation(),
        }
    }

    /// Keeps the advertised alternatives in a file, and reads those that it has. `Err` is a message for the user.
    pub fn with_file(policy: Http3Policy, path: PathBuf) -> Result<Self, String> {
        let records = file::read(&path, SystemTime::now())?;
        file::write(&path, &records, SystemTime::now())
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let mut http3 = Self::new(policy);
        http3.file = Some(path);
        let now = Instant::now();
        if let Some(mut state) = http3.lock() {
            for record in records {
                state.cache.add(record, now);
            }
            state.cache.take_changed();
        }
        Ok(http3)
    }

    /// Knows alternatives beforehand, from HTTPS records for example: host and port of the origin, and the value that its
    /// `Alt-Svc` would have. `Err` is a message for the user.
    pub fn with_known(
        policy: Http3Policy,
        known: &[(String, u16, String)],
    ) -> Result<Self, String> {
        let http3 = Self::new(policy);
        let now = Instant::now();
        for (host, port, value) in known {
            let origin = (&**host, *port);
            let is_valid = http3.lock().is_none_or(|mut state| {
                let value = value.as_bytes();
                state.cache.observe(origin, value, Duration::ZERO, now)
            });
            if !is_valid {
                let origin = authority(host, *port);
                return Err(format!(
                    "{value:?} of {origin} is not a value of Alt-Svc (RFC 7838 3)"
                ));
            }
        }
        Ok(http3)
    }

    pub fn policy(&self) -> Http3Policy {
        self.policy
    }

    /// The route over HTTP/3 of a call to `route`. `None`: the call uses `route` itself.
    pub(super) fn alternative(&self, route: &Arc<Route>, now: Instant) -> Option<Arc<Route>> {
        if route.alternative.is_some() || !route.may_use_http3() {
            return None;
        }
        let mut state = self.lock()?;
        let origin = (&*route.host, route.port);
        let own;
        let advertised = match self.policy {
            Http3Policy::Only => None,
            Http3Policy::Advertised | Http3Policy::Prior => {
                state.cache.find(&route.host, route.port, now)
            }
        };
        let chosen = match advertised {
            Some(authority) => authority,
            None if self.policy == Http3Policy::Advertised => return None,
            None => {
                own = own_authority(route);
                &own
            }
        };
        let generation = state.cache.generation(origin, chosen, now);
        let place = (Arc::as_ptr(route).addr() >> 4) % RECENT;
        if let Some((of, over)) = &state.recent[place]
            && Arc::ptr_eq(of, route)
            && over.alternative.as_deref().is_some_and(|known| {
                known.generation == generation
                    && known.port == chosen.port
                    && known.host == chosen.host
            })
        {
            return Some(Arc::clone(over));
        }
        let alternative = Alternative {
            host: chosen.host.clone(),
            port: chosen.port,
            is_only: self.policy == Http3Policy::Only,
            generation,
            alt_used: self.alt_used(route, chosen),
        };
        let over = Arc::new(Route {
            alternative: Some(Box::new(alternative)),
            ..Route::clone(route)
        });
        state.recent[place] = Some((Arc::clone(route), Arc::clone(&over)));
        Some(over)
    }

    /// The value of `Alt-Used` for requests over an alternative. The origin itself, over HTTP/3 by prior knowledge, is none.
    fn alt_used(&self, route: &Route, alternative: &Authority) -> Option<Box<str>> {
        let is_own = *alternative == own_authority(route);
        if self.policy == Http3Policy::Only || (self.policy == Http3Policy::Prior && is_own) {
            return None;
        }
        let value = authority(&alternative.host, alternative.port);
        // RFC 7838 5: the port is left out if it is that of the scheme.
        Some(value.strip_suffix(":443").unwrap_or(&value).into())
    }

    /// Learns from the final head of a response to a call over `route`.
    pub(super) fn observe(self: &Arc<Self>, route: &Route, head: &HeadRef<'_>, now: Instant) {
        if !route.may_use_http3() || self.policy == Http3Policy::Only {
            return;
        }
        let mut value: Option<Vec<u8>> = None;
        let mut age = Duration::ZERO;
        for field in head.fields() {
            if field.name.eq_ignore_ascii_case(b"alt-svc") {
                let value = value.get_or_insert_default();
                value.extend_from_slice(if value.is_empty() { b"" } else { b", " });
                value.extend_from_slice(field.value);
            } else if field.name.eq_ignore_ascii_case(b"age") {
                age = field::seconds(field.value).unwrap_or_default();
            }
        }
        if let (Some(value), Some(mut state)) = (value, self.lock()) {
            let origin = (&*route.host, route.port);
            state.cache.observe(origin, &value, age, now);
            self.save_later(&mut state, now);
        }
    }

    /// Removes the alternatives of the origin of `route`: one of them is not authoritative for it (421, RFC 7838 6).
    pub(super) fn misdirected(self: &Arc<Self>, route: &Route, now: Instant) {
        if let Some(mut state) = self.lock() {
            state.cache.forget(&route.host, route.port);
            self.save_later(&mut state, now);
        }
    }

    /// Whether the alternative of the route has failed so recently that only TCP is dialled.
    pub(super) fn is_broken(&self, route: &Route, now: Instant) -> bool {
        let origin = (&*route.host, route.port);
        match (authority_of(route), self.lock()) {
            (Some(alternative), Some(state)) => state.cache.is_broken(origin, &alternative, now),
            _ => false,
        }
    }

    /// Records that the alternative of the route could not be reached.
    pub(super) fn failed(&self, route: &Route, now: Instant) {
        if let (Some(alternative), Some(mut state)) = (authority_of(route), self.lock()) {
            let origin = (&*route.host, route.port);
            state.cache.failed(origin, &alternative, now);
        }
    }

    /// Records that the alternative of the route has been reached.
    pub(super) fn succeeded(&self, route: &Route) {
        if let (Some(alternative), Some(mut state)) = (authority_of(route), self.lock()) {
            let (host, port) = (&*route.host, route.port);
            state.cache.succeeded(host, port, &alternative);
        }
    }

    /// Writes the file now, if it has changed.
    pub fn save(&self) -> io::Result<()> {
        let own = self.file.as_ref();
        let Some(path) = own.filter(|_| self.generation == fork::generation()) else {
            return Ok(());
        };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut state) = self.lock() else {
            return Ok(());
        };
        if !state.cache.take_changed() {
            return Ok(());
        }
        let records = state.cache.records(Instant::now());
        drop(state);
        file::write(path, &records, SystemTime::now())
    }

    /// Writes a changed file on a helper thread, unless that has been done just now. The rest is written when the client
    /// is closed; a failure is not reported, since the file only saves time.
    fn save_later(self: &Arc<Self>, state: &mut State, now: Instant) {
        let is_due = state
            .last_saved
            .is_none_or(|last| now.saturating_duration_since(last) >= SAVE_INTERVAL);
        let is_idle = state.saving.as_ref().is_none_or(|task| task.is_done());
        if self.file.is_some() && is_due && is_idle && state.cache.is_changed() {
            state.last_saved = Some(now);
            let http3 = Arc::downgrade(self);
            let task = FILES.spawn(move || {
                let _ = http3.upgrade().map(|http3| http3.save());
            });
            state.saving = task.ok();
        }
    }

    /// Returns `None` if the lock stays taken: a forked child may have inherited it so.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        for _ in 0..MAX_TRIES {
            match self.state.try_lock() {
                Ok(state) => return Some(state),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }
}

impl fmt::Debug for Http3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3")
            .field("policy", &self.policy)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Drop for Http3 {
    fn drop(&mut self) {
        let _ = self.save();
    }
}

fn own_authority(route: &Route) -> Authority {
    Authority {
        host: route.host.clone(),
        port: route.port,
    }
}

fn authority_of(route: &Route) -> Option<Authority> {
    let alternative = route.alternative.as_deref()?;
    Some(Authority {
        host: alternative.host.clone(),
        port: alternative.port,
    })
}

#[cfg(test)]
mod tests;
