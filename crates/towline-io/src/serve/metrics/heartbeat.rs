//! A thread that shows that the process runs, independently of Python.
//!
//! The thread holds no lock and does not call Python, so the heartbeat goes on while a long C call blocks the
//! worker's event loop: the supervisor can distinguish a slow worker from a dead one.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::slot::SlotHandle;
use crate::sys::resident_bytes;

/// A running heartbeat; it stops on drop.
pub struct Heartbeat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts the thread. Call it in the worker, after the fork. `slots`: those of its loops. Each beat also updates the
    /// figures of the process, in the first slot.
    pub fn start(slots: Vec<SlotHandle>, period: Duration) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        beat(&slots);
        let thread = std::thread::Builder::new()
            .name("towline-heartbeat".into())
            .spawn(move || {
                while stopped.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                    beat(&slots);
                }
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        // Dropping the sender wakes the thread at once.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn beat(slots: &[SlotHandle]) {
    for slot in slots {
        slot.heartbeat_native.store(monotonic_ns(), Relaxed);
    }
    let Some(slot) = slots.first() else { return };
    if let Some(bytes) = resident_bytes(std::process::id()) {
        slot.rss_bytes.store(bytes, Relaxed);
    }
    if let Some(count) = open_fds() {
        slot.open_fds.store(count, Relaxed);
    }
    slot.cpu_us.store(cpu_us(), Relaxed);
}

/// CPU time of this process in microseconds.
fn cpu_us() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID) / 1000
}

/// Number of open file descriptors, where the system lists them.
fn open_fds() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    // Without the descriptor of the directory itself.
    Some((entries.count() as u64).saturating_sub(1))
}

/// `CLOCK_MONOTONIC` in nanoseconds: the same in all processes, and in Python's `time.monotonic_ns`.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for the result; the clocks exist on every supported platform.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::super::slot::Slots;
    use super::*;

    #[test]
    fn a_heartbeat_beats_and_stops_at_once() {
        let slots = Slots::private(2);
        let slot = slots.handle(0).unwrap();
        let before = monotonic_ns();
        let heartbeat = Heartbeat::start(vec![slot.clone()], Duration::from_millis(1)).unwrap();
        let first = slot.heartbeat_native.load(Relaxed);
        assert!(first >= before);
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while slot.heartbeat_native.load(Relaxed) == first {
            assert!(std::time::Instant::now() < deadline, "no second beat");
            std::thread::yield_now();
        }
        drop(heartbeat);
        let last = slot.heartbeat_native.load(Relaxed);
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(slot.heartbeat_native.load(Relaxed), last);
        let other = slots.handle(1).unwrap();
        let both = vec![slot, other.clone()];
        let hourly = Heartbeat::start(both, Duration::from_secs(3600)).unwrap();
        assert!(other.heartbeat_native.load(Relaxed) >= last);
        assert_eq!(other.cpu_us.load(Relaxed), 0, "counted once, in the first");
        let dropped = std::time::Instant::now();
        drop(hourly);
        assert!(dropped.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn the_resident_size_is_plausible() {
        let bytes = resident_bytes(std::process::id()).unwrap();
        assert!((100_000..100_000_000_000).contains(&bytes), "{bytes}");
    }
}
