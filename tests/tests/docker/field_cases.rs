//! Rows of the table of what users of Cluster API ran into, on a real engine.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use capstan_tests::docker::Engine;
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, kubectl, root};
use capstan_tests::site::list;
use serde_json::json;

use crate::stand::{MINUTE, Stand, balancers, cluster, containers, load_balancer, machine};

/// So many bytes that nothing compresses.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_639_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn cloud_config(content: &[u8]) -> String {
    let content = STANDARD.encode(content);
    format!("#cloud-config\nwrite_files:\n- path: /srv/given\n  encoding: b64\n  content: {content}\n")
}

/// A cloud-config of exactly so many bytes, with a file of nine thousand in it.
fn of_size(size: usize) -> String {
    let config = cloud_config(&noise(9_000));
    let mut padding = STANDARD.encode(noise(size));
    padding.truncate(size - config.len() - 3);
    format!("{config}# {padding}\n")
}

fn ignition(content: &[u8]) -> String {
    let source = format!("data:;base64,{}", STANDARD.encode(content));
    let file = json!({"path": "/srv/given", "mode": 420, "contents": {"source": source}});
    json!({"ignition": {"version": "3.4.0"}, "storage": {"files": [file]}}).to_string()
}

on_both_back_ends!(a12_capa_1639_first_boot_data_is_carried_out_as_it_is);

/// First-boot data of both formats and of any size and content comes into a machine as it is. (What EC2 makes of the same: the test
/// of this name in `providers/aws`.)
fn a12_capa_1639_first_boot_data_is_carried_out_as_it_is(back_end: BackEnd) -> Result<()> {
    let text: Vec<u8> = b"all work and no play ".iter().copied().cycle().take(30 << 10).collect();
    let cases = [
        ("compressible", "cloud-config", cloud_config(&text), text),
        ("ignition", "ignition", ignition(&noise(4 << 10)), noise(4 << 10)),
        ("random", "cloud-config", cloud_config(&noise(20 << 10)), noise(20 << 10)),
        ("random-ignition", "ignition", ignition(&noise(20 << 10)), noise(20 << 10)),
        ("at-the-limit", "cloud-config", of_size(16_384), noise(9_000)),
        ("over-the-limit", "cloud-config", of_size(16_385), noise(9_000)),
    ];
    ensure!((cases[4].2.len(), cases[5].2.len()) == (16_384, 16_385));
    let mut objects = cluster("a12", &json!({"loadBalancer": load_balancer()}));
    let spec = json!({"customImage": "capstan/node:dev", "privileged": false});
    for (name, format, data, _) in &cases {
        objects.extend(machine("a12", name, format, data, &spec));
    }
    let Some(stand) = Stand::start(back_end, &list(&objects), |_| Ok(()))? else { return Ok(()) };
    for (name, _, _, content) in &cases {
        stand.says("dockermachine", name, "BootstrapCompleted", &["True"])?;
        let found = stand.engine.docker(&["exec", &format!("a12-{name}"), "base64", "/srv/given"])?;
        ensure!(STANDARD.decode(found.replace('\n', ""))? == *content, "{name}: another file is in the container");
    }
    stand.delete("cluster", "a12")?;
    stand.is_empty()
}

const CLUSTER: &str = "docker-quickstart";
/// What its load balancer would be called.
const STALE: &str = "docker-quickstart-lb";

on_both_back_ends!(a13_cluster_api_4396_a_load_balancer_counts_by_whether_it_runs);

/// A load balancer counts by whether it runs and not by its name: stopped, removed, there before the cluster, and after the engine's
/// restart.
fn a13_cluster_api_4396_a_load_balancer_counts_by_whether_it_runs(back_end: BackEnd) -> Result<()> {
    let one_node = std::fs::read_to_string(root().join("examples/docker.yaml"))?.replace("replicas: 3", "replicas: 0");
    let stale = |engine: &Engine| {
        engine.docker(&["create", "--name", STALE, "--network", "none", "capstan/haproxy:dev"]).map(drop)
    };
    let Some(mut stand) = Stand::start(back_end, &one_node, stale)? else { return Ok(()) };
    stand.plane.wait_ready(2 * MINUTE)?;
    let endpoint = stand.plane.get(&["cluster", CLUSTER])?["spec"]["controlPlaneEndpoint"].clone();
    let balancer = balancers(&stand.engine)?.pop().context("no load balancer")?;
    ensure!(balancer != STALE, "somebody else's container was taken");

    // Within a minute it answers where it did, and there is one, beside the one node.
    let well = |stand: &Stand, after: &str| -> Result<()> {
        let workload = stand.plane.workload_kubeconfig(CLUSTER)?;
        stand.plane.until(MINUTE, &format!("the endpoint answers after {after}"), || {
            let answers = kubectl(&workload, &["get", "nodes", "--request-timeout=3s", "-o", "name"]);
            Ok(balancers(&stand.engine)?.len() == 1 && answers.is_ok_and(|nodes| nodes.lines().count() == 1))
        })?;
        let all = containers(&stand.engine)?;
        ensure!(all.len() == 2, "after {after} there are {all:?}");
        let now = stand.plane.get(&["cluster", CLUSTER])?["spec"]["controlPlaneEndpoint"].clone();
        ensure!(now == endpoint, "after {after} the endpoint is {now}, and was {endpoint}");
        Ok(())
    };
    well(&stand, "coming up")?;
    stand.meanwhile(|engine| engine.docker(&["stop", "-t", "1", &balancer]).map(drop))?;
    well(&stand, "it was stopped and Capstan restarted")?;
    stand.engine.docker(&["rm", "-f", "-v", &balancer])?;
    well(&stand, "it was removed")?;
    stand.engine.stop();
    stand.engine.start()?;
    well(&stand, "the engine's restart")?;

    stand.delete("cluster", CLUSTER)?;
    stand.is_empty()?;
    stand.engine.docker(&["inspect", STALE]).context("somebody else's container is gone")?;
    Ok(())
}
