//! One expression in the Common Expression Language: compiled once, evaluated within bounds.
//!
//! Expressions come from whoever writes a provider or a policy, and must not be able to hold up the server or end it: their
//! length, their depth and the steps of their nested loops are bounded, and a panic of the engine is a failed evaluation.

use super::error::{FieldError, join};
use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedExpr};
use kube_cel::cel::objects::Value as CelValue;
use kube_cel::cel::{Context, ExecutionError, Program};
use serde_json::Value;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

/// How many steps the nested loops of one expression may come to. One that could take more on the object at hand fails it.
const MAX_STEPS: u64 = 10_000_000;

/// The longest expression, in bytes. With [`PARSE_STACK`] none can exhaust the stack while it is parsed.
const MAX_SOURCE: usize = 8 * 1024;

/// The stack an expression is parsed on: the parser recurses deeply, without optimisation by 130 KiB a bracket. Only what is
/// touched is real memory.
const PARSE_STACK: usize = 256 << 20;

/// The deepest expression that is accepted.
const MAX_DEPTH: usize = 200;

/// Expressions up to this depth are evaluated where they are needed, deeper ones on a stack of their own.
const SHALLOW: usize = 24;

/// What evaluation may take of the stack for each level of an expression, with room to spare.
const LEVEL_STACK: usize = 128 << 10;

/// What any expression may name: the namespaces of functions and the types.
const KNOWN: [&str; 24] = [
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

/// What an expression may name beside that.
#[derive(Clone, Copy, Default)]
pub(crate) struct Names<'a> {
    /// Plain variables.
    pub plain: &'a [&'a str],
    /// Inputs that may be absent as a whole: what is selected of one is a name of its own (`object.spec`, `has object.spec`),
    /// so that an absent one is an error where the engine would go on with `false`, and no more is converted than is used.
    pub inputs: &'a [&'a str],
    /// Fields of inputs that have these and no others.
    pub closed: &'a [(&'a str, &'a [&'a str])],
    /// What there is of `variables.…`; none when there is no such thing.
    pub variables: Option<&'a [String]>,
    /// Names that are known and not to be had, with the reason.
    pub missing: &'a [(&'a str, &'a str)],
}

/// A compiled expression.
#[derive(Debug)]
pub(crate) struct Expression {
    source: String,
    root: IdedExpr,
    depth: usize,
    /// How deep its loops are nested, and whether they may run over the parts of a text.
    loops: u32,
    splits: bool,
    /// The inputs it uses, as [`Names::inputs`] has them.
    inputs: BTreeSet<String>,
    /// The variables it uses.
    variables: BTreeSet<String>,
}

impl Expression {
    /// Compiles an expression; `path` is its place, for what is wrong with it.
    pub(crate) fn compile(source: &str, path: &str, names: &Names<'_>) -> Result<Expression, Vec<FieldError>> {
        if source.len() > MAX_SOURCE {
            return Err(vec![FieldError::too_long(path, MAX_SOURCE as u64)]);
        }
        let compiled = on_stack(PARSE_STACK, || Expression::parse(source, names));
        let compiled = compiled.unwrap_or_else(|| Err(vec!["the expression cannot be parsed".to_owned()]));
        compiled.map_err(|wrong| {
            let wrong = wrong.into_iter();
            wrong.map(|why| FieldError::invalid(path, source, format!("compilation failed: {why}"))).collect()
        })
    }

    fn parse(source: &str, names: &Names<'_>) -> Result<Expression, Vec<String>> {
        let program = Program::compile(source).map_err(|error| vec![error.to_string()])?;
        let mut root = program.expression().clone();
        let depth = depth(&root);
        if depth > MAX_DEPTH {
            return Err(vec![format!("the expression is nested more than {MAX_DEPTH} levels deep")]);
        }
        let splits = ["split", "findAll"].iter().any(|name| program.references().has_function(name));
        let mut resolver = Resolver {
            names,
            bound: Vec::new(),
            wrong: Vec::new(),
            inputs: BTreeSet::new(),
            variables: BTreeSet::new(),
        };
        resolver.resolve(&mut root);
        let Resolver { wrong, inputs, variables, .. } = resolver;
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let loops = nesting(&root);
        Ok(Expression { source: source.to_owned(), root, depth, loops, splits, inputs, variables })
    }

