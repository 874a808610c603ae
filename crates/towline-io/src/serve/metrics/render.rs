//! The page that Prometheus scrapes: the text format 0.0.4, or `OpenMetrics` 1.0 for a scraper that prefers it.
//!
//! Counts are summed over the workers, so that their number does not multiply the series; only the state
//! of each worker has a `worker` label.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;

use super::super::refusals::Reason;
use super::labels::{MethodClass, STATUSES, VERSIONS, status_label};
use super::slot::{BOUNDS_US, Histogram, Kind, NUMBERS, Read, Slots};

/// The format of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    /// Prometheus text format 0.0.4.
    Text,
    /// `OpenMetrics` 1.0.
    OpenMetrics,
}

impl PageFormat {
    /// The format that a scraper prefers (RFC 9110 12.5.1). Without a preference: the older one.
    pub fn negotiate(accept: Option<&[u8]>) -> Self {
        let Some(accept) = accept.and_then(|accept| std::str::from_utf8(accept).ok()) else {
            return Self::Text;
        };
        let (mut text, mut open_metrics) = (0.0, 0.0);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
            let value = |name: &str| {
                let found = parameters
                    .iter()
                    .find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| *value)
            };
            let quality = value("q").map_or(1.0, |q| q.parse::<f32>().unwrap_or(0.0));
            let version = value("version");
            if name.eq_ignore_ascii_case("application/openmetrics-text") {
                if version.is_none_or(|version| version == "1.0.0") {
                    open_metrics = quality.max(open_metrics);
                }
            } else if ["text/plain", "text/*", "*/*"].contains(&name) {
                text = quality.max(text);
            }
        }
        if open_metrics > 0.0 && open_metrics >= text {
            Self::OpenMetrics
        } else {
            Self::Text
        }
    }

    /// The media type of the page.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Renders the page. `now_ns` is [`super::monotonic_ns`], from which the ages of heartbeats count; `build`: the
/// labels of the build.
pub fn render(
    slots: &Slots,
    build: &[(&'static str, String)],
    format: PageFormat,
    now_ns: u64,
) -> String {
    let mut page = Page {
        text: String::with_capacity(16 * 1024),
        format,
    };
    build_info(&mut page, build);
    requests(&mut page, slots);
    refusals(&mut page, slots);
    sums(&mut page, slots);
    histogram(
        &mut page,
        "towline_request_duration_seconds",
        "From the end of a request's head to the end of its response.",
        slots.in_use().map(|slot| &slot.duration),
    );
    histogram(
        &mut page,
        "towline_queue_wait_seconds",
        "How long a request waited for the application to be called.",
        slots.in_use().map(|slot| &slot.queue_wait),
    );
    histogram(
        &mut page,
        "towline_loop_lag_seconds",
        "Delay of a timer of the event loop, measured twice a second (ASGI).",
        slots.in_use().map(|slot| &slot.loop_lag),
    );
    histogram(
        &mut page,
        "towline_proxy_queue_seconds",
        "From X-Request-Start of a trusted proxy to the arrival of the request (--queue-time).",
        slots.in_use().map(|slot| &slot.proxy_queue),
    );
    workers(&mut page, slots, now_ns);
    if format == PageFormat::OpenMetrics {
        page.text.push_str("# EOF\n");
    }
    page.text
}

struct Page {
    text: String,
    format: PageFormat,
}

impl Page {
    /// Declares a family. In `OpenMetrics` the name of a counter's family has no `_total`.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let name = match self.format {
            PageFormat::OpenMetrics => name.strip_suffix("_total").unwrap_or(name),
            PageFormat::Text => name,
        };
        // Writing to a String cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = if labels.is_empty() {
            writeln!(self.text, "{name} {value}")
        } else {
            writeln!(self.text, "{name}{{{labels}}} {value}")
        };
    }
}

