//! Clusters of simulated machines, from boot data to Nodes, through real HTTP and TLS.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::time::Duration;

use capstan_simulator::SimulatorOptions;
use serde_json::{Value, json};
use support::{Cloud, Secrets, ask, cluster, options, ready, until};

#[tokio::test]
async fn machines_become_a_cluster() {
    let cloud = Cloud::start(options()).await;
    let secrets = Secrets::new();
    let endpoint = cloud.balancer("ns.c").await;
    let refused = tokio::net::TcpStream::connect(&endpoint).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    cloud.machine("ns.c-cp", "ns.c", true, &secrets.init(&endpoint, "")).await;
    assert_eq!(cloud.joined("ns.c-cp").await.unwrap(), "c-cp");
    let client = secrets.admin(&endpoint);
    let node = until("the API", async || ask(&client, "GET", "/api/v1/nodes/c-cp", None).await.ok()).await;
    assert_eq!(node["spec"]["providerID"], "simulated://ns.c-cp");
    assert_eq!(node["spec"]["taints"][0]["key"], "node-role.kubernetes.io/control-plane");
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], "v1.35.1");
    assert_eq!(node["metadata"]["labels"]["topology.kubernetes.io/zone"], "a");

    let get = async |path: &str| ask(&client, "GET", path, None).await.unwrap();
    let config = get("/api/v1/namespaces/kube-system/configmaps/kubeadm-config").await;
    assert!(config["data"]["ClusterConfiguration"].as_str().unwrap().contains("v1.35.1"));
    let pods = get("/api/v1/namespaces/kube-system/pods").await;
    let mut running: Vec<&str> = Vec::new();
    for pod in pods["items"].as_array().unwrap() {
        assert_eq!(pod["status"]["phase"], "Running");
        running.push(pod["metadata"]["name"].as_str().unwrap());
    }
    running.sort();
    assert_eq!(running, ["etcd-c-cp", "kube-apiserver-c-cp", "kube-controller-manager-c-cp", "kube-scheduler-c-cp"]);
    get("/apis/apps/v1/namespaces/kube-system/deployments/coredns").await;
    get("/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy").await;
    get("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/c-cp").await;

    ask(&client, "POST", "/api/v1/namespaces/kube-system/secrets", Some(&secrets.token_secret())).await.unwrap();
    // cluster-info is signed for the token.
    until("the signature", async || {
        let info = get("/api/v1/namespaces/kube-public/configmaps/cluster-info").await;
        info["data"]["jws-kubeconfig-abcdef"].as_str().map(str::to_owned)
    })
    .await;
    cloud.machine("ns.c-w", "ns.c", false, &secrets.join(&endpoint, &secrets.bearer(), &secrets.hash())).await;
    assert_eq!(cloud.joined("ns.c-w").await.unwrap(), "c-w");
    let node = get("/api/v1/nodes/c-w").await;
    assert_eq!(node["spec"]["providerID"], "simulated://ns.c-w");
    assert_eq!(node["spec"]["taints"], json!([{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}]));
    assert!(node["metadata"]["labels"].get("node-role.kubernetes.io/control-plane").is_none());
    assert_eq!(ready(&client, "c-w").await, "True");

    // A second control-plane machine shares the objects.
    let join = secrets.join(&endpoint, &secrets.bearer(), &secrets.hash());
    let join = join.replace(
        "    nodeRegistration:",
        "    controlPlane: {localAPIEndpoint: {bindPort: 6443}}\n    nodeRegistration:",
    );
    let join = join.replace("write_files:\n", &format!("write_files:\n{}", secrets.files("")));
    cloud.machine("ns.c-cp2", "ns.c", true, &join).await;
    assert_eq!(cloud.joined("ns.c-cp2").await.unwrap(), "c-cp2");
    // Load balancers leave out machines that are silent, as long as there are others.
    cloud.fault("ns.c-cp", "freeze").await;
    for _ in 0..4 {
        ask(&secrets.admin(&endpoint), "GET", "/api/v1/nodes", None).await.unwrap();
    }
    cloud.fault("ns.c-cp", "kill").await;
    until("the other API server", async || ask(&client, "GET", "/api/v1/nodes/c-w", None).await.ok()).await;
    until("the loss to be seen", async || (ready(&client, "c-cp").await == "Unknown").then_some(())).await;

    // What a machine shows of itself, and what exists.
    let machine = cloud.get("machines/ns.c-w").await;
    assert_eq!(machine["state"], "running");
    assert_eq!(machine["providerID"], "simulated://ns.c-w");
    assert_eq!(machine["addresses"][1], json!({"type": "Hostname", "address": "c-w"}));
    assert!(machine["console"].as_array().unwrap().iter().any(|line| line == "This node has joined the cluster."));
    assert!(!machine.to_string().contains("0123456789abcdef"));
    let clusters = cloud.get("clusters").await;
    assert_eq!(clusters["items"][0]["controlPlaneMachines"], json!(["ns.c-cp", "ns.c-cp2"]));
    assert_eq!(cloud.get("machines?owner=owner-of-ns.c-w").await["items"].as_array().unwrap().len(), 1);

    // Deleted machines are gone, and with the last control-plane machine the cluster is.
    for name in ["ns.c-w", "ns.c-cp", "ns.c-cp2"] {
        let (status, _) = cloud.call("DELETE", &format!("machines/{name}"), None).await;
        assert_eq!(status, 202);
        until("the machine to go", async || {
            (cloud.call("GET", &format!("machines/{name}"), None).await.0 == 404).then_some(())
        })
        .await;
    }
    assert_eq!(cloud.get("clusters").await["items"], json!([]));
    assert!(ask(&client, "GET", "/api/v1/nodes", None).await.is_err());
    assert_eq!(cloud.call("DELETE", "load-balancers/ns.c", None).await.0, 204);
    assert_eq!(cloud.call("GET", "load-balancers/ns.c", None).await.0, 404);
    cloud.simulator.shutdown().await;
}

