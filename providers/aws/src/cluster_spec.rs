//! What an AWSCluster is told: its network, its load balancer, its bucket.

use std::collections::BTreeMap;

use capstan_provider::Schema;
use serde::Deserialize;
use serde_json::Value;

use crate::spec::{CniRule, IngressRule};

/// A host and a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// An address or name.
    pub host: String,
    /// A port.
    pub port: u16,
}

/// Whose credential is used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(default)]
pub struct IdentityRef {
    /// Its name.
    #[schema(required, min_length = 1, max_length = 253)]
    pub name: String,
    /// Its kind; an Endpoint is of the cluster's own namespace. AWSClusterControllerIdentity is accepted with the name `default`, which
    /// CAPA writes, and means nothing.
    #[schema(
        required,
        values("AWSClusterControllerIdentity", "AWSClusterRoleIdentity", "AWSClusterStaticIdentity", "Endpoint")
    )]
    pub kind: String,
}

/// A bucket.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Bucket {
    /// Its name.
    #[schema(required, min_length = 3, max_length = 63, pattern = "^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    pub name: String,
    /// The instance profile of control-plane machines; it has to be allowed to read the bucket.
    #[serde(rename = "controlPlaneIAMInstanceProfile")]
    pub control_plane_iam_instance_profile: Option<String>,
    /// The instance profiles of other machines; they have to be allowed to read the bucket.
    #[serde(rename = "nodesIAMInstanceProfiles")]
    #[schema(max_items = 50)]
    pub nodes_iam_instance_profiles: Vec<String>,
    /// How long signed addresses last. Not served: machines read with their instance profile.
    #[serde(rename = "presignedURLDuration")]
    pub presigned_url_duration: Option<Value>,
    /// A refused deletion is no reason to wait. Not served: what is not deleted is told.
    pub best_effort_delete_objects: Option<Value>,
}

/// The network of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSpec {
    /// The VPC.
    pub vpc: VpcSpec,
    /// Its subnets: to be made, or those of a VPC of the user's. Public and private ones in some zones if there are none.
    #[schema(map_key = "id", max_items = 64)]
    pub subnets: Vec<SubnetSpec>,
    /// What the network of pods needs.
    pub cni: Option<Cni>,
    /// Security groups of the user's, by role.
    pub security_group_overrides: BTreeMap<String, String>,
    /// Rules of control-plane machines beside the usual ones.
    #[schema(max_items = 100)]
    pub additional_control_plane_ingress_rules: Vec<IngressRule>,
    /// Rules of all machines beside the usual ones.
    #[schema(max_items = 100)]
    pub additional_node_ingress_rules: Vec<IngressRule>,
    /// Ranges that node ports are open to: everywhere if there are none.
    #[schema(max_items = 50)]
    pub node_port_ingress_rule_cidr_blocks: Vec<String>,
}

/// What the network of pods needs.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Cni {
    /// What machines have to let in from each other; what Calico needs if `cni` is absent.
    #[schema(max_items = 50)]
    pub cni_ingress_rules: Vec<CniRule>,
}

