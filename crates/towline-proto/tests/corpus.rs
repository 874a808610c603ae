//! The corpora of `conformance/corpus`: hostile requests, and llhttp's parser cases with its strict verdicts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use towline_proto::{ErrorSource, Limits};
use towline_testkit::{App, End, Random};

fn load<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../conformance/corpus")
        .join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn latin1(text: &str) -> Vec<u8> {
    text.chars()
        .map(|c| u8::try_from(u32::from(c)).expect("latin-1"))
        .collect()
}

// ---- hostile requests ----

#[derive(Deserialize)]
struct Hostile {
    cases: Vec<HostileCase>,
}

#[derive(Deserialize)]
struct HostileCase {
    id: String,
    expect: String,
    max: usize,
    #[serde(default)]
    must_close: bool,
    #[serde(default)]
    shut: bool,
    raw: Option<String>,
    #[serde(default)]
    parts: Vec<(String, usize)>,
}

impl HostileCase {
    fn wire(&self) -> Vec<u8> {
        let repeated = |(text, count): &(String, usize)| -> String {
            (0..*count)
                .map(|i| text.replace("{i}", &i.to_string()))
                .collect()
        };
        latin1(
            &self
                .raw
                .clone()
                .unwrap_or_else(|| self.parts.iter().map(repeated).collect()),
        )
    }
}

/// Outcome of a case on a server.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Requests completed by an application that reads bodies.
    completed: usize,
    /// 4xx and 5xx.
    refused: usize,
    over: bool,
}

fn serve(case: &HostileCase, wire: &[u8], sizes: &[usize]) -> Outcome {
    let reads = !wire.windows(7).any(|w| w == b"/noread");
    let app = if reads { App::Read } else { App::Ignore };
    let mut end = End::server(&Arc::new(Limits::server()), app);
    let mut rest = wire;
    for size in sizes {
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        end.feed(piece);
        rest = after;
    }
    end.feed(rest);
    if case.shut {
        end.feed_eof();
    }
    let interest = end.conn.interest();
    let status_lines = towline_testkit::wire::status_lines(end.written());
    let count = |first: &[char]| {
        status_lines
            .iter()
            .filter(|line| line.starts_with(first))
            .count()
    };
    Outcome {
        completed: count(&['2']),
        refused: count(&['4', '5']),
        over: interest.shutdown || interest.closed,
    }
}

fn problem(case: &HostileCase, outcome: &Outcome) -> Option<&'static str> {
    match case.expect.as_str() {
        _ if outcome.completed > case.max => Some("wrongly accepted: too many requests"),
        "R" if !outcome.over => Some("wrongly accepted: not closed"),
        "A" if outcome.completed == 0 => Some("wrongly refused"),
        _ if case.must_close && !outcome.over => Some("wrongly kept open"),
        _ => None,
    }
}

