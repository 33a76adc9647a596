//! IP address management: Cluster API's contract (ipam.cluster.x-k8s.io/v1beta2: `IPAddressClaim`, `IPAddress`) and the
//! pools of the in-cluster provider (v1alpha2: `InClusterIPPool`, `GlobalInClusterIPPool`), with the arithmetic of what a
//! pool holds ([`Pool`]).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::admission::FieldError;
use crate::meta::{Condition, ContractReference};

/// Group of claims, addresses and pools.
pub const IPAM_GROUP: &str = "ipam.cluster.x-k8s.io";
/// Version of claims and addresses.
pub const IPAM_VERSION: &str = "v1beta2";
/// Version of the in-cluster pools.
pub const POOL_VERSION: &str = "v1alpha2";
/// Kind of a claim.
pub const CLAIM: &str = "IPAddressClaim";
/// Kind of an address.
pub const ADDRESS: &str = "IPAddress";
/// Kind of a pool of one namespace.
pub const POOL: &str = "InClusterIPPool";
/// Kind of a pool for claims of all namespaces.
pub const GLOBAL_POOL: &str = "GlobalInClusterIPPool";

/// A wish for an address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IpAddressClaimSpec {
    /// Name of the Cluster that the claim belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub cluster_name: Option<String>,
    /// The pool that the address is to come from.
    pub pool_ref: ContractReference,
}

/// What became of the wish.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IpAddressClaimStatus {
    /// The address that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address_ref: Option<NameReference>,
    /// Ready, with why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 32),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"])
    )]
    pub conditions: Vec<Condition>,
    /// The generation that was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
}

/// The name of an object in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NameReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// An address that was given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IpAddressSpec {
    /// The claim that it was given to.
    pub claim_ref: NameReference,
    /// The pool that it came from.
    pub pool_ref: ContractReference,
    /// The address.
    #[schemars(length(min = 1, max = 39))]
    pub address: String,
    /// Prefix length of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 128))]
    pub prefix: Option<i32>,
    /// Gateway of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 39))]
    pub gateway: Option<String>,
}

/// Nothing is known of an address but its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpAddressStatus {}

/// Addresses that may be given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InClusterIpPoolSpec {
    /// Addresses (`10.0.0.7`), ranges (`10.0.0.7-10.0.0.9`) and networks (`10.0.0.0/24`) of one family.
    #[schemars(length(min = 1, max = 1024))]
    pub addresses: Vec<String>,
    /// Prefix length of the network that the addresses are in.
    #[schemars(range(min = 1, max = 128))]
    pub prefix: i32,
    /// Gateway of the network. It is never given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 39))]
    pub gateway: Option<String>,
    /// Give the network's first address, and in IPv4 its last one, too.
    #[serde(default, rename = "allocateReservedIPAddresses", skip_serializing_if = "Option::is_none")]
    pub allocate_reserved_ip_addresses: Option<bool>,
    /// What is not given although it is among the addresses, in the same words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub excluded_addresses: Vec<String>,
    /// How long an address stays taken after its claim was deleted, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub address_reuse_grace_period_seconds: Option<i32>,
}

/// How full a pool is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InClusterIpPoolStatus {
    /// Counts of addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_addresses: Option<AddressCounts>,
    /// The generation that was last looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub observed_generation: Option<i64>,
}

/// Counts of addresses; what is more than 2⁶³-1 is shown as that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddressCounts {
    /// Addresses that the pool may give.
    pub total: i64,
    /// Addresses that were given.
    pub used: i64,
    /// Addresses that can still be given.
    pub free: i64,
    /// Given addresses that are not among the pool's.
    pub out_of_range: i64,
}

/// An address as a number, within its family.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn address(v6: bool, number: u128) -> Option<IpAddr> {
    match v6 {
        true => Some(IpAddr::V6(Ipv6Addr::from(number))),
        false => u32::try_from(number).ok().map(|number| IpAddr::V4(Ipv4Addr::from(number))),
    }
}

/// First and last number of the network of this prefix length around an address; `None` when it is too long.
fn network(around: IpAddr, prefix: u32) -> Option<(u128, u128)> {
    let bits: u32 = if around.is_ipv6() { 128 } else { 32 };
    let host = bits.checked_sub(prefix)?;
    let mask = if host == 0 { 0 } else { u128::MAX >> (128 - host) };
    let at = number(around);
    Some((at & !mask, at | mask))
}

/// An address, a range or a network: whether it is IPv6, and its first and last number.
fn span(text: &str) -> Result<(bool, u128, u128), String> {
    let one = |text: &str| {
        text.trim().parse::<IpAddr>().map_err(|_| format!("{text:?} is no IP address, range (a-b) or network (a/n)"))
    };
    if let Some((first, last)) = text.split_once('-') {
        let (first, last) = (one(first)?, one(last)?);
        if first.is_ipv6() != last.is_ipv6() || number(first) > number(last) {
            return Err(format!("{text:?} is no range: it must lead from a lower to a higher address of one family"));
        }
        return Ok((first.is_ipv6(), number(first), number(last)));
    }
    if let Some((around, prefix)) = text.split_once('/') {
        let around = one(around)?;
        let found = prefix.parse().ok().and_then(|prefix| network(around, prefix));
        let (first, last) = found.ok_or_else(|| format!("{text:?} has no valid prefix length"))?;
        return Ok((around.is_ipv6(), first, last));
    }
    let only = one(text)?;
    Ok((only.is_ipv6(), number(only), number(only)))
}

