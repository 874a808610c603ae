//! Encrypted private keys: PKCS#8 (RFC 5958 3, PBES2 of RFC 8018) and the traditional format of OpenSSL, which
//! has its cipher in header lines of the PEM section (RFC 1421 4.6).

use std::fmt;

use cbc::cipher::{BlockModeDecrypt, InnerIvInit, KeyInit, block_padding::Pkcs7};
use md5::{Digest, Md5};
use pkcs8::EncryptedPrivateKeyInfoRef;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use zeroize::Zeroizing;

use super::pem::{self, PemError, Section};

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

impl From<PemError> for KeyError {
    fn from(error: PemError) -> Self {
        Self::Malformed(error.to_string())
    }
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

/// Reads the first private key of a file, preferably an unencrypted one.
pub(super) fn private_key(
    bytes: &[u8],
    password: Option<&Password>,
) -> Result<PrivateKeyDer<'static>, KeyError> {
    if pem::is_der(bytes) {
        return private_key_of_der(bytes, password);
    }
    let sections = pem::sections(bytes)?;
    let is_encrypted = |section: &&Section| {
        let procedure = section.header("Proc-Type").unwrap_or_default();
        section.label == PKCS8_LABEL || procedure.ends_with("ENCRYPTED")
    };
    let mut plain = sections.iter().filter(|section| !is_encrypted(section));
    if let Some(key) =
        plain.find_map(|section| key_of(&section.label, || section.der()).transpose())
    {
        return key;
    }
    if let Some(section) = sections.iter().find(is_encrypted) {
        return decrypt(section, &password.ok_or(KeyError::PasswordMissing)?.0);
    }
    if sections
        .iter()
        .any(|section| section.label == "OPENSSH PRIVATE KEY")
    {
        let why = "it has the format of OpenSSH; ssh-keygen -p -m PEM -f FILE changes that";
        return Err(KeyError::Malformed(why.into()));
    }
    Err(KeyError::Absent)
}

/// The key of a section with this label; `None` if it is no unencrypted key.
fn key_of(
    label: &str,
    der: impl FnOnce() -> Result<Vec<u8>, PemError>,
) -> Result<Option<PrivateKeyDer<'static>>, KeyError> {
    Ok(Some(match label {
        "PRIVATE KEY" => PrivatePkcs8KeyDer::from(der()?).into(),
        "RSA PRIVATE KEY" => PrivatePkcs1KeyDer::from(der()?).into(),
        "EC PRIVATE KEY" => PrivateSec1KeyDer::from(der()?).into(),
        _ => return Ok(None),
    }))
}

fn private_key_of_der(
    der: &[u8],
    password: Option<&Password>,
) -> Result<PrivateKeyDer<'static>, KeyError> {
    if let Ok(key) = PrivateKeyDer::try_from(der.to_vec()) {
        return Ok(key);
    }
    let is_encrypted = EncryptedPrivateKeyInfoRef::try_from(der).is_ok();
    match password {
        Some(password) if is_encrypted => decrypt_pkcs8(der, &password.0),
        None if is_encrypted => Err(KeyError::PasswordMissing),
        _ => Err(KeyError::Malformed(
            "not PEM, and not a private key in DER (a file of PKCS #12? openssl pkcs12 -nodes makes PEM of it)"
                .into(),
        )),
    }
}

const PKCS8_LABEL: &str = "ENCRYPTED PRIVATE KEY";

fn decrypt(section: &Section, password: &[u8]) -> Result<PrivateKeyDer<'static>, KeyError> {
    let der = section.der()?;
    if section.label == PKCS8_LABEL {
        return decrypt_pkcs8(&der, password);
    }
    let cipher = section.header("DEK-Info").unwrap_or_default();
    let plain = decrypt_traditional(cipher, &der, password)?;
    key_of(&section.label, || Ok(plain))?
        .ok_or_else(|| KeyError::Unsupported(section.label.clone()))
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

/// Whether `der` is one SEQUENCE, and nothing else.
fn is_der_sequence(der: &[u8]) -> bool {
    pem::sequence(der).is_some_and(|sequence| sequence.len() == der.len())
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
