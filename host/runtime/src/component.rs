//! A component seen from outside: its data sections, imports and exports, read without compiling anything.

use std::path::Path;

use capstan_core::contract::Role;
use serde::Serialize;
use wasmparser::{Encoding, Parser, Payload};

use crate::manifest::{Crd, Manifest, ManifestError, read_crds};
use crate::package::{CRDS_SECTION, MANIFEST_SECTION};

/// The largest component, in bytes.
pub const MAX_COMPONENT: usize = 64 << 20;
/// The contract versions that this host serves.
pub const CONTRACT_VERSIONS: &[&str] = &["0.1"];

const PACKAGE: &str = "capstan:provider/";

/// Why a component is refused. Begins with the name of the file or object that it came from.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {refusal}")]
pub struct LoadError {
    /// Where the component came from.
    pub name: String,
    /// Why.
    pub refusal: Refusal,
}

/// Why a component is refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// It is not WebAssembly, or damaged.
    #[error("is not a WebAssembly component: {0}")]
    NotComponent(String),
    /// It is a core module.
    #[error("is a core module, not a component; make one of it with `capstan provider package`")]
    CoreModule,
    /// It is too large.
    #[error("is {0} bytes large; {MAX_COMPONENT} are allowed")]
    TooLarge(usize),
    /// A data section is missing.
    #[error("has no section {0}; package it with `capstan provider package`")]
    NoSection(&'static str),
    /// A data section is wrong.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It speaks another version of the contract.
    #[error("speaks version {0} of the provider contract; this host serves {served}", served = CONTRACT_VERSIONS.join(", "))]
    ContractVersion(String),
    /// It imports something that the contract does not grant to its role.
    #[error("imports {import}, which a provider of the role {role} is not given")]
    Import {
        /// The import's full name.
        import: String,
        /// The manifest's role.
        role: &'static str,
    },
    /// It lacks an export.
    #[error("does not export {export}, which {why}")]
    Export {
        /// The interface's full name.
        export: String,
        /// What calls for it.
        why: String,
    },
    /// It does not compile, or its imports have other types than the contract's.
    #[error("cannot be compiled: {0}")]
    Compile(String),
    /// Its imports or exports have other types than the contract's.
    #[error("does not fit the contract: {0}")]
    Types(String),
}

/// What a component says about itself, for `capstan provider inspect`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// The manifest.
    pub manifest: Manifest,
    /// The kinds.
    pub crds: Vec<Crd>,
    /// Names of the imports.
    pub imports: Vec<String>,
    /// Names of the exports.
    pub exports: Vec<String>,
    /// Size in bytes.
    pub size: usize,
}

/// Reads and checks a component file without compiling it.
///
/// # Errors
/// See [`Refusal`].
pub fn inspect(path: &Path) -> Result<Inspection, LoadError> {
    let name = path.display().to_string();
    let read = || inspect_bytes(&std::fs::read(path)?);
    read().map_err(|refusal| LoadError { name, refusal })
}

/// [`inspect`] for bytes.
///
/// # Errors
/// See [`Refusal`].
pub fn inspect_bytes(component: &[u8]) -> Result<Inspection, Refusal> {
    if component.len() > MAX_COMPONENT {
        return Err(Refusal::TooLarge(component.len()));
    }
    let outside = outside(component)?;
    let manifest = Manifest::read(&outside.manifest.ok_or(Refusal::NoSection(MANIFEST_SECTION))?)?;
    let minor = manifest.contract.as_str();
    if !CONTRACT_VERSIONS.contains(&minor) {
        return Err(Refusal::ContractVersion(manifest.contract));
    }
    let crds = read_crds(&outside.crds.ok_or(Refusal::NoSection(CRDS_SECTION))?, &manifest)?;
    for import in &outside.imports {
        check_import(import, minor, manifest.role)?;
    }
    check_exports(&outside.exports, &manifest)?;
    Ok(Inspection { manifest, crds, imports: outside.imports, exports: outside.exports, size: component.len() })
}

