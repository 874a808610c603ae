//! The options by topic: names, values, help. The parser, the help and the completion of shells use this table.

use crate::report::percentiles;

/// Whether an option can be combined with a scenario file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// The load, the runs or the output: overrides a scenario.
    Load,
    /// A request or its response: defined by the scenario.
    Request,
}

#[derive(Clone, Copy, Debug)]
pub struct Opt {
    pub name: &'static str,
    pub short: Option<char>,
    /// The placeholder of the value, or its choices (`a|b`); empty: a switch.
    pub value: &'static str,
    help: &'static str,
    pub(super) about: About,
}

impl Opt {
    pub fn takes_value(&self) -> bool {
        !self.value.is_empty()
    }

    /// The help, with the percentiles of the report.
    pub fn description(&self) -> String {
        (self.help).replace("{percentiles}", &percentiles::list(""))
    }

    const fn short(self, letter: char) -> Self {
        Self {
            short: Some(letter),
            ..self
        }
    }
}

const fn load(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt {
        name,
        short: None,
        value,
        help,
        about: About::Load,
    }
}

const fn request(name: &'static str, value: &'static str, help: &'static str) -> Opt {
    Opt {
        about: About::Request,
        ..load(name, value, help)
    }
}

/// A group of options, on one screen of help.
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) before: &'static str,
    pub(super) options: &'static [Opt],
    pub(super) after: &'static str,
}

