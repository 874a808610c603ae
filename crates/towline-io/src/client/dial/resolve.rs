//! Names to addresses, by the system's resolver on a helper thread. One lookup of a name serves all who
//! want it at the same time; nothing is remembered after that, since only the system knows for how long
//! an answer is good.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError, Weak};

use crate::fork;
use crate::thread_pool::{LOOKUPS, Task, TaskHandle};

/// Addresses kept of one answer.
const MAX_ADDRS: usize = 32;

/// Names in the table of lookups before the finished ones are swept out.
const SWEEP_AT: usize = 64;

/// Result of a lookup: addresses with port 0, in the order to try them (RFC 6724).
pub(super) type Answer = Result<Vec<SocketAddr>, LookupError>;

/// Looks names up on helper threads.
pub struct Resolver {
    lookup: fn(&str) -> Answer,
    /// Under way, in the generation of the process that began them.
    under_way: Mutex<(u64, Lookups)>,
}

type Lookups = HashMap<Box<str>, Weak<Task<Answer>>>;

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

impl Resolver {
    /// The one of this process.
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Resolver>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(Self::with(system_lookup))))
    }

    pub(super) fn with(lookup: fn(&str) -> Answer) -> Self {
        Self {
            lookup,
            under_way: Mutex::default(),
        }
    }

    /// Asks for the addresses of `host`, or joins those who asked before.
    pub(super) fn ask(&self, host: &str) -> io::Result<TaskHandle<Answer>> {
        let generation = fork::generation();
        // Taken by a thread that fork left behind, it stays so; then lookups are not shared.
        let mut under_way = match self.under_way.try_lock() {
            Ok(held) => Some(held),
            Err(TryLockError::Poisoned(poisoned)) => Some(PoisonError::into_inner(poisoned)),
            Err(TryLockError::WouldBlock) => None,
        };
        if let Some(held) = &mut under_way
            && held.0 != generation
        {
            **held = (generation, HashMap::new());
        }
        let joined = under_way
            .as_ref()
            .and_then(|held| held.1.get(host)?.upgrade());
        if let Some(task) = joined.filter(|task| !task.is_done()) {
            return TaskHandle::new(task);
        }
        let (lookup, name) = (self.lookup, host.to_owned());
        let task = LOOKUPS.spawn(move || lookup(&name))?;
        if let Some(held) = &mut under_way {
            if held.1.len() >= SWEEP_AT {
                held.1.retain(|_, task| task.strong_count() > 0);
            }
            held.1.insert(host.into(), Arc::downgrade(&task));
        }
        TaskHandle::new(task)
    }
}

/// An address that needs no lookup; IPv6 may have a zone (RFC 4007 11).
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

/// Why a name has no addresses.
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

/// getaddrinfo(3). It waits for as long as the system's configuration says.
fn system_lookup(host: &str) -> Answer {
    let name = CString::new(host).map_err(|_| LookupError::NoSuchHost)?;
    // SAFETY: zero is what unused fields must be, and there are no pointers that must not be null.
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
    // SAFETY: each node is null or a whole addrinfo until the list is freed.
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
    // SAFETY: copies the address that the node points to, in the length that it says, into storage that
    // is larger than any; socket2 then reads it by its family.
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
            // SAFETY: gives a constant C string for every code.
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

    fn wait(ticket: &TaskHandle<Answer>) -> Answer {
        let start = Instant::now();
        loop {
            if let Some(outcome) = ticket.outcome() {
                return outcome.unwrap().clone();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "no outcome");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn lookups_of_one_name_are_one() {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        static HAVE_ASKED: AtomicBool = AtomicBool::new(false);
        let resolver = Resolver::with(|_| {
            CALLS.fetch_add(1, Ordering::Relaxed);
            while !HAVE_ASKED.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
            }
            Err(LookupError::NoSuchHost)
        });
        let tickets: Vec<_> = (0..10).map(|_| resolver.ask("a").unwrap()).collect();
        let other = resolver.ask("b").unwrap();
        HAVE_ASKED.store(true, Ordering::Relaxed);
        for ticket in &tickets {
            assert_eq!(wait(ticket), Err(LookupError::NoSuchHost));
        }
        wait(&other).unwrap_err();
        assert_eq!(CALLS.load(Ordering::Relaxed), 2);
        // What is over is not shared: the next one asks anew.
        wait(&resolver.ask("a").unwrap()).unwrap_err();
        assert_eq!(CALLS.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn the_system_knows_localhost() {
        let resolver = Resolver::shared();
        let addrs = wait(&resolver.ask("localhost").unwrap()).unwrap();
        assert!(
            addrs.iter().all(|addr| addr.ip().is_loopback()),
            "{addrs:?}"
        );
        let nobody = wait(&resolver.ask("nul\0byte").unwrap());
        assert_eq!(nobody, Err(LookupError::NoSuchHost));
    }

    #[test]
    fn a_child_of_fork_asks_anew_and_exits_at_once() {
        static PARENT: AtomicUsize = AtomicUsize::new(0);
        PARENT.store(std::process::id() as usize, Ordering::Relaxed);
        let resolver = Resolver::with(|name| {
            if std::process::id() as usize == PARENT.load(Ordering::Relaxed) || name == "slow" {
                thread::sleep(Duration::from_secs(60));
            }
            Err(LookupError::NoSuchHost)
        });
        let in_parent = resolver.ask("a").unwrap();
        // SAFETY: the child uses what a child of fork may use here: memory, pipes and threads of its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let answered = resolver.ask("a").is_ok_and(|ticket| wait(&ticket).is_err());
            let _stuck = resolver.ask("slow");
            // SAFETY: as at the end of an interpreter, with a helper in the middle of a lookup.
            unsafe { libc::exit(i32::from(!answered)) };
        }
        let start = Instant::now();
        let mut status = -1;
        // SAFETY: asks after the child made above.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "the child hangs");
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(status, 0);
        assert!(in_parent.outcome().is_none());
    }

    #[test]
    fn addresses_need_no_lookup() {
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
