//! How an API server is told of the webhooks: two configurations, and the conversion stanza of definitions.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capstan_api::{Gvk, Object};
use serde_json::{Value, json};

/// Where each task is served.
pub const DEFAULT_PATH: &str = "/default";
/// See [`DEFAULT_PATH`].
pub const VALIDATE_PATH: &str = "/validate";
/// See [`DEFAULT_PATH`].
pub const CONVERT_PATH: &str = "/convert";
/// How long the API server waits for an answer.
const SECONDS: u32 = 10;

/// How the API server reaches the webhooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At a URL, without a path.
    Url(String),
    /// Through a Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl Reach {
    /// Whom the certificate is to be for.
    pub fn host(&self) -> String {
        match self {
            Self::Url(url) => {
                let authority = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
                let authority = authority.split('/').next().unwrap_or_default();
                match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                    Some((address, _)) => address.to_owned(),
                    None => authority.split(':').next().unwrap_or_default().to_owned(),
                }
            }
            Self::Service { namespace, name } => format!("{name}.{namespace}.svc"),
        }
    }

    /// The `clientConfig` of a webhook.
    pub fn client_config(&self, path: &str, trust: &str) -> Value {
        let trust = BASE64_STANDARD.encode(trust);
        match self {
            Self::Url(url) => json!({"url": format!("{}{path}", url.trim_end_matches('/')), "caBundle": trust}),
            Self::Service { namespace, name } => {
                json!({"service": {"namespace": namespace, "name": name, "path": path, "port": 443}, "caBundle": trust})
            }
        }
    }

    /// The `spec.conversion` of a definition.
    pub fn conversion(&self, trust: &str) -> Value {
        json!({"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"], "clientConfig": self.client_config(CONVERT_PATH, trust),
        }})
    }

    /// Whether a definition's conversion is done here.
    pub fn converts(&self, crd: &Object) -> bool {
        let ours = self.client_config(CONVERT_PATH, "");
        crd.at("/spec/conversion/webhook/clientConfig")
            .is_some_and(|theirs| ["url", "service"].iter().all(|way| theirs.get(way) == ours.get(way)))
    }
}

/// Whether a definition serves more than one version.
pub fn has_several_versions(crd: &Object) -> bool {
    crd.at("/spec/versions").and_then(Value::as_array).is_some_and(|versions| versions.len() > 1)
}

/// One rule for each group and version: the stored version, into which the API server brings the others.
fn rules<'a>(crds: impl IntoIterator<Item = &'a Object>) -> Vec<Value> {
    let mut resources: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for crd in crds {
        let versions = crd.at("/spec/versions").and_then(Value::as_array);
        let stored = versions.into_iter().flatten().find(|v| v.get("storage").and_then(Value::as_bool) == Some(true));
        let version = stored.and_then(|v| v.get("name")).and_then(Value::as_str);
        let (Some(group), Some(version), Some(plural)) =
            (crd.str_at("/spec/group"), version, crd.str_at("/spec/names/plural"))
        else {
            continue;
        };
        resources.entry((group, version)).or_default().push(plural);
    }
    resources
        .into_iter()
        .map(|((group, version), mut plurals)| {
            plurals.sort_unstable();
            json!({"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE", "UPDATE"],
                "resources": plurals, "scope": "*"})
        })
        .collect()
}

fn configuration(kind: &str, webhook: &str, client: Value, rules: Vec<Value>) -> Object {
    let mut object = Object::new(&Gvk::new("admissionregistration.k8s.io", "v1", kind), "", "capstan");
    object.set(
        "/webhooks",
        json!([{
            "name": webhook, "clientConfig": client, "rules": rules, "admissionReviewVersions": ["v1"],
            "sideEffects": "None", "failurePolicy": "Fail", "matchPolicy": "Equivalent", "timeoutSeconds": SECONDS,
        }]),
    );
    object
}

/// The configurations for the core's definitions and those of providers.
pub fn configurations(reach: &Reach, trust: &str, core: &[Object], providers: &[Object]) -> [Object; 2] {
    [
        configuration(
            "MutatingWebhookConfiguration",
            "default.capstan.dev",
            reach.client_config(DEFAULT_PATH, trust),
            rules(core),
        ),
        configuration(
            "ValidatingWebhookConfiguration",
            "validate.capstan.dev",
            reach.client_config(VALIDATE_PATH, trust),
            rules(core.iter().chain(providers)),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crd(group: &str, plural: &str, versions: Value) -> Object {
        Object::from_value(
            json!({"kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
            "spec": {"group": group, "names": {"plural": plural}, "versions": versions}}),
        )
        .unwrap()
    }

    #[test]
    fn the_certificate_is_for_whom_the_api_server_asks() {
        let host = |url: &str| Reach::Url(url.to_owned()).host();
        assert_eq!(host("https://127.0.0.1:9443"), "127.0.0.1");
        assert_eq!(host("https://[::1]:9443/x"), "::1");
        assert_eq!(host("https://hooks.example.com"), "hooks.example.com");
        let service = Reach::Service { namespace: "capstan-system".into(), name: "webhooks".into() };
        assert_eq!(service.host(), "webhooks.capstan-system.svc");
    }

    #[test]
    fn there_is_one_rule_for_each_stored_version() {
        let both = json!([{"name": "v1", "storage": false}, {"name": "v2", "storage": true}]);
        let core = [crd("g", "bs", both.clone()), crd("g", "as", both)];
        let provider = [crd("h", "cs", json!([{"name": "v1", "storage": true}]))];
        let reach = Reach::Url("https://127.0.0.1:1".into());
        let [mutating, validating] = configurations(&reach, "x", &core, &provider);
        let rules = mutating.at("/webhooks/0/rules").unwrap();
        assert_eq!(rules[0]["resources"], json!(["as", "bs"]));
        assert_eq!(rules[0]["apiVersions"], json!(["v2"]));
        assert_eq!(rules.as_array().unwrap().len(), 1);
        assert_eq!(validating.at("/webhooks/0/rules").unwrap().as_array().unwrap().len(), 2);
        assert_eq!(validating.str_at("/webhooks/0/clientConfig/url"), Some("https://127.0.0.1:1/validate"));
    }

    #[test]
    fn a_conversion_of_somebody_else_is_not_taken_for_ours() {
        let reach = Reach::Service { namespace: "n".into(), name: "s".into() };
        let mut own = crd("g", "as", json!([{"name": "v1"}, {"name": "v2"}]));
        assert!(has_several_versions(&own) && !reach.converts(&own));
        own.set("/spec/conversion", reach.conversion("old trust"));
        assert!(reach.converts(&own));
        own.set("/spec/conversion/webhook/clientConfig/service/name", "other".into());
        assert!(!reach.converts(&own));
    }
}
