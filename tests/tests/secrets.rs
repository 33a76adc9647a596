//! The search for secrets finds what it is given, and does not cry wolf.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use capstan_tests::secrets::{PIECE, Secrets};

const SECRET: &str = "6a1f0c52-93de/4c0b+8a55-0d2b7f61e9c4";

fn looking_for(secret: &str) -> Secrets {
    let mut secrets = Secrets::default();
    secrets.add("it", secret.as_bytes());
    secrets
}

#[test]
fn a_planted_secret_is_found_in_all_its_clothes_and_in_part() {
    let secrets = looking_for(SECRET);
    let escaped = serde_json::json!({"a": {"b": serde_json::json!({"c": SECRET}).to_string()}}).to_string();
    let numbers: Vec<String> = SECRET.bytes().map(|byte| byte.to_string()).collect();
    for said in [
        format!("denied: {SECRET}."),
        escaped,
        format!("its end is {}", &SECRET[20..]),
        format!("its middle is {}", &SECRET[7..31]),
        "?secret=6a1f0c52-93de%2F4c0b%2B8a55-0d2b7f61e9c4&x=y".to_owned(),
        format!("[{}]", numbers.join(", ")),
        STANDARD.encode(SECRET),
        STANDARD.encode(format!("a{SECRET}b")),
        STANDARD.encode(format!("ab{SECRET}")),
    ] {
        assert!(!secrets.found_in(said.as_bytes()).is_empty(), "{said}");
    }
    let less = format!("nothing {} of it is here", &SECRET[..PIECE - 1]);
    assert!(secrets.found_in(less.as_bytes()).is_empty());
}

#[test]
fn of_a_key_only_the_private_half_is_secret() {
    // SEQUENCE { INTEGER 1, OCTET STRING (32), [1] { BIT STRING (public) } }
    let scalar: Vec<u8> = (100..132).collect();
    let public: Vec<u8> = (0..65).map(|n| n * 3).collect();
    let der = [&[0x30, 0x77, 2, 1, 1, 4, 32][..], &scalar, &[0xa1, 0x44, 3, 0x42, 0], &public].concat();
    let body = STANDARD.encode(&der);
    let lines: Vec<&str> = (0..body.len()).step_by(64).map(|at| &body[at..(at + 64).min(body.len())]).collect();
    let pem = format!("-----BEGIN EC PRIVATE KEY-----\n{}\n-----END EC PRIVATE KEY-----\n", lines.join("\n"));
    let mut secrets = Secrets::default();
    secrets.add_text("key", &format!("  content: |\n    {}", pem.replace('\n', "\n    ")));
    assert!(!secrets.found_in(pem.as_bytes()).is_empty());
    assert!(!secrets.found_in(serde_json::json!(pem).to_string().as_bytes()).is_empty());
    assert!(!secrets.found_in(STANDARD.encode(&pem).as_bytes()).is_empty());
    assert!(secrets.found_in(STANDARD.encode(&public).as_bytes()).is_empty());
}

#[test]
fn what_kubernetes_keeps_as_secret_is_looked_for() {
    let kubeconfig = "token: abcdef.0123456789abcdef\nname: public";
    let object = serde_json::json!({"metadata": {"name": "s"}, "data": {
        "secret": STANDARD.encode(SECRET), "value": STANDARD.encode(kubeconfig), "url": STANDARD.encode("https://pve:8006"),
    }});
    let mut secrets = Secrets::default();
    secrets.add_object(&object);
    assert_eq!(secrets.len(), 2);
    assert!(!secrets.found_in(b"0123456789abcdef").is_empty());
    assert!(secrets.found_in(b"https://pve:8006 abcdef name: public").is_empty());
}
