//! The protocols of AWS: query requests that are answered in XML, JSON requests that a header names, and what their errors mean.
//!
//! ```ignore
//! let answer = aws::query("ec2", "2016-11-15", "DescribeVpcs").set("VpcId.1", id).max_age(15_000).send()?;
//! match answer {
//!     Ok(xml) => xml.all("vpcSet/item")…
//!     Err(fault) if fault.is("InvalidVpcID.NotFound") => …absent…
//!     Err(fault) => return Err(fault.error()),
//! }
//! ```
//!
//! What has no answer at all is an [`Error`] like everywhere else; an answer that says no is a [`Fault`], because what it means
//! depends on what was asked. Signing is the host's.

use serde_json::Value;

use crate::{
    Chunk, Error, Reason, Result, Secret, Violation,
    http::{self, Request, Response},
    secrets::Encoding,
    xml::Element,
};

/// A query request that is being put together.
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is sent"]
pub struct Query {
    endpoint: String,
    action: String,
    body: Vec<Chunk>,
    max_age: Option<u64>,
}

/// A query request; `version` is that of the service's API.
pub fn query(endpoint: &str, version: &str, action: &str) -> Query {
    let body = vec![format!("Action={action}&Version={version}").into()];
    Query { endpoint: endpoint.to_owned(), action: action.to_owned(), body, max_age: None }
}

impl Query {
    fn push(&mut self, text: &str) {
        match self.body.last_mut() {
            Some(Chunk::Bytes(bytes)) => bytes.extend_from_slice(text.as_bytes()),
            _ => self.body.push(text.into()),
        }
    }

    /// A parameter.
    pub fn set(mut self, name: &str, value: impl AsRef<str>) -> Self {
        let mut field = "&".to_owned();
        http::percent_encode(&mut field, name);
        field.push('=');
        http::percent_encode(&mut field, value.as_ref());
        // As forms have it, and as every client of AWS writes it: some servers sign what they would have written.
        self.push(&field.replace("%20", "+"));
        self
    }

    /// A parameter, where there is a value.
    pub fn set_some(self, name: &str, value: Option<impl AsRef<str>>) -> Self {
        match value {
            Some(value) => self.set(name, value),
            None => self,
        }
    }

    /// A list: `name` ends with the dot that the numbers follow (`VpcId.`, `Subnets.member.`).
    pub fn list<T: AsRef<str>>(mut self, name: &str, values: impl IntoIterator<Item = T>) -> Self {
        for (index, value) in values.into_iter().enumerate() {
            self = self.set(&format!("{name}{}", index + 1), value);
        }
        self
    }

    /// `Filter.n`, one value each.
    pub fn filters<N: AsRef<str>, V: AsRef<str>>(mut self, filters: &[(N, V)]) -> Self {
        for (index, (name, value)) in filters.iter().enumerate() {
            let at = format!("Filter.{}", index + 1);
            self = self.set(&format!("{at}.Name"), name).set(&format!("{at}.Value.1"), value);
        }
        self
    }

    /// A parameter that is a secret, in base64 as binary parameters are sent.
    pub fn set_secret(mut self, name: &str, secret: &Secret) -> Self {
        self.push(&format!("&{name}="));
        self.body.push(secret.encode(&[Encoding::Base64, Encoding::FormUrlencoded]).into());
        self
    }

    /// A shared answer to the same read may be this old (ms).
    pub fn max_age(mut self, milliseconds: u64) -> Self {
        self.max_age = Some(milliseconds);
        self
    }

    /// The action, for messages.
    pub fn action(&self) -> &str {
        &self.action
    }

    fn request(self) -> Request {
        let request =
            http::post(&self.endpoint, "/", &[]).body("application/x-www-form-urlencoded; charset=utf-8", self.body);
        Request { max_age: self.max_age, ..request }
    }

    /// Sends it.
    ///
    /// # Errors
    /// Where there is no answer, or none that can be read.
    pub fn send(self) -> Result<std::result::Result<Element, Fault>> {
        let action = self.action.clone();
        read(&self.request().send()?, &action)
    }

    /// Sends it; anything but success is the error that the host should act on.
    ///
    /// # Errors
    /// As [`Fault::error`] says.
    pub fn ok(self) -> Result<Element> {
        self.send()?.map_err(|fault| fault.error())
    }
}

