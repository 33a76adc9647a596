//! `x-kubernetes-validations`: rules in the Common Expression Language, compiled once, evaluated against each object.
//!
//! A rule that cannot be evaluated fails the object: nothing is let through because a rule was not understood.

use super::celvalue::to_cel;
use super::error::{FieldError, FieldErrorKind, join};
use super::expression::{CONTEXT, Expression, Names, brief, compiled, longest};
use super::node::{Node, Type};
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, ExecutionError, Value as CelValue};
use serde_json::Value;
use std::sync::Arc;

/// What a rule may name.
const NAMES: Names<'static> =
    Names { plain: &["self", "oldSelf"], inputs: &[], closed: &[], variables: None, missing: &[] };

/// One compiled rule.
#[derive(Clone, Debug)]
pub(crate) struct Rule(Arc<Compiled>);

#[derive(Debug)]
struct Compiled {
    source: String,
    message: Option<String>,
    kind: FieldErrorKind,
    field_path: Option<String>,
    optional_old_self: bool,
    uses_old_self: bool,
    program: Expression,
    message_program: Option<Expression>,
}

impl Rule {
    /// Compiles one entry of `x-kubernetes-validations`; `path` is the entry's place in the schema.
    pub(crate) fn compile(entry: &Value, path: &str) -> Result<Rule, Vec<FieldError>> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).map(str::to_owned);
        let mut errors = Vec::new();
        let source = text("rule").unwrap_or_default();
        if source.trim().is_empty() {
            return Err(vec![FieldError::required(join(path, "rule"), "rule is not specified")]);
        }
        let message = text("message");
        if let Some(message) = &message {
            if message.trim().is_empty() {
                errors.push(FieldError::invalid(
                    join(path, "message"),
                    message.as_str(),
                    "must be non-empty if specified",
                ));
            } else if message.trim().contains('\n') {
                errors.push(FieldError::invalid(
                    join(path, "message"),
                    message.as_str(),
                    "must not contain line breaks",
                ));
            }
        } else if source.trim().contains('\n') {
            errors.push(FieldError::required(
                join(path, "message"),
                "message must be specified if rule contains line breaks",
            ));
        }
        let kind = match text("reason").as_deref() {
            None | Some("FieldValueInvalid") => FieldErrorKind::Invalid,
            Some("FieldValueForbidden") => FieldErrorKind::Forbidden,
            Some("FieldValueRequired") => FieldErrorKind::Required,
            Some("FieldValueDuplicate") => FieldErrorKind::Duplicate,
            Some(other) => {
                errors.push(FieldError::not_supported(
                    join(path, "reason"),
                    other,
                    ["FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired"],
                ));
                FieldErrorKind::Invalid
            }
        };
        let program = compiled(&source, path, "rule", &NAMES, &mut errors);
        let message_program = text("messageExpression")
            .and_then(|expression| compiled(&expression, path, "messageExpression", &NAMES, &mut errors));
        let Some(program) = program.filter(|_| errors.is_empty()) else { return Err(errors) };
        let uses_old_self = program.uses("oldSelf");
        let optional_old_self = entry.get("optionalOldSelf").and_then(Value::as_bool).unwrap_or(false);
        if optional_old_self && !uses_old_self {
            return Err(vec![FieldError::invalid(
                join(path, "optionalOldSelf"),
                true,
                "may not be set if oldSelf is not used in rule",
            )]);
        }
        Ok(Rule(Arc::new(Compiled {
            source,
            message,
            kind,
            field_path: text("fieldPath").map(|path| normal_path(&path)),
            optional_old_self,
            uses_old_self,
            program,
            message_program,
        })))
    }

    /// Whether the rule compares with the former value.
    pub(crate) fn uses_old_self(&self) -> bool {
        self.0.uses_old_self
    }

    fn message(&self) -> String {
        match &self.0.message {
            Some(message) => message.trim().to_owned(),
            None => format!("failed rule: {}", self.0.source.trim()),
        }
    }

    fn shown(&self) -> &str {
        self.0.message.as_deref().unwrap_or(&self.0.source).trim()
    }
}

/// `.spec['a.b'].c` as `spec[a.b].c`, the way field errors print it.
fn normal_path(path: &str) -> String {
    path.trim_start_matches('.').replace(['\'', '"'], "")
}

