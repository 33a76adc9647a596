//! Manifests that a person hands over: read, checked as a whole, then applied.
//!
//! Promises: an error says file, line, path and reason; nothing is applied while anything in any of the files is
//! known to be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use capstan_api::{Object, ObjectKey};
use capstan_cluster::kinds::Resource;
use capstan_cluster::mirror::Mirror;
use capstan_cluster::wire::{PatchKind, WireError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::state_dir::replace;

/// The quickstart, so that the binary works anywhere.
const QUICKSTART: &str = include_str!("../../../examples/quickstart.yaml");

/// One document of a file.
#[derive(Clone, Debug)]
pub struct Document {
    /// The object; its namespace is filled in where it has one.
    pub object: Object,
    /// Name of the file, for messages.
    pub file: String,
    /// Line at which the document begins, from 1.
    pub line: usize,
    text: String,
}

/// The quickstart that the binary carries.
///
/// # Errors
/// None, unless the binary is broken.
pub fn quickstart() -> Result<Vec<Document>> {
    parse("examples/quickstart.yaml", QUICKSTART)
}

/// Reads files.
///
/// # Errors
/// All that is wrong in any of them.
pub fn read(files: &[PathBuf]) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for file in files {
        let name = file.display().to_string();
        let parsed = read_file(file).and_then(|text| parse(&name, &text));
        match parsed {
            Ok(parsed) if parsed.is_empty() => errors.push(format!("{name}: there is no object in it")),
            Ok(parsed) => documents.extend(parsed),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    let mut seen: BTreeMap<ObjectKey, String> = BTreeMap::new();
    for document in &documents {
        let at = format!("{}:{}", document.file, document.line);
        if let Some(first) = seen.insert(document.object.key(), at.clone()) {
            errors.push(format!("{at}: {} is already in {first}", document.object.key()));
        }
    }
    if errors.is_empty() { Ok(documents) } else { bail!(errors.join("\n")) }
}

fn read_file(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The documents of a file: YAML, separated by `---`.
fn parse(file: &str, text: &str) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    let mut errors = Vec::new();
    for (line, text) in split(text) {
        if text.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) {
            continue;
        }
        // Blank lines before it, so that errors name the line of the file.
        let padded = format!("{}{text}", "\n".repeat(line - 1));
        let value: Value = match serde_saphyr::from_str(&padded) {
            Ok(value) => value,
            Err(error) => {
                let at = error.location().map_or(line as u64, |l| l.line());
                errors.push(format!("{file}:{at}: {}", first_line(&error.to_string())));
                continue;
            }
        };
        let items = match value.get("items") {
            Some(Value::Array(items)) if value.get("kind").and_then(Value::as_str) == Some("List") => items.clone(),
            _ => vec![value],
        };
        for item in items {
            match check(item) {
                Ok(object) => {
                    documents.push(Document { object, file: file.to_owned(), line, text: text.clone() });
                }
                Err(error) => errors.push(format!("{file}:{line}: {error}")),
            }
        }
    }
    if errors.is_empty() { Ok(documents) } else { bail!(errors.join("\n")) }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// Line at which each document begins (from 1), and its text.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut documents = vec![(1, String::new())];
    for (index, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            documents.push((index + 2, String::new()));
        } else if line != "..."
            && let Some((_, document)) = documents.last_mut()
        {
            if document.is_empty() && line.trim().is_empty() {
                if let Some((start, _)) = documents.last_mut() {
                    *start += 1;
                }
                continue;
            }
            document.push_str(line);
            document.push('\n');
        }
    }
    documents
}

fn check(value: Value) -> Result<Object> {
    let object =
        Object::from_value(value).context("the document is no object; it must have apiVersion, kind and metadata")?;
    for (pointer, path) in [("/apiVersion", "apiVersion"), ("/kind", "kind"), ("/metadata/name", "metadata.name")] {
        match object.at(pointer) {
            Some(Value::String(text)) if !text.is_empty() => {}
            Some(Value::String(_)) | None => bail!("{path}: is missing"),
            Some(_) => bail!("{path}: must be a string"),
        }
    }
    if object.at("/metadata/namespace").is_some_and(|n| !n.is_string()) {
        bail!("metadata.namespace: must be a string");
    }
    Ok(object)
}

/// What was applied by earlier starts, so that what a person has changed since then is left alone.
#[derive(Default, Serialize, Deserialize)]
pub struct Applied {
    /// `group/kind/namespace/name` → digest of the document.
    documents: BTreeMap<String, String>,
}

