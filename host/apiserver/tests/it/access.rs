//! The ways in over TLS: certificates, tokens, garbage.

use crate::support::*;
use base64::Engine;
use capstan_apiserver::{ApiServer, Authentication, Builtins, Options, server_config};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// A certificate authority and what it signs.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
}

pub struct Signed {
    pub certificate: String,
    pub key: String,
    der: CertificateDer<'static>,
    key_der: PrivateKeyDer<'static>,
}

impl Authority {
    pub fn new() -> Authority {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test-ca");
        let certificate = params.self_signed(&key).unwrap();
        Authority { pem: certificate.pem(), der: certificate.der().clone(), issuer: Issuer::new(params, key) }
    }

    pub fn sign(&self, name: &str, group: &str) -> Signed {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        if !group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth, rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Signed {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            key_der: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        }
    }
}

/// A server on a port of its own.
pub struct Served {
    pub client: Client,
    pub address: SocketAddr,
    pub authority: Authority,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Served {
    pub async fn start(builtins: Builtins) -> Served {
        Served::with(Options { builtins, ..Options::default() }).await
    }

    /// Who connects says who they are by a certificate or a bootstrap token.
    pub async fn with(options: Options) -> Served {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authority = Authority::new();
        let authentication =
            Authentication::ClientCertificates { ca: vec![authority.der.clone()], bootstrap_tokens: true };
        let server = ApiServer::new(Options { authentication, ..options }).unwrap();
        let own = authority.sign("server", "");
        let tls = server_config(vec![own.der], own.key_der, std::slice::from_ref(&authority.der)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        server.background(stop.clone());
        let (serving, token) = (server.clone(), stop.clone());
        let task = tokio::spawn(async move { serving.serve_tls(listener, tls, token).await });
        Served { client: Client::over(server), address, authority, stop, task }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(std::time::Duration::from_secs(5), self.task)
            .await
            .expect("the server does not stop")
            .unwrap()
            .unwrap();
    }

    /// How kube-rs gets here as somebody.
    pub fn kube_config(&self, name: &str, group: &str) -> kube::Config {
        let signed = self.authority.sign(name, group);
        let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        let mut config = kube::Config::new(format!("https://{}", self.address).parse().unwrap());
        config.root_cert = Some(vec![self.authority.der.to_vec()]);
        config.auth_info.client_certificate_data = Some(encode(&signed.certificate));
        config.auth_info.client_key_data = Some(encode(&signed.key).into());
        config
    }

    /// A connection of somebody's over which nothing was said yet.
    pub async fn connect(&self, name: &str, group: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
        let signed = self.authority.sign(name, group);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.authority.der.clone()).unwrap();
        let config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![signed.der], signed.key_der)
            .unwrap();
        let socket = TcpStream::connect(self.address).await.unwrap();
        let name = rustls_pki_types::ServerName::try_from("127.0.0.1").unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }

    fn http(&self, identity: Option<&Signed>) -> reqwest_like::Http {
        reqwest_like::Http::new(
            &self.authority.der,
            identity.map(|signed| (signed.der.clone(), signed.key_der.clone_key())),
            self.address,
        )
    }
}

/// As much of an HTTP client as these tests need.
mod reqwest_like {
    use super::*;
    use http_body_util::{BodyExt, Full};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    pub struct Http {
        config: Arc<rustls::ClientConfig>,
        address: SocketAddr,
    }

    impl Http {
        pub fn new(
            root: &CertificateDer<'static>,
            identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
            address: SocketAddr,
        ) -> Http {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(root.clone()).unwrap();
            let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
            let mut config = match identity {
                Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
                None => builder.with_no_client_auth(),
            };
            config.alpn_protocols = vec![b"h2".to_vec()];
            Http { config: Arc::new(config), address }
        }

