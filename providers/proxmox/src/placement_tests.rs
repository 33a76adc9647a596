use capstan_provider::testing::{Scenario, TestMachine, infrastructure as call};
use serde_json::{Value, json};

use super::*;
use crate::{Proxmox, vm::VM};

const RESOURCES: &str = "GET /api2/json/cluster/resources?type=vm";
const GIB: u64 = 1 << 30;

fn resource(vmid: u64, node: &str, name: &str, template: u8, tags: &str) -> Value {
    json!({"type": "qemu", "vmid": vmid, "node": node, "name": name, "template": template, "tags": tags, "maxmem": 4 * GIB})
}

fn base(spec: Value) -> Scenario {
    let mut scenario = Scenario::new("ProxmoxMachine", spec);
    scenario.name = "c-w-aaaaa".to_owned();
    scenario.infrastructure_spec = Some(
        json!({"dnsServers": ["192.0.2.53"], "allowedNodes": ["pve1", "pve2"], "schedulerHints": {"memoryAdjustment": 0}})
            .to_string(),
    );
    scenario.machine = Some(TestMachine { name: "c-w-aaaaa".to_owned(), ..TestMachine::default() });
    scenario
}

fn by_id() -> Value {
    json!({"sourceNode": "pve1", "templateID": 9000, "vmIDRange": {"start": 200, "end": 209}})
}

fn all(more: &[Value]) -> Value {
    let mut list = vec![resource(9000, "pve1", "tmpl", 1, "capi;k8s-1.34")];
    list.extend(more.iter().cloned());
    json!({"data": list})
}

fn chosen(scenario: Scenario, reserved: &[&str]) -> Result<(u64, Frozen)> {
    let reserved: Vec<String> = reserved.iter().map(|id| (*id).to_owned()).collect();
    let choice = scenario.run(|| call::identify::<Proxmox>(VM, &reserved)).0?;
    Ok((choice.id.unwrap().parse().unwrap(), serde_json::from_str(&choice.frozen).unwrap()))
}

fn free(number: u64) -> (String, u16, Value) {
    (format!("GET /api2/json/cluster/nextid?vmid={number}"), 200, json!({"data": number.to_string()}))
}

fn taken(number: u64) -> (String, u16, Value) {
    (
        format!("GET /api2/json/cluster/nextid?vmid={number}"),
        400,
        json!({"errors": {"vmid": format!("VM {number} already exists")}, "data": null}),
    )
}

fn with(scenario: Scenario, (asked, status, body): (String, u16, Value)) -> Scenario {
    scenario.answer(&asked, status, body)
}

#[test]
fn a14_numbers_that_others_have_chosen_are_left_to_them() {
    // 200 to 208 are somebody's; the only one left is free.
    let there: Vec<Value> = (200..205).map(|number| resource(number, "pve1", "x", 0, "")).collect();
    let scenario = with(base(by_id()).answer(RESOURCES, 200, all(&there)), free(209));
    let (number, frozen) = chosen(scenario, &["205", "206", "207", "208"]).unwrap();
    assert_eq!(number, 209);
    assert_eq!((frozen.source_node.as_str(), frozen.template), ("pve1", 9000));
    let full: Vec<Value> = (200..210).map(|number| resource(number, "pve1", "x", 0, "")).collect();
    let refused = chosen(base(by_id()).answer(RESOURCES, 200, all(&full)), &[]);
    assert!(matches!(refused, Err(Error::Transient(why)) if why.code == "VMIDRangeExhausted"));
}

#[test]
fn a14_a_number_of_what_the_token_may_not_see_is_passed_over() {
    let others = ["200", "201", "202", "203", "204", "205", "206", "207"];
    let (first, second) = if capstan_provider::hash("owner-1/").is_multiple_of(2) { (208, 209) } else { (209, 208) };
    let scenario = with(with(base(by_id()).answer(RESOURCES, 200, all(&[])), taken(first)), free(second));
    assert_eq!(chosen(scenario, &others).unwrap().0, second);
}

