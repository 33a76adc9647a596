//! All policies and their bindings: who of them has something against a request.

use super::known::Known;
use super::matching::{described, namespace_of};
use super::policy::{Denial, Policy};
use super::{GROUP, Input, text, words};
use crate::catalog::Resource;
use crate::options::{AdmissionRequest, Operation};
use crate::server::ApiServer;
use crate::status::Status;
use crate::store::{Key, Object};
use serde_json::{Map, Value, json};
use std::sync::Arc;

pub(super) const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io";
const BINDINGS: &str = "validatingadmissionpolicybindings.admissionregistration.k8s.io";

/// What was made of the policies and bindings in the store.
#[derive(Default)]
pub(crate) struct Policies {
    policies: Known<Policy>,
    bindings: Known<Value>,
}

/// What a policy has against a request, by which binding.
struct Denied<'a> {
    policy: &'a Policy,
    binding: Option<&'a Value>,
    denial: Denial,
}

impl Denied<'_> {
    /// What the client is told.
    fn status(&self, request: &AdmissionRequest) -> Status {
        let with = self.binding.map(|binding| format!(" with binding '{}'", text(binding, "/metadata/name")));
        let message = format!(
            "ValidatingAdmissionPolicy '{}'{} denied request: {}",
            self.policy.name,
            with.unwrap_or_default(),
            self.denial.message
        );
        let mut status = Status::forbidden(&request.group, &request.resource, &request.name, &message);
        status.reason = self.denial.reason;
        status.code = match self.denial.reason {
            "Forbidden" => 403,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        status.with_cause("", message, "")
    }
}

impl ApiServer {
    /// Whether any policy is bound to anything.
    pub(crate) fn has_policies(&self) -> bool {
        self.inner.options.store.any(BINDINGS, "")
    }

    /// Asks all policies about a request whose object the schema has accepted. Warnings, or the first denial.
    pub(crate) fn ask_policies(
        &self,
        resource: &Resource,
        request: &AdmissionRequest,
        object: &Value,
    ) -> Result<Vec<String>, Status> {
        if request.group == GROUP {
            return Ok(Vec::new());
        }
        let list = |collection: &str| {
            let listing = self.inner.options.store.list(collection, "", None, None);
            listing.map(|listing| listing.objects).unwrap_or_default()
        };
        let known = &self.inner.policies;
        let read = |object: &Object| object.value_without_managed_fields();
        let policies = known.policies.of(&list(POLICIES), |policy| Policy::compile(&read(policy), &mut Vec::new()));
        let bindings = known.bindings.of(&list(BINDINGS), read);
        let mut asked = Asked { server: self, resource, request, object, namespace: None };
        let mut warnings = Vec::new();
        let mut denied = Vec::new();
        for policy in &policies {
            let mut bound =
                bindings.iter().filter(|binding| text(binding, "/spec/policyName") == policy.name).peekable();
            if bound.peek().is_some() {
                denied.extend(asked.by(policy, bound, &mut warnings)?);
            }
        }
        match denied.first() {
            Some(denied) => Err(denied.status(request)),
            None => Ok(warnings),
        }
    }
}

/// A request that policies are asked about.
struct Asked<'a> {
    server: &'a ApiServer,
    resource: &'a Resource,
    request: &'a AdmissionRequest,
    object: &'a Value,
    /// The namespace as expressions see it, once it was needed.
    namespace: Option<Value>,
}

impl<'a> Asked<'a> {
    /// What one policy has against it, by these bindings.
    fn by<'p>(
        &mut self,
        policy: &'p Policy,
        bindings: impl Iterator<Item = &'p Arc<Value>>,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Denied<'p>>, Status> {
        let (resource, request) = (self.resource, self.request);
        let mut denied: Vec<Denied<'p>> = Vec::new();
        let Some(version) = self.server.constrained(&policy.constraints, resource, request, self.object) else {
            return Ok(denied);
        };
        let misconfigured = |what: &str, why: String| Denial {
            message: format!("failed to configure {what}: {why}"),
            reason: "Invalid",
            always: true,
        };
        let kind = match self.server.param_kind(policy) {
            Ok(kind) => kind,
            Err(_) if policy.ignores_failures => return Ok(denied),
            Err(why) => {
                denied.push(Denied { policy, binding: None, denial: misconfigured("policy", why) });
                return Ok(denied);
            }
        };
        let mut shown: Option<Shown> = None;
        for binding in bindings {
            let constraints = binding.pointer("/spec/matchResources").filter(|constraints| !constraints.is_null());
            if constraints.is_some_and(|own| self.server.constrained(own, resource, request, self.object).is_none()) {
                continue;
            }
            let params = match self.server.params(kind.as_ref(), binding, namespace_of(request)) {
                Ok(params) => params,
                Err(_) if policy.ignores_failures => continue,
                Err(why) => {
                    let denial = misconfigured("binding", why);
                    denied.push(Denied { policy, binding: Some(binding), denial });
                    continue;
                }
            };
            for params in &params {
                let shown = match &shown {
                    Some(shown) => shown,
                    None => shown.insert(self.shown(&version)?),
                };
                let namespace = self.namespace.get_or_insert_with(|| namespace_object(self.server, request));
                let input = Input {
                    object: &shown.object,
                    old_object: &shown.old_object,
                    request: &shown.request,
                    namespace,
                    params,
                };
                for denial in policy.judge(input) {
                    let does = |action: &str| {
                        words(binding.get("spec").unwrap_or(&Value::Null), "validationActions").any(|own| own == action)
                    };
                    if !denial.always && does("Warn") {
                        warnings.push(format!(
                            "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                            policy.name,
                            text(binding, "/metadata/name"),
                            denial.message
                        ));
                    }
                    if denial.always || does("Deny") {
                        denied.push(Denied { policy, binding: Some(binding), denial });
                    }
                }
            }
        }
        Ok(denied)
    }

    /// The request in the version that a policy wants to see it in.
    fn shown(&self, version: &str) -> Result<Shown, Status> {
        let group = &self.request.group;
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let in_version =
            |object: &Value| self.resource.convert(object.clone(), &api_version).map_err(Status::unconverted);
        let object = match self.request.operation {
            Operation::Delete => Value::Null,
            Operation::Create | Operation::Update => in_version(self.object)?,
        };
        let old_object = self.request.old.as_ref().map(in_version).transpose()?.unwrap_or_default();
        Ok(Shown { object, old_object, request: Value::Object(described(self.request, version)) })
    }
}

/// A request as expressions see it.
struct Shown {
    object: Value,
    old_object: Value,
    request: Value,
}

/// The namespace of a request as expressions see it: without who owns what. Null for what is in none.
fn namespace_object(server: &ApiServer, request: &AdmissionRequest) -> Value {
    let stored = match request.namespace.as_str() {
        "" => None,
        name => server.inner.options.store.get("namespaces", &Key::new("", name)),
    };
    let Some(mut namespace) = stored.map(|namespace| namespace.value_without_managed_fields()) else {
        return Value::Null;
    };
    let mut metadata = namespace.get_mut("metadata").map(Value::take).unwrap_or_else(|| Value::Object(Map::new()));
    if let Some(fields) = metadata.as_object_mut() {
        fields.shift_remove("ownerReferences");
    }
    json!({"metadata": metadata, "spec": namespace.get("spec"), "status": namespace.get("status")})
}