/// The topics. `{percentiles}` in a text stands for the percentiles of the report.
#[rustfmt::skip]
pub(super) const TOPICS: &[Topic] = &[
    Topic {
        name: "load",
        title: "Amount and shape of the load",
        before: "",
        options: &[
            load("connections", "N", "Total connections (default: 10)").short('c'),
            load("threads", "N", "Threads that share the connections (default: 1)").short('t'),
            load("duration", "TIME", "Measured time, such as 10s, 500ms, 2m (default: 10s)").short('d'),
            load("requests", "N", "Send N requests, in place of a duration").short('n'),
            load("rate", "N", "Open loop: start N requests per second; latency counts from the intended start").short('R'),
            load("poisson", "", "With --rate: exponential gaps between starts"),
            load("stages", "TIME:N,...", "Move to N connections, or to a rate of N with --rate, within each TIME, from 0, -c or -R; replaces -d"),
            load("warm-up", "TIME", "Send load for TIME before the measured time"),
            load("ramp", "TIME", "Raise connections, or the rate, over TIME"),
            load("barrier", "", "All connections send at the same moment"),
            load("storm", "", "Like --barrier, on a new connection for each request"),
            load("seed", "N", "Seed of arrivals and mixes (default: 1)"),
            load("give-up-after", "TIME", "End the run after TIME without a server (default: 3s)"),
        ],
        after: "",
    },
    Topic {
        name: "connections",
        title: "Protocol, connections and TLS",
        before: "",
        options: &[
            load("http2", "", "HTTP/2 (ALPN with https, prior knowledge with http)"),
            load("http3", "", "HTTP/3, without looking for Alt-Svc"),
            load("early-data", "", "Send safe requests in 0-RTT on resumed connections"),
            load("streams", "N", "Concurrent streams on each connection (default: 1); -m N is the same"),
            load("pipeline", "N", "HTTP/1.1 requests or WebSocket messages in flight on each connection (default: 1)").short('p'),
            load("fresh", "", "Open a new connection for each request"),
            load("requests-per-connection", "N", "Replace a connection after N requests"),
            load("timeout", "TIME", "Longest wait for a response (default: 10s)"),
            load("connect-timeout", "TIME", "Longest wait for a connection (default: 5s)"),
            load("unix-socket", "PATH", "Send everything to this socket; the URL only sets Host"),
            load("verify", "", "Verify certificates with the system's trust store"),
            load("cacert", "FILE", "Verify certificates with the authorities in FILE"),
            load("keep-alive", "", "Accepted as in ab; connections are kept by default").short('k'),
        ],
        after: "\nCertificates are not verified by default.\n",
    },
    Topic {
        name: "requests",
        title: "Requests",
        before: "Several URLs are used in turn, or at random with --weights.\n\n",
        options: &[
            request("weights", "N,N,...", "Choose URLs at random, in these proportions"),
            request("method", "METHOD", "Method (default: GET, or POST with a body)").short('m'),
            request("head", "", "Send HEAD requests").short('i'),
            request("header", "NAME:VALUE", "Add a header").short('H'),
            request("auth", "USER:PASSWORD", "Send Basic authentication").short('A'),
            request("cookie", "NAME=VALUE", "Send a cookie").short('C'),
            request("body", "TEXT", "Send TEXT as the body"),
            request("body-file", "FILE", "Send the content of FILE as the body"),
            request("put", "FILE", "Send the content of FILE with PUT").short('u'),
            request("content-type", "TYPE", "Type of the body").short('T'),
            request("form", "NAME=VALUE", "Add a field to an urlencoded body"),
            request("multipart", "NAME=VALUE", "Add a part to a multipart body; NAME=@FILE[;type=TYPE] [;filename=NAME] sends a file").short('F'),
            load("scenario", "FILE", "Read requests, expected responses and sessions from a .toml or .json file; other options override it"),
            load("data", "FILE", "Read rows from a .csv or .jsonl file; {{NAME}} in URL, headers and body is replaced by a value of the next row"),
        ],
        after: "",
    },
    Topic {
        name: "slow",
        title: "Slow and interrupted requests",
        before: "",
        options: &[
            request("slow-pieces", "N,GAP", "Send each request in N pieces, with GAP between them (for example 5,5ms)"),
            request("chunk-bytes", "N", "Send the body in chunks of N bytes, without Content-Length"),
            request("expect-continue", "", "Send the body only after the server has sent 100 Continue"),
            request("drop-after", "N", "Close the connection after N bytes of the body; the same request must then succeed on a new connection"),
        ],
        after: "",
    },
    Topic {
        name: "responses",
        title: "Verification of responses",
        before: "\
A response that differs from the expected one is an error. Without these\n\
options, responses with another status or length than the first successful\n\
one of their URL are reported as changed; they are not errors.\n\n",
        options: &[
            request("expect-status", "N", "Status (default: any of 2xx and 3xx)"),
            request("expect-length", "N", "Bytes of the body as transferred"),
            request("expect-file", "FILE", "Body, byte for byte"),
            request("expect-sha256", "HEX", "Hash of the body"),
            request("expect-coding", "gzip|deflate", "Content coding; file and hash apply to the decoded body"),
            request("expect-field", "NAME:VALUE", "Header of the response"),
            load("refusal-status", "N,N,...", "Statuses with which a busy server refuses requests; these, and connections closed before any response, are counted separately and are not errors"),
        ],
        after: "",
    },
    Topic {
        name: "websocket",
        title: "WebSockets",
        before: "\
With a URL of ws:// or wss:// each connection becomes a WebSocket and the load\n\
consists of messages. The server must echo each message with the same bytes\n\
and the same kind. With -p N, N messages are in flight on each connection.\n\n",
        options: &[
            request("ws-size", "BYTES", "Size of the message, which consists of letters (default: 1024)"),
            request("ws-binary", "", "Send binary messages (default: text)"),
            request("ws-deflate", "", "Offer permessage-deflate; the server must accept it"),
        ],
        after: "
--body and --body-file set another message; --expect-file, --expect-sha256 and
--expect-length expect another reply. -H 'Sec-WebSocket-Protocol: NAME' offers
subprotocols.

The handshake precedes the measured time. With --fresh, the connection and the
handshake count in the latency of the message. A refused handshake is an error
of the class status, an invalid one of the class protocol. If the server closes
a WebSocket, the messages in flight fail (class reset), and the close code is
listed among the statuses.
",
    },
    Topic {
        name: "runs",
        title: "Series of runs",
        before: "",
        options: &[
            load("find-peak", "", "Find the highest rate that keeps the goal; -R is the first rate (default: 1000), -d the length of each run"),
            load("goal", "TIME", "Highest latency at the percentile below (default: 10ms)"),
            load("goal-percentile", "P", "One of {percentiles} (default: 99)"),
            load("goal-errors", "SHARE", "Highest share of failures (default: 0.001)"),
            load("max-rate", "N", "Highest rate to try (default: 1000000)"),
            load("connections-sweep", "N,N,...", "Run the same load with each number of connections"),
        ],
        after: "",
    },
    Topic {
        name: "hosts",
        title: "One load from several machines",
        before: "\
Connections, requests, rate and stages are totals over all machines; so are\n\
the report and --fail-if. Each machine must be able to reach the server.\n\n",
        options: &[
            load("hosts", "HOST,...", "Start an agent on each, by ssh: HOST, USER@HOST, or HOST=N for N threads there (default: -t)"),
            load("ssh", "COMMAND", "ssh client and its options ('ssh -F FILE')"),
            load("agent-command", "COMMAND", "Command that starts an agent on a host (default: towline-load or towline on its PATH; same version)"),
            load("agent-binary", "FILE", "Copy this towline-load program to each host"),
            load("agent-sockets", "NAME=FD,...", "Use agents behind connected sockets (for programs)"),
            load("on-lost-agent", "continue|stop", "What the other agents do (default: continue; their measurements stay valid)"),
        ],
        after: "
ssh must not ask for a password; ~/.ssh/config applies. An agent that is lost,
is silent, runs out of CPU, ports or open files, or cannot reach the server is
named at once and in the report. If one was lost, the exit status is 1. Ctrl-C
ends all agents. Dask, Ray, Kubernetes: towline load --help clusters.
",
    },
    Topic {
        name: "output",
        title: "Output and exit status",
        before: "",
        options: &[
            load("json", "", "Print the report as JSON, one line for each run"),
            load("csv", "", "Print one line for each second"),
            load("hdr-log", "FILE", "Write an HdrHistogram interval log, in nanoseconds"),
            load("fail-if", "CONDITION", "Exit with status 3 if the condition holds (repeatable): 'p99>10ms' 'first_byte.p50>2ms' 'mean>5ms' 'rate<1k' 'errors>0.1%' 'changed>0' 'refused>1%' 'achieved<99%'; one request of several: 'NAME.p99>10ms'"),
            load("no-tui", "", "Show no live view; only terminals have one").short('q'),
            load("agent", "", "Obey commands on stdin, as lines of JSON (for programs); with --hosts, the load comes from there"),
            load("latency", "", "Accepted as in wrk; latencies are always shown"),
        ],
        after: "
NO_COLOR disables colours, TERM=dumb the live view. Operators: > >= < <=.

Exit status: 0 all requests succeeded. 1 some failed (unless --fail-if judges
errors), none succeeded, or the server was lost. 2 there was no run.
3 a --fail-if condition held.
Ctrl-C ends the run and prints what was measured; a second one ends the program.
",
    },
    Topic {
        name: "ab-wrk",
        title: "Flags of ab, wrk and h2load",
        before: "",
        options: &[],
        after: "\
They keep their meaning unless it conflicts:

  flag        ab             wrk         here
  -c -n -H    the same everywhere
  -d          -              duration    duration
  -t          time limit     threads     threads; for a time limit: -d
  -p          file to POST   -           a number: pipelining; otherwise the
                                         file (./8 for one named 8)
  -T -i       as in ab
  -m          method         -           a number: streams, as in h2load;
                                         otherwise the method
  -A -C       as in ab
  -u FILE     PUT the file   -           as in ab
  -k          keep-alive     -           accepted: the default; ab's default
                                         is --fresh
  -s          timeout        script      refused: --timeout; no scripts
  -R          -              rate (wrk2) rate
  --latency   -              percentiles accepted: always shown
  --timeout   -              timeout     timeout
  -q          quiet          -           same as --no-tui
",
    },
];