#[tokio::test]
async fn wrong_boot_data_is_seen() {
    let cloud = Cloud::start(options()).await;
    let (secrets, endpoint, _client) = cluster(&cloud, "ns").await;
    let other = Secrets::new();
    let good_hash = secrets.hash();
    let join = |token: &str, hash: &str| secrets.join(&endpoint, token, hash);
    for (name, data, part) in [
        ("wrong-secret", join("abcdef.fedcba9876543210", &good_hash), "the token abcdef"),
        ("wrong-token", join("fedcba.fedcba9876543210", &good_hash), "the token fedcba"),
        ("no-token", join("nonsense", &good_hash), "form"),
        ("wrong-hash", join(&secrets.bearer(), &other.hash()), "caCertHashes"),
        ("no-ca-key", secrets.init(&endpoint, "ca.key"), "/etc/kubernetes/pki/ca.key is missing"),
        ("no-sa-key", secrets.init(&endpoint, "sa.key"), "/etc/kubernetes/pki/sa.key is missing"),
        ("no-config", "#cloud-config\nruncmd: ['kubeadm init --config /none']\n".to_owned(), "/none"),
        (
            "nobody-there",
            join(&secrets.bearer(), &good_hash).replace(&endpoint, "127.0.0.1:1").replace("20s", "1s"),
            "127.0.0.1:1 did not answer within 1 s",
        ),
        ("no-kubeadm", "#cloud-config\nruncmd: [echo hello]\n".to_owned(), "nothing in it made this machine a node"),
        ("not-yaml", "#cloud-config\nruncmd: [\n".to_owned(), "line"),
        ("a-script", "#!/bin/sh\n".to_owned(), "script"),
        ("nothing", String::new(), "empty"),
    ] {
        cloud.machine(name, "ns.c", false, &data).await;
        let error = cloud.joined(name).await.unwrap_err();
        assert!(error.contains(part), "{name}: {error}");
        let machine = cloud.get(&format!("machines/{name}")).await;
        assert_eq!(machine["state"], "running", "{name}");
        assert!(machine["console"].to_string().contains("error: "), "{name}: {machine}");
        assert!(!machine.to_string().contains("fedcba9876543210"), "{name}: {machine}");
    }
    cloud.simulator.shutdown().await;
}

