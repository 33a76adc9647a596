//! Route tables: one for each subnet that is made, as CAPA has them.

use capstan_provider::{Context, Observed, Reason, Result, aws::Query, xml::Element};
use serde::{Deserialize, Serialize};

use crate::{
    cluster::AWSCluster,
    ec2::{self, Class, Resource},
    layout::Subnet,
    network::{INTERNET_GATEWAY, NatGateway, VPC, state},
    spec::Tags,
    tags,
};

/// Where all other traffic goes.
const EVERYWHERE: &str = "0.0.0.0/0";

/// What is known of a route table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TableState {
    /// Its id.
    pub id: String,
    /// Its association with the subnet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub association: Option<String>,
}

/// The route table of a subnet.
pub struct RouteTable {
    /// The subnet.
    pub subnet: Subnet,
    /// The zone whose NAT gateway a private subnet uses; none where there is none.
    pub nat: Option<String>,
}

impl RouteTable {
    /// The part that traffic goes to, and the parameter that names it.
    fn way(&self) -> Option<(String, &'static str, &'static str)> {
        if self.subnet.public {
            return Some((INTERNET_GATEWAY.to_owned(), "GatewayId", "gatewayId"));
        }
        self.nat.as_deref().map(|zone| (NatGateway::name(zone), "NatGatewayId", "natGatewayId"))
    }
}

impl Resource for RouteTable {
    fn part(&self) -> String {
        format!("route-table-{}", self.subnet.name)
    }
    fn class(&self) -> &'static Class {
        &ec2::ROUTE_TABLES
    }
    fn after(&self) -> Vec<String> {
        let mut after = vec![VPC.to_owned(), self.subnet.part()];
        after.extend(self.way().map(|(part, ..)| part));
        after
    }
    fn is_capas(&self, ctx: &Context<AWSCluster>, element: &Element) -> bool {
        let subnet = ctx.id_of(&self.subnet.part()).unwrap_or_default();
        let named = |association: &Element| association.text("subnetId") == subnet;
        !subnet.is_empty() && element.all("associationSet/item").any(named)
    }
    fn tags(&self, ctx: &Context<AWSCluster>) -> Tags {
        let name = format!("{}-rt-{}", ctx.cluster().name(), self.subnet.name);
        tags::of(ctx, &self.part(), name, "common", &[&ctx.spec.additional_tags])
    }
    fn look(&self, ctx: &Context<AWSCluster>, id: &str, element: &Element) -> Result<Observed> {
        let subnet = ctx.id_of(&self.subnet.part()).unwrap_or_default();
        let association = element
            .all("associationSet/item")
            .find(|association| association.text("subnetId") == subnet && association.text("main") != "true")
            .map(|association| association.text("routeTableAssociationId").to_owned());
        let mut seen = Observed::new(id, &TableState { id: id.to_owned(), association: association.clone() })?;
        let mut whole = true;
        if let Some((part, _, field)) = self.way() {
            let target = ctx.id_of(&part).unwrap_or_default();
            let route = element.all("routeSet/item").find(|route| route.text("destinationCidrBlock") == EVERYWHERE);
            let code = match route {
                None => Some("AddRoute"),
                Some(route) if route.text(field) != target || route.text("state") == "blackhole" => {
                    Some("ReplaceRoute")
                }
                Some(_) => None,
            };
            if let Some(code) = code {
                whole = false;
                seen = seen.todo(code, format!("routing {EVERYWHERE} in {id} to {target}"));
            }
        }
        if association.is_none() {
            whole = false;
            seen = seen.todo("Associate", format!("associating {id} with {subnet}"));
        }
        Ok(seen.ready(whole))
    }
    fn make(&self, ctx: &Context<AWSCluster>) -> Result<Query> {
        let token = ctx.known(&self.part()).unwrap_or_default().idempotency_key;
        Ok(crate::ec2("CreateRouteTable").set("VpcId", ctx.id_of(VPC)?).set("ClientToken", token))
    }
    fn made(&self) -> &'static str {
        "routeTable/routeTableId"
    }
    fn step(&self, ctx: &Context<AWSCluster>, id: &str, code: &str) -> Result<Query> {
        if code == "Associate" {
            let subnet = ctx.id_of(&self.subnet.part())?;
            return Ok(crate::ec2("AssociateRouteTable").set("RouteTableId", id).set("SubnetId", subnet));
        }
        let action = if code == "AddRoute" { "CreateRoute" } else { "ReplaceRoute" };
        let query = crate::ec2(action).set("RouteTableId", id).set("DestinationCidrBlock", EVERYWHERE);
        Ok(match self.way() {
            Some((part, parameter, _)) => query.set(parameter, ctx.id_of(&part)?),
            None => query,
        })
    }
    fn unmake(&self, ctx: &Context<AWSCluster>, id: &str) -> Result<std::result::Result<Query, Reason>> {
        let association = state::<TableState>(ctx, &self.part())?.and_then(|state| state.association);
        Ok(Ok(match association {
            Some(association) => crate::ec2("DisassociateRouteTable").set("AssociationId", association),
            None => crate::ec2("DeleteRouteTable").set("RouteTableId", id),
        }))
    }
}
