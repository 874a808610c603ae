//! Selection of cipher suites by name (`--ssl-ciphers`).

use rustls::{CipherSuite, SupportedCipherSuite};

/// OpenSSL's names of the TLS 1.2 suites that rustls supports; those of TLS 1.3 have one name.
const OPENSSL: &[(&str, CipherSuite)] = &[
    (
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (
        "ECDHE-RSA-AES128-GCM-SHA256",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    ),
    (
        "ECDHE-RSA-AES256-GCM-SHA384",
        CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    ),
    (
        "ECDHE-RSA-CHACHA20-POLY1305",
        CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

/// The suites with these names, in their order, which is the server's preference.
pub(super) fn select(
    supported: &[SupportedCipherSuite],
    names: &[String],
) -> Result<Vec<SupportedCipherSuite>, String> {
    names.iter().map(|name| suite(supported, name)).collect()
}

fn suite(supported: &[SupportedCipherSuite], name: &str) -> Result<SupportedCipherSuite, String> {
    let matches = |suite: &&SupportedCipherSuite| {
        iana_name(suite.suite()).eq_ignore_ascii_case(name)
            || openssl_name(suite.suite()).eq_ignore_ascii_case(name)
    };
    supported.iter().find(matches).copied().ok_or_else(|| {
        let known: Vec<_> = supported
            .iter()
            .map(|suite| openssl_name(suite.suite()))
            .collect();
        format!(
            "cipher suite {name:?} is not supported (groups such as HIGH or ECDHE+AESGCM are not known): choose from {}",
            known.join(":")
        )
    })
}

/// The name in IANA's registry: rustls calls the suites of TLS 1.3 `TLS13_...`.
fn iana_name(suite: CipherSuite) -> String {
    suite
        .as_str()
        .unwrap_or_default()
        .replacen("TLS13_", "TLS_", 1)
}

fn openssl_name(suite: CipherSuite) -> String {
    let found = OPENSSL.iter().find(|(_, known)| *known == suite);
    found.map_or_else(|| iana_name(suite), |(name, _)| (*name).to_owned())
}
