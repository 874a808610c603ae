//! The PROXY protocol, versions 1 and 2: the address of the client behind a TCP load balancer.
//!
//! The header precedes everything else on the connection, TLS included. [`parse`] takes all bytes received
//! so far and returns that more are needed, the header and its length, or the broken rule. It is called
//! only for peers that the operator has configured, and then the header is mandatory: a client could forge
//! an optional one (specification, section 5).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest version 1 line, CRLF included (specification, section 2.1).
pub const V1_MAX_BYTES: usize = 107;
/// The 16 fixed bytes of version 2.
const V2_FIXED_BYTES: usize = 16;
/// Largest length of addresses and TLVs of version 2. The format allows 65,535; load balancers send a few
/// hundred (the longest usual TLV is the subject of a TLS client certificate).
pub const V2_MAX_LENGTH_BYTES: usize = 4096;
/// Largest size of a header.
pub const MAX_BYTES: usize = V2_FIXED_BYTES + V2_MAX_LENGTH_BYTES;

const V1_PREFIX: &[u8] = b"PROXY ";
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// A PROXY header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// `UNKNOWN`, `LOCAL` or an unspecified family: the socket's own addresses apply, as for health checks
    /// of the load balancer.
    Local,
    /// Addresses of the connection that the proxy accepted.
    Proxied {
        source: SocketAddr,
        destination: SocketAddr,
    },
    /// The proxy accepted on a Unix socket, so there is no network address.
    Unix,
}

/// Result of parsing the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// The header is valid so far, but not complete.
    Partial,
    /// The header ends after `used` bytes; the following bytes belong to TLS or HTTP.
    Complete { header: Header, used: usize },
}

/// The rule that the peer has broken. Close the connection without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyError {
    NoHeader,
    V1TooLong,
    V1Protocol,
    V1Address,
    V1Port,
    V1Form,
    V2Version,
    V2Command,
    V2Family,
    V2Length,
    V2TooLong,
}

impl fmt::Display for ProxyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoHeader => "the connection does not start with a PROXY header (section 2)",
            Self::V1TooLong => "version 1 line without CRLF in 107 bytes (section 2.1)",
            Self::V1Protocol => "protocol is not TCP4, TCP6 or UNKNOWN (section 2.1)",
            Self::V1Address => "address is not of the family named (section 2.1)",
            Self::V1Port => {
                "port is not a decimal from 0 to 65535 without leading zeros (section 2.1)"
            }
            Self::V1Form => {
                "version 1 line has not exactly six words with single spaces (section 2.1)"
            }
            Self::V2Version => "version is not 2 (section 2.2)",
            Self::V2Command => "command is neither LOCAL nor PROXY (section 2.2)",
            Self::V2Family => "family or transport is not a stream known here (section 2.2)",
            Self::V2Length => "length is shorter than the addresses of its family (section 2.2)",
            Self::V2TooLong => "length is over the limit of 4096 bytes",
        })
    }
}

impl std::error::Error for ProxyError {}

/// Parses the header at the start of `bytes`, which are all bytes of the connection so far.
pub fn parse(bytes: &[u8]) -> Result<Parsed, ProxyError> {
    if is_prefix_of_either(bytes, V2_SIGNATURE) {
        return parse_v2(bytes);
    }
    if is_prefix_of_either(bytes, V1_PREFIX) {
        return parse_v1(bytes);
    }
    Err(ProxyError::NoHeader)
}

/// Whether one is a prefix of the other.
fn is_prefix_of_either(bytes: &[u8], wanted: &[u8]) -> bool {
    let n = bytes.len().min(wanted.len());
    bytes[..n] == wanted[..n]
}

fn parse_v1(bytes: &[u8]) -> Result<Parsed, ProxyError> {
    let window = &bytes[..bytes.len().min(V1_MAX_BYTES)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        if window.len() == V1_MAX_BYTES {
            return Err(ProxyError::V1TooLong);
        }
        return Ok(Parsed::Partial);
    };
    if end < V1_PREFIX.len() {
        return Err(ProxyError::V1Form);
    }
    let header = v1_header(&bytes[V1_PREFIX.len()..end])?;
    Ok(Parsed::Complete {
        header,
        used: end + 2,
    })
}

/// Parses the line between `PROXY ` and CRLF.
fn v1_header(line: &[u8]) -> Result<Header, ProxyError> {
    let mut words = line.split(|&byte| byte == b' ');
    let protocol = words.next().unwrap_or_default();
    if protocol == b"UNKNOWN" {
        // The rest of the line must be ignored.
        return Ok(Header::Local);
    }
    if protocol != b"TCP4" && protocol != b"TCP6" {
        return Err(ProxyError::V1Protocol);
    }
    let [source, destination, source_port, destination_port] = [(); 4].map(|()| words.next());
    let (Some(source), Some(destination), Some(source_port), Some(destination_port), None) = (
        source,
        destination,
        source_port,
        destination_port,
        words.next(),
    ) else {
        return Err(ProxyError::V1Form);
    };
    let address = |text: &[u8], port: &[u8]| -> Result<SocketAddr, ProxyError> {
        Ok(SocketAddr::new(v1_address(protocol, text)?, v1_port(port)?))
    };
    Ok(Header::Proxied {
        source: address(source, source_port)?,
        destination: address(destination, destination_port)?,
    })
}

