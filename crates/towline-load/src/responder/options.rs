//! The responder's command line.

use std::ffi::OsString;
use std::time::Duration;

use lexopt::prelude::*;
use towline_io::{Identity, TlsSettings};
use towline_proto::ProtocolPolicy;

use crate::shutdown::time;

use super::routes::behaviour::Behaviour;
use super::routes::route::App;
use super::routes::spin::{calibrated, steps};
use super::routes::stall::{Every, StallPlan};

pub const HELP: &str = "\
use: towline-responder [OPTIONS]

Prints its addresses, one a line, and serves until SIGTERM, SIGINT or the end of a piped standard input. Each line of
that input has a reply with its version and CPU time.

  --host HOST, --port N     127.0.0.1, and 0: any that is free
  --bind HOST:PORT          ... instead; may stand more than once
  --cert FILE, --key FILE   serve TLS
  --app NAME                whose responses: app (Roadrunner), hello_world (Hornbeam)
  --requests-per-connection N   close a connection with its answer of this number
  --protocol h1|h2          speak this one alone
  --http3                   HTTP/3 as well, on the UDP port of the same number; with --cert
  --early-data              accept early data (0-RTT) over HTTP/3
  --max-streams N           of HTTP/2 or HTTP/3 at once on a connection (1024)
  --max-connections N       refuse with 503 on connections beyond these

A server of known behaviour (TIME: 10us, 1.5ms, 2s)
  --delay TIME              every answer comes so much later
  --exact                   ... to the microsecond: the last 100 us before each are not slept
  --stall-every TIME, --stall-for TIME   the whole server stops, again and again
  --stall-requests N        ... after each N requests, like a garbage collector, in place of --stall-every
  --stall-times N           ... N times in all
  --spin-us N               busy work for each request
  --spin-steps N            ... in steps of some nanoseconds: what two servers measure of them is never quite equal
  --spin-percent P          P % more CPU time for everything

Queries of any target: delay_us=N, fast_ms=F&slow_ms=S&slow_share=0.1, error_share=0.01,
fault=one-byte|short|long|truncated|early-close|garbage|twice|early|hang with fault_share=S;
at /ws of the messages, and there is fault=kind besides.
GET /injected counts what was injected and says when the stalls were.

  -h, --help
";

/// Longer than a sleeping thread usually takes to wake.
const POLL_BEFORE_DUE: Duration = Duration::from_micros(100);

pub enum Command {
    Help,
    Serve(Box<Options>),
}

#[derive(Default)]
pub struct Options {
    pub binds: Vec<String>,
    pub tls: Option<TlsSettings>,
    host: Option<String>,
    port: u16,
    app: App,
    delay: Duration,
    exact: bool,
    stall_every: Option<Duration>,
    stall_for: Option<Duration>,
    stall_requests: Option<u64>,
    stall_times: Option<usize>,
    spin_us: Option<f64>,
    spin_steps: Option<u64>,
    spin_percent: Option<f64>,
    requests_per_connection: Option<u64>,
    protocols: Option<ProtocolPolicy>,
    pub http3: bool,
    pub early_data: bool,
    pub max_streams: Option<u32>,
    max_connections: Option<usize>,
}

