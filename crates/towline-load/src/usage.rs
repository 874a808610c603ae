//! Resource usage of the generator, as the system counts it for a thread.

use std::time::Duration;

/// Usage of one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// User and system time.
    pub(crate) cpu: Duration,
    /// Time that the thread was ready to run but had no core (Linux).
    pub(crate) kept_waiting: Duration,
}

impl Usage {
    pub(crate) fn of_this_thread() -> Self {
        Self {
            cpu: cpu_time(),
            kept_waiting: run_delay().unwrap_or_default(),
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            kept_waiting: self.kept_waiting.saturating_sub(before.kept_waiting),
        }
    }
}

fn cpu_time() -> Duration {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_time(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure given to it.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if result < 0 {
        return Duration::ZERO;
    }
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// The second number of schedstat (Documentation/scheduler/sched-stats.rst).
fn run_delay() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace()
        .nth(1)?
        .parse()
        .ok()
        .map(Duration::from_nanos)
}

/// User and system time of this process.
pub(crate) fn process_cpu() -> Duration {
    clock_time(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The limit of open files of this process.
pub(crate) fn open_files_limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills the structure given to it.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (result == 0).then_some(limit.rlim_cur)
}

/// The peak resident size of this process in bytes.
pub(crate) fn peak_memory() -> u64 {
    // SAFETY: all zeroes is a valid rusage, and the kernel fills a whole one that outlives the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let unit = if cfg!(target_os = "macos") { 1 } else { 1024 };
    usage.ru_maxrss.unsigned_abs() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_and_sleep_is_not() {
        let before = Usage::of_this_thread();
        std::thread::sleep(Duration::from_millis(30));
        assert!(Usage::of_this_thread().since(before).cpu < Duration::from_millis(20));
        let started = std::time::Instant::now();
        let mut spun = Usage::default();
        while spun.cpu < Duration::from_millis(5) && started.elapsed() < Duration::from_secs(20) {
            spun = Usage::of_this_thread().since(before);
        }
        assert!(spun.cpu >= Duration::from_millis(5));
        assert!(peak_memory() > 1 << 20);
    }
}
