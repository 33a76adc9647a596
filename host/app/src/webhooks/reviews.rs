//! What an API server asks of a webhook, and the answers: reviews of `admission.k8s.io/v1` and `apiextensions.k8s.io/v1`.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capstan_apiserver::{Admission, AdmissionRequest, Conversion, Operation, User};
use serde_json::{Value, json};

/// What is done with an object that is reviewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Defaults are filled in; nothing is refused.
    Default,
    /// What breaks a rule is refused.
    Validate,
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The request of an AdmissionReview; nothing when it is not one, or about something that is never reviewed.
fn asked(request: &Value) -> Option<AdmissionRequest> {
    let operation = match request.get("operation")?.as_str()? {
        "CREATE" => Operation::Create,
        "UPDATE" => Operation::Update,
        "DELETE" => Operation::Delete,
        _ => return None,
    };
    let groups = request.pointer("/userInfo/groups").and_then(Value::as_array).into_iter().flatten();
    let name = match text(request, "/name") {
        name if name.is_empty() => text(request, "/object/metadata/name"),
        name => name,
    };
    Some(AdmissionRequest {
        operation,
        group: text(request, "/kind/group"),
        version: text(request, "/kind/version"),
        kind: text(request, "/kind/kind"),
        resource: text(request, "/resource/resource"),
        subresource: text(request, "/subResource"),
        namespace: text(request, "/namespace"),
        name,
        old: request.get("oldObject").filter(|old| old.is_object()).cloned(),
        user: User::new(text(request, "/userInfo/username"), groups.filter_map(Value::as_str)),
        dry_run: request.get("dryRun").and_then(Value::as_bool).unwrap_or(false),
        options: request.get("options").cloned().unwrap_or_default(),
    })
}