#[test]
fn a14_a_pinned_number_is_never_changed() {
    let mut spec = by_id();
    spec["virtualMachineID"] = 205.into();
    let scenario = with(base(spec.clone()).answer(RESOURCES, 200, all(&[])), free(205));
    assert_eq!(chosen(scenario, &[]).unwrap().0, 205);
    let scenario = with(base(spec).answer(RESOURCES, 200, all(&[])), taken(205));
    assert!(matches!(chosen(scenario, &[]), Err(Error::Conflict(why)) if why.message.contains("205")));
}

#[test]
fn a14_owners_spread_over_the_free_numbers() {
    let numbers: std::collections::BTreeSet<u64> = (0..10)
        .map(|owner| {
            let spec = json!({"sourceNode": "pve1", "templateID": 9000});
            let mut scenario = base(spec).answer(RESOURCES, 200, all(&[]));
            scenario.owner_key = format!("owner-{owner}");
            scenario = scenario.answer("GET /api2/json/cluster/nextid", 200, json!({"data": "100"}));
            let seed = capstan_provider::hash(&format!("owner-{owner}/"));
            let number = 100 + seed % 500;
            chosen(with(scenario, free(number)), &[]).unwrap().0
        })
        .collect();
    assert!(numbers.len() >= 9, "{numbers:?}");
}

#[test]
fn machines_of_a_set_spread_over_the_nodes_with_room() {
    let there = [resource(300, "pve1", "c-w-bbbbb", 0, ""), resource(301, "pve2", "other-1", 0, "")];
    let pick = |spec: Value, infrastructure: Value, answers: &[(&str, Value)], domain: Option<&str>| {
        let mut scenario = base(spec);
        scenario.infrastructure_spec = Some(infrastructure.to_string());
        scenario.machine.as_mut().unwrap().failure_domain = domain.map(ToOwned::to_owned);
        let mut scenario = scenario.answer(RESOURCES, 200, all(&there));
        for (asked, body) in answers {
            scenario = scenario.answer(asked, 200, body.clone());
        }
        let number = 200 + capstan_provider::hash("owner-1/") % 10;
        chosen(with(scenario, free(number)), &[]).map(|(_, frozen)| frozen.node)
    };
    let plain = json!({"allowedNodes": ["pve1", "pve2"], "schedulerHints": {"memoryAdjustment": 0}});
    assert_eq!(pick(by_id(), plain.clone(), &[], None).unwrap(), "pve2");
    assert_eq!(pick(by_id(), plain.clone(), &[], Some("pve1")).unwrap(), "pve1");
    let mut own = by_id();
    own["allowedNodes"] = json!(["pve3"]);
    assert_eq!(pick(own, plain.clone(), &[], None).unwrap(), "pve3");
    let mut target = by_id();
    target["target"] = "pve4".into();
    assert_eq!(pick(target, plain, &[], None).unwrap(), "pve4");
    let nowhere = json!({"schedulerHints": {"memoryAdjustment": 0}});
    assert_eq!(pick(by_id(), nowhere, &[], None).unwrap(), "pve1", "where the template is");
    // Memory: what is promised to machines counts, templates do not.
    let memory = |gib: u64| json!({"data": {"memory": {"total": gib * GIB}}});
    let one = json!({"data": [resource(9000, "pve1", "tmpl", 1, ""), resource(301, "pve2", "o", 0, "")]});
    let none = || json!({"data": []});
    let hinted = json!({"allowedNodes": ["pve1", "pve2"]});
    let answers = [
        ("GET /api2/json/nodes/pve1/status", memory(4)),
        ("GET /api2/json/nodes/pve1/qemu", none()),
        ("GET /api2/json/nodes/pve1/lxc", none()),
        ("GET /api2/json/nodes/pve2/status", memory(7)),
        ("GET /api2/json/nodes/pve2/qemu", one),
        ("GET /api2/json/nodes/pve2/lxc", none()),
    ];
    assert_eq!(pick(by_id(), hinted, &answers, None).unwrap(), "pve1", "the other has room for 3 GiB only");
}