/// The options of the first screen of help.
pub(super) const COMMON: &[&str] = &[
    "connections",
    "threads",
    "duration",
    "requests",
    "http2",
    "method",
    "header",
    "body",
    "json",
];

/// Other names of options, as in ab.
const ALIASES: [(&str, &str); 1] = [("quiet", "no-tui")];

pub fn options() -> impl Iterator<Item = &'static Opt> {
    TOPICS.iter().flat_map(|topic| topic.options)
}

pub(super) fn by_name(name: &str) -> Option<&'static Opt> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
    let name = alias.map_or(name, |(_, name)| name);
    options().find(|option| option.name == name)
}

pub(super) fn by_letter(letter: char) -> Option<&'static Opt> {
    options().find(|option| option.short == Some(letter))
}

/// Options of k6, oha, vegeta and hey, and what does the same here; options of the program with Python.
#[rustfmt::skip]
const FOREIGN: [(&str, &str); 12] = [
    ("-z", "for a duration: -d"),
    ("-r", "for a rate: -R"),
    ("--vus", "for concurrent users: -c"),
    ("--iterations", "for a number of requests: -n"),
    ("--rps", "for a rate: -R"),
    ("--qps", "for a rate: -R"),
    ("--latency-correction", "with -R the latency is always corrected"),
    ("--targets", "for several requests: their URLs, or --scenario"),
    ("--threshold", "for thresholds: --fail-if"),
    ("--stage", "for stages: --stages"),
    ("--cluster", "`towline load` has it, the program with Python"),
    ("--kubernetes", "`towline load` has it, the program with Python"),
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
