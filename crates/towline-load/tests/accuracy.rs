//! Servers of known behaviour: the generator's figures match the computed ones.

mod scripted;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use scripted::{HELLO, Reply, Server, is_in_stall, load};
use towline_load::{
    Arrivals, Goal, LoopMode, PeakSearch, Rate, Report, Stop, Until, connections_sweep, csv,
    find_peak, hdr_log,
};

/// An error of the generator occurs each time and on every scale, whereas disturbances by a busy machine
/// are small for long times. The claim, all of whose times grow with the scale, must hold on one scale.
fn once_undisturbed(claim: impl Fn(u32)) {
    for scale in [1, 1, 2, 4] {
        if catch_unwind(AssertUnwindSafe(|| claim(scale))).is_ok() {
            return;
        }
    }
    claim(8);
}

fn ms(millis: u64, scale: u32) -> Duration {
    Duration::from_millis(millis) * scale
}

fn open(per_s: f64, arrivals: Arrivals) -> LoopMode {
    LoopMode::Open(Rate {
        per_s,
        arrivals,
        ramp: Duration::ZERO,
    })
}

/// Stalls all connections for 100 ms in each half second.
fn stalling(scale: u32) -> Server {
    let start = Instant::now();
    Server::new(move |_| {
        if let Some(rest) = is_in_stall(start, ms(500, scale), ms(100, scale)) {
            sleep(rest);
        }
        Reply::Send(HELLO)
    })
}

#[test]
fn an_open_loop_counts_a_stall_for_all_requests_due_and_a_closed_loop_does_not() {
    once_undisturbed(|scale| {
        let server = stalling(scale);
        let by_scale = f64::from(scale);
        let mut config = server.config(1);
        config.connections = 4;
        config.timeout = Duration::from_secs(10);
        config.until = Until::Time(ms(3000, scale));
        config.loop_mode = open(400.0 / by_scale, Arrivals::Constant);
        let report = load(&config).report;
        assert_eq!(report.errors.total(), 0);
        // A fifth of the requests fall into a stall and wait up to 100 ms, evenly: p90 50 ms, p99 95 ms.
        let near = |us: f64, truth: f64| (us / by_scale - truth).abs() < 20_000.0;
        assert!(near(report.response.at(90.0), 50_000.0), "{report}");
        assert!(near(report.response.at(99.0), 95_000.0), "{report}");
        // Measured from sending, all but the requests in flight look fast: four of two hundred in each
        // period.
        assert!(report.service.at(95.0) < 20_000.0 * by_scale, "{report}");
        let answered = report.requests_per_s;
        assert!(
            (answered * by_scale / 400.0 - 1.0).abs() < 0.02,
            "{answered}"
        );

        config.loop_mode = LoopMode::Closed;
        let report = load(&config).report;
        assert!(report.response.at(99.0) < 50_000.0 * by_scale, "{report}");
    });
}

#[test]
fn a_stall_across_the_end_counts_for_all_requests_due() {
    once_undisturbed(|scale| {
        let first = OnceLock::new();
        let server = Server::new(move |_| {
            let begun = *first.get_or_init(Instant::now);
            let since = begun.elapsed();
            if since >= ms(700, scale) {
                sleep(ms(1300, scale).saturating_sub(since));
            }
            Reply::Send(HELLO)
        });
        let mut config = server.config(1);
        config.connections = 4;
        config.timeout = Duration::from_secs(10);
        config.until = Until::Time(ms(1000, scale));
        let by_scale = f64::from(scale);
        config.loop_mode = open(200.0 / by_scale, Arrivals::Constant);
        let report = load(&config).report;
        let open = report.open_loop.as_ref().unwrap();
        assert_eq!((report.answered, open.unsent), (200, 0), "{report}");
        // The last 60 waited between 300 and 600 ms; four of them were in flight, the others had no
        // connection.
        let near = |us: f64, truth: f64| (us / by_scale - truth).abs() < 50_000.0;
        assert!(near(report.response.at(90.0), 500_000.0), "{report}");
        assert!(near(report.response.at(99.0), 590_000.0), "{report}");
        assert!((50..=60).contains(&open.late), "{report}");
        assert!((0.69..0.77).contains(&open.achieved_share), "{report}");
    });
}

#[test]
fn a_fixed_delay_is_measured_and_the_schedule_kept() {
    once_undisturbed(|scale| {
        let server = Server::new(move |_| {
            sleep(ms(20, scale));
            Reply::Send(HELLO)
        });
        let mut config = server.config(1);
        config.connections = 50;
        config.timeout = Duration::from_secs(10);
        config.until = Until::Time(ms(2000, scale));
        let by_scale = f64::from(scale);
        config.loop_mode = open(500.0 / by_scale, Arrivals::Poisson);
        let report = load(&config).report;
        assert!(
            (20_000.0..30_000.0).contains(&(report.response.at(50.0) / by_scale)),
            "{report}"
        );
        let open = report.open_loop.as_ref().unwrap();
        // Half a millisecond on shared cores; docs/statistics.md has the figure of an idle machine.
        assert!(open.lag.at(50.0) < 500.0 * by_scale, "{report}");
        assert!((open.achieved_share - 1.0).abs() < 1e-9, "{report}");
        // A Poisson process of 1000 events: four standard deviations.
        assert!(report.answered.abs_diff(1000) < 130, "{report}");
    });
}

