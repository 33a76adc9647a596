//! A stand-in for kubeadm, the kubelet and the control plane in a container: the program of the node image.
//!
//! - `kubeadm-stand-in node`: process 1 of the container. Reaps orphans, serves what `kubeadm` started, starts it again after a restart of the container.
//! - `kubeadm-stand-in init|join --config FILE`, `reset`, `version`: what `kubeadm` does. The image has it under the name `kubeadm` too.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use capstan_simulator::kubeadm::Machine;
use capstan_simulator::node::{self, NodeOptions};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(std::io::stderr).with_ansi(false).init();
    if arguments.first().map(String::as_str) != Some("node") {
        let status = node::order(Path::new("/"), &arguments).await;
        return ExitCode::from(u8::try_from(status).unwrap_or(1));
    }
    let shutdown = CancellationToken::new();
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::child()));
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut child)) = signals else {
        eprintln!("error: signals cannot be handled");
        return ExitCode::FAILURE;
    };
    let stop = shutdown.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => stop.cancel(),
                _ = interrupt.recv() => stop.cancel(),
                // Whatever was started in this container and lost its parent is ours to bury.
                _ = child.recv() => while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {},
            }
        }
    });
    let options = NodeOptions {
        root: "/".into(),
        listen: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        heartbeat: Duration::from_secs(10),
        grace: Duration::from_secs(40),
        machine: this_machine(),
    };
    match node::run(options, shutdown).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn this_machine() -> Machine {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let hostname = read("/proc/sys/kernel/hostname").trim().to_owned();
    let memory_kib = read("/proc/meminfo")
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<u64>().ok());
    let version = [std::env::var("KUBERNETES_VERSION").unwrap_or_default(), read("/kind/version")];
    Machine {
        addresses: addresses(&hostname, &read("/etc/hosts")),
        hostname,
        provider_id: None,
        zone: None,
        kubelet_version: version.into_iter().map(|v| v.trim().to_owned()).find(|v| !v.is_empty()),
        cpus: std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(1)),
        memory_mib: memory_kib.unwrap_or(1 << 20) / 1024,
        lease_seconds: 40,
    }
}

/// The container's addresses: those that its engine wrote beside its name into `/etc/hosts`, or the one that leads out.
fn addresses(hostname: &str, hosts: &str) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = hosts
        .lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let address: IpAddr = words.next()?.parse().ok()?;
            words.any(|name| name == hostname).then_some(address)
        })
        .filter(|address| !address.is_loopback())
        .collect();
    if found.is_empty()
        // Nothing is sent: connecting a datagram socket only asks for the route.
        && let Ok(socket) = UdpSocket::bind(("0.0.0.0", 0))
        && socket.connect(("192.0.2.1", 9)).is_ok()
        && let Ok(local) = socket.local_addr()
    {
        found.push(local.ip());
    }
    found
}
