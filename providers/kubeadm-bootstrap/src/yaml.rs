//! YAML written so that every text comes out of a parser as it went in, and so that Jinja can still fill in instance
//! data before the parser sees it.
//!
//! A text of several lines, and one that holds Jinja, is a literal block where that is safe: nothing in it is escaped.
//! All else is quoted, so `yes`, `0640`, `- x`, `a: b` and `# c` stay texts.

use capstan_provider::{Chunk, Secret};
use serde_json::Value;

/// A YAML node.
#[derive(Clone, Debug)]
pub enum Yaml {
    /// Any text.
    Text(String),
    /// Lines of text with secrets in them that hold no line break: always a literal block.
    Block(Vec<Chunk>),
    /// A secret that needs no escapes within double quotes (base64, JSON string, token).
    Secret(Secret),
    /// A number or a truth value.
    Plain(String),
    /// A sequence.
    List(Vec<Yaml>),
    /// A mapping.
    Map(Vec<(String, Yaml)>),
}

impl From<&str> for Yaml {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&Value> for Yaml {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Plain("null".to_owned()),
            Value::Bool(truth) => Self::Plain(truth.to_string()),
            Value::Number(number) => Self::Plain(number.to_string()),
            Value::String(text) => Self::Text(text.clone()),
            Value::Array(items) => Self::List(items.iter().map(Self::from).collect()),
            Value::Object(map) => Self::Map(map.iter().map(|(key, value)| (key.clone(), Self::from(value))).collect()),
        }
    }
}

impl Yaml {
    /// The node at this path of keys, to be replaced.
    pub fn at_mut(&mut self, path: &[&str]) -> Option<&mut Self> {
        let mut node = self;
        for key in path {
            let Self::Map(entries) = node else { return None };
            node = entries.iter_mut().find(|(name, _)| name == key).map(|(_, value)| value)?;
        }
        Some(node)
    }
}

/// What is written: text, with secrets between.
#[derive(Default)]
pub struct Writer {
    chunks: Vec<Chunk>,
    text: String,
}

impl Writer {
    /// Text as it is.
    pub fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// What was written.
    pub fn finish(mut self) -> Vec<Chunk> {
        self.flush();
        self.chunks
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.chunks.push(std::mem::take(&mut self.text).into());
        }
    }

    fn secret(&mut self, secret: Secret) {
        self.flush();
        self.chunks.push(secret.into());
    }

    /// A mapping at the start of a line, or of a sequence's item whose dash has been written.
    pub fn map(&mut self, entries: &[(String, Yaml)], indent: usize, mut first_line_begun: bool) {
        for (key, value) in entries {
            if !std::mem::take(&mut first_line_begun) {
                self.spaces(indent);
            }
            let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
            let number = key.bytes().next().is_some_and(|b| b.is_ascii_digit());
            self.raw(&if plain && !number { key.clone() } else { quoted(key) });
            self.raw(":");
            self.value(value, indent);
        }
    }

    fn value(&mut self, value: &Yaml, indent: usize) {
        match value {
            Yaml::List(items) if !items.is_empty() => {
                self.raw("\n");
                for item in items {
                    self.spaces(indent);
                    self.raw("-");
                    self.item(item, indent);
                }
            }
            Yaml::Map(entries) if !entries.is_empty() => {
                self.raw("\n");
                self.map(entries, indent + 2, false);
            }
            scalar => self.scalar(scalar, indent),
        }
    }

    fn item(&mut self, item: &Yaml, indent: usize) {
        match item {
            Yaml::Map(entries) if !entries.is_empty() => {
                self.raw(" ");
                self.map(entries, indent + 2, true);
            }
            Yaml::List(items) if !items.is_empty() => {
                self.raw("\n");
                for inner in items {
                    self.spaces(indent + 2);
                    self.raw("-");
                    self.item(inner, indent + 2);
                }
            }
            scalar => self.scalar(scalar, indent),
        }
    }

    fn scalar(&mut self, scalar: &Yaml, indent: usize) {
        self.raw(" ");
        match scalar {
            Yaml::Plain(plain) => self.raw(plain),
            Yaml::List(_) => self.raw("[]"),
            Yaml::Map(_) => self.raw("{}"),
            Yaml::Secret(secret) => {
                self.raw("\"");
                self.secret(secret.clone());
                self.raw("\"");
            }
            Yaml::Text(text) if wants_block(text) => return self.block(&[text.as_str().into()], indent + 2),
            Yaml::Text(text) => self.raw(&quoted(text)),
            Yaml::Block(chunks) => return self.block(chunks, indent + 2),
        }
        self.raw("\n");
    }

    /// A literal block: the chunks' text, each line indented.
    fn block(&mut self, chunks: &[Chunk], indent: usize) {
        let end = match chunks.last() {
            Some(Chunk::Bytes(bytes)) => bytes.iter().rev().take_while(|byte| **byte == b'\n').count(),
            _ => 0,
        };
        self.raw(match end {
            0 => "|-\n",
            1 => "|\n",
            _ => "|+\n",
        });
        let mut line_start = true;
        for chunk in chunks {
            match chunk {
                Chunk::Secret(secret) => {
                    if std::mem::take(&mut line_start) {
                        self.spaces(indent);
                    }
                    self.secret(secret.clone());
                }
                Chunk::Bytes(bytes) => {
                    for line in String::from_utf8_lossy(bytes).split_inclusive('\n') {
                        if line_start && line != "\n" {
                            self.spaces(indent);
                        }
                        self.raw(line);
                        line_start = line.ends_with('\n');
                    }
                }
            }
        }
        if !line_start {
            self.raw("\n");
        }
    }

    fn spaces(&mut self, count: usize) {
        self.text.extend(std::iter::repeat_n(' ', count));
    }
}

