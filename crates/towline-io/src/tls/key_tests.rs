//! Keys of the traditional format, encrypted here; `tests/server/test_tls.py` has those of OpenSSL.

use cbc::cipher::{BlockCipherEncrypt, BlockModeEncrypt};

use super::*;

const PASSWORD: &str = "open sesame";
const CIPHERS: [&str; 4] = ["AES-128-CBC", "AES-192-CBC", "AES-256-CBC", "DES-EDE3-CBC"];

/// DER of a SEQUENCE of zeros, as long as a key of P-256.
fn der() -> Vec<u8> {
    [&[0x30, 0x77][..], &[0; 0x77]].concat()
}

fn encrypt<C>(key_bytes: usize, iv: &[u8]) -> Vec<u8>
where
    C: KeyInit + BlockCipherEncrypt,
{
    let key = derive_key(PASSWORD.as_bytes(), &iv[..8], key_bytes);
    let cipher = C::new_from_slice(&key).unwrap();
    let encryptor = cbc::Encryptor::inner_iv_slice_init(cipher, iv).unwrap();
    encryptor.encrypt_padded_vec::<Pkcs7>(&der())
}

/// Encrypts; returns the vector of `DEK-Info` and the encrypted bytes.
fn encrypted(cipher: &str) -> (String, Vec<u8>) {
    let iv: Vec<u8> = (0..if cipher.starts_with("DES") { 8 } else { 16 }).collect();
    let data = match cipher {
        "AES-128-CBC" => encrypt::<aes::Aes128>(16, &iv),
        "AES-192-CBC" => encrypt::<aes::Aes192>(24, &iv),
        "AES-256-CBC" => encrypt::<aes::Aes256>(32, &iv),
        _ => encrypt::<des::TdesEde3>(24, &iv),
    };
    let iv = iv
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02X}"));
    (iv, data)
}

fn decrypt(cipher: &str, password: &str) -> Result<Vec<u8>, KeyError> {
    let (iv, data) = encrypted(cipher);
    decrypt_traditional(&format!("{cipher},{iv}"), &data, password.as_bytes())
}

#[test]
fn every_cipher_decrypts_the_key() {
    for cipher in CIPHERS {
        assert_eq!(decrypt(cipher, PASSWORD), Ok(der()), "{cipher}");
    }
}

#[test]
fn a_wrong_password_is_an_error_also_with_valid_padding() {
    // With two thousand passwords the padding is valid by chance several times.
    for guess in 0..500 {
        for cipher in CIPHERS {
            let outcome = decrypt(cipher, &guess.to_string());
            assert_eq!(outcome, Err(KeyError::PasswordWrong), "{cipher} {guess}");
        }
    }
}

#[test]
fn an_unsupported_cipher_is_named_in_the_error() {
    let (iv, data) = encrypted("AES-256-CBC");
    assert_eq!(
        decrypt_traditional(&format!("CAMELLIA-256-CBC,{iv}"), &data, b""),
        Err(KeyError::Unsupported("CAMELLIA-256-CBC".into()))
    );
    assert_eq!(
        decrypt_pkcs8(&der(), b"").unwrap_err(),
        KeyError::Unsupported("not by PBES2 of RFC 8018".into())
    );
}

#[test]
fn damaged_keys_are_malformed() {
    let (_, data) = encrypted("AES-256-CBC");
    for iv in [
        "",
        "00",
        "001122334455667788",
        "+0112233445566778899aabbccddeeff",
        "0",
    ] {
        let error = decrypt_traditional(&format!("AES-256-CBC,{iv}"), &data, b"").unwrap_err();
        assert!(matches!(error, KeyError::Malformed(_)), "{iv}: {error}");
    }
    assert!(matches!(
        decrypt_pkcs8(b"\x30\x05\x00", b""),
        Err(KeyError::Malformed(_))
    ));
    let short = decrypt_traditional(&format!("AES-256-CBC,{:032}", 0), &data[1..], b"");
    assert_eq!(
        short,
        Err(KeyError::PasswordWrong),
        "no whole number of blocks"
    );
}

#[test]
fn a_plain_key_is_preferred_and_the_first_counts() {
    let section = |label: &str, inside: &str| {
        format!("-----BEGIN {label}-----\n{inside}\n-----END {label}-----\n")
    };
    let certificate = section("CERTIFICATE", "MAIwAA==");
    let headers = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA";
    let encrypted = section("RSA PRIVATE KEY", headers) + &section(PKCS8_LABEL, "AAAA");
    let file = certificate.clone() + &encrypted;
    assert_eq!(
        private_key(file.as_bytes(), None),
        Err(KeyError::PasswordMissing)
    );
    let file = file + &section("EC PRIVATE KEY", "MAIwAA==") + &section("PRIVATE KEY", "MAIwAQ==");
    let key = private_key(file.as_bytes(), None).unwrap();
    assert_eq!(
        key,
        PrivateSec1KeyDer::from(b"\x30\x02\x30\x00".to_vec()).into()
    );
    assert_eq!(
        private_key(certificate.as_bytes(), None),
        Err(KeyError::Absent)
    );
    let openssh = section("OPENSSH PRIVATE KEY", "AAAA");
    let error = private_key(openssh.as_bytes(), None).unwrap_err();
    assert!(error.to_string().contains("ssh-keygen"), "{error}");
    let broken = certificate + &section("PRIVATE KEY", "MAIwAA==\n%");
    let error = private_key(broken.as_bytes(), None).unwrap_err();
    assert!(error.to_string().contains("line 6: not base64"), "{error}");
}

#[test]
fn a_length_must_fill_the_der() {
    for (der, is_one) in [
        (&b"\x30\x00"[..], true),
        (b"\x30\x81\x01\x00", true),
        (b"\x30\x82\x00\x01\x00", true),
        (b"\x30\x01", false),
        (b"\x30\x00\x00", false),
        (b"\x30\x80", false),
        (b"\x30\x85\x00\x00\x00\x00\x00", false),
        (b"\x31\x00", false),
        (b"\x30", false),
        (b"", false),
    ] {
        assert_eq!(is_der_sequence(der), is_one, "{der:?}");
    }
}

#[test]
fn the_password_is_not_printed() {
    assert_eq!(format!("{:?}", Password::new(PASSWORD)), "Password(..)");
}
