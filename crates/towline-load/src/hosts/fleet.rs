//! The agents of a load: started together, kept for several runs, and ended together.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::link::{self, Incoming, Link, LinkEvent};
use super::member::{LONGEST_SILENCE, Member};
use super::messages::{Clock, Introduction, PartCommand, PartEvent};
use super::options::{HostOptions, OnLostAgent};
use crate::error::LoadError;
use crate::slice::Stop;

/// Time for all agents to start: a connection over a jump host, a copy of the program.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// Interval between checks for Ctrl-C.
pub(super) const TICK: Duration = Duration::from_millis(50);

pub(crate) struct Fleet {
    pub(super) members: Vec<Member>,
    pub(super) events: Receiver<Incoming>,
    pub(super) clock: Clock,
    pub(super) on_lost: OnLostAgent,
}

impl Fleet {
    /// Starts all agents. `threads`: of an agent without a number of its own. `Err` names each one that does not start.
    pub(crate) fn start(
        options: &HostOptions,
        threads: usize,
        stop: &Stop,
    ) -> Result<Self, LoadError> {
        let (sender, events) = mpsc::channel();
        let names = options.names();
        let mut links = Vec::new();
        for (index, (address, name)) in options.agents.iter().zip(&names).enumerate() {
            let link = Link::start(address, options, index, &sender)
                .map_err(|error| LoadError::Config(format!("{name}: {error}")))?;
            links.push(link);
        }
        let introductions = introductions(&links, &names, &events, stop)
            .inspect_err(|_| link::end_all(&mut links))?;
        let parts = links.into_iter().zip(names).zip(introductions);
        let members = (parts.zip(options.threads(threads)))
            .map(|(((link, name), introduction), threads)| {
                Member::new(name, threads, link, introduction)
            })
            .collect();
        Ok(Self {
            members,
            events,
            clock: Clock::new(),
            on_lost: options.on_lost,
        })
    }

    /// Lets the agents know, between runs, that their controller is there.
    pub(crate) fn give_sign_of_life(&self) {
        for member in &self.members {
            member.link.send(&PartCommand::Clock {});
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        link::end_all(self.members.iter_mut().map(|member| &mut member.link));
    }
}

/// Waits for every agent to say what it is.
fn introductions(
    links: &[Link],
    names: &[String],
    events: &Receiver<Incoming>,
    stop: &Stop,
) -> Result<Vec<Introduction>, LoadError> {
    let wrong = |index: usize, why: String| {
        Err(LoadError::Config(format!(
            "no agent on {}: {why}",
            names[index]
        )))
    };
    let mut found: Vec<Option<Introduction>> = names.iter().map(|_| None).collect();
    let deadline = Instant::now() + STARTS_WITHIN;
    while let Some(missing) = found.iter().position(Option::is_none) {
        if stop.is_requested() {
            return Err(LoadError::Config("stopped before the start".into()));
        }
        if Instant::now() >= deadline {
            let time = STARTS_WITHIN.as_secs();
            return wrong(missing, format!("no reply within {time} s"));
        }
        let (index, event) = match events.recv_timeout(TICK) {
            Ok(incoming) => incoming,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(error) => return wrong(missing, error.to_string()),
        };
        match event {
            LinkEvent::Open => links[index].send(&PartCommand::Hello {
                silence_s: LONGEST_SILENCE.as_secs_f64(),
            }),
            LinkEvent::Message(_, PartEvent::Hello(introduction)) => {
                let own = env!("CARGO_PKG_VERSION");
                if introduction.version != own {
                    let version = &introduction.version;
                    return wrong(
                        index,
                        format!(
                            "it is towline {version}, this is {own}: install the same version there, or \
                             copy this one with --agent-binary"
                        ),
                    );
                }
                found[index] = Some(introduction);
            }
            LinkEvent::Message(_, PartEvent::Error(why)) => {
                return wrong(
                    index,
                    format!(
                        "it is another version of towline, which does not know this command: {why}"
                    ),
                );
            }
            LinkEvent::Closed(why) => return wrong(index, why),
            LinkEvent::Message(..) | LinkEvent::Clock { .. } => {}
        }
    }
    Ok(found.into_iter().flatten().collect())
}
