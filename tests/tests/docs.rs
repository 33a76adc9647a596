//! The reference that provider authors read names all that the contract has, and each provider's page is true.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use capstan_tests::plane::{Plane, Up, binary, free_port, root};
use serde_json::Value;

/// Providers with a page in `docs/providers`.
const PAGES: [&str; 3] = ["aws", "docker", "proxmox"];

fn page(provider: &str) -> Result<String> {
    Ok(std::fs::read_to_string(root().join(format!("docs/providers/{provider}.md")))?)
}

/// What is between each of these and the next: code, if they are backticks.
fn between<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(begin).skip(1).filter_map(move |rest| rest.split_once(end)).map(|(inside, _)| inside)
}

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

/// All names of fields in a schema, at any depth.
fn fields(schema: &Value, found: &mut BTreeSet<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(name.clone());
        fields(property, found);
    }
    for nested in ["items", "additionalProperties"] {
        if schema[nested].is_object() {
            fields(&schema[nested], found);
        }
    }
}

#[test]
fn a_providers_page_names_every_field_of_its_kinds() -> Result<()> {
    for provider in PAGES {
        let page = page(provider)?;
        let words: BTreeSet<&str> = page
            .split('`')
            .skip(1)
            .step_by(2)
            .flat_map(|code| code.split(|c: char| !c.is_ascii_alphanumeric()))
            .collect();
        let component = root().join(format!("target/providers/{provider}.wasm"));
        let inspected = Command::new(binary()).args(["provider", "inspect"]).arg(&component).output()?;
        let inspected: Value = serde_json::from_slice(&inspected.stdout).context("no components; run `make build`")?;
        let mut found = BTreeSet::new();
        for crd in inspected["crds"].as_array().context("no kinds")? {
            let stored = crd["versions"].as_array().into_iter().flatten().find(|version| version["storage"] == true);
            fields(&stored.context("no version")?["schema"]["properties"]["spec"], &mut found);
        }
        ensure!(found.len() > 10, "{provider}: {found:?} is not all: the schemas are read wrongly");
        let missing: Vec<&String> = found.iter().filter(|field| !words.contains(field.as_str())).collect();
        ensure!(missing.is_empty(), "docs/providers/{provider}.md says nothing of {missing:?}");
    }
    Ok(())
}

#[test]
fn no_provider_is_larger_than_a_megabyte() -> Result<()> {
    let directory = root().join("target/providers");
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).context("no components; run `make build`")? {
        let entry = entry?;
        seen += 1;
        let size = entry.metadata()?.len();
        ensure!(size <= 1_000_000, "{} has {size} bytes", entry.path().display());
    }
    ensure!(seen > 5, "{seen} components");
    Ok(())
}

/// How many lines of a source are not its tests, which stand at its end.
fn lines(source: &str) -> usize {
    let tests = ["mod tests", "pub mod tests", "#[path"];
    let end =
        tests.iter().filter_map(|tests| source.find(&format!("\n#[cfg(test)]\n{tests}"))).min().unwrap_or(source.len());
    source.get(..end).unwrap_or_default().lines().count()
}

/// A page's section of sizes as it should be: each row of its table names the files that it counts.
fn counted(provider: &str, section: &str) -> Result<String> {
    let sources = root().join(format!("providers/{provider}/src"));
    let mut uncounted = BTreeSet::new();
    for entry in std::fs::read_dir(&sources)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rs") && !name.ends_with("_tests.rs") && name != "testing.rs" {
            uncounted.insert(name);
        }
    }
    let (mut total, mut text) = (0, String::new());
    for line in section.lines() {
        let files: Vec<&str> = line.split('`').filter(|code| code.ends_with(".rs")).collect();
        let cells: Vec<&str> = line.split('|').collect();
        if let ["", part, _, ""] = cells.as_slice()
            && (!files.is_empty() || part.trim() == "together")
        {
            let mut count = 0;
            for file in files {
                ensure!(uncounted.remove(file), "{provider}: {file} is counted twice, or is not there");
                count += lines(&std::fs::read_to_string(sources.join(file))?);
            }
            total += count;
            let shown = if part.trim() == "together" { total } else { count };
            text.push_str(&format!("|{part}| {shown} |\n"));
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }
    ensure!(uncounted.is_empty(), "docs/providers/{provider}.md counts the lines of all but {uncounted:?}");
    Ok(text)
}

