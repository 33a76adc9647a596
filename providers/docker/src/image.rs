//! Images. One that the engine lacks is pulled before the container is made: a turn says so, and the next one waits for it.
//!
//! A pull leaves nothing that would have to be found or deleted again, so the manifest declares it a read, on an endpoint of
//! its own that may take long, and a pull that fails or hangs holds no deletion up.

use capstan_provider::{Context, Error, Progress, Result, time};
use serde::{Deserialize, Serialize};

use crate::engine::Engine;

/// Pulls of one image by many machines are one pull: an answer this old (ms) will do.
const SHARED: u64 = 1_000;

/// An image, as it was chosen for one attempt to make a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    /// Its name, with a tag or digest.
    pub image: String,
    /// When the engine was found to lack it (ms since the Unix epoch).
    pub missing_since: Option<u64>,
}

impl Image {
    /// The image of this name, and whether it is there.
    pub fn choose<S>(ctx: &Context<S>, engine: &Engine, name: &str) -> Result<Self> {
        let image = tagged(name);
        let missing_since = if there(engine, &image)? { None } else { Some(ctx.now()) };
        Ok(Self { image, missing_since })
    }

    /// Makes sure that it is there; what is to be waited for until then. `field` is where the user names it.
    pub fn wait<S>(&self, ctx: &Context<S>, engine: &Engine, field: &str) -> Result<Option<Progress>> {
        if there(engine, &self.image)? {
            return Ok(None);
        }
        let image = &self.image;
        let since = self.missing_since.unwrap_or_else(|| ctx.now());
        let told = time::rfc3339(since);
        if self.missing_since == Some(ctx.now()) {
            let message = format!("the engine has no image {image}, which is being pulled since {told}");
            return Ok(Some(Progress::waiting("PullingImage", message)));
        }
        match pull(engine, image)? {
            Ok(()) => Ok(Some(Progress::waiting("ImagePulled", format!("image {image} has been pulled")))),
            Err(why) => Err(Error::transient(
                "ImagePullFailed",
                format!(
                    "image {image}, missing since {told}, cannot be pulled: {why}: correct {field}, or run docker pull {image} \
                     on the engine's machine (registries that want a password are known to its docker client only)"
                ),
            )),
        }
    }
}

/// Without a tag the engine would pull all there are.
fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains([':', '@']) { name.to_owned() } else { format!("{name}:latest") }
}

fn there(engine: &Engine, image: &str) -> Result<bool> {
    Ok(engine.get("/images/{}/json", &[image]).found()?.is_some())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    error: Option<String>,
}

/// Waits until an image is pulled; inside, why that failed.
fn pull(engine: &Engine, image: &str) -> Result<std::result::Result<(), String>> {
    let answer = engine.pull(image).max_age(SHARED).send()?;
    if !answer.is_success() {
        return Ok(Err(answer.message()));
    }
    // What goes wrong later is said in the stream of progress, one JSON document a line.
    let said = answer.body.rsplit(|byte| *byte == b'\n');
    let error = said.filter_map(|line| serde_json::from_slice::<Line>(line).ok()?.error).next();
    Ok(error.map_or(Ok(()), Err))
}

#[cfg(test)]
mod tests {
    use capstan_provider::testing::Scenario;
    use serde_json::json;

    use super::*;
    use crate::testing::with_engine;

    const NOW: u64 = 1_795_997_991_000;

    fn scenario(there: u16) -> Scenario {
        let mut scenario = with_engine(Scenario::new("DockerMachine", json!({})));
        scenario.now = NOW;
        scenario.answer("GET /v1.41/images/r%2Fnode%3Av1/json", there, json!({"message": "No such image"}))
    }

    fn wait(scenario: Scenario, missing_since: Option<u64>) -> (Result<Option<Progress>>, usize) {
        let image = Image { image: "r/node:v1".to_owned(), missing_since };
        let (result, sent) = scenario.run(|| {
            let ctx = Context { spec: () };
            image.wait(&ctx, &Engine::find()?, "spec.customImage")
        });
        (result, sent.len())
    }

    #[test]
    fn names_get_a_tag() {
        assert_eq!(tagged("kindest/node"), "kindest/node:latest");
        assert_eq!(tagged("registry:5000/node"), "registry:5000/node:latest");
        assert_eq!(tagged("kindest/node:v1.35.0"), "kindest/node:v1.35.0");
        assert_eq!(tagged("kindest/node@sha256:ab"), "kindest/node@sha256:ab");
    }

    #[test]
    fn an_image_that_is_there_is_not_pulled() {
        assert_eq!(wait(scenario(200), None), (Ok(None), 2));
        assert_eq!(wait(scenario(200), Some(NOW - 5_000)), (Ok(None), 2));
    }

    #[test]
    fn a_pull_is_told_with_its_beginning_before_it_is_waited_for() {
        let (told, sent) = wait(scenario(404), Some(NOW));
        let Ok(Some(Progress::Waiting(reason))) = told else { panic!("{told:?}") };
        assert_eq!((reason.code.as_str(), sent), ("PullingImage", 2));
        assert!(reason.message.contains("r/node:v1") && reason.message.contains("since 2026-11-30T00:19:51Z"));
    }

    const ASKED: &str = "POST /v1.41/images/create?fromImage=r/node:v1";

    #[test]
    fn a_pull_goes_through_its_own_endpoint() {
        let stream = b"{\"status\":\"Pulling\"}\r\n{\"status\":\"Status: Downloaded newer image\"}\r\n".to_vec();
        let image = Image { image: "r/node:v1".to_owned(), missing_since: Some(NOW - 60_000) };
        let (result, sent) = scenario(404).answer_bytes(ASKED, 200, stream).run(|| {
            let ctx = Context { spec: () };
            image.wait(&ctx, &Engine::find()?, "spec.customImage")
        });
        assert!(matches!(result, Ok(Some(Progress::Waiting(reason))) if reason.code == "ImagePulled"));
        assert_eq!(sent[2].endpoint, PULL_NAME);
    }

    const PULL_NAME: &str = crate::PULL;

    #[test]
    fn a_pull_that_fails_says_why_and_since_when() {
        let stream = b"{\"status\":\"Pulling\"}\n{\"errorDetail\":{\"message\":\"x\"},\"error\":\"no space left\"}\n";
        let failures = [
            (200, stream.to_vec(), "no space left"),
            (404, br#"{"message":"manifest for r/node:v1 not found"}"#.to_vec(), "manifest for r/node:v1 not found"),
            (500, br#"{"message":"dial tcp: lookup r: no such host"}"#.to_vec(), "no such host"),
        ];
        for (status, body, why) in failures {
            let (result, _) = wait(scenario(404).answer_bytes(ASKED, status, body), Some(NOW - 60_000));
            let Err(Error::Transient(reason)) = result else { panic!("{result:?}") };
            assert_eq!(reason.code, "ImagePullFailed");
            for part in [why, "since 2026-11-30T00:18:51Z", "spec.customImage", "docker pull r/node:v1"] {
                assert!(reason.message.contains(part), "{part}: {}", reason.message);
            }
        }
    }
}
