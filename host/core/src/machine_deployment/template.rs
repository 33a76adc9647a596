//! Which MachineSet is the current one: a comparison of templates that ignores what is changed in place.

use std::sync::Arc;

use capstan_api::Object;
use capstan_api::time::millis;
use serde_json::Value;

use crate::ownership::created;

/// How a MachineSet stands to its MachineDeployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Staleness {
    /// Its Machines are what would be made today.
    Current,
    /// The same, until `spec.rollout.after` comes (milliseconds since the Unix epoch).
    CurrentUntil(u64),
    /// They are not; the reasons are for a person.
    Stale(Vec<String>),
}

/// Compares. `now` is milliseconds since the Unix epoch.
pub fn staleness(deployment: &Object, set: &Object, now: u64) -> Staleness {
    let mut reasons = differences(deployment, set);
    let after = deployment.str_at("/spec/rollout/after").and_then(millis).filter(|after| created(set) < *after);
    match after {
        Some(after) if after <= now => {
            reasons.push("MachineDeployment spec.rollout.after expired".into());
            Staleness::Stale(reasons)
        }
        _ if !reasons.is_empty() => Staleness::Stale(reasons),
        Some(after) => Staleness::CurrentUntil(after),
        None => Staleness::Current,
    }
}

/// What differs in the fields that need new Machines: version, bootstrap, infrastructure, failure domain.
fn differences(deployment: &Object, set: &Object) -> Vec<String> {
    let at = |object: &Object, field: &str| object.at(&format!("/spec/template/spec/{field}")).cloned();
    let mut reasons = Vec::new();
    let text = |value: &Option<Value>| match value {
        Some(Value::String(text)) => text.clone(),
        _ => "none".into(),
    };
    for (field, what) in [("version", "Version"), ("failureDomain", "Failure domain")] {
        let (have, want) = (at(set, field), at(deployment, field));
        if have != want {
            reasons.push(format!("{what} {}, {} required", text(&have), text(&want)));
        }
    }
    let reference = |object: &Object, field: &str| -> [String; 3] {
        let value = at(object, field).unwrap_or_default();
        ["apiGroup", "kind", "name"].map(|f| value.get(f).and_then(Value::as_str).unwrap_or_default().to_owned())
    };
    let mut compare = |field: &str| {
        let ([_, kind, name], [_, want_kind, want]) = (reference(set, field), reference(deployment, field));
        if reference(set, field) != reference(deployment, field) {
            let or_none = |kind: &str, name: &str| {
                if kind.is_empty() { "no template".to_owned() } else { format!("{kind} {name}") }
            };
            reasons.push(format!("{}, {} required", or_none(&kind, &name), or_none(&want_kind, &want)));
        }
    };
    compare("bootstrap/configRef");
    compare("infrastructureRef");
    if at(deployment, "bootstrap/configRef").is_none() {
        let (have, want) = (at(set, "bootstrap/dataSecretName"), at(deployment, "bootstrap/dataSecretName"));
        if have != want {
            reasons.push(format!("data Secret {}, {} required", text(&have), text(&want)));
        }
    }
    reasons
}

/// The current MachineSet among those of a MachineDeployment: several ⇒ the one with most replicas, then the oldest.
pub fn current<'a>(deployment: &Object, sets: &'a [Arc<Object>], now: u64) -> Option<&'a Arc<Object>> {
    sets.iter()
        .filter(|set| !set.is_deleting() && !matches!(staleness(deployment, set, now), Staleness::Stale(_)))
        .max_by(|a, b| {
            let replicas = |s: &Object| s.int_at("/spec/replicas").unwrap_or(1);
            replicas(a).cmp(&replicas(b)).then_with(|| created(b).cmp(&created(a))).then_with(|| b.name().cmp(a.name()))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str, replicas: i64, created: &str, version: &str) -> Arc<Object> {
        Arc::new(
            Object::from_value(json!({
                "kind": "X", "metadata": {"name": name, "creationTimestamp": created},
                "spec": {"replicas": replicas, "template": {
                    "metadata": {"labels": {"only": name}},
                    "spec": {"version": version, "minReadySeconds": replicas,
                        "bootstrap": {"configRef": {"apiGroup": "b", "kind": "BT", "name": "b"}},
                        "infrastructureRef": {"apiGroup": "i", "kind": "IT", "name": "i"}}}},
            }))
            .unwrap(),
        )
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-02-01T00:00:00Z";

    #[test]
    fn what_is_changed_in_place_needs_no_new_set() {
        let deployment = object("d", 3, EARLY, "v1.35.0");
        let same = object("s", 9, EARLY, "v1.35.0");
        assert_eq!(staleness(&deployment, &same, 0), Staleness::Current);
        let other = object("s", 9, EARLY, "v1.34.0");
        assert_eq!(
            staleness(&deployment, &other, 0),
            Staleness::Stale(vec!["Version v1.34.0, v1.35.0 required".into()])
        );
        let mut moved = Object::clone(&same);
        moved.set("/spec/template/spec/infrastructureRef/name", "j".into());
        assert_eq!(staleness(&deployment, &moved, 0), Staleness::Stale(vec!["IT j, IT i required".into()]));
    }

    #[test]
    fn rollout_after_makes_older_sets_stale_when_it_comes() {
        let mut deployment = Object::clone(&object("d", 3, EARLY, "v1"));
        deployment.set("/spec/rollout/after", "2026-01-15T00:00:00Z".into());
        let (old, new) = (object("s", 1, EARLY, "v1"), object("s", 1, LATE, "v1"));
        let then = millis("2026-01-15T00:00:00Z").unwrap();
        assert_eq!(staleness(&deployment, &old, then - 1), Staleness::CurrentUntil(then));
        assert!(matches!(staleness(&deployment, &old, then), Staleness::Stale(_)));
        assert_eq!(staleness(&deployment, &new, then), Staleness::Current);
    }

    #[test]
    fn of_several_the_biggest_then_the_oldest_is_current() {
        let deployment = object("d", 3, EARLY, "v1");
        let sets = [
            object("a", 1, EARLY, "v1"),
            object("b", 2, LATE, "v1"),
            object("c", 2, EARLY, "v1"),
            object("z", 9, EARLY, "v0"),
        ];
        assert_eq!(current(&deployment, &sets, 0).unwrap().name(), "c");
    }
}
