//! An AWS with somebody who runs its machines.

use std::sync::Arc;

use anyhow::{Result, ensure};
use capstan_tests::ec2::Ec2;
use capstan_tests::http::Client;
use capstan_tests::hypervisor::Hypervisor;
use capstan_tests::machines::Machines;
use capstan_tests::moto::{Key, Moto};
use capstan_tests::plane::{BackEnd, root};
use capstan_tests::site::{self, list};
use serde_json::{Map, Value, json};

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

/// `examples/aws.yaml` with this key, and before it where AWS is here; nothing else is changed.
pub fn example(back_end: BackEnd, moto: &Moto, key: &Key) -> Result<String> {
    let mut text = std::fs::read_to_string(root().join("examples/aws.yaml"))?;
    for (placeholder, value) in
        [("AKIAXXXXXXXXXXXXXXXX", &key.id), ("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", &key.secret)]
    {
        ensure!(text.contains(placeholder), "the example's placeholder {placeholder} has changed");
        text = text.replace(placeholder, value);
    }
    Ok(format!("{}---\n{text}", list(&[origins(back_end, moto)?])))
}

/// What the operator says of where AWS is, for everybody: at moto. Where the module is, `capstan up` knows by itself.
pub fn origins(back_end: BackEnd, moto: &Moto) -> Result<Value> {
    let services = ["ec2", "elb", "secretsmanager", "ssm", "s3", "sts"];
    let endpoints: Map<String, Value> =
        services.iter().map(|name| ((*name).to_owned(), json!({"url": moto.url}))).collect();
    let mut spec = json!({"endpoints": endpoints});
    if back_end == BackEnd::Real {
        spec["source"] = json!({"file": root().join("target/providers/aws.wasm").canonicalize()?});
    }
    Ok(
        json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "ProviderModule", "metadata": {"name": "aws"}, "spec": spec}),
    )
}
