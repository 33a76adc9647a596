//! IPv4 ranges, and one for a network that overlaps nothing in use.

use std::net::Ipv4Addr;

/// Prefix length of the subnets that are chosen here.
const PREFIX: u32 = 20;
/// How many there are in 10.192.0.0/10, where they are chosen.
const COUNT: u32 = 1024;

/// The first place for a machine.
const FIRST_MACHINE: u32 = 16;

fn hash(seed: &str) -> u32 {
    seed.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// An IPv4 range: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    address: u32,
    prefix: u32,
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.at(0), self.prefix)
    }
}

impl Range {
    /// Of `10.0.0.0/8`; `None` for what is no such range.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix) = (u32::from(address.parse::<Ipv4Addr>().ok()?), prefix.parse().ok()?);
        (prefix <= 32).then_some(Self { address, prefix })
    }

    fn overlaps(self, other: Self) -> bool {
        let shift = 32 - self.prefix.min(other.prefix);
        self.address.checked_shr(shift).unwrap_or(0) == other.address.checked_shr(shift).unwrap_or(0)
    }

    /// Whether an address lies in it.
    pub fn holds(self, address: Ipv4Addr) -> bool {
        self.overlaps(Self { address: u32::from(address), prefix: 32 })
    }

    /// The address at this place of the range.
    fn at(self, place: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.address + place)
    }

    /// The address kept for a load balancer; the first is the gateway's.
    pub fn load_balancer(self) -> Option<Ipv4Addr> {
        (self.prefix <= 29).then(|| self.at(2))
    }

    /// An address of the lower half for a machine, chosen by a seed: kept through restarts of the engine, which deals those
    /// of the upper half anew.
    pub fn fixed(self, seed: &str) -> Option<Ipv4Addr> {
        let half = 1_u32.checked_shl(31_u32.checked_sub(self.prefix)?)?;
        let places = half.checked_sub(FIRST_MACHINE).filter(|places| *places > 0)?;
        Some(self.at(FIRST_MACHINE + hash(seed) % places))
    }

    /// The upper half, out of which all other addresses are dealt.
    pub fn upper_half(self) -> Option<Self> {
        let half = 1_u32.checked_shl(31_u32.checked_sub(self.prefix)?)?;
        Some(Self { address: self.address + half, prefix: self.prefix + 1 })
    }

    /// The subnet chosen here whose load balancer has this address.
    pub fn of_load_balancer(address: Ipv4Addr) -> Option<Self> {
        let all = Self { address: u32::from(Ipv4Addr::new(10, 192, 0, 0)), prefix: 10 };
        let range = Self { address: u32::from(address) >> (32 - PREFIX) << (32 - PREFIX), prefix: PREFIX };
        (all.holds(address) && range.load_balancer() == Some(address)).then_some(range)
    }

    /// Whether it overlaps none of these.
    pub fn is_free(self, used: &[Self]) -> bool {
        !used.iter().any(|range| range.overlaps(self))
    }
}

/// The first /20 of 10.192.0.0/10 that overlaps nothing in use, searched from a place that the seed chooses.
pub fn free_subnet(seed: &str, used: &[Range]) -> Option<Range> {
    let start = hash(seed);
    (0..COUNT)
        .map(|step| {
            let index = start.wrapping_add(step) % COUNT;
            Range { address: u32::from(Ipv4Addr::new(10, 192, 0, 0)) + (index << (32 - PREFIX)), prefix: PREFIX }
        })
        .find(|candidate| candidate.is_free(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        Range::parse(text).unwrap()
    }

    #[test]
    fn ranges_that_overlap() {
        assert!(range("10.0.0.0/8").overlaps(range("10.200.0.0/20")));
        assert!(range("0.0.0.0/0").overlaps(range("10.200.0.0/20")));
        assert!(!range("10.200.0.0/20").overlaps(range("10.200.16.0/20")));
        assert_eq!(Range::parse("fd00::/8"), None);
        assert_eq!(range("10.200.16.0/20").upper_half().unwrap().to_string(), "10.200.24.0/21");
        let fixed = |seed: &str| range("10.200.16.0/20").fixed(seed).unwrap();
        assert!(range("10.200.16.0/21").holds(fixed("a")) && fixed("a") == fixed("a") && fixed("a") != fixed("b"));
        assert!(fixed("a") >= "10.200.16.16".parse::<Ipv4Addr>().unwrap());
        assert_eq!(range("10.0.0.0/28").fixed("a"), None);
    }

    #[test]
    fn a_free_subnet_is_found() {
        let first = free_subnet("k", &[]).unwrap();
        let second = free_subnet("k", &[first]).unwrap();
        assert_ne!(first, second);
        assert!(range("10.192.0.0/10").overlaps(second));
        assert_eq!(free_subnet("k", &[range("10.0.0.0/8")]), None);
    }

    #[test]
    fn a_load_balancers_address_tells_its_subnet() {
        let of = |text: &str| Range::of_load_balancer(text.parse().unwrap());
        let subnet = free_subnet("k", &[]).unwrap();
        assert_eq!(of(&subnet.load_balancer().unwrap().to_string()), Some(subnet));
        assert_eq!((of("10.200.16.3"), of("10.128.0.2"), of("172.18.0.2")), (None, None, None));
    }
}
