//! The fields of KubeadmConfig, `bootstrap.cluster.x-k8s.io/v1beta2`, which the kubeadm bootstrap provider renders and
//! the kubeadm control-plane provider hands to its machines. Names, shapes and defaults are upstream's.
//!
//! Promises: what is read and written again is the same but for absent, null and empty values, so two specs can be
//! compared after [`normal`].

pub mod kubeadm;

use capstan_provider::{Algorithm, KeyPair, KeyUse, Need, Schema};
use kubeadm::{ClusterConfiguration, InitConfiguration, JoinConfiguration};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a machine does when it boots.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeadmConfigSpec {
    /// Settings of the whole cluster, for `kubeadm init`.
    pub cluster_configuration: Option<ClusterConfiguration>,
    /// Settings of the machine that sets the cluster up.
    pub init_configuration: Option<InitConfiguration>,
    /// Settings of a machine that joins.
    pub join_configuration: Option<JoinConfiguration>,
    /// Files to write before kubeadm runs.
    #[schema(max_items = 200)]
    pub files: Vec<File>,
    /// Partitions and file systems to make.
    pub disk_setup: Option<DiskSetup>,
    /// Mounts, each as the fields of a line of fstab.
    #[schema(max_items = 100)]
    pub mounts: Vec<Vec<String>>,
    /// Commands that run early at every boot.
    #[schema(max_items = 1000)]
    pub boot_commands: Vec<String>,
    /// Commands that run before kubeadm.
    #[schema(max_items = 1000)]
    pub pre_kubeadm_commands: Vec<String>,
    /// Commands that run after kubeadm.
    #[schema(max_items = 1000)]
    pub post_kubeadm_commands: Vec<String>,
    /// Users to add.
    #[schema(max_items = 100)]
    pub users: Vec<User>,
    /// Time servers.
    pub ntp: Option<Ntp>,
    /// The form of the first-boot data.
    #[schema(values("cloud-config", "ignition"), default = "cloud-config")]
    pub format: Option<String>,
    /// How much kubeadm says (its `--v`).
    pub verbosity: Option<i32>,
    /// Settings for the format `ignition`.
    pub ignition: Option<Ignition>,
}

/// A file to write.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
#[schema(rule("!has(self.content) || !has(self.contentFrom)", "only one of content and contentFrom may be set"))]
pub struct File {
    /// Absolute path.
    #[schema(min_length = 1, max_length = 512)]
    pub path: String,
    /// `user:group`; `root:root` if absent.
    #[schema(max_length = 256)]
    pub owner: Option<String>,
    /// Permission bits in octal, such as `0640`.
    #[schema(max_length = 16)]
    pub permissions: Option<String>,
    /// How the content is written down here.
    #[schema(values("base64", "gzip", "gzip+base64"))]
    pub encoding: Option<String>,
    /// Append to what is there.
    pub append: Option<bool>,
    /// What it holds.
    #[schema(max_length = 10_240)]
    pub content: Option<String>,
    /// Where its content comes from.
    pub content_from: Option<ContentFrom>,
    /// Whether the content is a template.
    #[schema(values("Raw", "Template"))]
    pub content_format: Option<String>,
}

/// Where content comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct ContentFrom {
    /// A key of a Secret in the same namespace.
    pub secret: SecretKey,
}

/// A key of a Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    #[schema(min_length = 1, max_length = 253)]
    pub name: String,
    /// Key in its data.
    #[schema(min_length = 1, max_length = 256)]
    pub key: String,
}

