//! `capstan simulator`: a client of the simulated cloud's HTTP API.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use reqwest::Method;
use serde_json::{Value, json};

use crate::args::{Cloud, Output, SimulatorCommand};
use crate::state_dir;

/// How long the simulated cloud may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);

/// Carries a command out.
///
/// # Errors
/// When the cloud cannot be reached or refuses.
pub async fn command(command: SimulatorCommand) -> Result<ExitCode> {
    match command {
        SimulatorCommand::Serve { listen, state_dir } => crate::up::serve_simulator(listen, state_dir).await?,
        SimulatorCommand::List { cloud, output } => list(&address(&cloud)?, output).await?,
        SimulatorCommand::Fault { cloud, machine, fault } => {
            let path = format!("/v1/machines/{}/faults", encode(&machine));
            ask(&address(&cloud)?, Method::POST, &path, Some(json!({"fault": fault}))).await?;
            say!("{machine}: {fault}");
        }
        SimulatorCommand::Faults { cloud, boot_delay, api_status, api_delay, api_count } => {
            let address = address(&cloud)?;
            let mut faults = serde_json::Map::new();
            if let Some(delay) = boot_delay {
                faults.insert("bootDelay".into(), delay.into());
            }
            if api_status.is_some() || api_delay.is_some() {
                let api: serde_json::Map<String, Value> = [
                    ("status", api_status.map(Value::from)),
                    ("delay", api_delay.map(Value::from)),
                    ("count", api_count.map(Value::from)),
                ]
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?)))
                .collect();
                faults.insert("api".into(), api.into());
            }
            if faults.is_empty() {
                ask(&address, Method::DELETE, "/v1/faults", None).await?;
                say!("the cloud is well");
            } else {
                ask(&address, Method::PUT, "/v1/faults", Some(faults.into())).await?;
                say!("the cloud is faulty");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The address that is meant: given, or that of the state directory.
fn address(cloud: &Cloud) -> Result<String> {
    if let Some(address) = &cloud.address {
        return Ok(address.trim_end_matches('/').to_owned());
    }
    let path = match &cloud.state_dir {
        Some(path) => path.clone(),
        None => state_dir::default_path()?,
    };
    let port = state_dir::simulator_port(&path)?.with_context(|| {
        format!("no simulated cloud was ever served from {}; say where it is with --address URL", path.display())
    })?;
    Ok(format!("http://127.0.0.1:{port}"))
}

async fn ask(address: &str, method: Method, path: &str, body: Option<Value>) -> Result<Value> {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().context("make an HTTP client")?;
    let url = format!("{address}{path}");
    let mut request = client.request(method.clone(), &url);
    if let Some(body) = &body {
        request = request.json(body);
    }
    let response = request.send().await.with_context(|| {
        format!("cannot reach the simulated cloud at {address}; is `capstan up` running? (--address URL names another)")
    })?;
    let status = response.status();
    let text = response.text().await.unwrap_or_default();
    if !status.is_success() {
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        let message = told.pointer("/error/message").and_then(Value::as_str).unwrap_or(&text).to_owned();
        bail!("the simulated cloud refused {method} {path}: {message} ({status})");
    }
    if text.is_empty() {
        Ok(Value::Null)
    } else {
        serde_json::from_str(&text).context("read the simulated cloud's answer")
    }
}

async fn list(address: &str, output: Output) -> Result<()> {
    let machines = ask(address, Method::GET, "/v1/machines", None).await?;
    let balancers = ask(address, Method::GET, "/v1/load-balancers", None).await?;
    if output == Output::Json {
        let both = json!({"machines": machines.get("items"), "loadBalancers": balancers.get("items")});
        say!("{}", serde_json::to_string_pretty(&both).context("encode the list")?);
        return Ok(());
    }
    let rows = |list: &Value, columns: &[&str]| -> Vec<Vec<String>> {
        list.get("items")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|item| columns.iter().map(|column| item.get(*column).map(cell).unwrap_or_default()).collect())
            .collect()
    };
    let machine_columns = ["name", "state", "providerID", "addresses", "bootError"];
    table("MACHINE|STATE|PROVIDER ID|ADDRESSES|BOOT ERROR", rows(&machines, &machine_columns));
    say!();
    table("LOAD BALANCER|STATE|ADDRESS|PORT", rows(&balancers, &["name", "state", "address", "port"]));
    Ok(())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            items.iter().map(|item| cell(item.get("address").unwrap_or(item))).collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

fn table(head: &str, rows: Vec<Vec<String>>) {
    let mut all = vec![head.split('|').map(str::to_owned).collect::<Vec<_>>()];
    all.extend(rows);
    let columns = all.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|c| all.iter().filter_map(|row| row.get(c)).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    for row in &all {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say!("{}", line.join("   ").trim_end());
    }
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(b).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}
