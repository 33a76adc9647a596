//! What haproxy is told: to pass connections on to the control-plane machines that answer.

use std::net::IpAddr;

use capstan_provider::MachineSummary;

use crate::cluster::API_PORT;

/// How many connections there may be. Without a limit haproxy makes room for as many files as its container may open, on some
/// machines a billion, and falls over when it starts.
const CONNECTIONS: u32 = 4000;

/// A machine in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Name of the machine.
    pub name: String,
    address: IpAddr,
}

/// The machines to list. One that is on its way out gets no more connections, unless it is the last.
pub fn servers(machines: &[MachineSummary]) -> Vec<Server> {
    let mut listed: Vec<&MachineSummary> = machines.iter().filter(|machine| machine.control_plane).collect();
    if listed.iter().any(|machine| !machine.deleting && address(machine).is_some()) {
        listed.retain(|machine| !machine.deleting);
    }
    listed.sort_by(|a, b| a.name.cmp(&b.name));
    listed
        .into_iter()
        .filter_map(|machine| Some(Server { name: machine.name.clone(), address: address(machine)? }))
        .collect()
}

fn address(machine: &MachineSummary) -> Option<IpAddr> {
    machine.addresses.iter().find_map(|address| address.parse().ok())
}

/// The configuration, which listens on `port`.
pub fn configuration(servers: &[Server], port: u16) -> String {
    let mut text = format!(
        "global\n  maxconn {CONNECTIONS}\n  hard-stop-after 15m\n\ndefaults\n  mode tcp\n  option dontlognull\n  \
         timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n  timeout tunnel 1h\n  timeout check 2s\n  \
         default-server init-addr none\n\nfrontend control-plane\n  bind *:{port}\n"
    );
    if servers.iter().any(|server| server.address.is_ipv6()) {
        text.push_str(&format!("  bind :::{port} v6only\n"));
    }
    text.push_str(
        "  default_backend api-servers\n\nbackend api-servers\n  balance roundrobin\n  option redispatch\n  retries 3\n",
    );
    for Server { name, address } in servers {
        let address = if address.is_ipv6() { format!("[{address}]") } else { address.to_string() };
        text.push_str(&format!("  server {name} {address}:{API_PORT} check inter 500ms fall 2 rise 1\n"));
    }
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A control-plane machine.
    pub fn machine(name: &str, address: &str, deleting: bool) -> MachineSummary {
        MachineSummary {
            name: name.to_owned(),
            control_plane: true,
            addresses: vec![name.to_owned(), address.to_owned()],
            deleting,
        }
    }

    fn lines(machines: &[MachineSummary]) -> Vec<String> {
        let text = configuration(&servers(machines), 6443);
        text.lines().filter(|line| line.starts_with("  server ")).map(str::to_owned).collect()
    }

    #[test]
    fn only_control_planes_that_stay_get_connections() {
        let all = [machine("b", "10.0.0.4", false), machine("a", "10.0.0.3", false), machine("gone", "10.0.0.5", true)];
        assert_eq!(
            lines(&all),
            [
                "  server a 10.0.0.3:6443 check inter 500ms fall 2 rise 1",
                "  server b 10.0.0.4:6443 check inter 500ms fall 2 rise 1",
            ]
        );
        assert!(lines(&[machine("last", "10.0.0.5", true)])[0].contains("server last"));
        let unborn = MachineSummary { addresses: Vec::new(), ..machine("unborn", "", false) };
        assert_eq!(
            lines(&[machine("last", "10.0.0.5", true), unborn]).len(),
            1,
            "the one that comes cannot answer yet"
        );
        let worker = MachineSummary { control_plane: false, ..machine("w", "10.0.0.6", false) };
        assert!(lines(&[worker]).is_empty());
    }

    #[test]
    fn ports_and_ipv6() {
        let text = configuration(&servers(&[machine("a", "fd00::3", false)]), 8443);
        assert!(text.contains("  bind *:8443\n  bind :::8443 v6only\n") && text.contains(" [fd00::3]:6443 "), "{text}");
        assert!(!configuration(&[], 6443).contains(":::"));
    }

    /// Cluster API's issue 8257: haproxy fell over when it started, for want of a limit.
    #[test]
    fn cluster_api_8257_connections_are_limited() {
        assert!(configuration(&[], 6443).starts_with("global\n  maxconn 4000\n"));
    }
}
