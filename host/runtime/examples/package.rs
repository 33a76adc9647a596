//! Makes a component of a core module: `package INPUT.wasm OUTPUT.wasm`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, output] = args.as_slice() else {
        eprintln!("usage: package INPUT.wasm OUTPUT.wasm");
        return ExitCode::from(2);
    };
    match capstan_runtime::package::package_file(Path::new(input), Path::new(output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{input}: {error}");
            ExitCode::FAILURE
        }
    }
}
