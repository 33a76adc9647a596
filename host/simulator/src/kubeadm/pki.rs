//! The certificates a control-plane machine is handed, and those it makes of them.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose, SanType};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use sha2::Digest as _;
use x509_parser::prelude::FromDer as _;

use super::KubeadmError;
use crate::files::Files;

/// Days that certificates made here are valid, as with kubeadm.
const VALID_DAYS: i64 = 365;

/// A certificate and its private key in PEM.
pub struct Pair {
    /// The certificate.
    pub certificate_pem: String,
    /// PKCS#8.
    pub key_pem: String,
}

/// A certificate authority that can sign.
pub struct Authority {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", public_key_hash(&self.certificate).unwrap_or_default())
    }
}

/// What is in `/etc/kubernetes/pki`.
#[derive(Clone, Debug)]
pub struct Pki {
    /// The cluster's authority: API server, kubelets and people.
    pub ca: Arc<Authority>,
}

/// The files of `/etc/kubernetes/pki` that a machine must be handed.
const FILES: [&str; 8] =
    ["ca.crt", "ca.key", "sa.pub", "sa.key", "front-proxy-ca.crt", "front-proxy-ca.key", "etcd/ca.crt", "etcd/ca.key"];

impl Pki {
    /// Reads and checks the files of a directory. Those of etcd are not needed where etcd is `external`.
    pub fn read(files: &dyn Files, directory: &str, external_etcd: bool) -> Result<Pki, KubeadmError> {
        let mut ca = None;
        let wanted = |name: &&str| !(external_etcd && name.starts_with("etcd/"));
        let mut certificate = String::new();
        for name in FILES.iter().copied().filter(wanted) {
            let path = format!("{directory}/{name}");
            if !files.exists(&path) {
                return Err(KubeadmError::MissingFile { path });
            }
            let bad = |reason: String| KubeadmError::BadFile { path: path.clone(), reason };
            let content = files.read(&path).map_err(|error| bad(error.to_string()))?;
            let pem = String::from_utf8(content).map_err(|_| bad("is no PEM".into()))?;
            if name.ends_with(".crt") {
                certificate = pem;
                continue;
            }
            if let Some(stem) = name.strip_suffix("ca.key") {
                let authority = Authority::new(&certificate, &pem).map_err(bad)?;
                if stem.is_empty() {
                    ca = Some(Arc::new(authority));
                }
            } else if name == "sa.key" {
                private_key(&pem).map_err(bad)?;
            } else if !pem.contains("-----BEGIN") {
                return Err(bad("is no PEM".into()));
            }
        }
        let ca = ca.ok_or_else(|| KubeadmError::MissingFile { path: format!("{directory}/ca.crt") })?;
        Ok(Pki { ca })
    }
}

