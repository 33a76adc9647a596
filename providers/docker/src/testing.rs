//! What the tests of several files begin with.

use capstan_provider::testing::Scenario;
use serde_json::json;

/// An engine of Docker 20.10 that is asked for its version first.
pub fn with_engine(scenario: Scenario) -> Scenario {
    scenario.answer("GET /version", 200, json!({"ApiVersion": "1.41", "MinAPIVersion": "1.12"}))
}

/// One that has an image.
pub fn with_image(scenario: Scenario, image: &str) -> Scenario {
    let encoded = image.replace('/', "%2F").replace(':', "%3A");
    scenario.answer(&format!("GET /v1.41/images/{encoded}/json"), 200, json!({"Id": "sha256:ab"}))
}
