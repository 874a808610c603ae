//! PEM files (RFC 7468): certificates, keys and revocation lists. Nothing in a file gets lost without a word: a section
//! is read, or is of no interest here, or is an error with its line.
//!
//! Files come from editors and scripts of every kind: a byte order mark, UTF-16, any line ends, indentation, text around
//! the sections, and the labels of OpenSSL are all accepted, and so is DER without PEM.

use std::borrow::Cow;
use std::fmt;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivatePkcs8KeyDer};

use rustls::RootCertStore;

const BEGIN: &str = "-----BEGIN ";
const DASHES: &str = "-----";
/// Tag of ASN.1.
const SEQUENCE: u8 = 0x30;

/// Why a file cannot be read, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PemError {
    /// Counted from 1; 0: the file as a whole.
    line: usize,
    why: String,
}

impl PemError {
    fn new(why: impl Into<String>) -> Self {
        Self::at(0, why)
    }

    fn at(line: usize, why: impl Into<String>) -> Self {
        Self {
            line,
            why: why.into(),
        }
    }
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.why),
            line => write!(f, "line {line}: {}", self.why),
        }
    }
}

/// A certificate with the line at which it begins.
pub(super) type Certificate = (usize, CertificateDer<'static>);

/// One section, from its BEGIN to its END.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) label: String,
    /// Line of the BEGIN, counted from 1.
    pub(super) line: usize,
    /// Lines of the content with their numbers.
    content: Vec<(usize, String)>,
}

impl Section {
    fn new(label: &str, line: usize) -> Self {
        Self {
            label: label.to_owned(),
            line,
            content: Vec::new(),
        }
    }

