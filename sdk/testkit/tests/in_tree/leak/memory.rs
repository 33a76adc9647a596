//! A server that is asked nothing twice.
//!
//! What a test server answers depends on what it was told since it was cleared, and on nothing else: ids are drawn by that. So what
//! was asked after the same is not asked again, in whichever world, and a server hears of it only when something is asked that
//! is new. A read is asked twice at first: one that is answered otherwise the second time counts as told.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use capstan_testkit::Upstream;
use http::{HeaderValue, Request, Response};
use tokio::sync::Mutex;

/// All that was told since the server was cleared, as a number that nothing else has.
type Told = u128;
/// What was told before, and what was asked then.
type Key = (Told, Vec<u8>);

/// An answer, and what it is apart from times.
#[derive(Clone)]
struct Answer {
    response: Response<Bytes>,
    same: (u16, Option<HeaderValue>),
}

/// What all worlds know.
#[derive(Default)]
struct Known {
    answers: HashMap<Key, (Answer, Told)>,
    left: HashMap<Told, Vec<String>>,
}

static KNOWN: LazyLock<RwLock<Known>> = LazyLock::new(RwLock::default);

/// One world's server, with what it was told.
#[derive(Default)]
struct Course {
    told: Told,
    /// What was answered without the server.
    behind: Vec<(Request<Bytes>, Key)>,
    /// The server was told something since it was cleared.
    touched: bool,
}

/// A server that draws ids by the header `X-Seed`, says in `X-Same` what its answer is apart from times, and has a control interface
/// (see tests/moto/serve.py).
#[derive(Clone)]
pub(super) struct Memory {
    client: reqwest::Client,
    url: String,
    control: String,
    course: Arc<Mutex<Course>>,
}

impl Memory {
    /// Of a server that has just started.
    pub(super) fn of(url: String, control: String) -> Self {
        Self { client: reqwest::Client::new(), url, control, course: Arc::default() }
    }

    /// What is left on the server.
    pub(super) async fn left(&self) -> anyhow::Result<Vec<String>> {
        let mut course = self.course.lock().await;
        let told = course.told;
        if let Some(left) = KNOWN.read().unwrap_or_else(PoisonError::into_inner).left.get(&told) {
            return Ok(left.clone());
        }
        self.catch_up(&mut course).await?;
        let answer = self.client.get(format!("{}/left", self.control)).send().await?.error_for_status()?;
        let left: Vec<String> = answer.json().await?;
        KNOWN.write().unwrap_or_else(PoisonError::into_inner).left.insert(told, left.clone());
        Ok(left)
    }

    /// Everything is as it was in the beginning.
    pub(super) async fn clear(&self) -> anyhow::Result<()> {
        let mut course = self.course.lock().await;
        if course.touched {
            self.client.post(format!("{}/clear", self.control)).send().await?.error_for_status()?;
        }
        *course = Course::default();
        Ok(())
    }

    async fn ask(&self, course: &mut Course, request: &Request<Bytes>, key: &Key) -> anyhow::Result<Answer> {
        course.touched = true;
        let sent = self.client.request(request.method().clone(), format!("{}{}", self.url, request.uri()));
        let sent = sent.headers(request.headers().clone()).header("x-seed", format!("{:x}", after(key)));
        let mut answer = sent.body(request.body().clone()).send().await?;
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = answer.status();
        *response.headers_mut() = std::mem::take(answer.headers_mut());
        *response.body_mut() = answer.bytes().await?;
        let same = (response.status().as_u16(), response.headers_mut().remove("x-same"));
        anyhow::ensure!(same.1.is_some(), "{} {} is answered without X-Same", request.method(), request.uri());
        Ok(Answer { response, same })
    }

    /// Tells the server what was answered without it.
    async fn catch_up(&self, course: &mut Course) -> anyhow::Result<()> {
        for (request, key) in std::mem::take(&mut course.behind) {
            let found = self.ask(course, &request, &key).await?;
            let before = known(&key).map(|(answer, _)| answer);
            anyhow::ensure!(
                before.as_ref().is_some_and(|before| before.same == found.same),
                "it is no function of what it was told: {:?} is answered {:?} and then {:?}",
                request.body(),
                before.map(|before| before.response),
                found.response
            );
        }
        Ok(())
    }

    async fn found(&self, request: &Request<Bytes>) -> anyhow::Result<Response<Bytes>> {
        let mut course = self.course.lock().await;
        let key = (course.told, asked(request));
        if let Some((answer, told)) = known(&key) {
            if told != course.told {
                course.behind.push((request.clone(), key));
            }
            course.told = told;
            return Ok(answer.response);
        }
        self.catch_up(&mut course).await?;
        let answer = self.ask(&mut course, request, &key).await?;
        let again = if is_read(request) { Some(self.ask(&mut course, request, &key).await?) } else { None };
        let same = again.is_some_and(|again| again.same == answer.same);
        course.told = if same { key.0 } else { after(&key) };
        let response = answer.response.clone();
        KNOWN.write().unwrap_or_else(PoisonError::into_inner).answers.insert(key, (answer, course.told));
        Ok(response)
    }
}

#[async_trait]
impl Upstream for Memory {
    async fn answer(&self, request: Request<Bytes>) -> Option<Response<Bytes>> {
        match self.found(&request).await {
            Ok(response) => Some(response),
            Err(error) => {
                // Taken for a fault it would be forgiven.
                eprintln!("the test's server: {error:#}");
                std::process::exit(1);
            }
        }
    }
}

fn known(key: &Key) -> Option<(Answer, Told)> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).answers.get(key).cloned()
}

/// What has been told when this has been asked.
fn after(key: &Key) -> Told {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, key).hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

fn header<'a>(request: &'a Request<Bytes>, name: &str) -> &'a str {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What a request asks, and as whom; not when.
fn asked(request: &Request<Bytes>) -> Vec<u8> {
    let scope = header(request, "authorization").split(',').next().unwrap_or_default();
    // Credential=KEY/date/region/service/aws4_request
    let who: Vec<&str> = scope.split('/').enumerate().filter(|(at, _)| *at != 1).map(|(_, part)| part).collect();
    let mut asked =
        format!("{} {} {} {who:?} ", request.method(), request.uri(), header(request, "x-amz-target")).into_bytes();
    asked.extend_from_slice(request.body());
    asked
}

fn is_read(request: &Request<Bytes>) -> bool {
    let form = String::from_utf8_lossy(request.body());
    let target = header(request, "x-amz-target").rsplit('.').next().filter(|action| !action.is_empty());
    match target.or_else(|| form.split('&').find_map(|pair| pair.strip_prefix("Action="))) {
        Some(action) => ["Describe", "Get", "List"].iter().any(|verb| action.starts_with(verb)),
        None => matches!(request.method().as_str(), "GET" | "HEAD"),
    }
}
