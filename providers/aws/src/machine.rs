//! A machine is one EC2 instance.

use std::collections::BTreeMap;

use capstan_provider::{
    Address, AddressKind, Condition, Context, Kind, MachineFacts, MachineKind, Part, Phase, Result, Schema, Violation,
    infrastructure::PartsOf, json,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    bootstrap::{self, Form},
    instance::{INSTANCE, Instance, InstanceState, frozen},
    registration,
    spec::{Lookup, ResourceRef, refuse},
    tags, v1beta1,
};

/// A machine in AWS.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase", default)]
#[kind(name = "AWSMachine", version = "v1beta2", short = "awsm", status = AWSMachineStatus, served_too = v1beta1::Machine,
    column("State", "string", ".status.instanceState", "What the instance does"),
    column("Type", "string", ".spec.instanceType"),
    wide_column("Instance", "string", ".status.instanceID"))]
#[schema(rule(
    "!has(self.capacityReservationId) || !has(self.spotMarketOptions) && (!has(self.marketType) || self.marketType != 'Spot')",
    "capacityReservationId is not for spot instances"
))]
#[schema(rule("self.instanceType == oldSelf.instanceType", "instanceType is immutable"))]
#[schema(rule("has(self.ami) == has(oldSelf.ami) && (!has(self.ami) || self.ami == oldSelf.ami)", "ami is immutable"))]
#[schema(rule(
    "has(self.iamInstanceProfile) == has(oldSelf.iamInstanceProfile) && (!has(self.iamInstanceProfile) || self.iamInstanceProfile == oldSelf.iamInstanceProfile)",
    "iamInstanceProfile is immutable"
))]
#[schema(rule(
    "has(self.subnet) == has(oldSelf.subnet) && (!has(self.subnet) || self.subnet == oldSelf.subnet)",
    "subnet is immutable"
))]
#[schema(rule(
    "has(self.rootVolume) == has(oldSelf.rootVolume) && (!has(self.rootVolume) || self.rootVolume == oldSelf.rootVolume)",
    "rootVolume is immutable"
))]
#[schema(rule(
    "has(self.nonRootVolumes) == has(oldSelf.nonRootVolumes) && (!has(self.nonRootVolumes) || self.nonRootVolumes == oldSelf.nonRootVolumes)",
    "nonRootVolumes is immutable"
))]
#[schema(rule(
    "has(self.spotMarketOptions) == has(oldSelf.spotMarketOptions) && (!has(self.spotMarketOptions) || self.spotMarketOptions == oldSelf.spotMarketOptions)",
    "spotMarketOptions is immutable"
))]
#[schema(rule(
    "has(self.publicIP) == has(oldSelf.publicIP) && (!has(self.publicIP) || self.publicIP == oldSelf.publicIP)",
    "publicIP is immutable"
))]
#[schema(rule(
    "has(self.sshKeyName) == has(oldSelf.sshKeyName) && (!has(self.sshKeyName) || self.sshKeyName == oldSelf.sshKeyName)",
    "sshKeyName is immutable"
))]
pub struct AWSMachine {
    /// `aws:///`, its zone and the id of its instance.
    #[serde(rename = "providerID")]
    #[schema(hidden)]
    pub provider_id: Option<String>,
    /// The id of its instance, where CAPA made it.
    #[serde(rename = "instanceID")]
    pub instance_id: Option<String>,
    /// Its type, such as `m6i.large`.
    #[schema(required, min_length = 2, max_length = 64)]
    pub instance_type: String,
    /// Its image; looked up by name if absent.
    pub ami: Ami,
    /// Template of the name of the image: `{{.BaseOS}}` and `{{.K8sVersion}}` are filled in.
    pub image_lookup_format: Option<String>,
    /// Account that owns the image.
    pub image_lookup_org: Option<String>,
    /// Operating system in the name of the image.
    #[serde(rename = "imageLookupBaseOS")]
    pub image_lookup_base_os: Option<String>,
    /// Tags beside the cluster's.
    #[schema(max_properties = 40)]
    pub additional_tags: BTreeMap<String, String>,
    /// The instance profile that it has the rights of.
    pub iam_instance_profile: Option<String>,
    /// It has a public address; the subnet decides if absent.
    #[serde(rename = "publicIP")]
    pub public_ip: Option<bool>,
    /// Security groups beside the cluster's.
    #[schema(max_items = 16)]
    pub additional_security_groups: Vec<ResourceRef>,
    /// Security groups in place of the cluster's, by role.
    pub security_group_overrides: BTreeMap<String, String>,
    /// Its subnet; one of the cluster's if absent.
    pub subnet: Option<ResourceRef>,
    /// Its key pair: the cluster's if absent, none if empty.
    pub ssh_key_name: Option<String>,
    /// The volume that it boots from.
    pub root_volume: Option<Volume>,
    /// Further volumes.
    #[schema(max_items = 25)]
    pub non_root_volumes: Vec<Volume>,
    /// How it is told about itself.
    pub instance_metadata_options: Option<MetadataOptions>,
    /// It may be taken away at any time, and costs less.
    pub spot_market_options: Option<SpotOptions>,
    /// How it is paid.
    #[schema(values("OnDemand", "Spot", "CapacityBlock"))]
    pub market_type: Option<String>,
    /// Capacity that was reserved for it.
    pub capacity_reservation_id: Option<String>,
    /// Whether it may use capacity that was reserved.
    #[schema(values("", "None", "CapacityReservationsOnly", "Open"))]
    pub capacity_reservation_preference: Option<String>,
    /// The placement group that it is in.
    pub placement_group_name: Option<String>,
    /// The partition of the placement group.
    #[schema(min = 0, max = 7)]
    pub placement_group_partition: Option<u64>,
    /// Whose hardware it runs on.
    #[schema(values("default", "dedicated", "host"))]
    pub tenancy: Option<String>,
    /// What it is called.
    pub private_dns_name: Option<PrivateDnsName>,
    /// Its user data is not compressed.
    pub uncompressed_user_data: Option<bool>,
    /// How cloud-init gets its data.
    pub cloud_init: CloudInit,
    /// How Ignition gets its data.
    pub ignition: Option<Ignition>,
    /// `interface` or `efa`.
    #[schema(values("interface", "efa"))]
    pub network_interface_type: Option<String>,
    /// A first IPv6 address. Not served.
    #[serde(rename = "assignPrimaryIPv6")]
    #[schema(values("enabled", "disabled"))]
    pub assign_primary_ipv6: Option<String>,
    /// Network interfaces that are there. Not served.
    pub network_interfaces: Option<Value>,
    /// Options of the processor. Not served.
    pub cpu_options: Option<Value>,
    /// A pool of elastic addresses. Not served.
    pub elastic_ip_pool: Option<Value>,
    /// A dedicated host. Not served.
    #[serde(rename = "hostID")]
    pub host_id: Option<Value>,
    /// A dedicated host. Not served.
    pub host_affinity: Option<Value>,
    /// A dedicated host. Not served.
    pub dynamic_host_allocation: Option<Value>,
}

