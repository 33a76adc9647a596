use std::io::Write;

use base64::Engine as _;

use crate::{Boot, BootError, Instance, MAX_UNPACKED, Step, read, read_for};

fn boot(body: &str) -> Result<Boot, BootError> {
    read("cloud-config", format!("#cloud-config\n{body}").as_bytes())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn file(step: &Step) -> (&str, u32, &str, bool, &[u8]) {
    match step {
        Step::WriteFile { path, mode, owner, append, content } => (path, *mode, owner, *append, content),
        Step::Run(_) => panic!("not a file"),
    }
}

#[test]
fn order_is_that_of_cloud_init() {
    let boot = boot(
        "runcmd: [three, [echo, \"it's\", 5]]\nusers: [a]\nwrite_files:\n- {path: /late, defer: true}\n- {path: /two}\nntp: {enabled: true}\nbootcmd: [one]\n",
    )
    .unwrap();
    let seen: Vec<String> = boot
        .steps
        .iter()
        .map(|step| match step {
            Step::Run(line) => line.clone(),
            step => file(step).0.to_owned(),
        })
        .collect();
    assert_eq!(seen, ["one", "/two", "/late", "three", r"'echo' 'it'\''s' '5'"]);
    assert_eq!(boot.ignored, ["users", "ntp"]);
}

#[test]
fn modes_owners_and_appending() {
    for (written, mode) in [
        ("'0640'", 0o640),
        ("'640'", 0o640),
        ("\"0o640\"", 0o640),
        ("0640", 0o640),
        ("0o640", 0o640),
        ("416", 0o640),
        ("'4755'", 0o4755),
        ("", 0o644),
    ] {
        let boot = boot(&format!("write_files:\n- path: /a\n  permissions: {written}\n")).unwrap();
        assert_eq!(file(&boot.steps[0]).1, mode, "{written}");
    }
    let boot =
        boot("write_files:\n- {path: /a, owner: 'u:g', append: true, content: 5}\n- path: /b\n  content:\n").unwrap();
    assert_eq!(file(&boot.steps[0]), ("/a", 0o644, "u:g", true, &b"5"[..]));
    assert_eq!(file(&boot.steps[1]), ("/b", 0o644, "root:root", false, &b""[..]));
}

#[test]
fn every_encoding_gives_the_same_bytes() {
    let bytes = b"\x00\xffbinary\r\n";
    let plain = base64(bytes);
    let packed = base64(&gzip(bytes));
    let broken = format!("{}\n    {}", &packed[..10], &packed[10..]);
    for (encoding, content) in [
        ("b64", &plain),
        ("base64", &plain),
        ("gz", &packed),
        ("gzip", &packed),
        ("gz+b64", &packed),
        ("gz+base64", &packed),
        ("gzip+b64", &packed),
        ("gzip+base64", &packed),
        ("GZIP+BASE64", &broken),
    ] {
        let boot =
            boot(&format!("write_files:\n- path: /a\n  encoding: {encoding}\n  content: |\n    {content}\n")).unwrap();
        assert_eq!(file(&boot.steps[0]).4, bytes, "{encoding}");
    }
    let whole = gzip(b"#cloud-config\nruncmd: [a]\n");
    assert!(read("cloud-config", &whole).unwrap().steps == [Step::Run("a".to_owned())]);
}

/// Field case A11: commands with characters that are special to YAML or the shell come out as they went in.
#[test]
fn a11_commands_and_contents_keep_every_byte() {
    for command in [
        "echo 'single' \"double\"",
        "echo key: value",
        "echo a # no comment",
        "- leading dash",
        "echo {{ ds.meta_data.x }} {{ }} {% if %}",
        "echo $(date) ${HOME} `id`",
        r"echo \n \\ \t",
        "cat <<E\n  two lines\nE\n",
        "echo grüße 漢字 \u{1F600}",
        "yes",
        "true",
        "5",
        "~",
        "",
        " spaces around ",
        "tab\tinside",
        "*alias &anchor !tag %directive @at",
    ] {
        let quoted = serde_json::to_string(command).unwrap();
        for header in ["#cloud-config\n", "## template: jinja\n#cloud-config\n"] {
            let data = format!("{header}runcmd:\n- {quoted}\nwrite_files:\n- path: /a\n  content: {quoted}\n");
            let boot =
                read_for("cloud-config", data.as_bytes(), &Instance { hostname: "h".into(), id: "i".into() }).unwrap();
            assert!(boot.steps[1] == Step::Run(command.to_owned()), "{command:?}");
            assert_eq!(file(&boot.steps[0]).4, command.as_bytes(), "{command:?}");
        }
    }
    let block = boot("runcmd:\n- |\n  if true; then\n    echo 'a: b'\n  fi\n- >-\n  folded\n  line\n- yes\n").unwrap();
    let lines = ["if true; then\n  echo 'a: b'\nfi\n", "folded line", "yes"].map(|line| Step::Run(line.to_owned()));
    assert!(block.steps == lines);
}

#[test]
fn instance_data_is_filled_into_templates_only() {
    let body = "#cloud-config\nwrite_files:\n- path: /a\n  content: \"{{ ds.meta_data.local_hostname }} {{v1.instance_id}} {{ other }} {{\"\n";
    let instance = Instance { hostname: "node-1".into(), id: "ns.node-1".into() };
    let template = format!("## template: jinja\n{body}");
    let content = |data: &str| {
        let boot = read_for("cloud-config", data.as_bytes(), &instance).unwrap();
        String::from_utf8(file(&boot.steps[0]).4.to_vec()).unwrap()
    };
    assert_eq!(content(&template), "node-1 ns.node-1 {{ other }} {{");
    assert_eq!(content(body), "{{ ds.meta_data.local_hostname }} {{v1.instance_id}} {{ other }} {{");
}

#[test]
fn other_formats_are_refused_by_name() {
    for (format, data, part) in [
        ("talos", "#cloud-config\n", "talos"),
        ("", "#cloud-config\n", "cloud-config and ignition"),
        ("cloud-config", "", "empty"),
        ("cloud-config", "Content-Type: multipart/mixed; boundary=x\n", "multi-part"),
        ("cloud-config", "MIME-Version: 1.0\n", "multi-part"),
        ("cloud-config", "#!/bin/sh\ntrue\n", "script"),
        ("cloud-config", "#include\nhttp://x\n", "include"),
        ("cloud-config", "#cloud-config-archive\n", "another kind"),
        ("cloud-config", "{\"ignition\":{}}", "ignition"),
        ("cloud-config", "runcmd: []\n", "#cloud-config"),
        ("cloud-config", "## template: jinja\nruncmd: []\n", "#cloud-config"),
        ("cloud-config", "#cloud-config\n- a\n", "a list"),
    ] {
        let error = read(format, data.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{data:?}: {error}");
    }
    assert!(read("cloud-config", b"#cloud-config\n").unwrap().steps.is_empty());
}

#[test]
fn faults_name_the_field_and_never_the_contents() {
    for (body, part) in [
        ("write_files: {a: secret}", "write_files"),
        ("write_files: [secret]", "write_files[0]"),
        ("write_files: [{content: secret}]", "write_files[0].path"),
        ("write_files: [{path: secret}]", "write_files[0].path"),
        ("write_files: [{path: /a/../secret}]", "write_files[0].path"),
        ("write_files: [{path: /a, permissions: secret}]", "write_files[0].permissions"),
        ("write_files: [{path: /a, permissions: '99'}]", "write_files[0].permissions"),
        ("write_files: [{path: /a, permissions: -1}]", "write_files[0].permissions"),
        ("write_files: [{path: /a, append: secret}]", "write_files[0].append"),
        ("write_files: [{path: /a, content: [secret]}]", "write_files[0].content"),
        ("write_files: [{path: /a, encoding: rot13, content: secret}]", "write_files[0].encoding"),
        ("write_files: [{path: /a, encoding: base64, content: 's!ecret'}]", "write_files[0].content"),
        ("write_files: [{path: /a, encoding: gz+b64, content: c2VjcmV0}]", "write_files[0].content"),
        ("write_files: [{path: /a, source: {uri: 'http://secret'}}]", "write_files[0].source"),
        ("write_files: [{path: /a, contents: secret}]", "write_files[0].contents"),
        ("runcmd: secret", "runcmd"),
        ("runcmd: [{secret: secret}]", "runcmd[0]"),
        ("runcmd: [a, 5]", "runcmd[1]"),
        ("runcmd: [[a, [secret]]]", "runcmd[0][1]"),
        ("runcmd: [[]]", "runcmd[0]"),
        ("runcmd: [a]\nruncmd: [secret]", "line 3"),
        ("runcmd: [\"secret", "line"),
        ("runcmd: [a]\n--- \nruncmd: [secret]", "document"),
        ("runcmd: !!int secret", "line"),
    ] {
        let error = boot(body).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(part), "{body}: {text}");
        assert!(!text.contains("secret"), "{body}: {text}");
    }
    let shown = format!("{:?}", boot("runcmd: [secret]\nwrite_files: [{path: /p, content: secret}]").unwrap());
    assert!(shown.contains("/p") && !shown.contains("secret"), "{shown}");
}

#[test]
fn a_compressed_bomb_is_refused() {
    let bomb = gzip(&vec![b' '; MAX_UNPACKED + 1]);
    assert!(matches!(read("cloud-config", &bomb), Err(BootError::TooLarge { .. })));
    let inner = boot(&format!("write_files: [{{path: /a, encoding: gz+b64, content: {}}}]", base64(&bomb)));
    assert!(matches!(inner, Err(BootError::TooLarge { .. })));
}
