//! The store against a map in memory, and what threads and a full store do.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use towline_state::{
    Blocking, Check, Error, Lifetime, LogReader, Options, Post, Remaining, Store, WhenFull, Write,
};

/// A directory of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "towline-store-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        Self(std::env::temp_dir().join(name))
    }

    fn open(&self, options: Options) -> Store {
        Store::open(&self.0, options).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn get(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    store.get(Blocking::Short, key, <[u8]>::to_vec).unwrap()
}

#[derive(Clone, Debug)]
enum Step {
    Set(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    CompareAndSet(Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>),
    Scan(Vec<u8>, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = || prop::collection::vec(prop::sample::select(vec![1_u8, b'a', b'b', 255]), 1..4);
    let value = || {
        let small = prop::collection::vec(any::<u8>(), 0..20);
        let large = prop::collection::vec(any::<u8>(), 4000..4100);
        prop_oneof![4 => small, 1 => large]
    };
    let step = prop_oneof![
        (key(), value()).prop_map(|(key, value)| Step::Set(key, value)),
        key().prop_map(Step::Delete),
        (key(), prop::option::of(value()), prop::option::of(value()))
            .prop_map(|(key, expected, value)| Step::CompareAndSet(key, expected, value)),
        (
            prop::collection::vec(prop::sample::select(vec![1_u8, b'a', b'b', 255]), 0..3),
            1..4_usize
        )
            .prop_map(|(prefix, limit)| Step::Scan(prefix, limit)),
    ];
    prop::collection::vec(step, 1..60)
}

fn scan(store: &Store, prefix: &[u8], limit: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut found, mut next) = (Vec::new(), None);
    loop {
        let page = store
            .scan(Blocking::Wait, prefix, next.as_deref(), limit, true)
            .unwrap();
        found.extend(page.items);
        match page.next {
            None => return found,
            next_key => next = next_key,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_is_a_map(steps in steps()) {
        let folder = Folder::new();
        let store = folder.open(Options::default());
        let mut model = BTreeMap::new();
        for step in steps {
            match step {
                Step::Set(key, value) => {
                    store.set(Blocking::Wait, &key, &value, Lifetime::Forever).unwrap();
                    model.insert(key, value);
                }
                Step::Delete(key) => {
                    let removed = store.delete(Blocking::Wait, &[&key]).unwrap();
                    prop_assert_eq!(removed, usize::from(model.remove(&key).is_some()));
                }
                Step::CompareAndSet(key, expected, value) => {
                    let check = Check { key: &key, expected: expected.as_deref() };
                    let write = Write { key: &key, value: value.as_deref(), lifetime: Lifetime::Forever };
                    let holds = store.apply(Blocking::Wait, &[check], &[write], &[]).unwrap();
                    prop_assert_eq!(holds, model.get(&key) == expected.as_ref());
                    if holds {
                        match value {
                            Some(value) => drop(model.insert(key, value)),
                            None => drop(model.remove(&key)),
                        }
                    }
                }
                Step::Scan(prefix, limit) => {
                    let expected: Vec<_> = model.clone().into_iter().filter(|(key, _)| key.starts_with(&prefix)).collect();
                    prop_assert_eq!(scan(&store, &prefix, limit), expected);
                }
            }
        }
        drop(store);
        let store = folder.open(Options::default());
        for (key, value) in &model {
            let found = get(&store, key);
            prop_assert_eq!(found.as_ref(), Some(value));
        }
    }
}

#[test]
fn values_expire_and_keep_their_time() {
    let folder = Folder::new();
    let store = folder.open(Options::default());
    let long = Lifetime::Milliseconds(60_000);
    store.set(Blocking::Wait, b"long", b"1", long).unwrap();
    store
        .set(Blocking::Wait, b"long", b"2", Lifetime::Keep)
        .unwrap();
    assert!(
        matches!(store.remaining(b"long").unwrap(), Remaining::Milliseconds(left) if left > 50_000)
    );
    store
        .set(Blocking::Wait, b"long", b"3", Lifetime::Forever)
        .unwrap();
    assert_eq!(store.remaining(b"long").unwrap(), Remaining::Forever);
    assert_eq!(
        store.info().unwrap().expiring,
        0,
        "the index has no entry that is not true"
    );
    store
        .set(Blocking::Wait, b"short", b"1", Lifetime::Milliseconds(1))
        .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(3));
    assert_eq!(get(&store, b"short"), None);
    assert_eq!(store.remaining(b"short").unwrap(), Remaining::Missing);
    assert_eq!(store.delete(Blocking::Wait, &[b"short"]).unwrap(), 0);
}

#[test]
fn threads_lose_no_update_and_read_meanwhile() {
    let folder = Folder::new();
    let store = folder.open(Options::default());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    store
                        .add(Blocking::Wait, b"count", 1, Lifetime::Forever)
                        .unwrap();
                    assert!(get(&store, b"count").is_some());
                }
            });
        }
    });
    assert_eq!(get(&store, b"count").as_deref(), Some(&b"8000"[..]));
}

