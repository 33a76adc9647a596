//! Sequences of applies and updates with the outcome that upstream's field manager (apimachinery 0.35) had for them.
//!
//! `upstream.json` is a sample of thousands of random sequences on the kind of the apply tests that were played to both.

use super::apply::{owners, thing};
use crate::schema::{apply, track_update};
use serde_json::Value;

#[test]
fn sequences_end_as_they_do_upstream() {
    let sequences: Vec<Vec<Value>> = serde_json::from_str(include_str!("upstream.json")).unwrap();
    let schema = thing();
    let mut conflicts = 0;
    for (sequence, steps) in sequences.iter().enumerate() {
        let mut live: Option<Value> = None;
        for (number, step) in steps.iter().enumerate() {
            let now = format!("2026-01-01T00:{number:02}:00Z");
            let manager = step["manager"].as_str().unwrap();
            let mut object = step["object"].clone();
            object["apiVersion"] = "example.com/v1".into();
            object["kind"] = "Thing".into();
            if step["operation"] == "apply" {
                match apply(&schema, live.as_ref(), &object, manager, step["force"] == true, None, &now) {
                    Ok(applied) => live = Some(applied.object),
                    Err(error) => {
                        conflicts += 1;
                        assert_eq!(
                            error.to_string(),
                            step["error"].as_str().unwrap_or_default(),
                            "{sequence}.{number}"
                        );
                        continue;
                    }
                }
            } else {
                if let Some(managed) = live.as_ref().and_then(|live| live["metadata"].get("managedFields")) {
                    object["metadata"]["managedFields"] = managed.clone();
                }
                track_update(&schema, live.as_ref(), &mut object, manager, None, &now);
                live = Some(object);
            }
            let live = live.as_ref().unwrap();
            assert_eq!(step.get("error"), None, "{sequence}.{number} went through");
            assert_eq!(live.get("spec"), step["result"].get("spec"), "{sequence}.{number}");
            assert_eq!(owners(live), step["owners"], "{sequence}.{number}");
        }
    }
    assert!(conflicts > 10, "{conflicts}");
}
