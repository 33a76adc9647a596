//! One ValidatingAdmissionPolicy: compiled, and judging one request.

use super::conditions::{self, Condition, Conditions};
use super::evaluation::{Compiled, Evaluation, Input, May, Variables};
use super::{list, text};
use crate::schema::{FieldError, is_reserved, join, message};
use kube_cel::cel::Value as CelValue;
use serde_json::Value;

/// A policy, ready to judge.
#[derive(Debug)]
pub(crate) struct Policy {
    pub name: String,
    /// Which requests it is about.
    pub constraints: Value,
    /// Version and kind of its parameters, if it has any.
    pub param_kind: Option<(String, String)>,
    /// What cannot be evaluated lets requests pass.
    pub ignores_failures: bool,
    conditions: Conditions,
    variables: Variables,
    validations: Vec<Validation>,
    annotations: Vec<Annotation>,
}

#[derive(Debug)]
struct Validation {
    source: String,
    condition: Condition,
    message: String,
    message_expression: Option<Condition>,
    reason: &'static str,
}

#[derive(Debug)]
struct Annotation {
    source: String,
    value: Condition,
}

/// What a policy has against a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub message: String,
    /// A reason that has a status: see [`reason`].
    pub reason: &'static str,
    /// It denies whatever the binding's actions are.
    pub always: bool,
}

/// The reason of a validation, as it is known to clients.
pub(super) fn reason(name: &str) -> Option<&'static str> {
    ["Forbidden", "Invalid", "RequestEntityTooLarge"].into_iter().find(|own| *own == name)
}

impl Policy {
    /// Compiles a policy, and says what is wrong with its expressions.
    pub fn compile(policy: &Value, errors: &mut Vec<FieldError>) -> Policy {
        let spec = policy.get("spec").unwrap_or(&Value::Null);
        let params = spec.get("paramKind").is_some_and(|kind| !kind.is_null());
        let conditions = Conditions::compile(list(spec, "/matchConditions"), "spec.matchConditions", params, errors);
        let declared = list(spec, "/variables");
        let mut variables = Variables::default();
        for (index, variable) in declared.iter().enumerate() {
            let path = format!("spec.variables[{index}]");
            let (name, source) = (text(variable, "/name"), text(variable, "/expression"));
            if name.trim().is_empty() {
                errors.push(FieldError::required(join(&path, "name"), "name is not specified"));
            } else if !is_identifier(name) {
                errors.push(FieldError::invalid(join(&path, "name"), name, "must be a valid CEL identifier"));
            }
            let at = join(&path, "expression");
            if source.trim().is_empty() {
                errors.push(FieldError::required(at, "expression is not specified"));
                continue;
            }
            let compiled = Compiled::new(source, &at, May::Decide, params, Some(&variables));
            let compiled = compiled.map_err(|wrong| errors.extend(wrong)).ok();
            variables.add(name, compiled);
        }
        let known = (!declared.is_empty()).then_some(&variables);
        let validations = list(spec, "/validations").iter().enumerate();
        let validations =
            validations.map(|(index, one)| Validation::compile(one, index, params, known, errors)).collect();
        let annotations = list(spec, "/auditAnnotations").iter().enumerate();
        let annotations = annotations.map(|(index, one)| {
            let source = text(one, "/valueExpression").trim();
            let at = format!("spec.auditAnnotations[{index}].valueExpression");
            let value = if source.is_empty() {
                errors.push(FieldError::required(at, "valueExpression is not specified"));
                Err(String::from("there is no expression"))
            } else {
                conditions::compile(source, &at, &["string", "null"], May::Decide, params, known, errors)
            };
            Annotation { source: source.to_owned(), value }
        });
        let annotations = annotations.collect();
        Policy {
            name: text(policy, "/metadata/name").to_owned(),
            constraints: spec.get("matchConstraints").cloned().unwrap_or_default(),
            param_kind: params
                .then(|| (text(spec, "/paramKind/apiVersion").to_owned(), text(spec, "/paramKind/kind").to_owned())),
            ignores_failures: text(spec, "/failurePolicy") == "Ignore",
            conditions,
            variables,
            validations,
            annotations,
        }
    }

    fn expressions(&self) -> impl Iterator<Item = &Compiled> {
        let validations = self.validations.iter();
        let messages = self.validations.iter().filter_map(|one| one.message_expression.as_ref());
        let annotations = self.annotations.iter().map(|one| &one.value);
        let all = validations.map(|one| &one.condition).chain(messages).chain(annotations);
        all.filter_map(|condition| condition.as_ref().ok())
    }