/// Reads side by side; answers in the order of the requests.
pub fn read_all(queries: Vec<Query>) -> Vec<Result<std::result::Result<Element, Fault>>> {
    let actions: Vec<String> = queries.iter().map(|query| query.action.clone()).collect();
    http::read_all(queries.into_iter().map(Query::request).collect())
        .into_iter()
        .zip(actions)
        .map(|(answer, action)| read(&answer?, &action))
        .collect()
}

fn read(answer: &Response, action: &str) -> Result<std::result::Result<Element, Fault>> {
    if answer.is_success() { Element::parse(&answer.body).map(Ok) } else { Ok(Err(Fault::of(answer, action))) }
}

/// A JSON request; `target` is the value of `X-Amz-Target`, such as `secretsmanager.CreateSecret`.
pub fn json(endpoint: &str, target: &str, body: &Value) -> Result<Request> {
    json_with_secrets(endpoint, target, body, &[])
}

/// A JSON request in which some strings are secrets; see [`Request::json_with_secrets`].
pub fn json_with_secrets(endpoint: &str, target: &str, body: &Value, secrets: &[(&str, &Secret)]) -> Result<Request> {
    let mut request = http::post(endpoint, "/", &[]).header("x-amz-target", target).json_with_secrets(body, secrets)?;
    for (name, value) in &mut request.headers {
        if name == "content-type" {
            "application/x-amz-json-1.1".clone_into(value);
        }
    }
    Ok(request)
}

/// An answer that says no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The status.
    pub status: u16,
    /// AWS's own code, such as `InvalidVpcID.NotFound`; empty where the answer has none.
    pub code: String,
    /// What was asked, and what AWS says.
    pub message: String,
    retry_after: Option<u64>,
}

const THROTTLED: [&str; 10] = [
    "RequestLimitExceeded",
    "EC2ThrottledException",
    "TooManyRequestsException",
    "ProvisionedThroughputExceededException",
    "BandwidthLimitExceeded",
    "PriorRequestNotComplete",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "TransactionInProgressException",
];

/// The keys are wrong, or no longer good.
const REFUSED: [&str; 13] = [
    "AuthFailure",
    "InvalidClientTokenId",
    "ExpiredToken",
    "ExpiredTokenException",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "IncompleteSignature",
    "MissingAuthenticationToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "RequestExpired",
    "OptInRequired",
    "InvalidSecurity",
];

/// The keys are good, and what was asked for is not for them.
const DENIED: [&str; 4] = ["UnauthorizedOperation", "AccessDenied", "AccessDeniedException", "NotAuthorized"];

/// Not now, and perhaps later without anybody's doing.
const LATER: [&str; 12] = [
    "DependencyViolation",
    "IncorrectState",
    "IncorrectInstanceState",
    "ResourceInUse",
    "ResourceInUseException",
    "OperationNotPermitted",
    "InternalError",
    "InternalFailure",
    "InternalServiceError",
    "Unavailable",
    "ServiceUnavailable",
    "OperationAborted",
];

/// Somebody else has what is wanted, or there is none of it for the time being.
const TAKEN: [&str; 12] = [
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientAddressCapacity",
    "InsufficientCapacity",
    "IdempotentParameterMismatch",
    "IdempotentInstanceTerminated",
    "MaxSpotInstanceCountExceeded",
    "BucketAlreadyExists",
    "ResourceExistsException",
];

impl Fault {
    /// The fault of an answer that is no success.
    pub fn of(answer: &Response, action: &str) -> Self {
        let (code, said) = told(answer);
        let said = if said.is_empty() { answer.message() } else { said };
        let retry_after = answer.header("retry-after").and_then(|text| text.trim().parse::<u64>().ok());
        let words = if code.is_empty() { said } else { format!("{code}: {said}") };
        Self {
            status: answer.status,
            code,
            message: format!("{action}: {} {words}", answer.status),
            retry_after: retry_after.map(|seconds| seconds.saturating_mul(1_000)),
        }
    }

    /// It is this one.
    pub fn is(&self, code: &str) -> bool {
        self.code == code
    }

    /// What was named is not there.
    pub fn is_missing(&self) -> bool {
        let code = self.code.trim_end_matches("Exception");
        code.ends_with("NotFound")
            || code.ends_with(".Unknown")
            || self.code == "NoSuchBucket"
            || self.code == "NoSuchKey"
    }

