//! What a request asks for: its path and its query, taken apart.

use crate::schema::FieldError;
use crate::status::Status;
use http::{HeaderMap, Uri, header};

/// A path, taken apart as far as that goes without knowing which resources there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// `/api/…` and `/apis/…` below a version.
    Resource(ResourcePath),
    /// `/api`, `/apis`.
    Groups { legacy: bool },
    /// `/apis/<group>`.
    Group { group: String },
    /// `/api/v1`, `/apis/<group>/<version>`.
    Version { group: String, version: String },
    /// Anything else, without its leading slash.
    Other(String),
}

/// A path to objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourcePath {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub resource: String,
    pub name: String,
    pub subresource: String,
    /// What follows `nodes/<name>/proxy`, as it was sent.
    pub rest: String,
}

impl Path {
    pub fn parse(uri: &Uri) -> Result<Path, Status> {
        let path = uri.path().trim_start_matches('/');
        let segments: Vec<String> = path
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(decode)
            .collect::<Option<_>>()
            .ok_or_else(Status::no_such_path)?;
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        Ok(match segments.as_slice() {
            ["api"] => Path::Groups { legacy: true },
            ["apis"] => Path::Groups { legacy: false },
            ["apis", group] => Path::Group { group: (*group).to_owned() },
            ["api", version] => Path::Version { group: String::new(), version: (*version).to_owned() },
            ["apis", group, version] => Path::Version { group: (*group).to_owned(), version: (*version).to_owned() },
            ["api", version, "nodes", name, "proxy", ..] => Path::Resource(ResourcePath {
                version: (*version).to_owned(),
                resource: String::from("nodes"),
                name: (*name).to_owned(),
                subresource: String::from("proxy"),
                rest: after(path, 5).to_owned(),
                ..ResourcePath::default()
            }),
            ["api", version, rest @ ..] => Path::Resource(ResourcePath::parse("", version, rest)?),
            ["apis", group, version, rest @ ..] => Path::Resource(ResourcePath::parse(group, version, rest)?),
            other => Path::Other(other.join("/")),
        })
    }
}

impl ResourcePath {
    fn parse(group: &str, version: &str, rest: &[&str]) -> Result<ResourcePath, Status> {
        let (namespace, rest) = match rest {
            // `namespaces/<name>`, `namespaces/<name>/status` are about the namespace itself.
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (*namespace, inside),
            _ => ("", rest),
        };
        let mut path = ResourcePath {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            ..ResourcePath::default()
        };
        match rest {
            [resource] => path.resource = (*resource).to_owned(),
            [resource, name] => {
                path.resource = (*resource).to_owned();
                path.name = (*name).to_owned();
            }
            [resource, name, subresource] => {
                path.resource = (*resource).to_owned();
                path.name = (*name).to_owned();
                path.subresource = (*subresource).to_owned();
            }
            _ => return Err(Status::no_such_path()),
        }
        Ok(path)
    }
}

/// What follows the first segments of a path, with its slashes.
fn after(path: &str, segments: usize) -> &str {
    let mut rest = path;
    for _ in 0..segments {
        let segment = rest.trim_start_matches('/');
        rest = segment.find('/').and_then(|end| segment.get(end..)).unwrap_or_default();
    }
    rest
}

/// Undoes percent encoding. None when it is no UTF-8.
fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| byte.and_then(|b| char::from(b).to_digit(16));
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push((high * 16 + low) as u8);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

/// The query of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
}

