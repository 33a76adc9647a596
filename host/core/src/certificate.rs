//! What is read from certificates: the digest of a public key, and how long one is valid.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use x509_parser::pem::parse_x509_pem;

/// Why a certificate could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// Not PEM.
    #[error("it is not PEM")]
    NotPem,
    /// Not an X.509 certificate.
    #[error("it is PEM, but no X.509 certificate")]
    NotX509,
}

/// `sha256:…` of the public key (SubjectPublicKeyInfo) of the first certificate, as kubeadm's discovery wants it.
///
/// # Errors
/// When there is no certificate to be read.
pub fn public_key_hash(pem: &[u8]) -> Result<String, Unread> {
    let (_, pem) = parse_x509_pem(pem).map_err(|_| Unread::NotPem)?;
    let certificate = pem.parse_x509().map_err(|_| Unread::NotX509)?;
    let hash = Sha256::digest(certificate.tbs_certificate.subject_pki.raw);
    Ok(format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>()))
}

/// From when to when the first certificate is valid, in milliseconds since the Unix epoch.
///
/// # Errors
/// When there is no certificate to be read.
pub fn validity(pem: &[u8]) -> Result<(u64, u64), Unread> {
    let (_, pem) = parse_x509_pem(pem).map_err(|_| Unread::NotPem)?;
    let certificate = pem.parse_x509().map_err(|_| Unread::NotX509)?;
    let millis = |seconds: i64| u64::try_from(seconds).unwrap_or_default() * 1000;
    let validity = certificate.validity();
    Ok((millis(validity.not_before.timestamp()), millis(validity.not_after.timestamp())))
}

/// The client certificate (PEM) that a kubeconfig carries inline, in YAML or JSON.
pub fn client_certificate(kubeconfig: &str) -> Option<Vec<u8>> {
    let (_, rest) = kubeconfig.split_once("client-certificate-data")?;
    let text = rest.trim_start_matches(['"', '\'', ':', ' ', '\t', '\r', '\n']);
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c))).unwrap_or(text.len());
    STANDARD.decode(text.get(..end)?).ok().filter(|bytes| !bytes.is_empty())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A self-signed authority that OpenSSL made, valid for 365 days from 30 November 2026.
    pub(crate) const CA: &str = include_str!("testdata/ca.crt");

    #[test]
    fn the_hash_is_the_one_that_openssl_makes() {
        let expected = include_str!("testdata/ca.spki-sha256").trim();
        assert_eq!(public_key_hash(CA.as_bytes()).unwrap(), format!("sha256:{expected}"));
        assert_eq!(public_key_hash(b"x"), Err(Unread::NotPem));
        let key = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
        assert_eq!(public_key_hash(key.as_bytes()), Err(Unread::NotX509));
    }

    #[test]
    fn a_kubeconfig_gives_its_client_certificate() {
        let data = STANDARD.encode(CA);
        for text in [
            format!("users:\n- name: a\n  user:\n    client-certificate-data: {data}\n    client-key-data: eA==\n"),
            format!("{{\"user\":{{\"client-certificate-data\":\"{data}\",\"client-key-data\":\"eA==\"}}}}"),
        ] {
            let pem = client_certificate(&text).unwrap();
            let (from, to) = validity(&pem).unwrap();
            assert_eq!(to - from, 365 * 24 * 3_600_000);
        }
        assert_eq!(client_certificate("users: []"), None);
    }
}
