//! One run on all agents.
//!
//! ```text
//! prepare: every agent opens its connections ─► align: the clocks ─► begin: at one time ─► follow ─► Outcome
//!     └── one that cannot ends the run, with its name         one that is lost: the others go on, or stop ──┘
//! ```

use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use super::fleet::{Fleet, TICK};
use super::link::LinkEvent;
use super::member::{LONGEST_SILENCE, Member, State};
use super::messages::{Order, PartCommand, PartEvent};
use super::options::OnLostAgent;
use crate::config::{Config, Trust};
use crate::error::LoadError;
use crate::monitor::Monitor;
use crate::schedule::Share;
use crate::session::{Outcome, Part};
use crate::slice::{Slice, Stop};

/// Questions about each clock before the start: enough that one or more are undisturbed.
const CLOCK_QUESTIONS: u32 = 64;
/// Limit of the time for them, on slow connections.
const ALIGNS_WITHIN: Duration = Duration::from_secs(3);
/// From the last message before the start to the start: the message arrives in the meantime.
const HEAD_START: Duration = Duration::from_millis(200);
/// A sign of life of the controller, and another look at the clocks.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// Descriptors of an agent that are no connections.
const OTHER_FILES: u64 = 32;

/// A load for all agents.
pub(crate) struct RunOrder<'a> {
    /// The whole load; its threads are those of one agent.
    pub(crate) config: &'a Config,
    pub(crate) stop: &'a Stop,
    pub(crate) monitor: &'a Monitor,
}

/// Runs a load on all agents. `note` gets what is noticed about one, at once.
pub(crate) fn run(
    fleet: &mut Fleet,
    order: &RunOrder<'_>,
    note: &mut dyn FnMut(&str),
) -> Result<Outcome, LoadError> {
    Run::new(fleet, order, note).run()
}

pub(super) struct Run<'a> {
    pub(super) fleet: &'a mut Fleet,
    /// The whole load, with all threads.
    pub(super) config: Config,
    pub(super) slice: Slice,
    order: &'a RunOrder<'a>,
    note: &'a mut dyn FnMut(&str),
    pub(super) began: Option<Instant>,
    stopped: Option<Instant>,
}

impl<'a> Run<'a> {
    fn new(fleet: &'a mut Fleet, order: &'a RunOrder<'a>, note: &'a mut dyn FnMut(&str)) -> Self {
        let threads = fleet.members.iter().map(|member| member.threads).sum();
        let config = Config {
            threads,
            ..order.config.clone()
        };
        Self {
            slice: Slice::of(&config),
            fleet,
            config,
            order,
            note,
            began: None,
            stopped: None,
        }
    }

    fn run(mut self) -> Result<Outcome, LoadError> {
        self.config.check()?;
        self.slice.check(&self.config)?;
        self.check_limits()?;
        if let Some(lost) = self.fleet.members.iter().find(|member| member.is_lost()) {
            return Err(LoadError::Config(format!("{} was lost before", lost.name)));
        }
        let started = self.prepare().and_then(|()| self.align());
        if let Err(error) = started {
            self.stop_all();
            return Err(error);
        }
        self.begin();
        self.follow();
        Ok(self.outcome())
    }

    /// The first thread of each agent among all.
    pub(super) fn first_threads(&self) -> Vec<u32> {
        let members = self.fleet.members.iter();
        let firsts = members.scan(0, |sum, member| {
            let first = *sum;
            *sum += member.threads as u32;
            Some(first)
        });
        firsts.collect()
    }

    /// Names an agent whose machine has too few ports or open files for its connections.
    fn check_limits(&self) -> Result<(), LoadError> {
        let destinations = self.config.destinations().len().max(1) as u64;
        let all = self.config.threads as u64;
        for member in &self.fleet.members {
            let name = &member.name;
            let connections =
                (self.config.connections as u64 * member.threads as u64).div_ceil(all);
            let has = &member.introduction;
            if let Some(limit) = has
                .open_files
                .filter(|limit| *limit < connections + OTHER_FILES)
            {
                return Err(LoadError::Config(format!(
                    "{name}: {connections} connections need more open files than its limit of {limit} \
                     (ulimit -n)"
                )));
            }
            let to_each = connections.div_ceil(destinations);
            if let Some(ports) = has.local_ports.filter(|ports| *ports < to_each)
                && self.config.unix_socket.is_none()
            {
                return Err(LoadError::Config(format!(
                    "{name}: it has {ports} local ports (net.ipv4.ip_local_port_range), too few for \
                     {to_each} connections to one server"
                )));
            }
        }
        Ok(())
    }

