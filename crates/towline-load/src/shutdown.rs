//! Shared by the helper processes, responder and network emulator: the shutdown signal (SIGTERM, SIGINT, or
//! the end of a piped standard input) and the parser of times.

use std::io::{self, Read};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::Duration;

/// The state that the signal handler uses; it lives as long as the process.
struct ShutdownRequest {
    requested: AtomicBool,
    /// Async-signal-safe.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl ShutdownRequest {
    fn set(&self) {
        self.requested.store(true, Ordering::Relaxed);
        (self.wake)();
    }
}

static REQUEST: AtomicPtr<ShutdownRequest> = AtomicPtr::new(ptr::null_mut());
const SIGNALS: [libc::c_int; 2] = [libc::SIGTERM, libc::SIGINT];

pub struct ShutdownSignal {
    request: &'static ShutdownRequest,
    handlers_before: [libc::sighandler_t; 2],
}

impl ShutdownSignal {
    /// Calls `wake`, which must be async-signal-safe, when a shutdown is requested, and `on_line` in another thread
    /// for each line of a piped standard input. The previous signal handlers are restored on drop.
    pub fn install(
        wake: impl Fn() + Send + Sync + 'static,
        on_line: impl Fn() + Send + 'static,
    ) -> Self {
        // A few bytes per call, and a process calls this once.
        let request: &'static ShutdownRequest = Box::leak(Box::new(ShutdownRequest {
            requested: AtomicBool::new(false),
            wake: Box::new(wake),
        }));
        REQUEST.store(ptr::from_ref(request).cast_mut(), Ordering::Release);
        let handler: extern "C" fn(libc::c_int) = on_signal;
        // SAFETY: the handler stores to an atomic and writes to an eventfd or pipe; both are
        // async-signal-safe.
        let handlers_before =
            SIGNALS.map(|signal| unsafe { libc::signal(signal, handler as libc::sighandler_t) });
        if stdin_is_a_pipe() {
            // The thread ends with the process, if not before.
            std::thread::spawn(move || {
                let mut space = [0; 64];
                while let Ok(count @ 1..) = io::stdin().read(&mut space) {
                    for _ in space[..count].iter().filter(|byte| **byte == b'\n') {
                        on_line();
                    }
                }
                request.set();
            });
        }
        Self {
            request,
            handlers_before,
        }
    }

    pub fn is_requested(&self) -> bool {
        self.request.requested.load(Ordering::Relaxed)
    }
}

impl Drop for ShutdownSignal {
    fn drop(&mut self) {
        for (signal, before) in SIGNALS.into_iter().zip(self.handlers_before) {
            // SAFETY: the previous handler is valid.
            unsafe { libc::signal(signal, before) };
        }
    }
}

extern "C" fn on_signal(_: libc::c_int) {
    // SAFETY: never freed once it is stored.
    if let Some(request) = unsafe { REQUEST.load(Ordering::Acquire).as_ref() } {
        request.set();
    }
}

/// Whether the end of standard input means that the parent has exited: not for a terminal or `/dev/null`.
fn stdin_is_a_pipe() -> bool {
    let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills the structure unless it fails.
    let mode = unsafe {
        if libc::fstat(0, status.as_mut_ptr()) != 0 {
            return false;
        }
        status.assume_init().st_mode & libc::S_IFMT
    };
    mode == libc::S_IFIFO || mode == libc::S_IFSOCK
}

/// `10us`, `1.5ms`, `2s`.
pub fn time(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    units
        .into_iter()
        .find_map(|(unit, seconds)| {
            let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            Duration::try_from_secs_f64(number * seconds).ok()
        })
        .ok_or_else(|| "a time is a number with its unit, as in 10us, 1.5ms or 2s".into())
}
