//! Names to addresses.

use std::sync::{Arc, OnceLock};

/// Looks names up on helper threads.
#[derive(Debug)]
pub struct Resolver {}

impl Resolver {
    /// The one of this process.
    pub fn shared() -> Arc<Self> {
        static SHARED: OnceLock<Arc<Resolver>> = OnceLock::new();
        Arc::clone(SHARED.get_or_init(|| Arc::new(Self {})))
    }
}