    /// Has every agent open its connections.
    fn prepare(&mut self) -> Result<(), LoadError> {
        let authorities_pem = match &self.config.trust {
            Trust::Path(path) => Some(authorities(path)?),
            _ => None,
        };
        let now = Instant::now();
        let firsts = self.first_threads();
        let of = self.config.threads as u32;
        let agents = self.fleet.members.len() as u32;
        for (index, first) in (0_u32..).zip(firsts) {
            let member = &mut self.fleet.members[index as usize];
            let data = self.config.data.as_ref();
            let rows = Share { index, of: agents };
            let order = Order {
                config: Config {
                    threads: member.threads,
                    data: data.map(|data| Arc::new(data.part(rows))),
                    ..self.config.clone()
                },
                slice: self.slice,
                part: Part { first, of },
                authorities_pem: authorities_pem.clone(),
            };
            member.reset(now);
            member.counters = (0..member.threads)
                .map(|_| self.order.monitor.counters())
                .collect();
            member.link.send(&PartCommand::Prepare { order: &order });
        }
        self.show();
        // Each connection is tried once, all at the same time, after whatever a slow machine needs.
        let deadline = now + self.config.connect_timeout + LONGEST_SILENCE;
        self.wait_for(deadline, |member| matches!(member.state, State::Ready))
    }

    /// Compares the clocks.
    fn align(&mut self) -> Result<(), LoadError> {
        for member in &mut self.fleet.members {
            member.alignment = super::clock::ClockAlignment::default();
            member.link.send(&PartCommand::Clock {});
        }
        let deadline = Instant::now() + ALIGNS_WITHIN;
        let is_aligned = |member: &Member| {
            let enough = member.alignment.count() >= CLOCK_QUESTIONS;
            enough || Instant::now() >= deadline && member.alignment.count() > 0
        };
        self.wait_for(deadline + LONGEST_SILENCE, is_aligned)
    }

    /// Waits before the start, when every agent is needed.
    fn wait_for(
        &mut self,
        deadline: Instant,
        is_done: impl Fn(&Member) -> bool,
    ) -> Result<(), LoadError> {
        loop {
            if self.order.stop.is_requested() {
                return Err(LoadError::Config("stopped before the start".into()));
            }
            let lost = self
                .fleet
                .members
                .iter()
                .find_map(|member| match &member.state {
                    State::Lost { why, .. } => Some(format!("{}: {why}", member.name)),
                    _ => None,
                });
            if let Some(why) = lost {
                return Err(LoadError::Config(why));
            }
            let Some(waiting) = self.fleet.members.iter().find(|member| !is_done(member)) else {
                return Ok(());
            };
            if Instant::now() >= deadline {
                return Err(LoadError::Config(format!(
                    "{}: it is not ready in time",
                    waiting.name
                )));
            }
            self.take_events(TICK);
        }
    }

    fn begin(&mut self) {
        let longest = (self.fleet.members.iter()).map(|member| member.alignment.error());
        // The message takes one way, half a round trip, or some more.
        let head_start = HEAD_START + 4 * longest.max().unwrap_or_default();
        let at = Instant::now() + head_start;
        self.began = Some(at);
        self.order.monitor.begin(at);
        for member in &mut self.fleet.members {
            let own_ns = self.fleet.clock.ns(at);
            let at_ns = own_ns.saturating_add_signed(member.alignment.ahead_ns());
            member.link.send(&PartCommand::Begin { at_ns });
            member.state = State::Running;
            // Nothing is heard before the start.
            member.heard = at;
        }
    }

    /// Follows the load to its end.
    fn follow(&mut self) {
        let mut heartbeat_at = Instant::now();
        while self.fleet.members.iter().any(Member::is_running) {
            self.take_events(TICK);
            let now = Instant::now();
            if self.order.stop.is_requested() {
                self.stop_all();
            }
            if now >= heartbeat_at {
                heartbeat_at = now + HEARTBEAT;
                for member in self.fleet.members.iter().filter(|member| !member.is_lost()) {
                    member.link.send(&PartCommand::Clock {});
                }
            }
            self.check_silence(now);
            self.show();
        }
    }