impl Query {
    pub fn parse(uri: &Uri) -> Result<Query, Status> {
        let mut pairs = Vec::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let part = |text: &str| decode(&text.replace('+', " "));
            // What is not properly encoded is not there, as with Go's parser.
            if let (Some(name), Some(value)) = (part(name), part(value)) {
                pairs.push((name, value));
            }
        }
        Ok(Query { pairs })
    }

    /// A parameter; an empty one counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(own, value)| own == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// A parameter as often as it is there.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.pairs.iter().filter(move |(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// A boolean parameter. Present without a value it is true, as Kubernetes has it.
    pub fn flag(&self, name: &str) -> Option<bool> {
        let (_, value) = self.pairs.iter().find(|(own, _)| own == name)?;
        Some(!matches!(value.as_str(), "false" | "0" | "f" | "F" | "False" | "FALSE"))
    }

    /// A number.
    pub fn number(&self, name: &str) -> Result<Option<i64>, Status> {
        let parse = |text: &str| {
            text.parse()
                .map_err(|_| Status::bad_request(format!("the query parameter {name} must be a number, not {text:?}")))
        };
        self.get(name).map(parse).transpose()
    }

    /// `resourceVersion`: None when unset, an error when it is no number.
    pub fn revision(&self) -> Result<Option<u64>, Status> {
        let Some(text) = self.get("resourceVersion") else { return Ok(None) };
        let invalid = || {
            Status::bad_request(format!(
                "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: \
                 invalid syntax"
            ))
        };
        text.parse().map(Some).map_err(|_| invalid())
    }

    /// `dryRun`: only `All` is known. `options` names the options for a refusal (`Create`).
    pub fn dry_run(&self, options: &str) -> Result<bool, Status> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => Err(Status::invalid_options(
                options,
                &[FieldError::not_supported("dryRun", serde_json::json!([other]), ["All"])],
            )),
        }
    }

    /// `fieldValidation`.
    pub fn field_validation(&self, options: &str) -> Result<FieldValidation, Status> {
        match self.get("fieldValidation") {
            None | Some("Warn") => Ok(FieldValidation::Warn),
            Some("Strict") => Ok(FieldValidation::Strict),
            Some("Ignore") => Ok(FieldValidation::Ignore),
            Some(other) => Err(Status::invalid_options(
                options,
                &[FieldError::not_supported("fieldValidation", other, ["", "Ignore", "Strict", "Warn"])],
            )),
        }
    }
}

/// What happens to fields that the schema does not know or that are there twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The form a body is in, as `Content-Type` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyForm {
    Json,
    Yaml,
    Protobuf,
    JsonPatch,
    MergePatch,
    StrategicPatch,
    ApplyPatch,
    Unknown,
}

impl BodyForm {
    pub fn of(headers: &HeaderMap) -> BodyForm {
        let Some(value) = headers.get(header::CONTENT_TYPE) else { return BodyForm::Json };
        let essence = value.to_str().unwrap_or("?").split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "" | "application/json" => BodyForm::Json,
            "application/yaml" | "text/yaml" | "application/x-yaml" => BodyForm::Yaml,
            "application/vnd.kubernetes.protobuf" => BodyForm::Protobuf,
            "application/json-patch+json" => BodyForm::JsonPatch,
            "application/merge-patch+json" => BodyForm::MergePatch,
            "application/strategic-merge-patch+json" => BodyForm::StrategicPatch,
            "application/apply-patch+yaml" | "application/apply-patch+json" => BodyForm::ApplyPatch,
            _ => BodyForm::Unknown,
        }
    }
}

/// The form an answer is wanted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    Object,
    Table,
    Metadata,
}

/// One entry of an Accept header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub essence: String,
    pub kind: String,
    pub group: String,
    pub version: String,
}

/// The entries of the Accept header, in the order given (clients list the best first).
pub(crate) fn accepted(headers: &HeaderMap) -> Vec<Accepted> {
    let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut entries = Vec::new();
    for entry in values.flat_map(|value| value.split(',')) {
        let mut parts = entry.split(';').map(str::trim);
        let mut accepted =
            Accepted { essence: parts.next().unwrap_or_default().to_ascii_lowercase(), ..Accepted::default() };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "as" => accepted.kind = value.to_owned(),
                "g" => accepted.group = value.to_owned(),
                "v" => accepted.version = value.to_owned(),
                _ => {}
            }
        }
        if !accepted.essence.is_empty() {
            entries.push(accepted);
        }
    }
    entries
}

