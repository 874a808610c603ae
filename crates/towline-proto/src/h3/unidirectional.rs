//! Unidirectional streams (RFC 9114 6.2): our three, and those of the peer.
//!
//! ```text
//!   Untyped ──type──► Control ── SETTINGS, then GOAWAY, PRIORITY_UPDATE, pushes
//!                ├──► Encoder, Decoder (RFC 9204 4.2)
//!                └──► another type: reading is abandoned
//! ```

use bytes::Bytes;

use crate::multiplexed::Lifecycle;
use crate::multiplexed::buffers::Outbox;
use crate::multiplexed::priority::Priority;
use crate::{ErrorCode, QuicCommand, Side, StreamSend};

use super::frame::{self, FrameHeader, FrameType, stream_type, varint};
use super::rules::{self, Fault};
use super::stream::RequestId;
use super::{ANY_REQUEST, Connection};

/// Priorities of requests that have not arrived, which are kept (RFC 9218 7). The oldest is dropped.
const MAX_EARLY_PRIORITIES: usize = 32;

/// Copied bytes of table entries that are charged as one frame without data.
const COPIED_FOR_A_FRAME: usize = 1024;

/// The places of our streams in `OwnStreams`.
pub(super) const CONTROL: usize = 0;
pub(super) const ENCODER: usize = 1;
pub(super) const DECODER: usize = 2;

/// One of our streams.
#[derive(Debug)]
struct OwnStream {
    id: u64,
    outbox: Outbox,
    is_blocked: bool,
}

/// Our streams.
#[derive(Debug)]
pub(super) struct OwnStreams([OwnStream; 3]);

impl OwnStreams {
    pub fn of(side: Side) -> Self {
        let first = match side {
            Side::Client => 2,
            Side::Server => 3,
        };
        Self([0, 4, 8].map(|step| OwnStream {
            id: first + step,
            outbox: Outbox::default(),
            is_blocked: false,
        }))
    }

    pub fn outbox(&mut self, place: usize) -> &mut Outbox {
        &mut self.0[place].outbox
    }

    pub fn has(&self, id: u64) -> bool {
        self.0.iter().any(|stream| stream.id == id)
    }

    pub fn has_output(&self) -> bool {
        (self.0.iter()).any(|stream| !stream.outbox.is_empty() && !stream.is_blocked)
    }

    /// Bytes that wait on one of them, at most.
    pub fn unsent_bytes(&self) -> usize {
        let unsent = self.0.iter().map(|stream| stream.outbox.len());
        unsent.max().unwrap_or(0)
    }

    pub fn next_send(&mut self) -> Option<StreamSend> {
        let mut streams = self.0.iter_mut();
        let stream = streams.find(|stream| !stream.outbox.is_empty() && !stream.is_blocked)?;
        Some(StreamSend {
            id: stream.id,
            data: stream.outbox.peek(usize::MAX),
            end: false,
        })
    }

    /// Handles `stream_sent`; `false`: it is not one of them.
    pub fn sent(&mut self, id: u64, n: usize, is_blocked: bool) -> bool {
        let Some(stream) = self.0.iter_mut().find(|stream| stream.id == id) else {
            return false;
        };
        stream.outbox.advance(n);
        stream.is_blocked = is_blocked;
        true
    }

    /// Handles `stream_writable`.
    pub fn writable(&mut self, id: u64) {
        if let Some(stream) = self.0.iter_mut().find(|stream| stream.id == id) {
            stream.is_blocked = false;
        }
    }

    pub fn clear(&mut self) {
        for stream in &mut self.0 {
            stream.outbox = Outbox::default();
        }
    }

    /// Frees unused buffers.
    pub fn release(&mut self) {
        for stream in &mut self.0 {
            stream.outbox.release();
        }
    }
}

/// Type of a peer's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerStreamType {
    /// The type has not arrived.
    Untyped,
    Control {
        /// The peer's SETTINGS have arrived.
        is_set: bool,
        /// Bytes left of a frame that is ignored.
        skip: u64,
    },
    Encoder,
    Decoder,
}

impl PeerStreamType {
    fn is_same(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

/// A stream of the peer that is read.
#[derive(Debug)]
pub(super) struct PeerStream {
    pub id: u64,
    stream_type: PeerStreamType,
    /// The stream is in the list of those that are read from QUIC.
    pub is_listed: bool,
    /// The beginning of its type, or of a frame.
    partial: Vec<u8>,
}

impl PeerStream {
    pub fn new(id: u64) -> Self {
        Self {
            id,
            stream_type: PeerStreamType::Untyped,
            is_listed: false,
            partial: Vec::new(),
        }
    }
}

/// A client's limit of pushes and its GOAWAY for them. We send no pushes.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    /// The largest identifier that the client allows.
    max: Option<u64>,
    /// The identifier of its last GOAWAY.
    go_away: Option<u64>,
}

impl Pushes {
    fn allow(&mut self, id: u64) -> Result<(), Fault> {
        if self.max.is_some_and(|before| id < before) {
            return Err(rules::PUSH_ID);
        }
        self.max = Some(id);
        Ok(())
    }

