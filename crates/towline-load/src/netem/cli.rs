//! Command line of the network emulator.

use std::ffi::OsString;
use std::io::{self, Write};
#[cfg(all(target_os = "linux", not(towline_portable)))]
use std::net::{IpAddr, Ipv4Addr};
use std::net::{SocketAddr, ToSocketAddrs};

use lexopt::prelude::*;

use super::Netem;
use super::conditions::NetworkConditions;
#[cfg(all(target_os = "linux", not(towline_portable)))]
use super::packets::PacketNetem;
use crate::shutdown::{ShutdownSignal, time};

const HELP: &str = "\
usage: netem --to HOST:PORT [OPTIONS]

Prints the address at which it listens, and runs until SIGTERM, SIGINT or the end of a piped standard input.

  --to HOST:PORT            Server to forward to, over TCP and UDP
  --listen HOST:PORT        Address to listen on (default: 127.0.0.1:0, a free port)
  --rtt TIME                Round-trip time: 10us, 1.5ms, 2s (default: 0s); a handshake takes one as well
  --jitter TIME             Largest deviation of a round trip, in either direction (default: 0s)
  --rate RATE               Rate of all connections together, in each direction: 56kbit, 100mbit, 1gbit (default: no limit)
  --loss SHARE              Share of lost packets, such as 0.1% (default: 0%); TCP waits for a retransmission
  --reorder SHARE           Share of UDP datagrams that arrive after later ones (default: 0%)
  --duplicates SHARE        Share of UDP datagrams that arrive twice (default: 0%)
  --queue TIME              Time that datagrams may wait for the link (default: a round trip, at least 10ms)
  --seed N                  Seed of jitter and losses (default: 1)
  --interface NAME          Carry packets through this TUN interface, in place of a proxy (needs root)
  -h, --help

With --interface, netem delays and loses single packets of TCP and UDP between the interface's own address, 198.18.x.1
in --to, and 198.18.x.2. Configure the interface first, for example with
  ip address add 198.18.0.1/30 dev NAME && ip link set NAME up
";

/// Runs the program with `args` and returns its exit status: 0, or 2 when it could not run.
pub fn netem_main(args: impl IntoIterator<Item = OsString>) -> i32 {
    let outcome = match Options::parse(args) {
        Ok(None) => io::stdout().write_all(HELP.as_bytes()),
        Ok(Some(options)) => run(&options),
        Err(why) => {
            eprintln!("towline netem: {why} (see --help)");
            return 2;
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("towline netem: {error}");
            2
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    if let Some(name) = &options.interface {
        return run_interface(name, address(&options.to)?, &options.conditions);
    }
    let (listen, to) = (address(&options.listen)?, address(&options.to)?);
    let mut netem = Netem::new(listen, to, &options.conditions)?;
    let shutdown = {
        let waker = netem.waker();
        ShutdownSignal::install(move || drop(waker.wake()), || {})
    };
    let mut out = io::stdout();
    writeln!(out, "{}", netem.local_addr()?)?;
    out.flush()?;
    towline_io::generator::exact_timers();
    while !shutdown.is_requested() {
        netem.turn()?;
    }
    Ok(())
}

/// Prints the address at which `server` is reached through the interface.
#[cfg(all(target_os = "linux", not(towline_portable)))]
fn run_interface(name: &str, server: SocketAddr, conditions: &NetworkConditions) -> io::Result<()> {
    let IpAddr::V4(own) = server.ip() else {
        return Err(io::Error::other("--interface is for IPv4"));
    };
    let mut netem = PacketNetem::new(name, server, conditions)?;
    let shutdown = ShutdownSignal::install(|| {}, || {});
    let neighbour = Ipv4Addr::from_bits(own.to_bits() + 1);
    let mut out = io::stdout();
    writeln!(out, "{neighbour}:{}", server.port())?;
    out.flush()?;
    towline_io::generator::exact_timers();
    while !shutdown.is_requested() {
        netem.turn()?;
    }
    Ok(())
}

#[cfg(not(all(target_os = "linux", not(towline_portable))))]
fn run_interface(_: &str, _: SocketAddr, _: &NetworkConditions) -> io::Result<()> {
    Err(io::Error::other("--interface needs Linux"))
}

fn address(spec: &str) -> io::Result<SocketAddr> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{spec}: {error}"));
    let mut found = spec.to_socket_addrs().map_err(named)?;
    found
        .next()
        .ok_or_else(|| named(io::ErrorKind::AddrNotAvailable.into()))
}

struct Options {
    listen: String,
    to: String,
    interface: Option<String>,
    conditions: NetworkConditions,
}

impl Options {
    fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Option<Self>, lexopt::Error> {
        let mut listen = "127.0.0.1:0".to_owned();
        let mut to = None;
        let mut interface = None;
        let mut conditions = NetworkConditions {
            seed: 1,
            ..NetworkConditions::default()
        };
        let mut parser = lexopt::Parser::from_args(args);
        while let Some(argument) = parser.next()? {
            match argument {
                Long("to") => to = Some(parser.value()?.string()?),
                Long("interface") => interface = Some(parser.value()?.string()?),
                Long("listen") => listen = parser.value()?.string()?,
                Long("rtt") => conditions.rtt = parser.value()?.parse_with(time)?,
                Long("jitter") => conditions.jitter = parser.value()?.parse_with(time)?,
                Long("rate") => conditions.rate = Some(parser.value()?.parse_with(rate)?),
                Long("loss") => conditions.loss = parser.value()?.parse_with(share)?,
                Long("reorder") => conditions.reorder = parser.value()?.parse_with(share)?,
                Long("duplicates") => conditions.duplicates = parser.value()?.parse_with(share)?,
                Long("queue") => conditions.queue = Some(parser.value()?.parse_with(time)?),
                Long("seed") => conditions.seed = parser.value()?.parse()?,
                Short('h') | Long("help") => return Ok(None),
                other => return Err(other.unexpected()),
            }
        }
        if conditions.jitter > conditions.rtt {
            return Err("--jitter cannot be more than --rtt".into());
        }
        Ok(Some(Self {
            listen,
            to: to.ok_or("--to HOST:PORT is missing")?,
            interface,
            conditions,
        }))
    }
}

/// Parses `100mbit` into bytes per second.
fn rate(text: &str) -> Result<f64, String> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    units
        .into_iter()
        .find_map(|(unit, bits)| {
            let number: f64 = text.strip_suffix(unit)?.trim_end().parse().ok()?;
            let rate = number * bits / 8.0;
            (1000.0..=1e11).contains(&rate).then_some(rate)
        })
        .ok_or_else(|| "a rate is a number with its unit, at least 8kbit, as in 100mbit".into())
}

/// Parses `0.1%` into a share.
fn share(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text
        .strip_suffix('%')
        .and_then(|number| number.trim_end().parse().ok());
    percent
        .filter(|percent| (0.0..=50.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "a share is a percentage from 0% to 50%, as in 0.1%".into())
}