#[test]
fn a_full_store_refuses_or_evicts() {
    let size = Some(1 << 20);
    let folder = Folder::new();
    let store = folder.open(Options {
        size,
        ..Options::default()
    });
    let fill = |store: &Store, count: u32| {
        (0..count).try_for_each(|number| {
            store.set(
                Blocking::Wait,
                format!("key-{number}").as_bytes(),
                &[0; 500],
                Lifetime::Forever,
            )
        })
    };
    assert!(matches!(
        fill(&store, 100_000),
        Err(Error::Full { size: 1_048_576 })
    ));
    let large = vec![0; 2 << 20];
    assert!(matches!(
        store.set(Blocking::Wait, b"x", &large, Lifetime::Forever),
        Err(Error::Full { .. })
    ));
    drop(store);
    let store = folder.open(Options {
        when_full: Some(WhenFull::Evict),
        ..Options::default()
    });
    store
        .set(Blocking::Wait, b"\0lock:a", b"mine", Lifetime::Forever)
        .unwrap();
    fill(&store, 10_000).unwrap();
    let locks = store.get_many(Blocking::Wait, &[b"\0lock:a"]).unwrap();
    assert_eq!(locks, [Some(b"mine".to_vec())]);
    assert!(matches!(
        store.get(Blocking::Wait, b"\0lock:a", <[u8]>::to_vec),
        Err(Error::Argument(_))
    ));
    assert!(get(&store, b"key-9999").is_some());
    let info = store.info().unwrap();
    assert!(info.used_bytes <= 1 << 20, "{info:?}");
}

#[test]
fn a_reader_of_the_log_sees_each_message_once() {
    let folder = Folder::new();
    let store = folder.open(Options::default());
    let publish = |number: u32| {
        let message = number.to_le_bytes();
        store
            .publish(
                Blocking::Wait,
                Post {
                    channel: b"n",
                    message: &message,
                },
            )
            .unwrap();
    };
    publish(0);
    let mut log = store.subscribe().unwrap();
    assert!(!log.arm().unwrap());
    (1..=100).for_each(publish);
    assert!(log.arm().unwrap());
    let mut numbers = Vec::new();
    loop {
        let batch = log.read(7, 1 << 20).unwrap();
        assert_eq!(batch.lost, 0);
        if batch.messages.is_empty() {
            break;
        }
        numbers.extend(
            batch
                .messages
                .iter()
                .map(|(_, message)| u32::from(message[0])),
        );
    }
    assert_eq!(numbers, (1..=100).collect::<Vec<_>>());
    assert!(!log.arm().unwrap());
}

#[test]
fn short_calls_do_not_work_for_long() {
    let folder = Folder::new();
    let store = folder.open(Options::default());
    let large = vec![0; 1 << 20];
    assert!(matches!(
        store.set(Blocking::Short, b"x", &large, Lifetime::Forever),
        Err(Error::Busy)
    ));
    store
        .set(Blocking::Wait, b"x", &large, Lifetime::Forever)
        .unwrap();
    assert!(matches!(
        store.get(Blocking::Short, b"x", <[u8]>::len),
        Err(Error::Busy)
    ));
    assert_eq!(
        store.get(Blocking::Wait, b"x", <[u8]>::len).unwrap(),
        Some(1 << 20)
    );
}

/// Whether a byte arrives in a FIFO.
fn is_woken(log: &LogReader) -> bool {
    let mut entry = libc::pollfd {
        fd: log.fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, 200_000) == 1 }
}

/// Random schedules: `TOWLINE_STRESS_SECONDS` runs seeds for this time.
#[test]
fn no_subscriber_sleeps_while_there_are_messages() {
    let seconds = std::env::var("TOWLINE_STRESS_SECONDS");
    let seconds = seconds.map_or(0, |seconds| seconds.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = u64::from(std::process::id()) << 20;
    let first = seed;
    while seed < first + 5 || Instant::now() < until {
        seed += 1;
        let folder = Folder::new();
        let store = folder.open(Options::default());
        let pause = |number: u64| match seed.wrapping_mul(number | 1) >> 7 & 7 {
            0 => std::thread::sleep(Duration::from_micros(seed * number % 300)),
            1 | 2 => std::thread::yield_now(),
            _ => {}
        };
        std::thread::scope(|scope| {
            for mut log in [(); 2].map(|()| store.subscribe().unwrap()) {
                scope.spawn(move || {
                    let mut read = 0;
                    while read < 100 {
                        pause(read);
                        if !log.arm().unwrap() {
                            assert!(is_woken(&log), "asleep after {read} messages, seed {seed}");
                        }
                        let batch = log.read(10, 1 << 20).unwrap();
                        assert_eq!(batch.lost, 0);
                        read += batch.messages.len() as u64;
                    }
                });
            }
            for _ in 0..2 {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..50_u64 {
                        pause(number * 3 + 1);
                        let post = Post {
                            channel: b"n",
                            message: &number.to_le_bytes(),
                        };
                        store.publish(Blocking::Wait, post).unwrap();
                    }
                });
            }
        });
    }
    println!("{} seeds", seed - first);
}
