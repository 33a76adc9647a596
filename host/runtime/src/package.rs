//! Makes a component of a core module.
//!
//! A provider is built for `wasm32-unknown-unknown`, which yields a core module with the contract's types in a
//! custom section. Packaging turns it into a component and lifts the two sections that are data about the
//! provider (manifest and CRDs) to the component's top level, where a host reads them without looking at code.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use wasm_encoder::{ComponentSection, CustomSection, Encode};
use wasmparser::{Encoding, Parser, Payload};

/// Name of the custom section that holds the manifest.
pub const MANIFEST_SECTION: &str = "capstan:manifest";
/// Name of the custom section that holds the CRDs.
pub const CRDS_SECTION: &str = "capstan:crds";

/// Why a module cannot be packaged.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// The input is a component already.
    #[error("this is a component already; packaging takes the core module that `cargo build` leaves")]
    AlreadyComponent,
    /// The input cannot be read as WebAssembly.
    #[error("this is not a WebAssembly module: {0}")]
    NotWasm(String),
    /// A section that the contract demands is missing.
    #[error(
        "the module has no custom section {0}; a provider declares it with the macros of the SDK (docs/contract.md)"
    )]
    NoSection(&'static str),
    /// The component could not be made.
    #[error("no component can be made of the module: {0}")]
    Encode(String),
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Makes a component of a core module. Several custom sections of one name are joined in their order.
///
/// # Errors
/// When the input is no core module, lacks a manifest or CRD section, or does not fit its own world.
pub fn package(core_wasm: &[u8]) -> Result<Vec<u8>, PackageError> {
    let (stripped, manifest, crds) = split(core_wasm)?;
    let manifest = manifest.ok_or(PackageError::NoSection(MANIFEST_SECTION))?;
    let crds = crds.ok_or(PackageError::NoSection(CRDS_SECTION))?;
    let mut component = wit_component::ComponentEncoder::default()
        .validate(true)
        .module(&stripped)
        .and_then(|mut encoder| encoder.encode())
        .map_err(|error| PackageError::Encode(format!("{error:#}")))?;
    for (name, data) in [(MANIFEST_SECTION, manifest), (CRDS_SECTION, crds)] {
        let section = CustomSection { name: Cow::Borrowed(name), data: Cow::Owned(data) };
        component.push(ComponentSection::id(&section));
        section.encode(&mut component);
    }
    Ok(component)
}

/// [`package`] from file to file. The output appears whole or not at all.
///
/// # Errors
/// As [`package`], and when a file cannot be read or written.
pub fn package_file(input: &Path, output: &Path) -> Result<(), PackageError> {
    let core = std::fs::read(input).map_err(|source| PackageError::Read { path: input.to_owned(), source })?;
    let component = package(&core)?;
    let write_error = |source| PackageError::Write { path: output.to_owned(), source };
    if let Some(parent) = output.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(write_error)?;
    }
    let mut partial = output.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    std::fs::write(&partial, component).map_err(write_error)?;
    std::fs::rename(&partial, output).map_err(write_error)
}

/// The module without our two sections and the names of its functions, and what our sections hold.
type Split = (Vec<u8>, Option<Vec<u8>>, Option<Vec<u8>>);

fn split(core_wasm: &[u8]) -> Result<Split, PackageError> {
    let mut stripped = Vec::with_capacity(core_wasm.len());
    let mut manifest: Option<Vec<u8>> = None;
    let mut crds: Option<Vec<u8>> = None;
    for payload in Parser::new(0).parse_all(core_wasm) {
        let payload = payload.map_err(|error| PackageError::NotWasm(error.to_string()))?;
        match &payload {
            Payload::Version { encoding: Encoding::Component, .. } => return Err(PackageError::AlreadyComponent),
            Payload::Version { .. } => stripped.extend_from_slice(&wasm_encoder::Module::HEADER),
            Payload::CustomSection(section) if section.name() == MANIFEST_SECTION => {
                manifest.get_or_insert_default().extend_from_slice(section.data());
            }
            Payload::CustomSection(section) if section.name() == CRDS_SECTION => {
                crds.get_or_insert_default().extend_from_slice(section.data());
            }
            // Names of functions: nobody is shown them, and they are an eighth of a component.
            Payload::CustomSection(section) if section.name() == "name" => {}
            other => {
                if let Some((id, range)) = other.as_section() {
                    let data = core_wasm
                        .get(range)
                        .ok_or_else(|| PackageError::NotWasm("a section reaches past the end".to_owned()))?;
                    stripped.push(id);
                    data.encode(&mut stripped);
                }
            }
        }
    }
    Ok((stripped, manifest, crds))
}
