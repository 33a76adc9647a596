//! Policies (`ValidatingAdmissionPolicy`): both servers refuse, warn of and accept the same.

use crate::definitions::{definition, object_schema};
use crate::hooks::{REGISTRATION, in_force};
use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

/// A policy for config maps of a namespace. Its last validation refuses what is named `probe`, so that it can be told when the
/// real server's caches have it.
fn policy(name: &str, namespace: &str, spec: Value) -> Value {
    let mut spec = spec;
    if spec["matchConstraints"].is_null() {
        spec["matchConstraints"] = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["*"], "resources": ["configmaps"]}]});
    }
    spec["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    let probe = json!({"expression": "object == null || object.metadata.name != 'probe'", "message": "it is in force"});
    match spec["validations"].as_array_mut() {
        Some(validations) => validations.push(probe),
        None => spec["validations"] = json!([probe]),
    }
    bare(name, spec)
}

fn bare(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name}, "spec": spec})
}

fn binding(name: &str, policy: &str, actions: &[&str], spec: Value) -> Value {
    let mut spec = spec;
    spec["policyName"] = policy.into();
    spec["validationActions"] = json!(actions);
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name}, "spec": spec})
}

fn policies() -> String {
    format!("{REGISTRATION}/validatingadmissionpolicies")
}

fn bindings() -> String {
    format!("{REGISTRATION}/validatingadmissionpolicybindings")
}

/// Makes a policy and a binding of the same name that denies, and waits until both are in force.
async fn bound(s: &mut Session, namespace: &str, name: &str, spec: Value, bound: Value) {
    s.namespace(namespace).await;
    s.post(&policies(), &policy(name, namespace, spec)).await.expect(201);
    s.post(&bindings(), &binding(name, name, &["Deny"], bound)).await.expect(201);
    probed(s, namespace).await;
}

async fn probed(s: &mut Session, namespace: &str) {
    in_force(s, &maps(namespace), &map("probe", json!({})), |answer| {
        answer.body.to_string().contains("denied request")
    })
    .await;
}

