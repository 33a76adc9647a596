//! What is random and must not be made twice: key pairs, kubeconfigs, bootstrap tokens.
//!
//! RSA keys cost a tenth of a CPU-second each, so they are made on blocking threads, never more at once than there are
//! processors, and from the first request on a few are made ahead in quiet moments. Nothing here is ever logged.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use capstan_api::{Gvk, Object};
use capstan_core::contract::{Algorithm, KeyPair, KeyUse};
use rand::Rng;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384,
};
use rsa::pkcs8::{EncodePrivateKey, LineEnding};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::kubeconfig;
use crate::now_ms;

/// RSA keys kept ahead of need, as many as a kubeadm cluster has.
const AHEAD: usize = 4;
/// Nobody has asked for keys for this long: a quiet moment.
const QUIET: Duration = Duration::from_secs(2);
/// Certificates are valid from a little before they are made, for clocks that go late.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Why something could not be made; never holds anything secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot make {what}: {why}")]
pub struct MintError {
    /// What was to be made.
    pub what: &'static str,
    /// Why not.
    pub why: String,
}

fn error(what: &'static str, why: impl std::fmt::Display) -> MintError {
    MintError { what, why: why.to_string() }
}

/// Makes keys. Cheap to clone.
#[derive(Clone)]
pub struct Mint {
    pool: Arc<Pool>,
}

struct Pool {
    /// PKCS#8 PEM by bits.
    ready: Mutex<HashMap<usize, Vec<String>>>,
    makers: Semaphore,
    asked: Mutex<tokio::time::Instant>,
    refilling: Mutex<bool>,
}

impl Default for Mint {
    fn default() -> Self {
        let makers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            pool: Arc::new(Pool {
                ready: Mutex::default(),
                makers: Semaphore::new(makers),
                asked: Mutex::new(tokio::time::Instant::now()),
                refilling: Mutex::new(false),
            }),
        }
    }
}

/// A private key in PEM: PKCS#8.
struct PrivateKey(String);

impl Mint {
    /// `tls.crt` and `tls.key` of a key pair, both PEM.
    ///
    /// # Errors
    /// When randomness or the crypto library fails.
    pub async fn key_pair(&self, wanted: &KeyPair) -> Result<(String, String), MintError> {
        let key = match wanted.algorithm {
            Algorithm::Rsa2048 => self.rsa(2048).await?,
            Algorithm::Rsa3072 => self.rsa(3072).await?,
            Algorithm::Rsa4096 => self.rsa(4096).await?,
            Algorithm::EcdsaP256 => ecdsa(&PKCS_ECDSA_P256_SHA256)?,
            Algorithm::EcdsaP384 => ecdsa(&PKCS_ECDSA_P384_SHA384)?,
        };
        let pair = rcgen::KeyPair::from_pem(&key.0).map_err(|e| error("a key pair", e))?;
        let certificate = match wanted.purpose {
            KeyUse::SigningOnly => pair.public_key_pem(),
            KeyUse::CertificateAuthority => {
                let mut params = certificate(&wanted.common_name, None, wanted.validity_days)?;
                params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
                params.key_usages = vec![
                    KeyUsagePurpose::DigitalSignature,
                    KeyUsagePurpose::KeyEncipherment,
                    KeyUsagePurpose::KeyCertSign,
                    KeyUsagePurpose::CrlSign,
                ];
                params.self_signed(&pair).map_err(|e| error("a certificate authority", e))?.pem()
            }
        };
        Ok((certificate, key.0))
    }

    async fn rsa(&self, bits: usize) -> Result<PrivateKey, MintError> {
        *self.pool.asked.lock().unwrap_or_else(PoisonError::into_inner) = tokio::time::Instant::now();
        let ready = self.pool.take(bits);
        self.refill(bits);
        match ready {
            Some(key) => Ok(PrivateKey(key)),
            None => self.pool.make(bits).await.map(PrivateKey),
        }
    }

    /// Makes a few keys ahead when nobody has asked for a while.
    fn refill(&self, bits: usize) {
        let mut refilling = self.pool.refilling.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *refilling, true) {
            return;
        }
        let pool = self.pool.clone();
        tokio::spawn(async move {
            loop {
                let asked = *pool.asked.lock().unwrap_or_else(PoisonError::into_inner);
                if asked.elapsed() < QUIET {
                    tokio::time::sleep_until(asked + QUIET).await;
                    continue;
                }
                if pool.len(bits) >= AHEAD {
                    break;
                }
                match pool.make(bits).await {
                    Ok(key) => pool.put(bits, key),
                    Err(_) => break,
                }
            }
            *pool.refilling.lock().unwrap_or_else(PoisonError::into_inner) = false;
        });
    }
}

