//! Encrypted private keys: PKCS#8 (RFC 5958 3, PBES2 of RFC 8018) and the traditional format of OpenSSL, which
//! has its cipher in header lines of the PEM section (RFC 1421 4.6).

use std::fmt;
use std::ops::Range;

use cbc::cipher::{BlockModeDecrypt, InnerIvInit, KeyInit, block_padding::Pkcs7};
use md5::{Digest, Md5};
use pkcs8::EncryptedPrivateKeyInfoRef;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

/// A password. It is wiped from memory on drop, and never printed.
#[derive(Clone)]
pub struct Password(Zeroizing<Vec<u8>>);

impl Password {
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(bytes.into()))
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

/// Error of reading a key. The messages follow "FILE: ".
#[derive(Debug, PartialEq, Eq)]
pub(super) enum KeyError {
    Absent,
    PasswordMissing,
    PasswordWrong,
    /// Unsupported cipher or key derivation, by its name in the file.
    Unsupported(String),
    Malformed(String),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("no private key (PKCS#8, PKCS#1 or SEC1 PEM) in it"),
            Self::PasswordMissing => {
                f.write_str("the private key is encrypted, and no password was given")
            }
            Self::PasswordWrong => {
                f.write_str("the private key is encrypted, and the password is not the right one")
            }
            Self::Unsupported(cipher) => {
                write!(
                    f,
                    "the private key is encrypted in a way that is not supported: {cipher}"
                )
            }
            Self::Malformed(why) => write!(f, "the private key cannot be read: {why}"),
        }
    }
}

/// Reads the first private key of a PEM file, preferably an unencrypted one.
pub(super) fn private_key(
    text: &[u8],
    password: Option<&Password>,
) -> Result<PrivateKeyDer<'static>, KeyError> {
    let Some(section) = EncryptedSection::find(text) else {
        return PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
            pem::Error::NoItemsFound => KeyError::Absent,
            other => KeyError::Malformed(other.to_string()),
        });
    };
    if let Ok(key) = PrivateKeyDer::from_pem_slice(&without_encrypted_keys(text)) {
        return Ok(key);
    }
    let password = password.ok_or(KeyError::PasswordMissing)?;
    section.decrypt(&password.0)
}

/// The file without its encrypted keys, whose header lines break the parsers of other sections.
pub(super) fn without_encrypted_keys(text: &[u8]) -> Vec<u8> {
    let mut rest = text.to_vec();
    while let Some(section) = EncryptedSection::find(&rest).map(|section| section.range) {
        rest.drain(section);
    }
    rest
}

const PKCS8_LABEL: &str = "ENCRYPTED PRIVATE KEY";

/// Section of an encrypted key in its file.
struct EncryptedSection<'a> {
    range: Range<usize>,
    label: &'a str,
    /// Header lines of the traditional format, then base64.
    inside: &'a str,
}

impl<'a> EncryptedSection<'a> {
    fn find(text: &'a [u8]) -> Option<Self> {
        // Text between sections may have any encoding; the sections themselves are ASCII.
        let mut from = 0;
        while let Some(start) = position(&text[from..], b"-----BEGIN ").map(|at| from + at) {
            from = start + 11;
            let label_end = from + position(&text[from..], b"-----")?;
            let label = std::str::from_utf8(&text[from..label_end]).ok()?;
            let end_line = format!("-----END {label}-----");
            let Some(end) = position(&text[label_end..], end_line.as_bytes()) else {
                continue;
            };
            let inside = std::str::from_utf8(&text[label_end + 5..label_end + end]);
            let range = start..label_end + end + end_line.len();
            from = range.end;
            let Ok(inside) = inside else { continue };
            if label == PKCS8_LABEL || inside.contains("Proc-Type: 4,ENCRYPTED") {
                return Some(Self {
                    range,
                    label,
                    inside,
                });
            }
        }
        None
    }

    fn decrypt(&self, password: &[u8]) -> Result<PrivateKeyDer<'static>, KeyError> {
        if self.label == PKCS8_LABEL {
            return decrypt_pkcs8(&decode(self.inside)?, password);
        }
        let cipher = self.header("DEK-Info").unwrap_or_default();
        // An empty line ends the headers (RFC 1421 4.4).
        let headers_end = ["\n\n", "\n\r\n"].map(|gap| self.inside.find(gap));
        let headers_end = headers_end.into_iter().flatten().min();
        let base64 = &self.inside[headers_end.unwrap_or(self.inside.len())..];
        let der = decrypt_traditional(cipher, &decode(base64)?, password)?;
        Ok(match self.label {
            "RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der).into(),
            "EC PRIVATE KEY" => PrivateSec1KeyDer::from(der).into(),
            other => return Err(KeyError::Unsupported(other.to_owned())),
        })
    }

    fn header(&self, name: &str) -> Option<&'a str> {
        let mut lines = self.inside.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }
}

fn position(text: &[u8], word: &[u8]) -> Option<usize> {
    text.windows(word.len()).position(|window| window == word)
}

