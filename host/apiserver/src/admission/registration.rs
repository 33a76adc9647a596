//! What is wrong with an object that wants a say: policies, their bindings, configurations of webhooks. Source:
//! `k8s.io/kubernetes/pkg/apis/admissionregistration/validation` (release 1.36).

use super::conditions::Conditions;
use super::policy::Policy;
use super::{list, text, words};
use crate::schema::{
    FieldError, label_value_errors, path_segment_errors, qualified_name_errors, rfc1035_label_errors, subdomain_errors,
};
use serde_json::Value;

const FAILURE_POLICIES: [&str; 2] = ["Fail", "Ignore"];
const MATCH_POLICIES: [&str; 2] = ["Equivalent", "Exact"];
const OPERATIONS: [&str; 5] = ["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const SCOPES: [&str; 3] = ["*", "Cluster", "Namespaced"];
const SIDE_EFFECTS: [&str; 2] = ["None", "NoneOnDryRun"];
const REVIEWS: [&str; 2] = ["v1", "v1beta1"];
const ACTIONS: [&str; 3] = ["Audit", "Deny", "Warn"];

/// How many audit annotations a policy may have.
const MOST_ANNOTATIONS: usize = 20;

/// What is wrong with an object of one of the group's kinds; `old` is what it was before, whose conditions were accepted.
pub(crate) fn check(plural: &str, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match plural {
        "validatingadmissionpolicies" => policy(object, &mut errors),
        "validatingadmissionpolicybindings" => binding(object, &mut errors),
        "validatingwebhookconfigurations" | "mutatingwebhookconfigurations" => {
            let mut names: Vec<&str> = Vec::new();
            for (index, hook) in list(object, "/webhooks").iter().enumerate() {
                let path = format!("webhooks[{index}]");
                let before = old.and_then(|old| list(old, "/webhooks").get(index));
                webhook(hook, before, &path, &mut errors);
                let name = text(hook, "/name");
                if !name.is_empty() && names.contains(&name) {
                    errors.push(FieldError::duplicate(format!("{path}.name"), name));
                }
                names.push(name);
            }
        }
        _ => {}
    }
    errors
}

/// What is wrong with the status of a policy.
pub(crate) fn check_status(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, warning) in list(object, "/status/typeChecking/expressionWarnings").iter().enumerate() {
        for field in ["warning", "fieldRef"].into_iter().filter(|field| text(warning, &format!("/{field}")).is_empty())
        {
            let path = format!("status.typeChecking.expressionWarnings[{index}].{field}");
            errors.push(FieldError::required(path, ""));
        }
    }
    errors
}

/// One of several words, where any is given.
fn one_of(value: Option<&Value>, path: String, known: &[&str], errors: &mut Vec<FieldError>) {
    if let Some(given) = value.and_then(Value::as_str).filter(|given| !known.contains(given)) {
        errors.push(FieldError::not_supported(path, given, known));
    }
}

fn policy(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    one_of(spec.get("failurePolicy"), "spec.failurePolicy".into(), &FAILURE_POLICIES, errors);
    if let Some(kind) = spec.get("paramKind").filter(|kind| !kind.is_null()) {
        param_kind(kind, errors);
    }
    match spec.get("matchConstraints").filter(|constraints| !constraints.is_null()) {
        None => errors.push(FieldError::required("spec.matchConstraints", "")),
        Some(constraints) => {
            match_resources(constraints, "spec.matchConstraints", errors);
            if list(constraints, "/resourceRules").is_empty() {
                errors.push(FieldError::required("spec.matchConstraints.resourceRules", ""));
            }
        }
    }
    let annotations = list(spec, "/auditAnnotations");
    if list(spec, "/validations").is_empty() && annotations.is_empty() {
        let why = "validations or auditAnnotations must contain at least one item";
        errors.extend(["validations", "auditAnnotations"].map(|of| FieldError::required(format!("spec.{of}"), why)));
    }
    if annotations.len() > MOST_ANNOTATIONS {
        let why = format!("must not have more than {MOST_ANNOTATIONS} auditAnnotations");
        errors.push(FieldError::invalid("spec.auditAnnotations", annotations.to_vec(), why));
    }
    let mut keys: Vec<&str> = Vec::new();
    for (index, annotation) in annotations.iter().enumerate() {
        let key = text(annotation, "/key");
        let path = format!("spec.auditAnnotations[{index}].key");
        let whole = format!("{}/{key}", text(object, "/metadata/name"));
        let wrong = qualified_name_errors(&whole);
        errors.extend(wrong.into_iter().map(|why| FieldError::invalid(path.as_str(), whole.as_str(), why)));
        if keys.contains(&key) {
            errors.push(FieldError::duplicate(path, key));
        }
        keys.push(key);
    }
    Policy::compile(object, errors);
}