/// An image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ami {
    /// Its id.
    pub id: Option<String>,
    /// An image of EKS. Not served.
    pub eks_lookup_type: Option<String>,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    /// Its device; the image says it for the volume that is booted from.
    pub device_name: Option<String>,
    /// Its size in GiB.
    #[schema(required, min = 8, max = 65_536)]
    pub size: u64,
    /// Its type, such as gp3.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Its operations in a second.
    #[schema(min = 0, max = 256_000)]
    pub iops: Option<u64>,
    /// Its throughput in MiB in a second.
    #[schema(min = 0, max = 2000)]
    pub throughput: Option<u64>,
    /// It is encrypted.
    pub encrypted: Option<bool>,
    /// The key that encrypts it.
    pub encryption_key: Option<String>,
}

/// How a machine is told about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct MetadataOptions {
    /// Whether it can ask at all.
    #[schema(default = "enabled", values("enabled", "disabled"))]
    pub http_endpoint: Option<String>,
    /// How far an answer goes.
    #[schema(default = 1, min = 1, max = 64)]
    pub http_put_response_hop_limit: Option<u64>,
    /// Whether a token is needed. `required` is safer.
    #[schema(default = "optional", values("optional", "required"))]
    pub http_tokens: Option<String>,
    /// Whether it can ask by IPv6.
    #[schema(values("enabled", "disabled"))]
    pub http_protocol_ipv6: Option<String>,
    /// Whether it is told its tags.
    #[schema(default = "disabled", values("enabled", "disabled"))]
    pub instance_metadata_tags: Option<String>,
}