/// A VPC.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
#[schema(rule(
    "!has(oldSelf.id) || oldSelf.id == '' || has(self.id) && self.id == oldSelf.id",
    "id is immutable once it is set"
))]
pub struct VpcSpec {
    /// A VPC that is there. One that does not carry the cluster's tag is the user's and is not changed.
    #[schema(max_length = 64)]
    pub id: Option<String>,
    /// The addresses of one that is made: 10.0.0.0/16 if absent.
    pub cidr_block: Option<String>,
    /// Tags of one that is made.
    pub tags: BTreeMap<String, String>,
    /// In how many zones subnets are made: 3 if absent.
    #[schema(min = 1, max = 16)]
    pub availability_zone_usage_limit: Option<u64>,
    /// Which zones: the first by name, or by chance (the same ones for the same cluster).
    #[schema(values("Ordered", "Random"))]
    pub availability_zone_selection: Option<String>,
    /// Exactly these zones.
    #[schema(max_items = 16)]
    pub availability_zones: Vec<String>,
    /// The internet gateway of a VPC of the user's; not needed.
    pub internet_gateway_id: Option<String>,
    /// The carrier gateway. Not served.
    pub carrier_gateway_id: Option<Value>,
    /// Secondary ranges. Not served.
    pub secondary_cidr_blocks: Option<Value>,
    /// A pool of addresses of IPAM. Not served.
    pub ipam_pool: Option<Value>,
    /// IPv6. Not served.
    pub ipv6: Option<Value>,
    /// Empty the VPC's default group. Not served.
    #[serde(rename = "emptyRoutesDefaultVPCSecurityGroup")]
    pub empty_routes_default_vpc_security_group: Option<Value>,
    /// What machines are called. Not served: set it on machines (`privateDnsName`).
    pub private_dns_hostname_type_on_launch: Option<Value>,
    /// A pool of elastic addresses. Not served.
    pub elastic_ip_pool: Option<Value>,
    /// How subnets are cut. Not served: list the subnets.
    pub subnet_schema: Option<String>,
}

impl VpcSpec {
    /// The id of one that is there.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref().filter(|id| !id.is_empty())
    }
}

/// A subnet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct SubnetSpec {
    /// The id of a subnet that is there (`subnet-…`), or a name for one that is to be made.
    #[schema(required, min_length = 1, max_length = 100)]
    pub id: String,
    /// The id of one that CAPA made.
    #[serde(rename = "resourceID")]
    pub resource_id: Option<String>,
    /// Its addresses.
    pub cidr_block: Option<String>,
    /// Its zone.
    pub availability_zone: Option<String>,
    /// The internet reaches it.
    pub is_public: bool,
    /// Its route table; written by CAPA.
    pub route_table_id: Option<String>,
    /// Its NAT gateway; written by CAPA.
    pub nat_gateway_id: Option<String>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// IPv6. Not served.
    pub is_ipv6: Option<Value>,
    /// IPv6. Not served.
    pub ipv6_cidr_block: Option<Value>,
    /// A local zone. Not served.
    pub zone_type: Option<String>,
    /// A local zone's parent. Not served.
    pub parent_zone_name: Option<Value>,
}

/// The load balancer before the API.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
#[schema(rule(
    "!has(oldSelf.name) || has(self.name) && self.name == oldSelf.name",
    "name is immutable once it is set"
))]
#[schema(rule("!has(oldSelf.scheme) || has(self.scheme) && self.scheme == oldSelf.scheme", "scheme is immutable"))]
#[schema(rule(
    "!has(oldSelf.loadBalancerType) || has(self.loadBalancerType) && self.loadBalancerType == oldSelf.loadBalancerType",
    "loadBalancerType is immutable"
))]
#[schema(rule(
    "!has(oldSelf.healthCheckProtocol) || has(self.healthCheckProtocol) && self.healthCheckProtocol == oldSelf.healthCheckProtocol",
    "healthCheckProtocol is immutable once it is set"
))]
pub struct LoadBalancer {
    /// Its name: chosen if absent. One that is there and does not carry the cluster's tag is the user's.
    #[schema(max_length = 32, pattern = "^[A-Za-z0-9]([A-Za-z0-9]{0,31}|[-A-Za-z0-9]{0,30}[A-Za-z0-9])$")]
    pub name: Option<String>,
    /// Who reaches it.
    #[schema(default = "internet-facing", values("internet-facing", "internal"))]
    pub scheme: Option<String>,
    /// `nlb`, `classic`, or `disabled` where the endpoint is the user's. `alb` and `elb` are not served.
    #[schema(default = "classic", values("classic", "elb", "alb", "nlb", "disabled"))]
    pub load_balancer_type: Option<String>,
    /// Connections go to machines of all zones.
    pub cross_zone_load_balancing: bool,
    /// The subnets that it is in: by id.
    #[schema(max_items = 32)]
    pub subnets: Vec<String>,
    /// How machines are asked whether they are well: TCP if absent (SSL for a classic one).
    #[schema(values("TCP", "SSL", "HTTP", "HTTPS", "TLS", "UDP"))]
    pub health_check_protocol: Option<String>,
    /// How often.
    pub health_check: HealthCheck,
    /// Its security groups beside its own.
    #[schema(max_items = 5)]
    pub additional_security_groups: Vec<String>,
    /// Further ports that lead to the control plane.
    #[schema(map_key = "port", max_items = 16)]
    pub additional_listeners: Vec<Listener>,
    /// Who may use the API: everybody if there are none.
    #[schema(max_items = 100)]
    pub ingress_rules: Vec<IngressRule>,
    /// Machines see the addresses of clients.
    #[serde(rename = "preserveClientIP")]
    pub preserve_client_ip: bool,
    /// Nothing is written into hosts files here, whatever this says.
    pub disable_hosts_rewrite: bool,
    /// Addresses of the load balancer's network. Not served beside `ipv4`.
    #[serde(rename = "targetGroupIPType")]
    #[schema(values("ipv4", "ipv6"))]
    pub target_group_ip_type: Option<String>,
    /// Its name is not resolved here before it is told, whatever this says.
    #[schema(values("None", "Enabled"))]
    pub dns_resolution_check: Option<String>,
}