fn param_kind(kind: &Value, errors: &mut Vec<FieldError>) {
    let (api_version, name) = (text(kind, "/apiVersion"), text(kind, "/kind"));
    let path = "spec.paramKind.apiVersion";
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    if api_version.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if version.contains('/') {
        errors.push(FieldError::invalid(path, api_version, format!("unexpected GroupVersion string: {api_version}")));
    } else {
        let wrong = if group.is_empty() { Vec::new() } else { subdomain_errors(group) };
        if !wrong.is_empty() {
            errors.push(FieldError::invalid(path, group, wrong.join(",")));
        }
        let wrong = rfc1035_label_errors(version);
        if version.is_empty() {
            errors.push(FieldError::invalid(path, api_version, "version must be specified"));
        } else if !wrong.is_empty() {
            errors.push(FieldError::invalid(path, version, wrong.join(",")));
        }
    }
    let path = "spec.paramKind.kind";
    let wrong = rfc1035_label_errors(&name.to_lowercase());
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !wrong.is_empty() {
        let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
        errors.push(FieldError::invalid(path, name, why));
    }
}

fn binding(object: &Value, errors: &mut Vec<FieldError>) {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let name = text(spec, "/policyName");
    if name.is_empty() {
        errors.push(FieldError::required("spec.policyName", ""));
    } else {
        let wrong = subdomain_errors(name).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid("spec.policyName", name, why)));
    }
    if let Some(reference) = spec.get("paramRef").filter(|reference| !reference.is_null()) {
        param_ref(reference, errors);
    }
    if let Some(constraints) = spec.get("matchResources").filter(|constraints| !constraints.is_null()) {
        match_resources(constraints, "spec.matchResources", errors);
    }
    let path = "spec.validationActions";
    let mut seen: Vec<&str> = Vec::new();
    for (index, action) in words(spec, "validationActions").enumerate() {
        let at = format!("{path}[{index}]");
        if !ACTIONS.contains(&action) {
            errors.push(FieldError::not_supported(at.as_str(), action, ACTIONS));
        }
        if seen.contains(&action) {
            errors.push(FieldError::duplicate(at, action));
        }
        seen.push(action);
    }
    if seen.contains(&"Deny") && seen.contains(&"Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response \
                   and headers serves no purpose)";
        errors.push(FieldError::invalid(path, list(spec, "/validationActions").to_vec(), why));
    }
    if seen.is_empty() {
        errors.push(FieldError::required(path, "at least one validation action is required"));
    }
}

fn param_ref(reference: &Value, errors: &mut Vec<FieldError>) {
    let path = "spec.paramRef";
    let name = text(reference, "/name");
    let selector = reference.get("selector").filter(|selector| !selector.is_null());
    let exclusive = "name and selector are mutually exclusive";
    if !name.is_empty() {
        let wrong = path_segment_errors(name).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid(format!("{path}.name"), name, why)));
        if selector.is_some() {
            errors.push(FieldError::forbidden(format!("{path}.name"), exclusive));
        }
    }
    if let Some(selector) = selector {
        label_selector(selector, &format!("{path}.selector"), errors);
        if !name.is_empty() {
            errors.push(FieldError::forbidden(format!("{path}.selector"), exclusive));
        }
    }
    if name.is_empty() && selector.is_none() {
        errors.push(FieldError::required(path, "one of name or selector must be specified"));
    }
    let path = format!("{path}.parameterNotFoundAction");
    match text(reference, "/parameterNotFoundAction") {
        "" => errors.push(FieldError::required(path, "")),
        "Allow" | "Deny" => {}
        other => errors.push(FieldError::not_supported(path, other, ["Deny", "Allow"])),
    }
}

fn match_resources(constraints: &Value, path: &str, errors: &mut Vec<FieldError>) {
    one_of(constraints.get("matchPolicy"), format!("{path}.matchPolicy"), &MATCH_POLICIES, errors);
    selectors(constraints, path, errors);
    for field in ["resourceRules", "excludeResourceRules"] {
        for (index, one) in list(constraints, &format!("/{field}")).iter().enumerate() {
            rule(one, &format!("{path}.{field}[{index}]"), errors);
        }
    }
}

