//! Connection IDs that say which worker has the connection, to workers only (RFC 9000 5.1: an observer must not be able
//! to connect two IDs of one connection).
//!
//! ```text
//! AES-128( worker 1 │ zero 3 │ random 12 )     the single pass of QUIC-LB, draft-ietf-quic-load-balancers
//! ```

use aes::Aes128;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use quinn_proto::{ConnectionId, ConnectionIdGenerator, InvalidCid};
use ring::rand::{SecureRandom, SystemRandom};

/// Length of our IDs: one block.
pub(crate) const CID_BYTES: usize = 16;

/// Bytes that are zero before encryption. Of 2^24 IDs that are not ours, one has a worker.
const CHECK: std::ops::Range<usize> = 1..4;

/// Key that the workers of a server share.
#[derive(Clone)]
pub(crate) struct CidKey(Aes128);

impl CidKey {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self(Aes128::new(&Array(key)))
    }

    fn encrypt(&self, worker: u8, random: [u8; 12]) -> [u8; CID_BYTES] {
        let mut block = [0; CID_BYTES];
        block[0] = worker;
        block[CHECK.end..].copy_from_slice(&random);
        let mut block = Array(block);
        self.0.encrypt_block(&mut block);
        block.0
    }

    /// The worker that has made `cid`, if one has.
    pub(crate) fn worker(&self, cid: &[u8]) -> Option<u8> {
        let mut block = Array(<[u8; CID_BYTES]>::try_from(cid).ok()?);
        self.0.decrypt_block(&mut block);
        (block.0[CHECK] == [0; 3]).then_some(block.0[0])
    }
}

/// Makes the IDs of one worker.
pub(crate) struct CidGenerator {
    pub(crate) key: CidKey,
    pub(crate) worker: u8,
    pub(crate) random: SystemRandom,
}

impl ConnectionIdGenerator for CidGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random = [0; 12];
        // This fails only on a system without random numbers, where TLS fails as well.
        let _ = self.random.fill(&mut random);
        ConnectionId::new(&self.key.encrypt(self.worker, random))
    }

    fn validate(&self, cid: &ConnectionId) -> Result<(), InvalidCid> {
        self.key.worker(cid).map(drop).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<std::time::Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_worker_to_those_who_have_the_key() {
        let (key, other) = (CidKey::new([7; 16]), CidKey::new([8; 16]));
        for worker in [0, 1, 255] {
            let mut generator = CidGenerator {
                key: key.clone(),
                worker,
                random: SystemRandom::new(),
            };
            let (one, two) = (generator.generate_cid(), generator.generate_cid());
            assert_ne!(one, two);
            assert_eq!(key.worker(&one), Some(worker));
            assert_eq!(other.worker(&one), None);
            assert!(generator.validate(&two).is_ok());
        }
        assert_eq!(key.worker(&[0; 8]), None);
        assert_eq!(key.worker(&[0; 16]), None);
    }
}
