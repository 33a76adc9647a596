//! Rules that need more than one field, or the object as it was.

use std::net::IpAddr;

use serde_json::Value;

use super::FieldError;
use crate::Object;
use crate::capstan::{EndpointSpec, ProviderModuleSpec};
use crate::cluster::ClusterSpec;
use crate::ipam::{ADDRESS, CLAIM, GLOBAL_POOL, InClusterIpPoolSpec, IpAddressSpec, POOL, Pool};
use crate::machine::{Bootstrap, MachineSpec};
use crate::machine_deployment::MachineDeploymentSpec;
use crate::machine_set::MachineSetSpec;
use crate::meta::{IntOrString, LabelSelector, MachineNaming, TemplateMeta};
use crate::well_known::CLUSTER_GROUP;

/// Collects what is wrong.
#[derive(Default)]
pub(super) struct Checks(Vec<FieldError>);

impl Checks {
    fn fail(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldError::new(path, message));
    }

    pub(super) fn finish(self) -> Result<(), Vec<FieldError>> {
        if self.0.is_empty() { Ok(()) } else { Err(self.0) }
    }
}

pub(super) fn check(new: &Object, old: Option<&Object>, checks: &mut Checks) {
    match (new.group() == CLUSTER_GROUP, new.kind()) {
        (true, "Cluster") => {
            if let Some(spec) = read(new, checks) {
                cluster(new, &spec, old, checks);
            }
        }
        (true, "Machine") => {
            if let Some(spec) = read::<MachineSpec>(new, checks) {
                bootstrap(&spec.bootstrap, "spec", checks);
                version(spec.version.as_deref(), "spec.version", checks);
                same_cluster(new, old, checks);
            }
        }
        (true, "MachineSet") => {
            if let Some(spec) = read::<MachineSetSpec>(new, checks) {
                template(&spec.template.metadata, &spec.template.spec, &spec.selector, &spec.cluster_name, checks);
                naming(spec.machine_naming.as_ref(), checks);
                same_cluster(new, old, checks);
            }
        }
        (true, "MachineDeployment") => {
            if let Some(spec) = read::<MachineDeploymentSpec>(new, checks) {
                template(&spec.template.metadata, &spec.template.spec, &spec.selector, &spec.cluster_name, checks);
                naming(spec.machine_naming.as_ref(), checks);
                rollout(&spec, checks);
                same_cluster(new, old, checks);
            }
        }
        (false, "Endpoint") => {
            if let Some(spec) = read::<EndpointSpec>(new, checks) {
                let says = [spec.url.is_some(), spec.unix_socket.is_some()];
                if says == [true, true] {
                    checks.fail("spec", "url and unixSocket exclude each other");
                }
                // Where a public cloud is, its provider knows.
                if says == [false, false] && spec.credential.is_none() && spec.ca_bundle.is_none() {
                    checks.fail("spec", "one of url, unixSocket, credential and caBundle is needed");
                }
            }
        }
        (false, "ProviderModule") => {
            if let Some(spec) = read::<ProviderModuleSpec>(new, checks) {
                for (name, destination) in &spec.endpoints {
                    if destination.url.is_some() == destination.unix_socket.is_some() {
                        let path = format!("spec.endpoints.{name}");
                        checks.fail(path, "exactly one of url and unixSocket is needed");
                    }
                }
            }
        }
        (false, POOL | GLOBAL_POOL) => {
            if let Some(spec) = read::<InClusterIpPoolSpec>(new, checks)
                && let Err(errors) = Pool::read(&spec)
            {
                checks.0.extend(errors);
            }
        }
        (false, ADDRESS) => {
            if let Some(spec) = read::<IpAddressSpec>(new, checks) {
                address(&spec, checks);
                same_spec(new, old, checks);
            }
        }
        (false, CLAIM) => same_spec(new, old, checks),
        _ => {}
    }
}

fn same_spec(new: &Object, old: Option<&Object>, checks: &mut Checks) {
    if old.is_some_and(|old| old.at("/spec") != new.at("/spec")) {
        checks.fail("spec", "cannot be changed");
    }
}

