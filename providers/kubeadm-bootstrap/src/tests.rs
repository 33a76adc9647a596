//! What is rendered, read back by an independent YAML parser.

use capstan_provider::{
    Algorithm, HostPort, Need,
    bootstrap::JoinRole,
    testing::{Scenario, TestMachine, bootstrap, reveal},
};
use serde_json::{Value, json};

use crate::{CRDS, KubeadmConfig, MANIFEST};

fn scenario(role: JoinRole, version: &str, spec: Value) -> Scenario {
    let mut scenario = Scenario::new("KubeadmConfig", spec).machine(TestMachine {
        name: "m".to_owned(),
        control_plane: role != JoinRole::WorkerJoin,
        kubernetes_version: Some(version.to_owned()),
        ..TestMachine::default()
    });
    for pair in ["ca", "etcd", "proxy", "sa"] {
        for key in ["tls.crt", "tls.key"] {
            scenario = scenario.secret(&format!("{pair}/{key}"), &format!("-----{pair} {key}-----\n"));
        }
    }
    scenario = scenario.secret("bootstrap-token", "abcdef.0123456789abcdef");
    scenario.endpoint = Some(HostPort { host: "10.0.0.9".to_owned(), port: 6443 });
    scenario.pod_cidrs = vec!["10.1.0.0/16".to_owned()];
    scenario.service_cidrs = vec!["10.2.0.0/16".to_owned(), "fd00::/108".to_owned()];
    scenario.public_key_hashes.insert("ca".to_owned(), "sha256:aa".to_owned());
    scenario.role = Some(role);
    scenario
}

fn rendered(scenario: Scenario) -> Value {
    let (rendered, _) = scenario.run(bootstrap::render::<KubeadmConfig>);
    let rendered = rendered.unwrap();
    assert_eq!(rendered.format, "cloud-config");
    let text = reveal(&rendered.content);
    assert!(text.starts_with("## template: jinja\n#cloud-config\n"), "{text}");
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn file<'a>(config: &'a Value, path: &str) -> &'a Value {
    config["write_files"].as_array().unwrap().iter().find(|file| file["path"] == path).unwrap()
}

