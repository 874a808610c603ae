//! The machine of Towline.

pub mod serve;
