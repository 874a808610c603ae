//! The options: their names, whether they take a value, and what they speak of.

/// Whether an option goes together with a scenario file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The load, the runs or the output: on top of a scenario.
    Load,
    /// A request or its answer: the scenario has its own.
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

const fn asks(name: &'static str, short: Option<char>, takes_value: bool) -> Opt {
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
    // ab's -p is a body; see the help.
    load("pipeline", Some('p'), true),
    load("http2", None, false),
    load("streams", None, true),
    load("fresh", None, false),
    load("requests-per-connection", None, true),
    load("together", None, false),
    load("storm", None, false),
    load("warm-up", None, true),
    load("ramp", None, true),
    load("timeout", None, true),
    load("connect-timeout", None, true),
    load("seed", None, true),
    load("verify", None, false),
    load("cacert", None, true),
    load("scenario", None, true),
    load("refusal-status", None, true),
    load("keep-alive", Some('k'), false),
    asks("weights", None, true),
    asks("method", Some('m'), true),
    asks("head", Some('i'), false),
    asks("header", Some('H'), true),
    asks("content-type", Some('T'), true),
    asks("auth", Some('A'), true),
    asks("cookie", Some('C'), true),
    asks("put", Some('u'), true),
    asks("body", None, true),
    asks("body-file", None, true),
    asks("form", None, true),
    asks("multipart", Some('F'), true),
    asks("slow-pieces", None, true),
    asks("chunk-bytes", None, true),
    asks("expect-continue", None, false),
    asks("drop-after", None, true),
    asks("ws-size", None, true),
    asks("ws-binary", None, false),
    asks("ws-deflate", None, false),
    asks("expect-status", None, true),
    asks("expect-length", None, true),
    asks("expect-file", None, true),
    asks("expect-sha256", None, true),
    asks("expect-coding", None, true),
    asks("expect-field", None, true),
    load("find-peak", None, false),
    load("goal", None, true),
    load("goal-percentile", None, true),
    load("goal-errors", None, true),
    load("most-rate", None, true),
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