#[test]
fn hostile_requests_get_their_verdicts() {
    let corpus: Hostile = load("h1_hostile.json");
    assert_eq!(corpus.cases.len(), 177);
    let mut problems = Vec::new();
    for case in &corpus.cases {
        let wire = case.wire();
        let whole = serve(case, &wire, &[]);
        if let Some(problem) = problem(case, &whole) {
            problems.push(format!("{}: {problem}: {whole:?}", case.id));
        }
        let mut random = Random::new(wire.len() as u64);
        // Byte by byte only if that is fast without optimisation.
        let mut cuts = if wire.len() <= 32 * 1024 {
            vec![vec![1; wire.len()]]
        } else {
            vec![]
        };
        cuts.extend((0..16).map(|_| random.pieces(wire.len())));
        if let Some(other) = cuts
            .iter()
            .map(|sizes| serve(case, &wire, sizes))
            .find(|other| *other != whole)
        {
            problems.push(format!("{}: whole {whole:?}, cut {other:?}", case.id));
        }
    }
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

// ---- llhttp ----

#[derive(Deserialize)]
struct Llhttp {
    cases: Vec<LlhttpCase>,
}

#[derive(Deserialize)]
struct LlhttpCase {
    id: String,
    mode: String,
    verdict: String,
    complete: usize,
    begun: usize,
    raw: String,
    #[serde(default)]
    skip_body: bool,
}

impl LlhttpCase {
    fn is_request(&self) -> bool {
        self.mode.starts_with("request")
    }

    /// llhttp's verdict in strict mode, with the number of complete messages if relevant.
    fn strict(&self) -> String {
        let strict = matches!(
            self.mode.as_str(),
            "request" | "response" | "request-finish" | "response-finish"
        );
        match self.verdict.as_str() {
            _ if !strict => "reject".into(),
            "accept" => format!("accept {}", self.complete),
            other => other.into(),
        }
    }

    /// Our verdict, in the same format.
    fn ours(&self, wire: &[u8]) -> String {
        let (mut end, messages): (End, fn(&str) -> usize) = if self.is_request() {
            let app = if self.verdict == "pause" {
                App::Switch
            } else {
                App::Read
            };
            let completed: fn(&str) -> usize = |log| log.matches("wrote 200").count();
            (End::server(&Arc::new(Limits::server()), app), completed)
        } else {
            let method = match self.verdict.as_str() {
                _ if self.skip_body => "HEAD",
                "pause" => "GET+upgrade",
                _ => "GET",
            };
            let requests = vec![(method, "/"); self.begun.max(1)];
            let completed: fn(&str) -> usize = |log| {
                let bodiless = log
                    .lines()
                    .filter(|l| l.starts_with("response") && l.ends_with(" end"))
                    .count();
                log.matches("interim ").count()
                    + bodiless
                    + log.lines().filter(|l| l.starts_with("end ")).count()
            };
            (
                End::client(&Arc::new(Limits::client()), &requests),
                completed,
            )
        };
        // Each response after the first needs its request: `End` sends it when the one before is complete.
        let mut rest = wire;
        while let Some(at) = rest
            .windows(7)
            .skip(1)
            .position(|w| w == b"HTTP/1.")
            .filter(|_| !self.is_request())
        {
            end.feed(&rest[..=at]);
            rest = &rest[at + 1..];
        }
        end.feed(rest);
        let log = end.log_text();
        if log.contains("switched ") {
            return "pause".into();
        }
        match end.conn.error() {
            Some(error) if error.source == ErrorSource::Peer => "reject".into(),
            _ => format!("accept {}", messages(&log)),
        }
    }

    /// The bytes with a Host in every 1.1 request that has none.
    fn with_host(&self) -> Vec<u8> {
        let wire = latin1(&self.raw);
        if !self.is_request() || has_host(&wire) {
            return wire;
        }
        let version = b" HTTP/1.1\r\n";
        let mut out = Vec::new();
        let mut rest = wire.as_slice();
        while let Some(at) = rest.windows(version.len()).position(|w| w == version) {
            out.extend_from_slice(&rest[..at + version.len()]);
            out.extend_from_slice(b"Host: a\r\n");
            rest = &rest[at + version.len()..];
        }
        out.extend_from_slice(rest);
        out
    }
}

fn has_host(wire: &[u8]) -> bool {
    wire.to_ascii_lowercase()
        .windows(7)
        .any(|w| w == b"\r\nhost:")
}

/// Deviations from llhttp, with reasons.
#[derive(Deserialize)]
struct Deviations {
    reasons: BTreeMap<String, String>,
    /// Reason and our verdict by case id.
    cases: BTreeMap<String, (String, String)>,
}

#[test]
fn llhttp_cases_get_its_strict_verdicts_except_listed_deviations() {
    let corpus: Llhttp = load("llhttp.json");
    let mut listed: Deviations = load("llhttp_deviations.json");
    assert_eq!(corpus.cases.len(), 251);
    let mut problems = Vec::new();
    for case in &corpus.cases {
        let (strict, ours) = (case.strict(), case.ours(&case.with_host()));
        match (strict == ours, listed.cases.remove(&case.id)) {
            (true, None) => {}
            (true, Some(_)) => problems.push(format!("{}: listed, but both say {ours}", case.id)),
            (false, None) => problems.push(format!(
                "{}: not listed: strict {strict}, ours {ours}",
                case.id
            )),
            (false, Some((reason, verdict))) => {
                if verdict != ours {
                    problems.push(format!("{}: listed as {verdict}, ours is {ours}", case.id));
                }
                assert!(
                    listed.reasons.contains_key(&reason),
                    "{}: reason {reason} is not explained",
                    case.id
                );
            }
        }
    }
    problems.extend(
        listed
            .cases
            .keys()
            .map(|id| format!("{id}: listed, but there is no such case")),
    );
    assert!(
        problems.is_empty(),
        "{} problems:\n{}",
        problems.len(),
        problems.join("\n")
    );
}

#[test]
fn llhttp_requests_without_a_host_are_refused_as_listed() {
    let corpus: Llhttp = load("llhttp.json");
    let mut count = 0;
    for case in corpus
        .cases
        .iter()
        .filter(|case| case.is_request() && case.verdict == "accept")
    {
        let wire = latin1(&case.raw);
        let is_11 = wire
            .split(|b| *b == b'\n')
            .next()
            .is_some_and(|line| line.ends_with(b" HTTP/1.1\r"));
        let has_head = wire.windows(4).any(|w| w == b"\r\n\r\n");
        if is_11 && has_head && !has_host(&wire) {
            assert_eq!(case.ours(&wire), "reject", "{}", case.id);
            count += 1;
        }
    }
    assert!(count > 40, "{count}");
}
