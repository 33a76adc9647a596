//! A cluster is one load balancer in front of its control-plane machines.

use std::collections::BTreeMap;

use capstan_provider::{
    Choice, ClusterFacts, ClusterKind, Condition, Context, FailureDomain, HostPort, Kind, Observed, Part, Presence,
    Progress, Result, Schema, http, infrastructure::PartsOf, json,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{API, cloud_name};

/// The part's name, by which machines find the load balancer.
pub const LOAD_BALANCER: &str = "load-balancer";

/// A cluster in the simulated cloud: a load balancer and the failure domains that machines may be placed in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Schema, Kind)]
#[serde(rename_all = "camelCase")]
#[kind(name = "SimulatedCluster", version = "v1beta1", status = SimulatedClusterStatus)]
pub struct SimulatedCluster {
    /// Where machines may be placed.
    #[serde(default)]
    #[schema(map_key = "name", max_items = 100)]
    pub failure_domains: Vec<Domain>,
}

/// A place that fails on its own.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct Domain {
    /// Its name.
    #[schema(min_length = 1, max_length = 256)]
    pub name: String,
    /// Control-plane machines may be placed there.
    #[serde(default)]
    pub control_plane: bool,
    /// Free attributes.
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
}

/// What is known of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Schema)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedClusterStatus {
    /// The load balancer.
    pub load_balancer: Option<LoadBalancerState>,
}

/// A load balancer, as the API describes it and as machines of the cluster read it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Schema)]
pub struct LoadBalancerState {
    /// Its name.
    pub name: String,
    /// The address that it listens on.
    pub address: String,
    /// The port that it listens on.
    pub port: u16,
    /// `active` once it forwards.
    pub state: String,
}

impl LoadBalancerState {
    fn active(&self) -> bool {
        self.state == "active"
    }
}

impl PartsOf for SimulatedCluster {
    fn parts(_ctx: &Context<Self>) -> Result<Vec<Box<dyn Part<Self>>>> {
        Ok(vec![Box::new(LoadBalancer)])
    }
}

impl ClusterKind for SimulatedCluster {
    fn report(ctx: &Context<Self>) -> Result<ClusterFacts> {
        let state: Option<LoadBalancerState> = match ctx.known(LOAD_BALANCER) {
            Some(known) => known.state()?,
            None => None,
        };
        let active = state.as_ref().filter(|state| state.active());
        Ok(ClusterFacts {
            control_plane_endpoint: active.map(|state| HostPort { host: state.address.clone(), port: state.port }),
            failure_domains: ctx
                .spec
                .failure_domains
                .iter()
                .map(|domain| FailureDomain {
                    name: domain.name.clone(),
                    control_plane: domain.control_plane,
                    attributes: domain.attributes.clone().into_iter().collect(),
                })
                .collect(),
            conditions: vec![match active {
                Some(_) => Condition::new("LoadBalancerAvailable", Some(true), "LoadBalancerAvailable", ""),
                None => Condition::new(
                    "LoadBalancerAvailable",
                    Some(false),
                    "LoadBalancerNotAvailable",
                    "the load balancer does not forward yet",
                ),
            }],
            status: json::text(&SimulatedClusterStatus { load_balancer: state })?,
        })
    }
}

/// The load balancer: its address is the cluster's endpoint, so one that has vanished is made anew.
struct LoadBalancer;

/// What the API says about a load balancer.
#[derive(Deserialize)]
struct Answer {
    owner: String,
    #[serde(flatten)]
    state: LoadBalancerState,
}

impl Part<SimulatedCluster> for LoadBalancer {
    fn name(&self) -> String {
        LOAD_BALANCER.to_owned()
    }

    fn identify(&self, ctx: &Context<SimulatedCluster>, _reserved: &[String]) -> Result<Choice> {
        Ok(Choice::chosen(cloud_name(ctx)))
    }