/// Answers an AdmissionReview.
pub fn admission(review: &Value, hooks: &[Arc<dyn Admission>], task: Task) -> Value {
    let request = review.get("request").unwrap_or(&Value::Null);
    let mut response = json!({"uid": text(request, "/uid"), "allowed": true});
    let before = request.get("object").filter(|object| object.is_object());
    if let (Some(asked), Some(before)) = (asked(request), before) {
        let mut warnings = Vec::new();
        let mut refused = None;
        let mut object = before.clone();
        for hook in hooks {
            let admitted = hook.admit(&asked, &mut object);
            let outcome = match task {
                // What is wrong is told by the review that may refuse it, when all have changed what they change.
                Task::Default => Ok(()),
                Task::Validate => {
                    admitted.map(|more| warnings.extend(more)).and_then(|()| hook.validate(&asked, &object))
                }
            };
            if let Err(status) = outcome {
                refused = Some(status);
                break;
            }
        }
        if let (Some(status), Some(response)) = (refused, response.as_object_mut()) {
            response.insert("allowed".into(), false.into());
            response.insert("status".into(), status.object());
        } else if let Some(response) = response.as_object_mut() {
            let patch = json_patch::diff(before, &object);
            if task == Task::Default && !patch.0.is_empty() {
                let patch = serde_json::to_vec(&patch).unwrap_or_default();
                response.insert("patchType".into(), "JSONPatch".into());
                response.insert("patch".into(), BASE64_STANDARD.encode(patch).into());
            }
            if !warnings.is_empty() {
                response.insert("warnings".into(), warnings.into());
            }
        }
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

/// Answers a ConversionReview. All are converted, or none.
pub fn conversion(review: &Value, converter: &dyn Conversion) -> Value {
    let request = review.get("request").unwrap_or(&Value::Null);
    let wanted = text(request, "/desiredAPIVersion");
    let objects = request.get("objects").and_then(Value::as_array).cloned().unwrap_or_default();
    let converted: Result<Vec<Value>, String> = objects
        .into_iter()
        .map(|object| match object.get("apiVersion").and_then(Value::as_str) {
            Some(version) if version == wanted => Ok(object),
            _ => {
                let metadata = object.get("metadata").cloned();
                let mut converted = converter.convert(object, &wanted)?;
                // Which object it is, is not the converter's to change.
                if let (Some(Value::Object(old)), Some(new)) =
                    (metadata, converted.get_mut("metadata").and_then(Value::as_object_mut))
                {
                    let kept = |key: &str| !matches!(key, "labels" | "annotations");
                    new.retain(|key, _| !kept(key));
                    new.extend(old.into_iter().filter(|(key, _)| kept(key)));
                }
                Ok(converted)
            }
        })
        .collect();
    let uid = text(request, "/uid");
    let response = match converted {
        Ok(objects) => json!({"uid": uid, "result": {"status": "Success"}, "convertedObjects": objects}),
        Err(why) => json!({"uid": uid, "result": {"status": "Failure", "message": why}, "convertedObjects": []}),
    };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::CoreAdmission;

    fn review(operation: &str, object: Value) -> Value {
        json!({"request": {
            "uid": "u", "operation": operation, "object": object, "name": "",
            "kind": {"group": "cluster.x-k8s.io", "version": "v1beta2", "kind": "MachineDeployment"},
            "resource": {"group": "cluster.x-k8s.io", "version": "v1beta2", "resource": "machinedeployments"},
        }})
    }

    fn deployment(spec: Value) -> Value {
        json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineDeployment",
            "metadata": {"name": "d", "namespace": "n"}, "spec": spec})
    }

    fn hooks() -> Vec<Arc<dyn Admission>> {
        vec![Arc::new(CoreAdmission)]
    }

    #[test]
    fn defaults_are_a_patch_and_what_is_wrong_is_left_to_validation() {
        // Whole, so that it is the rule that refuses it: what has not even its fields is left to the schema.
        let template = json!({"spec": {"clusterName": "other", "bootstrap": {"dataSecretName": "b"},
            "infrastructureRef": {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "M", "name": "m"}}});
        let object = deployment(json!({"clusterName": "c", "template": template}));
        let answer = admission(&review("CREATE", object.clone()), &hooks(), Task::Default);
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["uid"], "u");
        let patch = BASE64_STANDARD.decode(answer["response"]["patch"].as_str().unwrap()).unwrap();
        let mut patched = object.clone();
        json_patch::patch(&mut patched, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
        assert_eq!(patched["metadata"]["labels"]["cluster.x-k8s.io/cluster-name"], "c");

        let refused = admission(&review("CREATE", object), &hooks(), Task::Validate);
        assert_eq!(refused["response"]["allowed"], false);
        assert_eq!(refused["response"]["status"]["reason"], "Invalid");
        assert_eq!(refused["response"]["status"]["code"], 422);
        assert!(refused["response"]["status"]["message"].as_str().unwrap().contains("clusterName"));
    }

    #[test]
    fn a_deletion_and_what_has_no_object_pass() {
        let mut gone = review("DELETE", Value::Null);
        assert_eq!(admission(&gone, &hooks(), Task::Validate)["response"]["allowed"], true);
        gone["request"]["operation"] = "CONNECT".into();
        assert_eq!(admission(&gone, &hooks(), Task::Default)["response"]["allowed"], true);
        assert_eq!(admission(&json!({}), &hooks(), Task::Validate)["response"]["allowed"], true);
    }

    struct Upper;

    impl Conversion for Upper {
        fn converts(&self, _crd: &str) -> bool {
            true
        }

        fn convert(&self, mut object: Value, api_version: &str) -> Result<Value, String> {
            if object["spec"]["bad"] == true {
                return Err("cannot be said".into());
            }
            object["apiVersion"] = api_version.into();
            object["metadata"] = json!({"name": "forged", "annotations": {"a": "b"}});
            Ok(object)
        }
    }

    #[test]
    fn all_objects_are_converted_or_none_and_each_stays_the_object_it_is() {
        let object = |version: &str, bad: bool| json!({"apiVersion": version, "kind": "K", "metadata": {"name": "n", "uid": "1"}, "spec": {"bad": bad}});
        let ask = |objects: Vec<Value>| {
            let review = json!({"request": {"uid": "u", "desiredAPIVersion": "g/v2", "objects": objects}});
            conversion(&review, &Upper)["response"].clone()
        };
        let done = ask(vec![object("g/v1", false), object("g/v2", true)]);
        assert_eq!(done["result"]["status"], "Success");
        let first = &done["convertedObjects"][0];
        assert_eq!(first["metadata"], json!({"annotations": {"a": "b"}, "name": "n", "uid": "1"}));
        assert_eq!(done["convertedObjects"][1], object("g/v2", true));
        let failed = ask(vec![object("g/v1", false), object("g/v1", true)]);
        assert_eq!(failed["result"], json!({"status": "Failure", "message": "cannot be said"}));
        assert_eq!(failed["convertedObjects"], json!([]));
    }
}
