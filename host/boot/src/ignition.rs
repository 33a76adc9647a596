//! Ignition configs of version 2 and 3: files, and systemd units that run once.

use serde_json::Value;

use crate::{Boot, BootError, Step, base64_decode, gunzip, quote};

pub(crate) fn read(text: &str) -> Result<Boot, BootError> {
    let root: Value = serde_json::from_str(text).map_err(|error| BootError::Syntax {
        line: error.line() as u64,
        column: error.column() as u64,
        reason: "it is not well-formed JSON".to_owned(),
    })?;
    let version = root.pointer("/ignition/version").and_then(Value::as_str).ok_or_else(|| {
        BootError::NotThisFormat { expected: "an Ignition config", found: "ignition.version is missing".to_owned() }
    })?;
    if !version.starts_with("2.") && !version.starts_with("3.") {
        return Err(BootError::invalid("ignition.version", "must be 2.x or 3.x"));
    }

    let mut ignored = Vec::new();
    for (key, value) in root.as_object().into_iter().flatten() {
        match key.as_str() {
            "storage" | "systemd" => {}
            "ignition" => {
                // `config` merges or replaces this document by another one, so leaving it out would be another machine.
                if value.get("config").is_some_and(|config| !is_empty(config)) {
                    return Err(BootError::invalid("ignition.config", "other configs are not fetched"));
                }
            }
            _ if is_empty(value) => {}
            _ => ignored.push(key.clone()),
        }
    }
    let mut steps = Vec::new();
    for (key, value) in root.get("storage").and_then(Value::as_object).into_iter().flatten() {
        match key.as_str() {
            "files" => {
                for (index, file) in value.as_array().into_iter().flatten().enumerate() {
                    write_file(&format!("storage.files[{index}]"), file, &mut steps)?;
                }
            }
            _ if is_empty(value) => {}
            _ => ignored.push(format!("storage.{key}")),
        }
    }
    for (index, unit) in root.pointer("/systemd/units").and_then(Value::as_array).into_iter().flatten().enumerate() {
        let name = unit.get("name").and_then(Value::as_str).map_or_else(|| index.to_string(), str::to_owned);
        match oneshot(unit) {
            Some(lines) => steps.extend(lines.into_iter().map(Step::Run)),
            None => ignored.push(format!("systemd.units[{name}]")),
        }
    }
    Ok(Boot { steps, ignored })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.values().all(is_empty),
        _ => false,
    }
}

fn write_file(field: &str, file: &Value, steps: &mut Vec<Step>) -> Result<(), BootError> {
    let path = file.get("path").and_then(Value::as_str).unwrap_or_default();
    if !path.starts_with('/') || path.split('/').any(|part| part == "..") || path.contains('\0') {
        return Err(BootError::invalid(format!("{field}.path"), "must be an absolute path without `..`"));
    }
    let mode = match file.get("mode") {
        None | Some(Value::Null) => 0o644,
        Some(mode) => {
            mode.as_u64().and_then(|mode| u32::try_from(mode).ok()).filter(|mode| *mode <= 0o7777).ok_or_else(|| {
                BootError::invalid(format!("{field}.mode"), "must be permission bits as a decimal number")
            })?
        }
    };
    let owner = format!("{}:{}", principal(file.get("user")), principal(file.get("group")));
    // Version 2 appends by a flag, version 3 by a list of contents.
    let (append_flag, appended) = match file.get("append") {
        Some(Value::Bool(flag)) => (*flag, &[][..]),
        Some(Value::Array(items)) => (false, items.as_slice()),
        _ => (false, &[][..]),
    };
    let step = |append, content| Step::WriteFile { path: path.to_owned(), mode, owner: owner.clone(), append, content };
    if let Some(contents) = file.get("contents").filter(|contents| !is_empty(contents)) {
        steps.push(step(append_flag, source(contents, &format!("{field}.contents"))?));
    } else if appended.is_empty() {
        steps.push(step(append_flag, Vec::new()));
    }
    for (index, contents) in appended.iter().enumerate() {
        steps.push(step(true, source(contents, &format!("{field}.append[{index}]"))?));
    }
    Ok(())
}

fn principal(value: Option<&Value>) -> String {
    let name = value.and_then(|v| v.get("name")).and_then(Value::as_str);
    let id = value.and_then(|v| v.get("id")).and_then(Value::as_u64);
    match (name, id) {
        (Some(name), _) => name.to_owned(),
        (None, Some(id)) => id.to_string(),
        (None, None) => "root".to_owned(),
    }
}

/// Contents are `data:` URLs (RFC 2397); others would have to be fetched.
fn source(contents: &Value, field: &str) -> Result<Vec<u8>, BootError> {
    let url = contents.get("source").and_then(Value::as_str).unwrap_or_default();
    let bytes = if url.is_empty() {
        Vec::new()
    } else {
        let rest = url.strip_prefix("data:").ok_or_else(|| {
            BootError::invalid(format!("{field}.source"), "must be a data: URL; others are not fetched")
        })?;
        let (kind, payload) = rest
            .split_once(',')
            .ok_or_else(|| BootError::invalid(format!("{field}.source"), "is a data: URL without a comma"))?;
        let plain = percent_decode(payload, field)?;
        if kind.ends_with(";base64") {
            let text =
                String::from_utf8(plain).map_err(|_| BootError::invalid(field, "is marked as base64, but is not"))?;
            base64_decode(&text, field)?
        } else {
            plain
        }
    };
    match contents.get("compression").and_then(Value::as_str) {
        None | Some("") => Ok(bytes),
        Some("gzip") => gunzip(&bytes, field),
        Some(_) => Err(BootError::invalid(format!("{field}.compression"), "must be gzip or nothing")),
    }
}

fn percent_decode(text: &str, field: &str) -> Result<Vec<u8>, BootError> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| (b as char).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => return Err(BootError::invalid(field, "has a % that no two hexadecimal digits follow")),
        }
    }
    Ok(out)
}

/// The command lines of an enabled unit of type oneshot. Conditions and dependencies are not looked at: these units run once, in
/// the order of the document. None for other units.
fn oneshot(unit: &Value) -> Option<Vec<String>> {
    let enabled = unit.get("enabled").or_else(|| unit.get("enable")).and_then(Value::as_bool).unwrap_or(false);
    let text = unit.get("contents").and_then(Value::as_str)?;
    let value = |line: &str, key: &str| {
        line.strip_prefix(key).and_then(|l| l.trim_start().strip_prefix('=')).map(|v| v.trim().to_owned())
    };
    let is_oneshot = text.lines().any(|line| value(line.trim(), "Type").as_deref() == Some("oneshot"));
    if !enabled || !is_oneshot {
        return None;
    }
    let mut commands = Vec::new();
    for line in text.lines() {
        if let Some(command) = value(line.trim(), "ExecStart") {
            // systemd's prefixes: `-` lets a failure pass, the others concern privileges.
            let bare = command.trim_start_matches(['@', '+', '!', ':', '-', '|']);
            commands.push(if command.starts_with('-') {
                format!("sh -c {} || true", quote(bare))
            } else {
                bare.to_owned()
            });
        }
    }
    Some(commands)
}

#[cfg(test)]
mod tests;