fn documents(file: &Value) -> Vec<Value> {
    let text = file["content"].as_str().unwrap();
    text.split("---\n").skip(1).map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

#[test]
fn the_sections_are_json() {
    let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
    let crds: Value = serde_json::from_str(CRDS).unwrap();
    assert_eq!(manifest["role"], "bootstrap");
    assert_eq!(manifest["kinds"]["machine"], crds[0]["kind"]);
    assert_eq!(crds[0]["plural"], "kubeadmconfigs");
}

#[test]
fn init_has_certificates_files_and_kubeadm_in_order() {
    let config = rendered(scenario(
        JoinRole::ControlPlaneInit,
        "v1.35.0",
        json!({
            "clusterConfiguration": {
                "apiServer": {"certSANs": ["localhost"], "extraArgs": [{"name": "v", "value": "2"}]},
                "encryptionAlgorithm": "ECDSA-P256", "certificateValidityPeriodDays": 30,
                "featureGates": {"ControlPlaneKubeletLocalMode": true},
            },
            "initConfiguration": {"nodeRegistration": {"name": "{{ ds.meta_data.local_hostname }}", "taints": []},
                "timeouts": {"etcdAPICallSeconds": 9}},
            "files": [{"path": "/etc/mine", "content": "hello {{ v1.name }}\n", "permissions": "0644", "owner": "a:b"}],
            "preKubeadmCommands": ["echo before"], "postKubeadmCommands": ["echo after"], "verbosity": 5,
        }),
    ));
    let files: Vec<_> = config["write_files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| (f["path"].as_str().unwrap(), &f["permissions"]))
        .collect();
    assert_eq!(
        files,
        [
            ("/etc/kubernetes/pki/ca.crt", &json!("0640")),
            ("/etc/kubernetes/pki/ca.key", &json!("0600")),
            ("/etc/kubernetes/pki/etcd/ca.crt", &json!("0640")),
            ("/etc/kubernetes/pki/etcd/ca.key", &json!("0600")),
            ("/etc/kubernetes/pki/front-proxy-ca.crt", &json!("0640")),
            ("/etc/kubernetes/pki/front-proxy-ca.key", &json!("0600")),
            ("/etc/kubernetes/pki/sa.pub", &json!("0640")),
            ("/etc/kubernetes/pki/sa.key", &json!("0600")),
            ("/etc/mine", &json!("0644")),
            ("/run/kubeadm/kubeadm.yaml", &json!("0640")),
            ("/run/cluster-api/placeholder", &json!("0640")),
        ]
    );
    let ca = file(&config, "/etc/kubernetes/pki/ca.crt");
    assert_eq!((&ca["encoding"], &ca["owner"]), (&json!("base64"), &json!("root:root")));
    assert_eq!(ca["content"], "LS0tLS1jYSB0bHMuY3J0LS0tLS0K");
    assert_eq!(file(&config, "/etc/mine")["content"], "hello {{ v1.name }}\n");
    assert_eq!(
        config["runcmd"],
        json!([
            "echo before",
            "kubeadm init --config /run/kubeadm/kubeadm.yaml --v 5 \
             && echo success > /run/cluster-api/bootstrap-success.complete",
            "echo after",
        ])
    );
    let documents = documents(file(&config, "/run/kubeadm/kubeadm.yaml"));
    assert_eq!(
        documents[0],
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration", "clusterName": "c",
            "controlPlaneEndpoint": "10.0.0.9:6443", "kubernetesVersion": "v1.35.0",
            "networking": {"dnsDomain": "cluster.local", "podSubnet": "10.1.0.0/16", "serviceSubnet": "10.2.0.0/16,fd00::/108"},
            "apiServer": {"extraArgs": [{"name": "v", "value": "2"}], "certSANs": ["localhost"]},
            "featureGates": {"ControlPlaneKubeletLocalMode": true},
            "certificateValidityPeriod": "720h0m0s", "encryptionAlgorithm": "ECDSA-P256",
        })
    );
    assert_eq!(documents[1]["kind"], "InitConfiguration");
    assert_eq!(documents[1]["nodeRegistration"], json!({"name": "{{ ds.meta_data.local_hostname }}", "taints": []}));
    assert_eq!(documents[1]["timeouts"], json!({"etcdAPICall": "9s"}));
}

#[test]
fn a_worker_joins_with_token_hash_and_taint_and_no_private_keys() {
    let config = rendered(scenario(
        JoinRole::WorkerJoin,
        "v1.30.2",
        json!({
        "joinConfiguration": {"nodeRegistration": {"kubeletExtraArgs": [{"name": "a", "value": "1"}]}}}),
    ));
    let paths: Vec<_> = config["write_files"].as_array().unwrap().iter().map(|f| f["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/run/kubeadm/kubeadm-join-config.yaml", "/run/cluster-api/placeholder"]);
    let join = documents(file(&config, paths[0])).remove(0);
    assert_eq!(
        join,
        json!({
            "apiVersion": "kubeadm.k8s.io/v1beta3", "kind": "JoinConfiguration",
            "nodeRegistration": {
                "taints": [{"key": "node.cluster.x-k8s.io/uninitialized", "effect": "NoSchedule"}],
                "kubeletExtraArgs": {"a": "1"},
            },
            "discovery": {"bootstrapToken": {"apiServerEndpoint": "10.0.0.9:6443", "token": "abcdef.0123456789abcdef",
                "caCertHashes": ["sha256:aa"]}},
        })
    );
    assert!(
        config["runcmd"][0]
            .as_str()
            .unwrap()
            .starts_with("kubeadm join --config /run/kubeadm/kubeadm-join-config.yaml &&")
    );
}

