//! `make bench`: the embedded API server and kube-apiserver with etcd, side by side on this machine, asked the same by the
//! same client. Both answer a write when it is on the disk. Each measure is taken on one and on the other in turn, several
//! times over, and the median is told; docs/benchmarks.md has the results and what they do not say.
//!
//! With `serve DIR` it is the embedded server, in a process of its own so that its memory can be told.

mod embedded;
mod load;
mod report;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use capstan_tests::real::{RealServer, Wanted, programs};
use serde_json::json;

use crate::load::{Kind, Server};
use crate::report::{Report, Unit};

/// How often each measure is taken.
const ROUNDS: usize = 5;
/// Objects that are listed.
const LISTED: usize = 5_000;
/// Objects that memory is measured with.
const KEPT: usize = 20_000;
/// Watchers of the fan-out.
const WATCHERS: usize = 100;
/// Requests under way at the same time, where they are counted in a second.
const TOGETHER: usize = 16;

fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut args = std::env::args().skip(1);
    match args.next().as_deref() {
        Some("serve") => embedded::serve(&args.next().context("serve DIR")?),
        Some("rounds") => bench(args.next().context("rounds N")?.parse()?),
        None => bench(ROUNDS),
        Some(other) => anyhow::bail!("{other}? There is `rounds N`"),
    }
}

fn bench(rounds: usize) -> Result<()> {
    let programs = programs().context("no kube-apiserver: tests/setup.sh builds one")?;
    let own = embedded::Process::start()?;
    let real = RealServer::start_with(&programs, Wanted { durable: true, alone: true, ..Wanted::default() })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let servers = [
            Server::new("capstan", &own.url, &own.authority, &own.identity, own.pids())?,
            Server::new(
                "kube-apiserver + etcd",
                &real.url,
                &real.authority.certificate,
                &format!("{}{}", real.admin.certificate, real.admin.key),
                real.pids(),
            )?,
        ];
        let mut report = Report::default();
        for server in &servers {
            server.prepare().await?;
            ensure!(!server.pids.is_empty(), "the processes of {} are not found", server.name);
            report.memory("memory, no objects (MiB)", server.name, server.memory());
        }
        for kind in [Kind::ConfigMap, Kind::Custom] {
            measure(&servers, kind, rounds, &mut report).await?;
        }
        for server in &servers {
            server.fill(Kind::Custom, "kept", KEPT - LISTED * 2).await?;
            // What was freed meanwhile is given back.
            tokio::time::sleep(Duration::from_secs(10)).await;
            report.memory("memory, 20,000 objects (MiB)", server.name, server.memory());
        }
        report.print(rounds, &machine());
        Ok(())
    })
}

/// Takes all measures with objects of a kind; 5,000 of them stay.
async fn measure(servers: &[Server; 2], kind: Kind, rounds: usize, report: &mut Report) -> Result<()> {
    for server in servers {
        server.fill(kind, "listed", LISTED).await?;
    }
    for round in 0..rounds {
        // Who is first takes turns.
        let order = if round.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        for of in order {
            let Some(server) = servers.get(of) else { continue };
            let name = |what: &str| format!("{what}, {}", kind.name());
            report.add(
                &name("get, one after the other"),
                Unit::Micros,
                server.name,
                server.get_one_by_one(kind, 500).await?,
            );
            report.add(
                &name("get, 16 together"),
                Unit::PerSecond,
                server.name,
                server.get_together(kind, 4_000).await?,
            );
            report.add(&name("list of 5,000"), Unit::Millis, server.name, server.list(kind, LISTED).await?);
            let created = server.create_one_by_one(kind, &format!("a{round}"), 100).await?;
            report.add(&name("create, one after the other"), Unit::Micros, server.name, created);
            let created = server.create_together(kind, &format!("b{round}"), 1_000).await?;
            report.add(&name("create, 16 together"), Unit::PerSecond, server.name, created);
            let patched = server.patch_one_by_one(kind, round, 100).await?;
            report.add(&name("patch, one after the other"), Unit::Micros, server.name, patched);
            let patched = server.patch_together(kind, round, 1_000).await?;
            report.add(&name("patch, 16 together"), Unit::PerSecond, server.name, patched);
            let events = server.fan_out(kind, WATCHERS, 100).await?;
            report.add(&name("watch events to 100 watchers"), Unit::PerSecond, server.name, events);
            server.remove(kind, &["a", "b"].map(|start| format!("{start}{round}"))).await?;
            eprintln!("{} {} round {}", server.name, kind.name(), round + 1);
        }
    }
    Ok(())
}

/// What it ran on.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':')).map(|(_, name)| name);
    let load = read("/proc/loadavg");
    json!({
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "model": model.unwrap_or("unknown").trim(),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load at the end": load.split(' ').next().unwrap_or_default(),
    })
    .to_string()
}
