//! Rules that an answer must keep whatever the object is about. A broken rule is a contract violation: nothing of
//! the answer is used.

use std::collections::BTreeMap;

use capstan_core::contract::{
    Choice, ClusterFacts, ControlPlaneDecision, MachineFacts, Need, Observed, Part, Presence, Progress,
    ProviderCondition, ProviderError, Reason, Rendered,
};
use capstan_core::turn::Reply;
use serde_json::Value;

/// The longest id or operation token, in bytes.
const MAX_ID: usize = 1 << 10;
/// The longest message, in bytes (a condition's is 32 KiB at most).
const MAX_MESSAGE: usize = 16 << 10;
/// The largest JSON text, in bytes: it is kept in an annotation or status.
const MAX_JSON: usize = 64 << 10;
/// The longest list.
const MAX_LIST: usize = 512;
/// The largest boot data, in bytes: a Secret holds no more.
const MAX_BOOT_DATA: usize = 1 << 20;

type Checked = Result<(), String>;

/// Whether an answer keeps the contract's rules; the error names the rule.
pub(crate) fn reply(reply: &Reply) -> Checked {
    match reply {
        Reply::Needs(needs) => self::needs(needs),
        Reply::Parts(list) => parts(list),
        Reply::Choice(choice) => self::choice(choice),
        Reply::Presence(presence) => self::presence(presence),
        Reply::Progress(progress) => self::progress(progress),
        Reply::ClusterFacts(facts) => cluster_facts(facts),
        Reply::MachineFacts(facts) => machine_facts(facts),
        Reply::Rendered(rendered) => self::rendered(rendered),
        Reply::Decision(decision) => self::decision(decision),
    }
}

/// The same for an error that a guest returned.
pub(crate) fn error(error: &ProviderError) -> Checked {
    match error {
        ProviderError::Transient(why)
        | ProviderError::Unauthorized(why)
        | ProviderError::Conflict(why)
        | ProviderError::Internal(why) => reason("the error", why),
        ProviderError::Invalid(list) => {
            bounded("the violations", list.len())?;
            list.iter().try_for_each(|v| {
                text("a violation", &v.path, MAX_ID).and_then(|()| text("a violation", &v.message, MAX_MESSAGE))
            })
        }
        ProviderError::Throttled(_) | ProviderError::Violated(_) => Ok(()),
    }
}

fn bounded(what: &str, length: usize) -> Checked {
    if length > MAX_LIST { Err(format!("{what} are {length}; {MAX_LIST} are allowed")) } else { Ok(()) }
}

fn text(what: &str, text: &str, max: usize) -> Checked {
    if text.len() > max { Err(format!("{what} is {} bytes long; {max} are allowed", text.len())) } else { Ok(()) }
}

fn id(what: &str, id: &str) -> Checked {
    if id.is_empty() {
        return Err(format!("{what} is empty"));
    }
    text(what, id, MAX_ID)
}

