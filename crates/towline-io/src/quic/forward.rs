//! Form of a datagram that a worker forwards to another.
//!
//! ```text
//! MAC 16 │ endpoint 1 │ origin 1 │ ECN 1 │ size of a datagram 2 │ port 2 │ sender's address 17 │ our address 17 │ datagrams
//! ```
//!
//! Datagrams of one sender that have arrived together stay together; all but the last have the same size. The MAC
//! covers all the rest: without it, every process of the machine could send us datagrams in the name of any address.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use quinn_proto::EcnCodepoint;
use ring::hmac;

use crate::quic::socket::{Message, Origin};

const MAC_BYTES: usize = 16;

/// Bytes before the datagrams. An address is 1 byte of kind and 16 of address.
const HEADER_BYTES: usize = MAC_BYTES + 3 + 2 + 2 + 17 + 17;

/// Largest message, below the limit of a UDP datagram (65,507 bytes over IPv4).
pub(crate) const MAX_BYTES: usize = 60 * 1024;

/// Largest total of datagrams in one message.
pub(crate) const MAX_PAYLOAD_BYTES: usize = MAX_BYTES - HEADER_BYTES;

/// The message for these datagrams, of the endpoint with this number.
pub(crate) fn encode(key: &hmac::Key, endpoint: u8, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + message.bytes.len());
    bytes.extend_from_slice(&[0; MAC_BYTES]);
    bytes.push(endpoint);
    bytes.push(message.origin as u8);
    bytes.push(message.ecn.map_or(0, |ecn| ecn as u8));
    let size = u16::try_from(message.datagram_bytes).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&size.to_be_bytes());
    bytes.extend_from_slice(&message.remote.port().to_be_bytes());
    push_ip(&mut bytes, Some(message.remote.ip()));
    push_ip(&mut bytes, message.local_ip);
    bytes.extend_from_slice(message.bytes);
    let mac = mac(key, &bytes[MAC_BYTES..]);
    bytes[..MAC_BYTES].copy_from_slice(&mac);
    bytes
}

/// The endpoint and the datagrams of a message; `None` if it is not from a worker.
pub(crate) fn decode<'a>(key: &hmac::Key, bytes: &'a [u8]) -> Option<(usize, Message<'a>)> {
    let (given, rest) = bytes.split_first_chunk::<MAC_BYTES>()?;
    if !is_equal(given, &mac(key, rest)) {
        return None;
    }
    let (&[endpoint, origin, ecn, a, b, c, d], rest) = rest.split_first_chunk()?;
    let (remote, rest) = split_ip(rest)?;
    let (local_ip, datagrams) = split_ip(rest)?;
    let message = Message {
        bytes: datagrams,
        datagram_bytes: usize::from(u16::from_be_bytes([a, b])).max(1),
        remote: SocketAddr::new(remote?, u16::from_be_bytes([c, d])),
        local_ip,
        ecn: EcnCodepoint::from_bits(ecn),
        origin: if origin == Origin::ForAccepting as u8 {
            Origin::ForAccepting
        } else {
            Origin::ForOwner
        },
    };
    Some((endpoint.into(), message))
}

fn mac(key: &hmac::Key, bytes: &[u8]) -> [u8; MAC_BYTES] {
    let tag = hmac::sign(key, bytes);
    std::array::from_fn(|index| tag.as_ref()[index])
}

/// Compares without a branch on the bytes, whose time another process could measure.
fn is_equal(one: &[u8; MAC_BYTES], other: &[u8; MAC_BYTES]) -> bool {
    let differences = one.iter().zip(other).map(|(one, other)| one ^ other);
    differences.fold(0, |all, difference| all | difference) == 0
}

fn push_ip(bytes: &mut Vec<u8>, ip: Option<IpAddr>) {
    let (kind, octets) = match ip {
        None => (0, [0; 16]),
        Some(IpAddr::V4(ip)) => (4, ip.to_ipv6_mapped().octets()),
        Some(IpAddr::V6(ip)) => (6, ip.octets()),
    };
    bytes.push(kind);
    bytes.extend_from_slice(&octets);
}

fn split_ip(bytes: &[u8]) -> Option<(Option<IpAddr>, &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    let (octets, rest) = rest.split_first_chunk::<16>()?;
    let v6 = Ipv6Addr::from(*octets);
    let ip = match kind {
        4 => v6.to_ipv4_mapped().map(IpAddr::V4),
        6 => Some(IpAddr::V6(v6)),
        _ => None,
    };
    Some((ip, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[byte; 32])
    }

    fn message(bytes: &[u8]) -> Message<'_> {
        Message {
            bytes,
            datagram_bytes: 1200,
            remote: "[2001:db8::1]:4433".parse().unwrap(),
            local_ip: Some("192.0.2.7".parse().unwrap()),
            ecn: Some(EcnCodepoint::Ect0),
            origin: Origin::ForAccepting,
        }
    }

    #[test]
    fn a_message_keeps_addresses_ecn_and_sizes() {
        let datagrams = [7; 2500];
        let sent = encode(&key(1), 3, &message(&datagrams));
        let (endpoint, received) = decode(&key(1), &sent).unwrap();
        let expected = message(&datagrams);
        assert_eq!(endpoint, 3);
        assert_eq!(received.remote, expected.remote);
        assert_eq!(received.local_ip, expected.local_ip);
        assert_eq!(
            (received.ecn, received.origin),
            (expected.ecn, expected.origin)
        );
        assert_eq!(received.datagram_bytes, 1200);
        assert_eq!(received.bytes, datagrams);
    }

    #[test]
    fn a_message_that_was_changed_or_made_without_the_key_is_ignored() {
        let sent = encode(&key(1), 0, &message(&[7; 40]));
        assert!(decode(&key(2), &sent).is_none());
        for index in 0..sent.len() {
            assert!(decode(&key(1), &sent[..index]).is_none());
            for bit in 0..8 {
                let mut forged = sent.clone();
                forged[index] ^= 1 << bit;
                assert!(decode(&key(1), &forged).is_none());
            }
        }
    }

    #[test]
    fn the_largest_message_fits_into_a_datagram() {
        let sent = encode(&key(1), 0, &message(&vec![0; MAX_PAYLOAD_BYTES]));
        assert_eq!(sent.len(), MAX_BYTES);
    }
}
