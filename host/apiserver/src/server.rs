//! The server: its parts, and the way a request takes through them.

use crate::admission::{Known, Policies};
use crate::auth::impersonation::Target;
use crate::auth::tokens::Signer;
use crate::auth::{Authenticator, rbac};
use crate::background::Background;
use crate::catalog::{self, Catalog, Resource, crd};
use crate::metrics::{Metrics, RequestLabels};
use crate::options::{Builtins, Options, User};
use crate::request::{BodyForm, Path, Query};
use crate::response::{self, ResponseBody};
use crate::rest::{self, Connecting, Connection, Incoming, Upgrade, Verb};
use crate::status::{NO_OBJECT, Status};
use crate::store::{Change, Draft, Key, Object, Refusal, Store};
use crate::webhooks::Configuration;
use crate::{discovery, kinds, openapi};
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, HeaderValue, Method, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::json;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use tokio_util::sync::CancellationToken;

/// The greatest body of a request, in bytes, as in Kubernetes.
pub(crate) const BODY_LIMIT: usize = 3 << 20;

/// Why a server cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// The certificates cannot be used.
    #[error("the client certificate authorities cannot be used: {0}")]
    Certificates(String),
}

/// An API server. Cheap to clone: all clones are one server.
#[derive(Clone)]
pub struct ApiServer {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub options: Options,
    pub metrics: Metrics,
    pub authenticator: Authenticator,
    pub signer: Signer,
    pub background: Background,
    pub policies: Policies,
    /// The webhooks in the store: mutating ones, validating ones.
    pub hooks: [Known<Configuration>; 2],
    catalog: RwLock<Arc<Catalog>>,
    /// Held while a definition is read and the catalog made from it, so that the last one stored wins.
    definitions: Mutex<()>,
}

/// On whose behalf a request is answered, and how.
pub(crate) struct Caller {
    /// An error when the caller showed a certificate or a token of nobody known.
    pub user: Result<User, Status>,
    /// Answers leave managed fields out.
    pub lean: bool,
    /// Ends with the connection's server.
    pub shutdown: Option<CancellationToken>,
    /// Where it is left how the connection goes on when it was upgraded.
    pub upgrade: Upgrade,
}

impl std::fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiServer({:?})", self.inner.options.store)
    }
}

