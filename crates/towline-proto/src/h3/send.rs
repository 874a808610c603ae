//! Sending heads and bodies. A body of known size is one DATA frame, whose header follows the head; one of unknown size is
//! a frame for each write.

use std::time::Instant;

use bytes::Bytes;

use crate::multiplexed::Messages;
use crate::multiplexed::buffers::Data;
use crate::multiplexed::encode::field;
use crate::multiplexed::exchange::Admitted;
use crate::multiplexed::fields::{RequestInfo, Scheme};
use crate::multiplexed::response::EncodedBlock;
use crate::multiplexed::streams::StreamKey;
use crate::{Field, QuicCommand, UserError};

use super::Connection;
use super::frame;
use super::qpack::Encoder;
use super::stream::{EndStream, SendSide, SendState};

/// Shared bytes up to this size are copied: QUIC then handles one piece instead of two.
const MAX_COPY_BYTES: usize = 4 * 1024;

impl Connection {
    pub fn write(&mut self, key: StreamKey, data: &[u8]) -> Result<(), UserError> {
        self.write_data(key, Data::Copied(data))
    }

    fn write_data(&mut self, key: StreamKey, data: Data<'_>) -> Result<(), UserError> {
        let n = data.len();
        let admitted = self.core.stream_mut(key).exchange.admit(n)?;
        if admitted == Admitted::Nothing {
            return Ok(());
        }
        self.core.with_outbox(key, |outbox| {
            match admitted {
                Admitted::Sized { last: true } => outbox.end = EndStream::Pending,
                Admitted::Unsized => {
                    outbox.append(|out| frame::data_header(out, n as u64));
                }
                Admitted::Sized { last: false } | Admitted::Nothing => {}
            }
            outbox.push_data(data);
        });
        self.update_send_queue(key);
        self.core.send_capacity(key);
        Ok(())
    }

    /// When bytes of a stream were last sent.
    pub(super) fn count_sent(&mut self, key: StreamKey, n: usize, now: Instant) {
        let stats = &mut self.core.stream_mut(key).stats;
        stats.sent += n as u64;
        stats.last_sent = Some(now);
    }
}

impl Messages for Connection {
    type Encoder = Encoder;
    /// The oldest table entry that the head refers to.
    type Written = u64;

    fn scheme(&self) -> Scheme {
        Scheme::Https
    }

    #[inline]
    fn generation(&self) -> Option<u32> {
        self.encoder.generation()
    }

    #[inline]
    fn open_next(&mut self, info: RequestInfo) -> StreamKey {
        let id = self.own_requests.open();
        let uni = false;
        self.commands.push_back(QuicCommand::Open { uni, id });
        let key = self.begin_stream(id);
        let own = &mut self.core.stream_mut(key).own;
        own.is_announced = true;
        own.waits_for_handshake = self.early_data.is_open && !(info.is_safe && info.end);
        key
    }

    /// The section is in the lists of the core until the next one.
    #[inline]
    fn write_head(
        &mut self,
        key: StreamKey,
        _end: bool,
        fill: impl FnOnce(&mut Encoder, &mut Vec<u8>),
    ) -> u64 {
        let (stream, own) = self.core.stream_and_own(key);
        own.lines.clear();
        own.section.clear();
        self.encoder.start();
        fill(&mut self.encoder, &mut own.lines);
        let id = stream.id.0;
        let oldest = self.encoder.end(id, &own.lines, &mut own.section);
        self.core.with_outbox_and_own(key, |outbox, own| {
            outbox.append(|out| frame::headers(out, &own.section));
        });
        self.update_send_queue(key);
        oldest
    }

    #[inline]
    fn written_block(&self, oldest: u64, generation: u32) -> EncodedBlock<'_> {
        EncodedBlock {
            bytes: &self.core.own().section,
            generation,
            oldest,
        }
    }

    #[inline]
    fn repeat_head(&mut self, key: StreamKey, block: EncodedBlock<'_>, _end: bool) {
        let id = self.core.stream(key).id.0;
        self.encoder.repeat(id, block.oldest);
        self.core.with_outbox(key, |outbox| {
            outbox.append(|out| frame::headers(out, block.bytes));
        });
        self.update_send_queue(key);
    }

    /// Writes what follows a head: the header of a body of known size, or the end.
    #[inline]
    fn after_head(&mut self, key: StreamKey, end: bool) {
        let stream = self.core.stream_mut(key);
        if end {
            stream.outbox.end = EndStream::Pending;
            self.update_send_queue(key);
        } else if let SendState::Body(Some(len @ 1..)) = stream.exchange.send_state {
            self.core.with_outbox(key, |outbox| {
                outbox.append(|out| frame::data_header(out, len));
            });
        }
    }

    fn finish_unsized(&mut self, key: StreamKey, trailers: &[Field<'_>]) {
        if !trailers.is_empty() {
            self.write_head(key, true, |encoder, out| {
                for line in trailers {
                    field(encoder, line, out);
                }
            });
        }
        self.send_end(key);
    }

    fn send_end(&mut self, key: StreamKey) {
        let stream = self.core.stream_mut(key);
        if stream.own.send_side == SendSide::Open {
            stream.outbox.end = EndStream::Pending;
        }
        self.update_send_queue(key);
    }

    fn write_shared(&mut self, key: StreamKey, data: Bytes) -> Result<(), UserError> {
        if data.len() <= MAX_COPY_BYTES {
            return self.write_data(key, Data::Copied(&data));
        }
        self.write_data(key, Data::Shared(data))
    }
}