    fn check_silence(&mut self, now: Instant) {
        // An agent that does not end when it is asked to is lost as well.
        let overdue = self.stopped.is_some_and(|at| now >= at + LONGEST_SILENCE);
        for index in 0..self.fleet.members.len() {
            let member = &mut self.fleet.members[index];
            if !member.is_running() {
                continue;
            }
            if let Some(news) = member.on_tick(now) {
                self.notify(index, &news);
            }
            let member = &self.fleet.members[index];
            if now.saturating_duration_since(member.heard) >= LONGEST_SILENCE || overdue {
                let why = if overdue {
                    "it did not end when it was asked to".into()
                } else {
                    format!(
                        "nothing was heard of it for {} s",
                        LONGEST_SILENCE.as_secs()
                    )
                };
                self.lose(index, why);
            }
        }
    }

    /// Takes what has come, or waits for something.
    fn take_events(&mut self, time: Duration) {
        let mut wait = time;
        loop {
            match self.fleet.events.recv_timeout(wait) {
                Ok((index, event)) => self.on_event(index, event),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
            wait = Duration::ZERO;
        }
    }

    fn on_event(&mut self, index: usize, event: LinkEvent) {
        let member = &mut self.fleet.members[index];
        if member.is_lost() {
            return;
        }
        match event {
            LinkEvent::Open => {}
            LinkEvent::Clock {
                sent,
                received,
                agent_ns,
            } => {
                member.heard = received;
                let clock = &self.fleet.clock;
                let (sent, received) = (clock.ns(sent), clock.ns(received));
                member.alignment.observe(sent, received, agent_ns);
                let aligns = matches!(member.state, State::Ready);
                if aligns && member.alignment.count() < CLOCK_QUESTIONS {
                    member.link.send(&PartCommand::Clock {});
                }
            }
            LinkEvent::Closed(why) => self.lose(index, why),
            LinkEvent::Message(at, message) => {
                member.heard = member.heard.max(at);
                self.on_message(index, message, at);
            }
        }
    }

    fn on_message(&mut self, index: usize, message: PartEvent, at: Instant) {
        let member = &mut self.fleet.members[index];
        match message {
            PartEvent::Ready {} => member.state = State::Ready,
            PartEvent::Progress(progress) => {
                for news in member.on_progress(*progress, at) {
                    self.notify(index, &news);
                }
            }
            PartEvent::Result(result) => self.on_result(index, result),
            PartEvent::Failed(why) | PartEvent::Error(why) => self.lose(index, why),
            PartEvent::Hello(_) | PartEvent::Clock(_) | PartEvent::Ok(_) => {}
        }
    }

    fn on_result(&mut self, index: usize, result: Box<super::messages::PartResult>) {
        let member = &mut self.fleet.members[index];
        let ended_early = result
            .threads
            .iter()
            .find_map(|thread| thread.gave_up.clone());
        member.state = State::Done(result);
        for counters in &member.counters {
            counters.leave_at_end();
        }
        if let Some(why) = ended_early {
            self.notify(index, &why);
            self.on_missing();
        }
    }

    /// The agent does not take part any more.
    fn lose(&mut self, index: usize, why: String) {
        let member = &mut self.fleet.members[index];
        if matches!(member.state, State::Done(_)) {
            return;
        }
        member.link.abort();
        for counters in &member.counters {
            counters.leave();
        }
        let text = format!("lost: {why}");
        let at = Instant::now();
        member.state = State::Lost { why, at };
        if self.began.is_some() {
            self.notify(index, &text);
            self.on_missing();
        }
    }

    fn on_missing(&mut self) {
        if self.fleet.on_lost == OnLostAgent::Stop {
            self.stop_all();
        }
    }

    fn stop_all(&mut self) {
        if self.stopped.is_some() {
            return;
        }
        self.stopped = Some(Instant::now());
        for member in self.fleet.members.iter().filter(|member| !member.is_lost()) {
            member.link.send(&PartCommand::Stop {});
        }
    }

    fn notify(&mut self, index: usize, news: &str) {
        let name = &self.fleet.members[index].name;
        (self.note)(&format!("{name}: {news}"));
    }

    fn show(&self) {
        let members = self.fleet.members.iter();
        self.order
            .monitor
            .show_agents(members.map(Member::shown).collect());
    }
}

/// The file or the files of a folder with authorities.
fn authorities(path: &std::path::Path) -> Result<String, LoadError> {
    let failed = |error: std::io::Error| LoadError::Config(format!("{}: {error}", path.display()));
    if path.is_dir() {
        return Err(LoadError::Config(format!(
            "{}: with several agents, --cacert is a file, not a folder",
            path.display()
        )));
    }
    std::fs::read_to_string(path).map_err(failed)
}
