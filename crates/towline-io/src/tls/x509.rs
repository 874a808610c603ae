//! Certificate fields that rustls does not expose: whether the certificate is self-issued, and its validity
//! (RFC 5280 4.1, in DER of X.690), its subject and its public key.

pub(super) const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0]` of the version, which may be absent.
const VERSION: u8 = 0xa0;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CertInfo {
    pub(super) self_issued: bool,
    /// Seconds since 1970.
    pub(super) not_before: u64,
    pub(super) not_after: u64,
}

pub(super) fn cert_info(certificate: &[u8]) -> Option<CertInfo> {
    let fields = Fields::of(certificate)?;
    let mut validity = Der(fields.validity);
    Some(CertInfo {
        self_issued: fields.issuer == fields.subject,
        not_before: validity.time()?,
        not_after: validity.time()?,
    })
}

/// The contents of the subject's `Name`.
pub(super) fn subject(certificate: &[u8]) -> Option<&[u8]> {
    Some(Fields::of(certificate)?.subject)
}

/// Whether the certificate, of any version, has this public key (DER of `SubjectPublicKeyInfo`).
pub(super) fn has_public_key(certificate: &[u8], key: &[u8]) -> Option<bool> {
    Some(Fields::of(certificate)?.public_key == Der(key).expect(SEQUENCE)?)
}

/// Contents of fields of a certificate.
struct Fields<'a> {
    issuer: &'a [u8],
    validity: &'a [u8],
    subject: &'a [u8],
    public_key: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of(certificate: &'a [u8]) -> Option<Self> {
        let mut outer = Der(Der(certificate).expect(SEQUENCE)?);
        let mut tbs = Der(outer.expect(SEQUENCE)?);
        if tbs.0.first() == Some(&VERSION) {
            tbs.next()?;
        }
        let _serial = tbs.next()?;
        let _algorithm = tbs.next()?;
        Some(Self {
            issuer: tbs.expect(SEQUENCE)?,
            validity: tbs.expect(SEQUENCE)?,
            subject: tbs.expect(SEQUENCE)?,
            public_key: tbs.expect(SEQUENCE)?,
        })
    }
}

/// The DER bytes still to be parsed.
pub(super) struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    /// Tag and contents of the next element. Supports tags of one byte only.
    pub(super) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 3 {
                return None;
            }
            let (bytes, behind) = rest.split_at_checked(count)?;
            length = bytes
                .iter()
                .fold(0, |length, &byte| length << 8 | usize::from(byte));
            rest = behind;
        }
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, contents))
    }

    pub(super) fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|&(found, _)| found == tag)
            .map(|(_, contents)| contents)
    }

    /// Parses a time (RFC 5280 4.1.2.5: in UTC, with seconds).
    fn time(&mut self) -> Option<u64> {
        let (tag, text) = self.next()?;
        let (year, rest) = match tag {
            UTC_TIME => {
                let year = number(text.get(..2)?)?;
                (
                    if year < 50 { 2000 + year } else { 1900 + year },
                    &text[2..],
                )
            }
            GENERALIZED_TIME => (number(text.get(..4)?)?, &text[4..]),
            _ => return None,
        };
        let (digits, b"Z") = rest.split_at_checked(10)? else {
            return None;
        };
        let part = |at: usize| number(&digits[2 * at..2 * at + 2]);
        let seconds = (part(2)? * 60 + part(3)?) * 60 + part(4)?;
        Some(days_since_1970(year, part(0)?, part(1)?)? * 86_400 + seconds)
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, byte| {
        byte.is_ascii_digit()
            .then(|| number * 10 + u64::from(byte - b'0'))
    })
}

fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years start in March, so that the leap day is the last day.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let leap_days = year / 4 - year / 100 + year / 400;
    Some(year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

    use super::*;

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = date_time_ymd(2024, 2, 29);
        params.not_after = date_time_ymd(2059, 12, 31);
        params
    }

    #[test]
    fn the_fields_of_a_certificate_are_parsed() {
        let key = KeyPair::generate().unwrap();
        let mut ca = params("authority");
        ca.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let expected = |self_issued| CertInfo {
            self_issued,
            not_before: 1_709_164_800,
            not_after: 2_840_054_400,
        };
        let lazy = params("a").self_signed(&key).unwrap();
        assert_eq!(cert_info(lazy.der()), Some(expected(true)));
        let signed = params("a").signed_by(&key, &ca).unwrap();
        assert_eq!(cert_info(signed.der()), Some(expected(false)));
        for cut in 0..300 {
            let _ = cert_info(&signed.der()[..cut.min(signed.der().len())]);
            let mut broken = signed.der().to_vec();
            broken[cut % signed.der().len()] ^= 0xff;
            let _ = cert_info(&broken);
        }
    }
}
