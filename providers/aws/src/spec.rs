//! Parts of the kinds' specs that more than one place reads.

use std::collections::BTreeMap;

use capstan_provider::{Schema, Violation};
use serde::Deserialize;
use serde_json::Value;

/// Tags by key.
pub type Tags = BTreeMap<String, String>;

/// A resource by id or by filters of EC2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(default)]
#[schema(rule("has(self.id) != has(self.filters)", "either id or filters is set"))]
pub struct ResourceRef {
    /// Its id.
    pub id: Option<String>,
    /// Filters of EC2 that it passes.
    #[schema(max_items = 20)]
    pub filters: Vec<Filter>,
}

/// A filter of EC2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(default)]
pub struct Filter {
    /// Its name.
    #[schema(required)]
    pub name: String,
    /// Values of which one fits.
    #[schema(required, max_items = 50)]
    pub values: Vec<String>,
}

/// A rule of a security group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct IngressRule {
    /// What it is for.
    #[schema(required)]
    pub description: String,
    /// `tcp`, `udp`, `icmp`, or a number; `-1` for all.
    #[schema(required, values("-1", "4", "tcp", "udp", "icmp", "58", "50"))]
    pub protocol: String,
    /// The first port.
    #[schema(required, min = -1, max = 65_535)]
    pub from_port: i64,
    /// The last port.
    #[schema(required, min = -1, max = 65_535)]
    pub to_port: i64,
    /// IPv4 ranges that it lets in.
    #[schema(max_items = 50)]
    pub cidr_blocks: Vec<String>,
    /// IPv6 ranges that it lets in.
    #[schema(max_items = 50)]
    pub ipv6_cidr_blocks: Vec<String>,
    /// Security groups that it lets in.
    #[schema(max_items = 50)]
    pub source_security_group_ids: Vec<String>,
    /// Security groups of the cluster that it lets in, by role.
    #[schema(max_items = 6)]
    pub source_security_group_roles: Vec<String>,
    /// The addresses of the NAT gateways are let in.
    #[serde(rename = "natGatewaysIPsSource")]
    pub nat_gateways_ips_source: bool,
}

/// A rule that lets the cluster's machines reach each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase", default)]
pub struct CniRule {
    /// What it is for.
    #[schema(required)]
    pub description: String,
    /// `tcp`, `udp`, `icmp`, or a number; `-1` for all.
    #[schema(required)]
    pub protocol: String,
    /// The first port.
    #[schema(required, min = -1, max = 65_535)]
    pub from_port: i64,
    /// The last port.
    #[schema(required, min = -1, max = 65_535)]
    pub to_port: i64,
}

/// Where images are looked up by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// Template of the name.
    pub format: Option<String>,
    /// Account that owns the image.
    pub org: Option<String>,
    /// The operating system in the name.
    pub base_os: Option<String>,
}

/// What is set although it is not served: the field is named, with what to do.
pub fn refuse(all: &mut Vec<Violation>, path: &str, value: Option<&Value>, why: &str) {
    let empty = match value {
        None | Some(Value::Null | Value::Bool(false)) => true,
        Some(Value::Object(fields)) => fields.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::String(text)) => text.is_empty(),
        Some(_) => false,
    };
    if !empty {
        all.push(Violation::new(path, why));
    }
}

/// Refuses a field that says something by being there, even with nothing in it.
pub fn refuse_any(all: &mut Vec<Violation>, path: &str, value: Option<&Value>, why: &str) {
    if value.is_some_and(|value| !value.is_null()) {
        all.push(Violation::new(path, why));
    }
}
