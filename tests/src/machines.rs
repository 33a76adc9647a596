//! Machines that boot: first-boot data carried out by a simulated machine, at an address that was given to it.
//!
//! Test servers of clouds run nothing. Who stands in for a hypervisor orders a machine here for each one that its test
//! server shows as running, with the user data that it was given there, and takes it away when it is gone there. The
//! simulated machine reads the data as cloud-init would, and a stand-in for kubeadm makes it a Node; nobody else makes one.
//!
//! Addresses must be this computer's: 127.0.0.0/8, or any private ones inside a network of the test's own ([`crate::lab`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result};
use base64::Engine as _;
use capstan_simulator::{Simulator, SimulatorOptions};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http::{Client, runtime};

/// A machine to boot.
#[derive(Clone, Debug)]
pub struct Boot<'a> {
    /// Unique, of `a-z0-9-`.
    pub name: &'a str,
    /// Its host name, as its metadata says.
    pub hostname: &'a str,
    /// Its address; its API server listens there, if it comes to have one.
    pub address: Ipv4Addr,
    /// What its cloud writes into `spec.providerID` of its Node; empty where no cloud does.
    pub provider_id: &'a str,
    /// What the cloud calls the place it runs in.
    pub zone: &'a str,
    /// CPUs.
    pub cpus: u64,
    /// MiB.
    pub memory_mib: u64,
    /// The user data as the machine finds it.
    pub user_data: &'a [u8],
}

/// The simulated machines of a test.
pub struct Machines {
    client: Client,
    simulator: Simulator,
}

impl Machines {
    /// None yet.
    ///
    /// # Errors
    /// When the simulated cloud behind it cannot listen.
    pub fn start(client: &Client) -> Result<Self> {
        // A Node whose machine has gone is not waited for as long as in the field.
        let options = SimulatorOptions { node_grace: Duration::from_secs(5), ..SimulatorOptions::default() };
        let simulator = runtime().block_on(Simulator::start(options))?;
        Ok(Self { client: client.clone(), simulator })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/v1/{path}", self.simulator.address())
    }

    /// Switches a new machine on.
    ///
    /// # Errors
    /// When its name or address is taken.
    pub fn boot(&self, boot: &Boot<'_>) -> Result<()> {
        let order = json!({
            "name": format!("{}.{}", boot.name, boot.hostname), "owner": boot.name, "address": boot.address,
            "providerID": boot.provider_id, "failureDomain": boot.zone, "cpus": boot.cpus, "memoryMiB": boot.memory_mib,
            "userData": base64::engine::general_purpose::STANDARD.encode(boot.user_data), "userDataFormat": "cloud-config",
        });
        self.client.ask("POST", &self.url("machines"), Some(&order)).map(drop)
    }

    /// What the machine shows of itself: `state`, `node`, `bootError`, `console`, …
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn look(&self, name: &str) -> Result<Value> {
        let found = self.client.ask("GET", &self.url(&format!("machines?owner={name}")), None)?;
        found["items"].get(0).cloned().with_context(|| format!("there is no machine {name}"))
    }

    /// All machines, as [`Machines::look`] shows them.
    ///
    /// # Errors
    /// When the simulated cloud does not answer.
    pub fn all(&self) -> Result<Vec<Value>> {
        Ok(self.client.ask("GET", &self.url("machines"), None)?["items"].as_array().cloned().unwrap_or_default())
    }

    /// Does something to a machine: `stop`, `start`, `kill`, `freeze`, `thaw`, `cut-network`, `restore-network`.
    ///
    /// # Errors
    /// When there is none of that name, or it makes no sense.
    pub fn strike(&self, name: &str, fault: &str) -> Result<()> {
        let full = self.look(name)?["name"].as_str().unwrap_or_default().to_owned();
        self.client.ask("POST", &self.url(&format!("machines/{full}/faults")), Some(&json!({"fault": fault}))).map(drop)
    }

    /// Takes a machine away, as one whose disk is gone.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn remove(&self, name: &str) -> Result<()> {
        let full = self.look(name)?["name"].as_str().unwrap_or_default().to_owned();
        self.client
            .ask("POST", &self.url(&format!("machines/{full}/faults")), Some(&json!({"fault": "lose"})))
            .map(drop)
    }

    /// Forwards connections to the first of the addresses that takes them, as a load balancer or kube-vip would.
    ///
    /// # Errors
    /// When `listen` cannot be listened on.
    pub fn forward(
        &self,
        listen: SocketAddr,
        targets: impl Fn() -> Vec<SocketAddr> + Send + Sync + 'static,
    ) -> Result<Forward> {
        let listener = runtime()
            .block_on(TcpListener::bind(listen))
            .with_context(|| format!("listen on the endpoint {listen}"))?;
        Ok(Forward(runtime().spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let targets = targets();
                tokio::spawn(async move {
                    for target in targets {
                        if let Ok(mut far) = TcpStream::connect(target).await {
                            let _ = near.set_nodelay(true);
                            let _ = far.set_nodelay(true);
                            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                            return;
                        }
                    }
                });
            }
        })))
    }
}

/// An address whose connections are forwarded; it ends with this.
pub struct Forward(JoinHandle<()>);

impl Drop for Forward {
    fn drop(&mut self) {
        self.0.abort();
    }
}
