//! Built-in kinds: what the server fills in, keeps and shows of them.

use crate::session::{Own, Session, compare};

/// What only those who schedule, run or protect the objects have a use for, and what Go writes though there is nothing in
/// it: `docs/apiserver.md` tells of each.
const NOT_KEPT: &[&str] = &[
    "metadata.managedFields",
    "spec.tolerations",
    "spec.priority",
    "spec.preemptionPolicy",
    "spec.containers.*.resources.requests",
    "spec.taints",
    "spec.podCIDRs",
    "status.qosClass",
    "status.conditions",
    "status.allocatable",
    "status.daemonEndpoints",
    "status.nodeInfo",
    "status.lastPhaseTransitionTime",
    "spec.volumeClaimTemplates",
    "metadata.annotations",
    "metadata.finalizers",
    "metadata.labels",
    "rules",
    "spec.selector",
    "spec.template.metadata",
    "metadata.generation",
    "metadata.resourceVersion",
    "eventTime",
    "firstTimestamp",
    "lastTimestamp",
    "reportingComponent",
    "reportingInstance",
    "source",
    "deprecatedFirstTimestamp",
    "deprecatedLastTimestamp",
    "deprecatedSource",
];
use reqwest::Method;
use serde_json::{Value, json};

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}}, "spec": {
        "containers": [{"name": "c", "image": "i:1", "ports": [{"containerPort": 80}], "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            "livenessProbe": {"httpGet": {"port": 80}}, "resources": {"requests": {"cpu": "0.5", "memory": "1024Ki"}}}],
        "volumes": [{"name": "s", "secret": {"secretName": "x"}}, {"name": "c", "configMap": {"name": "x"}}, {"name": "h", "hostPath": {"path": "/x"}}]}})
}

fn template() -> Value {
    json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

#[tokio::test]
async fn defaults() {
    compare(async |s: &mut Session| {
        s.exempt = NOT_KEPT.to_vec();
        s.namespace("builtin-defaults").await;
        let selector = json!({"matchLabels": {"app": "a"}});
        let at = |path: &str| path.replace("NS", "namespaces/builtin-defaults");
        for (path, body) in [
            ("/api/v1/NS/pods", pod("pod")),
            ("/apis/apps/v1/NS/deployments", json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"selector": selector, "template": template()}})),
            ("/apis/apps/v1/NS/replicasets", json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "a"}, "spec": {"selector": selector, "template": template()}})),
            ("/apis/apps/v1/NS/daemonsets", json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {"selector": selector, "template": template()}})),
            ("/apis/apps/v1/NS/statefulsets", json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}, "spec": {"serviceName": "a", "selector": selector, "template": template(),
                "volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]}})),
            ("/api/v1/NS/persistentvolumeclaims", json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})),
            ("/api/v1/persistentvolumes", json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "builtin-defaults"}, "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}})),
            ("/api/v1/NS/serviceaccounts", json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}})),
            ("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "builtin-defaults"}, "spec": {"podCIDR": "10.1.0.0/24"}, "status": {"phase": "x", "capacity": {"cpu": "2"}}})),
            ("/apis/coordination.k8s.io/v1/NS/leases", json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}})),
            ("/api/v1/NS/events", json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "a"}, "involvedObject": {"namespace": "builtin-defaults", "kind": "Pod", "name": "x"}, "reason": "R", "message": "m", "type": "Normal", "count": 1})),
            ("/apis/events.k8s.io/v1/NS/events", json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "b"}, "regarding": {"namespace": "builtin-defaults", "kind": "Pod", "name": "x"}, "reason": "R", "note": "n", "type": "Normal", "action": "A", "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c.dev/x", "reportingInstance": "i"})),
            ("/apis/rbac.authorization.k8s.io/v1/NS/roles", json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "a"}, "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]})),
            ("/apis/rbac.authorization.k8s.io/v1/NS/rolebindings", json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "a"}, "roleRef": {"kind": "Role", "name": "a", "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "name": "s"}]})),
            ("/apis/rbac.authorization.k8s.io/v1/clusterroles", json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "builtin-defaults"}, "rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]})),
            ("/apis/batch/v1/NS/jobs", json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})),
            ("/apis/policy/v1/NS/poddisruptionbudgets", json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "a"}, "spec": {"minAvailable": 1, "selector": selector}})),
            ("/apis/discovery.k8s.io/v1/NS/endpointslices", json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]})),
            ("/apis/storage.k8s.io/v1/storageclasses", json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "builtin-defaults"}, "provisioner": "x.dev/y"})),
            ("/apis/scheduling.k8s.io/v1/priorityclasses", json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "builtin-defaults"}, "value": 5})),
            ("/apis/networking.k8s.io/v1/NS/networkpolicies", json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "a"}, "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}})),
            ("/apis/storage.k8s.io/v1/volumeattachments", json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": "builtin-defaults"}, "spec": {"attacher": "x.dev", "nodeName": "n", "source": {"persistentVolumeName": "p"}}})),
        ] {
            s.post(&at(path), &body).await;
        }
        s.get(&at("/apis/events.k8s.io/v1/NS/events/a")).await;
        s.get(&at("/api/v1/NS/events/b")).await;
    })
    .await;
}

