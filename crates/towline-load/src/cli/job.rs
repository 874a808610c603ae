//! The result of parsing a command line.

use std::path::PathBuf;

use super::thresholds::Threshold;
use crate::config::Config;
use crate::hosts::HostOptions;
use crate::search::{Goal, PeakSearch};

#[derive(Clone, Debug)]
pub enum Command {
    /// The help text.
    Help(String),
    Version,
    /// An agent; with agents on other hosts it is their controller.
    Agent(Option<HostOptions>),
    Run(Box<Job>),
}

/// One or several runs, and their output.
#[derive(Clone, Debug)]
pub struct Job {
    pub config: Config,
    pub peak: Option<(Goal, PeakSearch)>,
    /// Numbers of connections; empty: one run.
    pub sweep: Vec<usize>,
    pub output: Output,
    pub hdr_log: Option<PathBuf>,
    /// Conditions under which a run fails.
    pub thresholds: Vec<Threshold>,
    /// Show a live view if the output is a terminal.
    pub live: bool,
    /// The agents that share the load; `None`: it is sent from here.
    pub hosts: Option<HostOptions>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    Text,
    Json,
    Csv,
}
