use super::*;
use serde_json::json;

fn draft(name: &str, x: u32) -> Draft {
    Draft::new(
        &json!({"apiVersion": "v1", "kind": "T", "metadata": {"name": name, "uid": format!("uid-{name}")}, "x": x}),
    )
}

fn things() -> Arc<str> {
    "things".into()
}

#[test]
fn changes_need_the_revision_they_were_based_on() {
    let store = Store::memory();
    let key = Key::new("", "a");
    let first = store.commit(&things(), &key, Change::Create(draft("a", 1))).unwrap();
    assert!(matches!(store.commit(&things(), &key, Change::Create(draft("a", 1))), Err(Refusal::Exists)));
    let second =
        store.commit(&things(), &key, Change::Replace { expected: first.revision, draft: draft("a", 2) }).unwrap();
    assert!(second.revision > first.revision);
    assert!(matches!(
        store.commit(&things(), &key, Change::Delete { expected: first.revision }),
        Err(Refusal::Changed)
    ));
    store.commit(&things(), &key, Change::Delete { expected: second.revision }).unwrap();
    assert!(store.get("things", &key).is_none());
    assert!(store.find("uid-a").is_none());
}

#[test]
fn the_past_can_be_listed_until_it_is_forgotten() {
    let store = Store::memory_with(HistoryLimit { events: 3, bytes: 1 << 20, age: Duration::from_secs(60) });
    let a = store.commit(&things(), &Key::new("", "a"), Change::Create(draft("a", 1))).unwrap();
    let b = store.commit(&things(), &Key::new("", "b"), Change::Create(draft("b", 1))).unwrap();
    store
        .commit(&things(), &Key::new("", "a"), Change::Replace { expected: a.revision, draft: draft("a", 2) })
        .unwrap();
    store.commit(&things(), &Key::new("", "b"), Change::Delete { expected: b.revision }).unwrap();
    let names = |at| {
        let listing = store.list("things", "", None, at).map(|l| l.objects);
        listing.map(|objects| objects.iter().map(|o| o.value()["x"].as_u64().unwrap()).collect::<Vec<_>>())
    };
    assert_eq!(names(None), Ok(vec![2]));
    assert_eq!(names(Some(b.revision)), Ok(vec![1, 1]));
    assert_eq!(names(Some(a.revision)), Ok(vec![1]));
    store.commit(&things(), &Key::new("", "c"), Change::Create(draft("c", 3))).unwrap();
    assert_eq!(names(Some(a.revision)), Err(OutOfRange::TooOld { oldest: b.revision }));
    assert_eq!(names(Some(99)), Err(OutOfRange::TooNew { current: 5 }));
    assert!(store.events("things", a.revision, 10).is_err());
    assert_eq!(store.events("things", b.revision, 10).unwrap().0.len(), 3);
}

#[tokio::test]
async fn a_file_gives_back_what_was_settled() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let database = Database::open(&path).unwrap();
    assert!(matches!(Database::open(&path), Err(StoreError::InUse { .. })));
    let store = database.store("one").unwrap();
    let key = Key::new("", "a");
    let a = store.commit(&things(), &key, Change::Create(draft("a", 1))).unwrap();
    let b = store.commit(&things(), &Key::new("", "b"), Change::Create(draft("b", 1))).unwrap();
    store.commit(&things(), &key, Change::Delete { expected: a.revision }).unwrap();
    store.settled(3).await.unwrap();
    database.store("two").unwrap().commit(&things(), &key, Change::Create(draft("a", 5))).unwrap();
    database.close();
    assert!(matches!(store.commit(&things(), &key, Change::Create(draft("a", 1))), Err(Refusal::Failed(_))));

    let database = Database::open(&path).unwrap();
    assert_eq!(database.store_names().unwrap(), ["one", "two"]);
    let store = database.store("one").unwrap();
    assert_eq!(store.revision(), 3);
    assert_eq!(store.len(), 1);
    assert_eq!(store.get("things", &Key::new("", "b")).unwrap().bytes(), b.bytes());
    assert!(store.events("things", 2, 10).is_err(), "history does not survive");
    assert!(store.events("things", 3, 10).unwrap().0.is_empty());
    database.remove_store("one").unwrap();
    assert_eq!(database.store_names().unwrap(), ["two"]);
    assert_eq!(database.store("two").unwrap().len(), 1);
}