#[tokio::test]
async fn services() {
    compare(async |s: &mut Session| {
        s.exempt = NOT_KEPT.to_vec();
        s.namespace("builtin-services").await;
        let path = "/api/v1/namespaces/builtin-services/services";
        let body = |name: &str, spec: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec});
        s.post(path, &body("headless", json!({"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}]}))).await;
        s.post(path, &body("named", json!({"type": "ExternalName", "externalName": "x.dev"}))).await;
        s.delete(&format!("{path}/headless")).await;
    })
    .await;
}

#[tokio::test]
async fn the_parts_of_nodes_and_pods() {
    compare(async |s: &mut Session| {
        s.exempt = NOT_KEPT.to_vec();
        s.namespace("builtin-parts").await;
        let path = "/api/v1/namespaces/builtin-parts/pods";
        s.post(path, &pod("p")).await;
        s.patch(&format!("{path}/p/status"), "strategic", &json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})).await;
        s.patch(&format!("{path}/p/status"), "strategic", &json!({"status": {"conditions": [{"type": "Other", "status": "False"}]}})).await;
        s.patch(&format!("{path}/p"), "merge", &json!({"metadata": {"labels": {"x": "y"}}})).await;
        s.patch(&format!("{path}/p"), "strategic", &json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}})).await;
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
        s.post(&format!("{path}/p/binding"), &binding).await;
        s.post(&format!("{path}/p/binding"), &binding).await;
        s.get(&format!("{path}/p")).await;
        for selector in ["spec.nodeName=n", "spec.nodeName=m", "status.phase=Running", "status.phase!=Running", "spec.restartPolicy=Always"] {
            let list = s.get(&format!("{path}?fieldSelector={selector}")).await;
            drop(list);
        }
        s.request(Method::DELETE, &format!("{path}/p?gracePeriodSeconds=0")).send().await;
        s.gone(&format!("{path}/p")).await;
        let nodes = "/api/v1/nodes";
        s.post(nodes, &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "builtin-parts"}})).await;
        let at = format!("{nodes}/builtin-parts");
        s.patch(&format!("{at}/status"), "strategic", &json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "1.2.3.4"}]}})).await;
        s.patch(&at, "strategic", &json!({"spec": {"unschedulable": true, "taints": [{"key": "a", "effect": "NoSchedule"}]}})).await;
        s.patch(&at, "merge", &json!({"spec": {"providerID": "x:///1"}})).await;
        s.patch(&at, "merge", &json!({"status": {"phase": "no"}})).await;
        s.delete(&at).await;
    })
    .await;
}

