//! Which addresses and sockets may be reached: the operator's [`Policy`], and what no policy allows.
//!
//! Every address falls into one of three classes, whatever it is written as:
//! - *never*: metadata services, link-local, multicast, broadcast, unspecified and reserved addresses;
//! - *listed only*: loopback, private, shared (carrier-grade NAT), documentation and benchmark ranges; unix sockets;
//! - everything else, the public internet, is allowed.
//!
//! An IPv6 address that carries an IPv4 address (mapped, compatible, translated, NAT64, 6to4, ISATAP, Teredo) is what
//! it carries. A host name says nothing: the addresses that it resolves to are checked, and those are dialled.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Component, Path, PathBuf};

use ipnet::IpNet;
use reqwest::Url;

/// What an operator lists beyond the public internet.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    addresses: Vec<IpNet>,
    sockets: Vec<PathBuf>,
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy").field("addresses", &self.addresses).field("sockets", &self.sockets).finish()
    }
}

/// Why an address, name or socket may not be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No policy allows it.
    #[error("{0} is {1}, which no endpoint may reach")]
    Never(String, &'static str),
    /// The operator's policy would have to list it.
    #[error("{0} is {1} and no EgressPolicy lists it; the operator can add {2:?} to spec.{3} of an EgressPolicy")]
    NotListed(String, &'static str, String, &'static str),
    /// It is no address or name.
    #[error("{0}")]
    Malformed(String),
}

impl Policy {
    /// A policy that lists these networks (CIDR, or one address) and sockets (absolute paths).
    ///
    /// # Errors
    /// Which entry is none, or can never be allowed.
    pub fn new<'a>(
        addresses: impl IntoIterator<Item = &'a str>,
        sockets: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, String> {
        let mut policy = Self::default();
        for text in addresses {
            let network = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
            let network = network
                .map_err(|_| format!("{text:?} is no network such as 10.0.0.0/8, fd00::/8 or 127.0.0.1"))?
                .trunc();
            policy.addresses.push(network);
        }
        for text in sockets {
            policy.sockets.push(plain_path(Path::new(text)).map_err(|error| error.to_string())?);
        }
        policy.addresses.sort_unstable();
        policy.addresses.dedup();
        policy.sockets.sort_unstable();
        policy.sockets.dedup();
        Ok(policy)
    }

    /// What either of the two lists.
    #[must_use]
    pub fn and(mut self, other: &Policy) -> Self {
        self.addresses.extend(&other.addresses);
        self.sockets.extend(other.sockets.iter().cloned());
        self.addresses.sort_unstable();
        self.addresses.dedup();
        self.sockets.sort_unstable();
        self.sockets.dedup();
        self
    }

    fn lists(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|network| network.contains(&address))
    }
}

/// Whether an address may be dialled.
///
/// # Errors
/// Why not.
pub fn check(policy: &Policy, address: IpAddr) -> Result<(), Refused> {
    let (meant, carried) = meant(address);
    let shown = if carried { format!("{address} (that is {meant})") } else { address.to_string() };
    match class(meant) {
        Class::Never(what) => Err(Refused::Never(shown, what)),
        Class::Listed(_) if policy.lists(meant) || (carried && policy.lists(address)) => Ok(()),
        Class::Listed(what) => Err(Refused::NotListed(shown, what, IpNet::from(meant).to_string(), "addresses")),
        Class::Public => Ok(()),
    }
}

/// Which of the addresses of a name may be dialled. One that is never allowed spoils the name.
///
/// # Errors
/// Why none may be.
pub fn permitted(policy: &Policy, addresses: &[IpAddr]) -> Result<Vec<IpAddr>, Refused> {
    let mut fine = Vec::with_capacity(addresses.len());
    let mut refused = None;
    for address in addresses {
        match check(policy, *address) {
            Ok(()) => fine.push(*address),
            Err(never @ Refused::Never(..)) => return Err(never),
            Err(other) => refused = refused.or(Some(other)),
        }
    }
    match (fine.is_empty(), refused) {
        (false, _) => Ok(fine),
        (true, Some(refused)) => Err(refused),
        (true, None) => Err(Refused::Malformed("the name has no address".to_owned())),
    }
}