/// A user to add.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
#[schema(rule("!has(self.passwd) || !has(self.passwdFrom)", "only one of passwd and passwdFrom may be set"))]
pub struct User {
    /// Login name.
    #[schema(min_length = 1, max_length = 256)]
    pub name: String,
    /// Comment, such as the full name.
    pub gecos: Option<String>,
    /// Additional groups, separated by commas.
    pub groups: Option<String>,
    /// Home directory.
    pub home_dir: Option<String>,
    /// The user is inactive.
    pub inactive: Option<bool>,
    /// Login shell.
    pub shell: Option<String>,
    /// Hashed password.
    pub passwd: Option<String>,
    /// Where the hashed password comes from.
    pub passwd_from: Option<ContentFrom>,
    /// Primary group.
    pub primary_group: Option<String>,
    /// No login by password.
    pub lock_password: Option<bool>,
    /// A line for sudoers.
    pub sudo: Option<String>,
    /// SSH keys that may log in.
    #[serde(default)]
    pub ssh_authorized_keys: Vec<String>,
}

/// Time servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ntp {
    /// Their names or addresses.
    pub servers: Vec<String>,
    /// Time is kept by NTP.
    pub enabled: Option<bool>,
}

/// Partitions and file systems.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiskSetup {
    /// Partition tables.
    pub partitions: Vec<Partition>,
    /// File systems.
    pub filesystems: Vec<Filesystem>,
}

/// The partition table of a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct Partition {
    /// The disk.
    pub device: String,
    /// One partition over the whole disk.
    pub layout: Option<bool>,
    /// Partitions one by one.
    #[serde(default)]
    pub disk_layout: Vec<PartitionSpec>,
    /// Do it although there is a table.
    pub overwrite: Option<bool>,
    /// `mbr` or `gpt`.
    #[schema(values("mbr", "gpt"))]
    pub table_type: Option<String>,
}

/// One partition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionSpec {
    /// Share of the disk in percent.
    #[schema(min = 1, max = 100)]
    pub percentage: i32,
    /// Its type.
    pub partition_type: Option<String>,
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct Filesystem {
    /// The disk.
    pub device: String,
    /// Its type.
    pub filesystem: String,
    /// Its label.
    pub label: Option<String>,
    /// Which partition.
    pub partition: Option<String>,
    /// Do it although there is one.
    pub overwrite: Option<bool>,
    /// A type that may be replaced.
    #[serde(rename = "replaceFS")]
    pub replace_fs: Option<String>,
    /// Further arguments of mkfs.
    #[serde(default)]
    pub extra_opts: Vec<String>,
}

/// Settings for Ignition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ignition {
    /// Container Linux Config that is merged in.
    pub container_linux_config: Option<ContainerLinuxConfig>,
}

/// Container Linux Config.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerLinuxConfig {
    /// The config.
    #[schema(max_length = 32_768)]
    pub additional_config: Option<String>,
    /// Warnings are errors.
    pub strict: Option<bool>,
}

impl KubeadmConfigSpec {
    /// How keys of the cluster are made; RSA-2048 unless `clusterConfiguration.encryptionAlgorithm` says otherwise.
    pub fn algorithm(&self) -> Algorithm {
        let named = self.cluster_configuration.as_ref().and_then(|c| c.encryption_algorithm.as_deref());
        match named {
            Some("RSA-3072") => Algorithm::Rsa3072,
            Some("RSA-4096") => Algorithm::Rsa4096,
            Some("ECDSA-P256") => Algorithm::EcdsaP256,
            Some("ECDSA-P384") => Algorithm::EcdsaP384,
            _ => Algorithm::Rsa2048,
        }
    }

    /// The key pairs of a kubeadm cluster, by label: each is kept as `<cluster>-<label>`.
    pub fn key_pairs(&self) -> Vec<(String, Need)> {
        let days = self.cluster_configuration.as_ref().and_then(|c| c.ca_certificate_validity_period_days);
        let validity_days = days.and_then(|days| u32::try_from(days).ok()).filter(|days| *days > 0).unwrap_or(3650);
        let external_etcd = self
            .cluster_configuration
            .as_ref()
            .and_then(|cluster| cluster.etcd.as_ref())
            .is_some_and(|etcd| etcd.external.is_some());
        [
            ("ca", KeyUse::CertificateAuthority),
            ("etcd", KeyUse::CertificateAuthority),
            ("proxy", KeyUse::CertificateAuthority),
            ("sa", KeyUse::SigningOnly),
        ]
        .into_iter()
        .filter(|(label, _)| !(external_etcd && *label == "etcd"))
        .map(|(label, purpose)| {
            let pair =
                KeyPair { algorithm: self.algorithm(), purpose, common_name: "kubernetes".to_owned(), validity_days };
            (label.to_owned(), Need::KeyPair(pair))
        })
        .collect()
    }
}