/// None of them is to be seen yet when the next one chooses: only the numbers of those before it are known.
#[test]
fn machines_that_are_made_at_once_spread_too() {
    let next = |there: &[Value], reserved: &[u64]| {
        let seen = |number: u64| there.iter().any(|vm| vm["vmid"] == number);
        let left: Vec<u64> = (200..210).filter(|number| !reserved.contains(number) && !seen(*number)).collect();
        let number = left[usize::try_from(capstan_provider::hash("owner-1/")).unwrap() % left.len()];
        let scenario = with(base(by_id()).answer(RESOURCES, 200, all(there)), free(number));
        let reserved: Vec<String> = reserved.iter().map(u64::to_string).collect();
        chosen(scenario, &reserved.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
    };
    let (mut reserved, mut nodes) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (number, frozen) = next(&[], &reserved);
        reserved.push(number);
        nodes.push(frozen.node);
    }
    assert_ne!(nodes[0], nodes[1]);
    assert_eq!(nodes[..2], nodes[2..]);
    // What was reserved and is to be seen meanwhile counts where it is, and once.
    let there = [resource(reserved[0], &nodes[0], "c-w-bbbbb", 0, "")];
    assert_eq!(next(&there, &reserved[..1]).1.node, nodes[1]);
    assert_eq!(next(&there, &reserved[..2]).1.node, nodes[0]);
}

#[test]
fn a_cluster_without_room_says_how_much_is_left() {
    let mut scenario = base(by_id());
    scenario.infrastructure_spec = Some(json!({"allowedNodes": ["pve1"]}).to_string());
    let refused = chosen(
        scenario
            .answer(RESOURCES, 200, all(&[]))
            .answer("GET /api2/json/nodes/pve1/status", 200, json!({"data": {"memory": {"total": 2 * GIB}}}))
            .answer("GET /api2/json/nodes/pve1/qemu", 200, json!({"data": []}))
            .answer("GET /api2/json/nodes/pve1/lxc", 200, json!({"data": []})),
        &[],
    );
    assert!(
        matches!(refused, Err(Error::Transient(why)) if why.code == "InsufficientMemory" && why.message.contains("pve1 has 2048 MiB"))
    );
}

#[test]
fn templates_are_found_by_their_tags() {
    let templates = [
        resource(1, "pve1", "a", 1, "K8S;capi"),
        resource(2, "pve1", "b", 1, "capi;k8s;lab"),
        resource(3, "pve2", "c", 1, "capi"),
        resource(4, "pve2", "d", 0, "capi;k8s"),
    ];
    let all: Vec<Resource> = templates.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect();
    let find = |tags: &[&str], match_policy: MatchPolicy| {
        let match_tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        select(&TemplateSelector { match_tags, match_policy }, &all)
            .map(|found| found.into_iter().map(|vm| vm.vmid).collect::<Vec<_>>())
    };
    assert_eq!(find(&["capi", "k8s"], MatchPolicy::Exact).unwrap(), [1]);
    assert_eq!(find(&["lab"], MatchPolicy::UniqueSubset).unwrap(), [2]);
    assert_eq!(find(&["k8s"], MatchPolicy::BestSubset).unwrap(), [1]);
    assert!(
        matches!(find(&["k8s"], MatchPolicy::UniqueSubset), Err(Error::Conflict(why)) if why.message.contains("1 on pve1, 2 on pve1"))
    );
    assert!(matches!(find(&["k8s"], MatchPolicy::Exact), Err(Error::Transient(why)) if why.code == "TemplateNotFound"));
    // One on each node is one template: that of the node is cloned.
    let two: Vec<Resource> = [resource(1, "pve1", "a", 1, "t"), resource(2, "pve2", "b", 1, "t")]
        .iter()
        .map(|one| serde_json::from_value(one.clone()).unwrap())
        .collect();
    let selector = TemplateSelector { match_tags: vec!["T".to_owned()], match_policy: MatchPolicy::Exact };
    assert_eq!(select(&selector, &two).unwrap().len(), 2);
}

#[test]
fn an_unknown_template_is_told() {
    let refused = chosen(base(by_id()).answer(RESOURCES, 200, json!({"data": []})), &[]);
    assert!(
        matches!(refused, Err(Error::Transient(why)) if why.code == "TemplateNotFound" && why.message.contains("9000"))
    );
}
