//! The cloud-config document, in upstream's order: certificates, the user's files, kubeadm's file, the sentinel's
//! directory; then the commands, with kubeadm between the user's; then clocks, users and disks.

use capstan_provider::{
    Chunk, Error, Result, Secret,
    bootstrap::JoinRole,
    json,
    secrets::{self, Encoding},
};
use kubeadm_types::{ContentFrom, DiskSetup, File, KubeadmConfigSpec, User};
use serde_json::json;

use crate::{
    kubeadm::{self, Facts},
    yaml::{Writer, Yaml},
};

/// Written when kubeadm has succeeded: the contract of bootstrap providers.
const SENTINEL: &str = "/run/cluster-api/bootstrap-success.complete";

/// The whole document.
pub fn render(spec: &KubeadmConfigSpec, facts: &Facts) -> Result<Vec<Chunk>> {
    let mut files = Vec::new();
    if facts.role != JoinRole::WorkerJoin {
        certificates(spec, &mut files)?;
    }
    for (index, file) in spec.files.iter().enumerate() {
        files.push(user_file(index, file)?);
    }
    let (path, command, content) = if facts.role == JoinRole::ControlPlaneInit {
        let mut writer = Writer::default();
        document(&mut writer, Yaml::from(&kubeadm::cluster_configuration(spec, facts)?));
        document(&mut writer, Yaml::from(&kubeadm::init_configuration(spec, facts)));
        ("/run/kubeadm/kubeadm.yaml", "init", writer.finish())
    } else {
        discovery_file(spec, facts, &mut files)?;
        let mut writer = Writer::default();
        document(&mut writer, kubeadm::join_configuration(spec, facts)?);
        ("/run/kubeadm/kubeadm-join-config.yaml", "join", writer.finish())
    };
    files.push(written(path, "0640", Yaml::Block(content)));
    files.push(written("/run/cluster-api/placeholder", "0640", "makes the directory of the sentinel\n".into()));

    let mut commands = texts(&spec.pre_kubeadm_commands);
    let verbosity = spec.verbosity.map(|level| format!(" --v {level}")).unwrap_or_default();
    commands.push(Yaml::Text(format!("kubeadm {command} --config {path}{verbosity} && echo success > {SENTINEL}")));
    commands.extend(texts(&spec.post_kubeadm_commands));

    let mut document = vec![("write_files".to_owned(), Yaml::List(files))];
    if !spec.boot_commands.is_empty() {
        document.push(("bootcmd".to_owned(), Yaml::List(texts(&spec.boot_commands))));
    }
    document.push(("runcmd".to_owned(), Yaml::List(commands)));
    others(spec, &mut document)?;

    let mut writer = Writer::default();
    writer.raw("## template: jinja\n#cloud-config\n\n");
    writer.map(&document, 0, false);
    Ok(writer.finish())
}

fn document(writer: &mut Writer, document: Yaml) {
    if let Yaml::Map(entries) = document {
        writer.raw("---\n");
        writer.map(&entries, 0, false);
    }
}

fn texts(lines: &[String]) -> Vec<Yaml> {
    lines.iter().map(|line| Yaml::Text(line.clone())).collect()
}

fn entry(path: &str, encoding: Option<&str>, owner: &str, permissions: &str, append: bool, content: Yaml) -> Yaml {
    let mut entry: Vec<(String, Yaml)> = vec![("path".to_owned(), path.into())];
    if let Some(encoding) = encoding {
        entry.push(("encoding".to_owned(), encoding.into()));
    }
    if !owner.is_empty() {
        entry.push(("owner".to_owned(), owner.into()));
    }
    if !permissions.is_empty() {
        entry.push(("permissions".to_owned(), permissions.into()));
    }
    if append {
        entry.push(("append".to_owned(), Yaml::Plain("true".to_owned())));
    }
    entry.push(("content".to_owned(), content));
    Yaml::Map(entry)
}

fn written(path: &str, permissions: &str, content: Yaml) -> Yaml {
    entry(path, None, "root:root", permissions, false, content)
}

