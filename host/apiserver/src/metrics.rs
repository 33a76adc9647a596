//! How many requests were answered, and how.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What is counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestLabels {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `apply`, `delete`, `deletecollection`; a lower-case HTTP method elsewhere.
    pub verb: &'static str,
    /// The API group; empty for the core group and for paths that are no resource.
    pub group: String,
    /// The plural name; empty for paths that are no resource.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The HTTP status.
    pub code: u16,
}

/// The counters of one server.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: Mutex<BTreeMap<RequestLabels, u64>>,
    changing: AtomicU64,
}

impl Metrics {
    pub fn count(&self, labels: RequestLabels) {
        let changing = matches!(labels.verb, "create" | "update" | "patch" | "apply" | "delete" | "deletecollection");
        if changing && (labels.code / 100 == 2 || labels.code == 409) {
            self.changing.fetch_add(1, Ordering::Relaxed);
        }
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(labels).or_default() += 1;
    }

    pub fn changing(&self) -> u64 {
        self.changing.load(Ordering::Relaxed)
    }

    pub fn counts(&self) -> BTreeMap<RequestLabels, u64> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The Prometheus text form, with verbs spelled as kube-apiserver does: the HTTP method, but LIST, WATCH, APPLY and
    /// DELETECOLLECTION for what a method alone does not tell.
    pub fn text(&self) -> String {
        let mut out = String::from(
            "# HELP apiserver_request_total Requests answered, by verb, resource and HTTP status.\n# TYPE apiserver_request_total counter\n",
        );
        for (labels, count) in self.counts() {
            // Names come from discovered resources, so none has a character that needs escaping.
            let RequestLabels { verb, group, resource, subresource, code } = labels;
            let verb = match verb {
                "create" => String::from("POST"),
                "update" => String::from("PUT"),
                other => other.to_ascii_uppercase(),
            };
            let _ = writeln!(
                out,
                "apiserver_request_total{{code=\"{code}\",group=\"{group}\",resource=\"{resource}\",subresource=\"{subresource}\",verb=\"{verb}\"}} {count}"
            );
        }
        out
    }
}