#[test]
fn a_control_plane_machine_joins_as_one_and_without_a_taint_of_ours() {
    let config = rendered(scenario(JoinRole::ControlPlaneJoin, "v1.35.0", json!({})));
    let join = documents(file(&config, "/run/kubeadm/kubeadm-join-config.yaml")).remove(0);
    assert_eq!(join["controlPlane"], json!({"localAPIEndpoint": {}}));
    assert_eq!(join.pointer("/nodeRegistration/taints"), None);
    assert_eq!(config["write_files"].as_array().unwrap().len(), 10);
}

#[test]
fn needs_follow_the_role() {
    let labels = |role| {
        let spec = json!({"clusterConfiguration": {"encryptionAlgorithm": "ECDSA-P384"},
            "files": [{"path": "/a", "contentFrom": {"secret": {"name": "s", "key": "k"}}}]});
        let (needs, _) = scenario(role, "v1.35.0", spec).run(bootstrap::declare::<KubeadmConfig>);
        let needs = needs.unwrap();
        let Need::KeyPair(ca) = &needs[0].1 else { panic!() };
        assert_eq!(ca.algorithm, Algorithm::EcdsaP384);
        needs.into_iter().map(|(label, _)| label).collect::<Vec<_>>()
    };
    assert_eq!(labels(JoinRole::ControlPlaneInit), ["ca", "etcd", "proxy", "sa", "file-0"]);
    assert_eq!(labels(JoinRole::ControlPlaneJoin), ["ca", "etcd", "proxy", "sa", "bootstrap-token", "file-0"]);
    assert_eq!(labels(JoinRole::WorkerJoin), ["ca", "bootstrap-token", "file-0"]);
}

/// Field case A11.
#[test]
fn commands_and_files_arrive_byte_for_byte() {
    let commands = [
        "echo 'it''s' \"x\"",
        "a: b",
        "echo a # b",
        "- leading",
        "echo {{ ds.meta_data.x }}",
        "echo $(date)",
        "c:\\dir",
        "one\ntwo",
        "echo naïve 漢字",
        "yes",
        "echo '{{ \"q\" }}' \\ ",
        "",
    ];
    let config = rendered(scenario(
        JoinRole::WorkerJoin,
        "v1.35.0",
        json!({
            "preKubeadmCommands": commands, "postKubeadmCommands": commands, "bootCommands": commands,
            "files": [
                {"path": "/jinja", "content": "host={{ ds.meta_data[\"x\"] }}\n  'indented'\n"},
                {"path": "/b64", "encoding": "base64", "content": "aGk="},
                {"path": "/gz", "encoding": "gzip+base64", "content": "AAAA", "append": true},
            ],
        }),
    ));
    let all = config["runcmd"].as_array().unwrap();
    assert_eq!(all[..commands.len()], json!(commands).as_array().unwrap()[..]);
    assert_eq!(all[commands.len() + 1..], json!(commands).as_array().unwrap()[..]);
    assert_eq!(config["bootcmd"], json!(commands));
    assert_eq!(file(&config, "/jinja")["content"], "host={{ ds.meta_data[\"x\"] }}\n  'indented'\n");
    assert_eq!(file(&config, "/jinja").get("encoding"), None);
    assert_eq!(file(&config, "/b64")["encoding"], "base64");
    assert_eq!(
        (&file(&config, "/gz")["encoding"], &file(&config, "/gz")["append"]),
        (&json!("gzip+base64"), &json!(true))
    );
}

