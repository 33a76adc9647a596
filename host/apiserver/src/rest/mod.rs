//! Requests about objects: which there are, and the way each takes.

mod body;
mod change;
mod connect;
mod create;
mod delete;
mod patch;
mod read;
mod render;
mod reviews;
mod scale;
mod token;
mod watch;

pub(crate) use change::{FOREGROUND, ORPHAN, is_finished};
pub(crate) use connect::{Connecting, Connection, Upgrade};
pub(crate) use delete::{DeleteOptions, Policy, delete_object};
pub(crate) use reviews::REVIEWS;

use crate::auth::Attributes;
use crate::catalog::{Resource, Version};
use crate::kinds;
use crate::options::User;
use crate::request::{AnswerForm, Query, ResourcePath};
use crate::response::{self, ResponseBody};
use crate::schema::FieldError;
use crate::schema::Kind;
use crate::server::{ApiServer, refuse};
use crate::status::Status;
use crate::store::Key;
use bytes::Bytes;
use http::{HeaderMap, Method, Response, header};
use jiff::Timestamp;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::sync::CancellationToken;

/// A request about a resource that is served, by somebody who may make it.
pub(crate) struct Call<'a> {
    pub server: &'a ApiServer,
    pub user: User,
    pub resource: Arc<Resource>,
    pub version: Arc<Version>,
    pub path: ResourcePath,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub verb: Verb,
    /// What the client is warned of whatever becomes of the request.
    pub complaints: Mutex<Vec<String>>,
    /// Answers leave managed fields out.
    pub lean: bool,
    /// Ends with the connection's server.
    pub shutdown: Option<CancellationToken>,
}

/// What is to be done, in Kubernetes' words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn of(method: &Method, path: &ResourcePath, query: &Query) -> Option<Verb> {
        let named = !path.name.is_empty();
        Some(match *method {
            Method::GET if query.flag("watch") == Some(true) && !named => Verb::Watch,
            Method::GET if named => Verb::Get,
            Method::GET => Verb::List,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if named => Verb::Delete,
            Method::DELETE => Verb::DeleteCollection,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Patch => "patch",
            Verb::Delete => "delete",
            Verb::DeleteCollection => "deletecollection",
        }
    }
}

/// Now, as Kubernetes writes it: whole seconds in UTC.
pub(crate) fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl ResourcePath {
    /// What a request with this path wants to do.
    pub fn attributes(&self, verb: Verb) -> Attributes<'_> {
        self.asks(verb.name())
    }

    /// The same, in Kubernetes' word for it.
    pub fn asks(&self, verb: &'static str) -> Attributes<'_> {
        Attributes {
            verb,
            group: &self.group,
            resource: &self.resource,
            subresource: &self.subresource,
            namespace: &self.namespace,
            name: &self.name,
        }
    }
}

/// What a request about objects comes with.
pub(crate) struct Incoming {
    pub user: User,
    pub path: ResourcePath,
    pub query: Query,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub lean: bool,
    pub shutdown: Option<CancellationToken>,
}

/// Answers a request about objects.
pub(crate) async fn answer(
    server: &ApiServer,
    verb: Verb,
    incoming: Incoming,
) -> Result<Response<ResponseBody>, Status> {
    if let Some(answer) = reviews::answer(server, verb, &incoming) {
        return answer;
    }
    let Incoming { user, path, query, headers, body, lean, shutdown } = incoming;
    server.authorize(&user, &path.attributes(verb))?;
    let catalog = server.catalog();
    // A built-in group knows its versions and says what they lack; of all else there is nobody who could say anything.
    let absent = || {
        let built_in = catalog.group(&path.group).any(|resource| !resource.custom);
        if built_in { Status::no_such_path() } else { Status::no_such_page() }
    };
    let resource = catalog.get(&path.group, &path.resource).ok_or_else(absent)?.clone();
    let version = resource.version(&path.version).ok_or_else(absent)?.clone();
    let none = if resource.custom { Status::no_such_page } else { Status::no_such_path };
    let complaints = Mutex::default();
    let call = Call { server, user, resource, version, path, query, headers, body, verb, complaints, lean, shutdown };
    let subresource = call.path.subresource.as_str();
    if !subresource.is_empty() && !call.version.subresources.iter().any(|own| own == subresource) {
        return Err(if call.resource.custom { call.not_found() } else { Status::no_such_path() });
    }
    if !call.resource.namespaced && !call.path.namespace.is_empty() {
        return Err(none());
    }
    if call.resource.namespaced && call.path.namespace.is_empty() {
        // Across namespaces one can only look.
        if !matches!(verb, Verb::List | Verb::Watch) {
            let creates = subresource.is_empty() && matches!(verb, Verb::Create | Verb::DeleteCollection);
            return Err(if !creates { none() } else { Status::method_not_allowed() });
        }
    }
    let answer = call.dispatch().await;
    let mut answer = match answer {
        // What was read of the request warns in the answer itself; of a deletion nothing is read.
        Ok(answer) if !matches!(verb, Verb::Delete | Verb::DeleteCollection) => answer,
        other => {
            let mut answer = other.unwrap_or_else(|status| refuse(&status));
            for complaint in call.complaints.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                response::warn(&mut answer, complaint);
            }
            answer
        }
    };
    if let Some(warning) = &call.version.deprecated {
        response::warn(&mut answer, warning);
    }
    Ok(answer)
}

