//! Takes secrets out of what is shown: as they are, and as bodies, URLs and JSON carry them.

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;

use crate::request::percent_encode;

/// Shorter secrets are not searched for: they would be found everywhere.
const SHORTEST: usize = 4;
/// A line of a secret is a secret of its own when it is this long.
const SHORTEST_LINE: usize = 12;

/// What is searched for and what stands for it, longest first.
#[derive(Default)]
pub(crate) struct Redactor(Vec<(Vec<u8>, String)>);

impl Redactor {
    /// Also hides this secret.
    pub(crate) fn hide(&mut self, label: &str, secret: &[u8]) {
        if secret.len() < SHORTEST {
            return;
        }
        let shown = format!("<secret:{label}>");
        let mut add = |needle: &[u8]| {
            if needle.len() >= SHORTEST && !self.0.iter().any(|(known, _)| known == needle) {
                self.0.push((needle.to_vec(), shown.clone()));
            }
        };
        let mut each = |bytes: &[u8]| {
            add(bytes);
            add(BASE64_STANDARD.encode(bytes).as_bytes());
            add(BASE64_STANDARD_NO_PAD.encode(bytes).as_bytes());
            add(BASE64_URL_SAFE_NO_PAD.encode(bytes).as_bytes());
            if let Ok(text) = std::str::from_utf8(bytes) {
                let mut encoded = String::new();
                percent_encode(text, &mut encoded);
                add(encoded.as_bytes());
                add(encoded.replace("%20", "+").as_bytes());
                let quoted = serde_json::Value::from(text).to_string();
                add(quoted.trim_start_matches('"').trim_end_matches('"').as_bytes());
            }
        };
        each(secret);
        if let Ok(text) = std::str::from_utf8(secret)
            && text.contains('\n')
        {
            text.lines()
                .map(str::trim)
                .filter(|line| line.len() >= SHORTEST_LINE)
                .for_each(|line| each(line.as_bytes()));
        }
        self.0.sort_by_key(|(needle, _)| std::cmp::Reverse(needle.len()));
    }

    /// Whether there is anything to hide.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The length of the longest that is searched for, in bytes.
    pub(crate) fn longest(&self) -> usize {
        self.0.first().map_or(0, |(needle, _)| needle.len())
    }

    /// The text without secrets.
    pub(crate) fn text(&self, text: &str) -> String {
        match self.bytes(text.as_bytes()) {
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            None => text.to_owned(),
        }
    }

    /// The bytes without secrets; `None` when there are none in them.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Option<Bytes> {
        let mut redacted: Option<Vec<u8>> = None;
        for (needle, shown) in &self.0 {
            let from = redacted.as_deref().unwrap_or(bytes);
            if let Some(replaced) = replace(from, needle, shown.as_bytes()) {
                redacted = Some(replaced);
            }
        }
        redacted.map(Bytes::from)
    }
}

fn replace(bytes: &[u8], needle: &[u8], with: &[u8]) -> Option<Vec<u8>> {
    let first = *needle.first()?;
    let mut out = Vec::new();
    let (mut at, mut copied) = (0, 0);
    while let Some(offset) = bytes.get(at..)?.iter().position(|byte| *byte == first) {
        at += offset;
        if bytes.get(at..).is_some_and(|rest| rest.starts_with(needle)) {
            out.extend_from_slice(bytes.get(copied..at)?);
            out.extend_from_slice(with);
            at += needle.len();
            copied = at;
        } else {
            at += 1;
        }
    }
    if copied == 0 {
        return None;
    }
    out.extend_from_slice(bytes.get(copied..)?);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_its_usual_clothes() {
        let mut redactor = Redactor::default();
        redactor.hide("pw", b"hunter \"2\"/x");
        let quoted = serde_json::json!({"a": "hunter \"2\"/x"}).to_string();
        for text in [
            "say hunter \"2\"/x twice hunter \"2\"/x",
            quoted.as_str(),
            "?p=hunter%20%222%22%2Fx",
            "p=hunter+%222%22%2Fx",
            &BASE64_STANDARD.encode("hunter \"2\"/x"),
        ] {
            let shown = redactor.text(text);
            assert!(shown.contains("<secret:pw>") && !shown.contains("hunter"), "{text}: {shown}");
        }
        assert_eq!(redactor.text("nothing here"), "nothing here");
        assert!(redactor.bytes(b"nothing here").is_none());
    }

    #[test]
    fn lines_of_a_secret_are_secrets() {
        let mut redactor = Redactor::default();
        redactor.hide("boot", b"#cloud\ntoken: abcdef.0123456789abcdef\n");
        let shown = redactor.text("line 2: token: abcdef.0123456789abcdef is wrong");
        assert_eq!(shown, "line 2: <secret:boot> is wrong");
        let mut none = Redactor::default();
        none.hide("short", b"abc");
        assert!(none.is_empty());
    }
}