#[tokio::test]
async fn machines_break_and_come_back() {
    let cloud = Cloud::start(options()).await;
    let (_, endpoint, client) = cluster(&cloud, "ns").await;
    let is = async |status: &str| {
        until(&format!("the Node to be {status}"), async || (ready(&client, "w").await == status).then_some(())).await;
    };
    // The part behind the first dot is the host name.
    is("True").await;
    for (fault, status) in [
        ("stop", "False"),
        ("stop", "Unknown"),
        ("start", "True"),
        ("kill", "Unknown"),
        ("start", "True"),
        ("fail", "Unknown"),
        ("start", "True"),
        ("freeze", "Unknown"),
        ("thaw", "True"),
        ("cut-network", "Unknown"),
        ("restore-network", "True"),
    ] {
        cloud.fault("ns.w", fault).await;
        is(status).await;
    }
    for (fault, state) in [("stop", "stopped"), ("start", "running"), ("fail", "failed"), ("start", "running")] {
        cloud.fault("ns.w", fault).await;
        assert_eq!(cloud.get("machines/ns.w").await["state"], state);
    }

    // A frozen control plane takes connections and answers nothing; a cut one is not forwarded to.
    cloud.fault("ns.cp", "freeze").await;
    let asked = ask(&client, "GET", "/api/v1/nodes", None);
    assert!(tokio::time::timeout(Duration::from_millis(200), asked).await.is_err());
    assert!(tokio::net::TcpStream::connect(&endpoint).await.is_ok());
    cloud.fault("ns.cp", "thaw").await;
    is("True").await;
    cloud.fault("ns.cp", "cut-network").await;
    until("the API to be refused", async || tokio::net::TcpStream::connect(&endpoint).await.err()).await;
    cloud.fault("ns.cp", "restore-network").await;
    until("the API", async || ask(&client, "GET", "/api/v1/nodes", None).await.ok()).await;
    // Its objects survive a power cut of the only control-plane machine.
    cloud.fault("ns.cp", "kill").await;
    until("the API to be refused", async || tokio::net::TcpStream::connect(&endpoint).await.err()).await;
    cloud.fault("ns.cp", "start").await;
    is("True").await;

    cloud.fault("ns.w", "lose").await;
    assert_eq!(cloud.call("GET", "machines/ns.w", None).await.0, 404);
    is("Unknown").await;
    let (status, body) = cloud.call("POST", "machines/ns.cp/faults", Some(json!({"fault": "melt"}))).await;
    assert_eq!((status, body["error"]["field"].as_str()), (400, Some("fault")));
    cloud.simulator.shutdown().await;
}

#[tokio::test]
async fn everything_is_there_again_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let with_state = || SimulatorOptions { state: Some(directory.path().to_owned()), ..options() };
    let cloud = Cloud::start(with_state()).await;
    let (_, endpoint, client) = cluster(&cloud, "ns").await;
    ask(
        &client,
        "POST",
        "/api/v1/namespaces/default/configmaps",
        Some(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}})),
    )
    .await
    .unwrap();
    cloud.machine("ns.odd", "ns.c", false, "#cloud-config\nruncmd: [echo hello]\n").await;
    cloud.joined("ns.odd").await.unwrap_err();
    let before: Vec<Value> = vec![cloud.get("machines").await, cloud.get("load-balancers").await];
    let second = capstan_simulator::Simulator::start(with_state()).await.err().unwrap().to_string();
    assert!(second.contains("in use by another process"), "{second}");
    cloud.simulator.shutdown().await;
    assert!(tokio::net::TcpStream::connect(&endpoint).await.is_err());

    let cloud = Cloud::start(with_state()).await;
    assert_eq!(cloud.get("load-balancers").await, before[1]);
    until("the API", async || ask(&client, "GET", "/api/v1/namespaces/default/configmaps/kept", None).await.ok()).await;
    until("the worker", async || (ready(&client, "w").await == "True").then_some(())).await;
    until("all machines to run", async || {
        let machines = cloud.get("machines").await;
        machines["items"].as_array().unwrap().iter().all(|machine| machine["state"] == "running").then_some(())
    })
    .await;
    assert_eq!(cloud.get("machines").await, before[0]);
    // A machine that was lost meanwhile is noticed all the same, and what is deleted stays so.
    let (status, _) = cloud.call("DELETE", "machines/ns.w", None).await;
    assert_eq!(status, 202);
    until("the loss to be seen", async || (ready(&client, "w").await == "Unknown").then_some(())).await;
    cloud.simulator.shutdown().await;
    let cloud = Cloud::start(with_state()).await;
    assert_eq!(cloud.call("GET", "machines/ns.w", None).await.0, 404);
    cloud.simulator.shutdown().await;
}

