//! The load generator: requests on a schedule, answers verified by the strict parser, honest figures.
//!
//! Threads share nothing: each has its own engine, connections, schedule and histograms, which are
//! merged when all is over. In a *closed loop* every connection sends its next request when it has its
//! answer: that finds the capacity. In an *open loop* requests are due at times fixed beforehand, and
//! latency counts from the intended start, so that a stall is charged to every request that should
//! have been sent meanwhile.
//!
//! ```text
//! config ─► run ─┬► worker: Engine + schedule + stats ─┬► stats, merged ─► report ─► text, JSON, CSV, hdr
//!                └► worker ...                         ┘
//! search: find_peak and connections_sweep, over runs
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

mod check;
pub mod cli;
mod config;
mod output;
mod report;
mod run;
mod schedule;
mod search;
mod stats;
mod target;
mod usage;
mod worker;

pub use config::{Config, LoadError, Mix, Pace, Trust, Until};
pub use output::{csv, curve, hdr_log};
pub use report::{
    Errors, Generator, Latency, LiveConnections, OpenLoop, Percentile, Report, Second, Setup,
    StatusCount,
};
pub use run::{Outcome, Stop, run};
pub use schedule::{Arrivals, Delay, Rate, Schedule, Share};
pub use search::{Goal, Judgement, Peak, PeakSearch, connections_sweep, find_peak};
pub use target::{Expect, Target};
