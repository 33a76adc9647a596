//! Both versions of each kind, as kubectl writes and reads them.

use anyhow::{Result, ensure};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::BackEnd;
use capstan_tests::site::list;
use serde_json::{Value, json};

use crate::stand::{INFRASTRUCTURE, Stand};

fn object(kind: &str, name: &str, version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("{INFRASTRUCTURE}/{version}"), "kind": kind,
        "metadata": {"name": name, "namespace": "default"}, "spec": spec})
}

fn template(spec: &Value) -> Value {
    json!({"template": {"metadata": {"labels": {"a": "b"}}, "spec": spec}})
}

on_both_back_ends!(what_is_written_in_one_version_is_read_in_both);

fn what_is_written_in_one_version_is_read_in_both(back_end: BackEnd) -> Result<()> {
    let of_cluster = |domains: Value| {
        json!({"controlPlaneEndpoint": {"host": "10.0.0.2", "port": 6443}, "failureDomains": domains,
            "loadBalancer": {"imageRepository": "r", "imageTag": "t"}, "network": "kind"})
    };
    let old = of_cluster(json!({"a": {"attributes": {"rack": "1"}}, "b": {"controlPlane": true}}));
    let new = of_cluster(json!([{"name": "a", "attributes": {"rack": "1"}}, {"name": "b", "controlPlane": true}]));
    // Each cluster of a template has an endpoint of its own.
    let without_endpoint = |spec: &Value| {
        let mut spec = spec.clone();
        spec.as_object_mut().map(|spec| spec.remove("controlPlaneEndpoint"));
        template(&spec)
    };
    let of_machine = json!({"customImage": "i", "bootstrapped": true, "bootstrapTimeout": "7m", "privileged": false,
        "extraMounts": [{"hostPath": "/a", "containerPath": "/b", "readOnly": true}]});
    let cases = [
        ("DockerCluster", old.clone(), new.clone()),
        ("DockerClusterTemplate", without_endpoint(&old), without_endpoint(&new)),
        ("DockerMachine", of_machine.clone(), of_machine.clone()),
        ("DockerMachineTemplate", template(&of_machine), template(&of_machine)),
    ];
    // Nothing owns them, so nothing is made.
    let mut objects = Vec::new();
    for (kind, old, new) in &cases {
        objects.push(object(kind, "from-old", "v1beta1", old.clone()));
        objects.push(object(kind, "from-new", "v1beta2", new.clone()));
    }
    let Some(stand) = Stand::start(back_end, &list(&objects), |_| Ok(()))? else { return Ok(()) };
    for (kind, old, new) in &cases {
        for name in ["from-old", "from-new"] {
            for (version, spec) in [("v1beta1", old), ("v1beta2", new)] {
                let read = stand.plane.get(&[&format!("{}.{version}.{INFRASTRUCTURE}", kind.to_lowercase()), name])?;
                ensure!(read["apiVersion"] == format!("{INFRASTRUCTURE}/{version}"), "{kind}: {}", read["apiVersion"]);
                ensure!(read["spec"] == *spec, "{kind} {name} in {version} is {}", read["spec"]);
            }
        }
    }
    // An endpoint that is not known yet, as old manifests write it.
    let unknown = json!({"controlPlaneEndpoint": {"host": "", "port": 0}});
    stand.apply(&[object("DockerCluster", "unknown", "v1beta1", unknown.clone())])?;
    let shown = |version: &str| -> Result<Value> {
        Ok(stand.plane.get(&[&format!("dockercluster.{version}.{INFRASTRUCTURE}"), "unknown"])?["spec"].clone())
    };
    ensure!(shown("v1beta1")? == unknown && shown("v1beta2")? == json!({}), "{}", shown("v1beta2")?);

    // What is not served is refused with the field, in whichever version it is written.
    let proxy = json!({"loadBalancer": {"customHAProxyConfigTemplateRef": {"name": "c"}}});
    let mount = json!({"extraMounts": [{"hostPath": "a", "containerPath": "/b"}]});
    for version in ["v1beta1", "v1beta2"] {
        for (kind, spec, field) in [
            ("DockerCluster", proxy.clone(), "spec.loadBalancer.customHAProxyConfigTemplateRef"),
            ("DockerMachine", json!({"preLoadImages": ["i"]}), "spec.preLoadImages"),
            ("DockerMachine", mount.clone(), "spec.extraMounts[0].hostPath"),
            ("DockerMachine", json!({"bootstrapTimeout": "soon"}), "spec.bootstrapTimeout"),
            ("DockerMachineTemplate", template(&mount), "spec.template.spec.extraMounts[0].hostPath"),
            ("DockerMachineTemplate", template(&json!({"preLoadImages": ["i"]})), "spec.template.spec.preLoadImages"),
        ] {
            let said = stand.refused(&[object(kind, "refused", version, spec)])?;
            ensure!(said.contains(field), "{version} {kind}: {field} is not in {said}");
        }
    }
    Ok(())
}
