//! Files as editors, scripts and other programs write them.

use base64_of_tests::encode;

use super::*;

/// A SEQUENCE that begins with a SEQUENCE, and is as long as a certificate.
const CERTIFICATE: &[u8] = &{
    let mut der = [7; 204];
    der[0] = 0x30;
    der[1] = 0x81;
    der[2] = 201;
    der[3] = 0x30;
    der
};

mod base64_of_tests {
    pub(super) fn encode(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for part in bytes.chunks(3) {
            let number = part
                .iter()
                .fold(0, |number: u32, &byte| number << 8 | u32::from(byte));
            let number = number << (8 * (3 - part.len()));
            for digit in 0..4 {
                let at = number >> (18 - 6 * digit) & 63;
                text.push(if digit > part.len() as u32 {
                    '='
                } else {
                    DIGITS[at as usize].into()
                });
            }
            if text.len() % 65 == 64 {
                text.push('\n');
            }
        }
        text
    }
}

fn section(label: &str, der: &[u8]) -> String {
    format!(
        "-----BEGIN {label}-----\n{}\n-----END {label}-----\n",
        encode(der)
    )
}

fn good() -> String {
    section("CERTIFICATE", CERTIFICATE)
}

fn read(bytes: &[u8]) -> Result<usize, String> {
    let found = certificates(bytes).map_err(|error| error.to_string())?;
    for (_, certificate) in &found {
        assert_eq!(certificate.as_ref(), CERTIFICATE);
    }
    Ok(found.len())
}

#[test]
fn no_certificate_gets_lost() {
    let utf16 = |mark: &str, unit: fn(u16) -> [u8; 2]| {
        (mark.to_owned() + &good())
            .encode_utf16()
            .flat_map(unit)
            .collect::<Vec<u8>>()
    };
    let text = |text: String| text.into_bytes();
    let trusted = [CERTIFICATE, b"\x30\x05trust"].concat();
    for (name, file, count) in [
        ("plain", text(good()), 1),
        (
            "byte order mark",
            text(format!("\u{feff}{}\u{feff}{}", good(), good())),
            2,
        ),
        ("UTF-16 LE", utf16("\u{feff}", u16::to_le_bytes), 1),
        ("UTF-16 BE", utf16("\u{feff}", u16::to_be_bytes), 1),
        ("UTF-16 LE without a mark", utf16("", u16::to_le_bytes), 1),
        ("CRLF", text(good().replace('\n', "\r\n")), 1),
        ("CR", text(good().replace('\n', "\r")), 1),
        (
            "indented",
            text(format!("  {}", good().replace('\n', "\n  "))),
            1,
        ),
        ("no line end", text(good().trim_end().to_owned()), 1),
        (
            "one line",
            text(format!(
                "{}{}",
                good().replace('\n', ""),
                good().replace('\n', "")
            )),
            2,
        ),
        (
            "text around",
            [
                &b"Issuer: \xe9 --- x\n\n"[..],
                good().as_bytes(),
                b"# end\n",
            ]
            .concat(),
            1,
        ),
        (
            "comment",
            text(format!("# -----BEGIN CERTIFICATE-----\n# AAAA\n{}", good())),
            1,
        ),
        ("X509", text(section("X509 CERTIFICATE", CERTIFICATE)), 1),
        ("TRUSTED", text(section("TRUSTED CERTIFICATE", &trusted)), 1),
        (
            "key between",
            text(good() + &section("PRIVATE KEY", b"\x30\x00") + &good()),
            2,
        ),
        (
            "headers",
            text(good().replacen("-----\n", "-----\nComment: a\nX: b\n\n", 1)),
            1,
        ),
        ("DER", CERTIFICATE.to_vec(), 1),
    ] {
        assert_eq!(read(&file), Ok(count), "{name}");
    }
}

#[test]
fn an_unreadable_section_is_an_error_with_its_line() {
    let absent = "no certificate (PEM section CERTIFICATE) in it";
    for (file, error) in [
        (String::new(), format!("{absent}: it is empty")),
        ("\n \n".into(), format!("{absent}: it is empty")),
        ("hello\n".into(), absent.into()),
        (
            section("CERTIFICATE REQUEST", CERTIFICATE),
            format!("{absent}, but CERTIFICATE REQUEST in line 1"),
        ),
        (
            good() + "-----BEGIN CERTIFICATE-----\nAAAA\n",
            "line 8: -----BEGIN CERTIFICATE----- has no -----END CERTIFICATE-----".into(),
        ),
        (
            format!("-----BEGIN CERTIFICATE-----\nAAAA\n{}", good()),
            "line 1: -----BEGIN CERTIFICATE----- has no -----END CERTIFICATE-----".into(),
        ),
        (
            good().replace("END CERT", "END X509 CERT"),
            "line 1: -----BEGIN CERTIFICATE----- has no -----END CERTIFICATE-----".into(),
        ),
        (good().replacen("\nBw", "\nB%", 1), "line 3: not base64 (RFC 7468 3)".into()),
        (
            "-----BEGIN CERTIFICATE-----\nAAAAA\n-----END CERTIFICATE-----\n".into(),
            "line 1: the base64 of CERTIFICATE is damaged or cut off".into(),
        ),
        (
            good() + &section("CERTIFICATE", b"\0\0\0"),
            "line 8: not a certificate".into(),
        ),
        (
            good().replace("CERTIFICATE", "CERTIFICATES"),
            "line 1: unknown PEM section \"CERTIFICATES\"; is it a CERTIFICATE?".into(),
        ),
        (
            format!("\n{}", good()).replace("-----BEGIN", "----BEGIN"),
            "line 2: malformed beginning of a section: it is -----BEGIN CERTIFICATE-----".into(),
        ),
        (
            section("PKCS7", CERTIFICATE),
            "line 1: certificates in PKCS #7 are not read: convert them with openssl pkcs7 -print_certs"
                .into(),
        ),
    ] {
        assert_eq!(read(file.as_bytes()), Err(error), "{file}");
    }
    let pkcs12 = [&b"\x30\x81\xc9\x02\x01\x03"[..], &[0; 198]].concat();
    assert!(read(&pkcs12).unwrap_err().contains("openssl pkcs12"));
}

#[test]
fn revocation_lists_are_read_the_same() {
    let lists = |file: &[u8]| revocation_lists(file).map(|lists| lists.len());
    let list = section("X509 CRL", CERTIFICATE);
    assert_eq!(lists(format!("\u{feff}{list}{list}").as_bytes()), Ok(2));
    assert_eq!(lists(CERTIFICATE), Ok(1));
    let error = lists(good().as_bytes()).unwrap_err().to_string();
    assert_eq!(
        error,
        "no revocation list (PEM section X509 CRL) in it, but CERTIFICATE in line 1"
    );
}
