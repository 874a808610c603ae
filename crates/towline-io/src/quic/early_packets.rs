//! 0-RTT packets in datagrams: whether a client has sent early data, which QUIC drops without a word if it was refused.

/// First byte: the form of a header, and the type of a packet with a long one (RFC 9000 17.2).
const LONG_HEADER: u8 = 0x80;
const TYPE: u8 = 0x30;
const INITIAL: u8 = 0x00;
const ZERO_RTT: u8 = 0x10;
const RETRY: u8 = 0x30;

/// Whether a datagram has a 0-RTT packet, alone or after others (RFC 9000 12.2). Version 1 is assumed.
pub(super) fn has_zero_rtt(mut datagram: &[u8]) -> bool {
    while let Some(&first) = datagram.first() {
        match first & TYPE {
            _ if first & LONG_HEADER == 0 => return false,
            ZERO_RTT => return true,
            RETRY => return false,
            kind => match packet_len(datagram, kind == INITIAL) {
                Some(len) => datagram = datagram.get(len..).unwrap_or(&[]),
                None => return false,
            },
        }
    }
    false
}

/// Connection ID of the receiver in a datagram that begins with a long header.
pub(super) fn destination(datagram: &[u8]) -> Option<&[u8]> {
    let len = usize::from(*datagram.get(5)?);
    datagram.get(6..6 + len)
}

/// Length of a packet with a long header; `None`: malformed.
fn packet_len(packet: &[u8], has_token: bool) -> Option<usize> {
    // The first byte and the version.
    let mut rest = packet.get(5..)?;
    for _connection_id in 0..2 {
        let len = usize::from(*rest.first()?);
        rest = rest.get(1 + len..)?;
    }
    if has_token {
        let len = var_int(&mut rest)?;
        rest = rest.get(len..)?;
    }
    let len = var_int(&mut rest)?;
    (packet.len() - rest.len()).checked_add(len)
}

/// RFC 9000 16.
fn var_int(bytes: &mut &[u8]) -> Option<usize> {
    let first = *bytes.first()?;
    let len = 1 << (first >> 6);
    let (number, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    let value = number[1..].iter();
    let value = value.fold(u64::from(first & 0x3f), |value, &byte| {
        value << 8 | u64::from(byte)
    });
    usize::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet of version 1 with a long header and a payload of this length.
    fn packet(kind: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![LONG_HEADER | 0x40 | kind, 0, 0, 0, 1];
        bytes.extend_from_slice(&[3, 1, 2, 3, 0]);
        if kind == INITIAL {
            bytes.extend_from_slice(&[2, 7, 7]);
        }
        let len = u16::try_from(payload).unwrap();
        bytes.extend_from_slice(&(0x4000 | len).to_be_bytes());
        bytes.resize(bytes.len() + payload, 0);
        bytes
    }

    #[test]
    fn a_packet_is_found_alone_and_after_others() {
        let handshake = 0x20;
        assert!(has_zero_rtt(&packet(ZERO_RTT, 20)));
        assert!(has_zero_rtt(
            &[packet(INITIAL, 300), packet(ZERO_RTT, 20)].concat()
        ));
        assert!(!has_zero_rtt(&packet(INITIAL, 1180)));
        assert!(!has_zero_rtt(
            &[packet(INITIAL, 30), packet(handshake, 30)].concat()
        ));
        assert!(!has_zero_rtt(&[0x40; 50]));
    }

    #[test]
    fn malformed_datagrams_have_none() {
        let whole = packet(INITIAL, 300);
        for end in 0..whole.len() {
            assert!(!has_zero_rtt(&whole[..end]));
        }
        assert!(!has_zero_rtt(&[0xff; 60]));
        assert!(!has_zero_rtt(&[0xc0; 60]));
    }
}
