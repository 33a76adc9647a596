//! A cloud, its clients, and boot data as Cluster API's bootstrap provider renders it.
#![allow(dead_code)]

use std::time::Duration;

use base64::Engine as _;
use capstan_simulator::kubeadm::pki;
use capstan_simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};

pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Short times, so that a test sees what takes a cluster a minute.
pub fn options() -> SimulatorOptions {
    SimulatorOptions { node_grace: Duration::from_millis(300), ..SimulatorOptions::default() }
}

pub struct Cloud {
    pub simulator: Simulator,
    http: reqwest::Client,
}

impl Cloud {
    pub async fn start(options: SimulatorOptions) -> Cloud {
        let _ = rustls::crypto::ring::default_provider().install_default();
        Cloud {
            simulator: Simulator::start(options).await.unwrap(),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let url = format!("http://{}/v1/{path}", self.simulator.address());
        let mut request = self.http.request(method.parse().unwrap(), url);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let bytes = response.bytes().await.unwrap();
        (status, if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() })
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// A load balancer; its `address:port`.
    pub async fn balancer(&self, name: &str) -> String {
        let (status, body) =
            self.call("POST", "load-balancers", Some(json!({"name": name, "owner": "o", "port": 6443}))).await;
        assert_eq!(status, 201, "{body}");
        format!("{}:{}", body["address"].as_str().unwrap(), body["port"])
    }

    pub async fn machine(&self, name: &str, balancer: &str, control_plane: bool, data: &str) {
        let (status, body) = self.call("POST", "machines", Some(order(name, balancer, control_plane, data))).await;
        assert_eq!(status, 201, "{body}");
        assert_eq!(body["state"], "booting");
    }

    pub async fn fault(&self, name: &str, fault: &str) {
        let (status, body) = self.call("POST", &format!("machines/{name}/faults"), Some(json!({"fault": fault}))).await;
        assert!(status == 200 || status == 204, "{status} {body}");
    }

    /// Waits until a machine is a node, or says why not.
    pub async fn joined(&self, name: &str) -> Result<String, String> {
        let machine = until(&format!("{name} to boot"), async || {
            let machine = self.get(&format!("machines/{name}")).await;
            (!machine["node"].is_null() || !machine["bootError"].is_null()).then_some(machine)
        })
        .await;
        match machine["bootError"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(machine["node"].as_str().unwrap().to_owned()),
        }
    }
}

pub fn order(name: &str, balancer: &str, control_plane: bool, data: &str) -> Value {
    json!({
        "name": name, "owner": format!("owner-of-{name}"), "loadBalancer": balancer, "controlPlane": control_plane,
        "failureDomain": "a", "cpus": 2, "memoryMiB": 2048, "userData": base64(data), "userDataFormat": "cloud-config",
    })
}

/// Asks again and again until there is an answer.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A cluster's certificates and token, as the management plane makes them.
pub struct Secrets {
    pub ca: String,
    pub key: String,
    pub token: (String, String),
}

impl Secrets {
    pub fn new() -> Secrets {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "kubernetes");
        let ca = params.self_signed(&key).unwrap().pem();
        Secrets { ca, key: key.serialize_pem(), token: ("abcdef".into(), "0123456789abcdef".into()) }
    }

    pub fn hash(&self) -> String {
        pki::public_key_hash(&pki::certificates(self.ca.as_bytes()).unwrap()[0]).unwrap()
    }

    pub fn files(&self, missing: &str) -> String {
        let names = ["ca", "etcd/ca", "front-proxy-ca"];
        let mut files: Vec<(String, &str)> = Vec::new();
        for name in names {
            files.push((format!("{name}.crt"), &self.ca));
            files.push((format!("{name}.key"), &self.key));
        }
        files.push(("sa.pub".into(), "-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"));
        files.push(("sa.key".into(), &self.key));
        files
            .iter()
            .filter(|(name, _)| name != missing)
            .map(|(name, content)| {
                format!(
                    "- path: /etc/kubernetes/pki/{name}\n  owner: root:root\n  permissions: '0640'\n  content: |\n    {}\n",
                    content.trim_end().replace('\n', "\n    ")
                )
            })
            .collect()
    }

    pub fn init(&self, endpoint: &str, missing: &str) -> String {
        format!(
            "## template: jinja\n#cloud-config\nwrite_files:\n{}- path: /run/kubeadm/kubeadm.yaml\n  owner: root:root\n  permissions: '0640'\n  content: |\n    ---\n    apiVersion: kubeadm.k8s.io/v1beta4\n    kind: ClusterConfiguration\n    clusterName: c\n    controlPlaneEndpoint: {endpoint}\n    kubernetesVersion: v1.35.1\n    networking: {{dnsDomain: cluster.local, podSubnet: 192.168.0.0/16}}\n    ---\n    apiVersion: kubeadm.k8s.io/v1beta4\n    kind: InitConfiguration\n    nodeRegistration:\n      name: '{{{{ ds.meta_data.local_hostname }}}}'\n      taints: null\n- path: /run/cluster-api/placeholder\n  content: placeholder\nruncmd:\n  - 'kubeadm init --config /run/kubeadm/kubeadm.yaml --v 5 && echo success > /run/cluster-api/bootstrap-success.complete'\n",
            self.files(missing)
        )
    }