/// What a kill leaves behind is what had been handed to the kernel: the directory as it is while the process runs.
#[tokio::test]
async fn a_kill_loses_nothing() {
    let (directory, left) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let with =
        |directory: &tempfile::TempDir| SimulatorOptions { state: Some(directory.path().to_owned()), ..options() };
    let cloud = Cloud::start(with(&directory)).await;
    let (secrets, endpoint, client) = cluster(&cloud, "ns").await;
    // Ordered, and killed before it boots.
    cloud.call("PUT", "faults", Some(json!({"bootDelay": "1h"}))).await;
    cloud.machine("ns.late", "ns.c", false, &secrets.join(&endpoint, &secrets.bearer(), &secrets.hash())).await;
    cloud.fault("ns.w", "cut-network").await;
    // Objects of workload clusters reach the disk within a tenth of a second.
    tokio::time::sleep(Duration::from_millis(300)).await;
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, left.path().join(path.file_name().unwrap())).unwrap();
    }
    cloud.simulator.shutdown().await;

    let cloud = Cloud::start(with(&left)).await;
    assert_eq!(cloud.joined("ns.late").await.unwrap(), "late");
    until("the worker without a network", async || (ready(&client, "w").await == "Unknown").then_some(())).await;
    cloud.fault("ns.w", "restore-network").await;
    until("the worker", async || (ready(&client, "w").await == "True").then_some(())).await;
    assert_eq!(cloud.get("machines").await["items"].as_array().unwrap().len(), 3);
    cloud.simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clusters_fit_beside_each_other() {
    let cloud = Cloud::start(options()).await;
    let cloud = &cloud;
    let mut clusters = Vec::new();
    for number in 0..50 {
        let secrets = Secrets::new();
        let name = format!("ns{number}.c");
        let endpoint = cloud.balancer(&name).await;
        // Workers wait for their control plane: their token is there once it is.
        cloud.machine(&format!("ns{number}.cp"), &name, true, &secrets.init(&endpoint, "")).await;
        clusters.push((number, name, secrets, endpoint));
    }
    for (number, name, secrets, endpoint) in &clusters {
        cloud.joined(&format!("ns{number}.cp")).await.unwrap();
        let client = secrets.admin(endpoint);
        until("the API", async || {
            ask(&client, "POST", "/api/v1/namespaces/kube-system/secrets", Some(&secrets.token_secret())).await.ok()
        })
        .await;
        cloud
            .machine(&format!("ns{number}.w"), name, false, &secrets.join(endpoint, &secrets.bearer(), &secrets.hash()))
            .await;
    }
    let mut addresses = std::collections::BTreeSet::new();
    for (number, _, secrets, endpoint) in &clusters {
        assert_eq!(cloud.joined(&format!("ns{number}.w")).await.unwrap(), "w");
        let nodes = ask(&secrets.admin(endpoint), "GET", "/api/v1/nodes", None).await.unwrap();
        let ids: Vec<&str> = nodes["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["spec"]["providerID"].as_str().unwrap())
            .collect();
        assert_eq!(ids, [format!("simulated://ns{number}.cp"), format!("simulated://ns{number}.w")]);
        addresses.insert(endpoint.clone());
    }
    assert_eq!(addresses.len(), 50);
}

#[tokio::test]
async fn machines_of_another_cloud_have_the_addresses_they_are_given() {
    let cloud = Cloud::start(options()).await;
    let secrets = Secrets::new();
    // Of this process alone, so that two runs do not meet.
    let process = std::process::id();
    let at = |last: u8| format!("127.{}.{}.{last}", 200 + process / 256 % 50, process % 256);
    let order = |name: &str, address: &str, data: &str| json!({"name": name, "owner": "pve", "address": address, "providerID": "", "userData": support::base64(data)});
    let endpoint = format!("{}:6443", at(20));
    let (status, _) = cloud.call("POST", "machines", Some(order("100.cp", "192.0.2.1", ""))).await;
    assert_eq!(status, 400, "an address of other computers");
    let (status, _) =
        cloud.call("POST", "machines", Some(order("100.cp", &at(20), &secrets.init(&endpoint, "")))).await;
    assert_eq!(status, 201);
    let (status, body) = cloud.call("POST", "machines", Some(order("101.w", &at(20), ""))).await;
    assert_eq!((status, body["error"]["code"].as_str()), (400, Some("InvalidField")), "{body}");
    assert_eq!(cloud.joined("100.cp").await.unwrap(), "cp");

    let client = secrets.admin(&endpoint);
    let node = until("the API", async || ask(&client, "GET", "/api/v1/nodes/cp", None).await.ok()).await;
    assert_eq!(node["spec"].get("providerID"), None, "nobody sets it");
    assert_eq!(node["status"]["addresses"][0]["address"], at(20));
    ask(&client, "POST", "/api/v1/namespaces/kube-system/secrets", Some(&secrets.token_secret())).await.unwrap();
    let mut worker = order("101.w", &at(21), &secrets.join(&endpoint, &secrets.bearer(), &secrets.hash()));
    worker["providerID"] = json!("other:///zone/i-1");
    assert_eq!(cloud.call("POST", "machines", Some(worker)).await.0, 201);
    assert_eq!(cloud.joined("101.w").await.unwrap(), "w");
    let node = ask(&client, "GET", "/api/v1/nodes/w", None).await.unwrap();
    assert_eq!(node["spec"]["providerID"], "other:///zone/i-1");

    // It is of this cloud as others are: silence is seen, also for good.
    assert_eq!(cloud.call("DELETE", "machines/101.w", None).await.0, 202);
    until("the loss to be seen", async || (ready(&client, "w").await == "Unknown").then_some(())).await;
    assert_eq!(cloud.call("DELETE", "machines/100.cp", None).await.0, 202);
    until("the address to be free", async || tokio::net::TcpStream::connect(&endpoint).await.is_err().then_some(()))
        .await;
}