/// Checks a URL as far as that is possible without resolving its name: an address in any spelling is checked, a name is
/// returned, to be resolved and checked with [`permitted`].
///
/// # Errors
/// Why it may not be reached, or that it is no URL of a host.
pub fn check_url<'a>(policy: &Policy, url: &'a Url) -> Result<Option<&'a str>, Refused> {
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Refused::Malformed("a URL with a user name or password is not accepted".to_owned()));
    }
    // The parser has made one address of every spelling: decimal, octal, hexadecimal, short, full-width.
    match url.host_str() {
        None | Some("") => Err(Refused::Malformed("the URL names no host".to_owned())),
        Some(host) => match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
            Ok(address) => check(policy, address).map(|()| None),
            Err(_) => Ok(Some(host)),
        },
    }
}

/// [`check_url`] for text, such as the server of a kubeconfig.
///
/// # Errors
/// As [`check_url`].
pub fn check_url_text(policy: &Policy, text: &str) -> Result<Option<String>, Refused> {
    let url = Url::parse(text).map_err(|error| Refused::Malformed(format!("{text:?} is no URL: {error}")))?;
    Ok(check_url(policy, &url)?.map(str::to_owned))
}

/// Whether a unix socket may be reached. A link is followed, and what it leads to has to be listed.
///
/// # Errors
/// Why not.
pub fn check_socket(policy: &Policy, path: &Path) -> Result<(), Refused> {
    let path = plain_path(path)?;
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let target = real(&path);
    if policy.sockets.iter().any(|listed| real(listed) == target) {
        return Ok(());
    }
    let shown = path.display().to_string();
    Err(Refused::NotListed(shown.clone(), "a unix socket", shown, "unixSockets"))
}

fn plain_path(path: &Path) -> Result<PathBuf, Refused> {
    let plain = path.is_absolute() && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    if plain {
        Ok(path.to_owned())
    } else {
        Err(Refused::Malformed(format!("{path:?} is no absolute path without ..")))
    }
}

/// The address that is reached through this one, and whether that is another.
fn meant(address: IpAddr) -> (IpAddr, bool) {
    let IpAddr::V6(v6) = address else { return (address, false) };
    match carried(v6) {
        Some(v4) => (v4.into(), true),
        None => (address, false),
    }
}

/// The IPv4 address that an IPv6 address carries.
fn carried(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Ipv4Addr::new(a, b, c, d)
    };
    match v6.segments() {
        // :: and ::1 are themselves.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // IPv4-compatible, -mapped and -translated (RFC 4291, RFC 2765).
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => Some(v4(high, low)),
        // NAT64 (RFC 6052), well-known prefix.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(v4(high, low)),
        // NAT64 for local use (RFC 8215): the usual place with a prefix of 96 bits.
        [0x64, 0xff9b, 1, _, _, _, high, low] => Some(v4(high, low)),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => Some(v4(high, low)),
        // Teredo (RFC 4380) hides the client's address.
        [0x2001, 0, .., high, low] => Some(v4(!high, !low)),
        // ISATAP (RFC 5214).
        [.., 0 | 0x200 | 0x100 | 0x300, 0x5efe, high, low] => Some(v4(high, low)),
        _ => None,
    }
}

