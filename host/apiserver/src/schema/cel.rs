//! `x-kubernetes-validations`: rules in the Common Expression Language, compiled once, evaluated against each object.
//!
//! A rule that cannot be evaluated fails the object: nothing is let through because a rule was not understood.

use super::celvalue::to_cel;
use super::error::{FieldError, FieldErrorKind, join};
use super::node::{Node, Type};
use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};
use kube_cel::cel::objects::OptionalValue;
use kube_cel::cel::{Context, ExecutionError, Program, Value as CelValue};
use serde_json::Value;
use std::sync::{Arc, LazyLock};

/// The longest message that a `messageExpression` may produce, in bytes.
const MAX_MESSAGE: usize = 5 * 1024;

/// How many steps the nested loops of one rule may come to. A rule that could take more on the object at hand fails it:
/// rules come from whoever writes a provider, and must not be able to hold up the server.
const MAX_STEPS: u64 = 10_000_000;

/// The longest rule, in bytes. With [`PARSE_STACK`] no rule can exhaust the stack while it is parsed.
const MAX_SOURCE: usize = 8 * 1024;

/// The stack a rule is parsed on: the parser recurses deeply, without optimisation by 130 KiB a bracket. Only what is
/// touched is real memory.
const PARSE_STACK: usize = 256 << 20;

/// The deepest expression that is accepted.
const MAX_DEPTH: usize = 200;

/// Expressions up to this depth are evaluated where they are needed, deeper ones on a stack of their own.
const SHALLOW: usize = 24;

/// What evaluation may take of the stack for each level of an expression, with room to spare.
const LEVEL_STACK: usize = 128 << 10;

/// What a rule may name beside its own comprehension variables: the variables, the namespaces of functions and the types.
const KNOWN: [&str; 26] = [
    "self",
    "oldSelf",
    "math",
    "sets",
    "optional",
    "base64",
    "jsonpatch",
    "format",
    "cel",
    "strings",
    "lists",
    "bool",
    "int",
    "uint",
    "double",
    "string",
    "bytes",
    "list",
    "map",
    "null_type",
    "type",
    "dyn",
    "google",
    "ip",
    "cidr",
    "quantity",
];

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
    /// How deep its loops are nested, and whether they may run over the parts of a text.
    loops: u32,
    splits: bool,
    depth: usize,
    program: Program,
    message_program: Option<Program>,
}

impl Rule {
    /// Compiles one entry of `x-kubernetes-validations`; `path` is the entry's place in the schema.
    pub(crate) fn compile(entry: &Value, path: &str) -> Result<Rule, Vec<FieldError>> {
        on_stack(PARSE_STACK, || Rule::compile_here(entry, path)).unwrap_or_else(|| {
            let source = entry.get("rule").cloned().unwrap_or_default();
            Err(vec![FieldError::invalid(join(path, "rule"), source, "compilation failed: the rule cannot be parsed")])
        })
    }

    fn compile_here(entry: &Value, path: &str) -> Result<Rule, Vec<FieldError>> {
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
        let program = compile_program(&source, &join(path, "rule"), &mut errors);
        let message_program = text("messageExpression")
            .and_then(|expression| compile_program(&expression, &join(path, "messageExpression"), &mut errors));
        let Some(program) = program.filter(|_| errors.is_empty()) else { return Err(errors) };
        let uses_old_self = program.references().has_variable("oldSelf");
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
            depth: std::iter::once(&program).chain(&message_program).map(|p| depth(p.expression())).max().unwrap_or(0),
            loops: std::iter::once(&program)
                .chain(&message_program)
                .map(|p| nesting(p.expression()))
                .max()
                .unwrap_or(0),
            splits: ["split", "findAll"].iter().any(|name| program.references().has_function(name)),
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

fn compile_program(source: &str, path: &str, errors: &mut Vec<FieldError>) -> Option<Program> {
    if source.len() > MAX_SOURCE {
        errors.push(FieldError::too_long(path, MAX_SOURCE as u64));
        return None;
    }
    match Program::compile(source) {
        Ok(program) if depth(program.expression()) > MAX_DEPTH => {
            let detail = format!("compilation failed: the expression is nested more than {MAX_DEPTH} levels deep");
            errors.push(FieldError::invalid(path, source, detail));
            None
        }
        Err(error) => {
            errors.push(FieldError::invalid(path, source, format!("compilation failed: {error}")));
            None
        }
        Ok(program) => {
            let mut unknown = Vec::new();
            free_names(program.expression(), &mut Vec::new(), &mut unknown);
            for name in &unknown {
                errors.push(FieldError::invalid(
                    path,
                    source,
                    format!("compilation failed: undeclared reference to '{name}'"),
                ));
            }
            unknown.is_empty().then_some(program)
        }
    }
}

/// Collects the names an expression uses without anybody having introduced them.
fn free_names(expression: &IdedExpr, bound: &mut Vec<String>, unknown: &mut Vec<String>) {
    match &expression.expr {
        Expr::Ident(name) => {
            if !name.starts_with('@') && !KNOWN.contains(&name.as_str()) && !bound.contains(name) {
                unknown.push(name.clone());
            }
        }
        // Macros that this engine does not have introduce names of their own; the evaluation reports them.
        Expr::Call(call)
            if ["bind", "sortBy", "transformList", "transformMap", "all", "exists"]
                .contains(&call.func_name.as_str()) => {}
        Expr::Comprehension(inner) => {
            free_names(&inner.iter_range, bound, unknown);
            free_names(&inner.accu_init, bound, unknown);
            let depth = bound.len();
            bound.push(inner.iter_var.clone());
            bound.extend(inner.iter_var2.clone());
            bound.push(inner.accu_var.clone());
            for part in [&inner.loop_cond, &inner.loop_step, &inner.result] {
                free_names(part, bound, unknown);
            }
            bound.truncate(depth);
        }
        other => parts(other).into_iter().for_each(|(part, _)| free_names(part, bound, unknown)),
    }
}

/// The parts of an expression, each with whether it is the body of a loop.
fn parts(expression: &Expr) -> Vec<(&IdedExpr, bool)> {
    let mut out = Vec::new();
    match expression {
        Expr::Call(call) => {
            out.extend(call.target.iter().map(|target| &**target).chain(&call.args).map(|e| (e, false)))
        }
        Expr::Select(select) => out.push((&*select.operand, false)),
        Expr::List(list) => out.extend(list.elements.iter().map(|e| (e, false))),
        Expr::Map(map) => map.entries.iter().for_each(|e| entry_parts(&e.expr, &mut out)),
        Expr::Struct(fields) => fields.entries.iter().for_each(|e| entry_parts(&e.expr, &mut out)),
        Expr::Comprehension(inner) => {
            out.extend([(&inner.iter_range, false), (&inner.accu_init, false)]);
            out.extend([(&inner.loop_cond, true), (&inner.loop_step, true), (&inner.result, true)]);
        }
        Expr::Ident(_) | Expr::Literal(_) | Expr::Unspecified => {}
    }
    out
}

fn entry_parts<'a>(entry: &'a EntryExpr, out: &mut Vec<(&'a IdedExpr, bool)>) {
    match entry {
        EntryExpr::StructField(field) => out.push((&field.value, false)),
        EntryExpr::MapEntry(entry) => out.extend([(&entry.key, false), (&entry.value, false)]),
    }
}

/// How many levels an expression has.
fn depth(expression: &IdedExpr) -> usize {
    1 + parts(&expression.expr).into_iter().map(|(part, _)| depth(part)).max().unwrap_or(0)
}

/// How deep loops are nested in an expression.
fn nesting(expression: &IdedExpr) -> u32 {
    parts(&expression.expr).into_iter().map(|(part, body)| nesting(part) + u32::from(body)).max().unwrap_or(0)
}

/// Does something on a stack of its own. Nothing comes back when there is no thread to be had or it panicked.
fn on_stack<T: Send>(bytes: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("cel".to_owned()).stack_size(bytes).spawn_scoped(scope, work);
        thread.ok()?.join().ok()
    })
}