fn selectors(of: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in ["namespaceSelector", "objectSelector"] {
        if let Some(selector) = of.get(field) {
            label_selector(selector, &format!("{path}.{field}"), errors);
        }
    }
}

fn label_selector(selector: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut name = |at: String, key: &str| {
        errors.extend(qualified_name_errors(key).into_iter().map(|why| FieldError::invalid(at.as_str(), key, why)));
    };
    let labels: Vec<(&String, &Value)> =
        selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten().collect();
    labels.iter().for_each(|(key, _)| name(format!("{path}.matchLabels"), key));
    let expressions = list(selector, "/matchExpressions");
    for (index, one) in expressions.iter().enumerate() {
        name(format!("{path}.matchExpressions[{index}].key"), text(one, "/key"));
    }
    for (_, value) in labels {
        let value = value.as_str().unwrap_or_default();
        let wrong = label_value_errors(value).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid(format!("{path}.matchLabels"), value, why)));
    }
    for (index, one) in expressions.iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let values = list(one, "/values");
        match text(one, "/operator") {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{path}.values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{path}.values"), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(format!("{path}.operator"), other, "not a valid selector operator"))
            }
        }
        for (index, value) in values.iter().filter_map(Value::as_str).enumerate() {
            let wrong = label_value_errors(value).into_iter();
            errors.extend(wrong.map(|why| FieldError::invalid(format!("{path}.values[{index}]"), value, why)));
        }
    }
}

fn rule(rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut names: Vec<&str> = Vec::new();
    for (index, name) in words(rule, "resourceNames").enumerate() {
        let at = format!("{path}.resourceNames[{index}]");
        let wrong = path_segment_errors(name).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid(at.as_str(), name, why)));
        if names.contains(&name) {
            errors.push(FieldError::duplicate(at, name));
        }
        names.push(name);
    }
    let mut wild = |field: &str, what: &str| {
        let all = list(rule, &format!("/{field}"));
        if all.is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        } else if all.len() > 1 && all.iter().any(|one| one == "*") {
            let why = format!("if '*' is present, must not specify other {what}");
            errors.push(FieldError::invalid(format!("{path}.{field}"), all.to_vec(), why));
        }
    };
    wild("operations", "operations");
    wild("apiGroups", "API groups");
    wild("apiVersions", "API versions");
    for (index, operation) in words(rule, "operations").enumerate() {
        if !OPERATIONS.contains(&operation) {
            errors.push(FieldError::not_supported(format!("{path}.operations[{index}]"), operation, OPERATIONS));
        }
    }
    for (index, _) in words(rule, "apiVersions").enumerate().filter(|(_, version)| version.is_empty()) {
        errors.push(FieldError::required(format!("{path}.apiVersions[{index}]"), ""));
    }
    resources(rule, &format!("{path}.resources"), errors);
    one_of(rule.get("scope"), format!("{path}.scope"), &SCOPES, errors);
}

fn resources(rule: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let all: Vec<&str> = words(rule, "resources").collect();
    if all.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    let (mut with_all, mut of_all): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut plain = false;
    for (index, resource) in all.iter().enumerate() {
        let at = format!("{path}[{index}]");
        if resource.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let Some((of, sub)) = resource.split_once('/') else {
            plain = *resource != "*";
            continue;
        };
        if with_all.contains(&of) {
            let why = format!("if '{of}/*' is present, must not specify {resource}");
            errors.push(FieldError::invalid(at.as_str(), *resource, why));
        }
        if of_all.contains(&sub) {
            let why = format!("if '*/{sub}' is present, must not specify {resource}");
            errors.push(FieldError::invalid(at, *resource, why));
        }
        if sub == "*" {
            with_all.push(of);
        }
        if of == "*" {
            of_all.push(sub);
        }
    }
    let shown = || list(rule, "/resources").to_vec();
    if all.len() > 1 && all.contains(&"*/*") {
        errors.push(FieldError::invalid(path, shown(), "if '*/*' is present, must not specify other resources"));
    }
    if plain && all.contains(&"*") {
        let why = "if '*' is present, must not specify other resources without subresources";
        errors.push(FieldError::invalid(path, shown(), why));
    }
}

