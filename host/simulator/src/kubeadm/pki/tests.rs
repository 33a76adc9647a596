use super::*;
use crate::files::MemoryFiles;

fn authority(algorithm: &'static rcgen::SignatureAlgorithm) -> (String, KeyPair) {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "kubernetes");
    (params.self_signed(&key).unwrap().pem(), key)
}

/// A key in the older form that upstream writes: what PKCS#8 wraps.
fn unwrapped(key: &KeyPair, label: &str) -> String {
    let der = key.serialize_der();
    let number = der.windows(4).rposition(|window| window == [0x02, 0x01, 0x01, 0x04]).unwrap();
    let at = der[..number].iter().rposition(|byte| *byte == 0x30).unwrap();
    let inner = &der[at..];
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(inner);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

fn handed(missing: &str) -> MemoryFiles {
    let files = MemoryFiles::fresh("n");
    let (certificate, key) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    for name in FILES.iter().filter(|name| **name != missing) {
        let content = match *name {
            "sa.pub" => key.public_key_pem(),
            name if name.ends_with(".crt") => certificate.clone(),
            _ => key.serialize_pem(),
        };
        files.put(&format!("/pki/{name}"), 0o600, content.as_bytes(), false).unwrap();
    }
    files
}

#[test]
fn a_machine_must_be_handed_every_file() {
    assert!(Pki::read(&handed(""), "/pki", false).is_ok());
    for name in FILES {
        let error = Pki::read(&handed(name), "/pki", false).unwrap_err();
        assert!(matches!(&error, KubeadmError::MissingFile { path } if *path == format!("/pki/{name}")), "{error}");
        assert_eq!(Pki::read(&handed(name), "/pki", true).is_ok(), name.starts_with("etcd/"), "{name}");
    }
}

#[test]
fn a_key_of_another_authority_is_refused() {
    let files = handed("");
    let (_, other) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    files.put("/pki/ca.key", 0o600, other.serialize_pem().as_bytes(), false).unwrap();
    let error = Pki::read(&files, "/pki", false).unwrap_err().to_string();
    assert!(error.contains("/pki/ca.key") && error.contains("does not belong"), "{error}");
    files.put("/pki/ca.key", 0o600, b"secret", false).unwrap();
    let error = Pki::read(&files, "/pki", false).unwrap_err().to_string();
    assert!(error.contains("/pki/ca.key") && !error.contains("secret"), "{error}");
}

#[test]
fn keys_in_sec1_are_taken() {
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384] {
        let (certificate, key) = authority(algorithm);
        assert!(Authority::new(&certificate, &unwrapped(&key, "EC PRIVATE KEY")).is_ok());
    }
    let (ed, key) = authority(&rcgen::PKCS_ED25519);
    assert!(Authority::new(&ed, &key.serialize_pem()).is_ok());
}

/// An RSA key of OpenSSL in PKCS#1, as upstream writes keys, with its certificate.
#[test]
fn keys_in_pkcs1_are_taken() {
    let certificate = include_str!("rsa.crt");
    assert!(Authority::new(certificate, include_str!("rsa.key")).is_ok());
}

#[test]
fn the_hash_is_kubeadms() {
    // openssl x509 -pubkey -noout -in rsa.crt | openssl pkey -pubin -outform der | sha256sum
    let certificates = certificates(include_bytes!("rsa.crt")).unwrap();
    assert_eq!(public_key_hash(&certificates[0]).unwrap(), include_str!("rsa.hash").trim());
}

#[test]
fn only_nodes_get_a_kubelets_certificate() {
    let (certificate, key) = authority(&rcgen::PKCS_ECDSA_P256_SHA256);
    let authority = Authority::new(&certificate, &key.serialize_pem()).unwrap();
    let (_, request) = kubelet_request("n1").unwrap();
    let signed = authority.sign_kubelet_request(&request, None).unwrap();
    let der = &certificates(signed.as_bytes()).unwrap()[0];
    assert!(authority.sign_kubelet_request(&request, Some("system:node:n1")).is_ok());
    assert!(authority.sign_kubelet_request(&request, Some("system:node:n2")).is_err());
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(der).unwrap();
    assert_eq!(parsed.subject().to_string(), "O=system:nodes, CN=system:node:n1");
    assert!(parsed.validity().is_valid());

    let other = KeyPair::generate().unwrap();
    for (user, group) in [("admin", "system:masters"), ("system:node:n", "system:masters"), ("x", "system:nodes")] {
        let request = leaf(user, &[group]).serialize_request(&other).unwrap().pem().unwrap();
        assert!(authority.sign_kubelet_request(&request, None).is_err(), "{user} {group}");
    }
}