    /// The error that the host should act on.
    pub fn error(&self) -> Error {
        self.error_at(&[])
    }

    /// The same, where the caller knows which field a code blames: beginnings of codes, and JSON pointers.
    pub fn error_at(&self, fields: &[(&str, &str)]) -> Error {
        let reason = || {
            let code: String = self.code.chars().filter(char::is_ascii_alphanumeric).collect();
            Reason::new(if code.is_empty() { "RemoteError" } else { &code }, &self.message)
        };
        let code = self.code.as_str();
        if THROTTLED.contains(&code) || code.starts_with("Throttling") || code == "ThrottledException" {
            return Error::Throttled(self.retry_after);
        }
        let hinted = |hint: &str| Error::Unauthorized(Reason::new(reason().code, format!("{}: {hint}", self.message)));
        if REFUSED.contains(&code) || matches!(self.status, 401 | 403) && code.is_empty() {
            return hinted("check that the keys in the credential's Secret are right, active and not expired");
        }
        if DENIED.contains(&code) {
            return hinted("give the user or role of the credential the right to do this");
        }
        if TAKEN.contains(&code)
            || code.starts_with("TooMany")
            || code.ends_with("LimitExceeded")
            || code.ends_with("LimitExceededException")
        {
            return Error::Conflict(reason());
        }
        if let Some((_, field)) = fields.iter().find(|(start, _)| code.starts_with(start)) {
            return Error::Invalid(vec![Violation::new(*field, &self.message)]);
        }
        if self.status == 429 || (self.status == 503 && self.retry_after.is_some()) {
            return Error::Throttled(self.retry_after);
        }
        if self.status >= 500 || self.is_missing() || LATER.contains(&code) {
            return Error::Transient(reason());
        }
        if code.contains("Duplicate") || code.ends_with("AlreadyExists") || matches!(self.status, 409 | 412) {
            return Error::Conflict(reason());
        }
        let wrong = ["Invalid", "Missing", "Malformed", "Unsupported", "Unknown", "Validation"];
        if wrong.iter().any(|start| code.starts_with(start)) {
            return Error::Invalid(vec![Violation::new("/spec", &self.message)]);
        }
        Error::Transient(reason())
    }
}

