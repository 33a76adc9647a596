//! Who may do what: those without a name, those without a role, those who may do everything.

use crate::objects::{map, maps};
use crate::session::{Session, compare};
use reqwest::Method;
use serde_json::json;

#[tokio::test]
async fn without_a_name_or_a_role() {
    compare(async |s: &mut Session| {
        s.namespace("access").await;
        let path = maps("access");
        let nobody = s.server.nobody();
        let jane = s.server.user("jane", &["guests"]);
        for client in [&nobody, &jane] {
            s.request(Method::GET, &path).by(client).send().await;
            s.request(Method::GET, &format!("{path}/a")).by(client).send().await;
            s.request(Method::POST, &path).json(&map("a", json!({}))).by(client).send().await;
            s.request(Method::DELETE, &format!("{path}/a")).by(client).send().await;
            s.request(Method::GET, "/api/v1/nodes").by(client).send().await;
            s.request(Method::GET, "/apis/apps/v1/namespaces/access/deployments/a/scale").by(client).send().await;
            s.request(Method::GET, "/metrics").by(client).send().await;
            s.request(Method::GET, "/healthz").by(client).send().await;
        }
        for authorization in ["Bearer nonsense", "Bearer abcdef.0123456789abcdef", "Basic eDp5"] {
            s.request(Method::GET, &path).header("authorization", authorization).by(&nobody).send().await;
        }
        let ask = |verb: &str| {
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {
                "resourceAttributes": {"namespace": "access", "verb": verb, "resource": "configmaps"}}})
        };
        for client in [s.server.admin(), jane] {
            let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
            let answer = s.request(Method::POST, reviews).json(&ask("delete")).by(&client).quietly().send().await;
            s.note("allowed", json!([answer.code, answer.body["kind"], answer.body["status"]["allowed"]]));
            let who = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
            let reviews = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
            let answer = s.request(Method::POST, reviews).json(&who).by(&client).quietly().send().await;
            let info = &answer.body["status"]["userInfo"];
            s.note("who", json!([answer.code, info["username"], info["groups"]]));
        }
    })
    .await;
}