/// What a pool may give: the addresses of its spec without the gateway, what is excluded and what the network reserves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    v6: bool,
    /// Sorted, disjoint, not empty; both ends belong to it.
    ranges: Vec<(u128, u128)>,
}

impl Pool {
    /// Reads a pool's spec.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn read(spec: &InClusterIpPoolSpec) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut read = |field: &str, list: &[String]| {
            let mut spans = Vec::new();
            for (index, text) in list.iter().enumerate() {
                match span(text) {
                    Ok(span) => spans.push((format!("spec.{field}[{index}]"), span)),
                    Err(why) => errors.push(FieldError::new(format!("spec.{field}[{index}]"), why)),
                }
            }
            spans
        };
        let included = read("addresses", &spec.addresses);
        let excluded = read("excludedAddresses", &spec.excluded_addresses);
        let gateway = match spec.gateway.as_deref().filter(|text| !text.is_empty()) {
            None => None,
            Some(text) => match text.parse::<IpAddr>() {
                Ok(gateway) => Some(gateway),
                Err(_) => {
                    errors.push(FieldError::new("spec.gateway", format!("{text:?} is no IP address")));
                    None
                }
            },
        };
        let Some((_, (v6, first, _))) = included.first() else {
            if spec.addresses.is_empty() {
                errors.push(FieldError::new("spec.addresses", "at least one is needed"));
            }
            return Err(errors);
        };
        let v6 = *v6;
        let prefix = u32::try_from(spec.prefix).ok().filter(|prefix| *prefix > 0);
        let around = address(v6, *first).zip(prefix).and_then(|(first, prefix)| network(first, prefix));
        let Some(subnet) = around else {
            let most = if v6 { 128 } else { 32 };
            errors.push(FieldError::new("spec.prefix", format!("must be 1 to {most} for these addresses")));
            return Err(errors);
        };
        for (path, (family, low, high)) in &included {
            if *family != v6 {
                errors.push(FieldError::new(path, "is of another family than the first address"));
            } else if *low < subnet.0 || *high > subnet.1 {
                let message = format!("is not in the network of the first address with prefix {}", spec.prefix);
                errors.push(FieldError::new(path, message));
            }
        }
        for (path, (family, ..)) in &excluded {
            if *family != v6 {
                errors.push(FieldError::new(path, "is of another family than the addresses"));
            }
        }
        if gateway.is_some_and(|gateway| gateway.is_ipv6() != v6) {
            errors.push(FieldError::new("spec.gateway", "is of another family than the addresses"));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let mut pool = Self { v6, ranges: joined(included.iter().map(|(_, (_, low, high))| (*low, *high)).collect()) };
        for (_, (_, low, high)) in &excluded {
            pool.take_out(*low, *high);
        }
        if let Some(gateway) = gateway {
            pool.take_out(number(gateway), number(gateway));
        }
        // A network of one or two addresses reserves none.
        if spec.allocate_reserved_ip_addresses != Some(true) && subnet.1 - subnet.0 > 1 {
            pool.take_out(subnet.0, subnet.0);
            if !v6 {
                pool.take_out(subnet.1, subnet.1);
            }
        }
        Ok(pool)
    }

    fn take_out(&mut self, low: u128, high: u128) {
        let mut rest = Vec::with_capacity(self.ranges.len() + 1);
        for (first, last) in self.ranges.drain(..) {
            if last < low || first > high {
                rest.push((first, last));
                continue;
            }
            if first < low {
                rest.push((first, low - 1));
            }
            if last > high {
                rest.push((high + 1, last));
            }
        }
        self.ranges = rest;
    }

    /// Whether it may give this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let at = number(address);
        address.is_ipv6() == self.v6 && self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&at))
    }

    /// How many addresses it may give in all; what is more than fits is cut.
    pub fn size(&self) -> u128 {
        self.ranges.iter().fold(0, |sum: u128, (first, last)| sum.saturating_add((last - first).saturating_add(1)))
    }

    /// The lowest address that is not taken.
    pub fn first_free(&self, taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
        for (first, last) in &self.ranges {
            let mut at = *first;
            loop {
                let candidate = address(self.v6, at)?;
                if !taken.contains(&candidate) {
                    return Some(candidate);
                }
                if at == *last {
                    break;
                }
                at += 1;
            }
        }
        None
    }

    /// How full it is when these are given.
    pub fn counts(&self, given: &BTreeSet<IpAddr>) -> AddressCounts {
        let inside = given.iter().filter(|address| self.contains(**address)).count();
        let shown = |count: u128| i64::try_from(count).unwrap_or(i64::MAX);
        let (used, inside) = (given.len() as u128, inside as u128);
        AddressCounts {
            total: shown(self.size()),
            used: shown(used),
            free: shown(self.size().saturating_sub(inside)),
            out_of_range: shown(used - inside),
        }
    }
}

