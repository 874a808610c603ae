//! Refusals by the server itself: counted by reason, in the access log, and in the server log at a bounded rate.
//!
//! ```text
//! protocol core ── Refusal ──► Refusals::on_protocol ─┬─ counter of the reason
//! features ── BuiltinResponse ► Refusals::on_builtin ─┼─ line of the server log ─► take_lines (front end)
//!                                                     └─ access log (requests that no front end has seen)
//! ```

use std::collections::VecDeque;
use std::fmt::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use towline_proto::{Protocol, Refusal};

use super::access_log::{Entry, Format, Log, Outcome, Writer};
use super::metrics::{MethodClass, SlotHandle};
pub use super::refusal::{Reason, RefusedFor, Undecodable};
use super::request_line::{RequestLine, version_name};

/// Lines of one reason in one period; a scanner or a broken client makes thousands.
pub const LINES_PER_PERIOD: u32 = 10;
/// The period, after which the number of suppressed lines is logged.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Bytes of a target in a line of the server log.
const MAX_TARGET_BYTES: usize = 200;

/// Counters and lines of refusals; shared by the connections and the threads of a worker.
pub struct Refusals {
    slot: Option<SlotHandle>,
    log: Option<Mutex<(Log, Entry)>>,
    lines: Mutex<Lines>,
    /// `lines` is not empty.
    has_lines: AtomicBool,
    pid: u32,
}

impl Refusals {
    /// Creates it in the worker, after the fork.
    pub fn new(slot: Option<SlotHandle>, access_log: Option<(Arc<Format>, Writer)>) -> Self {
        let log = access_log.map(|(format, writer)| {
            let log = Log::new(format, writer);
            Mutex::new((log, Entry::default()))
        });
        Self {
            slot,
            log,
            lines: Mutex::new(Lines::default()),
            has_lines: AtomicBool::new(false),
            pid: std::process::id(),
        }
    }

    /// Handles a refusal of the protocol core. The access log has the line of an exchange that a front end serves
    /// from that exchange.
    pub fn on_protocol(&self, refusal: &Refusal, client: Option<IpAddr>, now: Instant) {
        let reason = Reason::of(refusal.status, refusal.reason, refusal.protocol);
        let line = RequestLine {
            method: &refusal.line.method,
            target: &refusal.line.target,
            version: refusal.line.version.unwrap_or(match refusal.protocol {
                Protocol::Http1 => towline_proto::Version::Http11,
                Protocol::Http2 => towline_proto::Version::Http2,
                Protocol::Http3 => towline_proto::Version::Http3,
            }),
        };
        let refused = RefusedFor {
            reason,
            rule: refusal.rule,
        };
        self.count(reason);
        if refusal.stream.is_none() {
            let version = refusal.line.version.map_or("", version_name);
            self.log_access((refusal.status, refused), (&line, version), [], client);
        }
        self.log(reason, now, || {
            server_line(refused, refusal.status, &line, client)
        });
    }

    /// Handles a connection that ends before its first request. `what`: the sentence for the server log.
    pub fn on_connection(&self, reason: Reason, what: &str, client: Option<IpAddr>, now: Instant) {
        self.count(reason);
        self.log(reason, now, || {
            let mut text = format!("refused: {what} ({})", reason.label());
            write_client(&mut text, client);
            text
        });
    }

