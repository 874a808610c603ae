//! The responder's command line.

use std::error::Error;
use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use lexopt::prelude::*;
use towline_io::{Identity, TlsSettings};
use towline_proto::ProtocolPolicy;

use crate::shutdown::time;

use super::routes::behaviour::{App, Behaviour};
use super::routes::spin::{self, calibrated};
use super::routes::stall::{Every, StallPlan};

pub const HELP: &str = "\
usage: towline-responder [OPTIONS]

Prints its addresses, one per line, and serves until SIGTERM, SIGINT or the end of a piped standard input. Each line of
that input is answered with the version and the CPU time of the responder.

  --host HOST, --port N     Address to bind (default: 127.0.0.1 and a free port)
  --bind HOST:PORT          Address to bind, in place of --host and --port; repeatable
  --cert FILE, --key FILE   Serve TLS
  --app NAME                Application to serve: app (Roadrunner; the default) or hello_world (Hornbeam)
  --requests-per-connection N
                            Close a connection after N responses
  --protocol h1|h2          Serve only this protocol
  --http3                   Also serve HTTP/3, on the UDP port of the same number; needs --cert
  --early-data              Accept early data (0-RTT) over HTTP/3
  --max-streams N           Concurrent streams on a connection of HTTP/2 or HTTP/3 (default: 1024)
  --max-connections N       Answer 503 on further connections

Behaviour (TIME: 10us, 1.5ms, 2s)
  --delay TIME              Delay every response
  --exact                   Keep the delay to the microsecond: poll for the last 100 us instead of sleeping
  --stall-every TIME        Stop the whole server at these intervals ...
  --stall-requests N        ... or after each N requests, like a garbage collector
  --stall-for TIME          Length of a stall
  --stall-times N           Number of stalls (default: no limit)
  --spin-us N               Busy work for each request, in microseconds
  --spin-steps N            Busy work for each request, in steps of some nanoseconds. Two responders that are to do the
                            same work take steps: their measurements of a microsecond differ
  --spin-percent P          Use P % more CPU time for everything

Queries of any target: delay_us=N, fast_ms=F&slow_ms=S&slow_share=0.1, error_share=0.01, and
fault=one-byte|short|long|truncated|early-close|garbage|twice|early|hang with fault_share=S.
At /ws they apply to messages, and there is also fault=kind.
GET /injected returns the number of injected faults and the times of the stalls.

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
    protocols: Option<ProtocolPolicy>,
    pub http3: bool,
    pub early_data: bool,
    pub max_streams: Option<u32>,
    behaviour: Behaviour,
    stall: StallOptions,
    spin: SpinOptions,
}

#[derive(Default)]
struct StallOptions {
    every: Option<Duration>,
    requests: Option<u64>,
    length: Option<Duration>,
    times: Option<usize>,
}

/// Busy work for each request, in steps or in microseconds, and for each turn.
#[derive(Default)]
struct SpinOptions {
    steps: Option<u64>,
    us: Option<f64>,
    percent: Option<f64>,
}

impl Options {
    pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, lexopt::Error> {
        let mut options = Self::default();
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(argument) = parser.next()? {
            let Options {
                behaviour,
                stall,
                spin,
                ..
            } = &mut options;
            match argument {
                Short('h') | Long("help") => return Ok(Command::Help),
                Long("port") => options.port = parser.value()?.parse()?,
                Long("host") => options.host = Some(parser.value()?.string()?),
                Long("bind") => options.binds.push(parser.value()?.string()?),
                Long("cert") => options.identity().cert_file = parser.value()?.into(),
                Long("key") => options.identity().key_file = Some(parser.value()?.into()),
                Long("protocol") => options.protocols = Some(parser.value()?.parse_with(protocol)?),
                Long("http3") => options.http3 = true,
                Long("early-data") => options.early_data = true,
                Long("max-streams") => options.max_streams = given(&mut parser)?,
                Long("requests-per-connection") => {
                    behaviour.requests_per_connection = given(&mut parser)?;
                }
                Long("max-connections") => behaviour.max_connections = given(&mut parser)?,
                Long("app") => behaviour.app = parser.value()?.parse_with(app)?,
                Long("delay") => behaviour.delay = parser.value()?.parse_with(time)?,
                Long("exact") => behaviour.poll_before_due = POLL_BEFORE_DUE,
                Long("stall-every") => stall.every = Some(parser.value()?.parse_with(time)?),
                Long("stall-for") => stall.length = Some(parser.value()?.parse_with(time)?),
                Long("stall-requests") => stall.requests = given(&mut parser)?,
                Long("stall-times") => stall.times = given(&mut parser)?,
                Long("spin-us") => spin.us = Some(parser.value()?.parse_with(amount)?),
                Long("spin-steps") => spin.steps = given(&mut parser)?,
                Long("spin-percent") => spin.percent = Some(parser.value()?.parse_with(amount)?),
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
        self.stall.plan()?;
        Ok(Command::Serve(Box::new(self)))
    }

    pub fn protocols(&self) -> ProtocolPolicy {
        self.protocols.unwrap_or(ProtocolPolicy::Either)
    }

    /// The behaviour of the server; calibrates the busy work and prints the result.
    pub fn behaviour(&mut self) -> Behaviour {
        let mut behaviour = std::mem::take(&mut self.behaviour);
        // `finish` has refused an invalid plan.
        if let Ok(Some(plan)) = self.stall.plan() {
            behaviour.set_stall(plan);
        }
        let SpinOptions { steps, us, percent } = self.spin;
        if us.is_some() || steps.is_some() || percent.is_some() {
            let ns_per_step = calibrated();
            eprintln!("towline-responder: a step of busy work takes {ns_per_step:.4} ns");
            let per_request =
                steps.unwrap_or_else(|| spin::steps(us.unwrap_or(0.0) * 1e3, ns_per_step));
            behaviour.set_spin(per_request, percent.unwrap_or(0.0));
        }
        behaviour
    }
}

impl StallOptions {
    fn plan(&self) -> Result<Option<StallPlan>, lexopt::Error> {
        let (every, length) = match (self.every, self.requests, self.length) {
            (None, None, None) if self.times.is_none() => return Ok(None),
            (Some(every), None, Some(length)) if length < every => (Every::Time(every), length),
            (Some(_), None, Some(_)) => {
                return Err("--stall-for must be less than --stall-every".into());
            }
            (None, Some(count @ 1..), Some(length)) => (Every::Requests(count), length),
            _ => {
                return Err(
                    "a stall needs --stall-for, and --stall-every or --stall-requests".into(),
                );
            }
        };
        Ok(Some(StallPlan {
            every,
            length,
            times: self.times,
        }))
    }
}

/// The number that an option takes.
fn given<T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>>>(
    parser: &mut lexopt::Parser,
) -> Result<Option<T>, lexopt::Error> {
    Ok(Some(parser.value()?.parse()?))
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
