//! Keys as OpenSSL 3 writes them, all the same P-256 key under the password "open sesame":
//! `openssl ec -aes256` and `openssl pkcs8 -topk8 -v2 aes256`, and so on.

use super::*;

macro_rules! file {
    ($name:literal) => {
        (
            $name,
            include_bytes!(concat!("testdata/", $name)).as_slice(),
        )
    };
}

const PLAIN: &[u8] = include_bytes!("testdata/plain.key");
const TRADITIONAL: [(&str, &[u8]); 4] = [
    file!("ec-aes128.key"),
    file!("ec-aes192.key"),
    file!("ec-aes256.key"),
    file!("ec-des3.key"),
];
const PKCS8: [(&str, &[u8]); 6] = [
    file!("p8-aes128.key"),
    file!("p8-aes192.key"),
    file!("p8-aes256.key"),
    file!("p8-des3.key"),
    file!("p8-scrypt.key"),
    file!("p8-sha1.key"),
];

fn read(text: &[u8], password: &str) -> Result<PrivateKeyDer<'static>, KeyError> {
    private_key(text, Some(&Password::new(password)))
}

#[test]
fn every_cipher_gives_the_key() {
    let plain = private_key(PLAIN, None).unwrap();
    for (name, text) in TRADITIONAL {
        assert_eq!(read(text, "open sesame").as_ref(), Ok(&plain), "{name}");
    }
    // PKCS#8 wraps the SEC1 key: compared by what a TLS library makes of it.
    let public = |key: &PrivateKeyDer<'static>| {
        let key = rustls::crypto::ring::sign::any_ecdsa_type(key).unwrap();
        key.public_key().unwrap().to_vec()
    };
    for (name, text) in PKCS8 {
        let key = read(text, "open sesame").unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(public(&key), public(&plain), "{name}");
    }
}

#[test]
fn a_wrong_password_is_told_whatever_the_padding_says() {
    // One of PKCS#8: their derivations are slow by design, and slower in a debug build.
    for (name, text) in TRADITIONAL.into_iter().chain([PKCS8[2]]) {
        assert_eq!(
            private_key(text, None),
            Err(KeyError::PasswordMissing),
            "{name}"
        );
        assert_eq!(
            read(text, "shut sesame"),
            Err(KeyError::PasswordWrong),
            "{name}"
        );
        assert_eq!(read(text, ""), Err(KeyError::PasswordWrong), "{name}");
    }
    // A thousand of them: padding of one byte comes right by chance several times.
    for guess in 0..1000 {
        let (_, text) = TRADITIONAL[3];
        assert_eq!(read(text, &guess.to_string()), Err(KeyError::PasswordWrong));
    }
}

#[test]
fn what_is_not_supported_has_a_name() {
    let (_, text) = file!("p8-v1.key");
    assert_eq!(
        read(text, "open sesame"),
        Err(KeyError::Unsupported("not by PBES2 of RFC 8018".into()))
    );
    let text = String::from_utf8(TRADITIONAL[2].1.to_vec()).unwrap();
    let other = text.replace("AES-256-CBC", "CAMELLIA-256-CBC");
    assert_eq!(
        read(other.as_bytes(), "open sesame"),
        Err(KeyError::Unsupported("CAMELLIA-256-CBC".into()))
    );
}

#[test]
fn broken_files_are_malformed() {
    let text = String::from_utf8(TRADITIONAL[2].1.to_vec()).unwrap();
    let vector = text
        .split_once("AES-256-CBC,")
        .unwrap()
        .1
        .split_once('\n')
        .unwrap()
        .0;
    for (from, to) in [
        (vector, ""),
        (vector, "00"),
        (vector, "001122334455667788"),
        (vector, "+0112233445566778899aabbccddeeff"),
        ("\n\n", "\n\n!"),
    ] {
        let error = read(text.replacen(from, to, 1).as_bytes(), "open sesame").unwrap_err();
        assert!(
            matches!(error, KeyError::Malformed(_)),
            "{from} -> {to}: {error}"
        );
    }
    let cut = &PKCS8[2].1[..100];
    assert!(matches!(read(cut, ""), Err(KeyError::Malformed(_))));
}

#[test]
fn windows_line_ends_and_other_sections_around_it() {
    for (name, text) in [TRADITIONAL[3], PKCS8[0]] {
        let text = String::from_utf8(text.to_vec())
            .unwrap()
            .replace('\n', "\r\n");
        let mut file =
            b"a remark in Latin-1: \xe9\r\n-----BEGIN X-----\r\nAAAA\r\n-----END X-----\r\n"
                .to_vec();
        file.extend_from_slice(text.as_bytes());
        let key = private_key(&file, Some(&Password::new("open sesame")));
        assert!(key.is_ok(), "{name}: {key:?}");
        assert_eq!(position(&without_encrypted_keys(&file), b"ENCRYPTED"), None);
    }
    // A plain key is taken first: no password has to be asked for.
    let both = [TRADITIONAL[0].1, PLAIN].concat();
    assert_eq!(private_key(&both, None), private_key(PLAIN, None));
}

#[test]
fn the_password_is_not_printed() {
    assert_eq!(
        format!("{:?}", Password::new("open sesame")),
        "Password(..)"
    );
}