fn webhook(hook: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
    let name = text(hook, "/name");
    let at = format!("{path}.name");
    let wrong = subdomain_errors(name);
    if name.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else if !wrong.is_empty() {
        errors.push(FieldError::invalid(at, name, wrong.join(",")));
    } else if name.split('.').count() < 3 {
        let why = "should be a domain with at least three segments separated by dots";
        errors.push(FieldError::invalid(at, name, why));
    }
    for (index, one) in list(hook, "/rules").iter().enumerate() {
        rule(one, &format!("{path}.rules[{index}]"), errors);
    }
    one_of(hook.get("failurePolicy"), format!("{path}.failurePolicy"), &FAILURE_POLICIES, errors);
    one_of(hook.get("matchPolicy"), format!("{path}.matchPolicy"), &MATCH_POLICIES, errors);
    one_of(hook.get("reinvocationPolicy"), format!("{path}.reinvocationPolicy"), &["IfNeeded", "Never"], errors);
    match hook.get("sideEffects").and_then(Value::as_str) {
        None => {
            let why = format!("must specify one of {}", SIDE_EFFECTS.join(", "));
            errors.push(FieldError::required(format!("{path}.sideEffects"), why));
        }
        Some(_) => one_of(hook.get("sideEffects"), format!("{path}.sideEffects"), &SIDE_EFFECTS, errors),
    }
    if let Some(seconds) = hook.get("timeoutSeconds").and_then(Value::as_i64).filter(|one| !(1..=30).contains(one)) {
        let why = "the timeout value must be between 1 and 30 seconds";
        errors.push(FieldError::invalid(format!("{path}.timeoutSeconds"), seconds, why));
    }
    selectors(hook, path, errors);
    let client = hook.get("clientConfig").unwrap_or(&Value::Null);
    let has = |field: &str| client.get(field).is_some_and(|value| !value.is_null());
    if has("url") == has("service") {
        let why = "exactly one of url or service is required";
        errors.push(FieldError::required(format!("{path}.clientConfig"), why));
    } else if has("url") {
        url(text(client, "/url"), &format!("{path}.clientConfig.url"), errors);
    } else {
        for field in
            ["name", "namespace"].into_iter().filter(|field| text(client, &format!("/service/{field}")).is_empty())
        {
            errors.push(FieldError::required(format!("{path}.clientConfig.service.{field}"), ""));
        }
    }
    // Conditions that were accepted stay accepted.
    let conditions = list(hook, "/matchConditions");
    if old.is_none_or(|old| list(old, "/matchConditions") != conditions) {
        Conditions::compile(conditions, &format!("{path}.matchConditions"), false, errors);
    }
    review_versions(hook, &format!("{path}.admissionReviewVersions"), errors);
}

fn url(url: &str, path: &str, errors: &mut Vec<FieldError>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        errors.push(FieldError::invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}")));
    }
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let (user, host) = host.rsplit_once('@').map_or((None, host), |(user, host)| (Some(user), host));
    if host.is_empty() || scheme.is_empty() {
        errors.push(FieldError::invalid(path, "", format!("host must be specified{FORM}")));
    }
    if let Some(user) = user {
        errors.push(FieldError::invalid(path, user, "user information is not permitted in the URL"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    if !fragment.is_empty() {
        errors.push(FieldError::invalid(path, fragment, "fragments are not permitted in the URL"));
    }
    if let Some((_, query)) = rest.split_once('?').filter(|(_, query)| !query.is_empty()) {
        errors.push(FieldError::invalid(path, query, "query parameters are not permitted in the URL"));
    }
}

fn review_versions(hook: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let all: Vec<&str> = words(hook, "admissionReviewVersions").collect();
    if all.is_empty() {
        errors.push(FieldError::required(path, format!("must specify one of {}", REVIEWS.join(", "))));
        return;
    }
    let mut seen: Vec<&str> = Vec::new();
    for (index, version) in all.iter().enumerate() {
        let at = format!("{path}[{index}]");
        if seen.contains(version) {
            errors.push(FieldError::invalid(at, *version, "duplicate version"));
            continue;
        }
        seen.push(version);
        let wrong = rfc1035_label_errors(version).into_iter();
        errors.extend(wrong.map(|why| FieldError::invalid(at.as_str(), *version, why)));
    }
    if !all.iter().any(|version| REVIEWS.contains(version)) {
        let why = format!("must include at least one of {}", REVIEWS.join(", "));
        errors.push(FieldError::invalid(path, list(hook, "/admissionReviewVersions").to_vec(), why));
    }
}
