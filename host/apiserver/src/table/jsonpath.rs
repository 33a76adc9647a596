//! The part of Kubernetes' JSONPath that printer columns use: fields, indexes, slices, wildcards, and filters that compare
//! a path with a literal.

use serde_json::Value;

/// A compiled path.
#[derive(Debug)]
pub(crate) struct JsonPath(Vec<Step>);

#[derive(Debug)]
enum Step {
    Field(String),
    Index(i64),
    Slice(i64, Option<i64>),
    All,
    /// Every value below, itself included.
    Descend,
    Filter {
        path: Vec<Step>,
        compare: Option<(Comparison, Value)>,
    },
}

#[derive(Clone, Copy, Debug)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl JsonPath {
    /// Compiles a path, with or without the braces. None when it is none.
    pub fn parse(text: &str) -> Option<JsonPath> {
        let text = text.trim();
        let text = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        let text = text.strip_prefix('$').unwrap_or(text);
        steps(text).map(JsonPath)
    }

    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        find(&self.0, value)
    }
}

fn steps(text: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(&c) = chars.peek() {
        if c == '[' {
            chars.next();
            let mut inside = String::new();
            let mut quote: Option<char> = None;
            let mut depth = 1;
            loop {
                let c = chars.next()?;
                match (quote, c) {
                    (Some(open), c) if c == open => quote = None,
                    (None, '\'' | '"') => quote = Some(c),
                    (None, '[') => depth += 1,
                    (None, ']') => {
                        depth -= 1;
                        if depth == 0 {
                            break;
                        }
                    }
                    _ => {}
                }
                inside.push(c);
            }
            steps.push(bracket(inside.trim())?);
            continue;
        }
        if c == '.' {
            chars.next();
            if chars.peek() == Some(&'.') {
                chars.next();
                steps.push(Step::Descend);
            }
            if matches!(chars.peek(), None | Some('[')) {
                continue;
            }
        }
        let mut name = String::new();
        while let Some(&c) = chars.peek() {
            match c {
                '.' | '[' => break,
                '\\' => {
                    chars.next();
                    name.push(chars.next()?);
                }
                c => {
                    chars.next();
                    name.push(c);
                }
            }
        }
        steps.push(if name == "*" { Step::All } else { Step::Field(name) });
    }
    Some(steps)
}

fn unquote(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text.strip_prefix(quote)?.strip_suffix(quote)
}

fn bracket(inside: &str) -> Option<Step> {
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(filter) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        return parse_filter(filter);
    }
    if let Some(name) = unquote(inside) {
        return Some(Step::Field(name.replace("\\.", ".")));
    }
    if let Some((from, to)) = inside.split_once(':') {
        let from = if from.is_empty() { 0 } else { from.parse().ok()? };
        let to = if to.is_empty() { None } else { Some(to.parse().ok()?) };
        return Some(Step::Slice(from, to));
    }
    inside.parse().ok().map(Step::Index)
}

fn parse_filter(text: &str) -> Option<Step> {
    const OPERATORS: &[(&str, Comparison)] = &[
        ("==", Comparison::Equal),
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    let (left, compare) = match OPERATORS.iter().find_map(|(sign, op)| text.split_once(sign).map(|(l, r)| (l, r, *op)))
    {
        Some((left, right, operator)) => {
            let right = right.trim();
            let literal = match unquote(right) {
                Some(text) => Value::from(text),
                None => serde_json::from_str(right).ok()?,
            };
            (left, Some((operator, literal)))
        }
        None => (text, None),
    };
    Some(Step::Filter { path: steps(left.trim().strip_prefix('@')?)?, compare })
}

fn find<'a>(steps: &[Step], value: &'a Value) -> Vec<&'a Value> {
    let mut current = vec![value];
    for step in steps {
        let mut next = Vec::new();
        for value in current {
            step.take(value, &mut next);
        }
        current = next;
    }
    current
}

impl Step {
    fn take<'a>(&self, value: &'a Value, out: &mut Vec<&'a Value>) {
        match (self, value) {
            (Step::Field(name), Value::Object(fields)) => out.extend(fields.get(name)),
            (Step::Index(index), Value::Array(items)) => out.extend(items.get(place(*index, items.len()))),
            (Step::Slice(from, to), Value::Array(items)) => {
                let to = to.map_or(items.len(), |to| place(to, items.len())).min(items.len());
                out.extend(items.get(place(*from, items.len())..to).unwrap_or_default());
            }
            (Step::All, Value::Array(items)) => out.extend(items),
            (Step::All, Value::Object(fields)) => out.extend(fields.values()),
            (Step::Descend, value) => descend(value, out),
            (Step::Filter { path, compare }, Value::Array(items)) => {
                out.extend(items.iter().filter(|item| accepts(path, compare.as_ref(), item)));
            }
            _ => {}
        }
    }
}

fn place(index: i64, length: usize) -> usize {
    if index < 0 { length.saturating_sub(index.unsigned_abs() as usize) } else { index as usize }
}

fn descend<'a>(value: &'a Value, out: &mut Vec<&'a Value>) {
    out.push(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| descend(item, out)),
        Value::Object(fields) => fields.values().for_each(|field| descend(field, out)),
        _ => {}
    }
}

fn accepts(path: &[Step], compare: Option<&(Comparison, Value)>, item: &Value) -> bool {
    let found = find(path, item);
    let Some((comparison, literal)) = compare else { return !found.is_empty() };
    found.iter().any(|value| {
        let order = match (value, literal) {
            (Value::Number(a), Value::Number(b)) => a.as_f64().partial_cmp(&b.as_f64()),
            (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
            _ => None,
        };
        match comparison {
            Comparison::Equal => *value == literal,
            Comparison::NotEqual => *value != literal,
            Comparison::Less => order.is_some_and(|order| order.is_lt()),
            Comparison::LessOrEqual => order.is_some_and(|order| order.is_le()),
            Comparison::Greater => order.is_some_and(|order| order.is_gt()),
            Comparison::GreaterOrEqual => order.is_some_and(|order| order.is_ge()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths() {
        let object = json!({"a": {"b.c": 1, "d": [{"t": "x", "v": 1}, {"t": "y", "v": 2}]}, "e/f": "g"});
        let found = |path: &str| JsonPath::parse(path).unwrap().find(&object).into_iter().cloned().collect::<Vec<_>>();
        assert_eq!(found(".a.b\\.c"), [json!(1)]);
        assert_eq!(found(".a['b.c']"), [json!(1)]);
        assert_eq!(found("{.a.d[*].v}"), [json!(1), json!(2)]);
        assert_eq!(found(".a.d[?(@.t==\"y\")].v"), [json!(2)]);
        assert_eq!(found(".a.d[?(@.v>=2)].t"), [json!("y")]);
        assert_eq!(found(".a.d[-1].t"), [json!("y")]);
        assert_eq!(found(".a.d[0:1].t"), [json!("x")]);
        assert_eq!(found("$.e/f"), [json!("g")]);
        assert_eq!(found("..t"), [json!("x"), json!("y")]);
        assert!(found(".a.nothing[3].x").is_empty());
        for bad in [".a[", ".a[?(x)]", ".a[x]", ".a\\"] {
            assert!(JsonPath::parse(bad).is_none(), "{bad}");
        }
    }
}