impl Applied {
    /// Reads the record; none is an empty one.
    ///
    /// # Errors
    /// When there is one that cannot be read.
    pub fn load(path: &Path) -> Result<Self> {
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("{} cannot be read", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Whether any of these was ever applied.
    pub fn knows(&self, documents: &[Document]) -> bool {
        documents.iter().any(|document| self.documents.contains_key(&name_of(&document.object.key())))
    }

    fn is_unchanged(&self, document: &Document) -> bool {
        self.documents.get(&name_of(&document.object.key())) == Some(&digest(&document.object))
    }

    fn note(&mut self, document: &Document) {
        self.documents.insert(name_of(&document.object.key()), digest(&document.object));
    }
}

fn name_of(key: &ObjectKey) -> String {
    format!("{}/{}/{}/{}", key.group, key.kind, key.namespace, key.name)
}

fn digest(object: &Object) -> String {
    let bytes = serde_json::to_vec(object).unwrap_or_default();
    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Applies documents to the API server that `mirror` is of. What was applied before in the same form and is still
/// there is left alone. Returns the keys of all of them.
///
/// # Errors
/// All that is wrong with any of them; then nothing was applied.
pub async fn apply(mirror: &Mirror, documents: &mut [Document], record: &Path) -> Result<Vec<ObjectKey>> {
    let mut applied = Applied::load(record)?;
    let mut resources = Vec::with_capacity(documents.len());
    let mut errors = Vec::new();
    let own_namespaces: BTreeSet<String> = documents
        .iter()
        .filter(|d| d.object.kind() == "Namespace" && d.object.group().is_empty())
        .map(|d| d.object.name().to_owned())
        .collect();
    for document in documents.iter_mut() {
        match resource(mirror, document) {
            Ok(resource) => resources.push(resource),
            Err(error) => errors.push(format!("{}:{}: {error}", document.file, document.line)),
        }
    }
    if !errors.is_empty() {
        bail!(errors.join("\n"));
    }

    let mut wanted = Vec::new();
    for (document, resource) in documents.iter().zip(&resources) {
        let (namespace, name) = (document.object.namespace(), document.object.name());
        let there = mirror
            .wire()
            .get(resource, namespace, name)
            .await
            .with_context(|| format!("cannot read {}", document.object.key()))?;
        if there.is_some() && applied.is_unchanged(document) {
            continue;
        }
        wanted.push((document, resource));
        if own_namespaces.contains(namespace) {
            continue;
        }
        if let Err(error) = send(mirror, resource, &document.object, true).await {
            errors.push(explain(document, &error));
        }
    }
    if !errors.is_empty() {
        bail!(errors.join("\n"));
    }
    // Namespaces and CRDs first; the rest in the order of the files.
    wanted.sort_by_key(|(document, _)| !matches!(document.object.kind(), "Namespace" | "CustomResourceDefinition"));
    for (document, resource) in wanted {
        send(mirror, resource, &document.object, false)
            .await
            .map_err(|error| anyhow::anyhow!(explain(document, &error)))?;
        applied.note(document);
    }
    replace(record, &serde_json::to_vec_pretty(&applied).context("encode the record")?, 0o600)?;
    Ok(documents.iter().map(|document| document.object.key()).collect())
}

/// How a document's kind is addressed; fills in the namespace.
fn resource(mirror: &Mirror, document: &mut Document) -> Result<Resource> {
    let gvk = document.object.gvk();
    let definition = mirror.definition(&gvk.group, &gvk.kind).map_err(|_| {
        anyhow::anyhow!(
            "kind: no kind {} of {} is served here; see `kubectl get providermodules` for what was loaded",
            gvk.kind,
            gvk.api_version()
        )
    })?;
    let resource = definition.resource.in_version(&gvk.version);
    if resource.namespaced && document.object.namespace().is_empty() {
        document.object.set("/metadata/namespace", "default".into());
    }
    if !resource.namespaced && !document.object.namespace().is_empty() {
        bail!("metadata.namespace: {} lives in no namespace", gvk.kind);
    }
    Ok(resource)
}

async fn send(mirror: &Mirror, resource: &Resource, object: &Object, dry_run: bool) -> Result<Object, WireError> {
    mirror.wire().apply_strictly(resource, object, dry_run).await
}

fn explain(document: &Document, error: &WireError) -> String {
    let key = document.object.key();
    let message = match error {
        WireError::Refused { code: 404, message, .. } if message.contains("namespaces") => {
            format!("metadata.namespace: there is no namespace {}; create it, or put it into the file", key.namespace)
        }
        WireError::Refused { code: 404, .. } => {
            format!("the API server serves no {} in version {}", key.kind, document.object.gvk().version)
        }
        WireError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let line =
        field_of(&message).and_then(|path| line_of(&document.text, &path)).map_or(document.line, |l| document.line + l);
    format!("{}:{line}: {key}: {message}", document.file)
}

/// The field that a message of the API server names, such as `spec.clusterNetwerk` or `spec.files[0].path`.
fn field_of(message: &str) -> Option<String> {
    message
        .split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ':' | ',' | '`'))
        .map(|word| word.trim_matches(|c: char| !(c.is_alphanumeric() || c == ']' || c == '[')))
        .map(|word| word.trim_start_matches('.'))
        .find(|word| ["spec.", "metadata.", "data.", "status.", "spec["].iter().any(|start| word.starts_with(start)))
        .map(str::to_owned)
}

/// The line (from 0) of a document's text on which the last part of a path stands, found by its words one after the
/// other.
fn line_of(text: &str, path: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let mut from = 0;
    let mut found = None;
    for word in path.split(['.', '[', ']']).filter(|w| !w.is_empty() && w.parse::<usize>().is_err()) {
        let here = lines.iter().enumerate().skip(from).find(|(_, line)| {
            let line = line.trim_start().trim_start_matches("- ").trim_start_matches(['"', '\'']);
            line.strip_prefix(word).is_some_and(|rest| rest.trim_start_matches(['"', '\'']).starts_with(':'))
                || line.contains(&format!("{word}:"))
        })?;
        found = Some(here.0);
        from = here.0;
    }
    found
}

/// Brings an object of our own in line: applied only when it differs from what is there.
///
/// # Errors
/// When the API server refuses it.
pub async fn ensure(mirror: &Mirror, object: &Object) -> Result<()> {
    let key = object.key();
    let definition = mirror.definition(&key.group, &key.kind).map_err(|error| anyhow::anyhow!("{key}: {error}"))?;
    let wire = mirror.wire();
    let there = wire
        .get(&definition.resource, &key.namespace, &key.name)
        .await
        .with_context(|| format!("cannot read {key}"))?;
    let wanted = Value::Object(object.0.clone());
    if let Some(there) = there
        && !capstan_cluster::apply::differs(&there, &wanted)
    {
        return Ok(());
    }
    wire.patch(&definition.resource, &key.namespace, &key.name, None, PatchKind::Apply, &wanted)
        .await
        .with_context(|| format!("cannot write {key}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickstart_is_readable() {
        let documents = quickstart().unwrap();
        assert!(documents.iter().any(|d| d.object.kind() == "Cluster" && d.object.name() == "quickstart"));
    }

    #[test]
    fn a_duplicate_key_is_refused_with_file_and_line() {
        let text = "# a comment\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  name: b\n";
        let error = parse("twice.yaml", text).unwrap_err().to_string();
        assert!(error.starts_with("twice.yaml:10"), "{error}");
        assert!(error.contains("name"), "{error}");
    }

    #[test]
    fn what_is_no_object_is_refused_with_its_path() {
        for (text, words) in [
            ("- a\n", "no object"),
            ("kind: X\nmetadata: {name: a}\n", "apiVersion: is missing"),
            ("apiVersion: v1\nkind: X\n", "metadata.name: is missing"),
            ("apiVersion: v1\nkind: 3\nmetadata: {name: a}\n", "kind: must be a string"),
            ("apiVersion: v1\nkind: X\nmetadata: {name: a, namespace: 4}\n", "metadata.namespace: must be a string"),
        ] {
            let error = parse("f.yaml", text).unwrap_err().to_string();
            assert!(error.contains(words) && error.starts_with("f.yaml:1"), "{error}");
        }
    }

    #[test]
    fn empty_files_and_lists_are_read() {
        assert!(parse("f", "").unwrap().is_empty());
        assert!(parse("f", "---\n# nothing\n---\n").unwrap().is_empty());
        let list = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A, metadata: {name: a}}\n- {apiVersion: v1, kind: B, metadata: {name: b}}\n";
        assert_eq!(parse("f", list).unwrap().len(), 2);
    }

    #[test]
    fn a_file_without_an_object_is_no_success() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = read(&[file.path().to_owned()]).unwrap_err().to_string();
        assert!(error.contains("there is no object in it"), "{error}");
    }

    #[test]
    fn a_refused_field_is_found_in_the_file() {
        let text = "apiVersion: v1\nkind: C\nmetadata:\n  name: a\nspec:\n  paused: no\n  topology:\n    paused: 3\n";
        assert_eq!(line_of(text, "spec.topology.paused"), Some(7));
        assert_eq!(field_of(".spec.clusterNetwerk: field not declared in schema").unwrap(), "spec.clusterNetwerk");
        assert_eq!(
            field_of("strict decoding error: unknown field \"spec.clusterNetwerk\"").unwrap(),
            "spec.clusterNetwerk"
        );
        assert_eq!(line_of(text, "spec.absent"), None);
    }
}