#[test]
fn requests_unsent_for_lack_of_connections_are_reported() {
    once_undisturbed(|scale| {
        let server = Server::new(move |_| {
            sleep(ms(20, scale));
            Reply::Send(HELLO)
        });
        let mut config = server.config(1);
        config.connections = 2;
        config.timeout = Duration::from_secs(10);
        config.until = Until::Time(ms(1000, scale));
        // Two connections carry at most 100 requests a second.
        config.loop_mode = open(200.0 / f64::from(scale), Arrivals::Constant);
        let report = load(&config).report;
        let open = report.open_loop.as_ref().unwrap();
        // Ten are still sent in the grace time, a tenth of the measured time; a server that oversleeps
        // leaves more.
        assert!((70..180).contains(&open.unsent), "{report}");
        assert_eq!(
            server.request_count.load(Ordering::Relaxed) + open.unsent,
            200
        );
        assert!(open.achieved_share < 0.6, "{report}");
        assert_eq!(report.answered + open.unsent, 200, "{report}");
        assert!(open.connection_wait.max_us > 300_000.0, "{report}");
        assert!(
            report
                .warnings
                .iter()
                .any(|warning| warning.contains("were due"))
        );
    });
}

#[test]
fn outputs_parse() {
    let server = Server::hello();
    let mut config = server.config(1);
    config.connections = 4;
    config.threads = 2;
    config.warm_up = Duration::from_millis(100);
    config.until = Until::Time(Duration::from_millis(2200));
    let outcome = load(&config);
    let report = &outcome.report;
    let text = serde_json::to_string(report).unwrap();
    assert_eq!(&serde_json::from_str::<Report>(&text).unwrap(), report);
    assert_eq!(report.series.len(), 2);
    let by_second: u64 = report.series.iter().map(|second| second.answered).sum();
    assert_eq!(by_second, report.answered);
    assert_eq!(csv(report).lines().count(), 3);
    assert_eq!(
        (
            report.live_connections.fewest,
            report.live_connections.at_end
        ),
        (4, 4)
    );
    // HELLO is 43 bytes.
    assert!(
        report.received_bytes.abs_diff(report.answered * 43) < 43 * 8,
        "{report}"
    );

    let log = hdr_log(&outcome);
    let mut counted = 0;
    for entry in IntervalLogIterator::new(log.as_bytes()) {
        let LogEntry::Interval(interval) = entry.unwrap() else {
            continue;
        };
        let bytes = base64(interval.encoded_histogram());
        let mut deserializer = hdrhistogram::serialization::Deserializer::new();
        let times: Histogram<u64> = deserializer.deserialize(&mut &bytes[..]).unwrap();
        counted += times.len();
    }
    assert_eq!(counted, report.answered);
}

fn base64(text: &str) -> Vec<u8> {
    let digit = |byte| {
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        alphabet.iter().position(|known| *known == byte).unwrap() as u32
    };
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let word =
            four.iter().fold(0, |word, byte| word << 6 | digit(*byte)) << (6 * (4 - four.len()));
        bytes.extend(&word.to_be_bytes()[1..four.len()]);
    }
    bytes
}

#[test]
fn the_peak_search_finds_a_known_peak() {
    once_undisturbed(|scale| {
        // One connection, 4 ms each: 250 a second, less on a busy machine, where the server oversleeps.
        let server = Server::new(move |_| {
            sleep(ms(4, scale));
            Reply::Send(HELLO)
        });
        let mut config = server.config(1);
        config.timeout = Duration::from_secs(10);
        config.until = Until::Time(ms(400, scale));
        let by_scale = f64::from(scale);
        let goal = Goal {
            max_us: 40_000.0 * by_scale,
            ..Goal::default()
        };
        let search = PeakSearch::new(50.0 / by_scale, 10_000.0 / by_scale);
        let peak = find_peak(&config, &goal, search, &Stop::default(), |_, _| {}).unwrap();
        let rate = peak.rate_per_s.unwrap();
        assert!((60.0..300.0).contains(&(rate * by_scale)), "{rate}");
    });
}

#[test]
fn a_sweep_shows_littles_law() {
    once_undisturbed(|scale| {
        let server = Server::new(move |_| {
            sleep(ms(10, scale));
            Reply::Send(HELLO)
        });
        let mut config = server.config(1);
        config.until = Until::Time(ms(500, scale));
        let outcomes = connections_sweep(&config, &[1, 4, 16], &Stop::default(), |_| {}).unwrap();
        for (outcome, connections) in outcomes.iter().zip([1.0, 4.0, 16.0]) {
            let report = &outcome.report;
            let in_flight = report.requests_per_s * report.response.mean_us / 1e6;
            assert!(
                (in_flight / connections - 1.0).abs() < 0.15,
                "{in_flight} of {connections}"
            );
        }
    });
}