fn certificates(spec: &KubeadmConfigSpec, files: &mut Vec<Yaml>) -> Result<()> {
    let directory = spec
        .cluster_configuration
        .as_ref()
        .and_then(|cluster| cluster.certificates_dir.as_deref())
        .unwrap_or("/etc/kubernetes/pki");
    for (label, _) in spec.key_pairs() {
        let (public, private) = match label.as_str() {
            "ca" => ("ca.crt", "ca.key"),
            "etcd" => ("etcd/ca.crt", "etcd/ca.key"),
            "proxy" => ("front-proxy-ca.crt", "front-proxy-ca.key"),
            _ => ("sa.pub", "sa.key"),
        };
        for (name, key, permissions) in [(public, "tls.crt", "0640"), (private, "tls.key", "0600")] {
            let content = Yaml::Secret(secrets::get(&format!("{label}/{key}"))?.base64());
            let path = format!("{directory}/{name}");
            files.push(entry(&path, Some("base64"), "root:root", permissions, false, content));
        }
    }
    Ok(())
}

fn user_file(index: usize, file: &File) -> Result<Yaml> {
    let (encoding, content) = match &file.content_from {
        None => (file.encoding.as_deref(), Yaml::Text(file.content.clone().unwrap_or_default())),
        Some(from) => {
            let secret = secret_of(&format!("file-{index}"), from)?;
            match file.encoding.as_deref() {
                // What is in the Secret is base64 already.
                Some(encoding @ ("base64" | "gzip+base64")) => {
                    (Some(encoding), Yaml::Secret(secret.encode(&[Encoding::JsonString])))
                }
                Some(_) => (Some("gzip+base64"), Yaml::Secret(secret.base64())),
                None => (Some("base64"), Yaml::Secret(secret.base64())),
            }
        }
    };
    let owner = file.owner.as_deref().unwrap_or_default();
    let permissions = file.permissions.as_deref().unwrap_or_default();
    Ok(entry(&file.path, encoding, owner, permissions, file.append == Some(true), content))
}

fn secret_of(label: &str, from: &ContentFrom) -> Result<Secret> {
    secrets::get(&format!("{label}/{}", from.secret.key)).map_err(|_| {
        Error::transient(
            "SecretMissing",
            format!("Secret {} or its key {} is not there: create it", from.secret.name, from.secret.key),
        )
    })
}

/// The kubeconfig of discovery by file, with server and authority filled in.
fn discovery_file(spec: &KubeadmConfigSpec, facts: &Facts, files: &mut Vec<Yaml>) -> Result<()> {
    let discovery = spec.join_configuration.as_ref().and_then(|join| join.discovery.as_ref());
    let Some(file) = discovery.and_then(|discovery| discovery.file.as_ref()) else { return Ok(()) };
    let Some(config) = &file.kube_config else { return Ok(()) };
    let mut cluster = config.cluster.clone().unwrap_or_else(|| json!({}));
    if cluster.get("server").is_none() {
        let endpoint = facts.endpoint().ok_or_else(|| {
            Error::transient("WaitingForControlPlaneEndpoint", "the Cluster has no control-plane endpoint yet")
        })?;
        json::set(&mut cluster, "server", format!("https://{endpoint}"));
    }
    let key = "certificate-authority-data";
    let authority = cluster.get("certificateAuthorityData").cloned();
    if let Some(map) = cluster.as_object_mut() {
        map.remove("certificateAuthorityData");
        map.insert(key.to_owned(), authority.clone().unwrap_or_else(|| "?".into()));
    }
    let mut document = Yaml::from(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": {}}],
        "users": [{"name": "default", "user": config.user}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "current-context": "default",
    }));
    let mut cluster = Yaml::from(&cluster);
    if authority.is_none()
        && let Some(place) = cluster.at_mut(&[key])
    {
        *place = Yaml::Secret(secrets::get("ca/tls.crt")?.base64());
    }
    if let Some(Yaml::List(clusters)) = document.at_mut(&["clusters"])
        && let Some(place) = clusters.first_mut().and_then(|first| first.at_mut(&["cluster"]))
    {
        *place = cluster;
    }
    let mut writer = Writer::default();
    if let Yaml::Map(entries) = document {
        writer.map(&entries, 0, false);
    }
    files.push(written(&file.kube_config_path, "0640", Yaml::Block(writer.finish())));
    Ok(())
}