#[tokio::test]
async fn watchers_are_woken_by_their_collection_only() {
    let store = Store::memory();
    let mut things_signal = store.subscribe("things");
    let others = store.subscribe("others");
    store.commit(&things(), &Key::new("", "a"), Change::Create(draft("a", 1))).unwrap();
    things_signal.changed().await.unwrap();
    assert_eq!(*things_signal.borrow(), 1);
    assert!(!others.has_changed().unwrap());
}

#[test]
fn owners_are_indexed() {
    let store = Store::memory();
    let owned = |owner: &str| {
        Draft::new(
            &json!({"metadata": {"name": "d", "uid": "ud", "ownerReferences": [{"uid": owner, "kind": "T", "name": "a", "apiVersion": "v1"}]}}),
        )
    };
    let key = Key::new("", "d");
    let d = store.commit(&things(), &key, Change::Create(owned("u1"))).unwrap();
    assert_eq!(store.dependents("u1").len(), 1);
    let d = store.commit(&things(), &key, Change::Replace { expected: d.revision, draft: owned("u2") }).unwrap();
    assert!(store.dependents("u1").is_empty());
    assert_eq!(store.dependents("u2").len(), 1);
    store.commit(&things(), &key, Change::Delete { expected: d.revision }).unwrap();
    assert!(store.dependents("u2").is_empty());
}

/// Whatever is done, a past revision can be listed as it was, and the events since then lead from it to the present.
#[test]
fn lists_and_events_agree() {
    let mut seed = 42_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let store = Store::memory();
    let mut snapshots: Vec<BTreeMap<Key, Vec<u8>>> = vec![BTreeMap::new()];
    for step in 0..400 {
        let name = format!("o{}", random(12));
        let key = Key::new("", &name);
        let change = match store.get("things", &key) {
            None => Change::Create(draft(&name, step)),
            Some(object) if random(3) == 0 => Change::Delete { expected: object.revision },
            Some(object) => Change::Replace { expected: object.revision, draft: draft(&name, step) },
        };
        store.commit(&things(), &key, change).unwrap();
        let now = store.list("things", "", None, None).unwrap();
        snapshots.push(now.objects.iter().map(|o| (o.key.clone(), o.bytes().to_vec())).collect());
    }
    for (revision, snapshot) in snapshots.iter().enumerate() {
        let listed = store.list("things", "", None, Some(revision as u64)).unwrap();
        let listed: BTreeMap<Key, Vec<u8>> =
            listed.objects.iter().map(|o| (o.key.clone(), o.bytes().to_vec())).collect();
        assert_eq!(&listed, snapshot, "revision {revision}");
        let mut replayed = listed;
        let mut cursor = revision as u64;
        loop {
            let (events, durable) = store.events("things", cursor, 7).unwrap();
            for event in &events {
                cursor = event.object.revision;
                let before = replayed.get(&event.key);
                assert_eq!(before, event.previous.as_ref().map(|previous| previous.bytes().to_vec()).as_ref());
                match event.kind {
                    EventKind::Deleted => replayed.remove(&event.key),
                    _ => replayed.insert(event.key.clone(), event.object.bytes().to_vec()),
                };
            }
            if events.len() < 7 {
                assert_eq!(durable, 400);
                break;
            }
        }
        assert_eq!(&replayed, snapshots.last().unwrap(), "revision {revision}");
    }
}

/// Readers and watchers see nothing that is not in the file.
#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_told_what_is_in_the_file_only() {
    let directory = tempfile::tempdir().unwrap();
    let database = Database::open(&directory.path().join("state")).unwrap();
    let store = database.store("one").unwrap();
    let mut signal = store.subscribe("things");
    let writer = store.clone();
    let writing = tokio::task::spawn_blocking(move || {
        for n in 0..50 {
            let name = format!("o{n}");
            writer.commit(&things(), &Key::new("", &name), Change::Create(draft(&name, n))).unwrap();
        }
    });
    let mut cursor = 0;
    while cursor < 50 {
        signal.changed().await.unwrap();
        let (events, durable) = store.events("things", cursor, 100).unwrap();
        assert!(events.iter().all(|event| event.object.revision <= store.durable()));
        assert!(durable <= store.revision());
        cursor = cursor.max(events.last().map_or(0, |event| event.object.revision));
    }
    writing.await.unwrap();
    store.settled(50).await.unwrap();
}