impl Options {
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, lexopt::Error> {
        let mut options = Self::default();
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("port") => {
                    options.port = parser.value()?.parse()?;
                }
                Long("host") => options.host = Some(parser.value()?.string()?),
                Long("bind") => options.binds.push(parser.value()?.string()?),
                Long("cert") => {
                    options.identity().cert_file = parser.value()?.into();
                }
                Long("key") => {
                    options.identity().key_file = Some(parser.value()?.into());
                }
                Long("requests-per-connection") => {
                    options.requests_per_connection = Some(parser.value()?.parse()?);
                }
                Long("protocol") => options.protocols = Some(parser.value()?.parse_with(protocol)?),
                Long("http3") => options.http3 = true,
                Long("early-data") => options.early_data = true,
                Long("max-streams") => options.max_streams = Some(parser.value()?.parse()?),
                Long("max-connections") => {
                    options.max_connections = Some(parser.value()?.parse()?);
                }
                Long("app") => options.app = parser.value()?.parse_with(app)?,
                Long("delay") => options.delay = parser.value()?.parse_with(time)?,
                Long("exact") => options.exact = true,
                Long("stall-every") => {
                    options.stall_every = Some(parser.value()?.parse_with(time)?);
                }
                Long("stall-for") => options.stall_for = Some(parser.value()?.parse_with(time)?),
                Long("stall-requests") => {
                    options.stall_requests = Some(parser.value()?.parse()?);
                }
                Long("stall-times") => options.stall_times = Some(parser.value()?.parse()?),
                Long("spin-us") => options.spin_us = Some(parser.value()?.parse_with(amount)?),
                Long("spin-steps") => options.spin_steps = Some(parser.value()?.parse()?),
                Long("spin-percent") => {
                    options.spin_percent = Some(parser.value()?.parse_with(amount)?);
                }
                Short('h') | Long("help") => return Ok(Command::Help),
                other => return Err(other.unexpected()),
            }
        }
        options.finish()
    }

    fn identity(&mut self) -> &mut Identity {
        let identities = &mut self.tls.get_or_insert_default().identities;
        if identities.is_empty() {
            identities.push(Identity::default());
        }
        &mut identities[0]
    }

    fn finish(mut self) -> Result<Command, lexopt::Error> {
        let protocols = self.protocols();
        if let Some(tls) = &mut self.tls {
            tls.alpn = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
            match protocols {
                ProtocolPolicy::Http1 => _ = tls.alpn.remove(0),
                ProtocolPolicy::Http2 => tls.alpn.truncate(1),
                ProtocolPolicy::Either | ProtocolPolicy::Http3 => {}
            }
        }
        if self.http3 && self.tls.is_none() {
            return Err("--http3 needs --cert and --key".into());
        }
        if self.early_data && !self.http3 {
            return Err("--early-data needs --http3".into());
        }
        if self.binds.is_empty() {
            let host = self.host.as_deref().unwrap_or("127.0.0.1");
            self.binds.push(format!("{host}:{}", self.port));
        }
        self.stall_plan()?;
        Ok(Command::Serve(Box::new(self)))
    }

    fn stall_plan(&self) -> Result<Option<StallPlan>, lexopt::Error> {
        let (every, length) = match (self.stall_every, self.stall_requests, self.stall_for) {
            (None, None, None) if self.stall_times.is_none() => return Ok(None),
            (Some(every), None, Some(length)) if length < every => (Every::Time(every), length),
            (Some(_), None, Some(_)) => {
                return Err("--stall-for must be less than --stall-every".into());
            }
            (None, Some(count @ 1..), Some(length)) => (Every::Requests(count), length),
            _ => {
                return Err(
                    "a stall has --stall-for, and --stall-every or --stall-requests".into(),
                );
            }
        };
        Ok(Some(StallPlan {
            every,
            length,
            times: self.stall_times,
        }))
    }

    pub fn protocols(&self) -> ProtocolPolicy {
        self.protocols.unwrap_or(ProtocolPolicy::Either)
    }

    /// The behaviour of the server; calibrates the busy work and prints the result.
    pub fn behaviour(&self) -> Behaviour {
        let mut behaviour = Behaviour {
            app: self.app,
            delay: self.delay,
            poll_before_due: if self.exact {
                POLL_BEFORE_DUE
            } else {
                Duration::ZERO
            },
            requests_per_connection: self.requests_per_connection,
            max_connections: self.max_connections,
            ..Behaviour::default()
        };
        // `finish` has refused an invalid plan.
        if let Ok(Some(plan)) = self.stall_plan() {
            behaviour.set_stall(plan);
        }
        if self.spin_us.is_some() || self.spin_steps.is_some() || self.spin_percent.is_some() {
            let ns_per_step = calibrated();
            eprintln!("towline-responder: a step of busy work takes {ns_per_step:.4} ns");
            let per_request = self
                .spin_steps
                .unwrap_or_else(|| steps(self.spin_us.unwrap_or(0.0) * 1e3, ns_per_step));
            behaviour.set_spin(per_request, self.spin_percent.unwrap_or(0.0));
        }
        behaviour
    }
}

fn protocol(text: &str) -> Result<ProtocolPolicy, String> {
    match text {
        "h1" => Ok(ProtocolPolicy::Http1),
        "h2" => Ok(ProtocolPolicy::Http2),
        _ => Err("expected h1 or h2".into()),
    }
}

/// The name of an application as in the bench's subjects: `asgi:hello_world`.
fn app(text: &str) -> Result<App, String> {
    match text.rsplit(':').next() {
        Some("app") => Ok(App::Catalogue),
        Some("hello_world") => Ok(App::HelloWorld),
        _ => Err("expected app or hello_world".into()),
    }
}

fn amount(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (0.0..=1e6).contains(number))
        .ok_or_else(|| "expected a number from 0 to 1000000".into())
}