fn others(spec: &KubeadmConfigSpec, document: &mut Vec<(String, Yaml)>) -> Result<()> {
    if let Some(ntp) = &spec.ntp {
        let mut entries = Vec::new();
        if let Some(enabled) = ntp.enabled {
            entries.push(("enabled".to_owned(), Yaml::Plain(enabled.to_string())));
        }
        if !ntp.servers.is_empty() {
            entries.push(("servers".to_owned(), Yaml::List(texts(&ntp.servers))));
        }
        document.push(("ntp".to_owned(), Yaml::Map(entries)));
    }
    if !spec.users.is_empty() {
        let users = spec.users.iter().enumerate().map(|(index, user)| one_user(index, user));
        document.push(("users".to_owned(), Yaml::List(users.collect::<Result<_>>()?)));
    }
    if let Some(setup) = &spec.disk_setup {
        disks(setup, document);
    }
    if !spec.mounts.is_empty() {
        let mounts = spec.mounts.iter().map(|mount| Yaml::List(texts(mount))).collect();
        document.push(("mounts".to_owned(), Yaml::List(mounts)));
    }
    Ok(())
}

fn one_user(index: usize, user: &User) -> Result<Yaml> {
    let mut entries: Vec<(String, Yaml)> = vec![("name".to_owned(), user.name.as_str().into())];
    let mut passwd = user.passwd.as_deref().map(Yaml::from);
    if let Some(from) = &user.passwd_from {
        let secret = secret_of(&format!("user-{index}"), from)?;
        passwd = Some(Yaml::Secret(secret.encode(&[Encoding::JsonString])));
    }
    let text = |value: &Option<String>| value.as_deref().map(Yaml::from);
    let truth = |value: Option<bool>| value.map(|value| Yaml::Plain(value.to_string()));
    let keys = (!user.ssh_authorized_keys.is_empty()).then(|| Yaml::List(texts(&user.ssh_authorized_keys)));
    for (key, value) in [
        ("passwd", passwd),
        ("gecos", text(&user.gecos)),
        ("groups", text(&user.groups)),
        ("homedir", text(&user.home_dir)),
        ("inactive", truth(user.inactive)),
        ("lock_passwd", truth(user.lock_password)),
        ("shell", text(&user.shell)),
        ("primary_group", text(&user.primary_group)),
        ("sudo", text(&user.sudo)),
        ("ssh_authorized_keys", keys),
    ] {
        entries.extend(value.map(|value| (key.to_owned(), value)));
    }
    Ok(Yaml::Map(entries))
}

fn disks(setup: &DiskSetup, document: &mut Vec<(String, Yaml)>) {
    if !setup.partitions.is_empty() {
        let tables = setup.partitions.iter().map(|partition| {
            let layout = match partition.disk_layout.as_slice() {
                [] => json!(partition.layout.unwrap_or(true)),
                parts => parts
                    .iter()
                    .map(|part| match &part.partition_type {
                        Some(kind) => json!([part.percentage, kind]),
                        None => json!(part.percentage),
                    })
                    .collect(),
            };
            let table = json!({"table_type": partition.table_type, "layout": layout, "overwrite": partition.overwrite});
            (partition.device.clone(), Yaml::from(&kubeadm_types::pruned(table)))
        });
        document.push(("disk_setup".to_owned(), Yaml::Map(tables.collect())));
    }
    if !setup.filesystems.is_empty() {
        let systems = setup.filesystems.iter().map(|system| {
            Yaml::from(&kubeadm_types::pruned(json!({
                "device": system.device, "filesystem": system.filesystem, "label": system.label,
                "partition": system.partition, "overwrite": system.overwrite, "replace_fs": system.replace_fs,
                "extra_opts": system.extra_opts,
            })))
        });
        document.push(("fs_setup".to_owned(), Yaml::List(systems.collect())));
    }
}
