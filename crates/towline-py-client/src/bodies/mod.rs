//! Body decoders for Python: the decoders and parsers of `towline-io` as classes, and JSON.

pub mod decoder;
pub mod event;
pub mod json;
pub mod malloc_hint;
pub mod parsers;
mod utf8;
