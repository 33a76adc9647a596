//! Compiling a component, in a process of its own.

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};

use crate::component::MAX_COMPONENT;
use crate::engine::{Compiler, wasmtime_engine};

/// Limits of the compiling process: address space and CPU seconds.
const MAX_ADDRESS_SPACE: u64 = 4 << 30;
const MAX_CPU_SECONDS: u64 = 120;

/// The compiling process: takes a component from standard input and writes compiled code to standard output. What is
/// wrong goes to standard error. The `capstan` binary calls it for its verb `compile`.
pub fn compile_main() -> ExitCode {
    let run = || -> Result<(), String> {
        limit_self()?;
        let mut component = Vec::new();
        let input = std::io::stdin().lock();
        input.take(MAX_COMPONENT as u64 + 1).read_to_end(&mut component).map_err(|e| format!("cannot read: {e}"))?;
        if component.len() > MAX_COMPONENT {
            return Err(format!("more than {MAX_COMPONENT} bytes"));
        }
        let compiled = compile_here(&component)?;
        std::io::stdout().lock().write_all(&compiled).map_err(|e| format!("cannot write: {e}"))
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn limit_self() -> Result<(), String> {
    use rustix::process::{Resource, Rlimit, setrlimit};
    for (resource, limit) in [(Resource::As, MAX_ADDRESS_SPACE), (Resource::Cpu, MAX_CPU_SECONDS), (Resource::Core, 0)]
    {
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })
            .map_err(|e| format!("cannot limit {resource:?}: {e}"))?;
    }
    Ok(())
}

/// Compiles a component to code for this machine.
///
/// # Errors
/// What is wrong with the component, or with the compiling process.
pub(crate) fn compile(compiler: &Compiler, component: &[u8]) -> Result<Vec<u8>, String> {
    match compiler {
        Compiler::InProcess => compile_here(component),
        Compiler::Child { program, args } => {
            let mut child = Command::new(program)
                .args(args)
                .env_clear()
                // Many cores mean many threads, whose stacks and heaps would not fit the limit.
                .env("RAYON_NUM_THREADS", "4")
                .env("MALLOC_ARENA_MAX", "4")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .map_err(|e| format!("cannot start {} to compile it: {e}", program.display()))?;
            let mut stdin = child.stdin.take();
            let (wrote, output) = std::thread::scope(|scope| {
                let writer = scope.spawn(move || {
                    let result = stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(component));
                    drop(stdin);
                    result
                });
                let output = child.wait_with_output();
                (writer.join(), output)
            });
            let output = output.map_err(|e| format!("the compiling process cannot be waited for: {e}"))?;
            if !output.status.success() {
                let told: String = String::from_utf8_lossy(&output.stderr).trim().chars().take(2000).collect();
                return Err(if told.is_empty() {
                    format!("the compiling process ended with {}", output.status)
                } else {
                    told
                });
            }
            match wrote {
                Ok(Ok(())) => Ok(output.stdout),
                _ => Err("the compiling process did not read all of it".to_owned()),
            }
        }
    }
}

fn compile_here(component: &[u8]) -> Result<Vec<u8>, String> {
    let engine = wasmtime_engine(None).map_err(|e| format!("{e:#}"))?;
    engine.precompile_component(component).map_err(|e| format!("{e:#}"))
}
