//! The in-tree provider components: where their files are, and the ProviderModules for them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use capstan_api::{Gvk, Object};
use capstan_cluster::modules::{EGRESS_POLICY, GROUP, PROVIDER_MODULE};
use serde_json::json;

/// The components of a directory: the one given, else `providers/` beside the binary's directory, else beside the binary.
pub fn components(given: Option<&Path>) -> Result<Vec<PathBuf>> {
    let directory = match given {
        Some(path) => path.to_owned(),
        None => {
            let own = std::env::current_exe().context("find the running program")?;
            let own = own.parent().unwrap_or(Path::new(".")).to_owned();
            [own.join("../providers"), own.join("providers")]
                .into_iter()
                .find(|path| path.is_dir())
                .with_context(|| {
                    format!("no provider components beside {}; build them (`make build`) or say where they are with --providers DIR", own.display())
                })?
        }
    };
    let directory = std::fs::canonicalize(&directory)
        .with_context(|| format!("the directory with provider components, {}, cannot be read", directory.display()))?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(&directory)
        .with_context(|| format!("cannot read {}", directory.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "wasm"))
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("{} has no provider components (*.wasm); build them with `make build`", directory.display());
    }
    Ok(files)
}

/// The ProviderModule for a component file. What the in-tree providers need to reach on this machine is known here.
pub fn module_object(file: &Path, simulator: SocketAddr) -> Result<Object> {
    let name = file.file_stem().map(|n| n.to_string_lossy().into_owned()).context("a component file without a name")?;
    let mut module = Object::new(&Gvk::new(GROUP, "v1alpha1", PROVIDER_MODULE), "", &name);
    module.set("/spec/source/file", file.display().to_string().into());
    match name.as_str() {
        "simulated" => module.set("/spec/endpoints", json!({"api": {"url": format!("http://{simulator}")}})),
        "docker" => match docker_socket(std::env::var("DOCKER_HOST").ok().as_deref()) {
            Ok(socket) => {
                let engine = json!({"unixSocket": socket});
                module.set("/spec/endpoints", json!({"engine": engine, "pull": engine}));
                let pull = json!({"endpoint": "pull", "path": "/*/images/create"});
                module.set("/spec/grants", json!({"readOperations": [pull]}));
            }
            // Whoever uses no Docker is not held up; whoever does is told on the object.
            Err(problem) => tracing::warn!(%problem, "the docker provider has no endpoint"),
        },
        _ => {}
    }
    Ok(module)
}

/// What this person's endpoints and clusters may reach on this machine: itself, Docker, networks that Docker makes by
/// itself, and the simulated cloud. Everything else that is not on the public internet is for another EgressPolicy to list.
pub fn egress_policy(simulator: SocketAddr) -> Object {
    let mut addresses = vec!["127.0.0.0/8".to_owned(), "::1/128".to_owned()];
    // Where Docker puts networks that nobody gives a subnet.
    addresses.push("172.16.0.0/12".to_owned());
    if !simulator.ip().is_loopback() {
        addresses.push(simulator.ip().to_string());
    }
    let mut sockets = vec!["/var/run/docker.sock".to_owned()];
    // A setting that names no socket is told of where the docker provider's endpoint is made.
    if let Ok(docker) = docker_socket(std::env::var("DOCKER_HOST").ok().as_deref())
        && !sockets.contains(&docker)
    {
        sockets.push(docker);
    }
    let mut policy = Object::new(&Gvk::new(GROUP, "v1alpha1", EGRESS_POLICY), "", "capstan-up");
    policy.set("/spec", json!({"addresses": addresses, "unixSockets": sockets}));
    policy
}

fn docker_socket(host: Option<&str>) -> Result<String> {
    match host.filter(|host| !host.is_empty()) {
        None => Ok("/var/run/docker.sock".to_owned()),
        Some(host) => match host.strip_prefix("unix://") {
            Some(path) if path.starts_with('/') => Ok(path.to_owned()),
            _ => {
                bail!("DOCKER_HOST is {host:?}; only unix:///path/to/docker.sock is supported: set it so, or unset it")
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_named_after_its_file_and_told_where_its_cloud_is() {
        let module = module_object(Path::new("/x/simulated.wasm"), SocketAddr::from(([127, 0, 0, 1], 7))).unwrap();
        assert_eq!(module.name(), "simulated");
        assert_eq!(module.str_at("/spec/endpoints/api/url"), Some("http://127.0.0.1:7"));
        let other =
            module_object(Path::new("/x/kubeadm-bootstrap.wasm"), SocketAddr::from(([127, 0, 0, 1], 7))).unwrap();
        assert_eq!(other.at("/spec/endpoints"), None);
    }

    #[test]
    fn the_docker_socket_is_the_environments_or_the_usual_one() {
        assert_eq!(docker_socket(None).unwrap(), "/var/run/docker.sock");
        assert_eq!(docker_socket(Some("unix:///run/user/1/docker.sock")).unwrap(), "/run/user/1/docker.sock");
        assert!(docker_socket(Some("tcp://10.0.0.1:2375")).unwrap_err().to_string().contains("unix://"));
    }

    #[test]
    fn a_directory_without_components_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let error = components(Some(dir.path())).unwrap_err().to_string();
        assert!(error.contains("make build"), "{error}");
    }
}