/// The longest list or map in a value; with `texts`, also the longest text.
fn longest(value: &Value, texts: bool) -> u64 {
    match value {
        Value::Array(items) => items.iter().map(|item| longest(item, texts)).max().unwrap_or(0).max(items.len() as u64),
        Value::Object(map) => map.values().map(|item| longest(item, texts)).max().unwrap_or(0).max(map.len() as u64),
        Value::String(text) if texts => text.len() as u64,
        _ => 0,
    }
}

/// `.spec['a.b'].c` as `spec[a.b].c`, the way field errors print it.
fn normal_path(path: &str) -> String {
    path.trim_start_matches('.').replace(['\'', '"'], "")
}

static CONTEXT: LazyLock<Context<'static>> = LazyLock::new(|| {
    let mut context = Context::default().with_all();
    // A type is its name here, so that `type(self) == int` holds where it should.
    context.add_function("type", |value: CelValue| -> Result<CelValue, ExecutionError> {
        Ok(CelValue::String(Arc::new(type_of(&value).to_owned())))
    });
    for name in ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type"] {
        context.add_variable_from_value(name, name);
    }
    context
});

/// The name of a value's type.
fn type_of(value: &CelValue) -> &'static str {
    match value {
        CelValue::Bool(_) => "bool",
        CelValue::Int(_) => "int",
        CelValue::UInt(_) => "uint",
        CelValue::Float(_) => "double",
        CelValue::String(_) => "string",
        CelValue::Bytes(_) => "bytes",
        CelValue::List(_) => "list",
        CelValue::Map(_) => "map",
        CelValue::Null => "null_type",
        _ => "other",
    }
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
        let run = longest(value, rule.0.splits)
            .max(old.map_or(0, |old| longest(old, rule.0.splits)))
            .max(rule.0.source.matches(',').count() as u64 + 1);
        if rule.0.loops > 1 && run.saturating_pow(rule.0.loops) > MAX_STEPS {
            errors.push(FieldError::invalid(
                path,
                node.ty.name(),
                format!(
                    "{} nested loops over up to {run} items are too many steps; bound the lists by maxItems, rule: {}",
                    rule.0.loops,
                    rule.shown()
                ),
            ));
            continue;
        }
        let verdict = if rule.0.depth <= SHALLOW {
            evaluate(rule, &inner, node, value, path)
        } else {
            on_stack(rule.0.depth * LEVEL_STACK, || evaluate(rule, &inner, node, value, path)).unwrap_or_else(|| {
                Some(FieldError::invalid(path, node.ty.name(), format!("evaluation failed, rule: {}", rule.shown())))
            })
        };
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
    match rule.0.program.execute(scope) {
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

/// The error without dumps of whole values.
fn brief(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload | ExecutionError::UnsupportedBinaryOperator(..) => "no such overload".to_owned(),
        other => {
            let mut text = other.to_string();
            if let Some((cut, _)) = text.char_indices().nth(200) {
                text.truncate(cut);
                text.push('…');
            }
            text
        }
    }
}

fn dynamic_message(rule: &Rule, scope: &Context<'_>) -> Option<String> {
    let CelValue::String(text) = rule.0.message_program.as_ref()?.execute(scope).ok()? else { return None };
    let text = text.trim();
    (!text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n')).then(|| text.to_owned())
}