    /// As it was written.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    pub(crate) fn root(&self) -> &IdedExpr {
        &self.root
    }

    /// How many levels it has.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// The inputs it uses: `object`, `object.spec`, `has object.spec`.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(String::as_str)
    }

    /// The variables it uses, without `variables.`.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        self.variables.iter().map(String::as_str)
    }

    /// Whether it names a plain variable.
    pub(crate) fn uses(&self, name: &str) -> bool {
        self.root.references().has_variable(name)
    }

    /// Whether nested loops run over the parts of a text.
    pub(crate) fn splits(&self) -> bool {
        self.splits
    }

    /// How deep its loops are nested.
    pub(crate) fn loops(&self) -> u32 {
        self.loops
    }

    /// How many steps its loops may take, when the longest list, map or (where it is split) text has `run` items.
    pub(crate) fn steps(&self, run: u64) -> u64 {
        self.run(run).saturating_pow(self.loops)
    }

    /// Lists may also be in the expression itself.
    fn run(&self, run: u64) -> u64 {
        run.max(self.source.matches(',').count() as u64 + 1)
    }

    /// Why its loops could take too many steps, when the longest list, map or (where it is split) text has `run` items.
    pub(crate) fn too_many_steps(&self, run: u64) -> Option<String> {
        let many = self.loops > 1 && self.steps(run) > MAX_STEPS;
        let run = self.run(run);
        many.then(|| {
            format!(
                "{} nested loops over up to {run} items are too many steps; bound the lists by maxItems",
                self.loops
            )
        })
    }

    /// Evaluates it, on a stack of its own when `depth` levels (its own, and those of what it evaluates on the way) need one.
    /// None when the engine failed.
    pub(crate) fn execute(&self, scope: &Context<'_>, depth: usize) -> Option<Result<CelValue, ExecutionError>> {
        if depth <= SHALLOW {
            return catch_unwind(AssertUnwindSafe(|| CelValue::resolve(&self.root, scope))).ok();
        }
        on_stack(depth * LEVEL_STACK, || CelValue::resolve(&self.root, scope))
    }
}

/// Finds out what the names of an expression mean.
struct Resolver<'a> {
    names: &'a Names<'a>,
    bound: Vec<String>,
    wrong: Vec<String>,
    inputs: BTreeSet<String>,
    variables: BTreeSet<String>,
}

