//! Slices of load that agents on other hosts send: this agent is their controller (`--agent --hosts a,b`).
//!
//! A slice is a run of all agents, with connections of its own, divided and merged as `--hosts` does. Between slices the agents
//! are kept, and hear of this one, so that they do not take it for dead.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::Scope;
use std::time::Duration;

use crate::config::Config;
use crate::error::LoadError;
use crate::hosts::messages::Introduction;
use crate::hosts::{Fleet, HostOptions, OnLostAgent, RunOrder};
use crate::monitor::Monitor;
use crate::report::AgentFigures;
use crate::session::Outcome;
use crate::slice::{Slice, Stop};
use crate::sync::lock;

/// Threads of an agent without a number of its own.
const USUAL_THREADS: usize = 1;
/// Agents end after a silence of ten seconds.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

type Agents = Arc<Mutex<Option<Fleet>>>;

pub(super) struct OnHosts {
    options: HostOptions,
    /// `None`: not started yet, or one was lost.
    agents: Agents,
    /// Dropped at the end, which ends the thread of the signs of life.
    _ends: Sender<()>,
}

impl OnHosts {
    pub(super) fn new<'scope>(options: HostOptions, scope: &'scope Scope<'scope, '_>) -> Self {
        let (sender, ended) = mpsc::channel();
        let agents = Agents::default();
        let own = Arc::clone(&agents);
        scope.spawn(move || give_signs_of_life(&own, &ended));
        Self {
            options: HostOptions {
                // Figures of a part of the load are of no use to a program that compares slices.
                on_lost: OnLostAgent::Stop,
                ..options
            },
            agents,
            _ends: sender,
        }
    }

    /// Starts the agents, and describes this one by their names.
    pub(super) fn introduction(&self, own: Introduction) -> Result<Introduction, LoadError> {
        drop(self.started()?);
        Ok(Introduction {
            host: self.options.names().join(", "),
            ..own
        })
    }

    /// Runs a slice on all agents. `Err` names one that was lost; the next slice starts all of them again.
    pub(super) fn slice(&self, config: &Config, slice: &Slice) -> Result<Outcome, LoadError> {
        let mut agents = self.started()?;
        let Some(fleet) = agents.as_mut() else {
            return Err(LoadError::Config("the agents have ended".into()));
        };
        let config = Config {
            loop_mode: slice.loop_mode,
            until: slice.until,
            warm_up: slice.warm_up,
            ..config.clone()
        };
        let order = RunOrder {
            config: &config,
            stop: &Stop::default(),
            monitor: &Monitor::default(),
        };
        let outcome = crate::hosts::run(fleet, &order, &mut |_| {}).and_then(whole);
        if outcome.is_err() {
            *agents = None;
        }
        outcome
    }

    fn started(&self) -> Result<MutexGuard<'_, Option<Fleet>>, LoadError> {
        let mut agents = lock(&self.agents);
        if agents.is_none() {
            let fleet = Fleet::start(&self.options, USUAL_THREADS, &Stop::default())?;
            *agents = Some(fleet);
        }
        Ok(agents)
    }
}

/// The outcome, if no agent was lost.
fn whole(outcome: Outcome) -> Result<Outcome, LoadError> {
    let lost = |agent: &AgentFigures| {
        let why = agent.lost.as_ref()?;
        Some(format!("{} was lost: {why}", agent.name))
    };
    match outcome.report.agents.iter().find_map(lost) {
        None => Ok(outcome),
        Some(why) => Err(LoadError::Config(why)),
    }
}

fn give_signs_of_life(agents: &Agents, ended: &Receiver<()>) {
    while ended.recv_timeout(SIGN_OF_LIFE) == Err(RecvTimeoutError::Timeout) {
        match agents.try_lock() {
            Ok(agents) => {
                if let Some(fleet) = &*agents {
                    fleet.give_sign_of_life();
                }
            }
            Err(TryLockError::Poisoned(_)) => return,
            // Agents hear of the controller by the messages of a run.
            Err(TryLockError::WouldBlock) => {}
        }
    }
}