    /// All that the policy has against a request.
    pub fn judge(&self, input: Input<'_>) -> Vec<Denial> {
        let failed = |message: String, always: bool| Denial { message, reason: "Invalid", always };
        if !self.conditions.is_empty() {
            match self.conditions.hold(input) {
                Ok(true) => {}
                Err(why) if !self.ignores_failures => return vec![failed(why, false)],
                Ok(false) | Err(_) => return Vec::new(),
            }
        }
        let evaluation = Evaluation::new(input, &self.variables, self.expressions());
        let mut denials = Vec::new();
        for validation in &self.validations {
            match conditions::evaluate(&validation.condition, &evaluation) {
                Ok(CelValue::Bool(true)) => {}
                Ok(_) => {
                    denials.push(Denial {
                        message: validation.message(&evaluation),
                        reason: validation.reason,
                        always: false,
                    });
                }
                Err(_) if self.ignores_failures => {}
                Err(why) => denials.push(failed(why, false)),
            }
        }
        for annotation in &self.annotations {
            match conditions::evaluate(&annotation.value, &evaluation) {
                Ok(CelValue::String(_) | CelValue::Null) => {}
                Ok(other) => {
                    let why = format!(
                        "valueExpression '{}' resulted in unsupported return type: {}. Return type must be either string or null.",
                        annotation.source,
                        other.type_of()
                    );
                    denials.push(failed(why, true));
                }
                Err(_) if self.ignores_failures => {}
                Err(why) => denials.push(failed(why, true)),
            }
        }
        denials
    }
}

impl Validation {
    fn compile(
        one: &Value,
        index: usize,
        params: bool,
        variables: Option<&Variables>,
        errors: &mut Vec<FieldError>,
    ) -> Validation {
        let at = |field: &str| format!("spec.validations[{index}].{field}");
        let source = text(one, "/expression");
        let condition = if source.trim().is_empty() {
            errors.push(FieldError::required(at("expression"), "expression is not specified"));
            Err(String::from("there is no expression"))
        } else {
            conditions::compile(source, &at("expression"), &["bool"], May::Decide, params, variables, errors)
        };
        let worded = text(one, "/messageExpression");
        let message_expression = if worded.trim().is_empty() {
            if !worded.is_empty() {
                let why = "must be non-empty if specified";
                errors.push(FieldError::invalid(at("messageExpression"), worded, why));
            }
            None
        } else {
            let at = at("messageExpression");
            Some(conditions::compile(worded, &at, &["string"], May::Word, params, variables, errors))
        };
        let message = text(one, "/message");
        if !message.is_empty() && message.trim().is_empty() {
            errors.push(FieldError::invalid(at("message"), message, "must be non-empty if specified"));
        } else if message.trim().contains(['\n', '\r']) {
            errors.push(FieldError::invalid(at("message"), message, "must not contain line breaks"));
        }
        let named = one.get("reason").and_then(Value::as_str);
        if let Some(name) = named.filter(|name| reason(name).is_none()) {
            let known = ["Forbidden", "Invalid", "RequestEntityTooLarge"];
            errors.push(FieldError::not_supported(at("reason"), name, known));
        }
        Validation {
            source: source.trim().to_owned(),
            condition,
            message: message.trim().to_owned(),
            message_expression,
            reason: named.and_then(reason).unwrap_or("Invalid"),
        }
    }

    /// Why a request is denied: what `messageExpression` makes of it, else the message, else the expression.
    fn message(&self, evaluation: &Evaluation<'_>) -> String {
        let made = self.message_expression.as_ref().and_then(|one| conditions::evaluate(one, evaluation).ok());
        match made.and_then(message) {
            Some(made) => made,
            None if !self.message.is_empty() => self.message.clone(),
            None => format!("failed expression: {}", self.source),
        }
    }
}