/// Code and message of an answer: EC2's form, that of the other query services and S3, or JSON's.
fn told(answer: &Response) -> (String, String) {
    if let Ok(body) = serde_json::from_slice::<Value>(&answer.body) {
        let text = |names: &[&str]| {
            let found = names.iter().find_map(|name| body.get(*name)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        let kind = text(&["__type", "code"]);
        let code = kind.rsplit('#').next().and_then(|kind| kind.split(':').next()).unwrap_or_default();
        return (code.to_owned(), text(&["message", "Message"]));
    }
    let Ok(root) = Element::parse(&answer.body) else { return Default::default() };
    let error = ["Errors/Error", "Error"].iter().find_map(|path| root.at(path)).unwrap_or(&root);
    (error.text("Code").to_owned(), error.text("Message").to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{Scenario, secret};

    fn fault(status: u16, body: &str) -> Fault {
        let (fault, _) = Scenario::new("K", json!({}))
            .answer_bytes("POST /", status, body.as_bytes().to_vec())
            .run(|| query("ec2", "1", "DescribeVpcs").send());
        fault.unwrap().unwrap_err()
    }

    fn coded(code: &str) -> Fault {
        fault(
            400,
            &format!("<Response><Errors><Error><Code>{code}</Code><Message>m</Message></Error></Errors></Response>"),
        )
    }

    #[test]
    fn a_query_is_a_form() {
        let (answer, sent) =
            Scenario::new("K", json!({})).answer_bytes("POST /", 200, b"<R><a>1</a></R>".to_vec()).run(|| {
                query("ec2", "2016-11-15", "RunInstances")
                    .set("ImageId", "ami 1&")
                    .set_some("KeyName", None::<&str>)
                    .list("SecurityGroupId.", ["sg-1", "sg-2"])
                    .filters(&[("tag:a/b", "ü")])
                    .set_secret("UserData", &secret("\u{3e}\u{3f}"))
                    .set("MinCount", "1")
                    .ok()
            });
        assert_eq!(answer.unwrap().text("a"), "1");
        assert_eq!(
            String::from_utf8_lossy(&sent[0].body),
            "Action=RunInstances&Version=2016-11-15&ImageId=ami+1%26&SecurityGroupId.1=sg-1&SecurityGroupId.2=sg-2\
             &Filter.1.Name=tag%3Aa%2Fb&Filter.1.Value.1=%C3%BC&UserData=Pj8%3D&MinCount=1"
        );
        assert_eq!(sent[0].endpoint, "ec2");
        let form = "application/x-www-form-urlencoded; charset=utf-8".to_owned();
        assert_eq!(sent[0].headers, [("content-type".to_owned(), form)]);
    }

    #[test]
    fn a_json_request_names_its_target() {
        let (answer, sent) = Scenario::new("K", json!({})).answer("POST /", 200, json!({})).run(|| {
            json_with_secrets(
                "sm",
                "secretsmanager.CreateSecret",
                &json!({"SecretBinary": "?"}),
                &[("/SecretBinary", &secret("x"))],
            )?
            .ok()
        });
        assert!(answer.is_ok());
        assert_eq!(sent[0].json(), json!({"SecretBinary": "x"}));
        let headers: Vec<_> = sent[0].headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            headers,
            [("x-amz-target", "secretsmanager.CreateSecret"), ("content-type", "application/x-amz-json-1.1")]
        );
    }

    #[test]
    fn the_forms_of_a_refusal() {
        let elb = "<ErrorResponse><Error><Code>LoadBalancerNotFound</Code><Message>m</Message></Error></ErrorResponse>";
        assert_eq!(fault(400, elb).code, "LoadBalancerNotFound");
        assert!(fault(400, elb).is_missing());
        let s3 = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>gone</Message></Error>";
        assert_eq!(fault(404, s3).message, "DescribeVpcs: 404 NoSuchKey: gone");
        let json = fault(400, r#"{"__type": "com.amazonaws#ResourceNotFoundException:http://x", "message": "m"}"#);
        assert_eq!(json.code, "ResourceNotFoundException");
        assert!(json.is_missing());
        let html = fault(500, "<!doctype html><p>oops");
        assert_eq!((html.code.as_str(), html.status), ("", 500));
        assert!(matches!(html.error(), Error::Transient(_)), "{html:?}");
    }

    #[test]
    fn codes_choose_the_next_step() {
        for code in ["RequestLimitExceeded", "EC2ThrottledException", "Throttling", "ThrottlingException", "SlowDown"] {
            assert_eq!(coded(code).error(), Error::Throttled(None), "{code}");
        }
        for code in ["AuthFailure", "InvalidClientTokenId", "ExpiredToken", "UnauthorizedOperation", "AccessDenied"] {
            let hint = if code.contains("nauthorized") || code.contains("Denied") { "the right" } else { "the keys" };
            assert!(matches!(coded(code).error(), Error::Unauthorized(why) if why.message.contains(hint)), "{code}");
        }
        for code in
            ["InsufficientInstanceCapacity", "VcpuLimitExceeded", "TooManyLoadBalancers", "InvalidGroup.Duplicate"]
        {
            assert!(matches!(coded(code).error(), Error::Conflict(_)), "{code}");
        }
        for code in ["DependencyViolation", "IncorrectState", "InvalidVpcID.NotFound", "InternalError", "SomethingNew"]
        {
            assert!(matches!(coded(code).error(), Error::Transient(_)), "{code}");
        }
        for code in
            ["InvalidParameterValue", "InvalidAMIID.Malformed", "Unsupported", "MissingParameter", "ValidationError"]
        {
            assert!(matches!(coded(code).error(), Error::Invalid(_)), "{code}");
        }
        let error = coded("InvalidAMIID.NotFound").error_at(&[("InvalidAMIID", "/spec/ami/id")]);
        assert_eq!(error, Error::invalid("/spec/ami/id", "DescribeVpcs: 400 InvalidAMIID.NotFound: m"));
        let (slow, _) = Scenario::new("K", json!({}))
            .answer_bytes("POST /", 503, b"<R><Errors><Error><Code>Unavailable</Code></Error></Errors></R>".to_vec())
            .run(|| query("ec2", "1", "X").ok());
        assert!(matches!(slow, Err(Error::Transient(_))));
    }
}
