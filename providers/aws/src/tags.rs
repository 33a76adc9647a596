//! Tags: those that CAPA writes, by which its resources and ours are found, and our owner key.

use std::collections::BTreeMap;

use capstan_provider::{Context, aws::Query, xml::Element};

use crate::spec::Tags;

/// Whose a resource is.
pub const OWNER: &str = "capstan.dev/owner-key";
/// Which part of its owner it is.
pub const PART: &str = "capstan.dev/part";
/// What CAPA calls its place in the cluster.
pub const ROLE: &str = "sigs.k8s.io/cluster-api-provider-aws/role";
/// What people see.
pub const NAME: &str = "Name";

/// The key that every resource of a cluster carries.
pub fn cluster_tag(cluster: &str) -> String {
    format!("sigs.k8s.io/cluster-api-provider-aws/cluster/{cluster}")
}

/// The key that the cloud controller manager looks for.
pub fn cloud_tag(cluster: &str) -> String {
    format!("kubernetes.io/cluster/{cluster}")
}

/// The tags of a part of an object of the cluster: the user's, then those that are not the user's to choose.
pub fn of<S>(ctx: &Context<S>, part: &str, name: String, role: &str, given: &[&Tags]) -> Tags {
    let mut tags: Tags = BTreeMap::new();
    tags.insert(NAME.to_owned(), name);
    for (key, value) in given.iter().flat_map(|tags| tags.iter()) {
        tags.insert(key.clone(), value.clone());
    }
    let fixed = [
        (cluster_tag(&ctx.cluster().name()), "owned"),
        (ROLE.to_owned(), role),
        (OWNER.to_owned(), &ctx.owner_key()),
        (PART.to_owned(), part),
    ];
    tags.extend(fixed.into_iter().map(|(key, value)| (key, value.to_owned())));
    tags
}

/// The tags of a resource: EC2's `tagSet`, or another list of keys and values.
pub fn read(element: &Element, path: &str, key: &str, value: &str) -> Tags {
    element.all(path).map(|tag| (tag.text(key).to_owned(), tag.text(value).to_owned())).collect()
}

/// The tags of a resource of EC2.
pub fn of_ec2(element: &Element) -> Tags {
    read(element, "tagSet/item", "key", "value")
}

/// Whether they say that something is another object's.
pub fn are_anothers(theirs: &Tags, own: &str) -> bool {
    theirs.get(OWNER).is_some_and(|owner| owner != own)
}

/// `TagSpecification` for each of these resource types.
pub fn specify(mut query: Query, types: &[&str], tags: &Tags) -> Query {
    for (index, resource_type) in types.iter().enumerate() {
        let at = format!("TagSpecification.{}", index + 1);
        query = query.set(&format!("{at}.ResourceType"), resource_type);
        query = list(query, &format!("{at}.Tag."), tags);
    }
    query
}

/// A list of keys and values; `at` ends with the dot that the numbers follow.
pub fn list(mut query: Query, at: &str, tags: &Tags) -> Query {
    for (index, (key, value)) in tags.iter().enumerate() {
        let at = format!("{at}{}", index + 1);
        query = query.set(&format!("{at}.Key"), key).set(&format!("{at}.Value"), value);
    }
    query
}

/// Those that a resource lacks or has with another value.
pub fn lacking(wanted: &Tags, there: &Tags) -> Tags {
    wanted.iter().filter(|(key, value)| there.get(*key) != Some(value)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// What is wrong with tags that a user gives, by key.
pub fn wrong(tags: &Tags) -> Option<String> {
    if tags.len() > 40 {
        return Some(format!("{} tags are too many: AWS allows 50, of which up to 10 are ours", tags.len()));
    }
    tags.iter().find_map(|(key, value)| {
        let low = key.to_lowercase();
        if low.starts_with("aws:") {
            return Some(format!("the tag {key:?} begins with aws:, which AWS keeps to itself"));
        }
        if key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256 {
            return Some(format!("the tag {key:?} has a key of 0 or over 128 characters, or a value of over 256"));
        }
        let ours = key.starts_with("capstan.dev/") || key.starts_with("sigs.k8s.io/cluster-api-provider-aws/");
        ours.then(|| format!("the tag {key:?} is written by the provider"))
    })
}
