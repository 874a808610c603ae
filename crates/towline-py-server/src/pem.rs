//! Certificates as text (RFC 7468).

/// RFC 7468.
pub fn pem(der: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    // 48 bytes make a line of 64 characters.
    for line in der.chunks(48) {
        for group in line.chunks(3) {
            let bits = group
                .iter()
                .fold(0u32, |bits, &byte| bits << 8 | u32::from(byte))
                << (8 * (3 - group.len()));
            for index in 0..4 {
                let sextet = (bits >> (18 - 6 * index)) as usize & 63;
                out.push(if index <= group.len() {
                    ALPHABET[sextet] as char
                } else {
                    '='
                });
            }
        }
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}