fn v1_address(protocol: &[u8], text: &[u8]) -> Result<IpAddr, ProxyError> {
    let text = std::str::from_utf8(text).map_err(|_| ProxyError::V1Address)?;
    if protocol == b"TCP4" {
        text.parse::<Ipv4Addr>()
            .map(IpAddr::V4)
            .map_err(|_| ProxyError::V1Address)
    } else {
        text.parse::<Ipv6Addr>()
            .map(IpAddr::V6)
            .map_err(|_| ProxyError::V1Address)
    }
}

fn v1_port(text: &[u8]) -> Result<u16, ProxyError> {
    if text.is_empty() || text.len() > 5 || (text.len() > 1 && text[0] == b'0') {
        return Err(ProxyError::V1Port);
    }
    let mut port = 0_u32;
    for &byte in text {
        if !byte.is_ascii_digit() {
            return Err(ProxyError::V1Port);
        }
        port = port * 10 + u32::from(byte - b'0');
    }
    u16::try_from(port).map_err(|_| ProxyError::V1Port)
}

fn parse_v2(bytes: &[u8]) -> Result<Parsed, ProxyError> {
    // Every fixed byte is checked as soon as it has arrived.
    let Some(&version_command) = bytes.get(12) else {
        return Ok(Parsed::Partial);
    };
    if version_command >> 4 != 2 {
        return Err(ProxyError::V2Version);
    }
    let local = match version_command & 0x0f {
        0 => true,
        1 => false,
        _ => return Err(ProxyError::V2Command),
    };
    let Some(fixed) = bytes.get(12..V2_FIXED_BYTES) else {
        return Ok(Parsed::Partial);
    };
    let length = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if length > V2_MAX_LENGTH_BYTES {
        return Err(ProxyError::V2TooLong);
    }
    // LOCAL: family and addresses must be ignored.
    let needed = if local {
        0
    } else {
        v2_addresses_bytes(fixed[1])?
    };
    if length < needed {
        return Err(ProxyError::V2Length);
    }
    let used = V2_FIXED_BYTES + length;
    let Some(addresses) = bytes.get(V2_FIXED_BYTES..used) else {
        return Ok(Parsed::Partial);
    };
    let header = if local {
        Header::Local
    } else {
        v2_header(fixed[1], addresses)
    };
    Ok(Parsed::Complete { header, used })
}

/// Size of the addresses; the rest of the length are TLVs, which are skipped.
fn v2_addresses_bytes(family: u8) -> Result<usize, ProxyError> {
    match family {
        0x00 => Ok(0),
        0x11 => Ok(12),
        0x21 => Ok(36),
        0x31 => Ok(216),
        _ => Err(ProxyError::V2Family),
    }
}

