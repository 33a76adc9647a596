//! A network of a test's own, where private addresses lead to this computer and to nobody else.
//!
//! A scenario can then use the addresses of its example as they are, machines listen on those they were given, and neither
//! two runs nor a real network get into each other's way. Names can be given to addresses there, as a DNS would. It is a network
//! and a mount namespace, which root can make, and others where the kernel lets them be root of a namespace of their own.

use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::plane::{BackEnd, skip};

/// Names the test that is run inside.
const INSIDE: &str = "CAPSTAN_TEST_LAB";

/// Where names have their addresses.
const NAMES: &str = "/etc/hosts";

/// Makes all addresses of the networks ours, and the list of names one that nobody else sees, then becomes the test.
const SET_UP: &str = r#"ip link set lo up || exit 97
mount -t tmpfs tmpfs /mnt && cp /etc/hosts /mnt/hosts && mount --bind /mnt/hosts /etc/hosts && umount /mnt || exit 97
for network in $NETWORKS; do ip route add local "$network" dev lo || exit 97; done
exec "$0" "$@""#;

/// True where the test that [`on_both_back_ends`](crate::on_both_back_ends) makes of the function `name` (with its modules) for
/// this back end is to go on: it is inside a network of its own, in which all addresses of `networks` are this computer's.
///
/// Outside of one, the test is run again inside; then it has passed (or was skipped, with a loud word, where this
/// computer has no namespaces to give), and there is nothing more to do.
///
/// # Errors
/// When the test fails inside.
pub fn enter(back_end: BackEnd, name: &str, networks: &[&str]) -> Result<bool> {
    let name = match back_end {
        BackEnd::Embedded => format!("{name}::embedded"),
        BackEnd::Real => format!("{name}::real"),
    };
    if std::env::var_os(INSIDE).is_some_and(|test| *test == *name) {
        return Ok(true);
    }
    if !unshare(networks).arg("true").output().is_ok_and(|tried| tried.status.success()) {
        skip(&format!(
            "{name}: no network namespace can be made here (as root; or allow user namespaces; `ip` is needed)"
        ))?;
        return Ok(false);
    }
    let test = std::env::current_exe().context("find the running test")?;
    let output = unshare(networks)
        .arg(test)
        .args(["--exact", name.as_str(), "--nocapture", "--test-threads=1"])
        .env(INSIDE, &name)
        .output()
        .context("run the test in a network of its own")?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    eprint!("{}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{name} failed in its network; see above");
    // A name that no test has would pass without a word.
    ensure!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "there is no test {name}");
    Ok(false)
}

/// Gives names to addresses, and takes away those that were given before. Only inside.
///
/// # Errors
/// When this is no network of a test's own.
pub fn name(names: &[(String, Ipv4Addr)]) -> Result<()> {
    ensure!(std::env::var_os(INSIDE).is_some(), "names are given in a network of the test's own only");
    let listed: String = names.iter().map(|(name, address)| format!("{address} {name}\n")).collect();
    // In its place: it is mounted there.
    std::fs::write(NAMES, format!("127.0.0.1 localhost\n{listed}")).context("write the list of names")
}

/// A command in a network of its own; what it is comes behind.
fn unshare(networks: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount"]);
    if !std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--", "sh", "-c", SET_UP]).env("NETWORKS", networks.join(" ")).stdin(Stdio::null());
    command
}
