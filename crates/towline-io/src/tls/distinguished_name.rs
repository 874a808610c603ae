//! Distinguished names as text (RFC 4514).

use std::fmt::Write;

use super::x509::{self, Der, SEQUENCE};

const OBJECT_IDENTIFIER: u8 = 0x06;
const SET: u8 = 0x31;

/// Short names of attribute types by their encoded identifiers: those of RFC 4514 3, and two that are common in
/// certificates.
const SHORT_NAMES: [(&[u8], &str); 11] = [
    (b"\x55\x04\x03", "CN"),
    (b"\x55\x04\x07", "L"),
    (b"\x55\x04\x08", "ST"),
    (b"\x55\x04\x0a", "O"),
    (b"\x55\x04\x0b", "OU"),
    (b"\x55\x04\x06", "C"),
    (b"\x55\x04\x09", "STREET"),
    (b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19", "DC"),
    (b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01", "UID"),
    (b"\x55\x04\x05", "serialNumber"),
    (b"\x2a\x86\x48\x86\xf7\x0d\x01\x09\x01", "emailAddress"),
];

/// The subject of a certificate.
pub(super) fn subject(certificate: &[u8]) -> Option<String> {
    to_text(x509::subject(certificate)?)
}

/// Writes the contents of a `Name`. `None`: it is not valid DER.
fn to_text(name: &[u8]) -> Option<String> {
    let mut sequence = Der(name);
    let mut parts = Vec::new();
    while !sequence.0.is_empty() {
        let mut set = Der(sequence.expect(SET)?);
        let mut part = String::new();
        while !set.0.is_empty() {
            if !part.is_empty() {
                part.push('+');
            }
            write_attribute(&mut part, set.expect(SEQUENCE)?)?;
        }
        parts.push(part);
    }
    // The most specific part comes first (RFC 4514 2.1).
    parts.reverse();
    Some(parts.join(","))
}

fn write_attribute(out: &mut String, attribute: &[u8]) -> Option<()> {
    let mut attribute = Der(attribute);
    let identifier = attribute.expect(OBJECT_IDENTIFIER)?;
    let encoded = attribute.0;
    let (tag, value) = attribute.next()?;
    let short = SHORT_NAMES.iter().find(|(known, _)| *known == identifier);
    if let (Some((_, short)), Some(text)) = (short, string(tag, value)) {
        out.push_str(short);
        out.push('=');
        write_escaped(out, &text);
        return Some(());
    }
    write_dotted(out, identifier)?;
    out.push_str("=#");
    for byte in encoded {
        let _ = write!(out, "{byte:02x}");
    }
    Some(())
}

/// Decodes a string type of ASN.1.
fn string(tag: u8, value: &[u8]) -> Option<String> {
    match tag {
        // UTF8String, PrintableString, IA5String.
        0x0c | 0x13 | 0x16 => String::from_utf8(value.to_vec()).ok(),
        // TeletexString, which is Latin-1 in practice.
        0x14 => Some(value.iter().map(|&byte| char::from(byte)).collect()),
        // BMPString.
        0x1e if value.len().is_multiple_of(2) => {
            let units = value
                .chunks_exact(2)
                .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
            char::decode_utf16(units).collect::<Result<_, _>>().ok()
        }
        _ => None,
    }
}

/// Escapes a value (RFC 4514 2.4). Control characters are escaped, too: the name is written to logs.
fn write_escaped(out: &mut String, text: &str) {
    let last = text.len().saturating_sub(1);
    for (at, c) in text.char_indices() {
        match c {
            '"' | '+' | ',' | ';' | '<' | '>' | '\\' => out.extend(['\\', c]),
            ' ' if at == 0 || at == last => out.push_str("\\ "),
            '#' if at == 0 => out.push_str("\\#"),
            c if c.is_control() => {
                let mut bytes = [0; 4];
                for byte in c.encode_utf8(&mut bytes).bytes() {
                    let _ = write!(out, "\\{byte:02X}");
                }
            }
            c => out.push(c),
        }
    }
}

/// Writes an object identifier as numbers (X.690 8.19).
fn write_dotted(out: &mut String, identifier: &[u8]) -> Option<()> {
    let mut number = 0u64;
    let mut is_first = true;
    for &byte in identifier {
        number = number.checked_mul(128)? + u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if is_first {
            let root = (number / 40).min(2);
            let _ = write!(out, "{root}.{}", number - 40 * root);
        } else {
            let _ = write!(out, ".{number}");
        }
        (number, is_first) = (0, false);
    }
    (!is_first).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn element(tag: u8, contents: &[u8]) -> Vec<u8> {
        [&[tag, contents.len() as u8], contents].concat()
    }

    fn attribute(identifier: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        let inside = [element(0x06, identifier), element(tag, value)].concat();
        element(SEQUENCE, &inside)
    }

    #[test]
    fn names_are_written_as_in_the_examples_of_the_rfc() {
        let cn = |value: &[u8]| element(SET, &attribute(b"\x55\x04\x03", 0x0c, value));
        let dc = |value: &[u8]| element(SET, &attribute(SHORT_NAMES[7].0, 0x16, value));
        let text = |parts: &[Vec<u8>]| to_text(&parts.concat()).unwrap();
        assert_eq!(
            text(&[dc(b"net"), dc(b"example"), cn(b"a")]),
            "CN=a,DC=example,DC=net"
        );
        assert_eq!(
            text(&[cn(b"James \"Jim\" Smith, III")]),
            "CN=James \\\"Jim\\\" Smith\\, III"
        );
        assert_eq!(text(&[cn(b"Before\rAfter")]), "CN=Before\\0DAfter");
        assert_eq!(text(&[cn(b"# a ")]), "CN=\\# a\\ ");
        assert_eq!(text(&[cn(b" ")]), "CN=\\ ");
        assert_eq!(
            text(&[cn("Lu\u{10d}i\u{107}".as_bytes())]),
            "CN=Lu\u{10d}i\u{107}"
        );
        let pair = [
            attribute(b"\x55\x04\x0b", 0x13, b"Sales"),
            attribute(b"\x55\x04\x03", 0x1e, b"\0J\0."),
        ];
        assert_eq!(text(&[element(SET, &pair.concat())]), "OU=Sales+CN=J.");
        let other = attribute(b"\x2b\x06\x01\x04\x01\x8b\x3a\x00", 0x04, b"Hi");
        assert_eq!(
            text(&[element(SET, &other)]),
            "1.3.6.1.4.1.1466.0=#04024869"
        );
        assert_eq!(text(&[]), "");
    }

    #[test]
    fn broken_names_give_none() {
        let whole = element(SET, &attribute(b"\x55\x04\x03", 0x0c, b"name"));
        for cut in 1..whole.len() {
            assert_eq!(to_text(&whole[..cut]), None, "{cut}");
        }
    }
}
