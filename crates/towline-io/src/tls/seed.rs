//! Random bytes of the system, from the provider that TLS uses.

use std::io;

use rustls::crypto::ring;

/// Unpredictable bytes, to seed a random generator.
pub fn seed() -> io::Result<[u8; 32]> {
    let mut seed = [0; 32];
    ring::default_provider()
        .secure_random
        .fill(&mut seed)
        .map_err(|_| io::Error::other("the system's random generator has failed"))?;
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_seeds_differ() {
        assert_ne!(seed().unwrap(), seed().unwrap());
    }
}
