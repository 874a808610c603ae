//! Lifetimes, failures and bounds of the cache; a model with the same answers.

use proptest::prelude::*;

use super::*;

const ORIGIN: (&str, u16) = ("example.com", 443);

fn authority(host: &str, port: u16) -> Authority {
    Authority {
        host: host.into(),
        port,
    }
}

fn after(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

fn observe(cache: &mut Cache, value: &str, now: Instant) {
    assert!(cache.observe(ORIGIN, value.as_bytes(), Duration::ZERO, now));
}

#[test]
fn an_alternative_lives_as_long_as_advertised() {
    let start = Instant::now();
    let mut cache = Cache::default();
    observe(
        &mut cache,
        r#"h3=":443"; ma=100, h3="b:444"; ma=200"#,
        start,
    );
    let find = |cache: &Cache, seconds| {
        let found = cache.find(ORIGIN.0, ORIGIN.1, after(start, seconds));
        found.map(|found| format!("{}:{}", found.host, found.port))
    };
    assert_eq!(find(&cache, 99).as_deref(), Some("example.com:443"));
    assert_eq!(find(&cache, 100).as_deref(), Some("b:444"));
    assert_eq!(find(&cache, 200), None);
    assert!(cache.find("example.com", 8443, start).is_none());
    // A later value replaces all.
    observe(&mut cache, r#"h3="c:1""#, start);
    assert_eq!(find(&cache, 1).as_deref(), Some("c:1"));
    observe(&mut cache, r#"h2=":443""#, start);
    assert_eq!(find(&cache, 1), None);
    assert_eq!(cache.origins, 0);
    observe(&mut cache, r#"h3="c:1""#, start);
    observe(&mut cache, "clear", start);
    assert_eq!(find(&cache, 1), None);
    assert!(!cache.observe(ORIGIN, b"h3", Duration::ZERO, start));
}

#[test]
fn the_age_of_a_response_is_subtracted() {
    let start = Instant::now();
    let mut cache = Cache::default();
    let age = Duration::from_secs(40);
    assert!(cache.observe(ORIGIN, br#"h3=":443"; ma=100"#, age, start));
    assert!(cache.find(ORIGIN.0, ORIGIN.1, after(start, 59)).is_some());
    assert!(cache.find(ORIGIN.0, ORIGIN.1, after(start, 60)).is_none());
    assert!(cache.observe(ORIGIN, br#"h3=":443"; ma=40"#, age, start));
    assert!(cache.find(ORIGIN.0, ORIGIN.1, start).is_none());
}

#[test]
fn a_failed_alternative_rests_longer_each_time() {
    let start = Instant::now();
    let mut cache = Cache::default();
    let (first, second) = (authority(ORIGIN.0, 443), authority("b", 444));
    observe(&mut cache, r#"h3=":443", h3="b:444""#, start);
    cache.failed(ORIGIN, &first, start);
    assert!(cache.is_broken(ORIGIN, &first, start));
    assert_eq!(cache.find(ORIGIN.0, ORIGIN.1, start), Some(&second));
    cache.failed(ORIGIN, &second, start);
    // Both rest.
    assert_eq!(
        cache.find(ORIGIN.0, ORIGIN.1, after(start, 59)),
        Some(&first)
    );
    assert!(cache.is_broken(ORIGIN, &first, after(start, 59)));
    assert_eq!(cache.generation(ORIGIN, &first, after(start, 59)), 0);
    assert!(!cache.is_broken(ORIGIN, &first, after(start, 60)));
    assert_eq!(cache.generation(ORIGIN, &first, after(start, 60)), 1);
    // A new advertisement does not repair it.
    observe(&mut cache, r#"h3=":443""#, start);
    assert!(cache.is_broken(ORIGIN, &first, after(start, 59)));
    let mut at = after(start, 60);
    for expected in [120, 240, 480, 960, 1920, 3600, 3600] {
        cache.failed(ORIGIN, &first, at);
        assert!(cache.is_broken(ORIGIN, &first, after(at, expected - 1)));
        at = after(at, expected);
        assert!(!cache.is_broken(ORIGIN, &first, at));
    }
    assert_eq!(cache.generation(ORIGIN, &first, at), 8);
    cache.succeeded(ORIGIN.0, ORIGIN.1, &first);
    assert_eq!(cache.generation(ORIGIN, &first, at), 8);
    cache.failed(ORIGIN, &first, at);
    assert!(!cache.is_broken(ORIGIN, &first, after(at, 60)));
    assert_eq!(cache.generation(ORIGIN, &first, after(at, 60)), 9);
}

#[test]
fn an_alternative_that_was_never_advertised_has_failures_only() {
    let start = Instant::now();
    let mut cache = Cache::default();
    let own = authority(ORIGIN.0, ORIGIN.1);
    cache.failed(ORIGIN, &own, start);
    assert!(cache.is_broken(ORIGIN, &own, after(start, 59)));
    assert!(cache.find(ORIGIN.0, ORIGIN.1, after(start, 61)).is_none());
    assert!(cache.records(start).is_empty() && !cache.take_changed());
    cache.forget(ORIGIN.0, ORIGIN.1);
    assert!(cache.is_broken(ORIGIN, &own, after(start, 59)));
}

#[test]
fn a_full_cache_forgets_the_origin_that_expires_first() {
    let start = Instant::now();
    let mut cache = Cache::default();
    for index in 0..MAX_ORIGINS as u64 {
        let value = format!(r#"h3=":443"; ma={}"#, 1000 + index);
        let host = format!("host-{index}");
        cache.observe((&host, 443), value.as_bytes(), Duration::ZERO, start);
    }
    cache.observe(("more", 443), br#"h3=":443""#, Duration::ZERO, start);
    assert_eq!(cache.origins, MAX_ORIGINS);
    assert!(cache.find("host-0", 443, start).is_none());
    assert!(cache.find("host-1", 443, start).is_some());
    // Then all that have expired.
    cache.observe(
        ("other", 443),
        br#"h3=":443""#,
        Duration::ZERO,
        after(start, 1500),
    );
    assert_eq!(cache.origins, MAX_ORIGINS - 500 + 1);
}

#[test]
fn only_notable_changes_need_a_new_file() {
    let start = Instant::now();
    let mut cache = Cache::default();
    observe(&mut cache, r#"h3=":443""#, start);
    assert!(cache.take_changed() && !cache.take_changed());
    observe(&mut cache, r#"h3=":443""#, after(start, 3600));
    assert!(!cache.take_changed());
    observe(&mut cache, r#"h3=":443""#, after(start, 7201));
    assert!(cache.take_changed());
    observe(&mut cache, r#"h3=":443"; persist=1"#, after(start, 7201));
    assert!(cache.take_changed());
    observe(
        &mut cache,
        r#"h3=":443", h3="b:1"; persist=1"#,
        after(start, 7201),
    );
    assert!(cache.take_changed());
    observe(&mut cache, "clear", after(start, 7201));
    assert!(cache.take_changed());
}

#[derive(Clone, Debug)]
enum Operation {
    Observe {
        origin: u8,
        alternatives: Vec<(u8, u16)>,
    },
    Clear(u8),
    Failed(u8, u8),
    Succeeded(u8, u8),
    Sleep(u16),
}

fn operation() -> impl Strategy<Value = Operation> {
    let alternatives = proptest::collection::vec((0..3_u8, 1..5000_u16), 1..4);
    prop_oneof![
        (0..3_u8, alternatives).prop_map(|(origin, alternatives)| Operation::Observe {
            origin,
            alternatives
        }),
        (0..3_u8).prop_map(Operation::Clear),
        (0..3_u8, 0..3_u8).prop_map(|(origin, which)| Operation::Failed(origin, which)),
        (0..3_u8, 0..3_u8).prop_map(|(origin, which)| Operation::Succeeded(origin, which)),
        (0..2000_u16).prop_map(Operation::Sleep),
    ]
}

/// One alternative in the model: number, expiry.
type Expiring = (u8, u64);

proptest! {
    /// A model with one list per origin and one table of failures gives the same answers.
    #[test]
    fn the_cache_agrees_with_a_model(operations in proptest::collection::vec(operation(), 0..60)) {
        let start = Instant::now();
        let mut now = 0_u64;
        let mut cache = Cache::default();
        let mut known: HashMap<u8, Vec<Expiring>> = HashMap::new();
        let mut failures: HashMap<(u8, u8), (u64, u32)> = HashMap::new();
        let host = |number: u8| format!("origin-{number}");
        let named = |number: u8| authority(&format!("alt-{number}"), 443);
        for operation in operations {
            let at = after(start, now);
            match operation {
                Operation::Observe { origin, alternatives } => {
                    let mut seen = Vec::new();
                    let distinct: Vec<_> = alternatives
                        .into_iter()
                        .filter(|(which, _)| !seen.contains(which) && { seen.push(*which); true })
                        .collect();
                    let value: Vec<_> = distinct
                        .iter()
                        .map(|(which, ma)| format!(r#"h3="alt-{which}:443"; ma={ma}"#))
                        .collect();
                    let value = value.join(", ");
                    let key = host(origin);
                    prop_assert!(cache.observe((&key, 443), value.as_bytes(), Duration::ZERO, at));
                    failures.retain(|(of, which), _| {
                        *of != origin || seen.contains(which)
                    });
                    let list = distinct.iter().map(|(which, ma)| (*which, now + u64::from(*ma)));
                    known.insert(origin, list.collect());
                }
                Operation::Clear(origin) => {
                    cache.forget(&host(origin), 443);
                    known.remove(&origin);
                }
                Operation::Failed(origin, which) => {
                    cache.failed((&host(origin), 443), &named(which), at);
                    let (_, count) = failures.get(&(origin, which)).copied().unwrap_or_default();
                    let rest = broken_time(count).as_secs();
                    failures.insert((origin, which), (now + rest, count + 1));
                }
                Operation::Succeeded(origin, which) => {
                    cache.succeeded(&host(origin), 443, &named(which));
                    failures.remove(&(origin, which));
                }
                Operation::Sleep(seconds) => now += u64::from(seconds),
            }
            let at = after(start, now);
            for origin in 0..3 {
                let rests = |which: u8| {
                    failures.get(&(origin, which)).is_some_and(|(until, _)| now < *until)
                };
                let list = known.get(&origin).cloned().unwrap_or_default();
                let mut valid = list.iter().filter(|(_, until)| now < *until);
                let usable = valid.clone().find(|(which, _)| !rests(*which));
                let expected = usable.or_else(|| valid.next()).map(|(which, _)| named(*which));
                prop_assert_eq!(cache.find(&host(origin), 443, at), expected.as_ref());
                for which in 0..3 {
                    let key = host(origin);
                    prop_assert_eq!(cache.is_broken((&key, 443), &named(which), at), rests(which));
                }
            }
        }
    }
}