impl ApiServer {
    /// Makes a server of these options. The default namespaces are made when they are missing; the kinds of the
    /// CustomResourceDefinitions in the store are served at once.
    pub fn new(options: Options) -> Result<ApiServer, Error> {
        let authenticator = Authenticator::new(&options.authentication)?;
        let namespaces: Arc<str> = "namespaces".into();
        for name in kinds::NAMESPACES {
            let key = Key::new("", name);
            if options.store.get(&namespaces, &key).is_some() {
                continue;
            }
            if let Err(Refusal::Failed(error)) =
                options.store.commit(&namespaces, &key, Change::Create(Draft::new(&kinds::namespace(name))))
            {
                return Err(error.into());
            }
        }
        if options.builtins == Builtins::Management {
            make_default_roles(&options.store)?;
        }
        let server = ApiServer {
            inner: Arc::new(Inner {
                metrics: Metrics::default(),
                authenticator,
                signer: Signer::new(options.token_secret.as_deref()),
                background: Background::default(),
                policies: Policies::default(),
                hooks: Default::default(),
                catalog: RwLock::new(catalog::builtins(options.builtins)),
                definitions: Mutex::default(),
                options,
            }),
        };
        if let Ok(listing) = server.inner.options.store.list(crd::COLLECTION, "", None, None)
            && !listing.objects.is_empty()
        {
            let mut catalog = (*server.catalog()).clone();
            for definition in listing.objects {
                let resource =
                    crd::resource(&definition.value_without_managed_fields(), &server.inner.options.conversion);
                if let Some(resource) = resource {
                    catalog.insert(Arc::new(resource));
                }
            }
            *server.inner.catalog.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalog);
        }
        Ok(server)
    }

    /// What is served now.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.inner.catalog.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The store behind it.
    pub fn store(&self) -> &crate::store::Store {
        &self.inner.options.store
    }

    /// Does, from now on and until `shutdown`, what Kubernetes' controllers do for any object: collects what lost its
    /// owners, empties and removes namespaces, forgets old Events. No task exists while there is nothing to do. Must be
    /// called inside a tokio runtime.
    pub fn background(&self, shutdown: CancellationToken) {
        self.start_background(shutdown);
    }

    /// How many changing requests were answered with 2xx or 409.
    pub fn requests_that_changed(&self) -> u64 {
        self.inner.metrics.changing()
    }

    /// The counters in Prometheus' text form, as `/metrics` serves them.
    pub fn metrics_text(&self) -> String {
        self.inner.metrics.text()
    }

    /// How many requests were answered, by verb, resource and status.
    pub fn request_counts(&self) -> BTreeMap<RequestLabels, u64> {
        self.inner.metrics.counts()
    }

    /// Told of every committed change.
    pub(crate) fn committed(&self, resource: &Arc<Resource>, before: Option<&Object>, after: &Object, gone: bool) {
        if &*resource.collection == crd::COLLECTION {
            self.refresh_definition(&after.key);
        }
        self.notice(resource, before, after, gone);
    }

    /// Serves what a definition now says.
    fn refresh_definition(&self, key: &Key) {
        let _turn = self.inner.definitions.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = self.inner.options.store.get(crd::COLLECTION, key);
        let stored = stored.map(|definition| definition.value_without_managed_fields());
        let (plural, group) = key.name.split_once('.').unwrap_or((&key.name, ""));
        let catalog = self.catalog();
        let fingerprint = stored.as_ref().map(crd::fingerprint);
        let serving = catalog.get(group, plural).filter(|resource| resource.custom);
        if serving.is_some() && serving.map(|resource| &resource.fingerprint) == fingerprint.as_ref() {
            return;
        }
        let resource = stored.and_then(|definition| crd::resource(&definition, &self.inner.options.conversion));
        if resource.is_none() && serving.is_none() {
            return;
        }
        let mut next = (*catalog).clone();
        match resource {
            Some(resource) => next.insert(Arc::new(resource)),
            None => next.remove(group, plural),
        }
        *self.inner.catalog.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(next);
    }

    /// Answers one request.
    pub(crate) async fn answer<B>(&self, caller: Caller, request: Request<B>) -> Response<ResponseBody>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut labels = RequestLabels { verb: method_name(request.method()), ..RequestLabels::default() };
        let head = request.method() == Method::HEAD;
        // Nothing is known to panic; should something, the one request fails and says so.
        let answer = AssertUnwindSafe(self.route(caller, request, &mut labels)).catch_unwind().await;
        let answer = answer.unwrap_or_else(|_| Err(Status::internal("the request made the server panic; see its log")));
        let mut answer = answer.unwrap_or_else(|status| refuse(&status));
        labels.code = answer.status().as_u16();
        tracing::debug!(
            verb = labels.verb,
            group = labels.group,
            resource = labels.resource,
            subresource = labels.subresource,
            code = labels.code,
            "answered"
        );
        self.inner.metrics.count(labels);
        if head {
            *answer.body_mut() = ResponseBody::full(Bytes::new());
        }
        answer
    }

    async fn route<B>(
        &self,
        caller: Caller,
        request: Request<B>,
        labels: &mut RequestLabels,
    ) -> Result<Response<ResponseBody>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let Caller { user, lean, shutdown, upgrade } = caller;
        let user = user?;
        let (parts, body) = request.into_parts();
        let path = Path::parse(&parts.uri)?;
        let query = Query::parse(&parts.uri)?;
        let path = match path {
            Path::Resource(path) => path,
            other => {
                if !matches!(parts.method, Method::GET | Method::HEAD) {
                    return Err(Status::method_not_allowed());
                }
                let (verb, wanted) = (method_name(&parts.method), parts.uri.path().trim_start_matches('/'));
                let user = self.impersonate(user, &parts.headers, &Target::Path { verb, path: wanted })?;
                self.authorize_path(&user, verb, wanted)?;
                return self.document(&other, &parts.headers, query.flag("verbose") == Some(true));
            }
        };
        if let Some(connection) = Connection::of(self, &path) {
            labels.verb = "connect";
            labels.resource.clone_from(&path.resource);
            labels.subresource.clone_from(&path.subresource);
            let target = Target::Resource(path.asks(Connection::verb(&parts.method)));
            let user = self.impersonate(user, &parts.headers, &target)?;
            return Connecting { user, path, query, parts, body, upgrade }.answer(self, connection).await;
        }
        let verb = Verb::of(&parts.method, &path, &query).ok_or_else(Status::method_not_allowed)?;
        labels.verb = verb.name();
        let user = self.impersonate(user, &parts.headers, &Target::Resource(path.attributes(verb)))?;
        // Only names of what is served become labels: a client must not be able to fill the counters.
        if let Some(resource) = self.catalog().get(&path.group, &path.resource) {
            labels.group.clone_from(&path.group);
            labels.resource.clone_from(&path.resource);
            if resource.versions.iter().any(|version| version.subresources.contains(&path.subresource)) {
                labels.subresource.clone_from(&path.subresource);
            }
        }
        if verb == Verb::Patch && BodyForm::of(&parts.headers) == BodyForm::ApplyPatch {
            labels.verb = "apply";
        }
        let body = match verb {
            Verb::Get | Verb::List | Verb::Watch => Bytes::new(),
            _ => read_body(body).await?,
        };
        rest::answer(self, verb, Incoming { user, path, query, headers: parts.headers, body, lean, shutdown }).await
    }

    /// What is no resource: discovery, OpenAPI, version, health, metrics.
    fn document(&self, path: &Path, headers: &HeaderMap, verbose: bool) -> Result<Response<ResponseBody>, Status> {
        let catalog = self.catalog();
        match path {
            Path::Groups { legacy } => Ok(discovery::groups(&catalog, *legacy, headers)),
            Path::Group { group } => discovery::group(&catalog, group),
            Path::Version { group, version } => discovery::version(&catalog, group, version),
            Path::Other(path) => match path.as_str() {
                "" => {
                    let paths =
                        ["/api", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v3", "/readyz", "/version"];
                    Ok(response::value(200, &json!({"paths": paths})))
                }
                "livez/ping" | "healthz/ping" | "readyz/ping" => Ok(response::text(200, "ok")),
                "livez" if !verbose => Ok(response::text(200, "ok")),
                name @ ("healthz" | "livez" | "readyz") => match self.inner.options.store.check() {
                    Ok(()) if verbose => {
                        Ok(response::text(200, format!("[+]ping ok\n[+]store ok\n{name} check passed\n")))
                    }
                    Ok(()) => Ok(response::text(200, "ok")),
                    Err(error) => Ok(response::text(500, format!("[-]store failed: {error}\n"))),
                },
                "version" => Ok(response::value(200, &self.version())),
                "metrics" => {
                    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
                    Ok(response::typed(200, kind, self.inner.metrics.text()))
                }
                "openapi/v2" => Ok(openapi::version_2(headers)),
                "openapi/v3" => Ok(openapi::index(&catalog)),
                other if other.starts_with("version/") => Err(Status::no_such_path()),
                other => match other.strip_prefix("openapi/v3/") {
                    Some(document) => openapi::document(&catalog, document),
                    None => Err(Status::no_such_page()),
                },
            },
            Path::Resource(_) => Err(Status::no_such_path()),
        }
    }

    fn version(&self) -> serde_json::Value {
        let version = &self.inner.options.version;
        let mut numbers = version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        json!({
            "major": major, "minor": minor, "gitVersion": version, "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
            "platform": format!("{}/{}", std::env::consts::OS, if cfg!(target_arch = "x86_64") { "amd64" } else { std::env::consts::ARCH }),
        })
    }
}

