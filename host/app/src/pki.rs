//! The certificates of the embedded API server: an authority that is kept, and leaves that are made at each start.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::state_dir::{StateDir, replace};

/// Validity of the authority and of the leaves.
const AUTHORITY_DAYS: u64 = 3650;
const LEAF_DAYS: u64 = 365;

/// What the API server needs, and what its clients do.
pub struct Pki {
    /// The authority, PEM.
    pub authority: String,
    /// The authority, DER.
    pub authority_der: CertificateDer<'static>,
    /// The serving certificate.
    pub serving: CertificateDer<'static>,
    /// Its key.
    pub serving_key: PrivateKeyDer<'static>,
    /// What tokens of service accounts are signed with.
    pub token_secret: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    /// Reads the authority, or makes it; makes a serving certificate for loopback.
    ///
    /// # Errors
    /// When files cannot be read or written, or are no certificates.
    pub fn load(state: &StateDir) -> Result<Self> {
        let directory = state.directory("pki")?;
        let (certificate_path, key_path) = (directory.join("ca.crt"), directory.join("ca.key"));
        if !certificate_path.exists() {
            let key = KeyPair::generate().context("make the key of the certificate authority")?;
            let mut params = params("capstan", None, AUTHORITY_DAYS)?;
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
            let certificate = params.self_signed(&key).context("make the certificate authority")?;
            // The certificate last: where it is, its key is.
            replace(&key_path, key.serialize_pem().as_bytes(), 0o600)?;
            replace(&certificate_path, certificate.pem().as_bytes(), 0o644)?;
        }
        let authority = read(&certificate_path)?;
        let key = KeyPair::from_pem(&read(&key_path)?).with_context(|| {
            format!("{} is no private key; remove {} to begin anew", key_path.display(), directory.display())
        })?;
        let authority_der = pem_der(&authority).with_context(|| {
            format!("{} is no certificate; remove {} to begin anew", certificate_path.display(), directory.display())
        })?;
        let issuer = Issuer::from_ca_cert_pem(&authority, key).context("read the certificate authority")?;

        let token_path = directory.join("tokens.key");
        if !token_path.exists() {
            let secret = KeyPair::generate().context("make the secret of tokens")?;
            replace(&token_path, secret.serialize_pem().as_bytes(), 0o600)?;
        }
        let token_secret = read(&token_path)?.into_bytes();

        let serving_key = KeyPair::generate().context("make the serving key")?;
        let mut params = params("capstan-apiserver", None, LEAF_DAYS)?;
        for name in ["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"] {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => rcgen::SanType::IpAddress(address),
                Err(_) => rcgen::SanType::DnsName(name.try_into().context("a DNS name")?),
            });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let serving = params.signed_by(&serving_key, &issuer).context("make the serving certificate")?;
        Ok(Self {
            authority,
            authority_der,
            serving: serving.der().clone(),
            token_secret,
            serving_key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(serving_key.serialize_der())),
            issuer,
        })
    }

    /// Writes an administrator's kubeconfig for `https://127.0.0.1:<port>`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_kubeconfig(&self, path: &Path, port: u16) -> Result<()> {
        let key = KeyPair::generate().context("make the administrator's key")?;
        let mut params = params("capstan-admin", Some("system:masters"), LEAF_DAYS)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.issuer).context("make the administrator's certificate")?;
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: capstan\n  cluster:\n    \
             certificate-authority-data: {}\n    server: https://127.0.0.1:{port}\ncontexts:\n- name: capstan\n  \
             context:\n    cluster: capstan\n    user: capstan-admin\ncurrent-context: capstan\nusers:\n\
             - name: capstan-admin\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n",
            BASE64_STANDARD.encode(&self.authority),
            BASE64_STANDARD.encode(certificate.pem()),
            BASE64_STANDARD.encode(key.serialize_pem()),
        );
        replace(path, text.as_bytes(), 0o600)
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn pem_der(pem: &str) -> Result<CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject;
    Ok(CertificateDer::from_pem_slice(pem.as_bytes())?)
}

/// Parameters of a certificate that is valid from an hour ago, for so many days.
///
/// # Errors
/// Never for these names.
pub fn params(common_name: &str, organization: Option<&str>, days: u64) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new()).context("certificate parameters")?;
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(Duration::from_secs(3600));
    params.not_after = epoch + now + Duration::from_secs(days * 24 * 3600);
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_authority_is_kept_and_the_kubeconfig_is_for_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::take(dir.path()).unwrap();
        let first = Pki::load(&state).unwrap();
        let second = Pki::load(&state).unwrap();
        assert_eq!(first.authority, second.authority);
        assert_eq!(first.token_secret, second.token_secret);
        let path = state.join("kubeconfig");
        second.write_kubeconfig(&path, 6440).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().contains("https://127.0.0.1:6440"));
    }
}
