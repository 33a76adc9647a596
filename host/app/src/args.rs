//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};

/// Cluster API in one binary, with providers as WebAssembly components.
#[derive(Debug, Parser)]
#[command(name = "capstan", version, disable_help_subcommand = true)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to log.
    #[command(flatten)]
    pub log: Log,
}

/// How to log.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Log {
    /// Form of log lines. RUST_LOG says what is logged (and, for `up`, that it goes to standard error and not to DIR/log).
    #[arg(long, global = true, value_enum, default_value = "human", env = "CAPSTAN_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// Form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve a management plane on this machine and bring up what is applied
    Up(Up),
    /// Run the controllers against an API server that is there
    Run(Run),
    /// Make and look at provider components
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// The simulated cloud: serve it, look at it, break it
    #[command(subcommand)]
    Simulator(SimulatorCommand),
    /// Say which version this is
    Version,
    /// Compile a component from standard input to standard output
    #[command(hide = true)]
    Compile,
}

/// Options of `capstan up`.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// All that it keeps; made if missing [default: $XDG_STATE_HOME/capstan or ~/.local/share/capstan]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Port of the API server on 127.0.0.1
    #[arg(long, value_name = "N", default_value_t = 6440)]
    pub port: u16,
    /// Manifest to apply; may be given more than once [default: the quickstart, at the first start]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// How long to wait for what was applied to become ready, such as 90s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
    pub wait: Duration,
    /// Stop when all is ready (status 0) or when the wait is over (status 1)
    #[arg(long)]
    pub exit: bool,
    /// Directory with provider components (*.wasm) [default: providers/ beside the binary's directory]
    #[arg(long, value_name = "DIR")]
    pub providers: Option<PathBuf>,
    /// Also write what providers ask and are answered to this file, secrets replaced, so that it can be replayed elsewhere
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Options of `capstan run`.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// Kubeconfig of the API server [default: $KUBECONFIG, ~/.kube/config, in a cluster its own]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// What this process does
    #[arg(long, value_enum, value_delimiter = ',', default_value = "core,infrastructure,bootstrap,control-plane,ipam")]
    pub controllers: Vec<Controllers>,
    /// Where compiled components are kept
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Directory with provider components (*.wasm) to make ProviderModules for
    #[arg(long, value_name = "DIR")]
    pub providers: Option<PathBuf>,
    /// Name of the Lease that replicas compete for
    #[arg(long, value_name = "NAME", default_value = "capstan")]
    pub lease: String,
    /// Who this replica is in the Lease. One that comes back under its name goes on at once; no two may have one
    /// [default: host name and process id]
    #[arg(long, value_name = "NAME")]
    pub identity: Option<String>,
    /// Serve webhooks here (defaults, rules and conversion of our kinds), such as 0.0.0.0:9443 [default: none are served]
    #[arg(long, value_name = "ADDRESS")]
    pub webhook_listen: Option<std::net::SocketAddr>,
    /// How the API server reaches them [default: https:// and the address that is listened on]
    #[arg(long, value_name = "URL", requires = "webhook_listen", conflicts_with = "webhook_service")]
    pub webhook_url: Option<String>,
    /// The Service (port 443) through which the API server reaches them
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "webhook_listen")]
    pub webhook_service: Option<String>,
    /// Also write what providers ask and are answered to this file, secrets replaced, so that it can be replayed elsewhere
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Groups of controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum)]
pub enum Controllers {
    /// Cluster, Machine, MachineSet, MachineDeployment
    Core,
    /// Kinds of infrastructure components
    Infrastructure,
    /// Kinds of bootstrap components
    Bootstrap,
    /// Kinds of control-plane components
    ControlPlane,
    /// Claims, addresses and pools of in-cluster IPAM
    Ipam,
}

/// `capstan provider`.
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// Make a component of a core module that cargo built
    Package {
        /// The core module
        input: PathBuf,
        /// The component
        #[arg(short, long)]
        output: PathBuf,
    },
    /// Check a component and print its manifest and what it serves
    Inspect {
        /// The component
        file: PathBuf,
    },
    /// Run a recorded turn again and say whether requests and answers are the same
    ///
    /// Turns about an object with the annotation capstan.dev/record are written to DIR/recordings of the state directory.
    Replay {
        /// The recording
        file: PathBuf,
        /// The component
        component: PathBuf,
    },
}

/// `capstan simulator`.
#[derive(Debug, Subcommand)]
pub enum SimulatorCommand {
    /// Serve a simulated cloud by itself
    Serve {
        /// Address to listen on (loopback only)
        #[arg(long, default_value = "127.0.0.1:7070")]
        listen: std::net::SocketAddr,
        /// All that it keeps
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
    },
    /// List machines and load balancers
    List {
        /// The simulated cloud
        #[command(flatten)]
        cloud: Cloud,
        /// `json` or a table
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
    },
    /// Break a machine, or mend it
    Fault {
        /// The simulated cloud
        #[command(flatten)]
        cloud: Cloud,
        /// Name of the machine, as `list` shows it
        machine: String,
        /// What happens to it
        #[arg(value_parser = ["stop", "start", "kill", "freeze", "thaw", "lose", "cut-network", "restore-network"])]
        fault: String,
    },
    /// Make the whole cloud slow or faulty; without options: well again
    Faults {
        /// The simulated cloud
        #[command(flatten)]
        cloud: Cloud,
        /// Machines boot this much later, such as 3s
        #[arg(long, value_name = "DURATION")]
        boot_delay: Option<String>,
        /// The cloud's API answers with this status
        #[arg(long, value_name = "CODE")]
        api_status: Option<u16>,
        /// The cloud's API answers this much later
        #[arg(long, value_name = "DURATION")]
        api_delay: Option<String>,
        /// For this many requests; without: until told otherwise
        #[arg(long, value_name = "N")]
        api_count: Option<u32>,
    },
}

/// Where a simulated cloud is.
#[derive(Debug, clap::Args)]
pub struct Cloud {
    /// URL of the simulated cloud [default: that of the state directory's `capstan up`]
    #[arg(long, value_name = "URL", env = "CAPSTAN_SIMULATOR")]
    pub address: Option<String>,
    /// State directory of the `capstan up` whose simulated cloud is meant
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// Form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// JSON.
    Json,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration =
        text.parse().map_err(|_| "must be a duration such as 90s, 5m or 1h30m".to_owned())?;
    Duration::try_from(parsed).map_err(|_| "must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations_are_read() {
        assert_eq!(duration("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(duration("1h30m").unwrap(), Duration::from_secs(5400));
        assert!(duration("soon").is_err() && duration("-3s").is_err());
    }
}