impl Pool {
    fn take(&self, bits: usize) -> Option<String> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&bits)?.pop()
    }

    fn put(&self, bits: usize, key: String) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).entry(bits).or_default().push(key);
    }

    fn len(&self, bits: usize) -> usize {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).get(&bits).map_or(0, Vec::len)
    }

    async fn make(&self, bits: usize) -> Result<String, MintError> {
        let _permit = self.makers.acquire().await.map_err(|e| error("an RSA key", e))?;
        tokio::task::spawn_blocking(move || {
            let key = rsa::PrivateKey::new(&mut SystemRandom, bits).map_err(|e| error("an RSA key", e))?;
            key.to_pkcs8_pem(LineEnding::LF).map(|pem| pem.to_string()).map_err(|e| error("an RSA key", e))
        })
        .await
        .map_err(|e| error("an RSA key", e))?
    }
}

/// The operating system's randomness for the `rsa` crate, which wants a newer trait than `rand` implements.
struct SystemRandom;

impl rsa::rand_core::TryRng for SystemRandom {
    type Error = rand::rand_core::OsError;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        rand::TryRngCore::try_next_u32(&mut rand::rngs::OsRng)
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        rand::TryRngCore::try_next_u64(&mut rand::rngs::OsRng)
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Self::Error> {
        rand::TryRngCore::try_fill_bytes(&mut rand::rngs::OsRng, dst)
    }
}

impl rsa::rand_core::TryCryptoRng for SystemRandom {}

fn ecdsa(algorithm: &'static rcgen::SignatureAlgorithm) -> Result<PrivateKey, MintError> {
    let pair = rcgen::KeyPair::generate_for(algorithm).map_err(|e| error("an ECDSA key", e))?;
    Ok(PrivateKey(pair.serialize_pem()))
}

fn certificate(common_name: &str, organization: Option<&str>, days: u32) -> Result<CertificateParams, MintError> {
    let mut params = CertificateParams::new(Vec::<String>::new()).map_err(|e| error("a certificate", e))?;
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    let now = Duration::from_millis(now_ms());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + Duration::from_secs(u64::from(days) * 24 * 3600);
    Ok(params)
}

/// A CA's private key as rcgen takes it. Keys that upstream made are PKCS#1.
fn signing_key(pem: &str) -> Result<rcgen::KeyPair, MintError> {
    let what = "a certificate";
    if pem.contains("BEGIN RSA PRIVATE KEY") {
        use rsa::pkcs1::DecodeRsaPrivateKey;
        let key = rsa::PrivateKey::from_pkcs1_pem(pem)
            .map_err(|_| error(what, "the CA's tls.key cannot be read as an RSA key"))?;
        let pkcs8 = key.to_pkcs8_pem(LineEnding::LF).map_err(|e| error(what, e))?;
        return rcgen::KeyPair::from_pem(&pkcs8).map_err(|e| error(what, e));
    }
    if pem.contains("BEGIN EC PRIVATE KEY") {
        return Err(error(what, "the CA's tls.key is in SEC1 form; convert it with `openssl pkcs8 -topk8 -nocrypt`"));
    }
    rcgen::KeyPair::from_pem(pem).map_err(|_| error(what, "the CA's tls.key is no PKCS#8 or PKCS#1 key"))
}

/// An admin's kubeconfig whose client certificate the CA signs. The CA is PEM.
///
/// # Errors
/// When the CA cannot be read.
pub fn admin_kubeconfig(
    cluster: &str,
    server: &str,
    ca_certificate: &str,
    ca_key: &str,
    days: u32,
) -> Result<String, MintError> {
    let issuer = Issuer::from_ca_cert_pem(ca_certificate, signing_key(ca_key)?)
        .map_err(|_| error("a kubeconfig", "the CA's tls.crt cannot be read as a certificate"))?;
    let key = rcgen::KeyPair::generate().map_err(|e| error("a kubeconfig", e))?;
    let mut params = certificate("kubernetes-admin", Some("system:masters"), days)?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer).map_err(|e| error("a kubeconfig", e))?;
    Ok(kubeconfig::render(cluster, server, ca_certificate, &certificate.pem(), &key.serialize_pem()))
}

