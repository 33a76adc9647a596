//! An AWS with somebody who runs its machines.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use capstan_tests::ec2::Ec2;
use capstan_tests::http::Client;
use capstan_tests::hypervisor::Hypervisor;
use capstan_tests::machines::Machines;
use capstan_tests::moto::{Key, Moto};
use capstan_tests::plane::{BackEnd, root};
use capstan_tests::site;

/// All that is there.
pub type Site = site::Site<Moto>;

/// An AWS and its hypervisor, before there is a management plane.
pub fn aws() -> Result<(Arc<Moto>, Hypervisor)> {
    let client = Client::new()?;
    let moto = Arc::new(Moto::start(&client)?);
    let hypervisor = Hypervisor::start(Arc::new(Ec2::of(&moto)), Machines::start(&client)?);
    Ok((moto, hypervisor))
}

/// Starts a management plane that applies these manifests.
pub fn start(back_end: BackEnd, moto: Arc<Moto>, hypervisor: Hypervisor, manifests: &str) -> Result<Site> {
    Site::start(back_end, moto, hypervisor, "awsclusters,awsmachines", manifests)
}

/// `examples/aws.yaml` with this key, and with its Endpoints at moto; nothing else is changed.
pub fn example(moto: &Moto, key: &Key) -> Result<String> {
    let mut text = std::fs::read_to_string(root().join("examples/aws.yaml"))?;
    for (placeholder, value) in
        [("AKIAXXXXXXXXXXXXXXXX", &key.id), ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", &key.secret)]
    {
        ensure!(text.contains(placeholder), "the example's placeholder {placeholder} has changed");
        text = text.replace(placeholder, value);
    }
    let endpoint = "spec:\n  credential:\n";
    let (services, _) = text.split_once("kind: Cluster\n").context("the example has no Cluster")?;
    ensure!(services.matches(endpoint).count() == 3, "the example's Endpoints have changed");
    Ok(text.replace(endpoint, &format!("spec:\n  url: {}\n  credential:\n", moto.url)))
}
