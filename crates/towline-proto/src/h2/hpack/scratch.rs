//! Both directions, for the benchmark and the fuzz target. Not part of the public API.

use crate::head::FieldSpan;
use crate::{Field, Fields};

use crate::field_compression::{Bounds, DecodedFields, FieldDecoder, FieldEncoder};

use super::{Decoder, Encoder, HpackError};

/// An encoder, a decoder and their buffers.
pub struct HpackScratch {
    encoder: Encoder,
    decoder: Decoder,
    bounds: Bounds,
    block: Vec<u8>,
    bytes: Vec<u8>,
    spans: Vec<FieldSpan>,
}

impl HpackScratch {
    /// Tables of 4096 bytes; decoded sections are bounded by the arguments.
    pub fn new(max_bytes: u32, max_fields: u32) -> Self {
        Self {
            encoder: Encoder::new(),
            decoder: Decoder::new(),
            bounds: Bounds {
                max_bytes,
                max_fields,
            },
            block: Vec::new(),
            bytes: Vec::new(),
            spans: Vec::new(),
        }
    }

    /// Sets the table size that the encoder may use.
    pub fn set_encoder_table_bytes(&mut self, bytes: u32) {
        self.encoder.set_max_table_bytes(bytes);
    }

    /// Sets the table size that the decoder allows.
    pub fn set_decoder_table_bytes(&mut self, bytes: u32) {
        self.decoder.set_max_table_bytes(bytes);
    }

    /// Encodes a block of these fields.
    pub fn encode(&mut self, fields: &[Field<'_>]) -> &[u8] {
        self.block.clear();
        self.encoder.start(&mut self.block);
        for field in fields {
            self.encoder
                .encode(field.name, field.value, &mut self.block);
        }
        &self.block
    }

    /// Decodes a block; returns its fields, and whether they are complete and valid.
    pub fn decode(&mut self, block: &[u8]) -> Result<(Fields<'_>, bool), HpackError> {
        self.bytes.clear();
        self.spans.clear();
        let mut good = true;
        let decoded = self
            .decoder
            .decode(block, self.bounds, &mut self.bytes, |field, _| {
                good &= field.error.is_none();
                self.spans.push(field.span);
            })?;
        let all = decoded == DecodedFields::All;
        Ok((Fields::new(&self.bytes, &self.spans), all && good))
    }
}