impl AnswerForm {
    /// The first form of the Accept header that we have.
    pub fn of(headers: &HeaderMap) -> Result<AnswerForm, Status> {
        let entries = accepted(headers);
        if entries.is_empty() {
            return Ok(AnswerForm::Object);
        }
        for entry in entries {
            let ours = matches!(entry.essence.as_str(), "application/json" | "*/*" | "application/*");
            match (ours, entry.kind.as_str()) {
                (true, "") => return Ok(AnswerForm::Object),
                (true, "Table") if entry.version == "v1" => return Ok(AnswerForm::Table),
                (true, "PartialObjectMetadata" | "PartialObjectMetadataList") if entry.version == "v1" => {
                    return Ok(AnswerForm::Metadata);
                }
                _ => {}
            }
        }
        Err(Status::not_acceptable())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn path(text: &str) -> Path {
        Path::parse(&text.parse().unwrap()).unwrap()
    }

    fn resource(text: &str) -> ResourcePath {
        match path(text) {
            Path::Resource(resource) => resource,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn paths() {
        let pods = resource("/api/v1/namespaces/ns/pods/p/eviction");
        assert_eq!(
            (pods.namespace.as_str(), pods.resource.as_str(), pods.name.as_str(), pods.subresource.as_str()),
            ("ns", "pods", "p", "eviction")
        );
        let namespace = resource("/api/v1/namespaces/ns/status");
        assert_eq!(
            (namespace.resource.as_str(), namespace.name.as_str(), namespace.subresource.as_str()),
            ("namespaces", "ns", "status")
        );
        let role = resource("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode");
        assert_eq!(role.name, "system:node");
        for (text, name, rest) in [
            ("/api/v1/nodes/n/proxy", "n", ""),
            ("/api/v1/nodes/n/proxy/", "n", "/"),
            ("/api/v1/nodes/https:n:10250/proxy/pods", "https:n:10250", "/pods"),
            ("//api/v1/nodes//n/proxy/logs/a%2Fb//c/", "n", "/logs/a%2Fb//c/"),
        ] {
            let proxy = resource(text);
            assert_eq!((proxy.name.as_str(), proxy.subresource.as_str(), proxy.rest.as_str()), (name, "proxy", rest));
        }
        assert_eq!(path("/apis/"), Path::Groups { legacy: false });
        assert_eq!(path("/healthz/ping"), Path::Other("healthz/ping".into()));
        assert!(Path::parse(&"/api/v1/pods/%ff".parse().unwrap()).is_err());
        assert!(Path::parse(&"/api/v1/namespaces/a/pods/b/c/d".parse().unwrap()).is_err());
    }

    #[test]
    fn queries() {
        let query =
            Query::parse(&"/x?a=b%3Dc&watch&n=1&e=&dryRun=All&labelSelector=a+in+(b)".parse().unwrap()).unwrap();
        assert_eq!(query.get("a"), Some("b=c"));
        assert_eq!(query.get("e"), None);
        assert_eq!(query.get("labelSelector"), Some("a in (b)"));
        assert_eq!(query.flag("watch"), Some(true));
        assert_eq!(query.number("n").unwrap(), Some(1));
        assert!(query.number("a").is_err());
        assert!(query.dry_run("Create").unwrap());
    }

    #[test]
    fn forms() {
        let form = |accept: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
            AnswerForm::of(&headers)
        };
        assert_eq!(form("application/json;as=Table;v=v1;g=meta.k8s.io,application/json").unwrap(), AnswerForm::Table);
        assert_eq!(form("application/vnd.kubernetes.protobuf, application/json").unwrap(), AnswerForm::Object);
        assert_eq!(
            form("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").unwrap(),
            AnswerForm::Metadata
        );
        assert_eq!(form("application/vnd.kubernetes.protobuf").unwrap_err().code, 406);
    }
}