#[derive(Default)]
struct Outside {
    manifest: Option<Vec<u8>>,
    crds: Option<Vec<u8>>,
    imports: Vec<String>,
    exports: Vec<String>,
}

fn outside(component: &[u8]) -> Result<Outside, Refusal> {
    let broken = |error: wasmparser::BinaryReaderError| Refusal::NotComponent(error.message().to_owned());
    let mut outside = Outside::default();
    // How deep in nested modules and components the parser is; only the outermost level is ours.
    let mut depth = 0usize;
    let mut first = true;
    for payload in Parser::new(0).parse_all(component) {
        match payload.map_err(broken)? {
            Payload::Version { encoding: Encoding::Module, .. } if first => return Err(Refusal::CoreModule),
            Payload::Version { .. } if first => first = false,
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::CustomSection(section) if depth == 0 => {
                let slot = match section.name() {
                    MANIFEST_SECTION => &mut outside.manifest,
                    CRDS_SECTION => &mut outside.crds,
                    _ => continue,
                };
                slot.get_or_insert_default().extend_from_slice(section.data());
            }
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    outside.imports.push(import.map_err(broken)?.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    outside.exports.push(export.map_err(broken)?.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(outside)
}

/// Interfaces of the contract that a role may import.
fn imports_of(role: Role) -> &'static [&'static str] {
    match role {
        Role::Infrastructure => {
            &["types", "subject", "cluster", "machine", "granted", "known", "logging", "secrets", "http"]
        }
        Role::Bootstrap => &["types", "subject", "cluster", "machine", "granted", "joining", "logging", "secrets"],
        Role::ControlPlane => &["types", "subject", "cluster", "granted", "control-plane-view", "logging"],
    }
}

fn word(role: Role) -> &'static str {
    match role {
        Role::Infrastructure => "infrastructure",
        Role::Bootstrap => "bootstrap",
        Role::ControlPlane => "control-plane",
    }
}

/// The interface and the version of a name of the contract's package.
fn interface(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(PACKAGE)?.split_once('@')
}

fn is_minor(version: &str, minor: &str) -> bool {
    version.strip_prefix(minor).is_some_and(|rest| rest.starts_with('.'))
}

fn check_import(import: &str, minor: &str, role: Role) -> Result<(), Refusal> {
    match interface(import) {
        Some((_, version)) if !is_minor(version, minor) => Err(Refusal::ContractVersion(version.to_owned())),
        Some((interface, _)) if imports_of(role).contains(&interface) => Ok(()),
        _ => Err(Refusal::Import { import: import.to_owned(), role: word(role) }),
    }
}

fn check_exports(exports: &[String], manifest: &Manifest) -> Result<(), Refusal> {
    let role = format!("the role {} calls for", word(manifest.role));
    let kinds = &manifest.kinds;
    let needed: Vec<(&str, String)> = match manifest.role {
        Role::Infrastructure => {
            let mut needed = vec![("resources", role)];
            let because = |field: &str, kind: &str| format!("the manifest's kinds.{field} {kind} calls for");
            needed.extend(kinds.cluster.iter().map(|kind| ("infra-cluster", because("cluster", kind))));
            needed.extend(kinds.machine.iter().map(|kind| ("infra-machine", because("machine", kind))));
            needed
        }
        Role::Bootstrap => vec![("bootstrap", role)],
        Role::ControlPlane => vec![("control-plane", role)],
    };
    for (wanted, why) in needed {
        let exported = exports.iter().filter_map(|name| interface(name));
        let versions: Vec<&str> = exported.filter(|(name, _)| *name == wanted).map(|(_, version)| version).collect();
        if versions.iter().any(|version| is_minor(version, &manifest.contract)) {
            continue;
        }
        return Err(match versions.first() {
            Some(other) => Refusal::ContractVersion((*other).to_owned()),
            None => Refusal::Export { export: format!("{PACKAGE}{wanted}@{}", manifest.contract), why },
        });
    }
    Ok(())
}
