//! The `WebSockets` of a server: their bound, and their end when the server ends.
//!
//! ```text
//!            take                    on_closed, CLOSE_TIMEOUT
//!   unused ────────► the application's ──────────────────► ended
//!      └─────────── ordinary response ───────────────────────┘
//! ```
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towline_io::SocketControl;
use towline_io::serve::metrics::SlotHandle;
use towline_proto::OwnedHead;

use crate::open_gauge::OpenGauge;
use crate::options::Options;

/// Time for the closing handshake after the application has returned: simple-websocket's thread reads the client's
/// close frame, and closes its socket. Several round trips of a slow network.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The `WebSockets` of a server.
pub struct WebSockets {
    /// `--wsgi-websockets`; 0 with `--threads 1`, whose application is never called twice at a time, and with
    /// `--no-ws`.
    pub limit: usize,
    pub slot: Option<SlotHandle>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    permits: Vec<Arc<Permit>>,
    ending: Ending,
}

/// How far the server has ended its `WebSockets`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    #[default]
    No,
    /// The application reads the end of input.
    Input,
    Both,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WebSockets {
    pub fn new(options: &Options, slot: Option<SlotHandle>) -> Self {
        let is_offered = options.ws && options.threads > 1;
        Self {
            limit: if is_offered {
                options.wsgi_websockets
            } else {
                0
            },
            slot,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Number of requests for `WebSockets` with the application, including those it answers without one.
    pub fn active(&self) -> usize {
        lock(&self.state).permits.len()
    }

    /// A permit for a request; `None` over the bound.
    pub fn begin(&self) -> Option<Arc<Permit>> {
        let mut state = lock(&self.state);
        if state.permits.len() >= self.limit {
            return None;
        }
        let permit = Arc::new(Permit::new(state.ending));
        state.permits.push(permit.clone());
        Some(permit)
    }

    pub fn end(&self, permit: &Arc<Permit>) {
        permit.end();
        let mut state = lock(&self.state);
        state.permits.retain(|other| !Arc::ptr_eq(other, permit));
        drop(state);
        self.changed.notify_all();
    }

    /// For a drain: the applications read the end of input.
    pub fn end_input(&self) {
        self.set_ending(Ending::Input);
    }

    /// Ends the connections, and waits until the threads have ended or `timeout` is over.
    pub fn shut_down(&self, timeout: Duration) {
        self.set_ending(Ending::Both);
        let state = lock(&self.state);
        // A thread that is stuck in the application is not waited for: it is a daemon.
        let _ = self
            .changed
            .wait_timeout_while(state, timeout, |state| !state.permits.is_empty());
    }

    fn set_ending(&self, ending: Ending) {
        let permits = {
            let mut state = lock(&self.state);
            state.ending = state.ending.max(ending);
            state.permits.clone()
        };
        for permit in permits {
            permit.set_ending(ending);
        }
    }
}

/// The permit of one request under the bound.
pub struct Permit {
    usage: Mutex<Usage>,
    changed: Condvar,
}

struct Usage {
    ending: Ending,
    /// After the application has taken the socket over.
    taken: Option<(SocketControl, Option<OpenGauge>)>,
    /// The application has closed its socket.
    is_closed: bool,
}

impl Permit {
    fn new(ending: Ending) -> Self {
        Self {
            usage: Mutex::new(Usage {
                ending,
                taken: None,
                is_closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// The application has taken the socket over.
    pub fn take(&self, control: SocketControl, slot: Option<SlotHandle>) {
        let mut usage = lock(&self.usage);
        usage.taken = Some((control, slot.map(OpenGauge::new)));
        usage.apply();
    }

    /// The application has closed its socket.
    pub fn on_closed(&self) {
        lock(&self.usage).is_closed = true;
        self.changed.notify_all();
    }

    fn set_ending(&self, ending: Ending) {
        let mut usage = lock(&self.usage);
        usage.ending = usage.ending.max(ending);
        usage.apply();
    }

    pub fn is_taken(&self) -> bool {
        lock(&self.usage).taken.is_some()
    }

    pub fn wait_closed(&self) {
        let usage = lock(&self.usage);
        // After the timeout the connection is closed anyway.
        let _ = self
            .changed
            .wait_timeout_while(usage, CLOSE_TIMEOUT, |usage| !usage.is_closed);
    }

    fn end(&self) {
        lock(&self.usage).taken = None;
    }
}

impl Usage {
    fn apply(&self) {
        let Some((control, _)) = &self.taken else {
            return;
        };
        match self.ending {
            Ending::No => {}
            Ending::Input => control.end_input(),
            Ending::Both => control.shut_down(),
        }
    }
}

/// Whether a request asks for a WebSocket (RFC 6455 4.1).
pub fn is_request(head: &OwnedHead) -> bool {
    let names = |element: &[u8]| element.trim_ascii().eq_ignore_ascii_case(b"websocket");
    let head = head.view();
    head.method() == b"GET"
        && head
            .fields()
            .filter(|field| field.name.eq_ignore_ascii_case(b"upgrade"))
            .any(|field| field.value.split(|&byte| byte == b',').any(names))
}
