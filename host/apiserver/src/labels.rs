//! The syntax of label selectors, and the refusals that people know from `kubectl get -l`.
//!
//! Source of the grammar and the texts: `k8s.io/apimachinery/pkg/labels/selector.go` (release 1.36).

use crate::schema::{FieldError, label_value_errors, qualified_name_errors};

/// What one requirement asks of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Is {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
    Greater(i64),
    Less(i64),
}

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Requirement {
    pub key: String,
    pub is: Is,
}

impl Requirement {
    pub fn matches(&self, labels: &[(Box<str>, Box<str>)]) -> bool {
        let value = labels.iter().find(|(key, _)| **key == *self.key).map(|(_, value)| &**value);
        let number = || value.and_then(|text| text.parse::<i64>().ok());
        match &self.is {
            Is::In(values) => value.is_some_and(|value| values.iter().any(|own| own == value)),
            Is::NotIn(values) => value.is_none_or(|value| values.iter().all(|own| own != value)),
            Is::Exists => value.is_some(),
            Is::Absent => value.is_none(),
            Is::Greater(than) => number().is_some_and(|number| number > *than),
            Is::Less(than) => number().is_some_and(|number| number < *than),
        }
    }
}

/// Parses a label selector.
pub(crate) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    let mut parser = Parser { tokens: tokens(text), at: 0 };
    let mut out = Vec::new();
    loop {
        match parser.peek() {
            "" => return Ok(out),
            word if is_word(word) || word == "!" => {
                out.push(parser.requirement().map_err(|why| format!("unable to parse requirement: {why}"))?);
                match parser.next() {
                    "" => return Ok(out),
                    "," if is_word(parser.peek()) || parser.peek() == "!" => {}
                    "," => return Err(format!("found '{}', expected: identifier after ','", parser.peek())),
                    other => return Err(format!("found '{other}', expected: ',' or 'end of string'")),
                }
            }
            other => return Err(format!("found '{other}', expected: !, identifier, or 'end of string'")),
        }
    }
}

const SYMBOLS: &[u8] = b"=!(),><";

fn is_word(token: &str) -> bool {
    token.bytes().next().is_some_and(|first| !SYMBOLS.contains(&first))
}

/// Words and symbols; blanks only part them.
fn tokens(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', '\r', '\n']);
    while let Some(first) = rest.bytes().next() {
        let length = match rest.get(..2) {
            Some("==" | "!=") => 2,
            _ if SYMBOLS.contains(&first) => 1,
            _ => rest.find([' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<']).unwrap_or(rest.len()),
        };
        let (token, after) = rest.split_at(length);
        out.push(token);
        rest = after.trim_start_matches([' ', '\t', '\r', '\n']);
    }
    out
}

struct Parser<'a> {
    tokens: Vec<&'a str>,
    at: usize,
}

impl<'a> Parser<'a> {
    /// The next token; empty at the end.
    fn peek(&self) -> &'a str {
        self.tokens.get(self.at).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'a str {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.peek() == "!";
        if absent {
            self.next();
        }
        let key = self.next();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        let wrong = qualified_name_errors(key);
        if !wrong.is_empty() {
            let wrong = wrong.join("; ").replace("a qualified name must", "a valid label key must");
            return Err(FieldError::invalid("<nil>", key, wrong).to_string());
        }
        let made = |is: Is| Ok(Requirement { key: key.to_owned(), is });
        if absent || matches!(self.peek(), "" | ",") {
            return made(if absent { Is::Absent } else { Is::Exists });
        }
        let operator = self.next();
        let values = match operator {
            "in" | "notin" => self.values()?,
            "=" | "==" | "!=" | ">" | "<" => vec![self.value()?],
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        let mut wrong = Vec::new();
        for (index, value) in values.iter().enumerate() {
            if matches!(operator, ">" | "<") && value.parse::<i64>().is_err() {
                let why = "for 'Gt', 'Lt' operators, the value must be an integer";
                wrong.push(FieldError::invalid(format!("values[{index}]"), value.as_str(), why).to_string());
            }
            let errors = label_value_errors(value);
            if !errors.is_empty() {
                let path = format!("values[{index}][{key}]");
                wrong.push(FieldError::invalid(path, value.as_str(), errors.join("; ")).to_string());
            }
        }
        match wrong.as_slice() {
            [] => {}
            [one] => return Err(one.clone()),
            several => return Err(format!("[{}]", several.join(", "))),
        }
        let number = || values.first().and_then(|value| value.parse().ok()).unwrap_or(0);
        match operator {
            "in" | "=" | "==" => made(Is::In(values)),
            "notin" | "!=" => made(Is::NotIn(values)),
            ">" => made(Is::Greater(number())),
            _ => made(Is::Less(number())),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        match self.peek() {
            "" | "," => Ok(String::new()),
            word if is_word(word) => Ok(self.next().to_owned()),
            other => Err(format!("found '{other}', expected: identifier")),
        }
    }

    /// `(a, b)`. Nothing between two commas is the empty value.
    fn values(&mut self) -> Result<Vec<String>, String> {
        let open = self.next();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut out: Vec<String> = Vec::new();
        let mut add = |value: &str| {
            if !out.iter().any(|own| own == value) {
                out.push(value.to_owned());
            }
        };
        let first = self.peek();
        if !is_word(first) && first != "," && first != ")" {
            return Err(format!("found '{first}', expected: ',', ')' or identifier"));
        }
        if first == ")" {
            add("");
        }
        let mut before = ",";
        loop {
            match self.next() {
                ")" => {
                    if before == "," {
                        add("");
                    }
                    out.sort();
                    return Ok(out);
                }
                "," => {
                    if before == "," {
                        add("");
                    }
                    before = ",";
                }
                word if is_word(word) && before == "," => {
                    add(word);
                    before = word;
                    if !matches!(self.peek(), "," | ")") {
                        return Err(format!("found '{}', expected: ',' or ')'", self.peek()));
                    }
                }
                other => return Err(format!("found '{other}', expected: ',', or identifier")),
            }
        }
    }
}
