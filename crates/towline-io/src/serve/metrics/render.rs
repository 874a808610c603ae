//! The page that Prometheus scrapes, text format 0.0.4.
//!
//! Counts are summed over the workers, so that their number does not multiply the series; only the state
//! of each worker has a `worker` label.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::super::refusals::Reason;
use super::slot::{BOUNDS_US, Histogram, MethodClass, Slot, Slots, StatusClass};

/// Renders the page. `now_ns` is [`super::monotonic_ns`], from which the ages of heartbeats count.
pub fn render(slots: &Slots, now_ns: u64) -> String {
    let mut page = String::with_capacity(8 * 1024);
    requests(&mut page, slots);
    refusals(&mut page, slots);
    sums(&mut page, slots);
    histogram(
        &mut page,
        "towline_request_duration_seconds",
        "From the end of a request's head to the end of its response.",
        slots.iter().map(|slot| &slot.duration),
    );
    histogram(
        &mut page,
        "towline_queue_wait_seconds",
        "How long a request waited for the application to be called.",
        slots.iter().map(|slot| &slot.queue_wait),
    );
    workers(&mut page, slots, now_ns);
    page
}

fn family(page: &mut String, name: &str, kind: &str, help: &str) {
    let _ = write!(page, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn requests(page: &mut String, slots: &Slots) {
    let name = "towline_requests_total";
    family(
        page,
        name,
        "counter",
        "Requests ended, by method and class of status.",
    );
    for method in MethodClass::ALL {
        for status in StatusClass::ALL {
            let count: u64 = slots
                .iter()
                .map(|slot| slot.requests[method as usize][status as usize].load(Relaxed))
                .sum();
            // A combination without requests has no series: most of the 48 never occur.
            if count > 0 {
                let (method, status) = (method.label(), status.label());
                let _ = writeln!(
                    page,
                    "{name}{{method=\"{method}\",status=\"{status}\"}} {count}"
                );
            }
        }
    }
}

fn refusals(page: &mut String, slots: &Slots) {
    let name = "towline_refused_total";
    family(
        page,
        name,
        "counter",
        "Requests and connections that the server refused itself, by reason.",
    );
    for reason in Reason::ALL {
        let counts = slots.iter().map(|slot| &slot.refused[reason as usize]);
        let count: u64 = counts.map(|count| count.load(Relaxed)).sum();
        let _ = writeln!(page, "{name}{{reason=\"{}\"}} {count}", reason.label());
    }
}

type Read = fn(&Slot) -> &AtomicU64;

/// Name, type, help and counter of each metric that is summed over all workers.
const SUMS: [(&str, &str, &str, Read); 8] = [
    (
        "towline_requests_in_flight",
        "gauge",
        "Requests being answered.",
        |slot| &slot.in_flight,
    ),
    (
        "towline_connections_open",
        "gauge",
        "Connections open.",
        |slot| &slot.connections_open,
    ),
    (
        "towline_connections_total",
        "counter",
        "Connections accepted.",
        |slot| &slot.connections,
    ),
    (
        "towline_received_bytes_total",
        "counter",
        "Bytes read from clients.",
        |slot| &slot.bytes_received,
    ),
    (
        "towline_sent_bytes_total",
        "counter",
        "Bytes written to clients.",
        |slot| &slot.bytes_sent,
    ),
    (
        "towline_accept_errors_total",
        "counter",
        "Connections that could not be accepted.",
        |slot| &slot.accept_errors,
    ),
    (
        "towline_dropped_log_lines_total",
        "counter",
        "Access log lines lost to a slow or full log.",
        |slot| &slot.dropped_log_lines,
    ),
    (
        "towline_worker_restarts_total",
        "counter",
        "Workers that replaced another.",
        |slot| &slot.worker_restarts,
    ),
];

fn sums(page: &mut String, slots: &Slots) {
    for (name, kind, help, read) in SUMS {
        family(page, name, kind, help);
        let sum: u64 = slots.iter().map(|slot| read(slot).load(Relaxed)).sum();
        let _ = writeln!(page, "{name} {sum}");
    }
}

fn histogram<'a>(
    page: &mut String,
    name: &str,
    help: &str,
    histograms: impl Iterator<Item = &'a Histogram> + Clone,
) {
    family(page, name, "histogram", help);
    let mut count = 0;
    for bucket in 0..=BOUNDS_US.len() {
        count += histograms
            .clone()
            .map(|one| one.buckets[bucket].load(Relaxed))
            .sum::<u64>();
        let _ = match BOUNDS_US.get(bucket) {
            Some(&bound) => writeln!(page, "{name}_bucket{{le=\"{}\"}} {count}", Micros(bound)),
            None => writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {count}"),
        };
    }
    let sum = histograms
        .map(|one| one.sum_us.load(Relaxed))
        .fold(0_u64, u64::wrapping_add);
    // The count is the sum of the buckets just read, so that the page is consistent.
    let _ = writeln!(page, "{name}_sum {}\n{name}_count {count}", Micros(sum));
}

fn workers(page: &mut String, slots: &Slots, now_ns: u64) {
    let age = |beat: &AtomicU64| now_ns.saturating_sub(beat.load(Relaxed)) / 1000;
    let mut per_worker = |name: &str, help: &str, value: &dyn Fn(&Slot) -> Value| {
        family(page, name, "gauge", help);
        for (worker, slot) in slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.pid.load(Relaxed) != 0)
        {
            let _ = match value(slot) {
                Value::Whole(value) => writeln!(page, "{name}{{worker=\"{worker}\"}} {value}"),
                Value::Micros(us) => writeln!(page, "{name}{{worker=\"{worker}\"}} {}", Micros(us)),
            };
        }
    };
    per_worker("towline_worker_pid", "Process id.", &|slot| {
        Value::Whole(slot.pid.load(Relaxed))
    });
    per_worker(
        "towline_worker_resident_bytes",
        "Resident memory.",
        &|slot| Value::Whole(slot.rss_bytes.load(Relaxed)),
    );
    per_worker(
        "towline_worker_uptime_seconds",
        "Since the worker started.",
        &|slot| Value::Micros(age(&slot.started)),
    );
    per_worker(
        "towline_worker_heartbeat_age_seconds",
        "Since the worker's native thread beat.",
        &|slot| Value::Micros(age(&slot.heartbeat_native)),
    );
    per_worker(
        "towline_worker_turn_age_seconds",
        "Since the worker's loop turned.",
        &|slot| Value::Micros(age(&slot.heartbeat_turn)),
    );
}

