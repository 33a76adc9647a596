//! Expressions about a request: what they may name, and their evaluation for one request.
//!
//! Variables (`variables.name`) are evaluated when they are first needed, once for each request.

use crate::schema::{CONTEXT, Expression, FieldError, Names, as_is, brief, longest};
use kube_cel::cel::context::VariableResolver;
use kube_cel::cel::{Context, ExecutionError, Value as CelValue};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// The inputs of every expression; `params` only where a policy has parameters.
const INPUTS: [&str; 5] = ["object", "oldObject", "request", "namespaceObject", "params"];

/// What has these fields and no others, so that a misspelt one is told when the expression is made.
const CLOSED: [(&str, &[&str]); 8] = [
    (
        "request",
        &[
            "kind",
            "resource",
            "subResource",
            "requestKind",
            "requestResource",
            "requestSubResource",
            "name",
            "namespace",
            "operation",
            "userInfo",
            "dryRun",
            "options",
        ],
    ),
    ("request.kind", &["group", "version", "kind"]),
    ("request.resource", &["group", "version", "resource"]),
    ("request.requestKind", &["group", "version", "kind"]),
    ("request.requestResource", &["group", "version", "resource"]),
    ("request.userInfo", &["username", "uid", "groups", "extra"]),
    ("namespaceObject", &["metadata", "spec", "status"]),
    (
        "namespaceObject.metadata",
        &[
            "name",
            "generateName",
            "namespace",
            "labels",
            "annotations",
            "UID",
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "generation",
            "resourceVersion",
            "finalizers",
        ],
    ),
];

/// What upstream has and this server does not.
const MISSING: [(&str, &str); 1] = [("authorizer", "this server cannot be asked for decisions of its authorizer")];

/// How many levels an expression may have together with the variables it needs.
const MAX_DEPTH: usize = 400;

/// How large a variable may get: values and bytes of text, and levels.
const MAX_WEIGHT: usize = 4 << 20;
const MAX_LEVELS: usize = 256;

/// How many steps all expressions about one request that belong together may come to.
const BUDGET: u64 = 100_000_000;

/// The variables of a policy, in their order: each may use those before it.
#[derive(Debug, Default)]
pub(crate) struct Variables {
    names: Vec<String>,
    compiled: BTreeMap<String, Compiled>,
}

/// An expression about a request.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub expression: Expression,
    /// With the variables that it uses, and theirs.
    depth: usize,
}

/// Which expression it is: what it may name depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum May {
    /// Decide: upstream has `authorizer` here.
    Decide,
    /// Word a message.
    Word,
}

impl Compiled {
    /// Compiles an expression. With no `variables` there is no such name.
    pub fn new(
        source: &str,
        path: &str,
        may: May,
        params: bool,
        variables: Option<&Variables>,
    ) -> Result<Compiled, Vec<FieldError>> {
        let names = Names {
            inputs: if params { &INPUTS } else { INPUTS.split_last().map_or(&[], |(_, others)| others) },
            closed: &CLOSED,
            variables: variables.map(|variables| variables.names.as_slice()),
            missing: if may == May::Decide { &MISSING } else { &[] },
            plain: &[],
        };
        let expression = Expression::compile(source, path, &names)?;
        let all = variables.map(|variables| &variables.compiled);
        let needed = expression.variables().filter_map(|name| all?.get(name)).map(|needed| needed.depth + 2).max();
        let depth = expression.depth() + needed.unwrap_or(0);
        if depth > MAX_DEPTH {
            let why = format!("compilation failed: with its variables it is nested more than {MAX_DEPTH} levels deep");
            return Err(vec![FieldError::invalid(path, source, why)]);
        }
        Ok(Compiled { expression, depth })
    }
}

impl Variables {
    /// Adds the next one.
    pub fn add(&mut self, name: &str, compiled: Option<Compiled>) {
        self.names.push(name.to_owned());
        if let Some(compiled) = compiled {
            self.compiled.insert(name.to_owned(), compiled);
        }
    }
}

/// What expressions are about. Null is what is not there.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a> {
    pub object: &'a Value,
    pub old_object: &'a Value,
    pub request: &'a Value,
    pub namespace: &'a Value,
    pub params: &'a Value,
}

impl Input<'_> {
    fn all(&self) -> [&Value; 5] {
        [self.object, self.old_object, self.request, self.namespace, self.params]
    }

    /// What a name of [`Names::inputs`] stands for; none when it is not there.
    fn value(&self, name: &str) -> Option<CelValue> {
        let (asks, path) = name.strip_prefix("has ").map_or((false, name), |path| (true, path));
        let (root, field) = path.split_once('.').map_or((path, None), |(root, field)| (root, Some(field)));
        let at = INPUTS.iter().position(|own| *own == root)?;
        let root = self.all().get(at).copied()?;
        let Some(field) = field else { return Some(as_is(root)) };
        let selected = root.get(field);
        if asks { Some(CelValue::Bool(selected.is_some())) } else { selected.map(as_is) }
    }
}

/// The evaluation of expressions about one request.
pub(crate) struct Evaluation<'a> {
    base: Context<'static>,
    variables: &'a Variables,
    /// The longest list or map of the input, and that or the longest text.
    run: (u64, u64),
    known: Mutex<HashMap<String, Result<CelValue, String>>>,
    spent: AtomicU64,
}

