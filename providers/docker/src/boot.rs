//! Bootstrap data in a container: the host reads it into steps, and here they become files and a script that carries them out
//! within.
//!
//! Why a script and no request per step: a request may be lost, and kubeadm must not run twice; and what is put into a container
//! from outside does not reach its tmpfs mounts, where kubeadm's files live. So everything is put below
//! [`DIRECTORY`], and the script, which runs inside, copies it into place. It runs once (a directory is its lock), writes
//! how it ended into [`RESULT`], and what was said into `log`, which only root of the container reads.

use capstan_provider::{
    Result,
    secrets::{self, BootFile, BootStep, Member},
};

/// Where everything is.
pub const DIRECTORY: &str = "/var/lib/capstan/boot";
/// The script.
pub const SCRIPT: &str = "/var/lib/capstan/boot/run.sh";
/// How far it is: a directory without secrets, which is read from outside.
pub const PROGRESS: &str = "/var/lib/capstan/boot/progress";
/// A file of [`PROGRESS`]: all is written. It is the last of the archive.
pub const WRITTEN: &str = "written";
/// A directory of [`PROGRESS`]: the script has begun.
pub const STARTED: &str = "started";
/// A file of [`PROGRESS`]: how the script ended, as the exit code and the number of the last step.
pub const RESULT: &str = "result";

/// Checks of kubeadm that fail in any container.
const IGNORED_CHECKS: &str = "SystemVerification,Swap,FileContent--proc-sys-net-bridge-bridge-nf-call-iptables";

/// The files to put at `/`: the steps in order, the script, and that all is written.
pub fn members(kubeadm_in_container: bool) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    let mut lines = String::new();
    for (index, step) in secrets::boot_steps()?.into_iter().enumerate() {
        let number = index + 1;
        let path = format!("steps/{number:04}");
        let content = match step {
            BootStep::WriteFile(file) => {
                lines.push_str(&write_line(number, &file));
                vec![file.content.into()]
            }
            BootStep::Run(command) => {
                lines.push_str(&format!("run {number:04}\n"));
                vec![command.into(), "\n".into()]
            }
        };
        members.push(member(&path, 0o600, content));
    }
    if kubeadm_in_container {
        members.push(member("bin/kubeadm", 0o755, vec![kubeadm_wrapper().into()]));
    }
    members.push(member("run.sh", 0o700, vec![script(&lines).into()]));
    members.push(member(&format!("progress/{WRITTEN}"), 0o600, Vec::new()));
    Ok(members)
}

fn member(path: &str, mode: u32, content: Vec<secrets::Chunk>) -> Member {
    Member { path: format!("{}/{path}", DIRECTORY.trim_start_matches('/')), mode, content }
}

fn write_line(number: usize, file: &BootFile) -> String {
    let append = if file.append { "append" } else { "replace" };
    format!("put {number:04} {} {:04o} {} {append}\n", quoted(&file.path), file.mode & 0o7777, quoted(&file.owner))
}

/// One word for a shell, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

fn script(lines: &str) -> String {
    let head = format!(
        r#"#!/bin/sh
# Carries out the bootstrap data that lies beside it, once.
cd {DIRECTORY} || exit 1
mkdir progress/{STARTED} 2>/dev/null || exit 0
umask 077
exec >log 2>&1
umask 022
PATH={DIRECTORY}/bin:$PATH
export PATH

end() {{ # exit code, step
  printf '%s %s\n' "$1" "$2" >{RESULT}.new && mv {RESULT}.new progress/{RESULT}
  exit "$1"
}}
put() {{ # step, path, mode, owner, append or replace
  echo "== $1 write $2"
  mkdir -p "$(dirname "$2")" || end 1 "$1"
  if [ "$5" = append ]; then
    cat "steps/$1" >>"$2" || end 1 "$1"
  else
    cat "steps/$1" >"$2" || end 1 "$1"
  fi
  chmod "$3" "$2" || end 1 "$1"
  [ -z "$4" ] || chown "$4" "$2" || end 1 "$1"
}}
run() {{ # step
  echo "== $1 run"
  (cd / && sh "{DIRECTORY}/steps/$1") || end $? "$1"
}}

# In an image with systemd, such as kindest/node, the container runtime comes up with it.
if [ -d /run/systemd/system ]; then
  waited=0
  while [ ! -S /run/containerd/containerd.sock ] && [ "$waited" -lt 60 ]; do
    sleep 1
    waited=$((waited + 1))
  done
fi

"#
    );
    format!("{head}{lines}\nrm -rf steps\nend 0 0\n")
}