#[test]
fn secrets_of_the_user_users_disks_and_clocks() {
    let config = rendered(
        scenario(JoinRole::WorkerJoin, "v1.35.0", json!({
            "files": [{"path": "/s", "contentFrom": {"secret": {"name": "s", "key": "k"}}}],
            "users": [{"name": "u", "passwdFrom": {"secret": {"name": "p", "key": "hash"}}, "lockPassword": false,
                "sudo": "ALL=(ALL) NOPASSWD:ALL", "sshAuthorizedKeys": ["ssh-ed25519 AAAA x"]}],
            "ntp": {"servers": ["0.pool"], "enabled": true},
            "diskSetup": {"partitions": [{"device": "/dev/vdb", "layout": true, "tableType": "gpt"},
                    {"device": "/dev/vdc", "diskLayout": [{"percentage": 25}, {"percentage": 75, "partitionType": "82"}]}],
                "filesystems": [{"device": "/dev/vdb1", "filesystem": "ext4", "label": "data", "extraOpts": ["-E", "x"]}]},
            "mounts": [["LABEL=data", "/data"]],
        }))
        .secret("file-0/k", "bytes")
        .secret("user-0/hash", "$6$\"x\"\\"),
    );
    assert_eq!(
        (&file(&config, "/s")["content"], &file(&config, "/s")["encoding"]),
        (&json!("Ynl0ZXM="), &json!("base64"))
    );
    assert_eq!(
        config["users"],
        json!([{"name": "u", "passwd": "$6$\"x\"\\", "lock_passwd": false, "sudo": "ALL=(ALL) NOPASSWD:ALL",
            "ssh_authorized_keys": ["ssh-ed25519 AAAA x"]}])
    );
    assert_eq!(config["ntp"], json!({"enabled": true, "servers": ["0.pool"]}));
    assert_eq!(
        config["disk_setup"],
        json!({"/dev/vdb": {"table_type": "gpt", "layout": true}, "/dev/vdc": {"layout": [25, [75, "82"]]}})
    );
    assert_eq!(
        config["fs_setup"],
        json!([{"device": "/dev/vdb1", "filesystem": "ext4", "label": "data", "extra_opts": ["-E", "x"]}])
    );
    assert_eq!(config["mounts"], json!([["LABEL=data", "/data"]]));
}

#[test]
fn discovery_by_file_needs_no_token() {
    let config = rendered(scenario(
        JoinRole::WorkerJoin,
        "v1.35.0",
        json!({"joinConfiguration": {"discovery": {
        "file": {"kubeConfigPath": "/k.conf", "kubeConfig": {"user": {"exec": {"command": "get-token"}}}}}}}),
    ));
    let written: Value = serde_saphyr::from_str(file(&config, "/k.conf")["content"].as_str().unwrap()).unwrap();
    assert_eq!(
        written["clusters"][0]["cluster"],
        json!({"server": "https://10.0.0.9:6443", "certificate-authority-data": "LS0tLS1jYSB0bHMuY3J0LS0tLS0K"})
    );
    assert_eq!(written["users"][0]["user"]["exec"]["command"], "get-token");
    let join = documents(file(&config, "/run/kubeadm/kubeadm-join-config.yaml")).remove(0);
    assert_eq!(join["discovery"], json!({"file": {"kubeConfigPath": "/k.conf"}}));
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    let mut early = scenario(JoinRole::WorkerJoin, "v1.35.0", json!({}));
    early.endpoint = None;
    let (result, _) = early.run(bootstrap::render::<KubeadmConfig>);
    assert!(matches!(result, Err(capstan_provider::Error::Transient(_))));
    let (result, _) = scenario(JoinRole::WorkerJoin, "v1.20.0", json!({})).run(bootstrap::render::<KubeadmConfig>);
    assert!(matches!(result, Err(capstan_provider::Error::Invalid(_))));
    let object = json!({"kind": "KubeadmConfig", "spec": {"format": "ignition", "files": [
        {"path": "/a", "content": "x", "contentFrom": {"secret": {"name": "s", "key": "k"}}}, {"path": "/a", "content": "y"}]}});
    let paths: Vec<_> =
        bootstrap::validate::<KubeadmConfig>(None, &object.to_string()).into_iter().map(|v| v.path).collect();
    assert_eq!(paths, ["/spec/format", "/spec/files/0", "/spec/files/1/path"]);
    let template = json!({"kind": "KubeadmConfigTemplate", "spec": {"template": {"spec": {"files": [{"path": 1}]}}}});
    assert_eq!(bootstrap::validate::<KubeadmConfig>(None, &template.to_string()).len(), 1);
}