impl LoadBalancer {
    /// Only the network reaches it.
    pub fn is_internal(&self) -> bool {
        self.scheme.as_deref() == Some("internal")
    }
}

/// How often machines are asked whether they are well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthCheck {
    /// Seconds between two questions.
    #[schema(min = 5, max = 300)]
    pub interval_seconds: Option<u64>,
    /// Seconds after which there is no answer.
    #[schema(min = 2, max = 120)]
    pub timeout_seconds: Option<u64>,
    /// Answers until it is well.
    #[schema(min = 2, max = 10)]
    pub threshold_count: Option<u64>,
    /// Answers that fail to come until it is not.
    #[schema(min = 2, max = 10)]
    pub unhealthy_threshold_count: Option<u64>,
}

/// A further port that leads to the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct Listener {
    /// The port.
    #[schema(required, min = 1, max = 65_535)]
    pub port: i64,
    /// `TCP`.
    #[schema(default = "TCP", values("TCP"))]
    pub protocol: Option<String>,
    /// How machines are asked.
    pub health_check: PortCheck,
    /// Addresses of the load balancer's network. Not served beside `ipv4`.
    #[serde(rename = "targetGroupIPType")]
    #[schema(values("ipv4", "ipv6"))]
    pub target_group_ip_type: Option<String>,
}

impl From<HealthCheck> for PortCheck {
    fn from(check: HealthCheck) -> Self {
        Self {
            interval_seconds: check.interval_seconds,
            timeout_seconds: check.timeout_seconds,
            threshold_count: check.threshold_count,
            unhealthy_threshold_count: check.unhealthy_threshold_count,
            ..Self::default()
        }
    }
}

/// How machines are asked whether they are well, for a further port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct PortCheck {
    /// TCP if absent.
    #[schema(values("TCP", "HTTP", "HTTPS"))]
    pub protocol: Option<String>,
    /// The listener's port if absent.
    #[schema(pattern = "^[0-9]{1,5}$")]
    pub port: Option<String>,
    /// What is asked for by HTTP and HTTPS: `/` if absent.
    #[schema(max_length = 1024)]
    pub path: Option<String>,
    /// Seconds between two questions.
    #[schema(min = 5, max = 300)]
    pub interval_seconds: Option<u64>,
    /// Seconds after which there is no answer.
    #[schema(min = 2, max = 120)]
    pub timeout_seconds: Option<u64>,
    /// Answers until it is well.
    #[schema(min = 2, max = 10)]
    pub threshold_count: Option<u64>,
    /// Answers that fail to come until it is not.
    #[schema(min = 2, max = 10)]
    pub unhealthy_threshold_count: Option<u64>,
}
