//! cloud-config, as cloud-init documents it (modules Bootcmd, Write Files, Runcmd).

use crate::node::Node;
use crate::{Boot, BootError, Instance, Step, base64_decode, gunzip, quote};

const JINJA: &str = "## template: jinja";
const EXPECTED: &str = "a cloud-config document";

pub(crate) fn read(text: &str, instance: Option<&Instance>) -> Result<Boot, BootError> {
    let template = header(text)?;
    let filled;
    let text = match instance {
        Some(instance) if template => {
            filled = fill(text, instance);
            filled.as_str()
        }
        _ => text,
    };
    let entries = match Node::parse(text)? {
        Node::Map(entries) => entries,
        Node::Null => Vec::new(),
        other => {
            return Err(BootError::NotThisFormat {
                expected: EXPECTED,
                found: format!("its top level is {}", other.kind()),
            });
        }
    };

    let mut boot_commands = Vec::new();
    let mut files = Vec::new();
    let mut deferred = Vec::new();
    let mut run_commands = Vec::new();
    let mut ignored = Vec::new();
    for (key, value) in entries {
        match key.as_str() {
            "bootcmd" => commands("bootcmd", value, &mut boot_commands)?,
            "runcmd" => commands("runcmd", value, &mut run_commands)?,
            "write_files" => write_files(value, &mut files, &mut deferred)?,
            _ => ignored.push(key),
        }
    }
    let mut steps = boot_commands;
    steps.append(&mut files);
    steps.append(&mut deferred);
    steps.append(&mut run_commands);
    Ok(Boot { steps, ignored })
}

/// Checks the first lines; true where the document is a Jinja template.
fn header(text: &str) -> Result<bool, BootError> {
    let mut lines = text.lines().map(str::trim_end);
    let mut first = lines.next().unwrap_or_default();
    let template = first.eq_ignore_ascii_case(JINJA);
    if template {
        first = lines.next().unwrap_or_default();
    }
    if first == "#cloud-config" {
        return Ok(template);
    }
    let found = if text.trim().is_empty() {
        "it is empty"
    } else if text.starts_with("MIME-Version:")
        || text.get(..13).is_some_and(|t| t.eq_ignore_ascii_case("content-type:"))
    {
        "it is a multi-part message; give one cloud-config document"
    } else if first.starts_with("#!") {
        "it is a script; put it into runcmd"
    } else if first.starts_with("#include") {
        "it is a list of addresses to include, which is not followed"
    } else if first.starts_with("#cloud-config-")
        || first.starts_with("#cloud-boothook")
        || first.starts_with("#part-handler")
    {
        "it is another kind of cloud-init data; give one cloud-config document"
    } else if text.trim_start().starts_with('{') {
        "it looks like JSON, perhaps Ignition; then its format is `ignition`"
    } else {
        "its first line is not `#cloud-config`"
    };
    Err(BootError::NotThisFormat { expected: EXPECTED, found: found.to_owned() })
}