impl<'a> Evaluation<'a> {
    /// Makes ready what these expressions and the variables name.
    pub fn new(
        input: Input<'_>,
        variables: &'a Variables,
        expressions: impl Iterator<Item = &'a Compiled>,
    ) -> Evaluation<'a> {
        let mut base = CONTEXT.new_inner_scope();
        let mut bound: Vec<&str> = Vec::new();
        for compiled in expressions.chain(variables.compiled.values()) {
            for name in compiled.expression.inputs() {
                if !bound.contains(&name) {
                    bound.push(name);
                }
            }
        }
        for name in bound {
            if let Some(value) = input.value(name) {
                base.add_variable_from_value(name, value);
            }
        }
        let run = |texts: bool| input.all().into_iter().map(|value| longest(value, texts)).max().unwrap_or(0);
        Evaluation { base, variables, run: (run(false), run(true)), known: Mutex::default(), spent: AtomicU64::new(0) }
    }

    /// What an expression comes to, or why it comes to nothing, in upstream's words.
    pub fn evaluate(&self, compiled: &Compiled) -> Result<CelValue, String> {
        self.result(compiled, compiled.depth)
            .map_err(|why| format!("expression '{}' resulted in error: {why}", compiled.expression.source()))
    }

    fn result(&self, compiled: &Compiled, depth: usize) -> Result<CelValue, String> {
        let expression = &compiled.expression;
        let mut run = if expression.splits() { self.run.1 } else { self.run.0 };
        if expression.loops() > 0 {
            // How long their loops are is known when the variables are.
            for name in expression.variables() {
                if let Ok(value) = self.variable(name, depth == 0) {
                    run = run.max(longest_of(&value, expression.splits()));
                }
            }
        }
        if let Some(why) = expression.too_many_steps(run) {
            return Err(why);
        }
        let steps = expression.steps(run);
        if self.spent.fetch_add(steps, Ordering::Relaxed).saturating_add(steps) > BUDGET {
            return Err(String::from(
                "validation failed due to running out of cost budget, no further validation rules will be run",
            ));
        }
        let mut scope = self.base.new_inner_scope();
        scope.set_variable_resolver(self);
        match expression.execute(&scope, depth) {
            None => Err(String::from("the evaluation failed")),
            Some(outcome) => outcome.map_err(|error| self.why(&error)),
        }
    }

    /// A variable, evaluated when it is first needed. `inside` an evaluation there is room on the stack for it: who uses it
    /// counts its levels.
    fn variable(&self, name: &str, inside: bool) -> Result<CelValue, String> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known().get(name) {
            return known.clone();
        }
        let Some(compiled) = self.variables.compiled.get(name) else { return Err(String::from("it is not declared")) };
        let value =
            self.result(compiled, if inside { 0 } else { compiled.depth }).and_then(|value| match fits(&value) {
                true => Ok(value),
                false => Err(format!("it is larger than {MAX_WEIGHT} values or deeper than {MAX_LEVELS} levels")),
            });
        known().insert(name.to_owned(), value.clone());
        value
    }

    fn why(&self, error: &ExecutionError) -> String {
        let ExecutionError::UndeclaredReference(name) = error else { return brief(error) };
        if let Some(variable) = name.strip_prefix("variables.") {
            let why = self.variable(variable, false).err().unwrap_or_default();
            return format!("composited variable {variable:?} fails to evaluate: {why}");
        }
        match name.split_once('.') {
            Some((_, field)) => format!("no such key: {field}"),
            None => format!("'{name}' is a function or macro that this server does not have"),
        }
    }
}

impl VariableResolver for Evaluation<'_> {
    fn resolve(&self, name: &str) -> Option<CelValue> {
        self.variable(name.strip_prefix("variables.")?, true).ok()
    }
}

/// As [`longest`], of what a variable came to.
fn longest_of(value: &CelValue, texts: bool) -> u64 {
    match value {
        CelValue::List(items) => {
            items.iter().map(|item| longest_of(item, texts)).max().unwrap_or(0).max(items.len() as u64)
        }
        CelValue::Map(map) => {
            map.map.values().map(|item| longest_of(item, texts)).max().unwrap_or(0).max(map.map.len() as u64)
        }
        CelValue::String(text) if texts => text.len() as u64,
        _ => 0,
    }
}

/// Whether a value is no larger and no deeper than a variable may be.
fn fits(value: &CelValue) -> bool {
    fn weigh(value: &CelValue, levels: usize, left: &mut usize) -> Option<()> {
        let own = match value {
            CelValue::String(text) => text.len(),
            CelValue::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        *left = left.checked_sub(own + 1)?;
        let levels = levels.checked_sub(1)?;
        match value {
            CelValue::List(items) => items.iter().try_for_each(|item| weigh(item, levels, left)),
            CelValue::Map(map) => map.map.values().try_for_each(|item| weigh(item, levels, left)),
            _ => Some(()),
        }
    }
    weigh(value, MAX_LEVELS, &mut { MAX_WEIGHT }).is_some()
}