/// kubeadm for a node in a container, found before the real one: without the checks that no container passes, and, where
/// the bootstrap data says nothing of it, with the settings that a node of kind needs (its container runtime's socket, the
/// kubelet's cgroups, no garbage collection by the disk of the engine's machine, kube-proxy's hands off conntrack).
fn kubeadm_wrapper() -> String {
    format!(
        r#"#!/bin/sh
PATH=${{PATH#{DIRECTORY}/bin:}}
export PATH
case "$1" in
  init|join) ;;
  *) exec kubeadm "$@" ;;
esac
verb=$1
shift
given=
own={DIRECTORY}/kubeadm.yaml
left=$#
while [ "$left" -gt 0 ]; do
  word=$1
  shift
  left=$((left - 1))
  case "$word" in
    --config=*) given=${{word#--config=}} ;;
    --config) given=$1; shift; left=$((left - 1)) ;;
    *) set -- "$@" "$word" ;;
  esac
done
if [ -n "$given" ]; then
  umask 077
  cat "$given" >"$own" || exit 1
  umask 022
  grep -q criSocket "$own" ||
    sed -i 's|^\( *\)nodeRegistration: *$|&\n\1  criSocket: unix:///run/containerd/containerd.sock|' "$own"
  if [ "$verb" = init ] && ! grep -q 'kind: *KubeProxyConfiguration' "$own"; then
    printf '\n---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack:\n  maxPerCore: 0\n' >>"$own"
  fi
  set -- --config "$own" "$@"
fi
kubelet=/etc/default/kubelet
if [ -d "$(dirname "$kubelet")" ]; then
  had=$(sed -n 's/^KUBELET_EXTRA_ARGS=//p' "$kubelet" 2>/dev/null | tr -d '"')
  more=$had
  for flag in --fail-swap-on=false --image-gc-high-threshold=100 --cgroup-root=/kubelet \
    --runtime-cgroups=/system.slice/containerd.service \
    '--eviction-hard=nodefs.available<0%,nodefs.inodesFree<0%,imagefs.available<0%'; do
    name=${{flag#--}}
    name=${{name%%=*}}
    case " $had" in *" --$name="*) continue ;; esac
    [ -n "$given" ] && grep -q "$name" "$own" && continue
    more="$more $flag"
  done
  printf 'KUBELET_EXTRA_ARGS=%s\n' "${{more# }}" >"$kubelet"
fi
exec kubeadm "$verb" --ignore-preflight-errors={IGNORED_CHECKS} "$@"
"#
    )
}

/// How the script ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// 0 is success.
    pub code: i32,
    /// Number of the step that failed, from 1.
    pub step: u32,
}

impl Ended {
    /// Reads [`RESULT`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let (code, step) = (words.next()?, words.next()?.trim_start_matches('0'));
        Some(Self { code: code.parse().ok()?, step: if step.is_empty() { 0 } else { step.parse().ok()? } })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use capstan_provider::testing::{Scenario, reveal, secret};
    use serde_json::json;

    use super::*;

    fn file(path: &str, content: &str, append: bool) -> BootStep {
        BootStep::WriteFile(BootFile {
            path: path.to_owned(),
            mode: 0o640,
            owner: String::new(),
            append,
            content: secret(content),
        })
    }