/// Sorted and disjoint.
fn joined(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut all: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match all.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
            _ => all.push((first, last)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(value: serde_json::Value) -> InClusterIpPoolSpec {
        serde_json::from_value(value).unwrap()
    }

    fn all(value: serde_json::Value) -> Vec<String> {
        let pool = Pool::read(&spec(value)).unwrap();
        let mut taken = BTreeSet::new();
        let mut list = Vec::new();
        while let Some(address) = pool.first_free(&taken) {
            assert!(pool.contains(address));
            taken.insert(address);
            list.push(address.to_string());
        }
        assert_eq!(pool.size(), list.len() as u128);
        list
    }

    #[test]
    fn a_pool_is_its_addresses_without_what_is_reserved() {
        assert_eq!(
            all(json!({"addresses": ["10.0.0.9", "10.0.0.2-10.0.0.4", "10.0.0.3"], "prefix": 24,
                "gateway": "10.0.0.3", "excludedAddresses": ["10.0.0.9/32"]})),
            ["10.0.0.2", "10.0.0.4"]
        );
        // A network as a whole: neither its first nor its last address, unless that is asked for.
        assert_eq!(all(json!({"addresses": ["10.0.0.5/30"], "prefix": 30})), ["10.0.0.5", "10.0.0.6"]);
        assert_eq!(
            all(json!({"addresses": ["10.0.0.4/30"], "prefix": 30, "allocateReservedIPAddresses": true})).len(),
            4
        );
        assert_eq!(all(json!({"addresses": ["10.0.0.4/31"], "prefix": 31})), ["10.0.0.4", "10.0.0.5"]);
        assert_eq!(all(json!({"addresses": ["10.0.0.4"], "prefix": 32})), ["10.0.0.4"]);
        // The anycast address of IPv6, and the end of all numbers.
        assert_eq!(all(json!({"addresses": ["2001:db8::/127"], "prefix": 64})), ["2001:db8::1"]);
        let end = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(all(json!({"addresses": [end], "prefix": 64})), [end]);
        assert_eq!(
            all(json!({"addresses": ["255.255.255.255"], "prefix": 8, "allocateReservedIPAddresses": true})),
            ["255.255.255.255"]
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (json!({"addresses": [], "prefix": 24}), "spec.addresses"),
            (json!({"addresses": ["10.0.0.1", "10.0.0"], "prefix": 24}), "spec.addresses[1]"),
            (json!({"addresses": ["10.0.0.9-10.0.0.1"], "prefix": 24}), "spec.addresses[0]"),
            (json!({"addresses": ["10.0.0.1/33"], "prefix": 24}), "spec.addresses[0]"),
            (json!({"addresses": ["10.0.0.1", "2001:db8::1"], "prefix": 24}), "spec.addresses[1]"),
            (json!({"addresses": ["10.0.0.1", "10.0.1.1"], "prefix": 24}), "spec.addresses[1]"),
            (json!({"addresses": ["10.0.0.1"], "prefix": 33}), "spec.prefix"),
            (json!({"addresses": ["10.0.0.1"], "prefix": 0}), "spec.prefix"),
            (json!({"addresses": ["10.0.0.1"], "prefix": 24, "gateway": "::1"}), "spec.gateway"),
            (json!({"addresses": ["10.0.0.1"], "prefix": 24, "gateway": "x"}), "spec.gateway"),
            (
                json!({"addresses": ["10.0.0.1"], "prefix": 24, "excludedAddresses": ["::1"]}),
                "spec.excludedAddresses[0]",
            ),
        ];
        for (value, path) in cases {
            let errors = Pool::read(&spec(value.clone())).unwrap_err();
            assert_eq!(errors.iter().map(|e| e.path.as_str()).collect::<Vec<_>>(), [path], "{value}");
        }
    }

    #[test]
    fn counts_tell_what_is_out_of_range() {
        let pool = Pool::read(&spec(json!({"addresses": ["10.0.0.1-10.0.0.3"], "prefix": 24}))).unwrap();
        let given = ["10.0.0.1", "10.0.0.9"].map(|a| a.parse().unwrap()).into();
        assert_eq!(pool.counts(&given), AddressCounts { total: 3, used: 2, free: 2, out_of_range: 1 });
        let huge = Pool::read(&spec(json!({"addresses": ["2001:db8::/32"], "prefix": 32}))).unwrap();
        assert_eq!(huge.counts(&BTreeSet::new()).free, i64::MAX);
        let whole =
            Pool::read(&spec(json!({"addresses": ["::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"], "prefix": 1})));
        assert!(whole.is_err(), "half of all is the most");
    }
}
