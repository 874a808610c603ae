//! The generator controlled by another program: one JSON object per line in, one reply per line out.
//!
//! ```text
//! open SESSION CONFIG ─► {"ok":true}       slice SESSION ... ─► {"slice":{report, histograms}}
//! probe SESSION ─► {"responses":[...]}     close SESSION ─► {"ok":true}        quit, or the end of input
//! ```
//!
//! The reply to a command that fails is `{"error": why}`; the agent then reads the next line. The CONFIG of a
//! session is a [`Spec`]; a slice has `duration_s` (of which `discard_s` is not counted) or `requests`, and for
//! an open loop `rate_per_s` and `poisson`. Its reply has the [`Report`] and histograms of `response` and
//! `first_byte`.
//!
//! With `--hosts` the slices are sent by agents on other hosts ([`on_hosts`]).
//!
//! `hello`, `prepare`, `clock`, `begin` and `stop` are for a load that several agents share
//! ([`messages`](crate::hosts::messages)).

mod on_hosts;
mod part;
mod single_message;
mod single_requests;
mod values;

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::config::{Config, LoopMode, Until};
use crate::error::LoadError;
use crate::hosts::HostOptions;
use crate::hosts::messages::{Clock, Order, PartEvent};
use crate::report::Report;
use crate::schedule::{Arrivals, Rate};
use crate::session::{Outcome, Session};
use crate::slice::{Slice, Stop};
use crate::spec::Spec;
use on_hosts::OnHosts;
use part::{Output, Part, Watchdog, introduction};
use single_requests::{SingleResponse, send_each_once};

/// Limit of a line; larger bodies are given as files.
const MAX_LINE_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum AgentCommand {
    Open {
        session: String,
        config: Box<Spec>,
    },
    Probe {
        session: String,
    },
    Slice(SliceCommand),
    Close {
        session: String,
    },
    Quit {},
    /// With `silence_s`, begins to watch the controller, which is never silent for longer.
    Hello {
        #[serde(default)]
        silence_s: Option<f64>,
    },
    Prepare {
        order: Box<Order>,
    },
    Clock {},
    /// The start on the agent's clock.
    Begin {
        at_ns: u64,
    },
    Stop {},
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SliceCommand {
    session: String,
    /// Duration of the load, with the part that is discarded.
    #[serde(default)]
    duration_s: Option<f64>,
    #[serde(default)]
    discard_s: f64,
    /// In place of a duration.
    #[serde(default)]
    requests: Option<u64>,
    #[serde(default)]
    rate_per_s: Option<f64>,
    #[serde(default)]
    poisson: bool,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Ok(bool),
    Responses(Vec<SingleResponse>),
    Slice(Box<SliceResult>),
    Error(String),
    #[serde(untagged)]
    OfPart(PartEvent),
}

#[derive(Debug, Serialize)]
struct SliceResult {
    #[serde(flatten)]
    report: Report,
    histograms: Histograms,
    /// Complete responses to the whole load, with those before and after the measured time.
    completed: u64,
}

/// `HdrHistogram` V2, deflated, in base64; nanoseconds.
#[derive(Debug, Serialize)]
struct Histograms {
    response: String,
    first_byte: String,
}

/// Serves until `quit` or the end of `input`. `Err`: the output was closed.
pub fn serve(input: impl BufRead, output: impl Write + Send) -> io::Result<()> {
    serve_on(input, output, None)
}

/// Serves like [`serve`], with agents on `hosts` that send the load, if there are any.
pub fn serve_on(
    input: impl BufRead,
    output: impl Write + Send,
    hosts: Option<HostOptions>,
) -> io::Result<()> {
    let output = Output::new(output);
    let watchdog = Watchdog::new();
    let served = thread::scope(|scope| {
        let mut agent = Agent {
            sessions: HashMap::new(),
            on_hosts: hosts.map(|hosts| OnHosts::new(hosts, scope)),
            part: None,
            clock: Clock::new(),
            watchdog: Arc::clone(&watchdog),
            output: &output,
            scope,
        };
        let served = agent.serve(input);
        // Nobody is there any more to send the load for.
        agent.stop_part();
        served
    });
    watchdog.end();
    served
}

/// A session by its name.
enum LoadSession {
    Here(Box<Session>),
    OnHosts(Box<Config>),
}

impl LoadSession {
    fn config(&self) -> &Config {
        match self {
            Self::Here(session) => session.config(),
            Self::OnHosts(config) => config,
        }
    }
}

struct Agent<'scope, 'env, W> {
    sessions: HashMap<String, LoadSession>,
    on_hosts: Option<OnHosts>,
    part: Option<Part>,
    clock: Clock,
    watchdog: Arc<Watchdog>,
    output: &'scope Output<W>,
    scope: &'scope Scope<'scope, 'env>,
}

impl<W: Write + Send> Agent<'_, '_, W> {
    fn serve(&mut self, mut input: impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let n = input
                .by_ref()
                .take(MAX_LINE_BYTES)
                .read_until(b'\n', &mut line)?;
            if n == 0 {
                return Ok(());
            }
            // Nearer to the arrival of a `clock` command than the time after its parsing.
            let now = Instant::now();
            self.watchdog.on_command();
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let reply = match serde_json::from_slice(&line) {
                Ok(AgentCommand::Quit {}) => return Ok(()),
                Ok(command) => self.execute(command, now),
                Err(error) => Err(LoadError::Config(error.to_string())),
            };
            let reply = reply.unwrap_or_else(|error| Reply::Error(error.to_string()));
            self.output.write(&reply)?;
            if n as u64 == MAX_LINE_BYTES {
                // The rest of the line must not be read as commands.
                return Ok(());
            }
        }
    }

    fn stop_part(&mut self) {
        if let Some(part) = &self.part {
            part.stop();
        }
    }

    fn execute(&mut self, command: AgentCommand, now: Instant) -> Result<Reply, LoadError> {
        let sessions = &mut self.sessions;
        match command {
            AgentCommand::Open { session, config } => {
                if sessions.contains_key(&session) {
                    return wrong(format!("session {session:?} is open already"));
                }
                let config = Config {
                    // Slices are short and many: a histogram for each target would cost more than it tells.
                    reports_targets: false,
                    ..config.config()?
                };
                let opened = if self.on_hosts.is_some() {
                    config.check()?;
                    LoadSession::OnHosts(Box::new(config))
                } else {
                    LoadSession::Here(Box::new(Session::open(config)?))
                };
                sessions.insert(session, opened);
                Ok(Reply::Ok(true))
            }
            AgentCommand::Probe { session } => {
                let session = find(sessions, &session)?;
                Ok(Reply::Responses(send_each_once(session.config())?))
            }
            AgentCommand::Slice(command) => {
                let slice = command.slice()?;
                let session = find(sessions, &command.session)?;
                let outcome = match (session, &self.on_hosts) {
                    (LoadSession::Here(session), _) => session.slice(&slice, &Stop::default())?,
                    (LoadSession::OnHosts(config), Some(hosts)) => hosts.slice(config, &slice)?,
                    (LoadSession::OnHosts(_), None) => return wrong("there are no hosts"),
                };
                Ok(Reply::Slice(Box::new(outcome.into())))
            }
            AgentCommand::Close { session } => {
                find(sessions, &session)?;
                sessions.remove(&session);
                Ok(Reply::Ok(true))
            }
            AgentCommand::Quit {} => Ok(Reply::Ok(true)),
            AgentCommand::Hello { silence_s } => {
                if let Some(limit) = silence_s {
                    self.watchdog.start(seconds("silence_s", limit)?);
                }
                let introduction = match &self.on_hosts {
                    None => introduction(),
                    Some(hosts) => hosts.introduction(introduction())?,
                };
                Ok(Reply::OfPart(PartEvent::Hello(introduction)))
            }
            AgentCommand::Clock {} => Ok(Reply::OfPart(PartEvent::Clock(self.clock.ns(now)))),
            AgentCommand::Prepare { order } => {
                if self.on_hosts.is_some() {
                    return wrong("this agent is the controller of others");
                }
                if self.part.as_ref().is_some_and(|part| !part.is_over()) {
                    return wrong("a part of a load is running already");
                }
                self.part = Some(Part::start(self.scope, *order, self.output, self.clock));
                Ok(Reply::Ok(true))
            }
            AgentCommand::Begin { at_ns } => match &self.part {
                Some(part) => {
                    part.begin(at_ns);
                    Ok(Reply::Ok(true))
                }
                None => wrong("nothing is prepared"),
            },
            AgentCommand::Stop {} => {
                self.stop_part();
                Ok(Reply::Ok(true))
            }
        }
    }
}

