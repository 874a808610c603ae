//! Chance from the system, by way of what TLS has it from.

use std::io;

use rustls::crypto::ring;

/// Bytes that nobody can foresee, to seed a generator with.
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
    fn no_two_are_alike() {
        assert_ne!(seed().unwrap(), seed().unwrap());
    }
}