impl Authority {
    /// From a certificate and its key in PEM; the key may be PKCS#8, PKCS#1 or SEC1.
    pub fn new(certificate_pem: &str, key_pem: &str) -> Result<Authority, String> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes())
            .map_err(|_| "its certificate is no PEM certificate".to_owned())?;
        let key = private_key(key_pem)?;
        let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(&certificate)
            .map_err(|_| "its certificate cannot be parsed".to_owned())?;
        if !parsed.is_ca() {
            return Err("its certificate is not that of an authority".into());
        }
        if parsed.public_key().subject_public_key.data.as_ref() != rcgen::PublicKeyData::der_bytes(&key) {
            return Err("does not belong to its certificate".into());
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|error| format!("cannot sign: {error}"))?;
        Ok(Authority { certificate, certificate_pem: certificate_pem.to_owned(), issuer })
    }

    /// The certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The certificate in PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    /// A serving certificate for these names and addresses, with a P-256 key of its own.
    pub fn serving(&self, common_name: &str, names: &[String]) -> Result<Pair, KubeadmError> {
        let mut params = leaf(common_name, &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        for name in names {
            let san = match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => match name.as_str().try_into() {
                    Ok(dns) => SanType::DnsName(dns),
                    Err(_) => return Err(KubeadmError::Other(format!("{name:?} cannot be a name of a certificate"))),
                },
            };
            if !params.subject_alt_names.contains(&san) {
                params.subject_alt_names.push(san);
            }
        }
        self.sign(&params)
    }

    /// A client certificate: `user` becomes the user name, `groups` the groups.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<Pair, KubeadmError> {
        let mut params = leaf(user, groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Pair, KubeadmError> {
        let made = || -> Result<Pair, rcgen::Error> {
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &self.issuer)?;
            Ok(Pair { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
        };
        made().map_err(|error| KubeadmError::Other(format!("a certificate cannot be signed: {error}")))
    }

    /// Signs a kubelet's certificate request (PEM): its subject must be a node's, and that of `own` where given.
    pub fn sign_kubelet_request(&self, request_pem: &str, own: Option<&str>) -> Result<String, String> {
        let request = rcgen::CertificateSigningRequestParams::from_pem(request_pem)
            .map_err(|error| format!("the certificate request cannot be read: {error}"))?;
        let text = |kind: &DnType| match request.params.distinguished_name.get(kind) {
            Some(rcgen::DnValue::Utf8String(text)) => text.clone(),
            Some(rcgen::DnValue::PrintableString(text)) => text.as_str().to_owned(),
            _ => String::new(),
        };
        let (user, group) = (text(&DnType::CommonName), text(&DnType::OrganizationName));
        if !user.starts_with("system:node:") || group != "system:nodes" || own.is_some_and(|own| own != user) {
            return Err("the subject of the certificate request is not that of a node".into());
        }
        let mut params = leaf(&user, &["system:nodes"]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params
            .signed_by(&request.public_key, &self.issuer)
            .map(|certificate| certificate.pem())
            .map_err(|error| format!("the certificate request cannot be signed: {error}"))
    }
}

/// The key and certificate request of a kubelet that has no certificate yet: (key in PEM, request in PEM).
pub fn kubelet_request(node: &str) -> Result<(String, String), KubeadmError> {
    let made = || -> Result<(String, String), rcgen::Error> {
        let key = KeyPair::generate()?;
        let request = leaf(&format!("system:node:{node}"), &["system:nodes"]).serialize_request(&key)?;
        Ok((key.serialize_pem(), request.pem()?))
    };
    made().map_err(|error| KubeadmError::Other(format!("a certificate request cannot be made: {error}")))
}

fn leaf(common_name: &str, groups: &[&str]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    for group in groups {
        params.distinguished_name.push(DnType::OrganizationName, *group);
    }
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let now = jiff::Timestamp::now();
    let date = |offset: i64| {
        let date = now
            .saturating_add(jiff::SignedDuration::from_hours(24 * offset))
            .unwrap_or(now)
            .to_zoned(jiff::tz::TimeZone::UTC)
            .date();
        rcgen::date_time_ymd(i32::from(date.year()), date.month().unsigned_abs(), date.day().unsigned_abs())
    };
    // Whole days: a day back, so that a machine whose clock is behind takes it.
    params.not_before = date(-1);
    params.not_after = date(VALID_DAYS);
    params
}

/// A private key in PEM as rcgen takes it.
fn private_key(pem: &str) -> Result<KeyPair, String> {
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| "is no private key in PEM".to_owned())?;
    let pkcs8 = match key {
        PrivateKeyDer::Pkcs8(key) => key.secret_pkcs8_der().to_vec(),
        // RFC 5208: version, algorithm, and the older form as an octet string.
        PrivateKeyDer::Pkcs1(key) => {
            const RSA: &[u8] =
                &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];
            wrap(RSA, key.secret_pkcs1_der())
        }
        PrivateKeyDer::Sec1(key) => {
            const P256: &[u8] = &[
                0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
                0x3d, 0x03, 0x01, 0x07,
            ];
            const P384: &[u8] = &[
                0x30, 0x10, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x05, 0x2b, 0x81, 0x04, 0x00,
                0x22,
            ];
            let der = key.secret_sec1_der();
            // RFC 5915: version 1, then the private number, as long as the curve's order.
            let number = der.windows(5).take(5).find(|window| window.starts_with(&[0x02, 0x01, 0x01, 0x04]));
            match number.and_then(|window| window.last()) {
                Some(0x20) => wrap(P256, der),
                Some(0x30) => wrap(P384, der),
                _ => return Err("is a private key of an unknown curve".into()),
            }
        }
        _ => return Err("is a private key of an unknown form".into()),
    };
    KeyPair::try_from(&PrivatePkcs8KeyDer::from(pkcs8))
        .map_err(|_| "is a private key that cannot be used here".to_owned())
}

fn wrap(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let inner = [&[0x02, 0x01, 0x00][..], algorithm, &tagged(0x04, key)].concat();
    tagged(0x30, &inner)
}

fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    if length < 0x80 {
        out.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    out.extend_from_slice(content);
    out
}

/// kubeadm's `sha256:<hex>` of a certificate's public key (its SubjectPublicKeyInfo).
pub fn public_key_hash(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
    let digest = sha2::Sha256::digest(parsed.public_key().raw);
    Some(digest.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

/// All certificates of a PEM text.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err("there is no certificate in PEM".into()),
    }
}

/// A private key in PEM as rustls takes it.
pub fn tls_key(pem: &str) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| "there is no private key in PEM".into())
}

#[cfg(test)]
mod tests;