    /// Writes the access line of a request that a front end has received and not yet served. Its reason is counted
    /// by [`on_protocol`](Self::on_protocol).
    #[cold]
    pub fn on_unserved<'a>(
        &self,
        (status, refused): (u16, RefusedFor),
        line: &RequestLine<'_>,
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        client: Option<IpAddr>,
    ) {
        let version = version_name(line.version);
        self.log_access((status, refused), (line, version), fields, client);
    }

    /// Handles a refusal with a response that a front end sends.
    pub fn on_builtin(
        &self,
        refused: RefusedFor,
        status: u16,
        line: &RequestLine<'_>,
        client: Option<IpAddr>,
    ) {
        self.count(refused.reason);
        self.log(refused.reason, Instant::now(), || {
            server_line(refused, status, line, client)
        });
    }

    fn count(&self, reason: Reason) {
        if let Some(slot) = &self.slot {
            slot.refused(reason as usize);
        }
    }

    fn log_access<'a>(
        &self,
        (status, refused): (u16, RefusedFor),
        (line, version): (&RequestLine<'_>, &'static str),
        fields: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
        client: Option<IpAddr>,
    ) {
        if let (Some(slot), true) = (&self.slot, status != 0) {
            slot.request_refused(MethodClass::of(line.method), line.version, status);
        }
        let Some(log) = &self.log else { return };
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        let (log, entry) = &mut *log;
        let first = (line.method, line.target, version);
        log.format().begin(entry, first, fields);
        log.format().on_response(entry, status, []);
        let address = client.map(|ip| ip.to_string()).unwrap_or_default();
        let outcome = Outcome {
            client: &address,
            pid: self.pid,
            ended: SystemTime::now(),
            duration: Duration::ZERO,
            body_bytes: 0,
            reason: towline_proto::standard_reason(status),
            refused: Some(refused),
            scheme: "",
        };
        log.write(entry, &outcome);
    }

    fn log(&self, reason: Reason, now: Instant, text: impl FnOnce() -> String) {
        if !reason.is_logged() {
            return;
        }
        let mut lines = self.lines();
        if lines.admit(reason, now) {
            lines.ready.push_back(text());
        }
        self.has_lines.store(true, Relaxed);
    }

    /// Whether [`take_lines`](Self::take_lines) may have something: a load, for every turn.
    #[inline]
    pub fn has_lines(&self) -> bool {
        self.has_lines.load(Relaxed)
    }

    /// Lines for the server log, and the time after which the number of suppressed ones is due.
    pub fn take_lines(&self, now: Instant) -> (Vec<String>, Option<Duration>) {
        let mut lines = self.lines();
        lines.summarise(now);
        let due = lines.next_summary(now);
        self.has_lines.store(due.is_some(), Relaxed);
        (lines.ready.drain(..).collect(), due)
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lines for the server log, with the rate limit of each reason.
#[derive(Default)]
struct Lines {
    /// At most [`LINES_PER_PERIOD`] and a summary for each reason, if they are taken once a period.
    ready: VecDeque<String>,
    windows: [Window; Reason::ALL.len()],
}

#[derive(Default, Clone, Copy)]
struct Window {
    since: Option<Instant>,
    lines: u32,
    suppressed: u64,
}

impl Lines {
    /// Whether a line of this reason may be logged now; otherwise it is counted.
    fn admit(&mut self, reason: Reason, now: Instant) -> bool {
        let is_over = |since| now >= since + PERIOD;
        if self.windows[reason as usize].since.is_some_and(is_over) {
            self.summarise(now);
        }
        let window = &mut self.windows[reason as usize];
        window.since.get_or_insert(now);
        let is_full = window.lines >= LINES_PER_PERIOD;
        if is_full {
            window.suppressed += 1;
        } else {
            window.lines += 1;
        }
        !is_full
    }

    /// Ends the periods that are over, with a line for the suppressed ones.
    fn summarise(&mut self, now: Instant) {
        for reason in Reason::ALL {
            let window = &mut self.windows[reason as usize];
            if window.since.is_none_or(|since| now < since + PERIOD) {
                continue;
            }
            let ended = std::mem::take(window);
            if ended.suppressed > 0 {
                let (count, label) = (ended.suppressed, reason.label());
                self.ready.push_back(format!(
                    "refused: {count} more with the reason {label} in the last {} s",
                    PERIOD.as_secs()
                ));
            }
        }
    }

    fn next_summary(&self, now: Instant) -> Option<Duration> {
        let windows = self.windows.iter().filter(|window| window.suppressed > 0);
        let due = windows.filter_map(|window| window.since).min()? + PERIOD;
        Some(due.saturating_duration_since(now))
    }
}

/// `refused with 431: field line too long (headers_too_large), GET /path from 192.0.2.1`
fn server_line(
    refused: RefusedFor,
    status: u16,
    line: &RequestLine<'_>,
    client: Option<IpAddr>,
) -> String {
    let mut text = match status {
        0 => "refused".to_owned(),
        status => format!("refused with {status}"),
    };
    let RefusedFor { reason, rule } = refused;
    // Writing to a String cannot fail.
    let _ = write!(text, ": {rule} ({})", reason.label());
    if !line.target.is_empty() {
        let (method, target) = (line.method, line.target);
        let target = &target[..target.len().min(MAX_TARGET_BYTES)];
        let _ = write!(
            text,
            ", {} {}",
            method.escape_ascii(),
            target.escape_ascii()
        );
    }
    write_client(&mut text, client);
    text
}

fn write_client(text: &mut String, client: Option<IpAddr>) {
    if let Some(client) = client {
        let _ = write!(text, " from {client}");
    }
}

#[cfg(test)]
mod tests {
    use towline_proto::CloseReason;

    use super::*;

    fn refuse(refusals: &Refusals, reason: CloseReason, status: u16, now: Instant) {
        let refusal = Refusal {
            stream: None,
            status,
            reason,
            rule: "a rule",
            protocol: Protocol::Http1,
            line: towline_proto::RefusedLine {
                method: b"GET".to_vec(),
                target: b"/\x1b[31m".to_vec(),
                version: None,
            },
        };
        refusals.on_protocol(&refusal, "192.0.2.1".parse().ok(), now);
    }

    #[test]
    fn lines_are_limited_by_reason_and_the_rest_is_counted() {
        let refusals = Refusals::new(None, None);
        let start = Instant::now();
        for _ in 0..25 {
            refuse(&refusals, CloseReason::Protocol, 400, start);
        }
        refuse(&refusals, CloseReason::Limit, 431, start);
        assert!(refusals.has_lines());
        let (lines, due) = refusals.take_lines(start);
        assert_eq!(lines.len(), 11);
        assert_eq!(due, Some(PERIOD));
        assert_eq!(
            lines[0],
            r"refused with 400: a rule (malformed), GET /\x1b[31m from 192.0.2.1"
        );
        assert!(lines[10].contains("(headers_too_large)"));
        let (lines, due) = refusals.take_lines(start + PERIOD);
        assert_eq!(
            lines,
            ["refused: 15 more with the reason malformed in the last 10 s"]
        );
        assert_eq!(due, None);
        refuse(&refusals, CloseReason::Protocol, 400, start + PERIOD);
        assert_eq!(refusals.take_lines(start + PERIOD).0.len(), 1);
    }

    #[test]
    fn a_client_that_goes_away_is_not_logged() {
        let refusals = Refusals::new(None, None);
        refuse(&refusals, CloseReason::Truncated, 400, Instant::now());
        assert!(!refusals.has_lines());
    }

    #[test]
    fn every_reason_has_a_label() {
        for (index, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            assert!(!reason.label().is_empty());
        }
        let of = |status, reason| Reason::of(status, reason, Protocol::Http2);
        assert_eq!(of(0, CloseReason::Protocol), Reason::Http2Protocol);
        assert_eq!(of(0, CloseReason::Limit), Reason::Http2Limit);
        assert_eq!(of(431, CloseReason::Limit), Reason::HeadersTooLarge);
        assert_eq!(of(0, CloseReason::Timeout), Reason::Timeout);
    }
}