/// Makes the roles and bindings that every cluster has, where they are missing. A workload cluster's are known without.
fn make_default_roles(store: &Store) -> Result<(), Error> {
    for (collection, object) in rbac::defaults() {
        let name = object.pointer("/metadata/name").and_then(serde_json::Value::as_str).unwrap_or_default();
        let key = Key::new("", name);
        if store.get(collection, &key).is_some() {
            continue;
        }
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(serde_json::Value::as_object_mut) {
            metadata.insert("uid".into(), uuid::Uuid::new_v4().to_string().into());
            metadata.insert("creationTimestamp".into(), rest::now().into());
        }
        if let Err(Refusal::Failed(error)) = store.commit(&collection.into(), &key, Change::Create(Draft::new(&object)))
        {
            return Err(error.into());
        }
    }
    Ok(())
}

pub(crate) fn refuse(status: &Status) -> Response<ResponseBody> {
    if status.reason == NO_OBJECT {
        let mut answer = response::text(status.code, status.message.clone());
        if status.message.is_empty() {
            answer.headers_mut().remove(header::CONTENT_TYPE);
        }
        return answer;
    }
    let mut answer = response::value(status.code, &status.object());
    if let Some(seconds) = status.details.retry_after {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if status.code == 401 {
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

pub(crate) async fn read_body<B>(body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Box::pin(Limited::new(body, BODY_LIMIT).collect()).await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Status::too_large(BODY_LIMIT)),
        Err(error) => Err(Status::bad_request(format!("the body could not be read: {error}"))),
    }
}

fn method_name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}
