//! Compiling in another process, and the cache of compiled code. Runs itself as the compiling process.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::process::ExitCode;

use capstan_runtime::{Compiler, Engine, EngineConfig, Module};

#[path = "runtime/guest.rs"]
#[allow(dead_code)]
mod guest;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("compile") => capstan_runtime::compile::compile_main(),
        Some("fail") => {
            eprintln!("no more memory");
            ExitCode::FAILURE
        }
        // What test runners ask for.
        Some("--list") => ExitCode::SUCCESS,
        _ => {
            a_component_is_compiled_once_by_another_process();
            a_failing_compiler_is_an_error_that_says_so();
            println!("compile: ok");
            ExitCode::SUCCESS
        }
    }
}

fn engine(cache: &Path, verb: &str) -> Engine {
    let program = std::env::current_exe().unwrap();
    let compiler = Compiler::Child { program, args: vec![verb.to_owned()] };
    let config = EngineConfig { cache_dir: Some(cache.to_owned()), compiler, slots: 2, ..EngineConfig::in_process() };
    Engine::new(config).unwrap()
}

fn load(engine: &Engine) -> Result<Module, String> {
    Module::load(engine, "guest.wasm", guest::component()).map_err(|error| error.to_string())
}

fn a_component_is_compiled_once_by_another_process() {
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join("compiled");
    let module = load(&engine(&cache, "compile")).expect("compiled by a child");
    assert_eq!(module.manifest().name, "guest");
    let entries: Vec<_> = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");

    // A compiler that fails is not needed any more.
    load(&engine(&cache, "fail")).expect("loaded from the cache");

    // A forged entry is not loaded but compiled again.
    let honest = std::fs::read(&entries[0]).unwrap();
    let mut forged = honest.clone();
    let middle = forged.len() / 2;
    forged[middle] ^= 0xff;
    std::fs::write(&entries[0], &forged).unwrap();
    assert!(load(&engine(&cache, "fail")).is_err());
    load(&engine(&cache, "compile")).expect("compiled again");
    assert_eq!(std::fs::read(&entries[0]).unwrap(), honest);
}

fn a_failing_compiler_is_an_error_that_says_so() {
    let home = tempfile::tempdir().unwrap();
    let cache = home.path().join("compiled");
    let error = load(&engine(&cache, "fail")).err().unwrap();
    assert!(error.contains("guest.wasm") && error.contains("no more memory"), "{error}");
    assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 0);
}
