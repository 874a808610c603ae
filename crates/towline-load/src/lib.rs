//! The load generator: requests on a schedule, responses verified by the strict parser, latency histograms.
//!
//! Threads share nothing: each has its own engine, connections, schedule and histograms, which are merged
//! at the end. In a *closed loop* each connection sends its next request when it has received the
//! response, which measures capacity. In an *open loop* requests are due at fixed times, and latency
//! counts from the intended start, so that a stall counts for every request that was due in it.
//!
//! ```text
//! config ─► session ─┬► worker: Engine + schedule + stats ─┬► stats, merged ─► report ─► text, JSON, CSV, hdr
//!                    └► worker ...                         ┘
//! run: a session of one slice; search: find_peak and connections_sweep, over runs
//! agent: sessions for another program, a line of JSON in and one out; hosts: one load from several agents
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//! use towline_load::{Config, Stop, Target, Until, run};
//!
//! # fn main() -> Result<(), towline_load::LoadError> {
//! let mut config = Config::new(vec![Target::get("http://127.0.0.1:8000/")?]);
//! config.until = Until::Time(Duration::from_secs(5));
//! let outcome = run(&config, &Stop::default())?;
//! println!("{}", outcome.report);
//! # Ok(())
//! # }
//! ```

pub mod agent;
mod capture;
mod certificate;
mod check;
pub mod cli;
mod config;
mod data;
mod error;
mod hosts;
mod live;
mod monitor;
pub mod netem;
mod output;
mod report;
mod responder;
mod run;
mod schedule;
mod search;
mod session;
mod shutdown;
mod slice;
mod spec;
mod stages;
mod stats;
mod sync;
mod target;
mod template;
mod usage;
mod variables;
mod websocket;
mod worker;

pub use capture::{Capture, Source};
pub use certificate::TestCertificate;
pub use config::{Config, LoopMode, Mix, Trust, Until};
pub use data::Data;
pub use error::LoadError;
pub use hosts::{AgentAddress, HostOptions, OnLostAgent};
pub use monitor::{FAILURE_CLASSES, Monitor, Snapshot};
pub use netem::netem_main;
pub use output::{csv, curve, hdr_log};
pub use report::{
    AgentFigures, Errors, Generator, Latency, LiveConnections, OpenLoop, Percentile, Report,
    Second, Setup, StatusCount,
};
pub use responder::responder_main;
pub use run::{run, run_monitored};
pub use schedule::{Arrivals, Delay, Rate, Schedule, Share};
pub use search::{Goal, Judgement, Peak, PeakSearch, connections_sweep, find_peak};
pub use session::{Outcome, Session};
pub use slice::{Slice, Stop};
pub use spec::Spec;
pub use stages::Stages;
pub use target::{Coding, Expect, Messages, SendMode, Target};
