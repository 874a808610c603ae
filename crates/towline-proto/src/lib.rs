//! The wire of Towline.
#![forbid(unsafe_code)]