#[tokio::test]
async fn eviction_asks_the_budget() {
    compare(async |s: &mut Session| {
        s.exempt = NOT_KEPT.to_vec();
        s.namespace("builtin-evict").await;
        let path = "/api/v1/namespaces/builtin-evict/pods";
        s.post(path, &pod("held")).await;
        s.post(path, &pod("free")).await;
        s.patch(&format!("{path}/held/status"), "merge", &json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})).await;
        s.post("/apis/policy/v1/namespaces/builtin-evict/poddisruptionbudgets", &json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "held"}}}})).await;
        s.patch("/apis/policy/v1/namespaces/builtin-evict/poddisruptionbudgets/b/status", "merge", &json!({"status": {
            "observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}})).await;
        let eviction = |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
        s.post(&format!("{path}/held/eviction"), &eviction("held")).await;
        s.post(&format!("{path}/free/eviction?dryRun=All"), &eviction("free")).await;
        s.post(&format!("{path}/free/eviction"), &eviction("free")).await;
        s.gone(&format!("{path}/free")).await;
        s.post(&format!("{path}/none/eviction"), &eviction("none")).await;
        s.get(&format!("{path}/held")).await;
    })
    .await;
}

#[tokio::test]
async fn what_does_not_change() {
    compare(async |s: &mut Session| {
        s.exempt = NOT_KEPT.to_vec();
        s.namespace("builtin-fixed").await;
        let path = "/apis/apps/v1/namespaces/builtin-fixed/deployments";
        s.post(path, &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template()}})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"spec": {"selector": {"matchLabels": {"app": "b"}}, "template": {"metadata": {"labels": {"app": "b"}}}}})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"spec": {"replicas": -1}})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"status": {"replicas": 3}, "spec": {"paused": true}})).await;
        s.patch(&format!("{path}/a/status"), "merge", &json!({"status": {"replicas": 3, "observedGeneration": 1}})).await;
        s.get(&format!("{path}/a/scale")).await;
        s.patch(&format!("{path}/a/scale"), "merge", &json!({"spec": {"replicas": 4}})).await;
        let leases = "/apis/coordination.k8s.io/v1/namespaces/builtin-fixed/leases";
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}});
        s.put(&format!("{leases}/a"), &lease).await;
        s.put(&format!("{leases}/a"), &lease).await;
        s.patch(&format!("{leases}/a"), "merge", &json!({"spec": {"leaseDurationSeconds": 0}})).await;
        let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/builtin-fixed/rolebindings";
        s.post(roles, &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "a"}, "roleRef": {"kind": "Role", "name": "a", "apiGroup": "rbac.authorization.k8s.io"}})).await;
        s.patch(&format!("{roles}/a"), "merge", &json!({"roleRef": {"name": "b"}})).await;
        s.patch("/api/v1/namespaces/builtin-fixed", "merge", &json!({"spec": {"finalizers": []}, "metadata": {"labels": {"x": "y"}}})).await;
        s.patch("/api/v1/namespaces/builtin-fixed", "merge", &json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}})).await;
    })
    .await;
}

#[tokio::test]
async fn what_their_validation_refuses() {
    compare(async |s: &mut Session| {
        s.exempt = NOT_KEPT.to_vec();
        s.namespace("builtin-invalid").await;
        let at = |path: &str| path.replace("NS", "namespaces/builtin-invalid");
        for (path, body) in [
            ("/api/v1/NS/pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}})),
            ("/api/v1/NS/pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}})),
            ("/apis/apps/v1/NS/deployments", json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": template()}})),
            ("/apis/apps/v1/NS/deployments", json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"app": "z"}}, "template": template()}})),
            ("/api/v1/NS/services", json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "1a"}, "spec": {"clusterIP": "None"}})),
            ("/api/v1/namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a.b"}})),
            ("/apis/rbac.authorization.k8s.io/v1/NS/rolebindings", json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "a"}, "roleRef": {"kind": "Nonsense", "name": "a", "apiGroup": "rbac.authorization.k8s.io"}})),
            ("/apis/coordination.k8s.io/v1/NS/leases", json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"leaseDurationSeconds": -1}})),
        ] {
            s.note("body", body.clone());
            s.request(Method::POST, &at(path)).json(&body).own(Own::Details).send().await;
        }
    })
    .await;
}

