//! Both directions, for the benchmark, the fuzz target and the tests against another codec. Not part of the public API.

use crate::field_compression::{Bounds, DecodedFields, FieldDecoder, FieldEncoder};
use crate::head::FieldSpan;
use crate::{Field, Fields};

use super::{Decoder, Encoder, QpackError};

/// An encoder, a decoder and their buffers.
pub struct QpackScratch {
    encoder: Encoder,
    decoder: Decoder,
    bounds: Bounds,
    lines: Vec<u8>,
    section: Vec<u8>,
    bytes: Vec<u8>,
    spans: Vec<FieldSpan>,
    acknowledgements: Vec<u8>,
}

impl QpackScratch {
    /// The decoder allows a table of `table_bytes`; decoded sections are bounded by the arguments.
    pub fn new(table_bytes: u32, max_bytes: u32, max_fields: u32) -> Self {
        Self {
            encoder: Encoder::new(),
            decoder: Decoder::new(table_bytes),
            bounds: Bounds {
                max_bytes,
                max_fields,
            },
            lines: Vec::new(),
            section: Vec::new(),
            bytes: Vec::new(),
            spans: Vec::new(),
            acknowledgements: Vec::new(),
        }
    }

    /// The table, and the blocked streams, that the peer allows.
    pub fn set_encoder_limits(&mut self, table_bytes: u64, blocked_streams: u64) {
        self.encoder.set_max_blocked_streams(blocked_streams);
        self.encoder.set_max_table_bytes(table_bytes);
    }

    /// Encodes a section of these fields, on this stream.
    pub fn encode(&mut self, stream: u64, fields: &[Field<'_>]) -> &[u8] {
        self.lines.clear();
        self.section.clear();
        self.encoder.start();
        for field in fields {
            self.encoder
                .encode(field.name, field.value, &mut self.lines);
        }
        self.encoder.end(stream, &self.lines, &mut self.section);
        &self.section
    }

    /// Takes the bytes of our encoder stream.
    pub fn take_instructions(&mut self) -> Vec<u8> {
        self.encoder.take_unsent()
    }

    /// Handles bytes of the peer's decoder stream.
    pub fn receive_acknowledgements(&mut self, data: &[u8]) -> Result<(), QpackError> {
        self.encoder.receive(data)
    }

    /// Handles bytes of the peer's encoder stream.
    pub fn receive_instructions(&mut self, data: &[u8]) -> Result<(), QpackError> {
        self.decoder.receive(data).map(drop)
    }

    /// Takes the bytes of our decoder stream.
    pub fn take_acknowledgements(&mut self) -> Vec<u8> {
        self.decoder.acknowledge_entries(&mut self.acknowledgements);
        std::mem::take(&mut self.acknowledgements)
    }

    /// Decodes a section of a stream; returns its fields, and whether they are complete and valid. `None`: it is
    /// blocked.
    pub fn decode(
        &mut self,
        stream: u64,
        section: &[u8],
    ) -> Result<Option<(Fields<'_>, bool)>, QpackError> {
        let required = self.decoder.required(section)?;
        if required > self.decoder.inserted() {
            return Ok(None);
        }
        self.bytes.clear();
        self.spans.clear();
        let mut good = true;
        let decoded = self
            .decoder
            .decode(section, self.bounds, &mut self.bytes, |field, _| {
                good &= field.error.is_none();
                self.spans.push(field.span);
            })?;
        self.decoder
            .acknowledge_section(stream, required, &mut self.acknowledgements);
        let all = decoded == DecodedFields::All;
        Ok(Some((Fields::new(&self.bytes, &self.spans), all && good)))
    }
}