enum Class {
    Never(&'static str),
    Listed(&'static str),
    Public,
}

fn class(address: IpAddr) -> Class {
    match address {
        IpAddr::V4(v4) => class_v4(v4),
        IpAddr::V6(v6) => class_v6(v6),
    }
}

const METADATA: &str = "a metadata service";

fn class_v4(v4: Ipv4Addr) -> Class {
    match v4.octets() {
        // AWS, GCP, Azure, OpenStack and most others; ECS task credentials.
        [169, 254, 169, 254] | [169, 254, 170, 2 | 23] => Class::Never(METADATA),
        // Alibaba, Oracle (classic), Azure's wire server, Tencent (169.254.0.23 is link-local).
        [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16] => Class::Never(METADATA),
        [169, 254, ..] => Class::Never("a link-local address"),
        [0, ..] => Class::Never("the unspecified address or its network"),
        [255, 255, 255, 255] => Class::Never("the broadcast address"),
        [224..=239, ..] => Class::Never("a multicast address"),
        [240..=255, ..] => Class::Never("a reserved address"),
        [127, ..] => Class::Listed("a loopback address"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Class::Listed("a private address"),
        [100, 64..=127, ..] => Class::Listed("a shared address (carrier-grade NAT)"),
        [192, 0, 0, _] | [192, 88, 99, _] => Class::Listed("an address for protocols"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Class::Listed("an address for documentation"),
        [198, 18 | 19, ..] => Class::Listed("an address for benchmarks"),
        _ => Class::Public,
    }
}

fn class_v6(v6: Ipv6Addr) -> Class {
    match v6.segments() {
        // AWS, GCP, Scaleway, Oracle.
        [0xfd00, 0xec2, ..] | [0xfd20, 0xce, ..] | [0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42] | [0xfd00, 0xc1, ..] => {
            Class::Never(METADATA)
        }
        [0, 0, 0, 0, 0, 0, 0, 0] => Class::Never("the unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Class::Listed("a loopback address"),
        [0xfe80..=0xfebf, ..] => Class::Never("a link-local address"),
        [0xff00..=0xffff, ..] => Class::Never("a multicast address"),
        [0xfec0..=0xfeff, ..] => Class::Listed("a site-local address"),
        [0xfc00..=0xfdff, ..] => Class::Listed("a private address"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Class::Listed("an address for documentation"),
        [0x2001, 0..=0x1ff, ..] | [0x64, 0xff9b, ..] | [0x100, ..] => Class::Listed("an address for protocols"),
        // Global unicast is 2000::/3; the rest is not given out.
        [0x2000..=0x3fff, ..] => Class::Public,
        _ => Class::Never("a reserved address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<Option<String>, Refused> {
        check_url_text(&Policy::default(), text)
    }

    #[test]
    fn forbidden_addresses_are_refused_in_every_spelling() {
        let never = [
            // 169.254.169.254 as text, decimal, hexadecimal, octal, mixed, short and full-width.
            "169.254.169.254",
            "2852039166",
            "0xa9fea9fe",
            "0xA9.0xFE.0xA9.0xFE",
            "0251.0376.0251.0376",
            "0251.254.0xa9.254",
            "169.254.43518",
            "169.16689662",
            "0251.0xfea9fe",
            "169.254.169.254.",
            "169。254。169。254",
            "１６９.２５４.１６９.２５４",
            "%31%36%39.254.169.254",
            "①⑥⑨.②⑤④.①⑥⑨.②⑤④",
            // Carried in IPv6.
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[0:0:0:0:0:FFFF:A9FE:A9FE]",
            "[::169.254.169.254]",
            "[::ffff:0:a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[64:ff9b::169.254.169.254]",
            "[64:ff9b:1::a9fe:a9fe]",
            "[2002:a9fe:a9fe::1]",
            "[2001:0:4136:e378:8000:63bf:5601:5601]",
            "[2001:db8::5efe:a9fe:a9fe]",
            "[2600:1::200:5efe:169.254.169.254]",
            // Other metadata services, link-local, unspecified, multicast, reserved.
            "169.254.170.2",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "[fd00:ec2::254]",
            "[fd20:ce::254]",
            "169.254.1.1",
            "[fe80::1]",
            "[FE80::a9fe:a9fe]",
            "[febf::1]",
            "0.0.0.0",
            "0",
            "0x0",
            "0.1.2.3",
            "[::]",
            "224.0.0.1",
            "255.255.255.255",
            "240.0.0.1",
            "[ff02::1]",
            "[4000::1]",
            "[::ffff:0.0.0.0]",
        ];
        let listed = [
            "127.0.0.1",
            "2130706433",
            "0x7f000001",
            "017700000001",
            "0177.0.0.1",
            "127.1",
            "127.0.1",
            "0x7f.1",
            "127.0.0.1.",
            "127.255.255.254",
            "[::1]",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]",
            "[::127.0.0.1]",
            "[::ffff:7f00:1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "１２７.０.０.１",
            "127。0。0。1",
            "10.0.0.1",
            "167772161",
            "012.0.0.1",
            "10.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.0.1",
            "3232235521",
            "[::ffff:c0a8:1]",
            "100.64.0.1",
            "[fc00::1]",
            "[fd12::1]",
            "[fec0::1]",
            "198.18.0.1",
            "192.0.2.1",
            "[2001:db8::1]",
        ];
        for (host, want_never) in never.map(|h| (h, true)).into_iter().chain(listed.map(|h| (h, false))) {
            for text in [format!("http://{host}/"), format!("https://{host}:8006/x")] {
                match (url(&text), want_never) {
                    (Err(Refused::Never(..)), true) | (Err(Refused::NotListed(..)), false) => {}
                    other => panic!("{text}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn what_is_no_plain_url_of_a_host_is_refused() {
        for bad in [
            "http://[fe80::1%25eth0]/",
            "http://[fe80::1%eth0]/",
            "http://user@example.org/",
            "http://u:p@example.org",
            "http://example.org@127.0.0.1/",
            "http://127.0.0.1#@example.org/",
            "http://999.1.1.1/",
            "http://1.2.3.4.5/",
            "http://256.0.0.1/",
            "http://0x7f.0.0.0x1ff/",
            "http://[::1/",
            "http:///",
            "http://exa mple.org/",
            "nonsense",
            "http://127.0.0.1\t.example.org:99999/",
        ] {
            assert!(url(bad).is_err(), "{bad}: {:?}", url(bad));
        }
        // Tricks that end up at a name are resolved and checked like any name.
        for (text, name) in [
            ("http://localhost/", "localhost"),
            ("http://LOCALHOST./", "localhost."),
            ("http://127.0.0.1.example.org/", "127.0.0.1.example.org"),
            ("http://ⓛocalhost/", "localhost"),
            ("https://bücher.example/", "xn--bcher-kva.example"),
            ("http://example.org\\@127.0.0.1/", "example.org"),
        ] {
            assert_eq!(url(text).unwrap().as_deref(), Some(name), "{text}");
        }
        for public in ["http://1.1.1.1/", "https://[2606:4700::1111]:8006/", "https://[64:ff9b::101:101]/"] {
            assert_eq!(url(public).unwrap(), None, "{public}");
        }
    }

    #[test]
    fn a_policy_lists_what_may_be_listed() {
        let policy = Policy::new(["127.0.0.0/8", "10.1.0.0/16", "fd12::/16", "::1", "169.254.0.0/16"], []).unwrap();
        for fine in ["127.0.0.1", "10.1.2.3", "fd12::5", "::1", "::ffff:127.0.0.1", "64:ff9b::a01:203", "8.8.8.8"] {
            assert_eq!(check(&policy, fine.parse().unwrap()), Ok(()), "{fine}");
        }
        for bad in ["10.2.0.1", "fd13::1", "169.254.169.254", "::ffff:169.254.169.254", "192.168.1.1", "0.0.0.0"] {
            assert!(check(&policy, bad.parse().unwrap()).is_err(), "{bad}");
        }
        let everything = Policy::new(["0.0.0.0/0", "::/0"], []).unwrap();
        assert!(check(&everything, "192.168.1.1".parse().unwrap()).is_ok());
        for never in ["169.254.169.254", "fe80::1", "fd00:ec2::254", "0.0.0.0", "100.100.100.200"] {
            assert!(check(&everything, never.parse().unwrap()).is_err(), "{never} is never allowed");
        }
        let why = check(&policy, "192.168.1.1".parse().unwrap()).unwrap_err().to_string();
        assert!(why.contains("192.168.1.1/32") && why.contains("EgressPolicy"), "{why}");
        assert!(Policy::new(["10.0.0.0/33"], []).is_err() && Policy::new(["localhost"], []).is_err());
        assert!(Policy::new([], ["relative"]).is_err() && Policy::new([], ["/a/../b"]).is_err());
    }

    #[test]
    fn one_address_that_is_never_allowed_spoils_a_name() {
        let policy = Policy::new(["127.0.0.0/8"], []).unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let both = [address("1.1.1.1"), address("169.254.169.254")];
        assert!(matches!(permitted(&policy, &both), Err(Refused::Never(..))));
        assert_eq!(permitted(&policy, &[address("::1"), address("127.0.0.1")]), Ok(vec![address("127.0.0.1")]));
        assert!(permitted(&policy, &[address("10.0.0.1")]).is_err() && permitted(&policy, &[]).is_err());
    }

    #[test]
    fn a_socket_is_what_its_path_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("real.sock"), "").unwrap();
        std::fs::write(path("other.sock"), "").unwrap();
        std::os::unix::fs::symlink(path("real.sock"), path("link.sock")).unwrap();
        std::os::unix::fs::symlink(path("other.sock"), path("trap.sock")).unwrap();
        let policy = Policy::new([], [path("link.sock").as_str()]).unwrap();
        let ok = |name: &str| check_socket(&policy, Path::new(&path(name))).is_ok();
        assert!(ok("real.sock") && ok("link.sock") && !ok("other.sock") && !ok("trap.sock"));
        assert!(check_socket(&policy, Path::new(&format!("{}/x/../real.sock", dir.path().display()))).is_err());
        assert!(check_socket(&Policy::default(), Path::new("/var/run/docker.sock")).is_err());
    }
}
