//! The Secret `<cluster>-kubeconfig`: made once there is an authority and an endpoint, and made anew before its
//! certificate runs out. One that a user brought along is left alone.

use capstan_api::Object;

use crate::certificate::{client_certificate, validity};
use crate::cluster_input::server_url;
use crate::contract::HostPort;
use crate::needs::{Offers, cluster_secret, data, text};
use crate::plan::{KubeconfigSecret, Plan, Write};

/// Validity of the client certificate, in days.
const VALIDITY_DAYS: u32 = 365;

/// Puts the making of the kubeconfig on the plan, when it is missing or more than half of its life is over.
pub(super) fn keep(plan: &mut Plan, object: &Object, cluster: &str, endpoint: &HostPort, offers: &Offers, now: u64) {
    let name = format!("{cluster}-kubeconfig");
    let ca_secret = format!("{cluster}-ca");
    // Without the private half (an authority that is kept elsewhere) a user has to bring the kubeconfig along.
    if offers.secrets.get(&ca_secret).and_then(|ca| data(ca, "tls.key")).is_none() {
        return;
    }
    if let Some(known) = offers.secrets.get(&name) {
        let ours = known.controller().is_some_and(|controller| controller.uid == object.uid());
        let life = text(known, "value").and_then(|text| client_certificate(&text)).and_then(|pem| validity(&pem).ok());
        let fresh = life.is_none_or(|(from, to)| now < from + (to.saturating_sub(from)) / 2);
        if !ours || fresh {
            return;
        }
    }
    plan.writes.push(Write::MintKubeconfig(KubeconfigSecret {
        secret: cluster_secret(&offers.namespace, &name, cluster, Some(&object.as_owner(true))),
        cluster: cluster.to_owned(),
        server: server_url(endpoint),
        ca_secret,
        validity_days: VALIDITY_DAYS,
    }));
}