/// Fills in the expressions that an [`Instance`] knows.
fn fill(text: &str, instance: &Instance) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((expression, after_end)) = after.split_once("}}") else {
            break;
        };
        let value = match expression.trim() {
            "ds.meta_data.local_hostname" | "ds.meta_data.hostname" | "v1.local_hostname" | "local_hostname" => {
                Some(&instance.hostname)
            }
            "ds.meta_data.instance_id" | "v1.instance_id" | "instance_id" => Some(&instance.id),
            _ => None,
        };
        out.push_str(before);
        match value {
            Some(value) => {
                out.push_str(value);
                rest = after_end;
            }
            None => {
                out.push_str("{{");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// `bootcmd` and `runcmd`: each item a command line, or a list of arguments that are quoted for the shell. Empty items are skipped.
fn commands(key: &str, value: Node, steps: &mut Vec<Step>) -> Result<(), BootError> {
    let items = match value {
        Node::List(items) => items,
        Node::Null => return Ok(()),
        other => return Err(BootError::invalid(key, format!("must be a list of commands, it is {}", other.kind()))),
    };
    for (index, item) in items.into_iter().enumerate() {
        let field = format!("{key}[{index}]");
        match item {
            Node::Null => {}
            Node::Text(line) => steps.push(Step::Run(line)),
            Node::List(words) => {
                let mut line = Vec::with_capacity(words.len());
                for (position, word) in words.iter().enumerate() {
                    let text = word.scalar().ok_or_else(|| {
                        BootError::invalid(
                            format!("{field}[{position}]"),
                            format!("must be a string, it is {}", word.kind()),
                        )
                    })?;
                    line.push(quote(&text));
                }
                if line.is_empty() {
                    return Err(BootError::invalid(field, "is an empty list, which is no command"));
                }
                steps.push(Step::Run(line.join(" ")));
            }
            other => {
                let reason =
                    format!("must be a string or a list of strings, it is {}; put it into quotes", other.kind());
                return Err(BootError::invalid(field, reason));
            }
        }
    }
    Ok(())
}

fn write_files(value: Node, files: &mut Vec<Step>, deferred: &mut Vec<Step>) -> Result<(), BootError> {
    let items = match value {
        Node::List(items) => items,
        Node::Null => return Ok(()),
        other => return Err(BootError::invalid("write_files", format!("must be a list, it is {}", other.kind()))),
    };
    for (index, item) in items.into_iter().enumerate() {
        let field = format!("write_files[{index}]");
        let Node::Map(entries) = item else {
            return Err(BootError::invalid(field, format!("must be a map, it is {}", item.kind())));
        };
        let (step, late) = file(&field, entries)?;
        if late { deferred.push(step) } else { files.push(step) }
    }
    Ok(())
}

fn file(field: &str, entries: Vec<(String, Node)>) -> Result<(Step, bool), BootError> {
    let mut path = None;
    let mut raw = String::new();
    let mut encoding = String::new();
    let mut mode = 0o644;
    let mut owner = "root:root".to_owned();
    let mut append = false;
    let mut late = false;
    for (key, value) in entries {
        let place = || format!("{field}.{key}");
        let text = |value: &Node| {
            value
                .scalar()
                .ok_or_else(|| BootError::invalid(place(), format!("must be a string, it is {}", value.kind())))
        };
        let flag = |value: &Node| match value {
            Node::Bool(value) => Ok(*value),
            other => Err(BootError::invalid(place(), format!("must be true or false, it is {}", other.kind()))),
        };
        match key.as_str() {
            // `content:` with nothing behind it is an empty file.
            "content" | "encoding" | "owner" | "permissions" | "append" | "defer" if value == Node::Null => {}
            "path" => path = Some(text(&value)?),
            "content" => raw = text(&value)?,
            "encoding" => encoding = text(&value)?,
            "owner" => owner = text(&value)?,
            "permissions" => mode = permissions(&value, &place())?,
            "append" => append = flag(&value)?,
            "defer" => late = flag(&value)?,
            "source" => {
                return Err(BootError::invalid(place(), "contents from elsewhere are not fetched; give `content`"));
            }
            _ => return Err(BootError::invalid(place(), "is not a field of a file")),
        }
    }
    let path = path.ok_or_else(|| BootError::invalid(format!("{field}.path"), "is missing"))?;
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") || path.contains('\0') {
        return Err(BootError::invalid(format!("{field}.path"), "must be an absolute path without `..`"));
    }
    let content = decode(raw, encoding.trim(), field)?;
    Ok((Step::WriteFile { path, mode, owner, append, content }, late))
}

/// A string is octal whatever it looks like, a number is taken as it is: `'640'`, `'0640'`, `0640` and `416` are the same mode.
fn permissions(value: &Node, field: &str) -> Result<u32, BootError> {
    let wrong = || BootError::invalid(field, "must be permission bits in octal, such as '0640'");
    let mode = match value {
        Node::Text(text) => {
            let digits = text.trim();
            let digits = digits.strip_prefix("0o").unwrap_or(digits);
            u32::from_str_radix(digits, 8).map_err(|_| wrong())?
        }
        Node::Int(number) => u32::try_from(*number).map_err(|_| wrong())?,
        _ => return Err(wrong()),
    };
    if mode > 0o7777 { Err(wrong()) } else { Ok(mode) }
}

fn decode(raw: String, encoding: &str, field: &str) -> Result<Vec<u8>, BootError> {
    let place = format!("{field}.content");
    match encoding.to_ascii_lowercase().as_str() {
        "" | "text/plain" => Ok(raw.into_bytes()),
        "b64" | "base64" => base64_decode(&raw, &place),
        "gz+b64" | "gz+base64" | "gzip+b64" | "gzip+base64" => gunzip(&base64_decode(&raw, &place)?, &place),
        // Gzip is binary and YAML is text, so this can only be what `!!binary` gave, or base64 by another name.
        "gz" | "gzip" => match base64_decode(&raw, &place) {
            Ok(bytes) => gunzip(&bytes, &place),
            Err(_) => gunzip(raw.as_bytes(), &place),
        },
        _ => Err(BootError::invalid(
            format!("{field}.encoding"),
            "must be text/plain, b64, base64, gz, gzip, gz+b64, gz+base64, gzip+b64 or gzip+base64",
        )),
    }
}

#[cfg(test)]
mod tests;
