use super::read;
use crate::{BootError, Step};

fn one(text: &str) -> Result<Vec<Step>, BootError> {
    read(text).map(|boot| boot.steps)
}

#[test]
fn files_and_oneshot_units_of_version_3() {
    let boot = read(
        r#"{"ignition":{"version":"3.3.0"},
            "passwd":{"users":[{"name":"core"}]},
            "storage":{"files":[
              {"path":"/etc/kubeadm.yml","mode":384,"contents":{"source":"data:,a%3A%20b%0A"}},
              {"path":"/etc/b","user":{"name":"core"},"group":{"id":7},"contents":{"source":"data:text/plain;base64,aGk="}},
              {"path":"/etc/c","append":[{"source":"data:,1"},{"source":"data:,2"}]},
              {"path":"/etc/empty","overwrite":true}],
             "disks":[{"device":"/dev/sda"}],"links":[]},
            "systemd":{"units":[
              {"name":"kubeadm.service","enabled":true,"contents":"[Service]\nType=oneshot\nExecStart=/etc/kubeadm.sh\n"},
              {"name":"other.service","enabled":true,"contents":"[Service]\nExecStart=/bin/x\n"}]}}"#,
    )
    .unwrap();
    let file = |path: &str, mode, owner: &str, append, content: &str| Step::WriteFile {
        path: path.to_owned(),
        mode,
        owner: owner.to_owned(),
        append,
        content: content.into(),
    };
    assert!(
        boot.steps
            == vec![
                file("/etc/kubeadm.yml", 0o600, "root:root", false, "a: b\n"),
                file("/etc/b", 0o644, "core:7", false, "hi"),
                file("/etc/c", 0o644, "root:root", true, "1"),
                file("/etc/c", 0o644, "root:root", true, "2"),
                file("/etc/empty", 0o644, "root:root", false, ""),
                Step::Run("/etc/kubeadm.sh".to_owned()),
            ]
    );
    assert_eq!(boot.ignored, ["passwd", "storage.disks", "systemd.units[other.service]"]);
}

#[test]
fn version_2_appends_by_flag() {
    let steps = one(
        r#"{"ignition":{"version":"2.3.0","config":{}},"storage":{"files":[{"filesystem":"root","path":"/a","append":true,"contents":{"source":"data:,x","verification":{}}}]}}"#,
    )
    .unwrap();
    assert!(matches!(&steps[..], [Step::WriteFile { append: true, content, .. }] if content == b"x"));
}

#[test]
fn what_would_be_another_machine_is_refused() {
    for (text, part) in [
        (r#"{"storage":{}}"#, "ignition.version"),
        (r#"{"ignition":{"version":"1.0"}}"#, "ignition.version"),
        (r#"{"ignition":{"version":"3.0.0","config":{"replace":{"source":"https://x/"}}}}"#, "ignition.config"),
        (r#"{"ignition":{"version":"3.0.0"},"storage":{"files":[{"path":"etc/x"}]}}"#, "storage.files[0].path"),
        (
            r#"{"ignition":{"version":"3.0.0"},"storage":{"files":[{"path":"/x","contents":{"source":"https://x/"}}]}}"#,
            "not fetched",
        ),
        (
            r#"{"ignition":{"version":"3.0.0"},"storage":{"files":[{"path":"/x","contents":{"source":"data:,%4"}}]}}"#,
            "%",
        ),
        ("{", "line 1"),
    ] {
        let error = one(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
