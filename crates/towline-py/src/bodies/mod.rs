//! Bodies for Python: the decoders and parsers of `towline-io` as classes, for any source of bytes.

pub mod decoder;
pub mod event;
pub mod parsers;