    fn go_away(&mut self, id: u64) -> Result<(), Fault> {
        if self.go_away.is_some_and(|before| id > before) {
            return Err(rules::GO_AWAY_ID);
        }
        self.go_away = Some(id);
        Ok(())
    }
}

/// A priority for a request that has not arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct EarlyPriority {
    id: u64,
    priority: Priority,
}

impl Connection {
    /// Opens our streams, with SETTINGS as the first frame.
    pub(super) fn open_own_streams(&mut self) {
        for stream in &self.own_streams.0 {
            let (uni, id) = (true, stream.id);
            self.commands.push_back(QuicCommand::Open { uni, id });
        }
        let types = [
            stream_type::CONTROL,
            stream_type::QPACK_ENCODER,
            stream_type::QPACK_DECODER,
        ];
        for (place, number) in types.into_iter().enumerate() {
            let outbox = self.own_streams.outbox(place);
            outbox.append(|out| frame::put_varint(out, number));
        }
        let mut settings = bytes::BytesMut::new();
        self.write_settings(&mut settings);
        frame::reserved(&mut settings);
        self.own_streams.outbox(CONTROL).push(&settings);
    }

    pub(super) fn write_go_away(&mut self, id: u64) {
        let outbox = self.own_streams.outbox(CONTROL);
        outbox.append(|out| frame::go_away(out, id));
    }

    /// Handles the bytes of the peer's stream at that place.
    pub(super) fn receive_on_peer_stream(
        &mut self,
        place: usize,
        data: &Bytes,
    ) -> Result<(), Fault> {
        let stream = &mut self.peer_streams[place];
        match stream.stream_type {
            PeerStreamType::Untyped => {
                stream.partial.extend_from_slice(data);
                let Some((number, n)) = varint(&stream.partial) else {
                    return Ok(());
                };
                let rest = Bytes::from(std::mem::take(&mut stream.partial)).slice(n..);
                if self.set_type(place, number)? && !rest.is_empty() {
                    return self.receive_on_peer_stream(place, &rest);
                }
                Ok(())
            }
            PeerStreamType::Control { .. } => self.receive_control(place, data),
            PeerStreamType::Encoder => {
                let before = self.decoder.inserted();
                let received = self.decoder.receive(data);
                let received = received.map_err(|error| rules::encoder_stream(error.rule()))?;
                self.copied_bytes += received.copied_bytes;
                while self.copied_bytes >= COPIED_FOR_A_FRAME {
                    self.copied_bytes -= COPIED_FOR_A_FRAME;
                    self.core.charge_control()?;
                }
                if self.decoder.inserted() > before {
                    self.unblock_streams();
                }
                Ok(())
            }
            PeerStreamType::Decoder => {
                let received = self.encoder.receive(data);
                received.map_err(|error| rules::decoder_stream(error.rule()))
            }
        }
    }

    /// Whether the stream is read.
    fn set_type(&mut self, place: usize, number: u64) -> Result<bool, Fault> {
        let new = match number {
            stream_type::CONTROL => PeerStreamType::Control {
                is_set: false,
                skip: 0,
            },
            stream_type::QPACK_ENCODER => PeerStreamType::Encoder,
            stream_type::QPACK_DECODER => PeerStreamType::Decoder,
            stream_type::PUSH if self.core.is_server() => return Err(rules::PUSH_BY_CLIENT),
            stream_type::PUSH => return Err(rules::PUSH),
            _ => {
                self.core.charge_control()?;
                let (id, code) = (
                    self.peer_streams[place].id,
                    ErrorCode::H3_STREAM_CREATION_ERROR.0,
                );
                self.commands
                    .push_back(QuicCommand::StopSending { id, code });
                self.remove_peer_stream(place);
                return Ok(false);
            }
        };
        let mut streams = self.peer_streams.iter();
        if streams.any(|stream| stream.stream_type.is_same(new)) {
            return Err(rules::SECOND_STREAM);
        }
        self.peer_streams[place].stream_type = new;
        Ok(true)
    }

    fn remove_peer_stream(&mut self, place: usize) {
        let stream = self.peer_streams.swap_remove(place);
        if stream.is_listed {
            self.core.own_mut().readable.retain(|&id| id != stream.id);
        }
    }

    /// The peer has ended or reset its stream at that place.
    pub(super) fn end_peer_stream(&mut self, place: usize) -> Result<(), Fault> {
        if self.peer_streams[place].stream_type != PeerStreamType::Untyped {
            return Err(rules::CRITICAL_STREAM);
        }
        self.remove_peer_stream(place);
        self.core.charge_control()
    }

    // The control stream (RFC 9114 6.2.1).

    fn receive_control(&mut self, place: usize, data: &[u8]) -> Result<(), Fault> {
        let mut bytes = std::mem::take(&mut self.peer_streams[place].partial);
        let rest = if bytes.is_empty() {
            self.control_frames(place, data)?
        } else {
            bytes.extend_from_slice(data);
            self.control_frames(place, &bytes)?
        };
        if !rest.is_empty() {
            let partial = rest.to_vec();
            self.peer_streams[place].partial = partial;
        }
        Ok(())
    }