/// Where a count is wrong it is corrected, which is to be committed.
#[test]
fn lines_are_counted_by_part() -> Result<()> {
    let mut corrected = Vec::new();
    for provider in PAGES {
        let page = page(provider)?;
        let (before, section) = page.split_once("\n## Its lines\n").with_context(|| format!("{provider}: no lines"))?;
        let (section, after) = section
            .split_once("\n## ")
            .map_or((section, String::new()), |(section, after)| (section, format!("\n## {after}")));
        let now = format!("{before}\n## Its lines\n{}{after}", counted(provider, section)?);
        if now != page {
            std::fs::write(root().join(format!("docs/providers/{provider}.md")), now)?;
            corrected.push(provider);
        }
    }
    ensure!(corrected.is_empty(), "the pages of {corrected:?} counted other lines; they are corrected: commit them");
    Ok(())
}

#[test]
fn what_users_ran_into_is_in_the_name_of_a_test() -> Result<()> {
    let mut numbers = 0;
    for provider in PAGES {
        let mut tests = String::new();
        for entry in std::fs::read_dir(root().join(format!("providers/{provider}/src")))? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let source = std::fs::read_to_string(path)?;
            for name in between(&source, "#[test]\n    fn ", "(").chain(between(&source, "#[test]\nfn ", "(")) {
                tests.push_str(&format!("_{name}_"));
            }
        }
        let page = page(provider)?;
        let Some((_, section)) = page.split_once("\n## What users ") else { continue };
        let section = section.split("\n## ").next().unwrap_or_default();
        for number in section.split('#').skip(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()) {
            let number = number.unwrap_or_default();
            numbers += 1;
            ensure!(tests.contains(&format!("_{number}_")), "{provider}: no test has {number} in its name");
        }
    }
    ensure!(numbers > 25, "only {numbers} found: the pages are read wrongly");
    Ok(())
}

#[test]
fn the_rights_in_the_page_are_those_of_the_tests() -> Result<()> {
    let page = page("aws")?;
    let shown: Value = serde_json::from_str(between(&page, "```json\n", "```").next().context("no policy")?)?;
    let used: Value = serde_json::from_str(&std::fs::read_to_string(root().join("tests/moto/policy.json"))?)?;
    ensure!(shown == used, "docs/providers/aws.md and tests/moto/policy.json differ");
    Ok(())
}

#[test]
fn what_is_to_be_copied_out_of_a_page_is_taken() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let up = Up { files: vec![root().join("examples/quickstart.yaml")], ..Up::default() };
    let mut plane = Plane::start(&dir.path().join("state"), free_port(), &up)?;
    plane.wait_applied(std::time::Duration::from_secs(60))?;
    let file = dir.path().join("copied.yaml");
    let mut copied = 0;
    for provider in PAGES {
        let page = page(provider)?;
        for manifest in between(&page, "```yaml\n", "```") {
            for namespace in between(manifest, "namespace: ", "}") {
                let _ = plane.kubectl(&["create", "namespace", namespace]);
            }
            std::fs::write(&file, manifest)?;
            let taken = plane.kubectl(&["apply", "--dry-run=server", "-f", &file.display().to_string()]);
            taken.with_context(|| format!("docs/providers/{provider}.md: {manifest}"))?;
            copied += 1;
        }
    }
    ensure!(copied > 3, "only {copied} manifests");
    Ok(())
}