/// Whether a word can name something in an expression.
fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && !is_reserved(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn judged(spec: Value, object: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        let policy = Policy::compile(&json!({"metadata": {"name": "p"}, "spec": spec}), &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        let none = Value::Null;
        let input = Input { object, old_object: &none, request: &none, namespace: &none, params: &none };
        policy.judge(input).into_iter().map(|denial| denial.message).collect()
    }

    fn refused(spec: Value) -> String {
        let mut errors = Vec::new();
        Policy::compile(&json!({"metadata": {"name": "p"}, "spec": spec}), &mut errors);
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn variables_are_evaluated_when_they_are_needed() {
        let variables = json!([
            {"name": "names", "expression": "object.items.map(i, i.name)"},
            {"name": "broken", "expression": "object.absent.deeper"},
            {"name": "both", "expression": "variables.names.size() > 1 || variables.broken"}]);
        let object = json!({"items": [{"name": "a"}, {"name": "b"}], "namespace": "n"});
        let spec = json!({"variables": variables, "validations": [
            {"expression": "variables.both"},
            {"expression": "variables.names.all(n, variables.names.exists(m, m == n))"},
            {"expression": "object.namespace == 'n'"},
            {"expression": "has(variables.broken)"},
            {"expression": "variables.broken"}]});
        let why = "expression 'variables.broken' resulted in error: composited variable \"broken\" fails to evaluate: no such key: absent";
        assert_eq!(judged(spec, &object), [why]);
    }

    #[test]
    fn what_is_not_there_is_no_field_of_it() {
        let spec = json!({"validations": [
            {"expression": "oldObject == null && !has(oldObject.spec)"},
            {"expression": "oldObject.spec == null"},
            {"expression": "object.list.all(object, object == 1)"}]});
        let why = ["expression 'oldObject.spec == null' resulted in error: no such key: spec"];
        assert_eq!(judged(spec, &json!({"list": [1, 1]})), why);
    }

    #[test]
    fn variables_cannot_grow_without_end() {
        let mut variables = vec![json!({"name": "v0", "expression": "object.text"})];
        for index in 1..40 {
            let before = index - 1;
            let expression = format!("variables.v{before} + variables.v{before}");
            variables.push(json!({"name": format!("v{index}"), "expression": expression}));
        }
        let spec = json!({"variables": variables, "validations": [{"expression": "variables.v39 != ''"}]});
        let object = json!({"text": "x".repeat(1000)});
        let found = judged(spec, &object);
        assert!(found.first().is_some_and(|why| why.contains("larger than")), "{found:?}");
    }

    #[test]
    fn nothing_takes_too_many_steps() {
        let loops = "variables.all.all(a, variables.all.all(b, variables.all.all(c, a + b + c >= 0)))";
        let all: Vec<i64> = (0..500).collect();
        let spec = json!({"variables": [{"name": "all", "expression": "object.all.map(i, i)"}], "validations": [{"expression": loops}]});
        let found = judged(spec, &json!({"all": all}));
        assert!(found.first().is_some_and(|why| why.contains("too many steps")), "{found:?}");
        // Many that are each within bounds are not, together.
        let one = "object.all.all(a, object.all.all(b, object.all.all(c, a >= 0)))";
        let validations = vec![json!({"expression": one}); 200];
        let all: Vec<i64> = (0..100).map(|_| -1).collect();
        let found = judged(json!({"validations": validations}), &json!({"all": all}));
        assert!(found.last().is_some_and(|why| why.contains("out of cost budget")), "{found:?}");
    }

    #[test]
    fn nothing_ends_the_server() {
        let deep = format!("{}1{} == 1", "(".repeat(3000), ")".repeat(3000));
        let nested = format!("{}1{} == []", "[".repeat(60), "]".repeat(60));
        let mut variables = vec![json!({"name": "v0", "expression": "1"})];
        for index in 1..20 {
            let before = index - 1;
            variables.push(json!({"name": format!("v{index}"), "expression": format!("{}variables.v{before}{}", "[".repeat(60), "]".repeat(60))}));
        }
        let validations = json!([
            {"expression": deep}, {"expression": "Some{a: 1} == null"}, {"expression": "x".repeat(9000)},
            {"expression": "authorizer.path('/').check('get').allowed()"}]);
        let why = refused(json!({"validations": validations}));
        for part in
            ["spec.validations[0]", "messages (Some{…}) cannot be made here", "Too long", "this server cannot be asked"]
        {
            assert!(why.contains(part), "{part}: {why}");
        }
        assert!(
            refused(json!({"variables": variables, "validations": [{"expression": "true"}]})).contains("levels deep")
        );
        assert_eq!(judged(json!({"validations": [{"expression": nested}]}), &Value::Null).len(), 1);
    }
}
