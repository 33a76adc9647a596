//! AWS: clusters in a VPC and machines that are EC2 instances, with AWSCluster and AWSMachine as Cluster API's provider for AWS (CAPA)
//! has them.
//!
//! Behind a cluster stand a [`network`] (made, or the user's own), security [`group`]s and a [`balancer`] (made, or the user's own);
//! behind a machine an [`instance`], the [`bootstrap`] data that is too large for its user data, and its [`registration`] with the load
//! balancer.
//!
//! Promises: everything carries our owner key from the request on that makes it, and what carries another's is left alone; an
//! instance is asked for with the idempotency key, and all that was chosen for it (subnet, image, groups, form of its user data) is
//! frozen before; one that has vanished is reported, not made anew; what is wrong with a spec is said with the field's name.

mod advice;
#[cfg(test)]
mod bad_input_tests;
mod balancer;
mod bootstrap;
mod classic;
mod cluster;
mod cluster_spec;
#[cfg(test)]
mod cluster_tests;
mod ec2;
mod group;
mod identity;
mod image;
mod instance;
mod launch;
mod layout;
mod listener;
mod machine;
#[cfg(test)]
mod machine_tests;
#[cfg(test)]
mod moto_tests;
mod network;
mod placement;
mod registration;
mod route;
mod rules;
mod spec;
mod tags;
mod v1beta1;

use capstan_provider::{InfrastructureProvider, aws, export_infrastructure};

/// The provider.
#[derive(Debug)]
pub struct Aws;

impl InfrastructureProvider for Aws {
    type Cluster = cluster::AWSCluster;
    type Machine = machine::AWSMachine;
}

export_infrastructure!(Aws, {
    "name": "aws",
    "kinds": {
        "group": "infrastructure.cluster.x-k8s.io", "cluster": "AWSCluster", "machine": "AWSMachine",
        "identities": ["AWSClusterStaticIdentity", "AWSClusterRoleIdentity"]
    },
    "contractLabels": { "cluster.x-k8s.io/v1beta2": ["v1beta2"], "cluster.x-k8s.io/v1beta1": ["v1beta1"] },
    "endpoints": [
        {
            "name": "ec2", "protocol": "aws-query", "timeout": "30s", "maxResponse": "8Mi",
            "url": "https://ec2.{region}.amazonaws.com", "variables": { "region": "/spec/region" },
            "signing": { "service": "ec2" }
        },
        {
            "name": "elb", "protocol": "aws-query", "timeout": "30s", "maxResponse": "4Mi",
            "url": "https://elasticloadbalancing.{region}.amazonaws.com", "variables": { "region": "/spec/region" },
            "signing": { "service": "elasticloadbalancing" }
        },
        {
            "name": "secretsmanager", "protocol": "aws-json", "timeout": "30s", "maxResponse": "1Mi",
            "url": "https://secretsmanager.{region}.amazonaws.com", "variables": { "region": "/spec/region" },
            "signing": { "service": "secretsmanager" }
        },
        {
            "name": "ssm", "protocol": "aws-json", "timeout": "30s", "maxResponse": "1Mi",
            "url": "https://ssm.{region}.amazonaws.com", "variables": { "region": "/spec/region" },
            "signing": { "service": "ssm" }
        },
        {
            "name": "s3", "protocol": "rest", "timeout": "30s", "maxResponse": "1Mi",
            "url": "https://s3.{region}.amazonaws.com", "variables": { "region": "/spec/region" },
            "signing": { "service": "s3" }
        },
        {
            "name": "sts", "protocol": "aws-query", "timeout": "30s", "maxResponse": "1Mi",
            "url": "https://sts.{region}.amazonaws.com", "variables": { "region": "/spec/region" },
            "signing": { "service": "sts" }
        }
    ],
    "credentials": [
        { "at": "/spec/identityRef", "kind": "Endpoint" },
        { "at": "/spec/identityRef", "kind": "AWSClusterStaticIdentity", "aws": true, "secret": "/spec/secretRef",
          "allowedNamespaces": "/spec/allowedNamespaces" },
        { "at": "/spec/identityRef", "kind": "AWSClusterRoleIdentity", "source": "/spec/sourceIdentityRef",
          "allowedNamespaces": "/spec/allowedNamespaces",
          "role": {
            "arn": "/spec/roleARN", "sessionName": "/spec/sessionName", "externalId": "/spec/externalID",
            "durationSeconds": "/spec/durationSeconds", "inlinePolicy": "/spec/inlinePolicy",
            "policyARNs": "/spec/policyARNs", "endpoint": "sts"
          } },
        { "at": "/spec/identityRef", "kind": "AWSClusterControllerIdentity", "ambient": true }
    ],
    "objectReferences": ["/spec/identityRef"],
    "consistencyWindow": "10s",
    "limits": { "memory": "16Mi", "cpu": "500ms", "requestsPerTurn": 96 }
}, identities: [identity::StaticIdentity, identity::RoleIdentity]);

/// A request to EC2.
fn ec2(action: &str) -> aws::Query {
    aws::query("ec2", "2016-11-15", action)
}

/// A request to the second generation of load balancers.
fn elb(action: &str) -> aws::Query {
    aws::query("elb", "2015-12-01", action)
}

/// A request to the classic load balancers.
fn classic_elb(action: &str) -> aws::Query {
    aws::query("elb", "2012-06-01", action)
}

/// How old a shared answer may be where nothing is awaited (ms).
const SHARED: u64 = 15_000;

/// A name for what takes letters, digits and `-` only: its beginning, as much of the cluster's name as there is room for, its end,
/// and a hash of the owner key, so that clusters of the same name do not meet.
fn short_name(cluster: &str, suffix: &str, owner: &str, most: usize) -> String {
    let tail = format!("{suffix}-{:06x}", capstan_provider::hash(owner) & 0xff_ffff);
    let room = most.saturating_sub(tail.len() + 1);
    let plain: String = cluster.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(room).collect();
    let plain = plain.trim_matches('-');
    format!("{}-{tail}", if plain.is_empty() { "c" } else { plain })
}