        pub async fn get(&self, path: &str, token: Option<&str>) -> Result<(u16, serde_json::Value), String> {
            let socket = TcpStream::connect(self.address).await.map_err(|e| e.to_string())?;
            let connector = tokio_rustls::TlsConnector::from(self.config.clone());
            let stream = connector.connect("localhost".try_into().unwrap(), socket).await.map_err(|e| e.to_string())?;
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                    .await
                    .map_err(|e| e.to_string())?;
            tokio::spawn(connection);
            let mut request = http::Request::get(format!("https://localhost{path}"));
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let answer = sender
                .send_request(request.body(Full::new(bytes::Bytes::new())).unwrap())
                .await
                .map_err(|e| e.to_string())?;
            let code = answer.status().as_u16();
            let body = answer.into_body().collect().await.map_err(|e| e.to_string())?.to_bytes();
            Ok((code, serde_json::from_slice(&body).unwrap_or_default()))
        }
    }
}

#[tokio::test]
async fn certificates_say_who_one_is() {
    let served = Served::start(Builtins::Workload).await;
    let admin = served.authority.sign("kubernetes-admin", "system:masters");
    let node = served.authority.sign("system:node:n1", "system:nodes");
    let stranger = Authority::new().sign("kubernetes-admin", "system:masters");
    assert_eq!(served.http(Some(&admin)).get("/api/v1/secrets", None).await.unwrap().0, 200);
    assert_eq!(served.http(Some(&node)).get("/api/v1/nodes", None).await.unwrap().0, 200);
    let (code, refused) = served.http(Some(&node)).get("/apis/apps/v1/deployments", None).await.unwrap();
    assert_eq!(code, 403);
    assert!(
        refused["message"].as_str().unwrap().contains(
            "User \"system:node:n1\" cannot list resource \"deployments\" in API group \"apps\" at the cluster scope"
        ),
        "{refused}"
    );
    assert!(served.http(Some(&stranger)).get("/api/v1/secrets", None).await.is_err(), "refused in the handshake");
    assert_eq!(served.http(None).get("/api/v1/secrets", None).await.unwrap().0, 403);
    assert_eq!(served.http(None).get("/healthz", None).await.unwrap().0, 200);
    assert_eq!(
        served.http(None).get("/api/v1/namespaces/kube-public/configmaps/cluster-info", None).await.unwrap().0,
        404
    );
    served.stop().await;
}

#[tokio::test]
async fn on_a_management_plane_a_certificate_allows_what_is_bound_to_it() {
    let served = Served::start(Builtins::Management).await;
    let admin = served.authority.sign("admin", "system:masters");
    let somebody = served.authority.sign("somebody", "");
    assert_eq!(served.http(Some(&admin)).get("/api/v1/secrets", None).await.unwrap().0, 200);
    assert_eq!(served.http(Some(&somebody)).get("/api/v1/secrets", None).await.unwrap().0, 403);
    assert_eq!(served.http(Some(&somebody)).get("/apis", None).await.unwrap().0, 200);
    assert_eq!(served.http(None).get("/api/v1/secrets", None).await.unwrap().0, 403);
    served.stop().await;
}

#[tokio::test]
async fn who_passes_for_another_may_what_the_other_may() {
    let client = workload();
    let as_somebody = [("impersonate-user", "somebody")];
    let answer = client.send(http::Method::GET, "/api/v1/secrets", &as_somebody, "").await;
    let message = answer.expect(403)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("User \"somebody\" cannot list resource \"secrets\""), "{message}");
    let somebody = workload().with_user(capstan_apiserver::User::new("somebody", ["system:authenticated"]));
    let as_admin = [("impersonate-user", "admin"), ("impersonate-group", "system:masters")];
    somebody.send(http::Method::GET, "/api/v1/secrets", &as_admin, "").await.expect(403);
    client.send(http::Method::GET, "/api/v1/secrets", &as_admin, "").await.expect(200);
}

#[tokio::test]
async fn everybody_may_ask_what_he_may() {
    let client =
        workload().with_user(capstan_apiserver::User::new("system:node:n", ["system:nodes", "system:authenticated"]));
    let ask = async |verb: &str, name: &str| {
        let review = json!({"spec": {"resourceAttributes": {"verb": verb, "resource": "nodes", "name": name}}});
        let answer = client.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", &review).await.expect(201);
        answer["status"]["allowed"].as_bool().unwrap()
    };
    assert!(ask("patch", "n").await);
    assert!(!ask("patch", "m").await);
    assert!(!ask("delete", "n").await);
    client.get("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").await.expect(405);
    let me = client.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &json!({})).await.expect(201);
    assert_eq!(me["status"]["userInfo"]["username"], "system:node:n");
}

