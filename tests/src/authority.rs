//! A certificate authority of a test, and what it signs.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    SanType,
};

/// An authority that lives as long as the test.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, PEM.
    pub certificate: String,
    /// Its certificate, DER.
    pub der: Vec<u8>,
}

/// A certificate and its key, PEM and DER.
#[derive(Clone)]
pub struct Signed {
    /// The certificate, PEM.
    pub certificate: String,
    /// The key, PEM (PKCS#8).
    pub key: String,
    /// The certificate, DER.
    pub der: Vec<u8>,
    /// The key, DER (PKCS#8).
    pub key_der: Vec<u8>,
}

impl Authority {
    /// A new authority.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn new() -> Result<Authority> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "capstan-tests");
        let certificate = params.self_signed(&key)?;
        let (pem, der) = (certificate.pem(), certificate.der().to_vec());
        Ok(Authority { certificate: pem, der, issuer: Issuer::new(params, key) })
    }

    /// A certificate for a client of this name and these groups, good for a server on loopback too.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn sign(&self, name: &str, groups: &[&str]) -> Result<Signed> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        for group in groups {
            params.distinguished_name.push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().to_vec(),
            key_der: key.serialize_der(),
        })
    }
}

/// A kubeconfig with everything inline.
#[must_use]
pub fn kubeconfig(url: &str, authority: &str, signed: &Signed) -> String {
    use base64::Engine as _;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority-data": encode(authority)}}],
        "users": [{"name": "test", "user": {
            "client-certificate-data": encode(&signed.certificate), "client-key-data": encode(&signed.key)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "default"}}],
    })
    .to_string()
}
