//! The clock of a store. All processes of the machine share it, nobody sets it, and it goes on after a restart of the machine.
//!
//! Within one boot it is `CLOCK_BOOTTIME` and an offset that the file `shared` records. A store begins with the wall clock's
//! time. After a restart of the machine it continues from the last recorded time, and the wall clock says how long the machine
//! was off. A wall clock that has gone back meanwhile counts as no time at all.

/// The clock in the file `shared`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Boot and time namespace in which `offset` holds; 0: unknown.
    boot: u64,
    /// Milliseconds from the boot clock to that of the store.
    offset: u64,
    /// Time of the store and of the wall clock at the same, recent moment.
    store_ms: u64,
    wall_ms: u64,
    check: u64,
}

/// The clock of an open store, in this boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clock {
    boot: u64,
    offset: u64,
}

impl Clock {
    /// The clock that continues a record. `None` is a store without one.
    pub fn new(record: Option<Record>) -> Self {
        Self::at(record, boot_identity(), boot_ms(), wall_ms())
    }

    fn at(record: Option<Record>, boot: u64, boot_ms: u64, wall_ms: u64) -> Self {
        let now = match record {
            Some(record) if boot != 0 && record.boot == boot => {
                return Self {
                    boot,
                    offset: record.offset,
                };
            }
            Some(record) => record.store_ms + wall_ms.saturating_sub(record.wall_ms),
            None => wall_ms,
        };
        Self {
            boot,
            offset: now.wrapping_sub(boot_ms),
        }
    }

    /// The clock of the processes that have the store open. `None`: theirs has another zero, in another time namespace.
    pub fn join(record: Record) -> Option<Self> {
        let boot = boot_identity();
        let is_same = record.boot == boot || record.boot == 0 || boot == 0;
        is_same.then_some(Self {
            boot: record.boot,
            offset: record.offset,
        })
    }

    /// Milliseconds. The zero is 1970, unless the wall clock was set after the store was made.
    pub fn now(self) -> u64 {
        boot_ms().wrapping_add(self.offset)
    }

    /// The record of this moment.
    pub fn record(self) -> Record {
        let record = Record {
            boot: self.boot,
            offset: self.offset,
            store_ms: self.now(),
            wall_ms: wall_ms(),
            check: 0,
        };
        Record {
            check: record.sum(),
            ..record
        }
    }
}

impl Record {
    /// The record, if it is whole.
    pub fn checked(self) -> Option<Self> {
        (self.check == self.sum()).then_some(self)
    }

    fn sum(self) -> u64 {
        [self.boot, self.offset, self.store_ms, self.wall_ms]
            .into_iter()
            .fold(1, mix)
    }
}

/// One step of FNV-1a, by words.
fn mix(sum: u64, word: u64) -> u64 {
    (sum ^ word).wrapping_mul(0x0100_0000_01b3).rotate_left(29)
}

/// The clock since the start of the machine, and one that is read faster.
#[cfg(all(target_os = "linux", not(towline_portable)))]
const CLOCKS: [libc::clockid_t; 2] = [libc::CLOCK_BOOTTIME, libc::CLOCK_MONOTONIC_COARSE];
/// That of macOS goes on while the machine is suspended.
#[cfg(not(all(target_os = "linux", not(towline_portable))))]
const CLOCKS: [libc::clockid_t; 2] = [libc::CLOCK_MONOTONIC; 2];

/// Identity of this boot and of the time namespace, whose boot clock may have another zero. 0: `/proc` does not say.
fn boot_identity() -> u64 {
    let Ok(boot) = std::fs::read("/proc/sys/kernel/random/boot_id") else {
        return 0;
    };
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    let bytes = boot.iter().chain(namespace.as_os_str().as_encoded_bytes());
    bytes.fold(1, |sum, byte| mix(sum, u64::from(*byte))).max(1)
}

/// Milliseconds since the machine has started, with the time that it was suspended.
fn boot_ms() -> u64 {
    clock_ms(CLOCKS[0])
}

/// Milliseconds since 1970.
fn wall_ms() -> u64 {
    clock_ms(libc::CLOCK_REALTIME)
}

/// Milliseconds of a clock that is a few milliseconds behind, and is read in some nanoseconds.
pub fn coarse_ms() -> u64 {
    clock_ms(CLOCKS[1])
}

fn clock_ms(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills the structure given to it.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;

    fn record(boot: u64, offset: u64, store_ms: u64, wall_ms: u64) -> Record {
        Record {
            boot,
            offset,
            store_ms,
            wall_ms,
            check: 0,
        }
    }

    fn now(clock: Clock, boot_ms: u64) -> u64 {
        boot_ms.wrapping_add(clock.offset)
    }

    #[test]
    fn a_new_store_begins_with_the_wall_clock() {
        assert_eq!(now(Clock::at(None, 7, 500, 9 * HOUR), 500), 9 * HOUR);
    }

    #[test]
    fn the_wall_clock_means_nothing_within_a_boot() {
        let before = record(7, 1000, 2000, 9 * HOUR);
        for wall in [0, 8 * HOUR, 9 * HOUR, 99 * HOUR] {
            assert_eq!(now(Clock::at(Some(before), 7, 4000, wall), 4000), 5000);
        }
    }

    #[test]
    fn after_a_restart_the_store_has_aged_by_the_time_that_the_machine_was_off() {
        let before = record(7, 1000, 50 * HOUR, 9 * HOUR);
        assert_eq!(
            now(Clock::at(Some(before), 8, 20, 11 * HOUR), 20),
            52 * HOUR
        );
        let went_back = Clock::at(Some(before), 8, 20, 3 * HOUR);
        assert_eq!(now(went_back, 20), 50 * HOUR);
        // Without an identity each opening is like a restart.
        let unknown = record(0, 1000, 50 * HOUR, 9 * HOUR);
        assert_eq!(
            now(Clock::at(Some(unknown), 0, 20, 10 * HOUR), 20),
            51 * HOUR
        );
    }

    #[test]
    fn a_damaged_record_is_none() {
        let record = Clock::new(None).record();
        assert_eq!(record.checked(), Some(record));
        let damaged = Record {
            wall_ms: record.wall_ms ^ 1,
            ..record
        };
        assert_eq!(damaged.checked(), None);
        assert_eq!(Record::default().checked(), None);
    }

    #[test]
    fn processes_of_one_boot_have_the_same_clock() {
        let clock = Clock::new(None);
        assert_eq!(Clock::join(clock.record()), Some(clock));
        let other = Record {
            boot: clock.boot ^ 2,
            ..clock.record()
        };
        assert_eq!(Clock::join(other), None);
    }
}
