//! What counts as a read, by the host's own rules.

use serde::{Deserialize, Serialize};

use crate::request::{Method, percent_decode};

/// How an endpoint is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// GET and HEAD read, everything else changes something.
    #[default]
    Rest,
    /// A POST with a form body and exactly one `Action`; actions that describe, get or list read.
    AwsQuery,
    /// A POST whose `X-Amz-Target` names the action.
    AwsJson,
}

impl Protocol {
    /// Whether a request changes something; the body is the one that is sent, secrets filled in.
    ///
    /// # Errors
    /// Which rule of the protocol the request breaks.
    pub(crate) fn changes(
        self,
        method: Method,
        query: &[(String, String)],
        headers: &[(String, String)],
        body: &[u8],
    ) -> Result<bool, String> {
        if self == Protocol::Rest {
            return Ok(!method.reads());
        }
        if method != Method::Post {
            return Err("this protocol knows POST only".to_owned());
        }
        let target = |name: &str| headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).collect::<Vec<_>>();
        let action = match self {
            Protocol::AwsJson => match target("x-amz-target").as_slice() {
                [(_, value)] => value.rsplit('.').next().unwrap_or_default().to_owned(),
                _ => return Err("exactly one X-Amz-Target must name the action".to_owned()),
            },
            _ => {
                if query.iter().any(|(name, _)| name == "Action") {
                    return Err("Action belongs into the body, not into the query string".to_owned());
                }
                let body = std::str::from_utf8(body).map_err(|_| "the body is not a form".to_owned())?;
                let mut actions = body.split('&').filter_map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (percent_decode(&name.replace('+', " ")) == b"Action").then(|| value.to_owned())
                });
                match (actions.next(), actions.next()) {
                    (Some(one), None) => one,
                    _ => return Err("exactly one Action must be in the body".to_owned()),
                }
            }
        };
        Ok(!["Describe", "Get", "List"].iter().any(|verb| action.starts_with(verb)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(body: &str) -> Result<bool, String> {
        Protocol::AwsQuery.changes(Method::Post, &[], &[], body.as_bytes())
    }

    #[test]
    fn rest_goes_by_the_method() {
        let changes = |method| Protocol::Rest.changes(method, &[], &[], b"").unwrap();
        assert!(!changes(Method::Get) && !changes(Method::Head));
        assert!([Method::Post, Method::Put, Method::Patch, Method::Delete].into_iter().all(changes));
    }

    #[test]
    fn an_aws_action_is_found_where_the_server_finds_it() {
        assert!(!form("Action=DescribeInstances&Version=2016-11-15").unwrap());
        assert!(form("Version=2016-11-15&Action=RunInstances").unwrap());
        assert!(form("Action=DescribeX&Action=RunInstances").is_err());
        assert!(form("Action=DescribeX&%41ction=RunInstances").is_err(), "an escaped name is the same name");
        assert!(form("Version=1").is_err());
        let query = [("Action".to_owned(), "RunInstances".to_owned())];
        assert!(Protocol::AwsQuery.changes(Method::Post, &query, &[], b"Action=DescribeX").is_err());
        assert!(Protocol::AwsQuery.changes(Method::Get, &[], &[], b"Action=DescribeX").is_err());
        let target = |value: &str| [("x-amz-target".to_owned(), value.to_owned())];
        assert!(!Protocol::AwsJson.changes(Method::Post, &[], &target("secretsmanager.ListSecrets"), b"").unwrap());
        assert!(Protocol::AwsJson.changes(Method::Post, &[], &target("secretsmanager.CreateSecret"), b"").unwrap());
        assert!(Protocol::AwsJson.changes(Method::Post, &[], &[], b"").is_err());
    }
}
