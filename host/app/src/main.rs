//! The `capstan` binary: commands, configuration, wiring.

/// Says a line on standard output. That nobody reads on (`| head`, a terminal that is gone) is no reason for anything to end.
macro_rules! say {
    ($($said:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($said)*);
    }};
}

mod admission;
mod args;
mod components;
mod endpoints;
mod health;
mod kinds;
mod logging;
mod manifest;
mod modules;
mod pki;
mod probes;
mod progress;
mod provider;
mod rules;
mod run;
mod simulator;
mod state_dir;
mod up;
mod webhooks;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{Args, Command, ProviderCommand};

fn main() -> ExitCode {
    let started = std::time::Instant::now();
    let args = Args::parse();
    // Before anything else: the compiling process takes no logging, no runtime and no configuration.
    if matches!(args.command, Command::Compile) {
        return capstan_runtime::compile::compile_main();
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    match dispatch(args, started) {
        Ok(code) => code,
        Err(error) => {
            // The chain of reasons in one line each, the outermost first.
            eprintln!("capstan: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: Args, started: std::time::Instant) -> anyhow::Result<ExitCode> {
    let log = args.log;
    match args.command {
        Command::Up(options) => block_on(up::up(options, log, started)),
        Command::Run(options) => {
            logging::to_stderr(&log)?;
            block_on(run::run(options))
        }
        Command::Provider(ProviderCommand::Package { input, output }) => provider::package(&input, &output),
        Command::Provider(ProviderCommand::Inspect { file }) => provider::inspect(&file),
        Command::Provider(ProviderCommand::Replay { file, component }) => block_on(provider::replay(&file, &component)),
        Command::Simulator(command) => {
            logging::to_stderr(&log)?;
            block_on(simulator::command(command))
        }
        Command::Version => {
            say!("capstan {}", env!("CARGO_PKG_VERSION"));
            Ok(ExitCode::SUCCESS)
        }
        Command::Compile => Ok(ExitCode::FAILURE),
    }
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(future);
    // What still runs is told by its own shutdown; blocking threads (RSA keys) are not waited for.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    outcome
}