/// Without nulls, empty objects and empty lists. An empty list of taints stays: it means *no* taints, where none means
/// kubeadm's own.
#[must_use]
pub fn pruned(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.into_iter()
                .map(|(key, value)| {
                    let value = pruned(value);
                    (key, value)
                })
                .filter(|(key, value)| match value {
                    Value::Null => false,
                    Value::Object(map) => !map.is_empty(),
                    Value::Array(items) => !items.is_empty() || key == "taints",
                    _ => true,
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(pruned).collect()),
        other => other,
    }
}

/// A spec to compare: fields of this version only, defaults filled in, nothing empty, keys in one order. So a default that
/// was added to one of two stored objects makes no difference.
pub fn normal(spec: &Value) -> Result<Value, serde_json::Error> {
    let mut spec: KubeadmConfigSpec = serde_json::from_value(spec.clone())?;
    spec.format.get_or_insert_with(|| "cloud-config".to_owned());
    Ok(pruned(serde_json::to_value(spec)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_default_on_one_side_makes_no_difference() {
        let bare = json!({"files": [{"path": "/a", "content": "x"}], "joinConfiguration": {"nodeRegistration": {"taints": []}}});
        let mut stored = bare.clone();
        stored["format"] = "cloud-config".into();
        stored["users"] = json!([]);
        stored["unknown"] = 1.into();
        assert_eq!(normal(&bare).unwrap(), normal(&stored).unwrap());
        stored["files"][0]["content"] = "y".into();
        assert_ne!(normal(&bare).unwrap(), normal(&stored).unwrap());
        let mut no_taints = bare.clone();
        no_taints["joinConfiguration"] = json!({"nodeRegistration": {}});
        assert_ne!(normal(&bare).unwrap(), normal(&no_taints).unwrap());
    }

    #[test]
    fn the_schema_is_json_and_names_upstreams_fields() {
        let schema: Value = serde_json::from_str(&format!("{{{}}}", KubeadmConfigSpec::BODY)).unwrap();
        for pointer in [
            "/properties/clusterConfiguration/properties/apiServer/properties/certSANs/items/type",
            "/properties/joinConfiguration/properties/nodeRegistration/properties/kubeletExtraArgs/items/required",
            "/properties/initConfiguration/properties/localAPIEndpoint/properties/bindPort",
            "/properties/diskSetup/properties/filesystems/items/properties/replaceFS",
            "/properties/files/items/x-kubernetes-validations",
        ] {
            assert!(schema.pointer(pointer).is_some(), "{pointer}");
        }
    }

    #[test]
    fn key_pairs_follow_the_cluster_configuration() {
        let spec: KubeadmConfigSpec = serde_json::from_value(json!({"clusterConfiguration": {
            "encryptionAlgorithm": "ECDSA-P256", "caCertificateValidityPeriodDays": 100,
            "etcd": {"external": {"endpoints": ["https://e"]}}}}))
        .unwrap();
        let pairs = spec.key_pairs();
        assert_eq!(pairs.iter().map(|(label, _)| label.as_str()).collect::<Vec<_>>(), ["ca", "proxy", "sa"]);
        let Need::KeyPair(ca) = &pairs[0].1 else { panic!() };
        assert_eq!((ca.algorithm, ca.validity_days), (Algorithm::EcdsaP256, 100));
    }
}
