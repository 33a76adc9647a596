use crate::schema::*;
use serde_json::{Value, json};
#[test]
fn export() {
    let mut schemas = serde_json::Map::new();
    for (name, schema) in [("example.v1.Thing".to_owned(), super::apply::thing()), ("".to_owned(), (builtins().iter().find(|k| k.kind == "Pod").unwrap().schema)())] {
        schemas.extend(schema.open_api_components(&name));
    }
    std::fs::write("/tmp/a/schemas.json", Value::Object(schemas).to_string()).unwrap();
}
#[test]
fn run() {
    let input: Value = serde_json::from_slice(&std::fs::read("/tmp/a/in.json").unwrap()).unwrap();
    let mut all = vec![];
    for sc in input["Scenarios"].as_array().unwrap() {
        let schema = if sc["Kind"].as_str().unwrap().contains("Thing") { super::apply::thing() } else { (builtins().iter().find(|k| k.kind == "Pod").unwrap().schema)() };
        let mut live: Option<Value> = None;
        let mut outs = vec![];
        for (n, op) in sc["Ops"].as_array().unwrap().iter().enumerate() {
            let now = format!("2026-01-01T00:{n:02}:00Z");
            let manager = op["Manager"].as_str().unwrap();
            let mut error = String::new();
            if op["Op"] == "apply" {
                match apply(&schema, live.as_ref(), &op["Object"], manager, op["Force"] == true, None, &now) {
                    Ok(out) => live = Some(out.object),
                    Err(e) => error = e.to_string(),
                }
            } else {
                let mut new = op["Object"].clone();
                if let Some(m) = live.as_ref().and_then(|l| l["metadata"].get("managedFields")) { new["metadata"]["managedFields"] = m.clone(); }
                track_update(&schema, live.as_ref(), &mut new, manager, None, &now);
                live = Some(new);
            }
            outs.push(json!({"Error": error, "Object": live}));
        }
        all.push(outs);
    }
    std::fs::write("/tmp/a/out-rust.json", serde_json::to_string(&all).unwrap()).unwrap();
}