    /// Handles all complete frames; returns the rest.
    fn control_frames<'a>(&mut self, place: usize, data: &'a [u8]) -> Result<&'a [u8], Fault> {
        let mut rest = data;
        loop {
            let PeerStreamType::Control { is_set, skip } = self.peer_streams[place].stream_type
            else {
                return Ok(rest);
            };
            if skip > 0 {
                let n = usize::try_from(skip).map_or(rest.len(), |skip| skip.min(rest.len()));
                rest = &rest[n..];
                self.set_control(place, is_set, skip - n as u64);
                if rest.is_empty() {
                    return Ok(rest);
                }
            }
            let Some((header, n)) = FrameHeader::parse(rest) else {
                return Ok(rest);
            };
            self.check_control(header, is_set)?;
            if header.frame_type == FrameType::Unknown {
                self.core.charge_control()?;
                rest = &rest[n..];
                self.set_control(place, is_set, header.len);
                continue;
            }
            if header.len > u64::from(self.core.limits().http3.max_control_frame_bytes) {
                return Err(rules::TOO_LONG);
            }
            let Some(payload) = rest[n..].get(..header.len as usize) else {
                return Ok(rest);
            };
            rest = &rest[n + payload.len()..];
            self.set_control(place, true, 0);
            self.control_frame(header.frame_type, payload)?;
        }
    }

    fn set_control(&mut self, place: usize, is_set: bool, skip: u64) {
        self.peer_streams[place].stream_type = PeerStreamType::Control { is_set, skip };
    }

    /// Checks that need only the type.
    fn check_control(&self, header: FrameHeader, is_set: bool) -> Result<(), Fault> {
        let is_settings = header.frame_type == FrameType::Settings;
        if is_set == is_settings {
            return Err(if is_set {
                rules::SECOND_SETTINGS
            } else {
                rules::NO_SETTINGS
            });
        }
        let is_client = self.core.is_client();
        match header.frame_type {
            FrameType::Data | FrameType::Headers | FrameType::PushPromise => Err(rules::ON_CONTROL),
            FrameType::Http2 => Err(rules::OF_HTTP2),
            FrameType::MaxPushId if is_client => Err(rules::OF_SERVER),
            FrameType::PriorityUpdateRequest | FrameType::PriorityUpdatePush if is_client => {
                Err(rules::PRIORITY_TO_CLIENT)
            }
            _ => Ok(()),
        }
    }

    fn control_frame(&mut self, frame_type: FrameType, payload: &[u8]) -> Result<(), Fault> {
        if frame_type == FrameType::Settings {
            return self.settings(payload);
        }
        self.core.charge_control()?;
        let number = || frame::only_varint(payload).ok_or(rules::WRONG_SIZE);
        match frame_type {
            FrameType::GoAway => self.go_away_received(number()?),
            FrameType::MaxPushId => {
                let id = number()?;
                self.pushes.allow(id)
            }
            FrameType::CancelPush => {
                number()?;
                // There are no pushes.
                Err(rules::PUSH_ID)
            }
            FrameType::PriorityUpdateRequest => self.priority_update(payload),
            FrameType::PriorityUpdatePush => {
                varint(payload).ok_or(rules::WRONG_SIZE)?;
                Err(rules::PUSH_ID)
            }
            _ => Ok(()),
        }
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        self.apply_settings(payload)?;
        self.on_settings();
        Ok(())
    }

    fn go_away_received(&mut self, id: u64) -> Result<(), Fault> {
        if self.core.is_server() {
            // A push identifier.
            self.pushes.go_away(id)?;
            // The client begins to close (RFC 9114 5.2). Its last requests may arrive after this frame, which is on another
            // stream: the own GOAWAY leaves time for them.
            self.close();
            return Ok(());
        }
        let is_request = id.is_multiple_of(4) && id <= ANY_REQUEST;
        if !is_request || self.go_away.peer.is_some_and(|before| id > before) {
            return Err(rules::GO_AWAY_ID);
        }
        self.on_peer_go_away(id);
        Ok(())
    }

    /// RFC 9218 7.2. Kept for a request that has not arrived.
    fn priority_update(&mut self, payload: &[u8]) -> Result<(), Fault> {
        let (id, n) = varint(payload).ok_or(rules::WRONG_SIZE)?;
        if !id.is_multiple_of(4) {
            return Err(rules::PRIORITY_ID);
        }
        let priority = Priority::of(&payload[n..]);
        if let Some(key) = self.core.find(RequestId(id)) {
            self.set_priority(key, priority);
        } else if id >= self.peer_requests.next() {
            self.early_priorities.retain(|early| early.id != id);
            if self.early_priorities.len() >= MAX_EARLY_PRIORITIES {
                self.early_priorities.pop_front();
            }
            let early = EarlyPriority { id, priority };
            self.early_priorities.push_back(early);
        }
        Ok(())
    }

    /// The priority that came before its request.
    pub(super) fn take_early_priority(&mut self, id: u64) -> Option<Priority> {
        let mut early = self.early_priorities.iter();
        let place = early.position(|early| early.id == id)?;
        Some(self.early_priorities.remove(place)?.priority)
    }
}
