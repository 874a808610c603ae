//! The figures of a run: of each agent, and of all together.

use super::controller::Run;
use super::member::{Member, State};
use super::messages::PartResult;
use crate::config::{Config, LoopMode};
use crate::report::{self, AgentFigures, Report};
use crate::session::Outcome;
use crate::slice::Slice;
use crate::stats::Tally;
use crate::worker::ThreadResult;

#[expect(clippy::cast_precision_loss, reason = "numbers of threads")]
fn ratio(part: usize, of: usize) -> f64 {
    if of > 0 { part as f64 / of as f64 } else { 0.0 }
}

impl Run<'_> {
    /// The outcome of all agents whose results have come.
    pub(super) fn outcome(self) -> Outcome {
        let mut tally = Tally::new(self.config.steps());
        let (mut results, mut figures, mut memory) = (Vec::new(), Vec::new(), 0);
        for index in 0..self.fleet.members.len() {
            let member = &mut self.fleet.members[index];
            let state = std::mem::replace(&mut member.state, State::Idle);
            let own = match state {
                State::Done(result) => {
                    memory += result.peak_memory_bytes;
                    self.of_result(index, *result, &mut tally, &mut results)
                }
                State::Lost { why, at } => {
                    let own = self.of_lost(index, &why, at);
                    self.fleet.members[index].state = State::Lost { why, at };
                    own
                }
                _ => continue,
            };
            figures.push(own);
        }
        let mut outcome = Outcome::new(&self.config, &self.slice, &results, &tally);
        outcome.report.generator.peak_memory_bytes = memory;
        complete(&mut outcome.report, figures);
        outcome
    }

    /// Adds an agent's counts to those of all, and returns its own figures.
    fn of_result(
        &self,
        index: usize,
        mut part: PartResult,
        tally: &mut Tally,
        results: &mut Vec<ThreadResult>,
    ) -> AgentFigures {
        let member = &self.fleet.members[index];
        let ahead_ns = member.alignment.ahead_ns();
        let clock = &self.fleet.clock;
        let own: Vec<_> = (part.threads.iter())
            .map(|thread| thread.result(&member.name, clock, ahead_ns))
            .collect();
        let (config, slice) = part_of(&self.config, &self.slice, member.threads);
        let mut report = Outcome::new(&config, &slice, &own, &part.tally).report;
        report.generator.peak_memory_bytes = part.peak_memory_bytes;
        // In the report of all, texts say whose they are.
        let texts = [&mut part.tally.first_failure, &mut part.tally.first_change];
        for text in texts.into_iter().flatten() {
            *text = format!("{}: {text}", member.name);
        }
        for what in &mut part.tally.invalid {
            *what = format!("{}: {what}", member.name);
        }
        tally.merge(&part.tally);
        let delay = own.iter().map(|result| result.start_delay).max();
        results.extend(own);
        AgentFigures {
            answered: report.answered,
            requests_per_s: report.requests_per_s,
            errors: report.errors,
            first_failure: report.first_failure,
            response: report.response,
            open_loop: report.open_loop,
            generator: report.generator,
            start_delay_us: delay.unwrap_or_default().as_secs_f64() * 1e6,
            ..self.common(member)
        }
    }

    /// The figures of a lost agent: its last sign of life.
    fn of_lost(&self, index: usize, why: &str, at: std::time::Instant) -> AgentFigures {
        let member = &self.fleet.members[index];
        let counts = &member.counts;
        let after = self.began.map(|began| at.saturating_duration_since(began));
        AgentFigures {
            lost: Some(why.into()),
            lost_after_s: after.map(|after| after.as_secs_f64()),
            answered: counts.answered,
            errors: report::errors(&counts.failed),
            first_failure: member.first_failure.clone(),
            ..self.common(member)
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "microseconds")]
    fn common(&self, member: &Member) -> AgentFigures {
        AgentFigures {
            name: member.name.clone(),
            threads: member.threads,
            share: ratio(member.threads, self.config.threads),
            clock_ahead_us: member.alignment.ahead_ns() as f64 / 1000.0,
            clock_error_us: member.alignment.error().as_secs_f64() * 1e6,
            notes: member.notes.clone(),
            ..AgentFigures::default()
        }
    }
}

/// Adds the agents to the report of all.
fn complete(report: &mut Report, agents: Vec<AgentFigures>) {
    let present: f64 = (agents.iter())
        .filter(|agent| !agent.is_lost())
        .map(|agent| agent.share)
        .sum();
    if let Some(open) = &mut report.open_loop {
        // The requests of a lost agent were due as well.
        open.achieved_share *= present.min(1.0);
    }
    if let Some(limit) = &mut report.generator.limit {
        let limited = agents.iter().find(|agent| agent.generator.limit.is_some());
        if let Some(agent) = limited {
            *limit = format!("{}: {limit}", agent.name);
        }
    }
    report.agents = agents;
    report.warnings = report::warnings(report);
}

/// The part of a load that some of its threads send.
fn part_of(config: &Config, slice: &Slice, threads: usize) -> (Config, Slice) {
    let share = ratio(threads, config.threads);
    let mut own = Config {
        threads,
        connections: config.connections * threads / config.threads.max(1),
        ..config.clone()
    };
    let mut slice = *slice;
    if let LoopMode::Open(rate) = &mut slice.loop_mode {
        rate.per_s *= share;
        own.loop_mode = slice.loop_mode;
    }
    (own, slice)
}
