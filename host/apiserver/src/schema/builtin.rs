//! Built-in kinds.
use super::Schema;

/// A built-in kind.
pub struct BuiltinKind {
    /// The group (`""` for core).
    pub group: &'static str,
    /// The version.
    pub version: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The plural name.
    pub plural: &'static str,
    /// The singular name.
    pub singular: &'static str,
    /// The short names.
    pub short_names: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// The subresources.
    pub subresources: &'static [&'static str],
    /// The schema, compiled on first use.
    pub schema: fn() -> Schema,
}

/// All built-in kinds.
pub fn builtins() -> &'static [BuiltinKind] {
    &[]
}
