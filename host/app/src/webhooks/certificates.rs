//! The certificates that webhooks are served with: made here, kept in a Secret that all replicas share, renewed in time.
//!
//! The Secret has a pair that is in use and the pair that will be: the API server trusts the second long before anybody
//! serves it, so a renewal needs no moment at which all change at once. Each pair has an authority of its own, whose key is
//! thrown away when it has signed the one certificate. Whoever deletes the Secret gets new ones.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capstan_api::{Gvk, Object, time};
use capstan_cluster::kinds::builtin;
use capstan_cluster::lease::SYSTEM_NAMESPACE;
use capstan_cluster::wire::Wire;
use rcgen::{BasicConstraints, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::pki::params;

/// The Secret's name, in the system namespace.
pub const SECRET: &str = "capstan-webhooks";
/// Whom its certificates are for.
const HOST: &str = "capstan.dev/webhook-host";
/// When the pair in use was taken into use.
const SINCE: &str = "capstan.dev/webhook-certificate-since";
/// How long a pair is in use. It was made so long before it is, and is valid for longer than both together.
const IN_USE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Validity of a pair.
const DAYS: u64 = 400;
/// How often a write is tried when another replica was faster.
const TRIES: usize = 5;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// A certificate with its authority's behind it, and its key. PEM.
struct Pair {
    chain: String,
    key: String,
}

/// What is in the Secret.
pub struct Kept {
    /// What the server shows.
    pub serving: CertifiedKey,
    /// Whom the API server is to trust, PEM.
    pub trust: String,
    /// The Secret's resourceVersion.
    pub version: String,
}

impl Pair {
    /// A new one for this host.
    fn new(host: &str) -> Result<Self> {
        let authority_key = KeyPair::generate().context("make the key of the webhooks' authority")?;
        let mut authority = params("capstan-webhooks", None, DAYS)?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let root = authority.self_signed(&authority_key).context("make the webhooks' authority")?.pem();
        let key = KeyPair::generate().context("make the webhooks' key")?;
        let mut leaf = params("capstan-webhooks-serving", None, DAYS)?;
        leaf.subject_alt_names.push(match host.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.try_into().with_context(|| format!("{host:?} is no host name"))?),
        });
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = leaf.signed_by(&key, &Issuer::new(authority, authority_key)).context("sign for webhooks")?;
        Ok(Self { chain: format!("{}{root}", certificate.pem()), key: key.serialize_pem() })
    }

    /// Its authority's certificate: the last one of the chain.
    fn authority(&self) -> &str {
        self.chain.rfind(BEGIN).and_then(|at| self.chain.get(at..)).unwrap_or_default()
    }

    fn read(secret: &Object, name: &str) -> Option<Self> {
        let text = |key: &str| {
            let bytes = BASE64_STANDARD.decode(secret.str_at(&format!("/data/{name}.{key}"))?).ok()?;
            String::from_utf8(bytes).ok()
        };
        Some(Self { chain: text("crt")?, key: text("key")? })
    }

    fn write(&self, secret: &mut Object, name: &str) {
        secret.set(&format!("/data/{name}.crt"), BASE64_STANDARD.encode(&self.chain).into());
        secret.set(&format!("/data/{name}.key"), BASE64_STANDARD.encode(&self.key).into());
    }

    fn certified(&self) -> Result<CertifiedKey> {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())?;
        Ok(CertifiedKey::from_der(chain, key, &default_provider())?)
    }
}

/// What to make of the Secret as it is (`None`: there is none). `None`: it is good.
fn renewed(secret: Option<&Object>, host: &str, now: u64) -> Result<Option<Object>> {
    let age = |secret: &Object| {
        let since = secret.annotation(SINCE).and_then(time::millis)?;
        Some(Duration::from_millis(now.saturating_sub(since)))
    };
    let kept = secret.filter(|secret| secret.annotation(HOST) == Some(host)).and_then(|secret| {
        let (serving, next) = (Pair::read(secret, "tls")?, Pair::read(secret, "next")?);
        // What cannot be read is no certificate.
        (serving.certified().is_ok() && next.certified().is_ok()).then_some((serving, next, age(secret)?))
    });
    let (before, serving, next) = match kept {
        Some((_, _, age)) if age < IN_USE => return Ok(None),
        Some((before, next, age)) if age < IN_USE * 2 => (Some(before), next, Pair::new(host)?),
        // Nobody was there to renew it.
        _ => (None, Pair::new(host)?, Pair::new(host)?),
    };
    let mut renewed = match secret {
        Some(secret) => secret.clone(),
        None => {
            let mut new = Object::new(&Gvk::new("", "v1", "Secret"), SYSTEM_NAMESPACE, SECRET);
            new.set("/type", "kubernetes.io/tls".into());
            new
        }
    };
    serving.write(&mut renewed, "tls");
    next.write(&mut renewed, "next");
    let before = before.as_ref().map(Pair::authority).unwrap_or_default();
    let trust = format!("{}{}{before}", serving.authority(), next.authority());
    renewed.set("/data/ca.crt", BASE64_STANDARD.encode(trust).into());
    renewed.set_annotation(HOST, host);
    renewed.set_annotation(SINCE, &time::rfc3339(now));
    Ok(Some(renewed))
}