/// Several lines, or Jinja that quoting could break; and nothing that a literal block would change.
fn wants_block(text: &str) -> bool {
    let jinja = ["{{", "{%"].iter().any(|mark| text.contains(mark));
    let safe = text.chars().all(|letter| letter == '\n' || letter == '\t' || printable(letter));
    let first = text.lines().find(|line| !line.is_empty());
    (jinja || text.contains('\n')) && safe && first.is_some_and(|line| !line.starts_with([' ', '\t']))
}

/// Printable in every version of YAML, and no line break in any.
fn printable(letter: char) -> bool {
    !letter.is_control() && !matches!(letter, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Single quotes where the text has what double quotes would escape, double quotes otherwise.
fn quoted(text: &str) -> String {
    if text.contains(['"', '\\']) && !text.contains('\'') && text.chars().all(printable) {
        return format!("'{text}'");
    }
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if printable(letter) => out.push(letter),
            _ => out.push_str(&format!("\\u{:04x}", u32::from(letter))),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Texts that break naive YAML, one by one and as list items, keys and values.
    pub const NASTY: &[&str] = &[
        "echo 'single' \"double\"",
        "a: b",
        "# comment",
        "x # y",
        "- dash",
        "{{ v1.name }}",
        "{{ ds[\"a\"] }}",
        "$(date) `id` ${X}",
        "back\\slash",
        "line one\nline two",
        "line one\nline two\n",
        "ends twice\n\n",
        "\nstarts",
        "  indented\nless",
        "\ttab",
        "tab\tinside",
        "naïve – ü 漢字 🚀",
        "yes",
        "no",
        "null",
        "~",
        "1",
        "0640",
        "1e3",
        "",
        " ",
        "trailing ",
        "a\n  b\n\n\n c\n",
        "cr\r\nlf",
        "\u{85}",
        "\u{2028}x",
        "\u{feff}bom",
        "\u{7f}",
        "[a, b]",
        "{a: b}",
        "*star",
        "&and",
        "!bang",
        "|",
        ">",
        "%x",
        "@x",
        "`x",
        "'",
        "\"",
        "'\"",
        "''",
        "key:",
        ": x",
        "?",
        "? x",
        "---",
        "...",
        "\n",
        "\n\n",
        "a\n---\nb",
        "a\n...\nb",
        "{% if %}\n'x'",
        "don't \"x\" \\",
        "x\n\t\ny",
        "{{ a }} ",
        "a \nb ",
    ];

    #[test]
    fn every_text_comes_out_of_an_independent_parser_as_it_went_in() {
        let value = json!({
            "list": NASTY,
            "map": NASTY.iter().enumerate().map(|(i, t)| (format!("k{i}"), json!(t))).collect::<serde_json::Map<_, _>>(),
            "nested": NASTY.iter().map(|t| json!({"a": t, "b": [t, [t]]})).collect::<Vec<_>>(),
            "odd keys": {"a b": 1, "1": true, "x:y": null, "": []},
            "empty": {"m": {}, "l": []},
        });
        let Yaml::Map(entries) = Yaml::from(&value) else { panic!() };
        let mut writer = Writer::default();
        writer.map(&entries, 0, false);
        let Chunk::Bytes(bytes) = writer.finish().remove(0) else { panic!() };
        let text = String::from_utf8(bytes).unwrap();
        let parsed: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        for (index, nasty) in NASTY.iter().enumerate() {
            assert_eq!(parsed["list"][index], json!(nasty), "{text}");
        }
        assert_eq!(parsed, value);
    }

    #[test]
    fn jinja_is_not_escaped() {
        let Yaml::Map(entries) = Yaml::from(&json!({"a": "{{ ds[\"x\"] }}", "b": "l1\n{{ \"q\" }}\n"})) else {
            panic!()
        };
        let mut writer = Writer::default();
        writer.map(&entries, 0, false);
        let Chunk::Bytes(bytes) = writer.finish().remove(0) else { panic!() };
        assert_eq!(String::from_utf8(bytes).unwrap(), "a: |-\n  {{ ds[\"x\"] }}\nb: |\n  l1\n  {{ \"q\" }}\n");
    }

    #[test]
    fn secrets_stand_in_blocks_and_quotes() {
        let secret = capstan_provider::testing::secret("abc.def");
        let mut writer = Writer::default();
        let block = vec!["token: \"".into(), secret.clone().into(), "\"\nlast\n".into()];
        writer.map(&[("f".to_owned(), Yaml::Block(block)), ("s".to_owned(), Yaml::Secret(secret))], 0, false);
        let whole = capstan_provider::testing::reveal(&capstan_provider::secrets::compose(&writer.finish()));
        assert_eq!(whole, "f: |\n  token: \"abc.def\"\n  last\ns: \"abc.def\"\n");
    }
}
