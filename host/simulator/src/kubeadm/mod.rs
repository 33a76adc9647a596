//! A stand-in for kubeadm and the kubelet: it reads the same configuration, insists on the same files and talks to the same API, but starts
//! the embedded API server where kubeadm would start etcd and a control plane, and runs no container.
//!
//! It works on [`Files`](crate::files::Files) and over the network, so the same logic is inside a simulated machine and in the node image for containers
//! (binary `kubeadm-stand-in`).
//!
//! - [`config`]: the documents of `kubeadm.k8s.io/v1beta3` and `v1beta4`.
//! - [`pki`]: the certificates a machine is handed, and those it makes of them.
//! - [`objects`]: what is in a fresh workload cluster, and what a node says of itself. Pure.
//! - [`init`]: `kubeadm init`.
//! - [`join`]: `kubeadm join`: discovery, token, certificate request.
//! - [`kubelet`]: the Node object and its heartbeat.

pub mod config;
pub mod init;
pub mod join;
pub mod kubelet;
pub mod objects;
pub mod pki;
pub mod workload;

use std::net::IpAddr;

/// What a machine knows of itself before it is a node.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its host name: the node's name where the configuration gives none.
    pub hostname: String,
    /// Its addresses, the main one first.
    pub addresses: Vec<IpAddr>,
    /// `spec.providerID` of its Node where no kubelet argument `provider-id` says otherwise. None where no cloud sets it.
    pub provider_id: Option<String>,
    /// Label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// The version of its kubelet (`v1.35.0`); none: that of the cluster.
    pub kubelet_version: Option<String>,
    /// CPUs of its Node.
    pub cpus: u32,
    /// Memory of its Node in MiB.
    pub memory_mib: u64,
    /// How many seconds a renewal of its Lease is good for.
    pub lease_seconds: u64,
}

/// Why `kubeadm` failed. The text is what its user sees on the console.
#[derive(Debug, thiserror::Error)]
pub enum KubeadmError {
    /// The command line.
    #[error("{0}")]
    Usage(String),
    /// The configuration file.
    #[error("configuration {path}: {reason}")]
    Config {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that the machine must be handed is missing.
    #[error(
        "preflight: {path} is missing: a machine of Cluster API is handed its certificates, it makes none of its own"
    )]
    MissingFile {
        /// The file.
        path: String,
    },
    /// A file that the machine was handed cannot be used.
    #[error("preflight: {path}: {reason}")]
    BadFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The machine is a node already.
    #[error("preflight: this machine is a node already ({path} exists); `kubeadm reset` first")]
    AlreadyDone {
        /// The file that says so.
        path: String,
    },
    /// The endpoint could not be reached in time.
    #[error("discovery: {endpoint} did not answer within {seconds} s: {last}")]
    Timeout {
        /// Host and port.
        endpoint: String,
        /// The time limit.
        seconds: u64,
        /// What the last attempt ended with.
        last: String,
    },
    /// The cluster is not the one the configuration means.
    #[error("discovery: {0}")]
    Discovery(String),
    /// The API refused something.
    #[error("{attempt}: the API server answered {status}: {reason}")]
    Refused {
        /// What was tried.
        attempt: String,
        /// The HTTP status.
        status: u16,
        /// Its message.
        reason: String,
    },
    /// The API did not answer.
    #[error("{attempt}: {reason}")]
    Unreachable {
        /// What was tried.
        attempt: String,
        /// Why it failed.
        reason: String,
    },
    /// A file could not be written.
    #[error("{path} cannot be written: {reason}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// Something that is not ours to explain further.
    #[error("{0}")]
    Other(String),
}

/// The words of a `kubeadm` command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `kubeadm init --config FILE`
    Init {
        /// The configuration file.
        config: String,
    },
    /// `kubeadm join --config FILE`
    Join {
        /// The configuration file.
        config: String,
    },
    /// `kubeadm reset`
    Reset,
    /// `kubeadm version`
    Version,
}

/// Reads a `kubeadm` command line. Options without meaning here (`--v`, `--ignore-preflight-errors`, `--upload-certs`, …) are accepted.
pub fn command(arguments: &[String]) -> Result<Command, KubeadmError> {
    let usage = |reason: String| KubeadmError::Usage(format!("kubeadm: {reason}"));
    let Some((verb, rest)) = arguments.split_first() else {
        return Err(usage("give init, join, reset or version".into()));
    };
    let mut config = None;
    let mut words = rest.iter().peekable();
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        match name {
            "--config" => config = value.or_else(|| words.next().cloned()),
            "-v"
            | "--v"
            | "--ignore-preflight-errors"
            | "--cri-socket"
            | "--skip-phases"
            | "--patches"
            | "--rootfs"
            | "-o"
            | "--output"
            | "--certificate-key"
            | "--node-name" => {
                if value.is_none() {
                    words.next();
                }
            }
            _ if name.starts_with("-v") || name.starts_with("--") || name == "-f" => {}
            _ => return Err(usage(format!("{word:?} is not known to {verb} here"))),
        }
    }
    let config = || {
        config.clone().ok_or_else(|| usage(format!("{verb} needs --config FILE here; its other forms are not known")))
    };
    match verb.as_str() {
        "init" => Ok(Command::Init { config: config()? }),
        "join" => Ok(Command::Join { config: config()? }),
        "reset" => Ok(Command::Reset),
        "version" => Ok(Command::Version),
        other => Err(usage(format!("{other:?} is not known here; init, join, reset and version are"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_read() {
        let read = |line: &str| command(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        for line in [
            "init --config /f --v 5",
            "init --config=/f -v5",
            "init --v=5 --config /f --ignore-preflight-errors=Swap",
            "init --ignore-preflight-errors Swap,NumCPU --upload-certs --config /f",
        ] {
            assert_eq!(read(line).unwrap(), Command::Init { config: "/f".into() }, "{line}");
        }
        assert_eq!(read("join --config /f").unwrap(), Command::Join { config: "/f".into() });
        assert_eq!(read("reset -f").unwrap(), Command::Reset);
        for (line, part) in
            [("", "give init"), ("init", "--config"), ("join 10.0.0.1:6443", "10.0.0.1"), ("upgrade", "upgrade")]
        {
            assert!(read(line).unwrap_err().to_string().contains(part), "{line}");
        }
    }
}