async fn unbound(s: &mut Session, name: &str) {
    s.delete(&format!("{}/{name}", bindings())).await;
    s.delete(&format!("{}/{name}", policies())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_refuses() {
    compare(async |s: &mut Session| {
        let ns = "policies-deny";
        let spec = json!({
            "variables": [
                {"name": "data", "expression": "object != null && has(object.data) ? object.data : {}"},
                {"name": "long", "expression": "variables.data.all(k, size(variables.data[k]) < 5)"},
                {"name": "broken", "expression": "object.data.absent"}],
            "validations": [
                {"expression": "request.operation != 'CREATE' || oldObject == null"},
                {"expression": "!has(object.data) || !('plain' in object.data)", "message": "  no plain  "},
                {"expression": "!('worded' in variables.data)", "message": "unused",
                    "messageExpression": "object.metadata.name + ' by ' + request.userInfo.username + ' in ' + namespaceObject.metadata.name"},
                {"expression": "!('lines' in variables.data)", "message": "instead", "messageExpression": "'a\\nb'"},
                {"expression": "!('wrong' in variables.data)", "message": "as a message", "messageExpression": "string(object.data.nothing)"},
                {"expression": "!('forbidden' in variables.data)", "reason": "Forbidden"},
                {"expression": "!('large' in variables.data)", "reason": "RequestEntityTooLarge"},
                {"expression": "variables.long", "message": "too long"},
                {"expression": "!('lazy' in variables.data) || variables.broken == ''"},
                {"expression": "!('key' in variables.data) || object.data.missing == ''"},
                {"expression": "!('old' in variables.data) || oldObject.data.old == ''"},
                {"expression": "!('oldhas' in variables.data) || has(oldObject.data)"},
                {"expression": "request.operation != 'UPDATE' || object.data == oldObject.data || !has(oldObject.data) || !('kept' in oldObject.data) || object.data.kept == oldObject.data.kept", "message": "kept is kept"},
                {"expression": "request.operation != 'DELETE' || !('held' in oldObject.metadata.labels)", "messageExpression": "'held: ' + oldObject.metadata.name"}],
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]}});
        bound(s, ns, "deny", spec, json!({})).await;
        let path = maps(ns);
        for key in ["plain", "worded", "lines", "wrong", "forbidden", "large", "lazy", "key", "old", "oldhas"] {
            s.post(&path, &map("a", json!({key: "v"}))).await;
        }
        s.post(&path, &map("a", json!({"x": "123456"}))).await;
        s.post(&path, &map("a", json!({"kept": "v", "x": "1"}))).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"data": {"x": "2"}})).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"data": {"kept": "w"}})).await;
        s.apply(&format!("{path}/a"), "m", &map("a", json!({"plain": "v"}))).await;
        s.apply(&format!("{path}/b"), "m", &map("b", json!({"forbidden": "v"}))).await;
        s.post(&format!("{path}?dryRun=All"), &map("c", json!({"plain": "v"}))).await;
        let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}, "data": {"fine": "v"}});
        s.post(&path, &generated).await;
        s.delete(&format!("{path}/a")).await;
        s.get(&format!("{}/deny", policies())).await;
        s.get(&format!("{}/deny", bindings())).await;
        unbound(s, "deny").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted() {
    compare(async |s: &mut Session| {
        let ns = "policies-delete";
        let spec = json!({"validations": [
            {"expression": "request.operation != 'DELETE' || !has(oldObject.metadata.labels) || !('held' in oldObject.metadata.labels)",
                "messageExpression": "'held: ' + oldObject.metadata.name + (object == null ? '' : '?')"}]});
        bound(s, ns, "held", spec, json!({})).await;
        let path = maps(ns);
        let mut held = map("held", json!({}));
        held["metadata"]["labels"] = json!({"held": "yes"});
        s.post(&path, &held).await;
        s.post(&path, &map("free", json!({}))).await;
        s.delete(&format!("{path}/held")).await;
        s.delete(&format!("{path}/free")).await;
        s.patch(&format!("{path}/held"), "merge", &json!({"metadata": {"labels": null}})).await;
        s.delete(&format!("{path}/held")).await;
        unbound(s, "held").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_only_warns() {
    compare(async |s: &mut Session| {
        let ns = "policies-warn";
        let spec = json!({"validations": [
            {"expression": "!has(object.data)", "message": "there is data"},
            {"expression": "!has(object.binaryData)", "messageExpression": "'and ' + 'more'"}],
            "auditAnnotations": [{"key": "seen", "valueExpression": "'name: ' + object.metadata.name"}, {"key": "none", "valueExpression": "null"}]});
        s.namespace(ns).await;
        s.post(&policies(), &policy("warn", ns, spec)).await;
        s.post(&bindings(), &binding("warn", "warn", &["Warn", "Audit"], json!({}))).await;
        s.post(&bindings(), &binding("warn-also", "warn", &["Audit"], json!({}))).await;
        in_force(s, &maps(ns), &map("probe", json!({})), |answer| answer.headers.contains_key("warning")).await;
        let path = maps(ns);
        s.post(&path, &map("plain", json!({"a": "b"}))).await;
        let mut both = map("both", json!({"a": "b"}));
        both["binaryData"] = json!({"c": "AAAA"});
        s.post(&path, &both).await;
        s.patch(&format!("{path}/plain"), "merge", &json!({"data": {"a": "c"}})).await;
        s.delete(&format!("{}/warn-also", bindings())).await;
        unbound(s, "warn").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_is_about() {
    compare(async |s: &mut Session| {
        let ns = "policies-match";
        let spec = json!({
            "validations": [{"expression": "false", "message": "caught"}],
            "matchConditions": [
                {"name": "not-exempt", "expression": "!has(object.metadata.annotations) || !('exempt' in object.metadata.annotations)"},
                {"name": "no-delete", "expression": "request.operation != 'DELETE'"}],
            "matchConstraints": {
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE", "DELETE"], "resources": ["configmaps"]}],
                "excludeResourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["configmaps"], "resourceNames": ["left", "kube-root-ca.crt"]}],
                "objectSelector": {"matchExpressions": [{"key": "leave", "operator": "DoesNotExist"}]}}});
        s.namespace("policies-other").await;
        bound(s, ns, "match", spec, json!({"matchResources": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
            "operations": ["CREATE"], "resources": ["*"]}]}})).await;
        let path = maps(ns);
        s.post(&path, &map("a", json!({}))).await;
        s.post(&path, &map("left", json!({}))).await;
        let mut one = map("b", json!({}));
        one["metadata"]["labels"] = json!({"leave": "me"});
        s.post(&path, &one).await;
        let mut one = map("c", json!({}));
        one["metadata"]["annotations"] = json!({"exempt": ""});
        s.post(&path, &one).await;
        s.post(&maps("policies-other"), &map("a", json!({}))).await;
        s.patch(&format!("{path}/c"), "merge", &json!({"metadata": {"annotations": null}})).await;
        s.delete(&format!("{path}/c")).await;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
        s.post(&format!("/api/v1/namespaces/{ns}/secrets"), &secret).await;
        unbound(s, "match").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_evaluated() {
    compare(async |s: &mut Session| {
        for (name, failure) in [("fail", "Fail"), ("ignore", "Ignore")] {
            let ns = format!("policies-{name}");
            let spec = json!({"failurePolicy": failure, "validations": [
                {"expression": "object.metadata.name == 'probe' || object.data.needed == 'x'", "reason": "Forbidden"}],
                "matchConditions": [{"name": "typed", "expression": "object.metadata.name == 'probe' || object.data.typed == 'x'"}]});
            bound(s, &ns, name, spec, json!({})).await;
            let path = maps(&ns);
            s.post(&path, &map("a", json!({}))).await;
            s.post(&path, &map("b", json!({"typed": "y"}))).await;
            s.post(&path, &map("c", json!({"typed": "x"}))).await;
            s.post(&path, &map("d", json!({"typed": "x", "needed": "y"}))).await;
            s.post(&path, &map("e", json!({"typed": "x", "needed": "x"}))).await;
            unbound(s, name).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters() {
    compare(async |s: &mut Session| {
        let ns = "policies-params";
        let spec = json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
            "matchConditions": [{"name": "no-params", "expression": "!object.metadata.name.startsWith('param')"}],
            "validations": [
            {"expression": "params == null || !has(object.data) || size(object.data) <= int(params.data.most)",
                "messageExpression": "'at most ' + params.data.most + ' by ' + params.metadata.name + ' ' + params.kind"}]});
        s.namespace("policies-kept").await;
        s.namespace(ns).await;
        s.post(&maps("policies-kept"), &map("limit", json!({"most": "0"}))).await;
        for (name, most) in [("param-a", "1"), ("param-b", "2")] {
            let mut param = map(name, json!({"most": most}));
            param["metadata"]["labels"] = json!({"limit": name});
            s.post(&maps(ns), &param).await;
        }
        let reference = json!({"paramRef": {"name": "param-a", "parameterNotFoundAction": "Deny"}});
        s.post(&policies(), &policy("params", ns, spec)).await.expect(201);
        s.post(&bindings(), &binding("params", "params", &["Deny"], reference)).await.expect(201);
        probed(s, ns).await;
        let path = maps(ns);
        s.post(&path, &map("one", json!({"a": "1"}))).await;
        s.post(&path, &map("two", json!({"a": "1", "b": "2"}))).await;
        let refer = async |s: &mut Session, reference: Value, told: &str| {
            let mut there = s.request(Method::GET, &format!("{}/params", bindings())).quietly().send().await.expect(200);
            there["spec"]["paramRef"] = reference;
            s.put(&format!("{}/params", bindings()), &there).await.expect(200);
            let probe = map("tried", json!({"a": "1", "b": "2", "c": "3"}));
            in_force(s, &maps(ns), &probe, |answer| answer.body.to_string().contains(told)).await;
        };
        refer(s, json!({"selector": {"matchLabels": {"limit": "param-b"}}, "parameterNotFoundAction": "Allow"}), "most 2").await;
        s.post(&path, &map("two", json!({"a": "1", "b": "2"}))).await;
        refer(s, json!({"name": "limit", "namespace": "policies-kept", "parameterNotFoundAction": "Allow"}), "most 0").await;
        s.post(&path, &map("three", json!({"a": "1"}))).await;
        refer(s, json!({"name": "absent", "parameterNotFoundAction": "Deny"}), "no params found").await;
        s.post(&path, &map("four", json!({"a": "1"}))).await;
        refer(s, json!({"name": "absent", "parameterNotFoundAction": "Allow"}), "ConfigMap\"").await;
        s.post(&path, &map("five", json!({"a": "1", "b": "2", "c": "3"}))).await;
        unbound(s, "params").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_of_a_kind_that_is_not_there() {
    compare(async |s: &mut Session| {
        let ns = "policies-kindless";
        let spec = json!({"paramKind": {"apiVersion": "policies.diff.dev/v1", "kind": "Limit"},
            "validations": [{"expression": "params.spec.most > 0"}]});
        let reference = json!({"paramRef": {"name": "a", "parameterNotFoundAction": "Deny"}});
        bound(s, ns, "kindless", spec, reference).await;
        s.post(&maps(ns), &map("a", json!({}))).await;
        unbound(s, "kindless").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_and_scale_of_a_custom_kind() {
    compare(async |s: &mut Session| {
        let ns = "policies-custom";
        let mut crd = definition("policies.diff.dev", "things", "Thing",
            object_schema(json!({"size": {"type": "integer"}, "name-of": {"type": "string"}, "namespace": {"type": "string"}})));
        crd["spec"]["versions"][0]["subresources"] = json!({"status": {}});
        let mut second = crd["spec"]["versions"][0].clone();
        second["name"] = "v2".into();
        second["storage"] = false.into();
        crd["spec"]["versions"].as_array_mut().expect("versions").push(second);
        s.install(&crd).await;
        s.namespace(ns).await;
        let constraints = json!({
            "resourceRules": [
                {"apiGroups": ["policies.diff.dev"], "apiVersions": ["v2"], "operations": ["*"], "resources": ["things", "things/status"]},
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}]});
        let spec = json!({"matchConstraints": constraints, "validations": [
            {"expression": "object == null || !has(object.spec) || !has(object.spec.size) || object.spec.size < 3",
                "messageExpression": "request.kind.version + ' ' + request.requestKind.version + ' ' + request.resource.resource + ' ' + object.apiVersion + ' ' + object.kind"},
            {"expression": "!has(request.subResource) || request.subResource != 'status' || object.status.phase != 'Bad'",
                "messageExpression": "'no ' + request.subResource + ' of ' + request.name"},
            {"expression": "object == null || !has(object.spec) || !('name-of' in object.spec) || object.spec['name-of'] != object.metadata.namespace", "message": "its namespace"}]});
        s.post(&policies(), &policy("custom", ns, spec)).await.expect(201);
        s.post(&bindings(), &binding("custom", "custom", &["Deny"], json!({}))).await.expect(201);
        probed(s, ns).await;
        let [v1, v2] = ["v1", "v2"].map(|version| format!("/apis/policies.diff.dev/{version}/namespaces/{ns}/things"));
        let thing = |version: &str, name: &str, spec: Value| {
            json!({"apiVersion": format!("policies.diff.dev/{version}"), "kind": "Thing", "metadata": {"name": name}, "spec": spec})
        };
        s.post(&v1, &thing("v1", "a", json!({"size": 3}))).await;
        s.post(&v2, &thing("v2", "a", json!({"size": 3}))).await;
        s.post(&v1, &thing("v1", "a", json!({"size": 2}))).await;
        s.post(&v1, &thing("v1", "b", json!({"name-of": ns}))).await;
        s.patch(&format!("{v1}/a/status"), "merge", &json!({"status": {"phase": "Bad"}})).await;
        s.patch(&format!("{v1}/a/status"), "merge", &json!({"status": {"phase": "Good"}})).await;
        unbound(s, "custom").await;
        s.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.policies.diff.dev").await;
    })
    .await;
}

/// Policies that no server takes. The compiler's words are each server's own.
#[tokio::test]
async fn policies_that_are_refused() {
    compare(async |s: &mut Session| {
        let path = policies();
        let rules = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]});
        let with = |validation: Value| json!({"matchConstraints": rules, "validations": [validation]});
        let worded = [
            json!({"expression": "object.metadata.name =="}),
            json!({"expression": "nothing.at.all"}),
            json!({"expression": "params.data.x == ''"}),
            json!({"expression": "variables.x"}),
            json!({"expression": "request.object.metadata.name == ''"}),
            json!({"expression": "'a'"}),
            json!({"expression": "1 + 1"}),
            json!({"expression": "object.spec.flag"}),
            json!({"expression": "true", "messageExpression": "1"}),
            json!({"expression": "true", "messageExpression": "authorizer.path('/').check('get').reason()"}),
        ];
        for validation in worded {
            s.note("what is sent", validation.clone());
            s.request(Method::POST, &path).json(&bare("wrong", with(validation))).own(Own::Details).send().await;
        }
        let told = [
            json!({}),
            json!({"matchConstraints": rules}),
            json!({"validations": [{"expression": "true"}]}),
            json!({"matchConstraints": {}, "validations": [{"expression": "true"}]}),
            with(json!({"message": "m"})),
            with(json!({"expression": "  "})),
            with(json!({"expression": "true", "message": "a\nb"})),
            with(json!({"expression": "true", "message": "  "})),
            with(json!({"expression": "true", "messageExpression": "  "})),
            with(json!({"expression": "true", "reason": "Because"})),
            json!({"matchConstraints": rules, "validations": [{"expression": "true"}], "failurePolicy": "Perhaps"}),
            json!({"matchConstraints": {"matchPolicy": "Sometimes", "resourceRules": [{"apiGroups": ["*", "a"], "apiVersions": [""], "operations": ["READ"],
                "resources": ["*", "pods"], "resourceNames": ["a", "a", "b/c"], "scope": "World"}]}, "validations": [{"expression": "true"}]}),
            json!({"matchConstraints": {"resourceRules": [{}], "objectSelector": {"matchLabels": {"-x": "y z"}, "matchExpressions": [
                {"key": "a", "operator": "In"}, {"key": "b", "operator": "Exists", "values": ["c"]}, {"key": "d", "operator": "Like"}]}}, "validations": [{"expression": "true"}]}),
            json!({"matchConstraints": rules, "validations": [{"expression": "true"}], "paramKind": {}}),
            json!({"matchConstraints": rules, "validations": [{"expression": "true"}], "paramKind": {"apiVersion": "a/b/c", "kind": "x y"}}),
            json!({"matchConstraints": rules, "validations": [{"expression": "true"}], "paramKind": {"apiVersion": "G/1", "kind": "K"}}),
            json!({"matchConstraints": rules, "validations": [{"expression": "true"}], "matchConditions": [{}, {"name": "-", "expression": "true"}]}),
            json!({"matchConstraints": rules, "validations": [{"expression": "true"}], "variables": [{"name": "in", "expression": "1"}, {"name": "a"}, {"name": "b-c", "expression": " "}]}),
            json!({"matchConstraints": rules, "auditAnnotations": [{"key": "a b", "valueExpression": "'x'"}, {"key": "c"}, {"key": "c", "valueExpression": "'x'"}]}),
        ];
        for spec in told {
            s.note("what is sent", spec.clone());
            s.post(&path, &bare("wrong", spec)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn bindings_that_are_refused() {
    compare(async |s: &mut Session| {
        let path = bindings();
        let specs = [
            json!({}),
            json!({"policyName": "-a", "validationActions": ["Deny"]}),
            json!({"policyName": "a", "validationActions": ["Deny", "Warn"]}),
            json!({"policyName": "a", "validationActions": ["Deny", "Deny"]}),
            json!({"policyName": "a", "validationActions": ["Sing"]}),
            json!({"policyName": "a", "validationActions": ["Deny"], "paramRef": {}}),
            json!({"policyName": "a", "validationActions": ["Deny"], "paramRef": {"name": "x/y", "selector": {}, "parameterNotFoundAction": "Maybe"}}),
            json!({"policyName": "a", "validationActions": ["Deny"], "matchResources": {"matchPolicy": "x", "resourceRules": [{}]}}),
        ];
        for spec in specs {
            s.note("what is sent", spec.clone());
            let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": "wrong"}, "spec": spec});
            s.post(&path, &object).await;
        }
    })
    .await;
}

/// From birth to death: defaults, generations, status, and that nobody can lock himself out.
#[tokio::test(flavor = "multi_thread")]
async fn policies_as_objects() {
    compare(async |s: &mut Session| {
        let path = policies();
        let everything = json!({"resourceRules": [{"apiGroups": ["admissionregistration.k8s.io"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]},
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "policies-life"}}});
        s.namespace("policies-life").await;
        let made = s.post(&path, &bare("life", json!({"matchConstraints": everything, "validations": [{"expression": "false"}]}))).await.expect(201);
        s.post(&bindings(), &binding("life", "life", &["Deny"], json!({"matchResources": {}}))).await;
        probed(s, "policies-life").await;
        // Who could forbid to change policies could not be got rid of.
        let mut next = made.clone();
        next["spec"]["validations"][0]["message"] = "no".into();
        next["status"] = json!({"observedGeneration": 7});
        let next = s.put(&format!("{path}/life"), &next).await.expect(200);
        s.patching(&format!("{path}/life"), "merge", &json!({"spec": {"validations": [{"expression": "nothing"}]}})).own(Own::Details).send().await.expect(422);
        s.patch(&format!("{path}/life"), "merge", &json!({"metadata": {"labels": {"a": "b"}}})).await;
        s.patch(&format!("{path}/life/status"), "merge", &json!({"status": {"observedGeneration": 2, "typeChecking": {"expressionWarnings": [{"fieldRef": "spec.validations[0].expression", "warning": "w"}]}}, "spec": {"failurePolicy": "Ignore"}})).await;
        s.patch(&format!("{path}/life/status"), "merge", &json!({"status": {"typeChecking": {"expressionWarnings": [{"fieldRef": "", "warning": ""}]}}})).await;
        s.put(&format!("{path}/life"), &next).await;
        s.get(&format!("{path}/life/status")).await;
        s.apply(&format!("{path}/life"), "m", &json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "spec": {"variables": [{"name": "a", "expression": "1"}], "matchConditions": [{"name": "c", "expression": "true"}]}})).await;
        // A variable is merged in before the others, and knows none of them.
        s.patching(&format!("{path}/life"), "strategic", &json!({"spec": {"variables": [{"name": "b", "expression": "variables.a"}]}})).own(Own::Details).send().await;
        s.patch(&format!("{path}/life"), "strategic", &json!({"spec": {"variables": [{"name": "b", "expression": "2"}],
            "matchConditions": [{"name": "d", "expression": "true"}]}})).await;
        s.apply(&format!("{}/life", bindings()), "m", &json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "spec": {"validationActions": ["Audit"], "paramRef": {"name": "x", "parameterNotFoundAction": "Allow"}}})).await;
        for path in [format!("{path}?fieldSelector=metadata.name=life"), format!("{}?fieldSelector=metadata.name=life", bindings())] {
            s.get(&path).await;
        }
        unbound(s, "life").await;
        let served = s.request(Method::GET, "/apis/admissionregistration.k8s.io/v1").quietly().send().await.expect(200);
        let own = served["resources"].as_array().into_iter().flatten();
        let own = own.filter(|one| one["kind"].as_str().is_some_and(|kind| kind.starts_with("ValidatingAdmission")));
        s.note("discovery", own.cloned().collect());
    })
    .await;
}

/// Who may not read what a policy refers to may not let it be read.
#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_one_may_not_read() {
    compare(async |s: &mut Session| {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "policies-writer"},
            "rules": [{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}]});
        let bound = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "policies-writer"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "policies-writer"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "policies-writer"}]});
        let roles = "/apis/rbac.authorization.k8s.io/v1";
        s.post(&format!("{roles}/clusterroles"), &role).await;
        s.post(&format!("{roles}/clusterrolebindings"), &bound).await;
        let writer = s.server.user("policies-writer", &[]);
        let rules = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nodes"]}]});
        let spec = |kind: Value| json!({"matchConstraints": rules, "validations": [{"expression": "true"}], "paramKind": kind});
        let secrets = bare("reads", spec(json!({"apiVersion": "v1", "kind": "Secret"})));
        for _ in 0..100 {
            // Roles take a moment, too.
            let answer = s.request(Method::POST, &format!("{}?dryRun=All", policies())).json(&bare("reads", spec(Value::Null))).by(&writer).quietly().send().await;
            if answer.code == 201 {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        s.request(Method::POST, &policies()).json(&secrets).by(&writer).own(Own::Details).send().await;
        s.request(Method::POST, &policies()).json(&bare("reads", spec(Value::Null))).by(&writer).send().await;
        s.post(&policies(), &bare("reads-secrets", spec(json!({"apiVersion": "v1", "kind": "Secret"})))).await;
        let named = binding("reads", "reads-secrets", &["Deny"], json!({"paramRef": {"name": "a", "namespace": "default", "parameterNotFoundAction": "Allow"}}));
        s.request(Method::POST, &bindings()).json(&named).by(&writer).own(Own::Details).send().await;
        s.request(Method::POST, &bindings()).json(&binding("reads", "reads-secrets", &["Deny"], json!({}))).by(&writer).send().await;
        unbound(s, "reads").await;
        s.delete(&format!("{}/reads-secrets", policies())).await;
        s.delete(&format!("{roles}/clusterrolebindings/policies-writer")).await;
        s.delete(&format!("{roles}/clusterroles/policies-writer")).await;
    })
    .await;
}