fn v2_header(family: u8, data: &[u8]) -> Header {
    let port = |at: usize| u16::from_be_bytes([data[at], data[at + 1]]);
    match family {
        0x11 => {
            let ip = |at: usize| Ipv4Addr::new(data[at], data[at + 1], data[at + 2], data[at + 3]);
            Header::Proxied {
                source: SocketAddr::new(ip(0).into(), port(8)),
                destination: SocketAddr::new(ip(4).into(), port(10)),
            }
        }
        0x21 => {
            let ip = |at: usize| {
                let mut octets = [0; 16];
                octets.copy_from_slice(&data[at..at + 16]);
                Ipv6Addr::from(octets)
            };
            Header::Proxied {
                source: SocketAddr::new(ip(0).into(), port(32)),
                destination: SocketAddr::new(ip(16).into(), port(34)),
            }
        }
        0x31 => Header::Unix,
        _ => Header::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v2(version_command: u8, family: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([version_command, family]);
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// Every prefix is partial, the whole gives the header, and bytes after it are not consumed.
    fn whole_and_cut(bytes: &[u8], header: Header) {
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Ok(Parsed::Partial), "cut at {cut}");
        }
        let complete = Ok(Parsed::Complete {
            header,
            used: bytes.len(),
        });
        assert_eq!(parse(bytes), complete);
        assert_eq!(
            parse(&[bytes, b"GET / HTTP/1.1\r\n\r\n"].concat()),
            complete
        );
    }

    /// Every prefix is partial or the same error.
    fn refused(bytes: &[u8], error: ProxyError) {
        let first = (0..=bytes.len()).find(|&cut| parse(&bytes[..cut]).is_err());
        let first = first.unwrap_or_else(|| panic!("{bytes:?} was accepted"));
        for cut in first..=bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Err(error), "cut at {cut}");
        }
        for cut in 0..first {
            assert_eq!(parse(&bytes[..cut]), Ok(Parsed::Partial), "cut at {cut}");
        }
    }

    fn proxied(source: &str, destination: &str) -> Header {
        Header::Proxied {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
        }
    }

    #[test]
    fn v1_headers() {
        whole_and_cut(
            b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n",
            proxied("192.0.2.1:56324", "198.51.100.7:443"),
        );
        whole_and_cut(
            b"PROXY TCP6 2001:db8::1 2001:db8::2 0 65535\r\n",
            proxied("[2001:db8::1]:0", "[2001:db8::2]:65535"),
        );
        whole_and_cut(b"PROXY UNKNOWN\r\n", Header::Local);
        whole_and_cut(
            b"PROXY UNKNOWN ffff::1 whatever it says 1 2\r\n",
            Header::Local,
        );
    }

    #[test]
    fn v1_longest_line_of_the_specification() {
        let ip = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let line = format!("PROXY UNKNOWN {ip} {ip} 65535 65535\r\n");
        assert_eq!(line.len(), V1_MAX_BYTES);
        whole_and_cut(line.as_bytes(), Header::Local);
        let longer = format!("PROXY UNKNOWN {ip} {ip}  65535 65535\r\n");
        refused(longer.as_bytes(), ProxyError::V1TooLong);
    }

    #[test]
    fn v1_refusals() {
        refused(b"GET / HTTP/1.1\r\n\r\n", ProxyError::NoHeader);
        refused(b"proxy TCP4 1.1.1.1 2.2.2.2 1 2\r\n", ProxyError::NoHeader);
        refused(
            b"PROXY TCP5 1.1.1.1 2.2.2.2 1 2\r\n",
            ProxyError::V1Protocol,
        );
        refused(b"PROXY \r\n", ProxyError::V1Protocol);
        refused(b"PROXY UNKNOWNX\r\n", ProxyError::V1Protocol);
        refused(b"PROXY TCP4 ::1 2.2.2.2 1 2\r\n", ProxyError::V1Address);
        refused(b"PROXY TCP6 1.1.1.1 ::2 1 2\r\n", ProxyError::V1Address);
        refused(
            b"PROXY TCP4 1.1.1.01 2.2.2.2 1 2\r\n",
            ProxyError::V1Address,
        );
        refused(
            b"PROXY TCP4 \xff.1.1.1 2.2.2.2 1 2\r\n",
            ProxyError::V1Address,
        );
        for port in ["65536", "01", "+1", "-1", "0x1", "", "123456", "1\t"] {
            let line = format!("PROXY TCP4 1.1.1.1 2.2.2.2 {port} 2\r\n");
            refused(line.as_bytes(), ProxyError::V1Port);
        }
        refused(b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n", ProxyError::V1Form);
        refused(b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2 3\r\n", ProxyError::V1Form);
        refused(b"PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n", ProxyError::V1Form);
    }

    #[test]
    fn v2_headers() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 7, 0xdc, 0x04, 0x01, 0xbb];
        let expected = proxied("192.0.2.1:56324", "198.51.100.7:443");
        whole_and_cut(&v2(0x21, 0x11, &v4), expected);
        // An ALPN TLV and a no-op TLV after the addresses.
        let with_tlv = [&v4[..], &[1, 0, 2, b'h', b'2', 4, 0, 0]].concat();
        whole_and_cut(&v2(0x21, 0x11, &with_tlv), expected);
        let mut v6 = [0_u8; 36];
        v6[15] = 1;
        v6[31] = 2;
        v6[33] = 80;
        v6[34] = 1;
        whole_and_cut(&v2(0x21, 0x21, &v6), proxied("[::1]:80", "[::2]:256"));
        whole_and_cut(&v2(0x21, 0x31, &[0; 216]), Header::Unix);
        whole_and_cut(&v2(0x21, 0x00, &[]), Header::Local);
        whole_and_cut(&v2(0x20, 0x00, &[]), Header::Local);
        whole_and_cut(&v2(0x20, 0xff, b"ignored"), Header::Local);
        whole_and_cut(&v2(0x20, 0, &vec![0; V2_MAX_LENGTH_BYTES]), Header::Local);
    }

    #[test]
    fn v2_refusals() {
        refused(&v2(0x11, 0x11, &[0; 12]), ProxyError::V2Version);
        refused(&v2(0x22, 0x11, &[0; 12]), ProxyError::V2Command);
        refused(&v2(0x21, 0x12, &[0; 12]), ProxyError::V2Family);
        refused(&v2(0x21, 0x41, &[0; 12]), ProxyError::V2Family);
        refused(&v2(0x21, 0x11, &[0; 11]), ProxyError::V2Length);
        refused(&v2(0x21, 0x21, &[0; 35]), ProxyError::V2Length);
        refused(&v2(0x21, 0x31, &[0; 215]), ProxyError::V2Length);
        refused(
            &v2(0x20, 0, &vec![0; V2_MAX_LENGTH_BYTES + 1]),
            ProxyError::V2TooLong,
        );
        refused(b"\r\n\r\n\0\r\nQUIX\n", ProxyError::NoHeader);
    }

    #[test]
    fn errors_name_their_rule() {
        assert!(ProxyError::V1Port.to_string().contains("section 2.1"));
        assert!(
            ProxyError::V2TooLong
                .to_string()
                .contains(&V2_MAX_LENGTH_BYTES.to_string())
        );
    }
}