    /// Number of header lines (RFC 1421 4.6); an empty line ends them.
    fn headers(&self) -> usize {
        let is_header = |line: &&(usize, String)| line.1.contains(':');
        if !self.content.first().as_ref().is_some_and(is_header) {
            return 0;
        }
        let gap = self.content.iter().position(|(_, line)| line.is_empty());
        gap.unwrap_or_else(|| self.content.iter().take_while(is_header).count())
    }

    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.content[..self.headers()].iter();
        lines.find_map(|(_, line)| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    /// The decoded content.
    pub(super) fn der(&self) -> Result<Vec<u8>, PemError> {
        let mut plain = String::from("-----BEGIN PRIVATE KEY-----\n");
        for (number, line) in &self.content[self.headers()..] {
            let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
            let digits: String = line.split_ascii_whitespace().collect();
            if !digits.bytes().all(is_base64) {
                return Err(PemError::at(*number, "not base64 (RFC 7468 3)"));
            }
            plain.push_str(&digits);
            plain.push('\n');
        }
        plain.push_str("-----END PRIVATE KEY-----\n");
        // The decoder for keys takes the same time for all of them.
        match PrivatePkcs8KeyDer::from_pem_slice(plain.as_bytes()) {
            Ok(der) if !der.secret_pkcs8_der().is_empty() => Ok(der.secret_pkcs8_der().to_vec()),
            _ => Err(PemError::at(
                self.line,
                format!("the base64 of {} is damaged or cut off", self.label),
            )),
        }
    }
}

/// Reads all certificates, at least one.
pub(super) fn certificates(bytes: &[u8]) -> Result<Vec<Certificate>, PemError> {
    if is_der(bytes) {
        return match first_certificate(bytes) {
            Some(der) => Ok(vec![(0, CertificateDer::from(der.to_vec()))]),
            None => Err(PemError::new(
                "not PEM, and not one certificate in DER (a file of PKCS #12 or #7? openssl pkcs12 -nodes, or openssl \
                 pkcs7 -print_certs, makes PEM of it)",
            )),
        };
    }
    let (mut found, mut others) = (Vec::new(), Vec::new());
    for section in sections(bytes)? {
        match section.label.as_str() {
            "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE" => {
                let der = section.der()?;
                // Purposes for which OpenSSL trusts a certificate follow behind it.
                let der = first_certificate(&der)
                    .ok_or_else(|| PemError::at(section.line, "not a certificate"))?;
                found.push((section.line, CertificateDer::from(der.to_vec())));
            }
            "PKCS7" | "PKCS #7 SIGNED DATA" | "CMS" => {
                return Err(PemError::at(
                    section.line,
                    "certificates in PKCS #7 are not read: convert them with openssl pkcs7 -print_certs",
                ));
            }
            "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST" | "ATTRIBUTE CERTIFICATE" => {
                others.push(section);
            }
            label if label.to_ascii_uppercase().contains("CERTIFICATE") => {
                let why = format!("unknown PEM section {label:?}; is it a CERTIFICATE?");
                return Err(PemError::at(section.line, why));
            }
            _ => others.push(section),
        }
    }
    if found.is_empty() {
        let why = "no certificate (PEM section CERTIFICATE) in it";
        return Err(absent(why, bytes, others.first()));
    }
    Ok(found)
}

/// Adds certificates to those that are trusted.
pub(super) fn trust(
    roots: &mut RootCertStore,
    certificates: &[Certificate],
) -> Result<(), PemError> {
    for (line, certificate) in certificates {
        let added = roots.add(certificate.clone());
        added
            .map_err(|error| PemError::at(*line, format!("not usable as an authority: {error}")))?;
    }
    Ok(())
}

/// Reads all revocation lists; at least one.
pub(super) fn revocation_lists(
    bytes: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, PemError> {
    if is_der(bytes) {
        return Ok(vec![bytes.to_vec().into()]);
    }
    let sections = sections(bytes)?;
    let lists = sections
        .iter()
        .filter(|section| section.label == "X509 CRL");
    let lists: Vec<_> = lists
        .map(|list| list.der().map(CertificateRevocationListDer::from))
        .collect::<Result<_, _>>()?;
    if lists.is_empty() {
        let why = "no revocation list (PEM section X509 CRL) in it";
        return Err(absent(why, bytes, sections.first()));
    }
    Ok(lists)
}

/// Whether a file of a folder of certificates has any.
pub(super) fn has_certificate(bytes: &[u8]) -> bool {
    if is_der(bytes) {
        return first_certificate(bytes).is_some();
    }
    text(bytes)
        .to_ascii_uppercase()
        .contains("CERTIFICATE-----")
}

/// The error of a file that lacks what is looked for.
pub(super) fn absent(why: &str, bytes: &[u8], other: Option<&Section>) -> PemError {
    match other {
        Some(other) => PemError::new(format!("{why}, but {} in line {}", other.label, other.line)),
        None if bytes.trim_ascii().is_empty() => PemError::new(format!("{why}: it is empty")),
        None => PemError::new(why),
    }
}

/// Whether the file is binary, a SEQUENCE instead of text.
pub(super) fn is_der(bytes: &[u8]) -> bool {
    matches!(bytes, [SEQUENCE, 0x80..=0xff, ..])
        || sequence(bytes).map(<[u8]>::len) == Some(bytes.len())
}

/// The SEQUENCE at the start (X.690 8.1.3), with its header.
pub(super) fn sequence(der: &[u8]) -> Option<&[u8]> {
    let (header, length) = header(der)?;
    der.get(..header.checked_add(length)?)
}

/// The certificate at the start: a SEQUENCE that begins with another one (RFC 5280 4.1).
fn first_certificate(der: &[u8]) -> Option<&[u8]> {
    let certificate = sequence(der)?;
    let (header, _) = header(certificate)?;
    (certificate.get(header) == Some(&SEQUENCE)).then_some(certificate)
}

/// Lengths of the header and of the contents of a SEQUENCE.
fn header(der: &[u8]) -> Option<(usize, usize)> {
    let [SEQUENCE, length, rest @ ..] = der else {
        return None;
    };
    if *length < 0x80 {
        return Some((2, usize::from(*length)));
    }
    let count = usize::from(*length & 0x7f);
    let digits = rest.get(..count).filter(|_| (1..=4).contains(&count))?;
    let add = |length: usize, &digit: &u8| length << 8 | usize::from(digit);
    Some((2 + count, digits.iter().fold(0, add)))
}

/// Splits a file into its sections. Text between them is skipped.
pub(super) fn sections(bytes: &[u8]) -> Result<Vec<Section>, PemError> {
    let text = text(bytes);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut found: Vec<Section> = Vec::new();
    let mut open: Option<Section> = None;
    for (number, line) in (1..).zip(text.split('\n')) {
        let is_blank = |c: char| c.is_whitespace() || c == '\u{feff}';
        let mut rest = line.trim_matches(is_blank);
        // More than one round: an END and the next BEGIN without a line end between them.
        loop {
            let Some(mut section) = open.take() else {
                let Some((label, behind)) = begin(rest, number)? else {
                    break;
                };
                open = Some(Section::new(label, number));
                rest = behind.trim_matches(is_blank);
                if rest.is_empty() {
                    break;
                }
                continue;
            };
            let Some(marker) = rest.find(DASHES) else {
                section.content.push((number, rest.to_owned()));
                open = Some(section);
                break;
            };
            let end = format!("-----END {}-----", section.label);
            let Some(behind) = rest[marker..].strip_prefix(&*end) else {
                return Err(no_end(&section));
            };
            if marker > 0 {
                section.content.push((number, rest[..marker].to_owned()));
            }
            found.push(section);
            rest = behind;
        }
    }
    match open {
        Some(section) => Err(no_end(&section)),
        None => Ok(found),
    }
}

/// The label of a BEGIN, and what follows it on its line; `None` for any other text.
fn begin(line: &str, number: usize) -> Result<Option<(&str, &str)>, PemError> {
    let marker = line.strip_prefix(BEGIN);
    if let Some((label, behind)) = marker.and_then(|behind| behind.split_once(DASHES)) {
        return Ok(Some((label, behind)));
    }
    let upper = line.to_ascii_uppercase();
    if line.starts_with('-') && upper.contains("BEGIN") && upper.contains("CERTIFICATE") {
        let why = "malformed beginning of a section: it is -----BEGIN CERTIFICATE-----";
        return Err(PemError::at(number, why));
    }
    Ok(None)
}

fn no_end(section: &Section) -> PemError {
    let label = &section.label;
    PemError::at(
        section.line,
        format!("-----BEGIN {label}----- has no -----END {label}-----"),
    )
}

/// The text of a file in UTF-16 or UTF-8. Text between sections may have any encoding.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    let units = |unit: fn([u8; 2]) -> u16| {
        let pairs = bytes.as_chunks::<2>().0.iter();
        String::from_utf16_lossy(&pairs.map(|&pair| unit(pair)).collect::<Vec<_>>())
    };
    match bytes {
        [0xff, 0xfe, ..] | [1..=0xff, 0, 1..=0xff, 0, ..] => units(u16::from_le_bytes).into(),
        [0xfe, 0xff, ..] | [0, 1..=0xff, 0, 1..=0xff, ..] => units(u16::from_be_bytes).into(),
        _ => String::from_utf8_lossy(bytes),
    }
}

#[cfg(test)]
#[path = "pem_tests.rs"]
mod tests;