#[tokio::test]
async fn tables() {
    compare(async |s: &mut Session| {
        s.exempt = NOT_KEPT.to_vec();
        s.namespace("builtin-tables").await;
        let at = |path: &str| path.replace("NS", "namespaces/builtin-tables");
        s.post(&at("/api/v1/NS/configmaps"), &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"x": "y"}, "binaryData": {"z": "eA=="}})).await;
        s.post(&at("/api/v1/NS/secrets"), &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": {"x": "eA=="}})).await;
        s.post(&at("/api/v1/NS/serviceaccounts"), &json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}})).await;
        s.post(&at("/api/v1/NS/pods"), &pod("a")).await;
        s.post(&at("/apis/apps/v1/NS/deployments"), &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template()}})).await;
        s.post(&at("/apis/apps/v1/NS/daemonsets"), &json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "a"}, "spec": {"selector": {"matchLabels": {"app": "a"}}, "template": template()}})).await;
        s.post(&at("/apis/coordination.k8s.io/v1/NS/leases"), &json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}})).await;
        s.post(&at("/apis/rbac.authorization.k8s.io/v1/NS/rolebindings"), &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "a"}, "roleRef": {"kind": "Role", "name": "a", "apiGroup": "rbac.authorization.k8s.io"}, "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}]})).await;
        s.post(&at("/apis/rbac.authorization.k8s.io/v1/NS/roles"), &json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "a"}, "rules": []})).await;
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        for path in [
            "/api/v1/NS/configmaps/a", "/api/v1/NS/secrets/a", "/api/v1/NS/serviceaccounts/a", "/api/v1/NS/pods/a", "/apis/apps/v1/NS/deployments/a", "/apis/apps/v1/NS/daemonsets/a", "/apis/coordination.k8s.io/v1/NS/leases/a", "/apis/rbac.authorization.k8s.io/v1/NS/roles/a", "/api/v1/namespaces/builtin-tables", "/api/v1/nodes", "/api/v1/NS/events", "/api/v1/NS/services", "/apis/apps/v1/NS/replicasets", "/apis/apps/v1/NS/statefulsets",
        ] {
            let answer = s.request(Method::GET, &at(path)).header("accept", table).quietly().send().await;
            let mut body = s.words.normal(&answer.body);
            let age = body["columnDefinitions"].as_array().and_then(|columns| columns.iter().position(|column| column["name"] == "Age"));
            for row in body["rows"].as_array_mut().into_iter().flatten() {
                if let Some(cell) = age.and_then(|at| row["cells"].get_mut(at)) {
                    *cell = json!("age");
                }
            }
            if path.contains("/nodes") || path.contains("persistentvolumes?") || path.contains("NS/events") {
                body["rows"] = json!([]);
                body["metadata"] = json!({});
            }
            // What a column is for is told by upstream in the words of its API's documentation, which nobody shows.
            let columns: Vec<Value> = body["columnDefinitions"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|column| json!([column["name"], column["priority"]]))
                .collect();
            let cells: Vec<Value> = body["rows"].as_array().into_iter().flatten().map(|row| row["cells"].clone()).collect();
            // Some counts are text here and numbers upstream; both are shown alike.
            let cells: Vec<Vec<String>> = cells
                .iter()
                .map(|row| row.as_array().into_iter().flatten().map(|cell| cell.to_string().replace('"', "")).collect())
                .collect();
            s.note(path, json!([answer.code, columns, cells]));
        }
    })
    .await;
}
