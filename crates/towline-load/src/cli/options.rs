//! The options: names, whether they take a value, and their subject.

/// Whether an option can be combined with a scenario file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The load, the runs or the output: overrides a scenario.
    Load,
    /// A request or its response: defined by the scenario.
    Request,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Opt {
    pub(super) name: &'static str,
    pub(super) short: Option<char>,
    pub(super) takes_value: bool,
    pub(super) about: About,
}

const fn load(name: &'static str, short: Option<char>, takes_value: bool) -> Opt {
    Opt {
        name,
        short,
        takes_value,
        about: About::Load,
    }
}

const fn request(name: &'static str, short: Option<char>, takes_value: bool) -> Opt {
    Opt {
        name,
        short,
        takes_value,
        about: About::Request,
    }
}

pub(super) const OPTIONS: &[Opt] = &[
    load("connections", Some('c'), true),
    load("threads", Some('t'), true),
    load("duration", Some('d'), true),
    load("requests", Some('n'), true),
    load("rate", Some('R'), true),
    load("poisson", None, false),
    load("stages", None, true),
    // ab's -p is a body; see the help.
    load("pipeline", Some('p'), true),
    load("http2", None, false),
    load("http3", None, false),
    load("early-data", None, false),
    load("streams", None, true),
    load("fresh", None, false),
    load("requests-per-connection", None, true),
    load("barrier", None, false),
    load("storm", None, false),
    load("warm-up", None, true),
    load("ramp", None, true),
    load("timeout", None, true),
    load("connect-timeout", None, true),
    load("seed", None, true),
    load("verify", None, false),
    load("cacert", None, true),
    load("scenario", None, true),
    load("data", None, true),
    load("refusal-status", None, true),
    load("unix-socket", None, true),
    load("give-up-after", None, true),
    load("fail-if", None, true),
    load("keep-alive", Some('k'), false),
    request("weights", None, true),
    request("method", Some('m'), true),
    request("head", Some('i'), false),
    request("header", Some('H'), true),
    request("content-type", Some('T'), true),
    request("auth", Some('A'), true),
    request("cookie", Some('C'), true),
    request("put", Some('u'), true),
    request("body", None, true),
    request("body-file", None, true),
    request("form", None, true),
    request("multipart", Some('F'), true),
    request("slow-pieces", None, true),
    request("chunk-bytes", None, true),
    request("expect-continue", None, false),
    request("drop-after", None, true),
    request("ws-size", None, true),
    request("ws-binary", None, false),
    request("ws-deflate", None, false),
    request("expect-status", None, true),
    request("expect-length", None, true),
    request("expect-file", None, true),
    request("expect-sha256", None, true),
    request("expect-coding", None, true),
    request("expect-field", None, true),
    load("hosts", None, true),
    load("ssh", None, true),
    load("agent-command", None, true),
    load("agent-binary", None, true),
    load("agent-sockets", None, true),
    load("on-lost-agent", None, true),
    load("find-peak", None, false),
    load("goal", None, true),
    load("goal-percentile", None, true),
    load("goal-errors", None, true),
    load("max-rate", None, true),
    load("connections-sweep", None, true),
    load("json", None, false),
    load("csv", None, false),
    load("hdr-log", None, true),
    load("no-tui", None, false),
    load("latency", None, false),
    load("quiet", Some('q'), false),
];

pub(super) fn by_name(name: &str) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| option.name == name)
}

pub(super) fn by_letter(letter: char) -> Option<&'static Opt> {
    OPTIONS.iter().find(|option| option.short == Some(letter))
}

/// Options of k6, oha, vegeta and hey, and what does the same here; options of the program with Python.
const FOREIGN: [(&str, &str); 12] = [
    ("-z", "for a duration: -d"),
    ("-r", "for a rate: -R"),
    ("--vus", "for concurrent users: -c"),
    ("--iterations", "for a number of requests: -n"),
    ("--rps", "for a rate: -R"),
    ("--qps", "for a rate: -R"),
    (
        "--latency-correction",
        "with -R the latency is always corrected",
    ),
    (
        "--targets",
        "for several requests: their URLs, or --scenario",
    ),
    ("--threshold", "for thresholds: --fail-if"),
    ("--stage", "for stages: --stages"),
    (
        "--cluster",
        "`towline load` has it, the program with Python",
    ),
    (
        "--kubernetes",
        "`towline load` has it, the program with Python",
    ),
];

/// The error about an unknown option.
pub(super) fn unknown(option: &str) -> String {
    match FOREIGN.iter().find(|(name, _)| *name == option) {
        Some((_, here)) => format!("unknown option {option}; {here}"),
        None => format!("unknown option {option}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_other_generators_have_a_hint() {
        assert_eq!(unknown("-z"), "unknown option -z; for a duration: -d");
        assert_eq!(unknown("--nothing"), "unknown option --nothing");
        for (name, _) in FOREIGN {
            let word = name.trim_start_matches('-');
            let is_ours = match word.len() {
                1 => by_letter(word.chars().next().unwrap_or_default()).is_some(),
                _ => by_name(word).is_some(),
            };
            assert!(!is_ours, "{name}");
        }
    }
}