fn name(what: &str, name: &str) -> Checked {
    let fine = (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/'));
    if fine { Ok(()) } else { Err(format!("{what} {name:?} is not 1 to 63 letters, digits or - _ . /")) }
}

fn reason(what: &str, why: &Reason) -> Checked {
    let code = why.code.as_bytes();
    let fine = code.first().is_some_and(u8::is_ascii_uppercase)
        && code.len() <= 256
        && code.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_');
    if !fine {
        return Err(format!(
            "{what} has the code {:?}, which is not CamelCase",
            why.code.chars().take(64).collect::<String>()
        ));
    }
    text(&format!("the message of {what}"), &why.message, MAX_MESSAGE)
}

fn json(what: &str, value: &Value) -> Checked {
    let size = value.to_string().len();
    if size > MAX_JSON { Err(format!("{what} is {size} bytes large; {MAX_JSON} are allowed")) } else { Ok(()) }
}

fn object(what: &str, value: &Value) -> Checked {
    if !value.is_object() {
        return Err(format!("{what} is not a JSON object"));
    }
    json(what, value)
}

fn needs(needs: &[(String, Need)]) -> Checked {
    bounded("the needs", needs.len())?;
    for (index, (label, need)) in needs.iter().enumerate() {
        name("the label", label)?;
        if label.contains('/') || label == "bootstrap-data" {
            return Err(format!("the label {label:?} is not a need's to take"));
        }
        if needs.iter().take(index).any(|(other, _)| other == label) {
            return Err(format!("the label {label:?} is declared twice"));
        }
        match need {
            Need::Secret(pointer) | Need::ConfigMap(pointer) if !pointer.starts_with('/') => {
                return Err(format!("the need {label} names {pointer:?}, which is no JSON pointer"));
            }
            Need::ClusterToken(length) if !(16..=256).contains(length) => {
                return Err(format!("the need {label} asks for a token of {length} characters; 16 to 256 are allowed"));
            }
            Need::KeyPair(pair) if pair.validity_days == 0 || pair.validity_days > 36_500 => {
                return Err(format!("the need {label} asks for a validity of {} days", pair.validity_days));
            }
            Need::AddressPool { addresses, .. } => bounded("the addresses of a pool", addresses.len())?,
            _ => {}
        }
    }
    Ok(())
}

fn parts(parts: &[Part]) -> Checked {
    bounded("the parts", parts.len())?;
    let mut by_name = BTreeMap::new();
    for part in parts {
        name("the part", &part.name)?;
        if by_name.insert(part.name.as_str(), part).is_some() {
            return Err(format!("the part {:?} is listed twice", part.name));
        }
    }
    for part in parts {
        for after in &part.after {
            if !by_name.contains_key(after.as_str()) {
                return Err(format!("the part {:?} comes after {after:?}, which is not listed", part.name));
            }
        }
    }
    // Take away, again and again, the parts that come after nothing that is left.
    let mut left = by_name;
    loop {
        let free: Vec<&str> = left
            .iter()
            .filter(|(_, part)| part.after.iter().all(|after| !left.contains_key(after.as_str())))
            .map(|(name, _)| *name)
            .collect();
        if free.is_empty() {
            break;
        }
        for name in free {
            left.remove(name);
        }
    }
    match left.keys().next() {
        None => Ok(()),
        Some(_) => {
            let names: Vec<&str> = left.keys().copied().collect();
            Err(format!("the parts {} come after one another in a circle", names.join(", ")))
        }
    }
}

fn choice(choice: &Choice) -> Checked {
    if let Some(chosen) = &choice.id {
        id("the chosen id", chosen)?;
    }
    json("what is frozen", &choice.frozen)
}

fn presence(presence: &Presence) -> Checked {
    match presence {
        Presence::Absent(_) => Ok(()),
        Presence::Pending(operation) => id("the operation's token", &operation.token),
        Presence::Failed(_, why) => reason("the failure", why),
        Presence::Foreign(why) => reason("what is foreign", why),
        Presence::Present(Observed { id: found, todo, outdated, operation, state, .. }) => {
            id("the id", found)?;
            bounded("the reasons", todo.len() + outdated.len())?;
            todo.iter().try_for_each(|why| reason("what is to do", why))?;
            outdated.iter().try_for_each(|why| reason("what is outdated", why))?;
            if let Some(operation) = operation {
                id("the operation's token", &operation.token)?;
            }
            json("the state", state)
        }
    }
}

fn progress(progress: &Progress) -> Checked {
    match progress {
        Progress::Done(done) => id("the id", done),
        Progress::Started(started, operation) => {
            if let Some(started) = started {
                id("the id", started)?;
            }
            id("the operation's token", &operation.token)
        }
        Progress::Waiting(why) => reason("what is waited for", why),
    }
}

fn conditions(list: &[ProviderCondition]) -> Checked {
    bounded("the conditions", list.len())?;
    for (index, condition) in list.iter().enumerate() {
        let kind = &condition.kind;
        name("the condition", kind)?;
        if list.iter().take(index).any(|other| other.kind == *kind) {
            return Err(format!("the condition {kind} is reported twice"));
        }
        reason(&format!("the condition {kind}"), &condition.reason)?;
    }
    Ok(())
}

fn cluster_facts(facts: &ClusterFacts) -> Checked {
    if let Some(endpoint) = &facts.control_plane_endpoint {
        id("the host of the endpoint", &endpoint.host)?;
        if endpoint.port == 0 {
            return Err("the port of the endpoint is 0".to_owned());
        }
    }
    bounded("the failure domains", facts.failure_domains.len())?;
    for domain in &facts.failure_domains {
        id("the failure domain", &domain.name)?;
        bounded("the attributes of a failure domain", domain.attributes.len())?;
    }
    conditions(&facts.conditions)?;
    object("the status", &facts.status)
}

fn machine_facts(facts: &MachineFacts) -> Checked {
    if let Some(provider_id) = &facts.provider_id {
        id("the providerID", provider_id)?;
        text("the providerID", provider_id, 512)?;
    }
    bounded("the addresses", facts.addresses.len())?;
    facts.addresses.iter().try_for_each(|address| id("the address", &address.value))?;
    for (what, value) in [("the failure domain", &facts.failure_domain), ("the node name", &facts.node_name)] {
        if let Some(value) = value {
            id(what, value)?;
        }
    }
    conditions(&facts.conditions)?;
    object("the status", &facts.status)
}

fn rendered(rendered: &Rendered) -> Checked {
    name("the format", &rendered.format)?;
    if rendered.content.len() > MAX_BOOT_DATA {
        return Err(format!("the boot data is {} bytes large; {MAX_BOOT_DATA} are allowed", rendered.content.len()));
    }
    Ok(())
}

fn decision(decision: &ControlPlaneDecision) -> Checked {
    use capstan_core::contract::ControlPlaneStep as Step;
    match &decision.step {
        Step::CreateMachine { kubernetes_version, bootstrap, .. } => {
            id("the version of the new machine", kubernetes_version)?;
            object("the bootstrap spec", bootstrap)?;
        }
        Step::ChangeMachine { machine, bootstrap } => {
            id("the machine", machine)?;
            object("the bootstrap spec", bootstrap)?;
        }
        Step::DeleteMachine { machine, reason: why } => {
            id("the machine", machine)?;
            reason("the deletion", why)?;
        }
        Step::MoveEtcdLeader(from, to) => id("the etcd member", from).and_then(|()| id("the etcd member", to))?,
        Step::RemoveEtcdMember(member) => id("the etcd member", member)?,
        Step::ApplyWorkload(label, applied) => {
            id("the label", label).and_then(|()| object("the workload object", applied))?
        }
        Step::DeleteWorkload(label) => id("the label", label)?,
        Step::Wait(why) => reason("what is waited for", why)?,
        Step::Settled => {}
    }
    conditions(&decision.conditions)?;
    object("the status", &decision.status)?;
    json("the memory", &decision.memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use capstan_core::contract::{Operation, Ownership};
    use serde_json::json;

    fn part(name: &str, after: &[&str]) -> Part {
        let after = after.iter().map(|a| (*a).to_owned()).collect();
        Part { name: name.into(), after, ownership: Ownership::Managed, replaceable: false }
    }

    #[test]
    fn parts_are_unique_known_and_in_an_order() {
        assert_eq!(parts(&[part("vm", &["iso"]), part("iso", &[])]), Ok(()));
        assert!(parts(&[part("vm", &[]), part("vm", &[])]).unwrap_err().contains("twice"));
        assert!(parts(&[part("vm", &["disk"])]).unwrap_err().contains("disk"));
        assert!(parts(&[part("a", &["a"])]).unwrap_err().contains("circle"));
        let circle = parts(&[part("a", &["b"]), part("b", &["c"]), part("c", &["a"]), part("d", &[])]).unwrap_err();
        assert!(circle.contains("a, b, c") && !circle.contains('d'), "{circle}");
        assert!(parts(&[part("", &[])]).is_err() && parts(&[part("a b", &[])]).is_err());
        assert!(parts(&vec![part("a", &[]); MAX_LIST + 1]).is_err());
    }

    #[test]
    fn ids_are_there_and_short() {
        let done = |id: String| progress(&Progress::Done(id));
        assert!(done(String::new()).is_err());
        assert!(done("x".repeat(MAX_ID)).is_ok());
        assert!(done("x".repeat(MAX_ID + 1)).is_err());
        let token = Operation { token: String::new(), look_again_after: 1 };
        assert!(progress(&Progress::Started(None, token.clone())).is_err());
        assert!(presence(&Presence::Pending(token)).is_err());
    }

    #[test]
    fn status_is_an_object_and_bounded() {
        let facts = |status| MachineFacts {
            phase: capstan_core::contract::MachinePhase::Running,
            provider_id: Some("a://b".into()),
            addresses: vec![],
            failure_domain: None,
            node_name: None,
            interruptible: false,
            conditions: vec![],
            status,
        };
        assert_eq!(machine_facts(&facts(json!({}))), Ok(()));
        assert!(machine_facts(&facts(json!([]))).unwrap_err().contains("status"));
        assert!(machine_facts(&facts(json!({"a": "x".repeat(MAX_JSON)}))).is_err());
        let mut long = facts(json!({}));
        long.provider_id = Some("x".repeat(513));
        assert!(machine_facts(&long).is_err());
    }

    #[test]
    fn codes_are_camel_case() {
        let code = |code: &str| error(&ProviderError::Transient(Reason { code: code.into(), message: String::new() }));
        assert!(code("ServerError").is_ok());
        for bad in ["", "server error", "serverError", "1Error", "Ä"] {
            assert!(code(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn needs_do_not_take_the_host_s_labels() {
        let need = |label: &str| needs(&[(label.to_owned(), Need::BootstrapToken)]);
        assert!(need("token").is_ok());
        assert!(need("bootstrap-data").is_err() && need("ca/tls.key").is_err() && need("").is_err());
        assert!(needs(&[("a".into(), Need::BootstrapToken), ("a".into(), Need::BootstrapToken)]).is_err());
    }
}
