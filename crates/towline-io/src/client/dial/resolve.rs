//! Looks names up with the system's resolver, on helper threads. Simultaneous lookups of one name share one call;
//! results are not cached, since getaddrinfo(3) does not report how long they are valid.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};

use super::error::os_message;
use super::{DialError, DialErrorKind};
use crate::fork;
use crate::thread_pool::{LOOKUPS, Panicked, Task, TaskHandle};

/// Addresses kept of one result.
const MAX_ADDRS: usize = 32;

/// Entries in the table of lookups at which the finished ones are removed.
const SWEEP_AT: usize = 64;

/// Result of a lookup: addresses with port 0, in the order to try them (RFC 6724).
pub(super) type LookupResult = Result<Vec<SocketAddr>, LookupError>;

/// Looks names up on helper threads.
pub struct Resolver {
    lookup: fn(&str) -> LookupResult,
    /// Running lookups, with the process generation that started them.
    running: Mutex<(u64, Lookups)>,
}

type Lookups = HashMap<Box<str>, Weak<Task<LookupResult>>>;

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Resolver {
    /// Returns the resolver that all clients of the process share.
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Resolver>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(Self::with(system_lookup))))
    }

    pub(super) fn with(lookup: fn(&str) -> LookupResult) -> Self {
        Self {
            lookup,
            running: Mutex::default(),
        }
    }

    /// Starts a lookup of `host`, or joins one that is running.
    pub(super) fn lookup(&self, host: &str) -> Result<TaskHandle<LookupResult>, DialError> {
        self.start(host).map_err(|error| {
            let message = format!("cannot resolve {host:?}: {}", os_message(&error));
            DialError::new(DialErrorKind::Dns, message).because(&error)
        })
    }

    fn start(&self, host: &str) -> io::Result<TaskHandle<LookupResult>> {
        let generation = fork::generation();
        // A thread that fork(2) did not copy may hold the lock for ever: lookups are not shared then.
        let mut running = match self.running.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(guard) = &mut running
            && guard.0 != generation
        {
            **guard = (generation, HashMap::new());
        }
        let joined = running
            .as_ref()
            .and_then(|guard| guard.1.get(host)?.upgrade());
        if let Some(task) = joined.filter(|task| !task.is_done()) {
            return TaskHandle::new(task);
        }
        let (lookup, name) = (self.lookup, host.to_owned());
        let task = LOOKUPS.spawn(move || lookup(&name))?;
        if let Some(guard) = &mut running {
            if guard.1.len() >= SWEEP_AT {
                guard.1.retain(|_, task| task.strong_count() > 0);
            }
            guard.1.insert(host.into(), Arc::downgrade(&task));
        }
        TaskHandle::new(task)
    }
}

/// The addresses of `host` at `port` that a lookup has found; `None` if it goes on.
pub(super) fn found(
    lookup: &TaskHandle<LookupResult>,
    (host, port): (&str, u16),
) -> Result<Option<Vec<SocketAddr>>, DialError> {
    let reason = match lookup.outcome() {
        None => return Ok(None),
        Some(Ok(Ok(addrs))) => return Ok(Some(at_port(addrs, port).collect())),
        Some(Ok(Err(error))) => error.to_string(),
        Some(Err(Panicked)) => "the lookup failed in an unexpected way".to_owned(),
    };
    let message = format!("cannot resolve {host:?}: {reason}");
    Err(DialError::new(DialErrorKind::Dns, message))
}

/// Addresses with another port; an IPv6 address keeps its zone.
pub(super) fn at_port(addrs: &[SocketAddr], port: u16) -> impl Iterator<Item = SocketAddr> {
    addrs.iter().map(move |addr| {
        let mut addr = *addr;
        addr.set_port(port);
        addr
    })
}

/// Parses an address, which needs no lookup; IPv6 may have a zone (RFC 4007 11).
pub(super) fn literal(host: &str, port: u16) -> Option<SocketAddr> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, port));
    }
    let (address, zone) = host.split_once('%')?;
    let address: Ipv6Addr = address.parse().ok()?;
    let scope = zone.parse().ok().or_else(|| interface(zone))?;
    Some(SocketAddrV6::new(address, port, 0, scope).into())
}

fn interface(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name is a C string that outlives the call.
    Some(unsafe { libc::if_nametoindex(name.as_ptr()) }).filter(|&index| index != 0)
}

/// Reason why a lookup failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LookupError {
    /// The name does not exist, or has no addresses.
    NoSuchHost,
    /// No name server answered.
    TryAgain,
    /// The system's message.
    Other(String),
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchHost => f.write_str("no such host"),
            Self::TryAgain => f.write_str("the name server did not answer; try again later"),
            Self::Other(text) => f.write_str(text),
        }
    }
}

