//! The access log: one line per exchange, written by a thread of its own.
//!
//! ```text
//! request head    Format::begin        copies the data of the format into a reused Entry
//! response head   Format::on_response  the same for the response's headers
//! end             Log::write           asks the Filter, renders into a reused buffer, appends to a bounded one
//! writer thread   takes the whole buffer, write(2)
//! ```
//!
//! Requests never wait for the disk: when the bounded buffer is full, lines are dropped and counted.

mod escape;
mod filter;
mod format;
mod timestamp;
mod writer;

pub use filter::{Decision, Filter, Rule};
pub use format::{Entry, Format, FormatError, FormatOptions, Outcome, PRESETS};
pub use timestamp::Stamp;
pub use writer::{DEFAULT_BUFFER_BYTES, LineSink, Sink, Writer};

use std::hash::{BuildHasher, RandomState};

/// A compiled format with the buffers that rendering reuses. One for each thread that logs.
pub struct Log {
    format: std::sync::Arc<Format>,
    writer: Writer,
    stamp: Stamp,
    line: Vec<u8>,
    /// Source of chance for sampling: the hash of `drawn`.
    chance: RandomState,
    drawn: u64,
}

impl Log {
    pub fn new(format: std::sync::Arc<Format>, writer: Writer) -> Self {
        Self {
            format,
            writer,
            stamp: Stamp::default(),
            line: Vec::with_capacity(512),
            chance: RandomState::new(),
            drawn: 0,
        }
    }

    pub fn format(&self) -> &Format {
        &self.format
    }

    pub fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Renders one line and queues it, if the filter admits it. Returns false when the buffer is full and the line was
    /// dropped.
    pub fn write(&mut self, entry: &Entry, outcome: &Outcome<'_>) -> bool {
        let decision = self.format.decide(entry, outcome.duration);
        if decision == Decision::Never
            || decision == Decision::Sampled && Some(self.draw()) >= self.format.filter().sample
        {
            return true;
        }
        self.line.clear();
        self.format
            .render(entry, outcome, &mut self.stamp, &mut self.line);
        self.line.push(b'\n');
        self.writer.push(&self.line)
    }

    /// A number from 0 to below 1.
    fn draw(&mut self) -> f64 {
        self.drawn += 1;
        let high = (self.chance.hash_one(self.drawn) >> 32) as u32;
        f64::from(high) / 2_f64.powi(32)
    }
}
