//! The order of parts.

use std::collections::{BTreeMap, BTreeSet};

use crate::contract::Part;

/// Parts such that each comes after those it depends on, otherwise in the provider's own order.
///
/// # Errors
/// The rule of the contract that the list breaks.
pub(crate) fn ordered(parts: Vec<Part>) -> Result<Vec<Part>, String> {
    let mut names = BTreeSet::new();
    for part in &parts {
        if part.name.is_empty() {
            return Err("a part has no name".into());
        }
        if !names.insert(part.name.clone()) {
            return Err(format!("two parts are called {:?}", part.name));
        }
    }
    for part in &parts {
        if let Some(unknown) = part.after.iter().find(|after| !names.contains(*after)) {
            return Err(format!("part {:?} comes after {unknown:?}, which is no part", part.name));
        }
    }
    let mut rest = parts;
    let mut done: BTreeSet<String> = BTreeSet::new();
    let mut order = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let at = rest.iter().position(|part| part.after.iter().all(|after| done.contains(after)));
        let Some(at) = at else {
            let circle: Vec<&str> = rest.iter().map(|part| part.name.as_str()).collect();
            return Err(format!("parts {} wait for one another", circle.join(", ")));
        };
        let part = rest.remove(at);
        done.insert(part.name.clone());
        order.push(part);
    }
    Ok(order)
}

/// For each part, those that come after it.
pub(crate) fn dependents(parts: &[Part]) -> BTreeMap<&str, Vec<&str>> {
    let mut all: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for part in parts {
        for after in &part.after {
            all.entry(after).or_default().push(&part.name);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Ownership;

    fn part(name: &str, after: &[&str]) -> Part {
        let after = after.iter().map(|a| (*a).to_owned()).collect();
        Part { name: name.into(), after, ownership: Ownership::Managed, replaceable: false }
    }

    #[test]
    fn what_is_depended_on_comes_first() {
        let parts = vec![part("vm", &["iso", "net"]), part("net", &[]), part("iso", &["net"])];
        let order: Vec<String> = ordered(parts.clone()).unwrap().into_iter().map(|p| p.name).collect();
        assert_eq!(order, ["net", "iso", "vm"]);
        assert_eq!(dependents(&parts).get("net"), Some(&vec!["vm", "iso"]));
    }

    #[test]
    fn a_list_that_breaks_a_rule_is_refused_with_its_name() {
        let refused = |parts| ordered(parts).unwrap_err();
        assert!(refused(vec![part("a", &[]), part("a", &[])]).contains("two parts"));
        assert!(refused(vec![part("a", &["b"])]).contains("no part"));
        assert!(refused(vec![part("a", &["b"]), part("b", &["a"])]).contains("wait for one another"));
    }
}