fn kept(secret: &Object) -> Result<Kept> {
    let pair = Pair::read(secret, "tls").context("it has no tls.crt and tls.key")?;
    let trust = BASE64_STANDARD.decode(secret.str_at("/data/ca.crt").unwrap_or_default()).unwrap_or_default();
    Ok(Kept {
        serving: pair.certified().context("its tls.crt and tls.key are no certificate and key")?,
        trust: String::from_utf8(trust).context("its ca.crt is no text")?,
        version: secret.resource_version().to_owned(),
    })
}

/// The certificates for this host; made or renewed when it is time.
///
/// # Errors
/// When the API server refuses.
pub async fn ensure(wire: &Wire, host: &str) -> Result<Kept> {
    let resource = builtin("", "Secret").context("Secret is not in the table of kinds")?;
    for _ in 0..TRIES {
        let secret = wire.get(&resource, SYSTEM_NAMESPACE, SECRET).await?;
        let Some(renewed) = renewed(secret.as_ref(), host, capstan_cluster::now_ms())? else {
            return kept(&secret.unwrap_or_default()).with_context(|| format!("Secret {SYSTEM_NAMESPACE}/{SECRET}"));
        };
        let written = match secret {
            Some(_) => wire.replace(&resource, &renewed).await,
            None => wire.create(&resource, &renewed).await,
        };
        match written {
            Ok(secret) => {
                tracing::info!(secret = SECRET, host, "the webhooks have a new certificate");
                return kept(&secret).with_context(|| format!("Secret {SYSTEM_NAMESPACE}/{SECRET}"));
            }
            // Another replica was faster: theirs are as good.
            Err(error) if error.is_conflict() || error.already_exists() => {}
            Err(error) => return Err(error).with_context(|| format!("write Secret {SYSTEM_NAMESPACE}/{SECRET}")),
        }
    }
    bail!("Secret {SYSTEM_NAMESPACE}/{SECRET} changes all the time")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600 * 1000;
    const NOW: u64 = 1_800_000_000_000;

    fn data(secret: &Object, key: &str) -> String {
        let bytes = BASE64_STANDARD.decode(secret.str_at(&format!("/data/{key}")).unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn what_is_next_is_trusted_before_it_is_served() {
        let first = renewed(None, "127.0.0.1", NOW).unwrap().unwrap();
        assert_eq!(first.name(), SECRET);
        assert_eq!(data(&first, "ca.crt").matches(BEGIN).count(), 2);
        assert!(renewed(Some(&first), "127.0.0.1", NOW + 89 * DAY).unwrap().is_none());

        let second = renewed(Some(&first), "127.0.0.1", NOW + 91 * DAY).unwrap().unwrap();
        assert_eq!(data(&second, "tls.crt"), data(&first, "next.crt"));
        assert_eq!(data(&second, "tls.key"), data(&first, "next.key"));
        let authority = Pair::read(&second, "tls").unwrap().authority().to_owned();
        assert!(data(&first, "ca.crt").contains(&authority), "trusted before");
        let old = Pair::read(&first, "tls").unwrap().authority().to_owned();
        assert!(data(&second, "ca.crt").contains(&old), "who still serves the old one is trusted too");
        assert_eq!(data(&second, "ca.crt").matches(BEGIN).count(), 3);
        let third = renewed(Some(&second), "127.0.0.1", NOW + 182 * DAY).unwrap().unwrap();
        assert!(!data(&third, "ca.crt").contains(&old), "but not for ever");
        kept(&third).unwrap();
    }

    #[test]
    fn what_cannot_be_used_is_made_anew() {
        let first = renewed(None, "a.b.svc", NOW).unwrap().unwrap();
        let other = renewed(Some(&first), "c.d.svc", NOW).unwrap().unwrap();
        assert_ne!(data(&other, "tls.crt"), data(&first, "next.crt"));
        let late = renewed(Some(&first), "a.b.svc", NOW + 300 * DAY).unwrap().unwrap();
        assert_ne!(data(&late, "tls.crt"), data(&first, "next.crt"));
        let mut broken = first.clone();
        broken.set("/data/tls.key", BASE64_STANDARD.encode("nonsense").into());
        assert!(renewed(Some(&broken), "a.b.svc", NOW).unwrap().is_some());
        assert!(renewed(Some(&first), "a.b.svc", NOW).unwrap().is_none());
    }
}
