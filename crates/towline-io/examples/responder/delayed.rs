//! What is to be answered later, and a wait that is exact to microseconds.
//!
//! The poll of the engine waits in whole milliseconds, rounded up: half of one too long on average, which
//! would be 5 % of a delay of 10 ms and would stand in every figure of a client.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use towline_io::{ConnId, Engine};
use towline_proto::StreamId;

use super::{Job, serve, sse, work};

/// What is due on a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Due {
    Hello,
    /// 2,000 bytes, chunked.
    Req,
    /// The next event of a stream of events.
    Event,
}

#[derive(Default)]
pub struct Delayed {
    heap: BinaryHeap<Reverse<(Instant, ConnId, StreamId, Due)>>,
    /// The turn before waited with its eyes open: the engine re-armed itself for what it left.
    armed: bool,
}

impl Delayed {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, at: Instant, id: ConnId, stream: StreamId, due: Due) {
        self.heap.push(Reverse((at, id, stream, due)));
    }

    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Waits until the engine has work or something is due, and says how long `turn_start` shall wait.
    pub fn wait<S: Default>(&mut self, engine: &Engine<S>) -> Option<Duration> {
        if self.is_empty() {
            self.armed = false;
            return None;
        }
        let Reverse((at, ..)) = self.heap.peek()?;
        let left = at.saturating_duration_since(Instant::now());
        Some(exactly::wait(engine, left, &mut self.armed))
    }

    fn due(&mut self, now: Instant) -> Option<(Instant, ConnId, StreamId, Due)> {
        self.heap.peek().filter(|Reverse((at, ..))| *at <= now)?;
        self.heap.pop().map(|Reverse(due)| due)
    }
}

/// Answers what is due.
pub fn answer_delayed(engine: &mut Engine<Job>, delayed: &mut Delayed) {
    let now = Instant::now();
    while let Some((at, id, stream, due)) = delayed.due(now) {
        let Some(peer) = engine.peer(id) else {
            continue;
        };
        // A mistake of ours would show as a missing answer in every test.
        let _ = match due {
            Due::Hello => work::hello(peer, stream),
            Due::Req => work::req(peer, stream),
            Due::Event => {
                if let Some(next) = sse::event(peer, stream, at) {
                    delayed.push(next, id, stream, Due::Event);
                }
                Ok(())
            }
        };
        // What was pipelined behind it is an event now.
        serve(peer, delayed);
        engine.settle(id);
    }
}

#[cfg(target_os = "linux")]
mod exactly {
    use super::{Duration, Engine};

    pub fn wait<S: Default>(engine: &Engine<S>, left: Duration, armed: &mut bool) -> Duration {
        if std::mem::replace(armed, true) {
            let mut polled = libc::pollfd {
                fd: engine.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            let left = libc::timespec {
                tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
                tv_nsec: left.subsec_nanos().into(),
            };
            // SAFETY: one pollfd and one timespec that outlive the call; no signal mask. However it ends,
            // a turn that finds nothing to do is harmless.
            unsafe { libc::ppoll(&raw mut polled, 1, &raw const left, std::ptr::null()) };
        }
        Duration::ZERO
    }
}

#[cfg(not(target_os = "linux"))]
mod exactly {
    use super::{Duration, Engine};

    pub fn wait<S: Default>(_: &Engine<S>, left: Duration, _: &mut bool) -> Duration {
        left
    }
}