    /// Runs the script in a directory of its own in place of `/`; what it wrote as its result, if anything.
    fn carried_out(name: &str, steps: Vec<BootStep>, times: usize) -> (std::path::PathBuf, Option<Ended>) {
        let root = std::env::temp_dir().join(format!("capstan-boot-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let mut scenario = Scenario::new("DockerMachine", json!({}));
        scenario.boot_steps = steps;
        let (members, _) = scenario.run(|| members(true));
        let here = root.join(DIRECTORY.trim_start_matches('/'));
        for member in members.unwrap() {
            let path = root.join(&member.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let content = reveal(&secrets::compose(&member.content));
            let within = content.replace(DIRECTORY, here.to_str().unwrap());
            fs::write(&path, if member.path.contains("/steps/") { content } else { within }).unwrap();
        }
        for _ in 0..times {
            Command::new("sh").arg(here.join("run.sh")).status().unwrap();
        }
        let ended = fs::read_to_string(here.join("progress/result")).ok().and_then(|text| Ended::parse(&text));
        (root, ended)
    }

    #[test]
    fn steps_are_carried_out_in_order_and_once() {
        let out = std::env::temp_dir().join(format!("capstan boot's out {}", std::process::id()));
        let _ = fs::remove_dir_all(&out);
        let at = |name: &str| out.join(name).to_str().unwrap().to_owned();
        let steps = vec![
            file(&at("new dir/a"), "one\n", false),
            file(&at("new dir/a"), "two\n", true),
            BootStep::Run(secret(&format!(
                "cat '{}' | tee -a \"{}\"",
                at("new dir/a").replace('\'', "'\\''"),
                at("b")
            ))),
        ];
        let (root, ended) = carried_out("order", steps, 2);
        assert_eq!(ended, Some(Ended { code: 0, step: 0 }));
        assert_eq!(fs::read_to_string(at("b")).unwrap(), "one\ntwo\n");
        assert!(!root.join("var/lib/capstan/boot/steps").exists());
        let _ = fs::remove_dir_all(&out);
        let _ = fs::remove_dir_all(&root);
    }

    /// The wrapper in a directory of its own, before a kubeadm that says what it was given.
    fn wrapped(name: &str, config: &str, kubelet: &str, arguments: &[&str]) -> (String, String) {
        let root = std::env::temp_dir().join(format!("capstan-kubeadm-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        for directory in ["boot/bin", "real", "default"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        let program = |path: &str, text: String| {
            fs::write(root.join(path), text).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(root.join(path), mode).unwrap();
        };
        let wrapper = kubeadm_wrapper().replace(DIRECTORY, &at("boot"));
        program("boot/bin/kubeadm", wrapper.replace("/etc/default/kubelet", &at("default/kubelet")));
        program("real/kubeadm", "#!/bin/sh\necho \"$@\"\n[ \"$3\" = --config ] && cat \"$4\"\n".to_owned());
        fs::write(root.join("config"), config).unwrap();
        fs::write(root.join("default/kubelet"), kubelet).unwrap();
        let path = format!("{}:{}:{}", at("boot/bin"), at("real"), std::env::var("PATH").unwrap());
        let arguments = arguments.iter().map(|word| word.replace("CONFIG", &at("config")));
        let output = Command::new(root.join("boot/bin/kubeadm")).args(arguments).env("PATH", path).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap().replace(root.to_str().unwrap(), "");
        let kubelet = fs::read_to_string(root.join("default/kubelet")).unwrap();
        let _ = fs::remove_dir_all(&root);
        (said, kubelet)
    }

    #[test]
    fn kubeadm_gets_what_a_node_in_a_container_needs() {
        let config = "kind: InitConfiguration\nnodeRegistration:\n  name: m\n";
        let arguments = ["init", "--config", "CONFIG", "-v", "2"];
        let (said, kubelet) = wrapped("init", config, "KUBELET_EXTRA_ARGS=\"--runtime-cgroups=/x\"\n", &arguments);
        let ignored = format!("--ignore-preflight-errors={IGNORED_CHECKS}");
        assert_eq!(said.lines().next().unwrap(), format!("init {ignored} --config /boot/kubeadm.yaml -v 2"));
        assert!(said.contains("nodeRegistration:\n  criSocket: unix:///run/containerd/containerd.sock\n  name: m\n"));
        assert!(said.ends_with("---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack:\n  maxPerCore: 0\n"));
        assert!(kubelet.starts_with("KUBELET_EXTRA_ARGS=--runtime-cgroups=/x --fail-swap-on=false "), "{kubelet}");
        assert!(kubelet.contains(" --cgroup-root=/kubelet ") && kubelet.trim_end().ends_with("imagefs.available<0%"));
        assert_eq!(kubelet.matches("runtime-cgroups").count(), 1);
    }

    #[test]
    fn what_the_bootstrap_data_says_stays() {
        let config = "nodeRegistration:\n  criSocket: unix:///x\n  kubeletExtraArgs:\n  - name: eviction-hard\n    value: a\n\
                      ---\nkind: KubeProxyConfiguration\n";
        let (said, kubelet) = wrapped("given", config, "", &["init", "--config=CONFIG"]);
        assert!(said.ends_with(config), "{said}");
        assert!(!kubelet.contains("eviction-hard") && kubelet.contains("--fail-swap-on=false"), "{kubelet}");
        let (said, _) = wrapped("join", "nodeRegistration:\n  name: m\n", "", &["join", "--config", "CONFIG"]);
        assert!(!said.contains("KubeProxyConfiguration") && said.contains("criSocket"), "{said}");
        let (said, kubelet) = wrapped("other", "", "", &["version", "--config", "CONFIG"]);
        assert_eq!((said.as_str(), kubelet.as_str()), ("version --config /config\n", ""));
    }

    #[test]
    fn the_first_step_that_fails_ends_it() {
        let steps =
            vec![BootStep::Run(secret("true")), BootStep::Run(secret("exit 7")), BootStep::Run(secret("false"))];
        let (root, ended) = carried_out("fails", steps, 1);
        assert_eq!(ended, Some(Ended { code: 7, step: 2 }));
        let _ = fs::remove_dir_all(&root);
    }

    #[test]
    fn results_are_read() {
        assert_eq!(Ended::parse("0 0\n"), Some(Ended { code: 0, step: 0 }));
        assert_eq!(Ended::parse("7 0012\n"), Some(Ended { code: 7, step: 12 }));
        assert_eq!(Ended::parse(""), None);
    }
}
