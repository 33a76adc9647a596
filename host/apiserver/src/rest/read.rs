//! GET of one object and of many.

use super::Call;
use super::change::Outcome;
use crate::response::ResponseBody;
use crate::selector::Selector;
use crate::status::Status;
use crate::store::{Key, Listing, Object, OutOfRange};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Response;
use serde_json::{Value, json};
use std::sync::Arc;

/// Where a list goes on: the revision it shows, and the key after which.
struct Continue {
    revision: u64,
    after: Key,
}

impl Continue {
    fn token(&self) -> String {
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": format!("{}/{}", self.after.namespace, self.after.name)});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn parse(token: &str) -> Result<Continue, Status> {
        let invalid = || Status::bad_request("continue key is not valid: it was not made by this server");
        let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|_| invalid())?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| invalid())?;
        let revision = value.get("rv").and_then(Value::as_u64).ok_or_else(invalid)?;
        let start = value.get("start").and_then(Value::as_str).ok_or_else(invalid)?;
        let (namespace, name) = start.split_once('/').ok_or_else(invalid)?;
        Ok(Continue { revision, after: Key::new(namespace, name) })
    }
}

impl Call<'_> {
    pub(super) fn selector(&self) -> Result<Selector, Status> {
        Selector::parse(self.query.get("labelSelector"), self.query.get("fieldSelector"), &self.version.selectable)
    }

    pub(super) async fn get(&self) -> Result<Response<ResponseBody>, Status> {
        self.form()?;
        let store = &self.server.inner.options.store;
        let object = store.get(&self.resource.collection, &self.key()).ok_or_else(|| self.not_found())?;
        store.settled(object.revision).await?;
        self.render(200, &Outcome::Stored(object), &[])
    }

    pub(super) async fn list(&self) -> Result<Response<ResponseBody>, Status> {
        let form = self.form()?;
        let (objects, metadata) = self.page().await?;
        self.render_list(objects, &metadata, form)
    }

    async fn page(&self) -> Result<(Vec<Arc<Object>>, Value), Status> {
        let selector = self.selector()?;
        let asked = self.query.revision()?;
        let matching = self.query.get("resourceVersionMatch");
        let limit = self.query.number("limit")?.unwrap_or(0).max(0) as usize;
        let from = self.query.get("continue").map(Continue::parse).transpose()?;
        check_match(asked, matching, from.is_some())?;
        let exact = match (&from, matching) {
            (Some(from), _) => Some(from.revision),
            (None, Some("Exact")) => asked,
            // Anything at least as new as asked for will do, and nothing is newer than now.
            (None, _) => None,
        };
        let store = &self.server.inner.options.store;
        let after = from.as_ref().map(|from| &from.after);
        let listing = store.list(&self.resource.collection, &self.path.namespace, after, exact).map_err(|out| match out {
            OutOfRange::TooOld { .. } if from.is_some() => {
                Status::expired("The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.")
            }
            OutOfRange::TooOld { oldest } => too_old(exact.unwrap_or(0), oldest),
            OutOfRange::TooNew { current } => Status::too_large_revision(exact.unwrap_or(0), current),
        })?;
        let Listing { objects, revision, settled } = listing;
        if let Some(asked) = asked.filter(|asked| *asked > revision) {
            return Err(Status::too_large_revision(asked, revision));
        }
        store.settled(settled).await?;
        // Nothing changed here between what is settled and what was read; the revision told is one that a crash keeps.
        let revision = if exact.is_some() { revision } else { revision.min(store.durable()).max(settled) };
        let mut page = Vec::new();
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        let mut objects = objects.into_iter().filter(|object| after != Some(&object.key));
        while let Some(object) = objects.next() {
            let key = object.key.clone();
            if !selector.matches(&object) {
                continue;
            }
            page.push(object);
            if limit > 0 && page.len() == limit {
                let left: Vec<_> = objects.collect();
                let more = left.iter().any(|object| selector.matches(object));
                if more && let Some(fields) = metadata.as_object_mut() {
                    fields.insert("continue".into(), Continue { revision, after: key }.token().into());
                    if selector.is_empty() {
                        fields.insert("remainingItemCount".into(), left.len().into());
                    }
                }
                break;
            }
        }
        Ok((page, metadata))
    }

    /// The objects a collection request is about, in order.
    pub(super) fn selected(&self) -> Result<Vec<Arc<Object>>, Status> {
        let selector = self.selector()?;
        let store = &self.server.inner.options.store;
        let listing = store.list(&self.resource.collection, &self.path.namespace, None, None);
        let objects = listing.map_err(|_| Status::internal("the current state cannot be listed"))?.objects;
        Ok(objects.into_iter().filter(|object| selector.matches(object)).collect())
    }
}

/// The past asked for is forgotten.
pub(super) fn too_old(asked: u64, oldest: u64) -> Status {
    Status::expired(format!("too old resource version: {asked} ({oldest})"))
}

/// The rules for `resourceVersionMatch` on lists.
fn check_match(asked: Option<u64>, matching: Option<&str>, goes_on: bool) -> Result<(), Status> {
    let forbidden = |why: &str| {
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: {why}");
        Err(Status::new(422, "Invalid", message).with_cause(
            "FieldValueForbidden",
            format!("Forbidden: {why}"),
            "resourceVersionMatch",
        ))
    };
    match matching {
        None => {
            if goes_on && asked.is_some_and(|asked| asked != 0) {
                return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
            }
            Ok(())
        }
        Some("Exact" | "NotOlderThan") if goes_on => {
            forbidden("resourceVersionMatch is forbidden when continue is provided")
        }
        Some("Exact" | "NotOlderThan") if asked.is_none() => {
            forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided")
        }
        Some("Exact") if asked == Some(0) => {
            forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"")
        }
        Some("Exact" | "NotOlderThan") => Ok(()),
        Some(other) => {
            let message = format!(
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
            );
            Err(Status::new(422, "Invalid", message))
        }
    }
}