fn find<'a>(
    sessions: &'a mut HashMap<String, LoadSession>,
    name: &str,
) -> Result<&'a mut LoadSession, LoadError> {
    (sessions.get_mut(name))
        .ok_or_else(|| LoadError::Config(format!("no session {name:?} is open")))
}

fn wrong<T>(why: impl Into<String>) -> Result<T, LoadError> {
    Err(LoadError::Config(why.into()))
}

impl SliceCommand {
    fn slice(&self) -> Result<Slice, LoadError> {
        let warm_up = seconds("discard_s", self.discard_s)?;
        let until = match (self.duration_s, self.requests) {
            (Some(total), None) => {
                let total = seconds("duration_s", total)?;
                match total.checked_sub(warm_up) {
                    Some(rest) if !rest.is_zero() => Until::Time(rest),
                    _ => return wrong("discard_s must be less than duration_s"),
                }
            }
            (None, Some(0)) => return wrong("requests is at least 1"),
            (None, Some(_)) if !warm_up.is_zero() => {
                return wrong("discard_s goes with duration_s, not with requests");
            }
            (None, Some(count)) => Until::Requests(count),
            _ => return wrong("a slice has either duration_s or requests"),
        };
        let arrivals = if self.poisson {
            Arrivals::Poisson
        } else {
            Arrivals::Constant
        };
        let loop_mode = match self.rate_per_s {
            Some(per_s) => LoopMode::Open(Rate {
                per_s,
                arrivals,
                ramp: Duration::ZERO,
            }),
            None if self.poisson => return wrong("poisson needs an open loop: give rate_per_s"),
            None => LoopMode::Closed,
        };
        Ok(Slice {
            loop_mode,
            until,
            warm_up,
        })
    }
}

fn seconds(name: &str, value: f64) -> Result<Duration, LoadError> {
    match Duration::try_from_secs_f64(value) {
        Ok(time) if time <= Duration::from_secs(24 * 3600) => Ok(time),
        _ => wrong(format!(
            "{name} must be a time of at most a day, not {value}"
        )),
    }
}

impl From<Outcome> for SliceResult {
    fn from(outcome: Outcome) -> Self {
        Self {
            histograms: Histograms {
                response: encoded(&outcome.response),
                first_byte: encoded(&outcome.first_byte),
            },
            completed: outcome.completed,
            report: outcome.report,
        }
    }
}

fn encoded(times: &Histogram<u64>) -> String {
    let mut bytes = Vec::new();
    V2DeflateSerializer::new()
        .serialize(times, &mut bytes)
        .expect("a vector takes every byte");
    STANDARD.encode(bytes)
}