enum Value {
    Whole(u64),
    Micros(u64),
}

/// Microseconds displayed as seconds, exactly and without trailing zeros.
struct Micros(u64);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, rest) = (self.0 / 1_000_000, self.0 % 1_000_000);
        if rest == 0 {
            return write!(f, "{seconds}");
        }
        let digits = format!("{rest:06}");
        write!(f, "{seconds}.{}", digits.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn line<'a>(page: &'a str, start: &str) -> &'a str {
        let found = page
            .lines()
            .find_map(|line| line.strip_prefix(start)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("no {start} in\n{page}"))
    }

    fn two_workers() -> Slots {
        let slots = Slots::private(3);
        for (index, requests) in [(0, 2), (1, 3)] {
            let slot = slots.handle(index).unwrap();
            slot.begin(100 + index as u32, 1_000_000_000);
            slot.connection_opened();
            for _ in 0..requests {
                slot.request_started();
                slot.request_ended(
                    MethodClass::Get,
                    StatusClass::Successful,
                    Duration::from_micros(1500),
                );
            }
        }
        slots.handle(0).unwrap().request_started();
        slots
    }

    #[test]
    fn counts_are_summed_over_workers() {
        let page = render(&two_workers(), 3_500_000_000);
        assert_eq!(
            line(
                &page,
                "towline_requests_total{method=\"GET\",status=\"2xx\"}"
            ),
            "5"
        );
        assert_eq!(line(&page, "towline_requests_in_flight"), "1");
        assert_eq!(line(&page, "towline_connections_open"), "2");
        assert_eq!(line(&page, "towline_worker_pid{worker=\"1\"}"), "101");
        assert_eq!(
            line(&page, "towline_worker_uptime_seconds{worker=\"0\"}"),
            "2.5"
        );
        assert!(
            !page.contains("worker=\"2\""),
            "a slot without a worker has no series"
        );
    }

    #[test]
    fn histograms_accumulate() {
        let page = render(&two_workers(), 0);
        let name = "towline_request_duration_seconds";
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"0.001\"}}")), "0");
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"0.0025\"}}")), "5");
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"30\"}}")), "5");
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"+Inf\"}}")), "5");
        assert_eq!(line(&page, &format!("{name}_sum")), "0.0075");
        assert_eq!(line(&page, &format!("{name}_count")), "5");
    }

    /// Grammar of the format: the family of each sample is declared once, before it.
    #[test]
    fn every_sample_has_help_and_type() {
        let page = render(&two_workers(), 0);
        let mut families = Vec::new();
        let mut lines = page.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let name = help.split(' ').next().unwrap();
                let kind = lines
                    .next()
                    .unwrap()
                    .strip_prefix(&format!("# TYPE {name} "))
                    .unwrap();
                assert!(["counter", "gauge", "histogram"].contains(&kind));
                assert!(!families.contains(&name), "{name} twice");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{name}");
                families.push(name);
                continue;
            }
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(
                name.starts_with(families.last().unwrap()),
                "{name} is in the wrong family"
            );
            value.parse::<f64>().unwrap();
        }
        assert!(page.ends_with('\n') && families.len() == 17);
    }
}