fn build_info(page: &mut Page, build: &[(&'static str, String)]) {
    page.family("towline_build_info", "gauge", "Versions; the value is 1.");
    let labels: Vec<String> = build
        .iter()
        .map(|(name, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            format!("{name}=\"{}\"", value.replace('\n', " "))
        })
        .collect();
    page.sample("towline_build_info", &labels.join(","), 1);
}

fn requests(page: &mut Page, slots: &Slots) {
    let name = "towline_requests_total";
    page.family(
        name,
        "counter",
        "Requests ended, by method, version of HTTP and status.",
    );
    for (method_index, method) in MethodClass::ALL.into_iter().enumerate() {
        for (version_index, (_, version)) in VERSIONS.into_iter().enumerate() {
            for status in 0..STATUSES.len() {
                let counts = slots
                    .in_use()
                    .map(|slot| &slot.requests[method_index][version_index][status]);
                let count: u64 = counts.map(|count| count.load(Relaxed)).sum();
                // A combination without requests has no series: nearly all of them never occur.
                if count > 0 {
                    let (method, status) = (method.label(), status_label(status));
                    let labels =
                        format!("method=\"{method}\",version=\"{version}\",status=\"{status}\"");
                    page.sample(name, &labels, count);
                }
            }
        }
    }
}

fn refusals(page: &mut Page, slots: &Slots) {
    let name = "towline_refused_total";
    page.family(
        name,
        "counter",
        "Requests and connections that the server refused itself, by reason.",
    );
    for reason in Reason::ALL {
        let counts = slots.in_use().map(|slot| &slot.refused[reason as usize]);
        let count: u64 = counts.map(|count| count.load(Relaxed)).sum();
        page.sample(name, &format!("reason=\"{}\"", reason.label()), count);
    }
}

fn sums(page: &mut Page, slots: &Slots) {
    for number in NUMBERS {
        let Some((name, help)) = number.metric else {
            continue;
        };
        page.family(
            name,
            if number.kind == Kind::Counter {
                "counter"
            } else {
                "gauge"
            },
            help,
        );
        let values = slots.in_use().map(|slot| (number.read)(slot).load(Relaxed));
        page.sample(name, "", values.sum::<u64>());
    }
}

fn histogram<'a>(
    page: &mut Page,
    name: &str,
    help: &str,
    histograms: impl Iterator<Item = &'a Histogram>,
) {
    let histograms: Vec<_> = histograms.collect();
    page.family(name, "histogram", help);
    let mut count = 0;
    let bucket_name = format!("{name}_bucket");
    for bucket in 0..=BOUNDS_US.len() {
        let counts = histograms.iter().map(|one| &one.buckets[bucket]);
        count += counts.map(|one| one.load(Relaxed)).sum::<u64>();
        let bound = match BOUNDS_US.get(bucket) {
            Some(&bound) => format!("le=\"{}\"", Seconds::decimal(bound)),
            None => "le=\"+Inf\"".to_owned(),
        };
        page.sample(&bucket_name, &bound, count);
    }
    let sums = histograms.iter().map(|one| one.sum_us.load(Relaxed));
    let sum = sums.fold(0_u64, u64::wrapping_add);
    page.sample(&format!("{name}_sum"), "", Seconds::whole(sum));
    // The count is the sum of the buckets just read, so that the page is consistent.
    page.sample(&format!("{name}_count"), "", count);
}

/// Unit of the number of a worker's metric.
#[derive(Clone, Copy)]
enum Unit {
    Whole,
    Microseconds,
    /// Number of a process, which only the slot of its first loop has.
    OfProcess,
    /// Microseconds that a process has used, in the same slot.
    CpuTime,
    /// Monotonic nanoseconds of an event, shown as its age.
    Since,
    /// Seconds since 1970; 0 has no series.
    Timestamp,
}

type WorkerMetric = (&'static str, &'static str, &'static str, Unit, Read);

/// Declares metrics of one worker: name, type, unit and field, then the help.
macro_rules! worker_metrics {
    ($($name:literal $kind:literal $unit:ident $field:ident, $help:literal;)*) => {
        [$(($name, $kind, $help, Unit::$unit, |slot| &slot.$field)),*]
    };
}

const WORKER: [WorkerMetric; 10] = worker_metrics! {
    "towline_worker_pid" "gauge" Whole pid, "Process id.";
    "towline_worker_resident_bytes" "gauge" OfProcess rss_bytes, "Resident memory.";
    "towline_worker_open_fds" "gauge" OfProcess open_fds, "Open file descriptors.";
    "towline_worker_cpu_seconds_total" "counter" CpuTime cpu_us, "CPU time of the process.";
    "towline_worker_connections" "gauge" Whole connections_open, "Connections open.";
    "towline_worker_uptime_seconds" "gauge" Since started, "Since the worker started.";
    "towline_worker_heartbeat_age_seconds" "gauge" Since heartbeat_native,
        "Since the worker's native thread beat.";
    "towline_worker_turn_age_seconds" "gauge" Since heartbeat_turn,
        "Since the worker's loop turned.";
    "towline_worker_loop_lag_seconds" "gauge" Microseconds loop_lag_us,
        "Last measured delay of a timer of the worker's event loop.";
    "towline_tls_certificate_expiry_timestamp_seconds" "gauge" Timestamp certificate_expiry,
        "End of the validity of the certificate that the worker has loaded.";
};

fn workers(page: &mut Page, slots: &Slots, now_ns: u64) {
    let alive = || {
        slots
            .in_use()
            .enumerate()
            .filter(|(_, slot)| slot.pid.load(Relaxed) != 0)
    };
    let name = "towline_workers_alive";
    page.family(
        name,
        "gauge",
        "Workers that run: processes, or with --worker-mode threads their loops.",
    );
    page.sample(name, "", alive().count());
    for (name, kind, help, unit, read) in WORKER {
        page.family(name, kind, help);
        for (worker, slot) in alive() {
            let labels = format!("worker=\"{worker}\"");
            let number = read(slot).load(Relaxed);
            match unit {
                Unit::Timestamp | Unit::OfProcess | Unit::CpuTime if number == 0 => {}
                Unit::Whole | Unit::Timestamp | Unit::OfProcess => {
                    page.sample(name, &labels, number);
                }
                Unit::Microseconds | Unit::CpuTime => {
                    page.sample(name, &labels, Seconds::whole(number));
                }
                Unit::Since => {
                    let age_us = now_ns.saturating_sub(number) / 1000;
                    page.sample(name, &labels, Seconds::whole(age_us));
                }
            }
        }
    }
}

/// Microseconds displayed as seconds, exactly and without trailing zeros.
struct Seconds {
    us: u64,
    /// With at least one decimal, as `OpenMetrics` wants the bounds of buckets.
    has_decimal: bool,
}

impl Seconds {
    fn whole(us: u64) -> Self {
        Self {
            us,
            has_decimal: false,
        }
    }

    fn decimal(us: u64) -> Self {
        Self {
            us,
            has_decimal: true,
        }
    }
}

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, rest) = (self.us / 1_000_000, self.us % 1_000_000);
        match rest {
            0 if self.has_decimal => write!(f, "{seconds}.0"),
            0 => write!(f, "{seconds}"),
            _ => {
                let digits = format!("{rest:06}");
                write!(f, "{seconds}.{}", digits.trim_end_matches('0'))
            }
        }
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
                    towline_proto::Version::Http11,
                    200,
                    Duration::from_micros(1500),
                );
            }
        }
        slots.handle(0).unwrap().request_started();
        slots
    }

    fn page(format: PageFormat, now_ns: u64) -> String {
        let build = [("version", "1.0".to_owned()), ("python", "a\"b".to_owned())];
        render(&two_workers(), &build, format, now_ns)
    }

    #[test]
    fn a_scraper_chooses_its_format() {
        let chosen = |accept: &str| PageFormat::negotiate(Some(accept.as_bytes()));
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                          application/openmetrics-text;version=0.0.1;q=0.4,\
                          text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(chosen(prometheus), PageFormat::OpenMetrics);
        assert_eq!(
            chosen("application/openmetrics-text"),
            PageFormat::OpenMetrics
        );
        let other = "application/openmetrics-text; version=2.0.0, */*;q=0.1";
        assert_eq!(chosen(other), PageFormat::Text);
        let less = "application/openmetrics-text;q=0.2, text/plain";
        assert_eq!(chosen(less), PageFormat::Text);
        assert_eq!(chosen("application/openmetrics-text;q=0"), PageFormat::Text);
        for any in ["", "*/*", "text/html", ";;,q="] {
            assert_eq!(chosen(any), PageFormat::Text, "{any}");
        }
        assert_eq!(PageFormat::negotiate(None), PageFormat::Text);
    }

    #[test]
    fn openmetrics_ends_and_names_counters_without_total() {
        let page = page(PageFormat::OpenMetrics, 0);
        assert!(page.ends_with("\n# EOF\n"));
        assert!(page.contains("# TYPE towline_requests counter\ntowline_requests_total{"));
        assert!(page.contains(r#"towline_build_info{version="1.0",python="a\"b"} 1"#));
    }

    #[test]
    fn counts_are_summed_over_workers() {
        let page = page(PageFormat::Text, 3_500_000_000);
        assert_eq!(
            line(
                &page,
                "towline_requests_total{method=\"GET\",version=\"1.1\",status=\"200\"}"
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
        let page = page(PageFormat::Text, 0);
        let name = "towline_request_duration_seconds";
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"0.001\"}}")), "0");
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"0.0025\"}}")), "5");
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"30.0\"}}")), "5");
        assert_eq!(line(&page, &format!("{name}_bucket{{le=\"+Inf\"}}")), "5");
        assert_eq!(line(&page, &format!("{name}_sum")), "0.0075");
        assert_eq!(line(&page, &format!("{name}_count")), "5");
    }

    /// Grammar of the format: the family of each sample is declared once, before it.
    #[test]
    fn every_sample_has_help_and_type() {
        let page = page(PageFormat::Text, 0);
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
        assert!(page.ends_with('\n'));
        assert_eq!(families.len(), 48);
    }
}
