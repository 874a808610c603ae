//! Handling of Ctrl-C. The previous disposition is restored, since the program may run as a call in
//! another process.

use std::sync::OnceLock;

use crate::slice::Stop;

static STOP: OnceLock<Stop> = OnceLock::new();

pub(super) struct Interrupt {
    stop: Stop,
    before: libc::sigaction,
}

impl Interrupt {
    /// The first Ctrl-C requests a stop, the second one ends the process.
    pub(super) fn stops() -> Self {
        let handler: extern "C" fn(libc::c_int) = interrupted;
        Self::install(handler as libc::sighandler_t)
    }

    /// Ctrl-C ends the process.
    pub(super) fn ends() -> Self {
        Self::install(libc::SIG_DFL)
    }

    fn install(handler: libc::sighandler_t) -> Self {
        let stop = STOP.get_or_init(Stop::default).clone();
        stop.reset();
        // SAFETY: all zeroes is a valid sigaction without flags and with an empty mask; the handler only
        // stores to an atomic and resets itself, both of which are async-signal-safe; `before` is filled.
        let before = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut before: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            libc::sigaction(libc::SIGINT, &raw const action, &raw mut before);
            before
        };
        Self { stop, before }
    }

    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        // SAFETY: it was a valid disposition when it was replaced.
        unsafe { libc::sigaction(libc::SIGINT, &raw const self.before, std::ptr::null_mut()) };
    }
}

extern "C" fn interrupted(signal: libc::c_int) {
    if let Some(stop) = STOP.get() {
        stop.request();
    }
    // SAFETY: async-signal-safe; the default disposition is always valid.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}
