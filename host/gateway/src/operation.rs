//! Methods and paths by pattern: which reads use POST, and beyond what an endpoint sends nothing.

use serde::{Deserialize, Serialize};

use crate::request::Method;

/// A read that uses POST, such as a search.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ReadOperation {
    /// `POST`.
    pub method: String,
    /// The path; a segment `*` stands for any one segment.
    pub path: String,
}

impl ReadOperation {
    /// Whether a manifest may have it.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn check(&self) -> Result<(), String> {
        if self.method != "POST" {
            return Err(format!("{} is no method of a read operation; it is POST", self.method));
        }
        if !self.path.starts_with('/') || self.path.contains("**") || self.path.contains(['?', '#', '%']) {
            return Err(format!("{:?} is no path such as /v1/*/search", self.path));
        }
        Ok(())
    }

    /// Whether a request is this operation.
    pub(crate) fn is(&self, method: Method, path: &str) -> bool {
        self.method == method.as_str() && matches(&self.path, path)
    }
}

/// What an Endpoint is narrowed to; an empty list narrows nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Narrowed {
    /// Methods, in upper case.
    pub methods: Vec<String>,
    /// Paths: `*` stands for any one segment, and `**` at the end for any that follow.
    pub paths: Vec<String>,
}

impl Narrowed {
    /// Whether a request may be sent.
    ///
    /// # Errors
    /// Which list it is not on.
    pub(crate) fn check(&self, method: Method, path: &str) -> Result<(), String> {
        if !self.methods.is_empty() && !self.methods.iter().any(|m| m == method.as_str()) {
            return Err(format!("the Endpoint allows {} only, not {method}", self.methods.join(", ")));
        }
        if !self.paths.is_empty() && !self.paths.iter().any(|pattern| matches(pattern, path)) {
            return Err(format!("the Endpoint does not allow the path {path}"));
        }
        Ok(())
    }
}

/// A segment of a path never reaches into another: one with an encoded slash matches only itself.
fn matches(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    for wanted in pattern.split('/') {
        if wanted == "**" {
            return segments.next().is_some_and(|segment| plain(segment) && segments.all(plain));
        }
        match segments.next() {
            Some(segment) if wanted == segment || (wanted == "*" && !segment.is_empty() && plain(segment)) => {}
            _ => return false,
        }
    }
    segments.next().is_none()
}

fn plain(segment: &str) -> bool {
    let lower = segment.to_ascii_lowercase();
    !["%2f", "%5c", "%00", "%3f", "%23"].iter().any(|hidden| lower.contains(hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        for (pattern, path, expected) in [
            ("/v1/search", "/v1/search", true),
            ("/v1/search", "/v1/search/x", false),
            ("/v1/search", "/v1/searches", false),
            ("/v1/*/search", "/v1/a/search", true),
            ("/v1/*/search", "/v1//search", false),
            ("/v1/*/search", "/v1/a/b/search", false),
            ("/v1/*/search", "/v1/a%2F..%2Fdelete/search", false),
            ("/v1/*/search", "/v1/a%5cb/search", false),
            ("/api/**", "/api/x/y", true),
            ("/api/**", "/api", false),
            ("/api/**", "/apix/y", false),
            ("/api/**", "/api/x%2F..%2F..%2Fadmin", false),
            ("/**", "/anything/at/all", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn an_endpoint_is_narrowed_to_methods_and_paths() {
        let narrowed = Narrowed { methods: vec!["GET".into()], paths: vec!["/api/**".into()] };
        assert!(narrowed.check(Method::Get, "/api/a").is_ok());
        assert!(narrowed.check(Method::Post, "/api/a").unwrap_err().contains("GET only"));
        assert!(narrowed.check(Method::Get, "/admin").unwrap_err().contains("/admin"));
        assert!(Narrowed::default().check(Method::Delete, "/x").is_ok());
    }

    #[test]
    fn a_read_operation_is_a_post() {
        let read = |method: &str, path: &str| ReadOperation { method: method.into(), path: path.into() };
        assert!(read("POST", "/search").check().is_ok());
        for bad in [read("DELETE", "/x"), read("POST", "x"), read("POST", "/**"), read("POST", "/a%2fb")] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(read("POST", "/search").is(Method::Post, "/search"));
        assert!(!read("POST", "/search").is(Method::Delete, "/search"));
    }
}