impl Call<'_> {
    async fn dispatch(&self) -> Result<Response<ResponseBody>, Status> {
        let call = self;
        match (self.path.subresource.as_str(), self.verb) {
            ("", Verb::Update | Verb::Patch) if call.path.name.is_empty() => Err(Status::method_not_allowed()),
            ("", Verb::Get) => call.get().await,
            ("", Verb::List) => call.list().await,
            ("", Verb::Watch) => call.watch().await,
            ("", Verb::Create) if call.path.name.is_empty() => call.create().await,
            ("", Verb::Delete) => call.delete().await,
            ("", Verb::DeleteCollection) if kinds::is_namespace(&call.resource) => Err(Status::method_not_allowed()),
            ("", Verb::DeleteCollection) => call.delete_collection().await,
            ("scale", Verb::Get) => call.get_scale().await,
            ("scale", Verb::Update | Verb::Patch) => call.change_scale(call.verb).await,
            ("eviction", Verb::Create) => call.evict().await,
            ("binding", Verb::Create) => call.bind().await,
            ("token", Verb::Create) => call.token(),
            ("status" | "finalize" | "approval", Verb::Get) => call.get().await,
            ("" | "status" | "finalize" | "approval" | "ephemeralcontainers" | "resize", Verb::Update) => {
                call.update().await
            }
            ("" | "status" | "finalize" | "approval" | "ephemeralcontainers" | "resize", Verb::Patch) => {
                call.patch().await
            }
            _ => Err(Status::method_not_allowed()),
        }
    }

    /// What the options of this request are called in refusals.
    pub fn options(&self) -> &'static str {
        match self.verb {
            Verb::Create => "Create",
            Verb::Update => "Update",
            Verb::Patch => "Patch",
            Verb::Delete | Verb::DeleteCollection => "Delete",
            Verb::Get | Verb::List | Verb::Watch => "List",
        }
    }

    /// The kind as this request speaks of it, for those who keep track of who owns what.
    pub fn kind(&self) -> Kind<'_> {
        Kind { schema: self.version.schema(), versions: Some(&*self.resource) }
    }

    pub fn key(&self) -> Key {
        Key::new(&self.path.namespace, &self.path.name)
    }

    pub fn form(&self) -> Result<AnswerForm, Status> {
        AnswerForm::of(&self.headers)
    }

    pub fn not_found(&self) -> Status {
        Status::not_found(&self.resource.group, &self.resource.plural, &self.path.name)
    }

    /// A manager's name has a length.
    pub fn check_manager(&self) -> Result<(), Status> {
        const LONGEST: usize = 128;
        if self.query.get("fieldManager").is_some_and(|manager| manager.len() > LONGEST) {
            return Err(Status::invalid_options(
                self.options(),
                &[FieldError::too_long("fieldManager", LONGEST as u64)],
            ));
        }
        Ok(())
    }

    /// Who owns the fields that this request sets.
    pub fn manager(&self) -> String {
        if let Some(manager) = self.query.get("fieldManager") {
            return manager.to_owned();
        }
        let agent = self.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or("unknown");
        let name: String =
            agent.split('/').next().unwrap_or(agent).chars().filter(|c| !c.is_control()).take(128).collect();
        if name.is_empty() { String::from("unknown") } else { name }
    }
}
