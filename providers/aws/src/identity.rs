//! Identities: cluster-scoped objects by which the operator lends credentials to namespaces. The host reads them, and the provider never
//! does: what is here is what users write, and the manifest says what becomes of it.

use std::collections::BTreeMap;

use capstan_provider::{Kind, Schema, versions::OlderVersion};
use serde_json::Value;

/// The keys of a user.
#[derive(Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "AWSClusterStaticIdentity", version = "v1beta2", identity, served_too = StaticIdentityV1Beta1,
    column("Secret", "string", ".spec.secretRef", "Where its keys are"))]
#[allow(dead_code, reason = "a schema")]
pub struct StaticIdentity {
    /// Namespaces that may use it: none if absent, all if empty.
    allowed_namespaces: Option<AllowedNamespaces>,
    /// The Secret in the namespace `capstan-system` with `AccessKeyID` and `SecretAccessKey` (and `SessionToken`, for temporary keys).
    #[schema(min_length = 1, max_length = 253, immutable)]
    secret_ref: String,
}

/// A role that is assumed by means of another identity.
#[derive(Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "AWSClusterRoleIdentity", version = "v1beta2", identity, served_too = RoleIdentityV1Beta1,
    column("Role", "string", ".spec.roleARN", "The role that is assumed"),
    column("Source", "string", ".spec.sourceIdentityRef.name", "By means of which identity"))]
#[allow(dead_code, reason = "a schema")]
pub struct RoleIdentity {
    /// Namespaces that may use it: none if absent, all if empty. The identity by whose credential it is had has to allow them too.
    allowed_namespaces: Option<AllowedNamespaces>,
    /// The role.
    #[serde(rename = "roleARN")]
    #[schema(min_length = 20, max_length = 2048, pattern = "^arn:[a-z-]+:iam::[0-9]{12}:role/.+$")]
    role_arn: String,
    /// Who asks, for the records of AWS: `capstan` if absent.
    #[schema(min_length = 2, max_length = 64, pattern = "^[A-Za-z0-9_=,.@-]*$")]
    session_name: Option<String>,
    /// Seconds until a session is renewed: 3600 if absent. A role by means of a role may last an hour.
    #[schema(min = 900, max = 43_200)]
    duration_seconds: Option<i32>,
    /// A policy (JSON) that narrows what the session may do.
    #[schema(min_length = 1, max_length = 2048)]
    inline_policy: Option<String>,
    /// Policies of the role's account that narrow what the session may do.
    #[serde(rename = "policyARNs")]
    #[schema(max_items = 10, optional)]
    policy_arns: Vec<String>,
    /// What the owner of the role asks to be told.
    #[serde(rename = "externalID")]
    #[schema(min_length = 2, max_length = 1224)]
    external_id: Option<String>,
    /// The identity by whose credential the role is assumed.
    source_identity_ref: SourceIdentity,
}

/// An identity that another is had by.
#[derive(Schema)]
#[allow(dead_code, reason = "a schema")]
pub struct SourceIdentity {
    /// Its name.
    #[schema(min_length = 1, max_length = 253)]
    name: String,
    /// Its kind. AWSClusterControllerIdentity is not served: there is no identity of the machine that Capstan runs on.
    #[schema(values("AWSClusterStaticIdentity", "AWSClusterRoleIdentity"))]
    kind: String,
}

/// Namespaces: those that are listed and those that are selected; all if neither is there.
#[derive(Schema)]
#[allow(dead_code, reason = "a schema")]
pub struct AllowedNamespaces {
    /// Their names. A list that is there and empty lists none.
    #[schema(max_items = 1000, optional)]
    list: Vec<String>,
    /// Their labels. An empty selector selects none.
    selector: Option<LabelSelector>,
}

/// Labels.
#[derive(Schema)]
#[serde(rename_all = "camelCase")]
#[allow(dead_code, reason = "a schema")]
pub struct LabelSelector {
    /// Labels with these values.
    #[schema(optional)]
    match_labels: BTreeMap<String, String>,
    /// What labels have to be like.
    #[schema(max_items = 64, optional)]
    match_expressions: Vec<LabelRequirement>,
}

/// What a label has to be like.
#[derive(Schema)]
#[schema(rule(
    "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0",
    "In and NotIn need values, Exists and DoesNotExist take none"
))]
#[allow(dead_code, reason = "a schema")]
pub struct LabelRequirement {
    /// The label.
    #[schema(min_length = 1, max_length = 317)]
    key: String,
    /// How it is compared.
    #[schema(values("In", "NotIn", "Exists", "DoesNotExist"))]
    operator: String,
    /// With what.
    #[schema(max_items = 256, optional)]
    values: Vec<String>,
}

/// The keys of a user.
#[derive(Kind)]
#[kind(name = "AWSClusterStaticIdentity", version = "v1beta1", identity, older)]
pub struct StaticIdentityV1Beta1;

/// A role that is assumed by means of another identity.
#[derive(Kind)]
#[kind(name = "AWSClusterRoleIdentity", version = "v1beta1", identity, older)]
pub struct RoleIdentityV1Beta1;

/// The version before says the same in the same words.
macro_rules! says_the_same {
    ($older:ident, $stored:ident) => {
        impl Schema for $older {
            const BODY: &'static str = <$stored as Schema>::BODY;
            const RULES: &'static str = <$stored as Schema>::RULES;
        }

        impl OlderVersion for $older {
            fn up(_object: &mut Value) {}
            fn down(_object: &mut Value) {}
        }
    };
}

says_the_same!(StaticIdentityV1Beta1, StaticIdentity);
says_the_same!(RoleIdentityV1Beta1, RoleIdentity);

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;