/// Secrets are not to be read in the file, under whichever of two keys; everything else is left as it is.
#[tokio::test]
async fn secrets_are_encrypted_in_the_file_and_keys_can_be_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let key = |n: u8| vec![n; 32];
    let keys = |all: &[Vec<u8>]| super::Keys::new(all).unwrap();
    let secret = |name: &str| {
        Draft::new(
            &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "uid": format!("uid-{name}")},
            "data": {"token": "dG9wIHNlY3JldCE="}}),
        )
    };
    let in_file = |words: &[u8]| std::fs::read(&path).unwrap().windows(words.len()).any(|part| part == words);
    let secrets: Arc<str> = "secrets".into();

    let database = Database::open_encrypted(&path, keys(&[key(1)])).unwrap();
    let store = database.store("one").unwrap();
    store.commit(&secrets, &Key::new("", "a"), Change::Create(secret("a"))).unwrap();
    store.commit(&things(), &Key::new("", "b"), Change::Create(draft("b", 77))).unwrap();
    store.settled(2).await.unwrap();
    database.close();
    assert!(!in_file(b"dG9wIHNlY3JldCE="), "the Secret can be read in the file");
    assert!(in_file(b"uid-b"), "what is no Secret is not encrypted: the search would have found it");

    let refused = Database::open(&path).unwrap().store("one").unwrap_err().to_string();
    assert!(refused.contains("--encryption-key-file"), "{refused}");
    let before = store_rows(&path);
    let refused = Database::open_encrypted(&path, keys(&[key(2)])).unwrap_err().to_string();
    assert!(refused.contains("a key that was not given (--encryption-key-file)"), "{refused}");
    assert_eq!(store_rows(&path), before, "another key changes nothing");
    assert!(!directory.path().join("state.new").exists());
    // Rotation: the new one first, then the new one alone.
    for all in [vec![key(2), key(1)], vec![key(2)]] {
        let database = Database::open_encrypted(&path, keys(&all)).unwrap();
        let store = database.store("one").unwrap();
        let value = store.get("secrets", &Key::new("", "a")).unwrap().value();
        assert_eq!(value["data"]["token"], "dG9wIHNlY3JldCE=");
        assert_eq!(store.len(), 2);
        database.close();
    }
    assert!(Database::open_encrypted(&path, keys(&[key(1)])).is_err(), "the old key reads nothing any more");
}

/// All rows of a state file.
fn store_rows(path: &std::path::Path) -> Vec<(Vec<u8>, Vec<u8>)> {
    use redb::{ReadableDatabase, ReadableTable};
    let database = redb::Database::open(path).unwrap();
    let table = database.begin_read().unwrap().open_table(file::OBJECTS).unwrap();
    let rows = table.iter().unwrap().map(|entry| entry.unwrap());
    rows.map(|(row, value)| (row.value().to_vec(), value.value().to_vec())).collect()
}

/// A file from before Secrets were encrypted has them encrypted from the first start with a key.
#[tokio::test]
async fn what_was_written_without_a_key_is_encrypted_at_the_first_start_with_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let database = Database::open(&path).unwrap();
    let store = database.store("one").unwrap();
    let secrets: Arc<str> = "secrets".into();
    store.commit(&secrets, &Key::new("", "a"), Change::Create(draft("a", 5))).unwrap();
    store.commit(&things(), &Key::new("", "b"), Change::Create(draft("b", 6))).unwrap();
    store.settled(2).await.unwrap();
    database.close();
    let in_file = |words: &[u8]| std::fs::read(&path).unwrap().windows(words.len()).any(|part| part == words);
    assert!(in_file(b"uid-a"));
    // What a start that was killed in the middle left.
    std::fs::write(directory.path().join("state.new"), "half").unwrap();
    let keys = || super::Keys::new(&[vec![7; 32]]).unwrap();
    Database::open_encrypted(&path, keys()).unwrap().close();
    assert!(!in_file(b"uid-a"), "what it was can still be read in the file");
    assert!(in_file(b"uid-b") && !directory.path().join("state.new").exists());
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert!(Database::open(&path).unwrap().store("one").is_err(), "it is encrypted now");
    let database = Database::open_encrypted(&path, keys()).unwrap();
    let store = database.store("one").unwrap();
    assert_eq!((store.len(), store.revision()), (2, 2));
    assert_eq!(store.get("secrets", &Key::new("", "a")).unwrap().value()["x"], 5);
}
