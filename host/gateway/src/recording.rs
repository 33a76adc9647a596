//! Exchanges as lines of a file, which answer the same requests again elsewhere.
//!
//! A line holds what the guest asked and what it was told, byte for byte, except that secrets are replaced. A [`Replay`]
//! stands in for endpoints and network: a turn with the same input that asks the same gets the same answers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use capstan_core::turn::Fence;
use serde::{Deserialize, Serialize};

use crate::transport::{Transport, TransportError, WireRequest, WireResponse};
use crate::{Destination, EndpointConfig, Endpoints, Origin};

/// One exchange of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Recorded {
    /// In which call of the contract, such as `create vm`.
    pub call: String,
    /// Name of the endpoint.
    pub endpoint: String,
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Body, with secrets and what is long shown by name and size.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// What came back.
    pub answer: RecordedAnswer,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum RecordedAnswer {
    /// An answer.
    #[serde(rename_all = "camelCase")]
    Response {
        /// Status code.
        status: u16,
        /// Reason phrase.
        status_text: String,
        /// Headers that the guest was shown.
        headers: Vec<(String, String)>,
        /// Body, base64.
        body: String,
    },
    /// Not sent, and why.
    NotSent(String),
    /// Sent without an answer, and why.
    NoAnswer(String),
    /// Larger than this many bytes.
    TooLarge(u64),
}

impl Recorded {
    /// As a line of a recording, without its end.
    pub fn to_line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl RecordedAnswer {
    pub(crate) fn of(answer: &Result<WireResponse, TransportError>) -> Self {
        match answer {
            Ok(response) => RecordedAnswer::Response {
                status: response.status,
                status_text: response.status_text.clone(),
                headers: response.headers.clone(),
                body: BASE64_STANDARD.encode(&response.body),
            },
            Err(TransportError::NotSent(why)) => RecordedAnswer::NotSent(why.clone()),
            Err(TransportError::NoAnswer(why)) => RecordedAnswer::NoAnswer(why.clone()),
            Err(TransportError::TooLarge(max)) => RecordedAnswer::TooLarge(*max),
        }
    }

    fn into_answer(self) -> Result<WireResponse, TransportError> {
        match self {
            RecordedAnswer::Response { status, status_text, headers, body } => {
                let body = BASE64_STANDARD
                    .decode(body)
                    .map_err(|_| TransportError::NotSent("the recording has a body that is no base64".to_owned()))?;
                Ok(WireResponse { status, status_text, headers, body: body.into() })
            }
            RecordedAnswer::NotSent(why) => Err(TransportError::NotSent(why)),
            RecordedAnswer::NoAnswer(why) => Err(TransportError::NoAnswer(why)),
            RecordedAnswer::TooLarge(max) => Err(TransportError::TooLarge(max)),
        }
    }
}

/// Endpoint, method and target of a request.
type Asked = (String, String, String);

/// Answers from a recording: those of equal requests in the order in which they came.
#[derive(Debug, Default)]
pub struct Replay(Mutex<HashMap<Asked, VecDeque<RecordedAnswer>>>);

impl Replay {
    /// Reads a recording.
    ///
    /// # Errors
    /// Which line is none of a recording.
    pub fn read(text: &str) -> Result<Self, String> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let recorded = lines.map(|(number, line)| {
            serde_json::from_str(line).map_err(|error| format!("line {} of the recording: {error}", number + 1))
        });
        Ok(Self::of(recorded.collect::<Result<Vec<_>, _>>()?))
    }

    /// From exchanges in their order.
    pub fn of(recorded: impl IntoIterator<Item = Recorded>) -> Self {
        let mut answers: HashMap<Asked, VecDeque<RecordedAnswer>> = HashMap::new();
        for one in recorded {
            answers.entry((one.endpoint, one.method, one.target)).or_default().push_back(one.answer);
        }
        Self(Mutex::new(answers))
    }

    /// How many answers nobody has asked for.
    pub fn left(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().map(VecDeque::len).sum()
    }
}

impl Endpoints for Replay {
    fn endpoint(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(Some(Destination::of(Origin::parse("http://recording.invalid")?)))
    }
    fn module_default(&self, _: &str, _: &str) -> Result<Option<Destination>, String> {
        Ok(None)
    }
}

#[async_trait]
impl Transport for Replay {
    async fn exchange(
        &self,
        endpoint: &EndpointConfig,
        request: WireRequest,
        _fence: Option<&Fence>,
    ) -> Result<WireResponse, TransportError> {
        let asked = (endpoint.name.clone(), request.method.to_string(), request.target.clone());
        let next = {
            let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            answers.get_mut(&asked).and_then(VecDeque::pop_front)
        };
        match next {
            Some(answer) => answer.into_answer(),
            None => Err(TransportError::NotSent(format!(
                "the recording has no (further) answer to {} {} of endpoint {}",
                request.method, request.target, endpoint.name
            ))),
        }
    }
}