/// Decodes the base64 of a section, by the PEM parser used for all others.
fn decode(base64: &str) -> Result<Vec<u8>, KeyError> {
    let section =
        format!("-----BEGIN PRIVATE KEY-----\n{base64}\n-----END PRIVATE KEY-----\n").into_bytes();
    PrivatePkcs8KeyDer::from_pem_slice(&section)
        .map(|der| der.secret_pkcs8_der().to_vec())
        .map_err(|error| KeyError::Malformed(error.to_string()))
}

fn decrypt_pkcs8(der: &[u8], password: &[u8]) -> Result<PrivateKeyDer<'static>, KeyError> {
    let info = EncryptedPrivateKeyInfoRef::try_from(der).map_err(|error| {
        if is_der_sequence(der) {
            KeyError::Unsupported("not by PBES2 of RFC 8018".into())
        } else {
            KeyError::Malformed(error.to_string())
        }
    })?;
    let plain = info.decrypt(password).map_err(|error| match error {
        pkcs8::Error::EncryptedPrivateKey(pkcs8::pkcs5::Error::UnsupportedAlgorithm { oid }) => {
            KeyError::Unsupported(oid.to_string())
        }
        pkcs8::Error::EncryptedPrivateKey(pkcs8::pkcs5::Error::NoPbes1CryptSupport) => {
            KeyError::Unsupported("PBES1".into())
        }
        // Wrong padding, or the result is not DER.
        _ => KeyError::PasswordWrong,
    })?;
    Ok(PrivatePkcs8KeyDer::from(plain.as_bytes().to_vec()).into())
}

/// Decrypts the traditional format. `info`: cipher and initial vector, `AES-256-CBC,0011...`.
fn decrypt_traditional(info: &str, data: &[u8], password: &[u8]) -> Result<Vec<u8>, KeyError> {
    let (cipher, iv) = info.split_once(',').unwrap_or((info, ""));
    let iv = hex(iv).ok_or_else(|| KeyError::Malformed("DEK-Info has no initial vector".into()))?;
    let plain = match cipher {
        "AES-128-CBC" => cbc::<aes::Aes128>(16, &iv, data, password),
        "AES-192-CBC" => cbc::<aes::Aes192>(24, &iv, data, password),
        "AES-256-CBC" => cbc::<aes::Aes256>(32, &iv, data, password),
        "DES-EDE3-CBC" => cbc::<des::TdesEde3>(24, &iv, data, password),
        other => return Err(KeyError::Unsupported(other.to_owned())),
    }?;
    // With a wrong password the padding is valid by chance in one of 256 cases.
    if is_der_sequence(&plain) {
        Ok(plain)
    } else {
        Err(KeyError::PasswordWrong)
    }
}

fn cbc<C>(key_bytes: usize, iv: &[u8], data: &[u8], password: &[u8]) -> Result<Vec<u8>, KeyError>
where
    C: KeyInit + cbc::cipher::BlockCipherDecrypt,
{
    let short = || KeyError::Malformed("DEK-Info has an initial vector of a wrong length".into());
    let salt = iv.get(..8).ok_or_else(short)?;
    let key = derive_key(password, salt, key_bytes);
    let cipher = C::new_from_slice(&key).map_err(|_| short())?;
    let decryptor = cbc::Decryptor::inner_iv_slice_init(cipher, iv).map_err(|_| short())?;
    decryptor
        .decrypt_padded_vec::<Pkcs7>(data)
        .map_err(|_| KeyError::PasswordWrong)
}

/// OpenSSL's `EVP_BytesToKey` with MD5 and one round: each digest is over the previous one, the password and
/// the salt. Weak, but the only derivation of this format.
fn derive_key(password: &[u8], salt: &[u8], bytes: usize) -> Zeroizing<Vec<u8>> {
    let mut key = Zeroizing::new(Vec::with_capacity(bytes + 16));
    while key.len() < bytes {
        let mut digest = Md5::new();
        digest.update(&key[key.len().saturating_sub(16)..]);
        digest.update(password);
        digest.update(salt);
        key.extend_from_slice(&digest.finalize());
    }
    key.truncate(bytes);
    key
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|c| c.to_digit(16).map(|digit| digit as u8))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    Some(
        digits
            .chunks(2)
            .map(|pair| pair[0] << 4 | pair[1])
            .collect(),
    )
}

/// Whether `der` is one SEQUENCE whose length fills it (X.690 8.1.3).
fn is_der_sequence(der: &[u8]) -> bool {
    let [0x30, length, rest @ ..] = der else {
        return false;
    };
    if *length < 0x80 {
        return rest.len() == usize::from(*length);
    }
    let count = usize::from(*length & 0x7f);
    if count == 0 || count > 4 || rest.len() < count {
        return false;
    }
    let (length, content) = rest.split_at(count);
    let length = length
        .iter()
        .fold(0usize, |length, &byte| length << 8 | usize::from(byte));
    content.len() == length
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
