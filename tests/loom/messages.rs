//! A subscriber of the log either sees a message or is woken for it.

use std::sync::Arc;

use loom::sync::atomic::AtomicU32;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;

use crate::armed::{Armed, committed};

#[derive(Default)]
struct Log {
    armed: Armed,
    messages: AtomicU32,
    woken: AtomicU32,
}

impl Log {
    fn publish(&self) {
        self.messages.fetch_add(1, Relaxed);
        committed();
        if self.armed.take() {
            self.woken.fetch_add(1, Relaxed);
        }
    }

    /// Arms, and returns whether the subscriber sleeps now: it has seen no message.
    fn sleeps(&self) -> bool {
        self.armed.arm();
        let sleeps = self.messages.load(Relaxed) == 0;
        if !sleeps {
            self.armed.disarm();
        }
        sleeps
    }
}

pub fn a_subscriber_that_sleeps_is_woken() {
    let log = Arc::new(Log::default());
    let publishing = || {
        let log = Arc::clone(&log);
        thread::spawn(move || log.publish())
    };
    let publishers = [publishing(), publishing()];
    let sleeps = log.sleeps();
    for publisher in publishers {
        publisher.join().unwrap();
    }
    let woken = log.woken.load(Relaxed);
    assert!(woken <= 1, "woken by each publisher");
    assert!(!sleeps || woken == 1, "asleep, with a message in the log");
}
