//! The parameters of a policy: which objects a binding refers to, and who may refer to them.

use super::policy::Policy;
use super::text;
use crate::auth::Attributes;
use crate::auth::rbac::selects;
use crate::catalog::{Resource, Version};
use crate::options::User;
use crate::schema::FieldError;
use crate::server::ApiServer;
use crate::store::{Key, Object};
use serde_json::Value;
use std::sync::Arc;

/// The kind of a policy's parameters.
pub(super) type ParamKind = (Arc<Resource>, Arc<Version>);

impl ApiServer {
    /// What is served of the kind of a policy's parameters; none when it has none.
    pub(super) fn param_kind(&self, policy: &Policy) -> Result<Option<ParamKind>, String> {
        let Some((api_version, kind)) = &policy.param_kind else { return Ok(None) };
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let found = self.catalog().kind(group, kind).and_then(|resource| {
            let version = resource.version(version)?.clone();
            Some((resource.clone(), version))
        });
        let unknown = || format!("failed to find resource referenced by paramKind: '{group}/{version}, Kind={kind}'");
        found.ok_or_else(unknown).map(Some)
    }

    /// The objects that a binding gives a policy for a request in this namespace: null once when there is no need of any, none at
    /// all when there are none and that is allowed.
    pub(super) fn params(
        &self,
        kind: Option<&ParamKind>,
        binding: &Value,
        namespace: &str,
    ) -> Result<Vec<Value>, String> {
        let (Some((resource, version)), Some(reference)) =
            (kind, binding.pointer("/spec/paramRef").filter(|reference| !reference.is_null()))
        else {
            return Ok(vec![Value::Null]);
        };
        let own = text(reference, "/namespace");
        let namespace = match (resource.namespaced, own.is_empty()) {
            (false, false) => {
                return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned());
            }
            (false, true) => "",
            (true, false) => own,
            (true, true) if namespace.is_empty() => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
                );
            }
            (true, true) => namespace,
        };
        let store = &self.inner.options.store;
        let name = text(reference, "/name");
        let found: Vec<Arc<Object>> = match reference.get("selector").filter(|selector| !selector.is_null()) {
            _ if !name.is_empty() => store.get(&resource.collection, &Key::new(namespace, name)).into_iter().collect(),
            Some(selector) => {
                let listing = store.list(&resource.collection, namespace, None, None);
                let all = listing.map(|listing| listing.objects).unwrap_or_default().into_iter();
                all.filter(|object| {
                    let labels = object.meta.labels.iter().map(|(key, value)| (key.to_string(), Value::from(&**value)));
                    selects(selector, &Value::Object(labels.collect()))
                })
                .collect()
            }
            None => return Err("one of name or selector must be provided".to_owned()),
        };
        if found.is_empty() && text(reference, "/parameterNotFoundAction") == "Deny" {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        found.iter().map(|object| resource.show(object, version, true)).collect()
    }

    /// Refuses a policy or a binding that refers to what its author may not read: it could tell him of it.
    pub(crate) fn confirm_params(
        &self,
        user: &User,
        plural: &str,
        object: &Value,
        old: Option<&Value>,
    ) -> Option<FieldError> {
        let is_policy = plural == "validatingadmissionpolicies";
        let path = if is_policy { "/spec/paramKind" } else { "/spec/paramRef" };
        let reference = object.pointer(path).filter(|reference| !reference.is_null())?;
        let same = |pointer: &str| old.is_some_and(|old| old.pointer(pointer) == object.pointer(pointer));
        if same(path) && (is_policy || same("/spec/policyName")) {
            return None;
        }
        // Of what cannot be found out everything is asked for.
        let policy = (!is_policy).then(|| {
            let key = Key::new("", text(object, "/spec/policyName"));
            let policy = self.inner.options.store.get(super::policies::POLICIES, &key);
            policy.map(|policy| policy.value_without_managed_fields())
        });
        let kind = match &policy {
            None => Some(reference),
            Some(policy) => policy.as_ref().and_then(|policy| policy.pointer("/spec/paramKind")),
        };
        let (api_version, kind) = kind.map_or(("", ""), |kind| (text(kind, "/apiVersion"), text(kind, "/kind")));
        let group = match api_version {
            "" => "*",
            known => known.split_once('/').map_or("", |(group, _)| group),
        };
        let found = self.catalog().kind(group, kind).map(|resource| resource.plural.clone());
        let resource = found.as_deref().unwrap_or("*");
        let (verb, namespace, name) = match text(reference, "/name") {
            _ if is_policy => ("get", "*", "*"),
            "" => ("list", text(reference, "/namespace"), ""),
            name => ("get", text(reference, "/namespace"), name),
        };
        let wanted = Attributes { verb, group, resource, subresource: "", namespace, name };
        self.authorize(user, &wanted).err()?;
        let why = if is_policy {
            format!(
                "user {:?} must have \"get\" permission on all objects of the referenced paramKind (kind={kind}, \
                 apiVersion={api_version})",
                user.name
            )
        } else {
            format!("user {:?} does not have {verb:?} permission on the object referenced by paramRef", user.name)
        };
        Some(FieldError::forbidden(path.trim_start_matches('/').replace('/', "."), why))
    }
}
