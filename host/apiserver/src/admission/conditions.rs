//! `matchConditions` of webhooks and policies: expressions that all must hold for their owner to be asked.

use super::evaluation::{Compiled, Evaluation, Input, May, Variables};
use super::text;
use super::types::type_of;
use crate::schema::{FieldError, join, qualified_name_errors};
use kube_cel::cel::Value as CelValue;
use serde_json::Value;

/// How many conditions one owner may have.
const MOST: usize = 64;

/// An expression that was compiled when its owner was made; why not, when it was not (made by another version of the server).
pub(crate) type Condition = Result<Compiled, String>;

/// The conditions of one owner.
#[derive(Debug, Default)]
pub(crate) struct Conditions(Vec<Condition>);

/// Compiles an expression that must come to one of these types. What is wrong is told, and kept.
pub(super) fn compile(
    source: &str,
    path: &str,
    types: &[&str],
    may: May,
    params: bool,
    variables: Option<&Variables>,
    errors: &mut Vec<FieldError>,
) -> Condition {
    let wrong = |errors: Vec<FieldError>| errors.first().map(|error| error.detail.clone()).unwrap_or_default();
    let compiled = Compiled::new(source, path, may, params, variables).map_err(|found| {
        errors.extend(found.iter().cloned());
        wrong(found)
    })?;
    if let Some(got) = type_of(compiled.expression.root()).filter(|got| !types.is_empty() && !types.contains(got)) {
        let why = match types {
            [one] => format!("must evaluate to {one} but got {got}"),
            several => format!("must evaluate to one of [{}] but got {got}", several.join(" ")),
        };
        errors.push(FieldError::invalid(path, source, why.as_str()));
        return Err(why);
    }
    Ok(compiled)
}

/// What an expression comes to.
pub(super) fn evaluate(condition: &Condition, evaluation: &Evaluation<'_>) -> Result<CelValue, String> {
    match condition {
        Ok(compiled) => evaluation.evaluate(compiled),
        Err(why) => Err(format!("compilation error: {why}")),
    }
}

impl Conditions {
    /// Compiles a list of conditions, and says what is wrong with it.
    pub fn compile(list: &[Value], path: &str, params: bool, errors: &mut Vec<FieldError>) -> Conditions {
        if list.len() > MOST {
            errors.push(FieldError::too_many(path, list.len(), MOST as u64));
        }
        let mut names: Vec<&str> = Vec::new();
        let conditions = list.iter().enumerate().map(|(index, condition)| {
            let path = format!("{path}[{index}]");
            let source = text(condition, "/expression").trim();
            let at = join(&path, "expression");
            let compiled = if source.is_empty() {
                errors.push(FieldError::required(at, ""));
                Err(String::from("there is no expression"))
            } else {
                compile(source, &at, &["bool"], May::Decide, params, None, errors)
            };
            let name = text(condition, "/name");
            let at = join(&path, "name");
            if name.is_empty() {
                errors.push(FieldError::required(at.as_str(), ""));
            } else {
                errors.extend(qualified_name_errors(name).into_iter().map(|why| FieldError::invalid(&at, name, why)));
                if names.contains(&name) {
                    errors.push(FieldError::duplicate(at, name));
                }
                names.push(name);
            }
            compiled
        });
        Conditions(conditions.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all hold. One that does not outweighs those that cannot be evaluated. Conditions know no namespace.
    pub fn hold(&self, input: Input<'_>) -> Result<bool, String> {
        let (input, none) = (Input { namespace: &Value::Null, ..input }, Variables::default());
        let compiled = self.0.iter().filter_map(|condition| condition.as_ref().ok());
        let evaluation = Evaluation::new(input, &none, compiled);
        let mut wrong = Vec::new();
        for condition in &self.0 {
            match evaluate(condition, &evaluation) {
                Ok(CelValue::Bool(false)) => return Ok(false),
                Ok(_) => {}
                Err(why) => wrong.push(why),
            }
        }
        match wrong.as_slice() {
            [] => Ok(true),
            [one] => Err(one.clone()),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}
