//! What cannot work is told where it is, in words that say which it is, and the rest keeps working.

use std::net::TcpListener;

use anyhow::{Result, ensure};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, free_port};
use capstan_tests::registry::Registry;
use capstan_tests::site::list;
use serde_json::json;

use crate::stand::{MINUTE, Stand, cluster, containers, load_balancer, machine};

/// Bootstrap data that does nothing.
const NOTHING: &str = "#cloud-config\nruncmd: ['true']\n";

fn stand(back_end: BackEnd) -> Result<Option<Stand>> {
    let objects = cluster("c", &json!({"loadBalancer": load_balancer()}));
    let Some(stand) = Stand::start(back_end, &list(&objects), |_| Ok(()))? else { return Ok(None) };
    stand.says("dockercluster", "c", "Ready", &["True"])?;
    Ok(Some(stand))
}

on_both_back_ends!(an_image_that_comes_slowly_or_not_at_all);

fn an_image_that_comes_slowly_or_not_at_all(back_end: BackEnd) -> Result<()> {
    let Some(stand) = stand(back_end)? else { return Ok(()) };
    let registry = Registry::with(&stand.engine, "capstan/node:dev")?;
    let slow = json!({"customImage": registry.image, "privileged": false});
    stand.apply(&machine("c", "slow", "cloud-config", NOTHING, &slow))?;
    let pulling = stand.says("dockermachine", "slow", "Ready", &["PullingImage", &registry.image, "since 20"])?;

    // While that one is waited for, the others go on.
    let none = json!({"customImage": "127.0.0.1:1/none:v1", "privileged": false});
    stand.apply(&machine("c", "none", "cloud-config", NOTHING, &none))?;
    let words = ["False ImagePullFailed", "127.0.0.1:1/none:v1", "since 20", "spec.customImage"];
    stand.says("dockermachine", "none", "Ready", &words)?;
    let nowhere = json!({"loadBalancer": {"imageRepository": "127.0.0.1:1/none", "imageTag": "v1"}});
    stand.apply(&cluster("nowhere", &nowhere))?;
    let words = ["False ImagePullFailed", "127.0.0.1:1/none/haproxy:v1", "since 20", "spec.loadBalancer"];
    stand.says("dockercluster", "nowhere", "Ready", &words)?;
    stand.delete("cluster", "nowhere")?;
    stand.delete("machine", "none")?;

    let still = stand.says("dockermachine", "slow", "Ready", &[])?;
    ensure!(still == pulling, "{pulling} became {still}");
    ensure!(!containers(&stand.engine)?.contains(&"c-slow".to_owned()), "it was made without its image");
    registry.give();
    stand.says("dockermachine", "slow", "BootstrapCompleted", &["True"])?;
    stand.delete("cluster", "c")?;
    stand.is_empty()
}

on_both_back_ends!(a_port_that_is_taken_and_a_network_and_a_directory_that_are_not_there);

fn a_port_that_is_taken_and_a_network_and_a_directory_that_are_not_there(back_end: BackEnd) -> Result<()> {
    let Some(stand) = stand(back_end)? else { return Ok(()) };
    let port = free_port();
    let other = TcpListener::bind(("0.0.0.0", port))?;
    let spec = json!({"controlPlaneEndpoint": {"host": "127.0.0.1", "port": port}, "loadBalancer": load_balancer()});
    stand.apply(&cluster("taken", &spec))?;
    stand.says("dockercluster", "taken", "Ready", &["False PortOrAddressTaken", &port.to_string()])?;
    drop(other);
    stand.says("dockercluster", "taken", "Ready", &["True"])?;

    let borrowed = json!({"network": "capstan-test-given", "loadBalancer": load_balancer()});
    stand.apply(&cluster("borrowed", &borrowed))?;
    stand.says("dockercluster", "borrowed", "Ready", &["False NetworkNotFound", "capstan-test-given"])?;
    stand.engine.docker(&["network", "create", "--subnet", "10.254.201.0/24", "capstan-test-given"])?;
    stand.says("dockercluster", "borrowed", "Ready", &["True"])?;

    let mount = json!({"customImage": "capstan/node:dev", "privileged": false,
        "extraMounts": [{"hostPath": "/no/such/directory", "containerPath": "/x"}]});
    stand.apply(&machine("c", "no-directory", "cloud-config", NOTHING, &mount))?;
    let words = ["False MountRefused", "/no/such/directory", "spec.extraMounts"];
    stand.says("dockermachine", "no-directory", "Ready", &words)?;
    for name in ["taken", "borrowed", "c"] {
        stand.delete("cluster", name)?;
    }
    stand.plane.until(MINUTE, "nothing is left", || Ok(stand.plane.items(&["dockermachines,machines"])?.is_empty()))?;
    stand.is_empty()?;
    // The user's network stays.
    stand.engine.docker(&["network", "rm", "capstan-test-given"]).map(drop)
}
