//! Levels of Python's `logging`.

pub(crate) const DEBUG: i32 = 10;
pub(crate) const WARNING: i32 = 30;
pub(crate) const ERROR: i32 = 40;
