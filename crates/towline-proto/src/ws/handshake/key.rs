//! `Sec-WebSocket-Key` and `Sec-WebSocket-Accept` (RFC 6455 4.2.2): a proof that the peer understands WebSocket,
//! not a secret.

use sha1::{Digest, Sha1};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Sixteen bytes in base64.
const KEY_BYTES: usize = 24;

/// The key of a client, from sixteen random bytes.
pub(super) fn key(nonce: [u8; 16]) -> Vec<u8> {
    base64(&nonce)
}

/// Sixteen bytes in canonical base64: the last character before the padding carries two bits.
pub(super) fn is_key(value: &[u8]) -> bool {
    let Some((digits, b"==")) = value.split_at_checked(KEY_BYTES - 2) else {
        return false;
    };
    let place = |byte: &u8| ALPHABET.iter().position(|digit| digit == byte);
    digits.iter().all(|byte| place(byte).is_some())
        && digits
            .last()
            .and_then(place)
            .is_some_and(|place| place % 16 == 0)
}

/// The value of `Sec-WebSocket-Accept`.
pub(super) fn accept(key: &[u8]) -> Vec<u8> {
    let digest = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    base64(&digest)
}

fn base64(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group
            .iter()
            .fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - group.len()));
        for place in 0..4 {
            out.push(if place <= group.len() {
                ALPHABET[(bits >> (18 - 6 * place)) as usize & 63]
            } else {
                b'='
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(
            accept(b"dGhlIHNhbXBsZSBub25jZQ=="),
            b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(key(*b"the sample nonce"), b"dGhlIHNhbXBsZSBub25jZQ==");
    }

    #[test]
    fn keys() {
        for good in [
            "dGhlIHNhbXBsZSBub25jZQ==",
            "AAAAAAAAAAAAAAAAAAAAAA==",
            "+/+/+/+/+/+/+/+/+/+/+w==",
        ] {
            assert!(is_key(good.as_bytes()), "{good}");
        }
        for bad in [
            "",
            "dGhlIHNhbXBsZSBub25jZQ",
            "dGhlIHNhbXBsZSBub25jZR==",
            "dGhlIHNhbXBsZSBub25jZ===",
            "dGhl",
            "dGhlIHNhbXBsZSBub25j!Q==",
            "dGhlIHNhbXBsZSBub25jZQ===",
        ] {
            assert!(!is_key(bad.as_bytes()), "{bad}");
        }
    }
}
