//! The error of a run that could not be made.

use std::fmt;
use std::io;

/// The reason why a run could not be made.
#[derive(Debug)]
pub enum LoadError {
    /// The configuration is invalid.
    Config(String),
    Io(io::Error),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(why) => f.write_str(why),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
