//! The result of a run as data.

mod build;
pub(crate) mod percentiles;
mod text;
mod types;

#[cfg(test)]
pub(crate) use build::tests::sample;
pub(crate) use build::{BUSY_SHARE, errors, from_results, warnings};
pub(crate) use text::{bytes, digits, time};
pub use types::*;