/// Evaluates the rules of one node.
///
/// `old` is the value the same field had before, if the two can be told to belong together; `unchanged` says that it is
/// equal, in which case only transition rules are of interest.
pub(crate) fn check(
    node: &Node,
    value: &Value,
    old: Option<&Value>,
    unchanged: bool,
    path: &str,
    errors: &mut Vec<FieldError>,
) {
    let due: Vec<&Rule> = node
        .rules
        .iter()
        .filter(|rule| if rule.0.uses_old_self { old.is_some() || rule.0.optional_old_self } else { !unchanged })
        .collect();
    if due.is_empty() {
        return;
    }
    let mut scope = CONTEXT.new_inner_scope();
    scope.add_variable_from_value("self", to_cel(Some(node), value));
    let old_cel = due.iter().any(|rule| rule.0.uses_old_self).then(|| old.map(|old| to_cel(Some(node), old))).flatten();
    for rule in due {
        let mut inner = scope.new_inner_scope();
        if rule.0.uses_old_self {
            let bound = match (&old_cel, rule.0.optional_old_self) {
                (Some(old), false) => old.clone(),
                (Some(old), true) => CelValue::Opaque(Arc::new(OptionalValue::of(old.clone()))),
                (None, _) => CelValue::Opaque(Arc::new(OptionalValue::none())),
            };
            inner.add_variable_from_value("oldSelf", bound);
        }
        let splits = rule.0.program.splits() || rule.0.message_program.as_ref().is_some_and(Expression::splits);
        let run = longest(value, splits).max(old.map_or(0, |old| longest(old, splits)));
        let all = std::iter::once(&rule.0.program).chain(&rule.0.message_program);
        if let Some(why) = all.filter_map(|expression| expression.too_many_steps(run)).next() {
            errors.push(FieldError::invalid(path, node.ty.name(), format!("{why}, rule: {}", rule.shown())));
            continue;
        }
        let verdict = evaluate(rule, &inner, node, value, path);
        errors.extend(verdict);
    }
}

fn evaluate(rule: &Rule, scope: &Context<'_>, node: &Node, value: &Value, path: &str) -> Option<FieldError> {
    let place = match &rule.0.field_path {
        Some(field) => join(path, field),
        None if path.is_empty() => String::from("<nil>"),
        None => path.to_owned(),
    };
    let type_word = node.ty.name();
    let Some(outcome) = rule.0.program.execute(scope, rule.0.program.depth()) else {
        return Some(FieldError::invalid(path, type_word, format!("evaluation failed, rule: {}", rule.shown())));
    };
    match outcome {
        Ok(CelValue::Bool(true)) => None,
        Ok(CelValue::Bool(false)) => {
            let detail = dynamic_message(rule, scope).unwrap_or_else(|| rule.message());
            let shown = (!matches!(node.ty, Type::Object | Type::Array)).then(|| value.clone());
            let (bad_value, detail) = match rule.0.kind {
                FieldErrorKind::Required | FieldErrorKind::Forbidden => (None, detail),
                FieldErrorKind::Duplicate => (shown, String::new()),
                _ => (shown, detail),
            };
            Some(FieldError { path: place, kind: rule.0.kind, bad_value, detail })
        }
        Ok(other) => Some(FieldError::invalid(
            place,
            type_word,
            format!("rule evaluated to {:?} and not to true or false: {}", other.type_of(), rule.shown()),
        )),
        Err(ExecutionError::UndeclaredReference(name)) => Some(FieldError::invalid(
            place,
            type_word,
            format!("'{name}' is a function or macro that this server does not have, used in rule: {}", rule.shown()),
        )),
        Err(error) => {
            Some(FieldError::invalid(place, type_word, format!("{} evaluating rule: {}", brief(&error), rule.shown())))
        }
    }
}

fn dynamic_message(rule: &Rule, scope: &Context<'_>) -> Option<String> {
    let program = rule.0.message_program.as_ref()?;
    message(program.execute(scope, program.depth())?.ok()?)
}

/// What a `messageExpression` made, when it can be a message.
pub(crate) fn message(made: CelValue) -> Option<String> {
    /// The longest message, in bytes.
    const LONGEST: usize = 5 * 1024;
    let CelValue::String(text) = made else { return None };
    let text = text.trim();
    (!text.is_empty() && text.len() <= LONGEST && !text.contains('\n')).then(|| text.to_owned())
}
