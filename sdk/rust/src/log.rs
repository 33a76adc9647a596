//! Lines for the host's log, which adds provider, object and turn. Never put secrets there; a provider has none.

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

/// A line with fields.
pub fn log(level: Level, message: &str, fields: &[(&str, &str)]) {
    crate::host::log(level, message, fields);
}
