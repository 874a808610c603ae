//! Who is to be woken when its turn comes: those who have news, and behind them those who have lost their client.
//!
//! A connection that breaks leaves as many of the latter as it had streams. They have time; others, whose next piece has
//! arrived meanwhile, have a client that waits.
use std::collections::VecDeque;

use pyo3::prelude::*;

/// Applications that a turn lets go on: they all run before the next one, which is when others are served.
pub const WOKEN_PER_TURN: usize = 16;

/// Why somebody is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    News,
    Loss,
}

impl Cause {
    /// In applications that have news. One that has lost its client unwinds, ends, and gives back all that it held.
    pub fn cost(self) -> usize {
        match self {
            Self::News => 1,
            Self::Loss => 4,
        }
    }
}

/// Futures to complete.
#[derive(Default)]
pub struct Sleepers {
    news: VecDeque<Py<PyAny>>,
    losses: VecDeque<Py<PyAny>>,
}

impl Sleepers {
    pub fn is_empty(&self) -> bool {
        self.news.is_empty() && self.losses.is_empty()
    }

    /// Whether nobody stands before one who comes now.
    pub fn has_none_before(&self, cause: Cause) -> bool {
        match cause {
            Cause::News => self.news.is_empty(),
            Cause::Loss => self.is_empty(),
        }
    }

    pub fn add(&mut self, futures: Vec<Py<PyAny>>, cause: Cause) {
        match cause {
            Cause::News => self.news.extend(futures),
            Cause::Loss => self.losses.extend(futures),
        }
    }

    /// Those of one turn, and what they cost. However many have news, one loss is told.
    pub fn take(&mut self) -> (Vec<Py<PyAny>>, usize) {
        let mut taken: Vec<_> = self.losses.pop_front().into_iter().collect();
        let mut cost = taken.len() * Cause::Loss.cost();
        let rest = [
            (&mut self.news, Cause::News),
            (&mut self.losses, Cause::Loss),
        ];
        for (futures, cause) in rest {
            while cost < WOKEN_PER_TURN
                && let Some(future) = futures.pop_front()
            {
                cost += cause.cost();
                taken.push(future);
            }
        }
        (taken, cost)
    }

    /// Everybody, when there are no more turns.
    pub fn take_all(&mut self) -> Vec<Py<PyAny>> {
        let Self { news, losses } = std::mem::take(self);
        news.into_iter().chain(losses).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.news.iter().chain(&self.losses)
    }
}
