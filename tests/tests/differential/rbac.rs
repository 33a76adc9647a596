//! RBAC: what roles allow, who may act as whom, who may ask about whom, tokens of service accounts.

use crate::objects::{map, maps};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const AUTHORIZATION: &str = "/apis/authorization.k8s.io/v1";

pub fn role(kind: &str, name: &str, rules: Value) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules})
}

pub fn binding(kind: &str, name: &str, role: (&str, &str), subjects: Value) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role.0, "name": role.1}})
}

pub fn user(name: &str) -> Value {
    json!([{"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}])
}

pub async fn roles(s: &mut Session, namespace: &str) -> String {
    s.namespace(namespace).await;
    format!("{RBAC}/namespaces/{namespace}")
}

/// A role takes a moment until the real server's caches have it.
pub async fn allowed(s: &mut Session, user: &str, verb: &str, namespace: &str, resource: &str) {
    for _ in 0..100 {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": user,
            "resourceAttributes": {"verb": verb, "namespace": namespace, "resource": resource}}});
        let path = format!("{AUTHORIZATION}/subjectaccessreviews");
        let answer = s.request(Method::POST, &path).json(&review).quietly().send().await;
        if answer.body["status"]["allowed"] == true {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{user} may still not {verb} {resource}");
}

#[tokio::test]
async fn a_role_allows_what_it_says() {
    compare(async |s: &mut Session| {
        let path = roles(s, "rbac-role").await;
        let rules = json!([
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["delete"], "resourceNames": ["a"]},
            {"apiGroups": ["apps"], "resources": ["deployments/scale"], "verbs": ["*"]},
        ]);
        s.post(&format!("{path}/roles"), &role("Role", "some", rules)).await;
        s.post(&format!("{path}/rolebindings"), &binding("RoleBinding", "some", ("Role", "some"), user("role-jane")))
            .await;
        allowed(s, "role-jane", "list", "rbac-role", "configmaps").await;
        let jane = s.server.user("role-jane", &[]);
        let maps = maps("rbac-role");
        for name in ["a", "b"] {
            s.request(Method::POST, &maps).json(&map(name, json!({}))).by(&jane).send().await;
        }
        s.request(Method::GET, &format!("{maps}/a")).by(&jane).send().await;
        s.request(Method::PUT, &format!("{maps}/a")).json(&map("a", json!({"k": "v"}))).by(&jane).send().await;
        s.request(Method::DELETE, &format!("{maps}/b")).by(&jane).send().await;
        s.request(Method::DELETE, &format!("{maps}/a")).by(&jane).send().await;
        s.request(Method::DELETE, &maps).by(&jane).send().await;
        s.request(Method::GET, "/api/v1/configmaps").by(&jane).send().await;
        let deployments = "/apis/apps/v1/namespaces/rbac-role/deployments";
        s.request(Method::GET, &format!("{deployments}/none/scale")).by(&jane).send().await;
        s.request(Method::GET, &format!("{deployments}/none")).by(&jane).send().await;
        s.request(Method::GET, &format!("{maps}?watch=true&timeoutSeconds=1")).by(&jane).send().await;
    })
    .await;
}

#[tokio::test]
async fn cluster_roles_and_service_accounts() {
    compare(async |s: &mut Session| {
        let path = roles(s, "rbac-cluster").await;
        let read = json!([{"apiGroups": [""], "resources": ["configmaps", "nodes"], "verbs": ["get", "list"]},
            {"nonResourceURLs": ["/metrics", "/logs/*"], "verbs": ["get"]}]);
        s.post(&format!("{RBAC}/clusterroles"), &role("ClusterRole", "rbac-read", read)).await;
        let account = json!([{"kind": "ServiceAccount", "name": "robot", "namespace": "rbac-cluster"}]);
        let bind = binding("RoleBinding", "read", ("ClusterRole", "rbac-read"), account.clone());
        s.post(&format!("{path}/rolebindings"), &bind).await;
        let robot = "system:serviceaccount:rbac-cluster:robot";
        allowed(s, robot, "list", "rbac-cluster", "configmaps").await;
        let maps = maps("rbac-cluster");
        s.request(Method::GET, &format!("{maps}/none")).header("impersonate-user", robot).send().await;
        s.request(Method::GET, "/api/v1/nodes/none").header("impersonate-user", robot).send().await;
        let bind = binding("ClusterRoleBinding", "rbac-read", ("ClusterRole", "rbac-read"), account);
        s.post(&format!("{RBAC}/clusterrolebindings"), &bind).await;
        allowed(s, robot, "list", "", "nodes").await;
        s.request(Method::GET, "/api/v1/nodes/none").header("impersonate-user", robot).send().await;
        s.request(Method::GET, "/logs/none").header("impersonate-user", robot).quietly().send().await;
        s.delete(&format!("{RBAC}/clusterrolebindings/rbac-read")).await;
        s.delete(&format!("{RBAC}/clusterroles/rbac-read")).await;
    })
    .await;
}

#[tokio::test]
async fn acting_as_somebody_else() {
    compare(async |s: &mut Session| {
        s.namespace("rbac-as").await;
        let maps = maps("rbac-as");
        let jane = s.server.user("as-jane", &[]);
        let who = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let ask = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        for (name, group) in [
            ("somebody", None),
            ("somebody", Some("guests")),
            ("somebody", Some("system:unauthenticated")),
            ("system:anonymous", None),
            ("system:serviceaccount:rbac-as:x", None),
            ("system:serviceaccount:rbac-as:x", Some("guests")),
        ] {
            let mut request = s.request(Method::POST, ask).json(&who).header("impersonate-user", name).quietly();
            if let Some(group) = group {
                request = request.header("impersonate-group", group);
            }
            let answer = request.send().await;
            let info = &answer.body["status"]["userInfo"];
            s.note("who", json!([answer.code, info["username"], info["groups"]]));
        }
        s.request(Method::GET, &maps).header("impersonate-user", "somebody").send().await;
        s.request(Method::GET, &maps)
            .header("impersonate-user", "x")
            .header("impersonate-group", "system:masters")
            .send()
            .await;
        s.request(Method::GET, &maps).by(&jane).header("impersonate-user", "somebody").send().await;
        s.request(Method::GET, "/metrics").by(&jane).header("impersonate-user", "somebody").send().await;
        let robot = "system:serviceaccount:rbac-as:x";
        s.request(Method::GET, &maps).by(&jane).header("impersonate-user", robot).send().await;
        let answer = s.request(Method::GET, &maps).header("impersonate-group", "guests").quietly().send().await;
        s.note("no user", json!([answer.code, answer.body["reason"]]));
    })
    .await;
}

#[tokio::test]
async fn nobody_hands_out_more_than_he_has() {
    compare(async |s: &mut Session| {
        let path = roles(s, "rbac-escalation").await;
        let rules = json!([
            {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        ]);
        s.post(&format!("{path}/roles"), &role("Role", "manager", rules)).await;
        let bind = binding("RoleBinding", "manager", ("Role", "manager"), user("esc-jane"));
        s.post(&format!("{path}/rolebindings"), &bind).await;
        allowed(s, "esc-jane", "get", "rbac-escalation", "configmaps").await;
        let jane = s.server.user("esc-jane", &[]);
        let held = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": ["a"]}]);
        let more = json!([{"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["get", "list"]}]);
        let roles = format!("{path}/roles");
        s.request(Method::POST, &roles).json(&role("Role", "held", held)).by(&jane).send().await;
        s.request(Method::POST, &roles).json(&role("Role", "more", more.clone())).by(&jane).send().await;
        s.request(Method::PUT, &format!("{roles}/held")).json(&role("Role", "held", more)).by(&jane).send().await;
        let bindings = format!("{path}/rolebindings");
        let bind = binding("RoleBinding", "b", ("Role", "held"), user("x"));
        s.request(Method::POST, &bindings).json(&bind).by(&jane).send().await;
        let bind = binding("RoleBinding", "c", ("Role", "none"), user("x"));
        s.request(Method::POST, &bindings).json(&bind).by(&jane).send().await;
        let everything = role("Role", "all", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
        s.post(&roles, &everything).await;
        let bind = binding("RoleBinding", "d", ("Role", "all"), user("x"));
        s.request(Method::POST, &bindings).json(&bind).by(&jane).send().await;
    })
    .await;
}

#[tokio::test]
async fn asking_who_may() {
    compare(async |s: &mut Session| {
        s.exempt.push("metadata.managedFields");
        let path = roles(s, "rbac-ask").await;
        let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]);
        s.post(&format!("{path}/roles"), &role("Role", "reader", rules)).await;
        let bind = binding("RoleBinding", "reader", ("Role", "reader"), user("ask-jane"));
        s.post(&format!("{path}/rolebindings"), &bind).await;
        allowed(s, "ask-jane", "get", "rbac-ask", "configmaps").await;
        let jane = s.server.user("ask-jane", &[]);
        let attributes = |verb: &str| json!({"namespace": "rbac-ask", "verb": verb, "resource": "configmaps"});
        let review = |kind: &str, spec: Value| json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        let ask = |kind: &str| format!("{AUTHORIZATION}/{}s", kind.to_lowercase());
        for verb in ["get", "delete"] {
            let spec = json!({"user": "ask-jane", "resourceAttributes": attributes(verb)});
            s.post(&ask("SubjectAccessReview"), &review("SubjectAccessReview", spec)).await;
            let spec = json!({"resourceAttributes": attributes(verb)});
            let own = ask("SelfSubjectAccessReview");
            let body = review("SelfSubjectAccessReview", spec);
            s.request(Method::POST, &own).json(&body).by(&jane).send().await;
            s.post(&own, &body).await;
        }
        let path = json!({"user": "ask-jane", "nonResourceAttributes": {"path": "/healthz", "verb": "get"}});
        s.post(&ask("SubjectAccessReview"), &review("SubjectAccessReview", path)).await;
        let path = json!({"user": "ask-jane", "nonResourceAttributes": {"path": "/metrics", "verb": "get"}});
        s.post(&ask("SubjectAccessReview"), &review("SubjectAccessReview", path)).await;
        for wrong in [
            json!({}),
            json!({"user": "x"}),
            json!({"resourceAttributes": attributes("get")}),
        ] {
            s.post(&ask("SubjectAccessReview"), &review("SubjectAccessReview", wrong)).await;
        }
        let both = json!({"user": "x", "resourceAttributes": attributes("get"), "nonResourceAttributes": {"path": "/", "verb": "get"}});
        let both = review("SubjectAccessReview", both);
        s.request(Method::POST, &ask("SubjectAccessReview")).json(&both).own(Own::Details).send().await;
        let spec = json!({"user": "ask-jane", "resourceAttributes": attributes("get")});
        let body = review("SubjectAccessReview", spec.clone());
        s.request(Method::POST, &ask("SubjectAccessReview")).json(&body).by(&jane).send().await;
        let local = format!("{AUTHORIZATION}/namespaces/rbac-ask/localsubjectaccessreviews");
        s.post(&local, &review("LocalSubjectAccessReview", spec)).await;
        let other = json!({"user": "ask-jane", "resourceAttributes": {"namespace": "other", "verb": "get", "resource": "pods"}});
        s.post(&local, &review("LocalSubjectAccessReview", other)).await;
        let rules = review("SelfSubjectRulesReview", json!({"namespace": "rbac-ask"}));
        let answer =
            s.request(Method::POST, &ask("SelfSubjectRulesReview")).json(&rules).by(&jane).quietly().send().await;
        let all = answer.body["status"]["resourceRules"].as_array().cloned().unwrap_or_default();
        let own = all.iter().any(|rule| rule["resources"] == json!(["configmaps"]) && rule["verbs"] == json!(["get"]));
        s.note("rules", json!([answer.code, own]));
    })
    .await;
}

#[tokio::test]
async fn tokens_of_service_accounts() {
    compare(async |s: &mut Session| {
        s.namespace("rbac-token").await;
        let accounts = "/api/v1/namespaces/rbac-token/serviceaccounts";
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
        s.post(accounts, &account).await;
        let token = format!("{accounts}/robot/token");
        let ask = |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec});
        for wrong in [json!({"expirationSeconds": 10}), json!({"expirationSeconds": 1_u64 << 33})] {
            s.post(&token, &ask(wrong)).await;
        }
        s.post(&format!("{accounts}/none/token"), &ask(json!({}))).await;
        let answer =
            s.request(Method::POST, &token).json(&ask(json!({"expirationSeconds": 3600}))).quietly().send().await;
        let made = answer.body["status"]["token"].as_str().unwrap_or_default().to_owned();
        let spec = &answer.body["spec"];
        let known =
            json!([answer.code, answer.body["metadata"]["name"], spec["expirationSeconds"], made.matches('.').count()]);
        s.note("token", known);
        let nobody = s.server.nobody();
        let bearer = format!("Bearer {made}");
        let who = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let answer = s
            .request(Method::POST, path)
            .json(&who)
            .header("authorization", &bearer)
            .by(&nobody)
            .quietly()
            .send()
            .await;
        let info = &answer.body["status"]["userInfo"];
        s.note("who", json!([answer.code, info["username"], info["groups"]]));
        s.request(Method::GET, &maps("rbac-token")).header("authorization", &bearer).by(&nobody).send().await;
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": made}});
        let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
        let answer = s.request(Method::POST, reviews).json(&review).quietly().send().await;
        let status = &answer.body["status"];
        s.note(
            "review",
            json!([answer.code, status["authenticated"], status["user"]["username"], status["user"]["groups"]]),
        );
        s.delete(&format!("{accounts}/robot")).await;
        // The real server believes a token for some seconds more.
        for _ in 0..150 {
            let answer = s.request(Method::POST, path).json(&who).header("authorization", &bearer).by(&nobody);
            if answer.quietly().send().await.code == 401 {
                return s.note("after its account is gone", json!(401));
            }
            tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        }
        s.note("after its account is gone", json!("still believed"));
    })
    .await;
}