fn address(spec: &IpAddressSpec, checks: &mut Checks) {
    let Ok(address) = spec.address.parse::<IpAddr>() else {
        return checks.fail("spec.address", format!("{:?} is no IP address", spec.address));
    };
    if !address.is_ipv6() && spec.prefix.is_some_and(|prefix| prefix > 32) {
        checks.fail("spec.prefix", "is 32 at most for an IPv4 address");
    }
    if let Some(gateway) = spec.gateway.as_deref().filter(|gateway| !gateway.is_empty()) {
        match gateway.parse::<IpAddr>() {
            Ok(gateway) if gateway.is_ipv6() == address.is_ipv6() => {}
            Ok(_) => checks.fail("spec.gateway", "is of another family than the address"),
            Err(_) => checks.fail("spec.gateway", format!("{gateway:?} is no IP address")),
        }
    }
}

/// The spec as its type. The schema's own validation says the same more exactly where there is one.
fn read<T: serde::de::DeserializeOwned>(object: &Object, checks: &mut Checks) -> Option<T> {
    match object.at("/spec") {
        None | Some(Value::Null) => {
            checks.fail("spec", "is needed");
            None
        }
        Some(spec) => match T::deserialize(spec) {
            Ok(spec) => Some(spec),
            Err(error) => {
                checks.fail("spec", error.to_string());
                None
            }
        },
    }
}

fn cluster(new: &Object, spec: &ClusterSpec, old: Option<&Object>, checks: &mut Checks) {
    if old.is_none() && !is_label_value(new.name()) {
        checks.fail(
            "metadata.name",
            "is used as a label: at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends",
        );
    }
    if spec.topology.is_some() {
        checks.fail(
            "spec.topology",
            "managed topologies are not supported yet: remove topology and write the objects of the cluster out",
        );
    } else if spec.control_plane_ref.is_none() && spec.infrastructure_ref.is_none() {
        checks.fail("spec", "at least one of controlPlaneRef, infrastructureRef and topology is needed");
    }
    for (field, now) in [
        ("controlPlaneRef", spec.control_plane_ref.is_some()),
        ("infrastructureRef", spec.infrastructure_ref.is_some()),
    ] {
        let before = old.is_some_and(|o| o.at(&format!("/spec/{field}")).is_some_and(|v| !v.is_null()));
        if before && !now {
            checks.fail(format!("spec.{field}"), "cannot be removed");
        }
    }
    if let Some(network) = &spec.cluster_network {
        for (field, ranges) in [("pods", &network.pods), ("services", &network.services)] {
            for (index, block) in ranges.iter().flat_map(|r| &r.cidr_blocks).enumerate() {
                if !is_cidr(block) {
                    checks.fail(
                        format!("spec.clusterNetwork.{field}.cidrBlocks[{index}]"),
                        format!("{block:?} is no CIDR block such as 192.168.0.0/16"),
                    );
                }
            }
        }
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    let limit = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    prefix.bytes().all(|b| b.is_ascii_digit()) && prefix.parse::<u8>().is_ok_and(|p| p <= limit)
}

/// Whether a text may be a label value: at most 63 characters of a small alphabet.
pub fn is_label_value(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        && edge(text.chars().next())
        && edge(text.chars().next_back())
}

fn bootstrap(bootstrap: &Bootstrap, at: &str, checks: &mut Checks) {
    if bootstrap.config_ref.is_none() && bootstrap.data_secret_name.is_none() {
        checks.fail(format!("{at}.bootstrap"), "configRef or dataSecretName is needed");
    }
}

/// Kubernetes versions are semantic versions in full: `v1.35.4`, `v1.36.0-rc.1+build.5`.
fn version(version: Option<&str>, at: &str, checks: &mut Checks) {
    if let Some(version) = version.filter(|v| !is_version(v)) {
        checks.fail(at, format!("{version:?} is no version such as v1.35.4"));
    }
}

/// Whether a text is a semantic version, with or without a `v`.
pub fn is_version(text: &str) -> bool {
    let text = text.strip_prefix('v').unwrap_or(text);
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, pre) = text.split_once('-').map_or((text, None), |(core, pre)| (core, Some(pre)));
    let number = |n: &str| {
        !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) && (n == "0" || !n.starts_with('0')) && n.len() < 10
    };
    let words = |text: Option<&str>| {
        text.is_none_or(|text| {
            text.split('.').all(|w| !w.is_empty() && w.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
        })
    };
    core.split('.').count() == 3 && core.split('.').all(number) && words(pre) && words(build)
}