/// A machine that may be taken away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpotOptions {
    /// The most that is paid for an hour; the usual price if absent.
    #[schema(pattern = "^([0-9]+(\\.[0-9]+)?)?$", max_length = 32)]
    pub max_price: Option<String>,
}

/// What a machine is called.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrivateDnsName {
    /// By its address or by its id.
    #[schema(values("ip-name", "resource-name"))]
    pub hostname_type: Option<String>,
    /// Its id resolves to its IPv4 address.
    #[serde(rename = "enableResourceNameDnsARecord")]
    pub enable_resource_name_dns_a_record: Option<bool>,
    /// Its id resolves to its IPv6 address.
    #[serde(rename = "enableResourceNameDnsAAAARecord")]
    pub enable_resource_name_dns_aaaa_record: Option<bool>,
}

/// How cloud-init gets its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct CloudInit {
    /// Only user data, however large the data is.
    pub insecure_skip_secrets_manager: bool,
    /// How many secrets hold it; written by CAPA.
    #[schema(min = 0, max = 1000)]
    pub secret_count: Option<u64>,
    /// How the names of the secrets begin; chosen if absent.
    #[schema(max_length = 200)]
    pub secret_prefix: Option<String>,
    /// Where it is kept, however small it is. If absent, in user data where it fits, else in Secrets Manager.
    #[schema(values("secrets-manager", "ssm-parameter-store"))]
    pub secure_secrets_backend: Option<String>,
}

/// How Ignition gets its data.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ignition {
    /// The version of its configuration.
    #[schema(default = "2.3", values("2.3", "3.0", "3.1", "3.2", "3.3", "3.4"))]
    pub version: Option<String>,
    /// In the cluster's bucket where there is one, or in user data.
    #[schema(values("ClusterObjectStore", "UnencryptedUserData"))]
    pub storage_type: Option<String>,
    /// A proxy. Not served.
    pub proxy: Option<Value>,
    /// Certificates. Not served.
    pub tls: Option<Value>,
}

/// What is known of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct AWSMachineStatus {
    /// What the instance does.
    pub instance_state: Option<String>,
    /// Its id.
    #[serde(rename = "instanceID", skip_serializing_if = "Option::is_none")]
    pub instance_id: Option<String>,
}

impl AWSMachine {
    /// The id of an instance that the spec knows.
    pub fn known_instance(&self) -> Option<String> {
        let of_provider = self.provider_id.as_deref().and_then(|id| id.rsplit('/').next());
        let id = of_provider.or(self.instance_id.as_deref()).filter(|id| id.starts_with("i-"));
        id.map(str::to_owned)
    }

    /// It is a spot instance.
    pub fn is_spot(&self) -> bool {
        self.spot_market_options.is_some() || self.market_type.as_deref() == Some("Spot")
    }

    /// Where its image is looked up.
    pub fn lookup(&self) -> Lookup {
        Lookup {
            format: self.image_lookup_format.clone(),
            org: self.image_lookup_org.clone(),
            base_os: self.image_lookup_base_os.clone(),
        }
    }
}

/// Nothing is to be brought up any more.
pub fn going(ctx: &Context<AWSMachine>) -> bool {
    ctx.machine().is_none_or(|machine| machine.deleting())
}

/// The node has joined: the first-boot data has done its work.
pub fn bound(ctx: &Context<AWSMachine>) -> bool {
    ctx.machine().is_some_and(|machine| machine.node_bound())
}

/// The instance as it was seen last.
pub fn seen(ctx: &Context<AWSMachine>) -> Result<Option<InstanceState>> {
    Ok(ctx.known(INSTANCE).map(|known| known.state()).transpose()?.flatten())
}