/// `data` of a Secret with these texts.
pub fn secret_data(entries: &[(&str, &str)]) -> Value {
    entries
        .iter()
        .map(|(key, text)| ((*key).to_owned(), Value::from(BASE64_STANDARD.encode(text))))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// A text of a Secret's `data`.
pub fn secret_text(secret: &Object, key: &str) -> Option<String> {
    let encoded = secret.0.get("data")?.get(key)?.as_str()?;
    String::from_utf8(BASE64_STANDARD.decode(encoded).ok()?).ok()
}

/// A kubeadm bootstrap token, `<id>.<secret>`, and the Secret that makes it valid in its cluster.
pub fn bootstrap_token(ttl: Duration, description: &str) -> (String, Object) {
    let (id, secret) = (random_text(6), random_text(16));
    let expires = Duration::from_millis(now_ms()) + ttl;
    let expiration = jiff::Timestamp::from_second(i64::try_from(expires.as_secs()).unwrap_or(i64::MAX))
        .unwrap_or(jiff::Timestamp::MAX)
        .to_string();
    let mut object = Object::new(&Gvk::new("", "v1", "Secret"), "kube-system", &format!("bootstrap-token-{id}"));
    object.set("/type", json!("bootstrap.kubernetes.io/token"));
    object.set(
        "/data",
        secret_data(&[
            ("token-id", &id),
            ("token-secret", &secret),
            ("expiration", &expiration),
            ("usage-bootstrap-signing", "true"),
            ("usage-bootstrap-authentication", "true"),
            ("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token"),
            ("description", description),
        ]),
    );
    (format!("{id}.{secret}"), object)
}

fn random_text(length: usize) -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut random = rand::rng();
    (0..length).filter_map(|_| LETTERS.get(random.random_range(0..LETTERS.len()))).map(|b| char::from(*b)).collect()
}

/// Whether a private key in PEM can be read; for tests of what was made.
#[cfg(test)]
fn readable(pem: &str) -> bool {
    use rsa::pkcs8::DecodePrivateKey;
    rsa::PrivateKey::from_pkcs8_pem(pem).is_ok() || rcgen::KeyPair::from_pem(pem).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(algorithm: Algorithm, purpose: KeyUse) -> KeyPair {
        KeyPair { algorithm, purpose, common_name: "kubernetes".into(), validity_days: 3650 }
    }

    #[tokio::test]
    async fn authorities_of_all_algorithms_sign_a_kubeconfig_that_is_honoured() {
        let mint = Mint::default();
        for algorithm in [Algorithm::Rsa2048, Algorithm::EcdsaP256, Algorithm::EcdsaP384] {
            let (certificate, key) = mint.key_pair(&wanted(algorithm, KeyUse::CertificateAuthority)).await.unwrap();
            let text = admin_kubeconfig("c", "https://127.0.0.1:1", &certificate, &key, 365).unwrap();
            let config = kubeconfig::config(text.as_bytes()).unwrap();
            let encoded = config.auth_info.client_certificate_data.unwrap();
            let pem = BASE64_STANDARD.decode(encoded).unwrap();
            let (_, block) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
            let client = block.parse_x509().unwrap();
            assert!(client.subject().to_string().contains("system:masters"), "{}", client.subject());
            let (_, block) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).unwrap();
            let authority = block.parse_x509().unwrap();
            assert_eq!(client.issuer(), authority.subject());
            assert!(authority.is_ca());
            let days =
                (authority.validity().not_after.timestamp() - authority.validity().not_before.timestamp()) / 86400;
            assert_eq!(days, 3650);
        }
    }

    #[tokio::test]
    async fn a_signing_pair_has_a_public_key_and_no_certificate() {
        let (public, private) =
            Mint::default().key_pair(&wanted(Algorithm::EcdsaP256, KeyUse::SigningOnly)).await.unwrap();
        assert!(public.starts_with("-----BEGIN PUBLIC KEY-----"));
        assert!(readable(&private));
    }

    #[tokio::test]
    async fn a_key_that_upstream_wrote_as_pkcs1_signs() {
        use rsa::pkcs1::EncodeRsaPrivateKey;
        use rsa::pkcs8::DecodePrivateKey;
        let mint = Mint::default();
        let (certificate, key) =
            mint.key_pair(&wanted(Algorithm::Rsa2048, KeyUse::CertificateAuthority)).await.unwrap();
        let pkcs1 = rsa::PrivateKey::from_pkcs8_pem(&key).unwrap().to_pkcs1_pem(LineEnding::LF).unwrap();
        assert!(pkcs1.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
        admin_kubeconfig("c", "https://127.0.0.1:1", &certificate, &pkcs1, 365).unwrap();
        let error =
            admin_kubeconfig("c", "https://h:1", &certificate, "-----BEGIN EC PRIVATE KEY-----", 1).unwrap_err();
        assert!(error.to_string().contains("openssl pkcs8"));
    }

    #[test]
    fn tokens_have_kubeadms_form() {
        let (token, secret) = bootstrap_token(Duration::from_secs(900), "for a test");
        let (id, rest) = token.split_once('.').unwrap();
        assert_eq!((id.len(), rest.len()), (6, 16));
        assert_eq!(secret.name(), format!("bootstrap-token-{id}"));
        assert_eq!(secret_text(&secret, "token-secret").unwrap(), rest);
        let expiration: jiff::Timestamp = secret_text(&secret, "expiration").unwrap().parse().unwrap();
        assert!(expiration > jiff::Timestamp::now());
    }
}
