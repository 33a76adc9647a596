//! Components that are refused, each with a message that names the file and the reason.

use std::borrow::Cow;

use capstan_runtime::package::{MANIFEST_SECTION, PackageError, package};
use capstan_runtime::{Module, inspect};
use wasm_encoder::{ComponentSection, CustomSection, Encode};

use crate::guest::{component, core_module, engine};

/// Why these bytes are refused.
fn refused(bytes: &[u8]) -> String {
    match Module::load(engine(), "providers/x.wasm", bytes) {
        Ok(_) => panic!("it was loaded"),
        Err(error) => {
            let text = error.to_string();
            assert!(text.starts_with("providers/x.wasm: "), "{text}");
            text
        }
    }
}

/// A component of this text with sections.
fn with_sections(wat: &str, manifest: &str, crds: &str) -> Vec<u8> {
    let mut bytes = wat::parse_str(wat).unwrap();
    for (name, data) in [(MANIFEST_SECTION, manifest), ("capstan:crds", crds)] {
        let section = CustomSection { name: Cow::Borrowed(name), data: Cow::Borrowed(data.as_bytes()) };
        bytes.push(ComponentSection::id(&section));
        section.encode(&mut bytes);
    }
    bytes
}

fn manifest(contract: &str) -> String {
    include_str!("../guest/src/manifest.json").replace(r#""contract":"0.1""#, &format!(r#""contract":"{contract}""#))
}

const CRDS: &str = include_str!("../guest/src/crds.json");

#[test]
fn what_is_no_component_is_refused() {
    assert!(refused(b"#!/bin/sh\n").contains("not a WebAssembly component"));
    assert!(refused(b"").contains("not a WebAssembly component"));
    assert!(refused(core_module()).contains("core module"));
    let cut = &component()[..component().len() / 2];
    assert!(refused(cut).contains("not a WebAssembly component"));
    let missing = Module::load_file(engine(), std::path::Path::new("/nowhere/p.wasm")).err().unwrap().to_string();
    assert!(missing.starts_with("/nowhere/p.wasm: cannot be read"), "{missing}");
}

#[test]
fn a_component_without_or_with_a_wrong_manifest_is_refused() {
    assert!(refused(&wat::parse_str("(component)").unwrap()).contains(MANIFEST_SECTION));
    let wrong = manifest("0.1").replace("\"limits\"", "\"limit\"");
    let text = refused(&with_sections("(component)", &wrong, CRDS));
    assert!(text.contains("unknown field `limit`"), "{text}");
    assert!(refused(&with_sections("(component)", "{", CRDS)).contains("manifest"));
    assert!(refused(&with_sections("(component)", &manifest("0.1"), "[]")).contains("GuestCluster"));
}

#[test]
fn another_contract_version_is_refused() {
    let text = refused(&with_sections("(component)", &manifest("0.9"), CRDS));
    assert!(text.contains("speaks version 0.9") && text.contains("serves 0.1"), "{text}");
    let import = r#"(component (import "capstan:provider/subject@0.2.0" (instance)))"#;
    assert!(refused(&with_sections(import, &manifest("0.1"), CRDS)).contains("version 0.2.0"));
}

#[test]
fn imports_that_were_not_granted_are_refused_by_name() {
    for import in ["wasi:sockets/tcp@0.2.0", "capstan:provider/joining@0.1.0", "env", "capstan:provider/subjects@0.1.0"]
    {
        let wat = format!(r#"(component (import "{import}" (instance)))"#);
        let text = refused(&with_sections(&wat, &manifest("0.1"), CRDS));
        assert!(text.contains(&format!("imports {import}")), "{text}");
    }
}

#[test]
fn a_missing_export_is_named_with_what_calls_for_it() {
    let text = refused(&with_sections("(component)", &manifest("0.1"), CRDS));
    assert!(text.contains("capstan:provider/resources@0.1") && text.contains("role infrastructure"), "{text}");
    let wat = r#"(component (instance $i) (export "capstan:provider/resources@0.1.0" (instance $i)))"#;
    let text = refused(&with_sections(wat, &manifest("0.1"), CRDS));
    assert!(text.contains("infra-cluster") && text.contains("GuestCluster"), "{text}");
}

#[test]
fn an_import_of_another_type_is_refused() {
    let wat = r#"(component
        (import "capstan:provider/subject@0.1.0" (instance (export "name" (func (result u32)))))
        (instance $i)
        (export "capstan:provider/resources@0.1.0" (instance $i))
        (export "capstan:provider/infra-cluster@0.1.0" (instance $i))
        (export "capstan:provider/infra-machine@0.1.0" (instance $i)))"#;
    let text = refused(&with_sections(wat, &manifest("0.1"), CRDS));
    assert!(text.contains("does not fit the contract") && text.contains("subject"), "{text}");
}

#[test]
fn packaging_lifts_the_sections_and_refuses_what_it_cannot_package() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), component()).unwrap();
    let inspection = inspect(file.path()).unwrap();
    assert_eq!(inspection.manifest.name, "guest");
    let kinds: Vec<_> = inspection.crds.iter().map(|crd| crd.kind.as_str()).collect();
    assert_eq!(kinds, ["GuestCluster", "GuestMachine", "GuestIdentity"]);
    assert!(
        inspection.imports.iter().all(|import| import.starts_with("capstan:provider/")),
        "{:?}",
        inspection.imports
    );
    assert!(inspection.exports.contains(&"capstan:provider/resources@0.1.0".to_owned()));
    assert!(matches!(package(component()), Err(PackageError::AlreadyComponent)));
    assert!(matches!(package(b"junk"), Err(PackageError::NotWasm(_))));
    let bare = wat::parse_str("(module)").unwrap();
    assert!(matches!(package(&bare), Err(PackageError::NoSection(MANIFEST_SECTION))));
}

#[test]
fn sections_in_pieces_are_joined() {
    let mut module = wat::parse_str("(module)").unwrap();
    let (first, second) = CRDS.split_at(40);
    for (name, data) in
        [(MANIFEST_SECTION, manifest("0.1").as_str()), ("capstan:crds", first), ("capstan:crds", second)]
    {
        let section = CustomSection { name: Cow::Borrowed(name), data: Cow::Borrowed(data.as_bytes()) };
        module.push(0);
        section.encode(&mut module);
    }
    let component = package(&module).unwrap();
    // It lacks exports, which is found only after both sections were read whole.
    assert!(refused(&component).contains("does not export"));
}