impl Resolver<'_> {
    fn is_free(&self, name: &str) -> bool {
        !self.bound.iter().any(|own| own == name)
    }

    fn is_input(&self, name: &str) -> bool {
        self.names.inputs.contains(&name) && self.is_free(name)
    }

    fn resolve(&mut self, expression: &mut IdedExpr) {
        match &mut expression.expr {
            Expr::Ident(name) => self.name(name),
            Expr::Select(select) => {
                let named = match &select.operand.expr {
                    Expr::Ident(of) => self.selected(of, &select.field, select.test),
                    _ => None,
                };
                match named {
                    Some(named) => expression.expr = named,
                    None => {
                        if let Expr::Select(inner) = &select.operand.expr
                            && let Expr::Ident(of) = &inner.operand.expr
                        {
                            self.check_field(&format!("{of}.{}", inner.field), &select.field, of);
                        }
                        self.resolve(&mut select.operand);
                    }
                }
            }
            // Macros that this engine does not have introduce names of their own; the evaluation reports them.
            Expr::Call(call)
                if ["bind", "sortBy", "transformList", "transformMap", "all", "exists"]
                    .contains(&call.func_name.as_str()) => {}
            Expr::Comprehension(inner) => {
                self.resolve(&mut inner.iter_range);
                self.resolve(&mut inner.accu_init);
                let depth = self.bound.len();
                self.bound.push(inner.iter_var.clone());
                self.bound.extend(inner.iter_var2.clone());
                self.bound.push(inner.accu_var.clone());
                for part in [&mut inner.loop_cond, &mut inner.loop_step, &mut inner.result] {
                    self.resolve(part);
                }
                self.bound.truncate(depth);
            }
            Expr::Struct(of) => self.wrong.push(format!("messages ({}{{…}}) cannot be made here", of.type_name)),
            Expr::Call(call) => {
                call.target.iter_mut().for_each(|target| self.resolve(target));
                call.args.iter_mut().for_each(|argument| self.resolve(argument));
            }
            Expr::List(list) => list.elements.iter_mut().for_each(|item| self.resolve(item)),
            Expr::Map(map) => {
                for entry in &mut map.entries {
                    match &mut entry.expr {
                        EntryExpr::MapEntry(entry) => {
                            self.resolve(&mut entry.key);
                            self.resolve(&mut entry.value);
                        }
                        EntryExpr::StructField(field) => {
                            self.wrong.push(format!("{:?} is a field outside a message", field.field));
                        }
                    }
                }
            }
            Expr::Literal(_) => {}
            Expr::Unspecified => self.wrong.push("a part of the expression is missing".to_owned()),
        }
    }

    fn name(&mut self, name: &str) {
        if self.is_input(name) {
            self.inputs.insert(name.to_owned());
        } else if name == "variables" && self.names.variables.is_some() && self.is_free(name) {
            self.wrong.push("variables can only be named one by one, as in variables.name".to_owned());
        } else if !name.starts_with('@')
            && !KNOWN.contains(&name)
            && !self.names.plain.contains(&name)
            && self.is_free(name)
        {
            let missing = self.names.missing.iter().find(|(own, _)| *own == name);
            let why = missing.map(|(_, why)| format!(": {why}")).unwrap_or_default();
            self.wrong.push(format!("undeclared reference to '{name}'{why}"));
        }
    }

    /// What `of.field` is, if `of` is an input or `variables`.
    fn selected(&mut self, of: &str, field: &str, test: bool) -> Option<Expr> {
        if of == "variables" && self.is_free(of) {
            let all = self.names.variables?;
            if !all.iter().any(|own| own == field) {
                self.wrong.push(format!("undefined field '{field}'"));
            } else if test {
                // What is declared is there.
                return Some(Expr::Literal(kube_cel::cel::common::ast::LiteralValue::Boolean(true.into())));
            }
            self.variables.insert(field.to_owned());
            return Some(Expr::Ident(format!("variables.{field}")));
        }
        if !self.is_input(of) {
            return None;
        }
        self.check_field(of, field, of);
        let name = if test { format!("has {of}.{field}") } else { format!("{of}.{field}") };
        self.inputs.insert(name.clone());
        Some(Expr::Ident(name))
    }

    fn check_field(&mut self, of: &str, field: &str, root: &str) {
        let closed = self.names.closed.iter().find(|(own, _)| *own == of);
        if self.is_input(root) && closed.is_some_and(|(_, fields)| !fields.contains(&field)) {
            self.wrong.push(format!("undefined field '{field}'"));
        }
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
pub(crate) fn longest(value: &Value, texts: bool) -> u64 {
    match value {
        Value::Array(items) => items.iter().map(|item| longest(item, texts)).max().unwrap_or(0).max(items.len() as u64),
        Value::Object(map) => map.values().map(|item| longest(item, texts)).max().unwrap_or(0).max(map.len() as u64),
        Value::String(text) if texts => text.len() as u64,
        _ => 0,
    }
}

/// What every expression is evaluated in: the functions, and the names of the types.
pub(crate) static CONTEXT: LazyLock<Context<'static>> = LazyLock::new(|| {
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

/// The error without dumps of whole values.
pub(crate) fn brief(error: &ExecutionError) -> String {
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

/// What is wrong with one entry's expression, as [`Expression::compile`] says it, collected.
pub(crate) fn compiled(
    source: &str,
    path: &str,
    field: &str,
    names: &Names<'_>,
    errors: &mut Vec<FieldError>,
) -> Option<Expression> {
    Expression::compile(source, &join(path, field), names).map_err(|wrong| errors.extend(wrong)).ok()
}