fn same_cluster(new: &Object, old: Option<&Object>, checks: &mut Checks) {
    if let Some(before) = old.and_then(|o| o.str_at("/spec/clusterName"))
        && new.str_at("/spec/clusterName") != Some(before)
    {
        checks.fail("spec.clusterName", format!("cannot be changed (it was {before:?})"));
    }
}

fn template(meta: &TemplateMeta, spec: &MachineSpec, selector: &LabelSelector, cluster: &str, checks: &mut Checks) {
    if !selector.matches(|key| meta.labels.get(key).map(String::as_str)) {
        checks.fail(
            "spec.template.metadata.labels",
            format!("must match spec.selector ({}), or the machines would never be counted", selector.to_query()),
        );
    }
    if spec.cluster_name != cluster {
        checks.fail("spec.template.spec.clusterName", format!("must be that of spec.clusterName, {cluster:?}"));
    }
    bootstrap(&spec.bootstrap, "spec.template.spec", checks);
    version(spec.version.as_deref(), "spec.template.spec.version", checks);
}

fn naming(naming: Option<&MachineNaming>, checks: &mut Checks) {
    let Some(template) = naming.and_then(|n| n.template.as_deref()) else { return };
    let at = "spec.machineNaming.template";
    if !template.split("{{").any(|part| part.split("}}").next().is_some_and(|w| w.trim() == ".random")) {
        checks.fail(at, "must contain {{ .random }}, or two machines would have one name");
    }
    let mut rest = template;
    while let Some((_, after)) = rest.split_once("{{") {
        let Some((word, more)) = after.split_once("}}") else {
            checks.fail(at, "has {{ without }}");
            return;
        };
        if ![".random", ".cluster.name", ".machineSet.name"].contains(&word.trim()) {
            let known = "{{ .cluster.name }}, {{ .machineSet.name }} and {{ .random }}";
            checks.fail(at, format!("knows {known}, not {:?}", word.trim()));
        }
        rest = more;
    }
}

fn rollout(spec: &MachineDeploymentSpec, checks: &mut Checks) {
    let strategy = spec.rollout.as_ref().and_then(|r| r.strategy.as_ref());
    if strategy.is_some_and(|s| s.kind.as_deref() == Some("OnDelete") && s.rolling_update.is_some()) {
        checks.fail("spec.rollout.strategy.rollingUpdate", "goes with type RollingUpdate only");
    }
    let rolling = strategy.and_then(|s| s.rolling_update.as_ref());
    let mut zero = true;
    if let Some(rolling) = rolling {
        for (field, value) in [("maxSurge", &rolling.max_surge), ("maxUnavailable", &rolling.max_unavailable)] {
            let path = format!("spec.rollout.strategy.rollingUpdate.{field}");
            match value {
                Some(IntOrString::Int(n)) if *n < 0 => checks.fail(path, "must not be negative"),
                Some(IntOrString::Int(n)) => zero &= *n == 0,
                Some(IntOrString::String(text)) => match percent(text) {
                    Some(percent) => {
                        zero &= percent == 0;
                        if field == "maxUnavailable" && percent > 100 {
                            checks.fail(path, "cannot be more than 100%");
                        }
                    }
                    None => {
                        zero = false;
                        checks.fail(path, format!("{text:?} is neither a number nor a percentage such as 30%"));
                    }
                },
                None => {}
            }
        }
        if zero {
            checks.fail(
                "spec.rollout.strategy.rollingUpdate",
                "maxSurge and maxUnavailable are both 0: no machine could ever be replaced",
            );
        }
    }
    let in_flight = spec.remediation.as_ref().and_then(|r| r.max_in_flight.as_ref());
    match in_flight {
        Some(IntOrString::Int(n)) if *n < 0 => checks.fail("spec.remediation.maxInFlight", "must not be negative"),
        Some(IntOrString::String(text)) if percent(text).is_none() => checks
            .fail("spec.remediation.maxInFlight", format!("{text:?} is neither a number nor a percentage such as 30%")),
        _ => {}
    }
}

fn percent(text: &str) -> Option<u32> {
    let digits = text.strip_suffix('%')?;
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
}
