//! The HTTP API of the cloud.

use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::faults::Faults;
use super::machine::Fault;
use super::record::{MachineSpec, MachineState};
use super::{Cloud, Refusal, lock};

/// The largest request.
const MAX_BODY: usize = 16 << 20;
/// The largest boot data, decoded.
const MAX_USER_DATA: usize = 4 << 20;

type Shared = State<Arc<Cloud>>;

/// Serves the API until the cloud stops.
pub(super) async fn serve(cloud: Arc<Cloud>, listener: TcpListener) {
    let faults = Router::new().route("/v1/faults", get(show_faults).put(set_faults).delete(clear_faults));
    let router = Router::new()
        .route("/v1/load-balancers", get(list_load_balancers).post(create_load_balancer))
        .route("/v1/load-balancers/{name}", get(show_load_balancer).delete(delete_load_balancer))
        .route("/v1/machines", get(list_machines).post(create_machine))
        .route("/v1/machines/{name}", get(show_machine).delete(delete_machine))
        .route("/v1/machines/{name}/faults", post(strike_machine))
        .route("/v1/clusters", get(list_clusters))
        .layer(middleware::from_fn_with_state(cloud.clone(), suffer))
        .merge(faults)
        .fallback(|| async {
            failure(
                StatusCode::NOT_FOUND,
                "NotFound",
                "there is no such path; see /v1/machines, /v1/load-balancers",
                None,
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(cloud.clone());
    let stop = cloud.stop.clone();
    let served = axum::serve(listener, router).with_graceful_shutdown(async move { stop.cancelled().await }).await;
    if let Err(error) = served {
        tracing::error!(%error, "the API of the simulated cloud has ended");
    }
}

fn failure(status: StatusCode, code: &str, message: &str, field: Option<&str>) -> Response {
    let mut error = json!({"code": code, "message": message});
    if let (Some(field), Some(map)) = (field, error.as_object_mut()) {
        map.insert("field".into(), field.into());
    }
    (status, axum::Json(json!({ "error": error }))).into_response()
}

fn invalid(field: &str, reason: impl Into<String>) -> Refusal {
    Refusal::Invalid { field: field.to_owned(), reason: reason.into() }
}

fn missing(what: &str, name: &str) -> Response {
    failure(StatusCode::NOT_FOUND, "NotFound", &format!("there is no {what} {name}"), None)
}

fn refused(refusal: Refusal) -> Response {
    match refusal {
        Refusal::Taken { what, name, owner } => {
            let message = format!("there is a {what} {name} already; its owner is {owner}");
            failure(StatusCode::CONFLICT, "AlreadyExists", &message, None)
        }
        Refusal::Invalid { field, reason } => {
            failure(StatusCode::BAD_REQUEST, "InvalidField", &format!("{field}: {reason}"), Some(&field))
        }
        Refusal::Missing => failure(StatusCode::NOT_FOUND, "NotFound", "it is gone", None),
        Refusal::Internal(reason) => failure(StatusCode::INTERNAL_SERVER_ERROR, "Internal", &reason, None),
    }
}

/// The faults of the API: late, or an error instead of the answer.
async fn suffer(State(cloud): Shared, request: Request, next: Next) -> Response {
    let fault = lock(&cloud.faults).strike(request.method().as_str());
    let Some(fault) = fault else {
        return next.run(request).await;
    };
    let answer = match fault.status {
        Some(_) if !fault.carried_out => None,
        _ => Some(next.run(request).await),
    };
    tokio::time::sleep(fault.delay).await;
    match (fault.status, answer) {
        (None, Some(answer)) => answer,
        (status, _) => {
            let status = status.and_then(|s| StatusCode::from_u16(s).ok()).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
            failure(status, "InjectedFault", "somebody asked the simulated cloud to answer like this", None)
        }
    }
}

#[derive(Deserialize)]
struct Owned {
    owner: Option<String>,
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let valid = !name.is_empty()
        && name.len() <= 253
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-');
    if valid { Ok(()) } else { Err(invalid("name", "must be 1 to 253 characters of a-z, 0-9, `.` and `-`")) }
}

fn check_owner(owner: &str) -> Result<(), Refusal> {
    if owner.is_empty() || owner.len() > 1024 { Err(invalid("owner", "must be 1 to 1024 characters")) } else { Ok(()) }
}

fn parse<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    // serde_json's messages may quote values; line and column do not.
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        let field = text.split('`').nth(1).unwrap_or("body").to_owned();
        let reason = match error.classify() {
            serde_json::error::Category::Data if text.starts_with("missing field") => "is missing".to_owned(),
            serde_json::error::Category::Data if text.starts_with("unknown field") => "is not known".to_owned(),
            _ => format!("is not what is expected at line {}, column {}", error.line(), error.column()),
        };
        invalid(&field, reason)
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewLoadBalancer {
    name: String,
    owner: String,
    #[serde(default = "api_port")]
    port: u16,
}

fn api_port() -> u16 {
    6443
}

async fn create_load_balancer(State(cloud): Shared, body: Bytes) -> Response {
    let create = || -> Result<Value, Refusal> {
        let order: NewLoadBalancer = parse(&body)?;
        check_name(&order.name)?;
        check_owner(&order.owner)?;
        if order.port == 0 {
            return Err(invalid("port", "must be from 1 to 65535"));
        }
        let made = cloud.create_load_balancer(order.name, order.owner, order.port)?;
        Ok(made.record.show())
    };
    match create() {
        Ok(shown) => (StatusCode::CREATED, axum::Json(shown)).into_response(),
        Err(refusal) => refused(refusal),
    }
}

async fn list_load_balancers(State(cloud): Shared, Query(owned): Query<Owned>) -> Response {
    let items: Vec<Value> = cloud.load_balancers(owned.owner.as_deref()).iter().map(|b| b.record.show()).collect();
    axum::Json(json!({ "items": items })).into_response()
}

async fn show_load_balancer(State(cloud): Shared, Path(name): Path<String>) -> Response {
    match cloud.load_balancer(&name) {
        Some(balancer) => axum::Json(balancer.record.show()).into_response(),
        None => missing("load balancer", &name),
    }
}

async fn delete_load_balancer(State(cloud): Shared, Path(name): Path<String>) -> Response {
    match cloud.delete_load_balancer(&name) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(Refusal::Missing) => missing("load balancer", &name),
        Err(refusal) => refused(refusal),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NewMachine {
    name: String,
    owner: String,
    #[serde(default)]
    load_balancer: Option<String>,
    #[serde(default)]
    control_plane: bool,
    #[serde(default)]
    failure_domain: Option<String>,
    #[serde(default = "one")]
    cpus: u32,
    #[serde(default = "one_gib", rename = "memoryMiB")]
    memory_mib: u64,
    #[serde(default)]
    kubernetes_version: Option<String>,
    user_data: String,
    #[serde(default = "cloud_config")]
    user_data_format: String,
    #[serde(default)]
    address: Option<Ipv4Addr>,
    #[serde(default, rename = "providerID")]
    provider_id: Option<String>,
}

fn one() -> u32 {
    1
}

fn one_gib() -> u64 {
    1024
}

fn cloud_config() -> String {
    "cloud-config".to_owned()
}

fn order(body: &[u8]) -> Result<MachineSpec, Refusal> {
    let order: NewMachine = parse(body)?;
    check_name(&order.name)?;
    check_owner(&order.owner)?;
    if order.cpus == 0 || order.cpus > 1024 {
        return Err(invalid("cpus", "must be from 1 to 1024"));
    }
    if order.memory_mib == 0 || order.memory_mib > 64 << 20 {
        return Err(invalid("memoryMiB", "must be from 1 to 67108864"));
    }
    let user_data = base64::engine::general_purpose::STANDARD
        .decode(&order.user_data)
        .map_err(|_| invalid("userData", "must be base64 with padding"))?;
    if user_data.len() > MAX_USER_DATA {
        return Err(invalid("userData", format!("is {} bytes; at most {MAX_USER_DATA} are taken", user_data.len())));
    }
    if order.address.is_some_and(|address| !address.is_loopback() && !address.is_private()) {
        return Err(invalid("address", "must be a loopback or private address; leave it out and one is chosen"));
    }
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(MachineSpec {
        name: order.name,
        owner: order.owner,
        load_balancer: filled(order.load_balancer),
        control_plane: order.control_plane,
        failure_domain: filled(order.failure_domain),
        cpus: order.cpus,
        memory_mib: order.memory_mib,
        kubernetes_version: filled(order.kubernetes_version),
        user_data,
        user_data_format: order.user_data_format,
        address: order.address.unwrap_or(Ipv4Addr::UNSPECIFIED),
        listens: order.address.is_some(),
        foreign_provider_id: order.provider_id,
    })
}

async fn create_machine(State(cloud): Shared, body: Bytes) -> Response {
    let made = order(&body).and_then(|spec| cloud.create_machine(spec));
    match made {
        Ok(machine) => (StatusCode::CREATED, axum::Json(machine.status().show(&machine.spec))).into_response(),
        Err(refusal) => refused(refusal),
    }
}

async fn list_machines(State(cloud): Shared, Query(owned): Query<Owned>) -> Response {
    let machines = cloud.machines(owned.owner.as_deref());
    let items: Vec<Value> = machines.iter().map(|machine| machine.look(|status| status.show(&machine.spec))).collect();
    axum::Json(json!({ "items": items })).into_response()
}

async fn show_machine(State(cloud): Shared, Path(name): Path<String>) -> Response {
    match cloud.machine(&name) {
        Some(machine) => axum::Json(machine.look(|status| status.show(&machine.spec))).into_response(),
        None => missing("machine", &name),
    }
}

async fn delete_machine(State(cloud): Shared, Path(name): Path<String>) -> Response {
    let Some(machine) = cloud.machine(&name) else {
        return missing("machine", &name);
    };
    if machine.look(|status| status.state) != MachineState::Deleting {
        machine.delete();
    }
    (StatusCode::ACCEPTED, axum::Json(machine.look(|status| status.show(&machine.spec)))).into_response()
}

#[derive(Deserialize)]
struct Strike {
    fault: Value,
}

async fn strike_machine(State(cloud): Shared, Path(name): Path<String>, body: Bytes) -> Response {
    let Some(machine) = cloud.machine(&name) else {
        return missing("machine", &name);
    };
    let fault = match parse::<Strike>(&body).map(|strike| serde_json::from_value::<Fault>(strike.fault)) {
        Ok(Ok(fault)) => fault,
        Ok(Err(_)) => {
            let known = "must be stop, start, kill, fail, freeze, thaw, lose, cut-network or restore-network";
            return refused(invalid("fault", known));
        }
        Err(refusal) => return refused(refusal),
    };
    if !machine.strike(fault) {
        let state = machine.look(|status| status.state);
        return failure(StatusCode::CONFLICT, "WrongState", &format!("machine {name} is {state:?}"), None);
    }
    if fault == Fault::Lose {
        return StatusCode::NO_CONTENT.into_response();
    }
    axum::Json(machine.look(|status| status.show(&machine.spec))).into_response()
}

async fn list_clusters(State(cloud): Shared) -> Response {
    axum::Json(cloud.show_clusters()).into_response()
}

async fn show_faults(State(cloud): Shared) -> Response {
    axum::Json(lock(&cloud.faults).show()).into_response()
}

async fn set_faults(State(cloud): Shared, body: Bytes) -> Response {
    match Faults::read(&body) {
        Ok(faults) => {
            let shown = faults.show();
            *lock(&cloud.faults) = faults;
            axum::Json(shown).into_response()
        }
        Err((field, reason)) => refused(invalid(field, reason)),
    }
}

async fn clear_faults(State(cloud): Shared) -> Response {
    *lock(&cloud.faults) = Faults::default();
    StatusCode::NO_CONTENT.into_response()
}
