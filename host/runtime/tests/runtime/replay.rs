//! Turns that are written down and run again.

use capstan_core::contract::{Effect, Granted};
use capstan_core::turn::{Call, no_fence};
use capstan_runtime::{Engine, EngineConfig, Module, Recording};

use crate::guest::{answer, call, component, input, network};

const SECRET: &[u8] = b"hunter2-hunter2";

async fn recorded(record: bool) -> (tempfile::TempDir, Module) {
    let directory = tempfile::tempdir().unwrap();
    let mut config = EngineConfig::in_process();
    config.recordings = Some(directory.path().join("recordings"));
    let module = Module::load(&Engine::new(config).unwrap(), "guest", component()).unwrap();
    let (gateway, _) = network(|request| match request.method.reads() {
        true => answer(200, "here"),
        false => answer(201, "vm-7"),
    });
    let mut about = input("");
    if record {
        about.subject.set("/metadata/annotations", serde_json::json!({"capstan.dev/record": "yes"}));
    }
    let mut turn = module.begin("guest", about, &gateway).await.unwrap();
    call(&mut turn, Call::Parts).await;
    call(&mut turn, Call::Observe("vm".into())).await;
    let mut granted = Granted::default();
    granted.secrets.insert("token".into(), SECRET.to_vec());
    turn.call(Call::Create("vm".into()), Default::default(), granted, &no_fence()).await;
    (directory, module)
}

fn files(directory: &tempfile::TempDir) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(directory.path().join("recordings"));
    all.into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
}

#[tokio::test]
async fn a_recorded_turn_runs_again_with_the_same_requests_and_answers() {
    let (directory, module) = recorded(true).await;
    let [file] = files(&directory).try_into().unwrap();
    assert!(file.file_name().unwrap().to_str().unwrap().starts_with("GuestMachine.tenant.m1."));
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("hunter2") && !text.contains("aHVudGVy"), "{text}");
    let recording = Recording::read(&file).unwrap();
    assert_eq!((recording.calls.len(), recording.requests()), (3, 2));
    assert_eq!(recording.calls[2].effect, Effect::Answered);
    assert_eq!(module.replay(&recording).await, Ok(None));
}

#[tokio::test]
async fn the_first_difference_is_named() {
    let (directory, module) = recorded(true).await;
    let recording = Recording::read(&files(&directory)[0]).unwrap();
    let told = async |change: &dyn Fn(&mut Recording)| {
        let mut changed = recording.clone();
        change(&mut changed);
        module.replay(&changed).await.unwrap().unwrap()
    };
    let target = told(&|r| r.calls[1].exchanges[0].target = "/vms/other".into()).await;
    assert!(
        target.contains("call 2 of 3, observe vm: request 1 was GET /vms/other") && target.contains("/vms/vm"),
        "{target}"
    );
    let body = told(&|r| r.calls[2].exchanges[0].body = "something".into()).await;
    assert!(body.contains("create vm: request 1 was POST"), "{body}");
    let more = told(&|r| r.calls[0].exchanges = r.calls[1].exchanges.clone()).await;
    assert!(more.contains("call 1 of 3, parts: request 1 was GET") && more.ends_with("is now nothing"), "{more}");
    let reply = told(&|r| r.calls[1].reply = "Err(Gone)".into()).await;
    assert!(reply.contains("observe vm: the answer was Err(Gone) and is now Ok("), "{reply}");
}

#[tokio::test]
async fn nobody_is_recorded_who_does_not_ask_for_it() {
    assert_eq!(files(&recorded(false).await.0).len(), 0);
}
