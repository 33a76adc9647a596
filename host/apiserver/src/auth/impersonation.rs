//! Acting as somebody else (`kubectl --as`): who may is found out by RBAC, as in Kubernetes.

use super::{AUTHENTICATED, Attributes, UNAUTHENTICATED};
use crate::options::User;
use crate::server::ApiServer;
use crate::status::Status;
use http::HeaderMap;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// What the requester wants to do as somebody else: for the words of a refusal.
pub(crate) enum Target<'a> {
    Resource(Attributes<'a>),
    Path { verb: &'a str, path: &'a str },
}

/// Namespace and name of a service account's user.
pub(crate) fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

/// The groups of a service account of the namespace.
pub(crate) fn service_account_groups(namespace: &str) -> Vec<String> {
    vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
}

impl ApiServer {
    /// On whose behalf the request is: the requester's own, or that of whom it names, if the requester may.
    pub(crate) fn impersonate(&self, user: User, headers: &HeaderMap, target: &Target<'_>) -> Result<User, Status> {
        let values = |name: &str| -> Vec<String> {
            headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
        };
        let wanted = values(USER).into_iter().next().unwrap_or_default();
        let (groups, uid) = (values(GROUP), values(UID).into_iter().next().filter(|uid| !uid.is_empty()));
        let extra: Vec<(String, String)> = headers
            .iter()
            .filter_map(|(name, value)| {
                Some((name.as_str().strip_prefix(EXTRA)?.to_owned(), value.to_str().ok()?.to_owned()))
            })
            .collect();
        if wanted.is_empty() {
            if groups.is_empty() && uid.is_none() && extra.is_empty() {
                return Ok(user);
            }
            return Err(Status::bad_request("requested groups, a uid or more without impersonating a user name"));
        }
        let may = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
            let wanted = Attributes { verb: "impersonate", group, resource, subresource, namespace, name };
            self.authorize(&user, &wanted).is_ok()
        };
        let account = service_account(&wanted);
        let allowed = match account {
            Some((namespace, name)) => may("", "serviceaccounts", "", namespace, name),
            None => may("", "users", "", "", &wanted),
        } && uid.as_ref().is_none_or(|uid| may("authentication.k8s.io", "uids", "", "", uid))
            && groups.iter().all(|group| may("", "groups", "", "", group))
            && extra.iter().all(|(key, value)| may("authentication.k8s.io", "userextras", key, "", value));
        if !allowed {
            return Err(self.refuse_impersonation(&user, account.is_some(), &wanted, target));
        }
        let mut all = match account {
            Some((namespace, _)) if groups.is_empty() => service_account_groups(namespace),
            _ => groups,
        };
        let has = |all: &[String], group: &str| all.iter().any(|own| own == group);
        if wanted == "system:anonymous" {
            if !has(&all, UNAUTHENTICATED) {
                all.push(UNAUTHENTICATED.to_owned());
            }
        } else if !has(&all, UNAUTHENTICATED) && !has(&all, AUTHENTICATED) {
            all.push(AUTHENTICATED.to_owned());
        }
        Ok(User { name: wanted, groups: all })
    }

    /// Kubernetes names what it looked for first: the right to do just this as just such a user.
    fn refuse_impersonation(&self, user: &User, account: bool, wanted: &str, target: &Target<'_>) -> Status {
        let mode = match () {
            () if account => "serviceaccount",
            () if wanted.starts_with("system:node:") => "arbitrary-node",
            () => "user-info",
        };
        match target {
            Target::Resource(attributes) => {
                let verb = format!("impersonate-on:{mode}:{}", attributes.verb);
                super::forbidden(user, &Attributes { verb: &verb, ..*attributes })
            }
            Target::Path { verb, path } => super::forbidden_path(user, &format!("impersonate-on:{mode}:{verb}"), path),
        }
    }
}