impl PartsOf for AWSMachine {
    /// First-boot data that does not fit comes before the instance, and goes when the node has joined. A control-plane machine is
    /// registered with the load balancer while it runs, until its Machine is deleted.
    fn parts(ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        let mut parts: Vec<Box<dyn Part<Self>>> = Vec::new();
        if !going(ctx) && !bound(ctx) {
            let form = match frozen(ctx)? {
                Some(frozen) => Some(frozen.form),
                // What is wrong with it is said when the instance is asked for.
                None if ctx.spec.known_instance().is_some() => None,
                None => bootstrap::form(ctx).ok(),
            };
            parts.extend(bootstrap::parts(form.as_ref().unwrap_or(&Form::Direct { gzip: false })));
        }
        let after = parts.iter().map(|part| part.name()).collect();
        parts.push(Box::new(Instance { after }));
        let stands = seen(ctx)?.is_none_or(|seen| matches!(seen.state.as_str(), "pending" | "running"));
        let control_plane = ctx.machine().is_some_and(|machine| machine.control_plane());
        if control_plane && stands && !going(ctx) {
            parts.extend(registration::parts(ctx)?);
        }
        Ok(parts)
    }

    fn part(ctx: &Context<Self>, name: &str) -> Result<Option<Box<dyn Part<Self>>>> {
        let listed = Self::parts(ctx)?.into_iter().find(|part| part.name() == name);
        Ok(listed.or_else(|| bootstrap::by_name(ctx, name)).or_else(|| registration::by_name(name)))
    }

    fn validate(old: Option<&Self>, new: &Self) -> Vec<Violation> {
        let mut all = Vec::new();
        let mut wrong = |path: &str, message: &str| all.push(Violation::new(path, message));
        if new.provider_id.as_deref().is_some_and(|id| !id.starts_with("aws:///") || new.known_instance().is_none()) {
            wrong("/spec/providerID", "is no aws:///, a zone and the id of an instance");
        }
        // As the rules of the schema say, for those too who write another version.
        if let Some(old) = old {
            for (field, changed) in [
                ("instanceType", old.instance_type != new.instance_type),
                ("ami", old.ami != new.ami),
                ("iamInstanceProfile", old.iam_instance_profile != new.iam_instance_profile),
                ("subnet", old.subnet != new.subnet),
                ("rootVolume", old.root_volume != new.root_volume),
                ("nonRootVolumes", old.non_root_volumes != new.non_root_volumes),
                ("spotMarketOptions", old.spot_market_options != new.spot_market_options),
                ("publicIP", old.public_ip != new.public_ip),
                ("sshKeyName", old.ssh_key_name != new.ssh_key_name),
            ] {
                if changed {
                    wrong(&format!("/spec/{field}"), "is immutable");
                }
            }
        }
        if let Some(message) = tags::wrong(&new.additional_tags) {
            wrong("/spec/additionalTags", &message);
        }
        if new.ami.eks_lookup_type.is_some() {
            wrong("/spec/ami/eksLookupType", "images of EKS are not looked up: set ami.id");
        }
        let reference = |given: &ResourceRef| given.id.is_some() != given.filters.is_empty();
        if new.subnet.as_ref().is_some_and(reference) {
            wrong("/spec/subnet", "set either id or filters");
        }
        for (index, group) in new.additional_security_groups.iter().enumerate() {
            if reference(group) {
                wrong(&format!("/spec/additionalSecurityGroups/{index}"), "set either id or filters");
            }
        }
        for (index, volume) in new.non_root_volumes.iter().enumerate() {
            if volume.device_name.as_deref().unwrap_or_default().is_empty() {
                wrong(&format!("/spec/nonRootVolumes/{index}/deviceName"), "a further volume needs its device");
            }
        }
        let volumes = new.root_volume.iter().map(|volume| ("/spec/rootVolume".to_owned(), volume));
        let further = new.non_root_volumes.iter().enumerate();
        for (at, volume) in volumes.chain(further.map(|(i, volume)| (format!("/spec/nonRootVolumes/{i}"), volume))) {
            let kind = volume.kind.as_deref().unwrap_or_default();
            if matches!(kind, "io1" | "io2") && volume.iops.unwrap_or(0) == 0 {
                wrong(&format!("{at}/iops"), "volumes of this type need their operations in a second");
            }
            if volume.throughput.unwrap_or(0) > 0 && kind != "gp3" {
                wrong(&format!("{at}/throughput"), "only volumes of type gp3 have a throughput");
            }
        }
        if new.market_type.as_deref() == Some("CapacityBlock") && new.capacity_reservation_id.is_none() {
            wrong("/spec/capacityReservationId", "a capacity block is named by its reservation");
        }
        if new.placement_group_partition.unwrap_or(0) > 0 && new.placement_group_name.is_none() {
            wrong("/spec/placementGroupName", "a partition is one of a placement group");
        }
        if new.assign_primary_ipv6.as_deref() == Some("enabled") {
            wrong("/spec/assignPrimaryIPv6", "IPv6 is not served");
        }
        for (field, value, why) in [
            ("networkInterfaces", &new.network_interfaces, "interfaces that are there are not used: set subnet"),
            ("cpuOptions", &new.cpu_options, "options of the processor are not set"),
            ("elasticIpPool", &new.elastic_ip_pool, "elastic addresses are not given to machines: set publicIP"),
            ("hostID", &new.host_id, "a dedicated host is not chosen: tenancy host leaves it to AWS"),
            ("hostAffinity", &new.host_affinity, "a dedicated host is not chosen: tenancy host leaves it to AWS"),
            ("dynamicHostAllocation", &new.dynamic_host_allocation, "dedicated hosts are not allocated"),
        ] {
            refuse(&mut all, &format!("/spec/{field}"), value.as_ref(), why);
        }
        if let Some(ignition) = &new.ignition {
            refuse(
                &mut all,
                "/spec/ignition/proxy",
                ignition.proxy.as_ref(),
                "write it into the bootstrap configuration",
            );
            refuse(&mut all, "/spec/ignition/tls", ignition.tls.as_ref(), "write it into the bootstrap configuration");
        }
        all
    }
}

