//! The configuration of a virtual machine: what of it is read, and how its network devices are written.

use capstan_provider::Schema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{network::NetworkDevice, pve};

/// What stands before the owner key in a description.
const MARK: &str = "capstan.dev/owner-key: ";

/// A configuration, as the API returns it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Config(pub Map<String, Value>);

impl Config {
    /// A value; none where it is absent or empty.
    pub fn get(&self, key: &str) -> Option<String> {
        self.0.get(key).map(pve::text).filter(|text| !text.is_empty())
    }

    /// A number.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.get(key)?.trim().parse().ok()
    }

    /// The uuid of its BIOS, in lower case.
    pub fn uuid(&self) -> Option<String> {
        let smbios = self.get("smbios1")?;
        let uuid = smbios.split(',').find_map(|pair| pair.strip_prefix("uuid="))?;
        Some(uuid.to_lowercase())
    }

    /// The owner key in its description.
    pub fn owner(&self) -> Option<String> {
        let description = self.get("description")?;
        let (_, rest) = description.split_once(MARK)?;
        rest.split_whitespace().next().map(ToOwned::to_owned)
    }

    /// Its tags, in lower case.
    pub fn tags(&self) -> Vec<String> {
        tags(&self.get("tags").unwrap_or_default())
    }

    /// The volume in a drive.
    pub fn volume(&self, drive: &str) -> Option<String> {
        self.get(drive)?.split(',').next().map(ToOwned::to_owned)
    }

    /// The size of a disk, in bytes.
    pub fn disk_size(&self, disk: &str) -> Option<u64> {
        let drive = self.get(disk)?;
        size(drive.split(',').find_map(|pair| pair.strip_prefix("size="))?)
    }

    /// The guest agent is told to be there.
    pub fn has_agent(&self) -> bool {
        self.get("agent").is_some_and(|agent| {
            let mut pairs = agent.split(',');
            pairs.any(|pair| pair == "1" || pair == "enabled=1")
        })
    }
}

/// Tags, however they are separated.
pub fn tags(text: &str) -> Vec<String> {
    text.split([';', ',', ' ']).filter(|tag| !tag.is_empty()).map(str::to_lowercase).collect()
}

/// The user's description with the owner key below it.
pub fn description(given: Option<&str>, owner_key: &str) -> String {
    match given.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => format!("{text}\n\n{MARK}{owner_key}"),
        None => format!("{MARK}{owner_key}"),
    }
}

fn size(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(digits)?;
    let shift = match unit {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A network device: model, MAC address, and the other options in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Net {
    /// `virtio`
    pub model: String,
    /// In upper case; empty where there is none.
    pub mac: String,
    options: Vec<(String, String)>,
}

/// The models that a network device may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Schema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Model {
    #[default]
    Virtio,
    E1000,
    Rtl8139,
    Vmxnet3,
}

impl Model {
    fn word(self) -> &'static str {
        match self {
            Self::Virtio => "virtio",
            Self::E1000 => "e1000",
            Self::Rtl8139 => "rtl8139",
            Self::Vmxnet3 => "vmxnet3",
        }
    }
}

impl Net {
    /// Reads `virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1` or `model=virtio,macaddr=…,bridge=…`.
    pub fn parse(text: &str) -> Self {
        let mut net = Self::default();
        for (index, pair) in text.split(',').enumerate() {
            match pair.split_once('=') {
                Some(("model", model)) => net.model = model.to_owned(),
                Some(("macaddr", mac)) => net.mac = mac.to_uppercase(),
                Some((model, mac)) if index == 0 && is_mac(mac) => {
                    net.model = model.to_owned();
                    net.mac = mac.to_uppercase();
                }
                Some((key, value)) => net.options.push((key.to_owned(), value.to_owned())),
                None if index == 0 => net.model = pair.to_owned(),
                None => {}
            }
        }
        net
    }

    /// As the spec wants it: what it does not speak of, such as the firewall, stays, and so does the MAC address.
    #[must_use]
    pub fn wanted(mut self, device: &NetworkDevice, mac: &str) -> Self {
        if self.mac.is_empty() {
            self.mac = mac.to_owned();
        }
        if device.model.is_some() || self.model.is_empty() {
            self.model = device.model.unwrap_or_default().word().to_owned();
        }
        self.set("bridge", device.bridge.clone().or_else(|| self.option("bridge")));
        self.set("tag", device.vlan.map(|vlan| vlan.to_string()));
        self.set("mtu", device.mtu.map(|mtu| mtu.to_string()));
        self.set("queues", device.queues.map(|queues| queues.to_string()));
        self
    }