/// Calls getaddrinfo(3), which blocks for as long as the system's configuration allows.
fn system_lookup(host: &str) -> LookupResult {
    let name = CString::new(host).map_err(|_| LookupError::NoSuchHost)?;
    // SAFETY: unused fields must be zero, and null is valid for all pointers.
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    hints.ai_family = libc::AF_UNSPEC;
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut list = ptr::null_mut();
    // SAFETY: the name and the hints outlive the call, and the list is only read when it succeeds.
    let code =
        unsafe { libc::getaddrinfo(name.as_ptr(), ptr::null(), &raw const hints, &raw mut list) };
    if code != 0 {
        return Err(lookup_error(code));
    }
    let mut addrs = Vec::new();
    let mut next = list;
    // SAFETY: each node is null or a valid addrinfo until the list is freed.
    while let Some(node) = unsafe { next.as_ref() } {
        next = node.ai_next;
        let found = socket_addr(node);
        addrs.extend(found.filter(|addr| addrs.len() < MAX_ADDRS && !addrs.contains(addr)));
    }
    // SAFETY: made by getaddrinfo above and not freed yet.
    unsafe { libc::freeaddrinfo(list) };
    if addrs.is_empty() {
        return Err(LookupError::NoSuchHost);
    }
    Ok(addrs)
}

fn socket_addr(node: &libc::addrinfo) -> Option<SocketAddr> {
    // SAFETY: copies the address of the node, whose length is checked against the storage; socket2 then reads it
    // by its family.
    let ((), addr) = unsafe {
        socket2::SockAddr::try_init(|storage, length| {
            if node.ai_addr.is_null() || node.ai_addrlen > *length {
                return Err(io::ErrorKind::InvalidData.into());
            }
            ptr::copy_nonoverlapping(
                node.ai_addr.cast::<u8>(),
                storage.cast::<u8>(),
                node.ai_addrlen as usize,
            );
            *length = node.ai_addrlen;
            Ok(())
        })
    }
    .ok()?;
    addr.as_socket()
}

fn lookup_error(code: libc::c_int) -> LookupError {
    match code {
        libc::EAI_NONAME | libc::EAI_NODATA => LookupError::NoSuchHost,
        libc::EAI_AGAIN => LookupError::TryAgain,
        libc::EAI_SYSTEM => LookupError::Other(io::Error::last_os_error().to_string()),
        other => {
            // SAFETY: returns a constant C string for every code.
            let text = unsafe { CStr::from_ptr(libc::gai_strerror(other)) };
            LookupError::Other(text.to_string_lossy().into_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    fn wait(task: &TaskHandle<LookupResult>) -> LookupResult {
        let start = Instant::now();
        loop {
            if let Some(outcome) = task.outcome() {
                return outcome.unwrap().clone();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no outcome");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn simultaneous_lookups_of_a_name_share_one_call() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        static ALL_STARTED: AtomicBool = AtomicBool::new(false);
        let resolver = Resolver::with(|_| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            while !ALL_STARTED.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
            }
            Err(LookupError::NoSuchHost)
        });
        let tasks: Vec<_> = (0..10).map(|_| resolver.lookup("a").unwrap()).collect();
        let other = resolver.lookup("b").unwrap();
        ALL_STARTED.store(true, Ordering::Relaxed);
        for task in &tasks {
            assert_eq!(wait(task), Err(LookupError::NoSuchHost));
        }
        wait(&other).unwrap_err();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
        // A finished lookup is not reused.
        wait(&resolver.lookup("a").unwrap()).unwrap_err();
        assert_eq!(CALLS.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn localhost_resolves_to_loopback_addresses() {
        let resolver = Resolver::shared();
        let addrs = wait(&resolver.lookup("localhost").unwrap()).unwrap();
        assert!(
            addrs.iter().all(|addr| addr.ip().is_loopback()),
            "{addrs:?}"
        );
        let invalid = wait(&resolver.lookup("nul\0byte").unwrap());
        assert_eq!(invalid, Err(LookupError::NoSuchHost));
    }

    #[test]
    fn a_child_of_fork_starts_its_own_lookups_and_exits_at_once() {
        static PARENT: AtomicUsize = AtomicUsize::new(0);
        PARENT.store(std::process::id() as usize, Ordering::Relaxed);
        let resolver = Resolver::with(|name| {
            if std::process::id() as usize == PARENT.load(Ordering::Relaxed) || name == "slow" {
                thread::sleep(Duration::from_secs(60));
            }
            Err(LookupError::NoSuchHost)
        });
        let in_parent = resolver.lookup("a").unwrap();
        // SAFETY: the child uses only memory, pipes and threads of its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_done = resolver.lookup("a").is_ok_and(|task| wait(&task).is_err());
            let _stuck = resolver.lookup("slow");
            // SAFETY: exits as an interpreter does, while a helper thread runs a lookup.
            unsafe { libc::exit(i32::from(!is_done)) };
        }
        let start = Instant::now();
        let mut status = -1;
        // SAFETY: waits for the child made above.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "the child hangs");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(status, 0);
        assert!(in_parent.outcome().is_none());
    }

    #[test]
    fn addresses_are_parsed_without_a_lookup() {
        for (host, addr) in [
            ("127.0.0.1", Some("127.0.0.1:80")),
            ("::1", Some("[::1]:80")),
            ("fe80::1%3", Some("[fe80::1%3]:80")),
            ("localhost", None),
            ("127.1", None),
            ("a%3", None),
        ] {
            let found = literal(host, 80).map(|addr| addr.to_string());
            assert_eq!(found.as_deref(), addr, "{host}");
        }
    }
}
