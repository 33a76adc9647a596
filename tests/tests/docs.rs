//! The reference that provider authors read names all that the contract has.

use capstan_tests::plane::root;

#[test]
fn the_contract_page_names_every_function_of_the_wit_package() {
    let page = std::fs::read_to_string(root().join("docs/contract.md")).expect("docs/contract.md");
    let wit = std::fs::read_to_string(root().join("wit/provider-0.1/provider.wit")).expect("provider.wit");
    let mut functions = 0;
    for line in wit.lines() {
        let line = line.trim();
        let Some((name, rest)) = line.split_once(": ") else { continue };
        if line.starts_with("//") || !rest.starts_with("func(") {
            continue;
        }
        functions += 1;
        assert!(
            page.contains(&format!("`{name}`")) || page.contains(&format!(".{name}`")),
            "docs/contract.md says nothing of {name}"
        );
    }
    assert!(functions > 50, "only {functions} functions found: the test reads the package wrongly");
}

#[test]
fn links_between_pages_lead_somewhere() {
    let mut links = 0;
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("docs").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "md") {
                pages.push(path);
            }
        }
    }
    for page in pages {
        let text = std::fs::read_to_string(&page).expect("a page");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") || link.starts_with('#') {
                continue;
            }
            links += 1;
            let target = page.parent().expect("a folder").join(link.split('#').next().unwrap_or(link));
            assert!(target.exists(), "{} links to {link}, which is not there", page.display());
        }
    }
    assert!(links > 5);
}