    /// An option.
    pub fn option(&self, key: &str) -> Option<String> {
        self.options.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    fn set(&mut self, key: &str, value: Option<String>) {
        match (self.options.iter_mut().find(|(name, _)| name == key), value) {
            (Some((_, old)), Some(new)) => *old = new,
            (None, Some(new)) => self.options.push((key.to_owned(), new)),
            (_, None) => self.options.retain(|(name, _)| name != key),
        }
    }

    /// The same, whatever the order of the options.
    pub fn is(&self, other: &Self) -> bool {
        let sorted = |net: &Self| {
            let mut options = net.options.clone();
            options.sort();
            options
        };
        self.model == other.model && self.mac == other.mac && sorted(self) == sorted(other)
    }

    /// As the API takes it.
    pub fn text(&self) -> String {
        let mut text = format!("{}={}", self.model, self.mac);
        for (key, value) in &self.options {
            text.push_str(&format!(",{key}={value}"));
        }
        text
    }
}

fn is_mac(text: &str) -> bool {
    text.len() == 17 && text.split(':').filter(|part| part.len() == 2).count() == 6
}

/// A MAC address of our own, the same for the same seed: for a device that the template does not have.
pub fn own_mac(seed: &str) -> String {
    let hash = capstan_provider::hash(seed);
    let byte = |place: u32| (hash >> (8 * place)) & 0xff;
    format!("02:{:02X}:{:02X}:{:02X}:{:02X}:{:02X}", byte(0), byte(1), byte(2), byte(3), byte(4))
}

/// The BIOS of a machine whose template has no uuid, which a clone then has not either.
pub fn smbios(there: Option<&str>, seed: &str) -> String {
    let (high, low) = (capstan_provider::hash(seed), capstan_provider::hash(&format!("{seed}/uuid")));
    let uuid = format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        low >> 52,
        low & 0xffff_ffff_ffff
    );
    match there.filter(|there| !there.is_empty()) {
        Some(there) => format!("{there},uuid={uuid}"),
        None => format!("uuid={uuid}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(value: Value) -> Config {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_is_read() {
        let config = config(json!({
            "smbios1": "uuid=AB-1,base64=1", "description": "mine\n\ncapstan.dev/owner-key: k1\n", "tags": "B;a",
            "memory": "2048", "cores": 2, "scsi0": "s:vm-1-disk-0,iothread=1,size=4G", "scsi1": "s:x,size=512M",
            "ide0": "s:iso/x.iso,media=cdrom,size=1M", "agent": "enabled=1,fstrim_cloned_disks=1", "boot": ""
        }));
        assert_eq!(config.uuid().as_deref(), Some("ab-1"));
        assert_eq!(config.owner().as_deref(), Some("k1"));
        assert_eq!(config.tags(), ["b", "a"]);
        assert_eq!((config.number("memory"), config.number("cores")), (Some(2048), Some(2)));
        assert_eq!(config.disk_size("scsi0"), Some(4 << 30));
        assert_eq!(config.disk_size("scsi1"), Some(512 << 20));
        assert_eq!(config.volume("ide0").as_deref(), Some("s:iso/x.iso"));
        assert!(config.has_agent());
        assert_eq!(config.get("boot"), None);
        assert!(!super::Config::default().has_agent());
    }

    #[test]
    fn a_bios_without_a_uuid_gets_one() {
        let given = smbios(Some("manufacturer=x"), "k");
        let uuid = config(json!({"smbios1": given})).uuid().unwrap();
        assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_eq!(smbios(None, "k"), format!("uuid={uuid}"));
        assert_ne!(smbios(None, "k"), smbios(None, "l"));
    }

    #[test]
    fn descriptions_carry_the_owner_key() {
        let there = |text: String| config(json!({"description": text})).owner();
        assert_eq!(there(description(None, "k")).as_deref(), Some("k"));
        assert_eq!(there(description(Some(" of the lab \n"), "k")).as_deref(), Some("k"));
        assert_eq!(there("nothing".to_owned()), None);
    }

    #[test]
    fn a_network_device_keeps_its_mac_address() {
        let device = NetworkDevice {
            bridge: Some("vmbr1".to_owned()),
            vlan: Some(7),
            mtu: Some(1400),
            queues: Some(4),
            ..NetworkDevice::default()
        };
        let there = Net::parse("virtio=bc:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=3");
        let wanted = there.clone().wanted(&device, "02:00:00:00:00:09");
        assert_eq!(wanted.text(), "virtio=BC:24:11:00:00:01,bridge=vmbr1,firewall=1,tag=7,mtu=1400,queues=4");
        assert!(!wanted.is(&there));
        assert!(Net::parse("virtio=BC:24:11:00:00:01,queues=4,mtu=1400,tag=7,firewall=1,bridge=vmbr1").is(&wanted));
        let plain = NetworkDevice { bridge: Some("vmbr0".to_owned()), ..NetworkDevice::default() };
        assert_eq!(there.wanted(&plain, "").text(), "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1");
        let bare = Net::parse("virtio,bridge=vmbr0").wanted(&plain, "02:00:00:00:00:09");
        assert_eq!(bare.text(), "virtio=02:00:00:00:00:09,bridge=vmbr0");
        assert_eq!(
            Net::parse("model=e1000,macaddr=aa:bb:cc:dd:ee:ff,bridge=b").text(),
            "e1000=AA:BB:CC:DD:EE:FF,bridge=b"
        );
        assert_eq!(own_mac("a"), own_mac("a"));
        assert_ne!(own_mac("a"), own_mac("b"));
        assert!(is_mac(&own_mac("a")));
    }
}
