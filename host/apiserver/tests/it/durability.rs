//! What survives.

use crate::support::*;
use capstan_apiserver::{ApiServer, Database, Options, StoreError};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

#[tokio::test]
async fn a_server_goes_on_where_it_stopped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let database = Database::open(&path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "others can read the Secrets in it");
    let client = on(database.store("management").unwrap());
    client.install(&widgets()).await;
    client.post(WIDGETS, &widget("w", 1)).await.expect(201);
    client.post(WIDGETS, &widget("gone", 1)).await.expect(201);
    client.delete(&format!("{WIDGETS}/gone")).await.expect(200);
    let list = client.get(WIDGETS).await.expect(200);
    let refused = Database::open(&path).unwrap_err();
    assert!(
        matches!(refused, StoreError::InUse { .. }) && refused.to_string().contains("in use by another process"),
        "{refused}"
    );
    database.close();
    let closed = client.post(WIDGETS, &widget("late", 1)).await.expect(500);
    assert!(closed["message"].as_str().unwrap().contains("closed"), "{closed}");
    drop(client);

    let database = Database::open(&path).unwrap();
    let client = on(database.store("management").unwrap());
    let again = client.get(WIDGETS).await.expect(200);
    assert_eq!(again["items"], list["items"]);
    let revision = again["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    // The past is forgotten, the present is not.
    let mut watch = client.watch(&format!("{WIDGETS}?watch=true&resourceVersion={revision}")).await;
    let mut past = client.watch(&format!("{WIDGETS}?watch=true&resourceVersion=1")).await;
    assert_eq!(past.next().await.unwrap().1["code"], 410);
    client.patch(&format!("{WIDGETS}/w"), "merge", &json!({"spec": {"size": 2}})).await.expect(200);
    watch.expect("MODIFIED", "w").await;
}

#[test]
fn a_state_file_that_is_none_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    std::fs::write(&path, "hello").unwrap();
    let error = Database::open(&path).unwrap_err().to_string();
    assert!(error.contains("cannot be opened") && error.contains("state"), "{error}");
    let missing = Database::open(&directory.path().join("none/state")).unwrap_err().to_string();
    assert!(missing.contains("none/state"), "{missing}");
}

const CHILD: &str = "CAPSTAN_TEST_STATE_FILE";

/// Not a test of its own: what the child process of the next one does. It prints what was acknowledged, until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_until_killed() {
    let Ok(path) = std::env::var(CHILD) else { return };
    let database = Database::open(Path::new(&path)).unwrap();
    let server = ApiServer::new(Options { store: database.store("s").unwrap(), ..Options::default() }).unwrap();
    let client = std::sync::Arc::new(Client::over(server));
    let mut writers = Vec::new();
    for writer in 0..6 {
        let client = client.clone();
        writers.push(tokio::spawn(async move {
            let path = format!("{MAPS}/w{writer}");
            client.post(MAPS, &map(&format!("w{writer}"), json!({"a": "0", "b": "0"}))).await;
            for n in 1..1_000_000 {
                let n = n.to_string();
                client.patch(&path, "merge", &json!({"data": {"a": n, "b": n}})).await.expect(200);
                println!("acknowledged {writer} {n}");
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
}

#[tokio::test]
async fn a_kill_loses_no_acknowledged_write_and_shows_no_half() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let mut reached = [0_u64; 6];
    for round in 0..3 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["durability::writes_until_killed", "--exact", "--nocapture"])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = [0_u64; 6];
        let mut count = 0;
        let mut killed = false;
        for line in &mut lines {
            let Ok(line) = line else { break };
            let Some((_, rest)) = line.split_once("acknowledged ") else { continue };
            let (writer, n) = rest.split_once(' ').unwrap();
            let (Ok(writer), Ok(n)) = (writer.parse::<usize>(), n.trim().parse::<u64>()) else { continue };
            seen[writer] = n;
            count += 1;
            if count >= 60 + round * 17 && !killed {
                child.kill().unwrap();
                killed = true;
            }
        }
        child.wait().unwrap();
        assert!(killed, "the child ended by itself");
        let database = Database::open(&path).unwrap();
        let client = on(database.store("s").unwrap());
        for (writer, seen) in seen.iter().enumerate() {
            let object = client.get(&format!("{MAPS}/w{writer}")).await.expect(200);
            let number = |field: &str| object["data"][field].as_str().unwrap().parse::<u64>().unwrap();
            assert_eq!(number("a"), number("b"), "half of a write");
            assert!(number("a") >= *seen, "writer {writer}: {} was acknowledged, {} is there", seen, number("a"));
            reached[writer] = reached[writer].max(*seen);
        }
        database.close();
    }
    assert!(reached.iter().sum::<u64>() > 50);
}
