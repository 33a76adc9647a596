//! GET of one object and of many.

use super::Call;
use super::change::Outcome;
use crate::request::AnswerForm;
use crate::response::ResponseBody;
use crate::schema::FieldError;
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
        let (labels, fields) = (self.query.get("labelSelector"), self.query.get("fieldSelector"));
        let selectable = &self.version.selectable;
        Selector::parse(labels, fields, selectable, !self.resource.custom && selectable.is_empty())
    }

    pub(super) async fn get(&self) -> Result<Response<ResponseBody>, Status> {
        self.form()?;
        let store = &self.server.inner.options.store;
        let asked =
            self.query.get("resourceVersion").map(|text| text.parse::<u64>().map_err(|_| unreadable(text))).transpose();
        let asked = asked.map_err(|why| Status::new(500, "", why))?;
        if let Some(asked) = asked.filter(|asked| *asked > store.revision()) {
            return Err(Status::too_large_revision(asked, store.revision()));
        }
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
        // Any state will do, so there is nothing to gain from pages of one.
        let limit = if asked == Some(0) && matching.is_none() { 0 } else { limit };
        let from = self.query.get("continue").map(Continue::parse).transpose()?;
        check_match(asked, matching, from.is_some(), self.query.get("sendInitialEvents").is_some())?;
        let exact = match (&from, matching) {
            (Some(from), _) => Some(from.revision),
            (None, Some("Exact")) => asked,
            // A page of a state is of that state.
            (None, None) if limit > 0 => asked.filter(|asked| *asked > 0),
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
        let mut metadata = self.list_metadata(revision);
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

    /// The metadata of a list. Lists of custom resources always say where they go on.
    pub(super) fn list_metadata(&self, revision: u64) -> Value {
        let revision = revision.to_string();
        if self.resource.custom && self.form().is_ok_and(|form| form == AnswerForm::Object) {
            json!({"continue": "", "resourceVersion": revision})
        } else {
            json!({"resourceVersion": revision})
        }
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

/// What Go says of a revision that is no number.
pub(super) fn unreadable(text: &str) -> String {
    format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
}

/// The past asked for is forgotten.
pub(super) fn too_old(asked: u64, oldest: u64) -> Status {
    Status::expired(format!("too old resource version: {asked} ({oldest})"))
}

/// The rules for `resourceVersionMatch` on lists.
fn check_match(asked: Option<u64>, matching: Option<&str>, goes_on: bool, initial: bool) -> Result<(), Status> {
    if matching.is_none() && goes_on && asked.is_some_and(|asked| asked != 0) {
        return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
    }
    let forbidden = |why: &str| FieldError::forbidden("resourceVersionMatch", why);
    let mut errors = Vec::new();
    match matching {
        Some("Exact" | "NotOlderThan") if goes_on => {
            errors.push(forbidden("resourceVersionMatch is forbidden when continue is provided"));
        }
        Some("Exact" | "NotOlderThan") if asked.is_none() => {
            errors.push(forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        Some("Exact") if asked == Some(0) => {
            errors.push(forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""));
        }
        None | Some("Exact" | "NotOlderThan") => {}
        Some(other) => {
            let known = ["Exact", "NotOlderThan", ""];
            errors.push(FieldError::not_supported("resourceVersionMatch", other, known));
        }
    }
    if initial {
        errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid_options("List", &errors)) }
}