    fn observe(&self, ctx: &Context<SimulatedCluster>) -> Result<Presence> {
        let name = cloud_name(ctx);
        let Some(answer) = http::get(API, "/v1/load-balancers/{}", &[&name]).found()? else {
            return Ok(Presence::absent_by_id());
        };
        let answer: Answer = answer.json()?;
        if answer.owner != ctx.owner_key() {
            return Ok(Presence::foreign("NameTaken", format!("load balancer {name} belongs to {}", answer.owner)));
        }
        Ok(Presence::Present(Observed::new(name, &answer.state)?.ready(answer.state.active())))
    }

    fn create(&self, ctx: &Context<SimulatedCluster>) -> Result<Progress> {
        let name = ctx.id_of(LOAD_BALANCER)?;
        http::post(API, "/v1/load-balancers", &[])
            .json(&json!({"name": name, "owner": ctx.owner_key(), "port": 6443}))?
            .ok()?;
        Ok(Progress::done(name))
    }

    fn delete(&self, ctx: &Context<SimulatedCluster>) -> Result<Progress> {
        let name = ctx.id_of(LOAD_BALANCER)?;
        http::delete(API, "/v1/load-balancers/{}", &[&name]).found()?;
        Ok(Progress::done(name))
    }
}

#[cfg(test)]
mod tests {
    use capstan_provider::{
        Known,
        testing::{Scenario, infrastructure},
    };

    use super::*;
    use crate::Simulated;

    fn known(state: Option<&str>) -> Known {
        Known { id: Some("t.x".to_owned()), state: state.map(ToOwned::to_owned), ..Known::default() }
    }

    fn scenario() -> Scenario {
        Scenario::new(
            "SimulatedCluster",
            json!({"failureDomains": [{"name": "a", "controlPlane": true, "attributes": {"row": "1"}}, {"name": "b"}]}),
        )
    }

    #[test]
    fn the_name_is_chosen_and_creation_carries_the_owner_key() {
        let (choice, _) = scenario().run(|| infrastructure::identify::<Simulated>(LOAD_BALANCER, &[]));
        assert_eq!(choice.unwrap().id.as_deref(), Some("t.x"));
        let (done, sent) = scenario()
            .known(LOAD_BALANCER, known(None))
            .answer("POST /v1/load-balancers", 201, json!({}))
            .run(|| infrastructure::create::<Simulated>(LOAD_BALANCER));
        assert_eq!(done, Ok(Progress::done("t.x")));
        assert_eq!(sent[0].json(), json!({"name": "t.x", "owner": "owner-1", "port": 6443}));
    }

    #[test]
    fn another_owner_is_foreign_and_nothing_is_absent() {
        let (presence, _) = scenario()
            .answer(
                "GET /v1/load-balancers/t.x",
                200,
                json!({"name": "t.x", "owner": "else", "address": "127.1.0.1", "port": 6443, "state": "active"}),
            )
            .run(|| infrastructure::observe::<Simulated>(LOAD_BALANCER));
        assert!(matches!(presence, Ok(Presence::Foreign(_))), "{presence:?}");
        let (presence, _) = scenario()
            .answer("GET /v1/load-balancers/t.x", 404, json!({"error": {"code": "NotFound", "message": "no"}}))
            .run(|| infrastructure::observe::<Simulated>(LOAD_BALANCER));
        assert_eq!(presence, Ok(Presence::absent_by_id()));
    }

    #[test]
    fn the_endpoint_is_reported_once_it_forwards() {
        let state = r#"{"name":"t.x","address":"127.1.0.1","port":6443,"state":"active"}"#;
        let (facts, _) =
            scenario().known(LOAD_BALANCER, known(Some(state))).run(infrastructure::report_cluster::<Simulated>);
        let facts = facts.unwrap();
        assert_eq!(facts.control_plane_endpoint, Some(HostPort { host: "127.1.0.1".to_owned(), port: 6443 }));
        assert_eq!(facts.failure_domains.len(), 2);
        assert!(facts.failure_domains[0].control_plane && !facts.failure_domains[1].control_plane);
        let (facts, _) = scenario().run(infrastructure::report_cluster::<Simulated>);
        assert_eq!(facts.unwrap().control_plane_endpoint, None);
    }
}