    pub fn join(&self, endpoint: &str, token: &str, hash: &str) -> String {
        format!(
            "## template: jinja\n#cloud-config\nwrite_files:\n- path: /run/kubeadm/kubeadm-join-config.yaml\n  permissions: '0640'\n  content: |\n    ---\n    apiVersion: kubeadm.k8s.io/v1beta4\n    kind: JoinConfiguration\n    discovery:\n      timeout: 20s\n      bootstrapToken:\n        apiServerEndpoint: {endpoint}\n        token: {token}\n        caCertHashes: ['{hash}']\n    nodeRegistration:\n      taints:\n      - {{key: node.cluster.x-k8s.io/uninitialized, effect: NoSchedule}}\n- path: /run/cluster-api/placeholder\n  content: placeholder\nruncmd:\n  - \"kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml && echo success > /run/cluster-api/bootstrap-success.complete\"\n"
        )
    }

    pub fn bearer(&self) -> String {
        format!("{}.{}", self.token.0, self.token.1)
    }

    /// A client as the management plane has it: an administrator by certificate.
    pub fn admin(&self, endpoint: &str) -> kube::Client {
        kube::Client::try_from(self.config(endpoint)).unwrap()
    }

    pub fn config(&self, endpoint: &str) -> kube::Config {
        let authority = pki::Authority::new(&self.ca, &self.key).unwrap();
        let pair = authority.client("kubernetes-admin", &["system:masters"]).unwrap();
        let mut config = kube::Config::new(format!("https://{endpoint}").parse().unwrap());
        config.root_cert = Some(pki::certificates(self.ca.as_bytes()).unwrap().iter().map(|c| c.to_vec()).collect());
        config.auth_info.client_certificate_data = Some(base64(&pair.certificate_pem));
        config.auth_info.client_key_data = Some(base64(&pair.key_pem).into());
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(Duration::from_secs(5));
        config
    }

    /// The Secret of the bootstrap token.
    pub fn token_secret(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{}", self.token.0), "namespace": "kube-system"},
            "stringData": {
                "token-id": self.token.0, "token-secret": self.token.1, "expiration": "2099-01-01T00:00:00Z",
                "usage-bootstrap-signing": "true", "usage-bootstrap-authentication": "true",
                "auth-extra-groups": "system:bootstrappers:kubeadm:default-node-token",
            },
        })
    }
}

/// One request to a workload API; none where it fails.
pub async fn ask(client: &kube::Client, method: &str, path: &str, body: Option<&Value>) -> Result<Value, String> {
    let mut request = http::Request::builder().method(method).uri(path);
    let bytes = match body {
        Some(body) => {
            request = request.header(
                "content-type",
                if method == "PATCH" { "application/merge-patch+json" } else { "application/json" },
            );
            body.to_string().into_bytes()
        }
        None => Vec::new(),
    };
    client.request(request.body(bytes).unwrap()).await.map_err(|error| error.to_string())
}

/// A Node's `Ready` status.
pub async fn ready(client: &kube::Client, node: &str) -> String {
    match ask(client, "GET", &format!("/api/v1/nodes/{node}"), None).await {
        Ok(node) => capstan_simulator::kubeadm::objects::ready_status(&node).to_owned(),
        Err(error) => error,
    }
}

/// A cluster behind the load balancer `<name>.c`, with a control-plane machine `<name>.cp` and a worker `<name>.w`.
pub async fn cluster(cloud: &Cloud, name: &str) -> (Secrets, String, kube::Client) {
    let secrets = Secrets::new();
    let balancer = format!("{name}.c");
    let endpoint = cloud.balancer(&balancer).await;
    cloud.machine(&format!("{name}.cp"), &balancer, true, &secrets.init(&endpoint, "")).await;
    cloud.joined(&format!("{name}.cp")).await.unwrap();
    let client = secrets.admin(&endpoint);
    until("the API", async || ask(&client, "GET", "/api/v1/nodes", None).await.ok()).await;
    ask(&client, "POST", "/api/v1/namespaces/kube-system/secrets", Some(&secrets.token_secret())).await.unwrap();
    cloud
        .machine(&format!("{name}.w"), &balancer, false, &secrets.join(&endpoint, &secrets.bearer(), &secrets.hash()))
        .await;
    cloud.joined(&format!("{name}.w")).await.unwrap();
    (secrets, endpoint, client)
}