impl MachineKind for AWSMachine {
    fn report(ctx: &Context<Self>) -> Result<MachineFacts> {
        let known = ctx.known(INSTANCE).unwrap_or_default();
        let Some(instance) = seen(ctx)? else { return without_instance(ctx, known.confirmed) };
        let mut addresses = Vec::new();
        for (kind, value) in [
            (AddressKind::Hostname, &instance.private_dns),
            (AddressKind::InternalDns, &instance.private_dns),
            (AddressKind::InternalIp, &instance.private_ip),
            (AddressKind::ExternalDns, &instance.public_dns),
            (AddressKind::ExternalIp, &instance.public_ip),
        ] {
            if !value.is_empty() {
                addresses.push(Address { kind, value: value.clone() });
            }
        }
        let no = |reason: &str, message: String| Condition::new("InstanceReady", Some(false), reason, message);
        let (phase, ready) = match instance.state.as_str() {
            "running" => (Phase::Running, Condition::new("InstanceReady", Some(true), "InstanceReady", "")),
            "pending" => (Phase::Pending, no("InstanceNotReady", format!("{} is being started", instance.id))),
            "stopping" | "stopped" => (
                Phase::Stopped,
                no(
                    "InstanceStopped",
                    format!("{} is {}: start it, or delete the Machine", instance.id, instance.state),
                ),
            ),
            state => (Phase::Failed, no("InstanceTerminated", format!("{} is {state}", instance.id))),
        };
        let mut conditions = vec![ready];
        conditions.extend(registration::condition(ctx)?);
        let status = AWSMachineStatus { instance_state: Some(instance.state), instance_id: Some(instance.id.clone()) };
        Ok(MachineFacts {
            phase,
            provider_id: Some(format!("aws:///{}/{}", instance.zone, instance.id)),
            addresses,
            failure_domain: Some(instance.zone),
            node_name: Some(instance.private_dns).filter(|name| !name.is_empty()),
            interruptible: ctx.spec.is_spot() || instance.spot,
            conditions,
            status: json::text(&status)?,
        })
    }
}

/// Before there is an instance, or after it has vanished.
fn without_instance(ctx: &Context<AWSMachine>, vanished: bool) -> Result<MachineFacts> {
    let (phase, state, condition) = if vanished {
        let id = ctx.known(INSTANCE).and_then(|known| known.id).unwrap_or_default();
        let message = format!("{id} was there and is terminated: delete the Machine");
        (Phase::Failed, Some("terminated".to_owned()), ("InstanceTerminated", message))
    } else {
        (Phase::Pending, None, ("InstanceProvisionStarted", "the instance has not been launched yet".to_owned()))
    };
    let status =
        AWSMachineStatus { instance_state: state, instance_id: ctx.known(INSTANCE).and_then(|known| known.id) };
    Ok(MachineFacts {
        phase,
        conditions: vec![Condition::new("InstanceReady", Some(false), condition.0, condition.1)],
        status: json::text(&status)?,
        ..MachineFacts::default()
    })
}