/// Thousands of servers fit into one process: each costs what is in it and little more, and no task.
#[tokio::test]
async fn servers_are_cheap() {
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    // What all share is made before.
    let first = workload();
    first.server.background(Default::default());
    let node = |name: &str| json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    first.post("/api/v1/nodes", &node("n")).await.expect(201);
    let before = resident();
    let mut servers = Vec::new();
    for _ in 0..200 {
        let server = workload();
        server.server.background(Default::default());
        for name in ["a", "b"] {
            server.post("/api/v1/nodes", &node(name)).await.expect(201);
        }
        servers.push(server);
    }
    // Other tests of this process allocate meanwhile, so this is coarse.
    let each = resident().saturating_sub(before) / servers.len();
    assert!(each < 300 << 10, "{each} bytes for each server");
}

#[tokio::test]
async fn bootstrap_tokens() {
    let served = Served::start(Builtins::Workload).await;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let secret = |expiration: &str| {
        json!({"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token", "data": {
            "token-id": encode("abcdef"), "token-secret": encode("0123456789abcdef"), "usage-bootstrap-authentication": encode("true"),
            "expiration": encode(expiration), "auth-extra-groups": encode("system:bootstrappers:kubeadm:default-node-token")}})
    };
    let path = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config";
    let http = served.http(None);
    assert_eq!(http.get(path, Some("abcdef.0123456789abcdef")).await.unwrap().0, 401);
    served.client.post("/api/v1/namespaces/kube-system/secrets", &secret("2999-01-01T00:00:00Z")).await.expect(201);
    assert_eq!(http.get(path, Some("abcdef.0123456789abcdef")).await.unwrap().0, 404);
    assert_eq!(
        http.get("/api/v1/namespaces/kube-system/secrets", Some("abcdef.0123456789abcdef")).await.unwrap().0,
        403
    );
    for wrong in ["abcdef.0123456789abcdee", "abcdef", "abcdefg.0123456789abcdef", "", "abcdex.0123456789abcdef"] {
        assert_eq!(http.get(path, Some(wrong)).await.unwrap().0, 401, "{wrong}");
    }
    served
        .client
        .put("/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef", &secret("2001-01-01T00:00:00Z"))
        .await
        .expect(200);
    assert_eq!(http.get(path, Some("abcdef.0123456789abcdef")).await.unwrap().0, 401);
    served.stop().await;
}

#[tokio::test]
async fn garbage_is_survived_and_a_stop_ends_watches() {
    let served = Served::start(Builtins::Management).await;
    let mut plain = TcpStream::connect(served.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut out = Vec::new();
    let _ = plain.read_to_end(&mut out).await;
    // Garbage inside TLS.
    let mut roots = rustls::RootCertStore::empty();
    roots.add(served.authority.der.clone()).unwrap();
    let config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    for garbage in [
        &b"\0\xff\x13nonsense\r\n\r\n"[..],
        b"GET /\x01 HTTP/9.9\r\nA\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage garbage garbage",
    ] {
        let socket = TcpStream::connect(served.address).await.unwrap();
        let mut stream = connector.connect("localhost".try_into().unwrap(), socket).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let mut out = Vec::new();
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), stream.read_to_end(&mut out)).await;
    }
    assert_eq!(served.http(None).get("/livez", None).await.unwrap().0, 200);
    let admin = served.authority.sign("a", "system:masters");
    let watching = served.http(Some(&admin));
    let watch = tokio::spawn(async move { watching.get("/api/v1/namespaces?watch=true", None).await });
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert!(!watch.is_finished());
    served.stop().await;
    tokio::time::timeout(std::time::Duration::from_secs(5), watch).await.unwrap().unwrap().ok();
}
