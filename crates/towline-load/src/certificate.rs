//! A certificate for one run of the bench: an authority, a leaf certificate and a key, made anew for
//! each run.

use std::error::Error;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// PEM texts. The key is ECDSA P-256 in PKCS #8, which every server under test reads.
#[derive(Clone, Debug)]
pub struct TestCertificate {
    pub authority: String,
    pub certificate: String,
    pub key: String,
}

impl TestCertificate {
    /// Makes a certificate for host names and addresses.
    ///
    /// # Errors
    /// An invalid name, or no source of randomness.
    pub fn new(names: &[String]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        authority
            .distinguished_name
            .push(DnType::CommonName, "towline bench, one run");
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

        let mut leaf = CertificateParams::new(names)?;
        leaf.use_authority_key_identifier_extension = true;
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.distinguished_name
            .push(DnType::CommonName, "towline bench subject");
        let key = KeyPair::generate()?;
        let certificate = leaf.signed_by(&key, &authority)?;
        Ok(Self {
            authority: authority.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}
