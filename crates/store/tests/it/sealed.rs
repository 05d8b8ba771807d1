//! Content at rest: with a key nothing of it is legible in the database, and no other key opens it.

use lifecycle::{Cause, Delivery};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqliteConnection};
use store::{HookQuery, NewRun, StoreError, StoredEvent, Survives, Write};

use crate::common::*;

/// Each text that is content, with a word that occurs nowhere else.
async fn write_content(place: &Place) {
    let store = place.open().await;
    let told = store::Effect { description: "secret-effect".to_owned(), detail: Some(b"secret-detail".to_vec()), ..effect("e") };
    let body = |word: &str| word.as_bytes().to_vec();
    let last = Some(StoredEvent { number: 2, body: body("secret-last") });
    let wrote = store.commit(
        vec![
            accept(NewRun { request: Some(body("secret-request")), ..new("r") }),
            accept(new("other")),
            Write::Append { attempt: attempt("r", 0), owner: A, events: vec![StoredEvent { number: 1, body: body("secret-event") }] },
            Write::Intend { run: key("r"), effect: told.clone(), max: 9 },
            Write::Hook(store::Hook { body: body("secret-hook"), ..hook("h", "r", 1) }),
            match end("r", 0, Cause::Stop, None) {
                Write::End { attempt, owner, outcome, usage, now_ms, .. } => {
                    Write::End { attempt, owner, outcome, usage, last, hooks: Vec::new(), now_ms }
                }
                other => other,
            },
            Write::Record { run: key("r"), owner: A, delivery: Delivery::Complete, record: body("secret-record") },
        ],
        Survives::Machine,
    );
    wrote.await.unwrap();
    let kept = run(&store, "r").await;
    assert_eq!((kept.request, kept.record), (Some(body("secret-request")), Some(body("secret-record"))));
    let bodies: Vec<_> = store.events(&key("r"), 0, 9).await.unwrap().into_iter().map(|event| event.body).collect();
    assert_eq!(bodies, [body("secret-event"), body("secret-last")]);
    assert_eq!(store.effects(&key("r")).await.unwrap(), [told]);
    assert_eq!(store.due_hooks(&HookQuery::any(1, 1)).await.unwrap()[0].body, body("secret-hook"));
}

const WORDS: [&str; 7] = ["request", "event", "last", "effect", "detail", "record", "hook"];

fn has(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// With one key, another, and none.
async fn only_its_key_opens_it(place: &mut Place) {
    let unreadable = async |place: &Place, what: &str| {
        for _ in 0..500 {
            match store::open(&place.config).await.err() {
                Some(StoreError::Open(why)) if why.contains("another process") => {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
                error => return assert!(matches!(&error, Some(StoreError::Unreadable(why)) if why.contains(what)), "{error:?}"),
            }
        }
        panic!("the store stays locked");
    };
    let right = place.config.key_file.clone();
    place.config.key_file = Some(place.key_file("another", 8));
    unreadable(place, "another key").await;
    place.config.key_file = None;
    unreadable(place, "no key file is given").await;
    place.config.key_file = right;
    assert_eq!(run(&place.open().await, "r").await.request.unwrap(), b"secret-request");
}

/// All bytes of every file in the folder.
fn files(place: &Place) -> Vec<u8> {
    let files = std::fs::read_dir(place.folder()).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    files.collect::<Vec<_>>().concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_with_a_key_shows_nothing_and_without_one_everything() {
    let mut place = Place::sqlite();
    place.config.key_file = Some(place.key_file("key", 7));
    write_content(&place).await;
    let bytes = files(&place);
    assert!(WORDS.iter().all(|word| !has(&bytes, &format!("secret-{word}"))));
    only_its_key_opens_it(&mut place).await;

    let mut plain = Place::sqlite();
    write_content(&plain).await;
    let bytes = files(&plain);
    // So the search finds what is there.
    assert!(WORDS.iter().all(|word| has(&bytes, &format!("secret-{word}"))));
    plain.config.key_file = Some(plain.key_file("key", 7));
    let mut error = None;
    until("unlocked", async || {
        error = store::open(&plain.config).await.err();
        matches!(error, Some(StoreError::Unreadable(_)))
    })
    .await;
    assert!(error.unwrap().to_string().contains("made without a key"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_with_a_key_shows_nothing() {
    let Some(mut place) = Place::postgres().await else { return };
    place.config.key_file = Some(place.key_file("key", 7));
    write_content(&place).await;
    let mut connection = PgConnection::connect(&place.config.url).await.unwrap();
    for table in ["kvit_run", "kvit_event", "kvit_effect", "kvit_hook"] {
        // A row as text shows its bytes in hexadecimal.
        let rows = connection.fetch_all(AssertSqlSafe(format!("SELECT t::text FROM {table} t"))).await.unwrap();
        assert!(!rows.is_empty());
        for row in rows {
            let text: String = row.get(0);
            let secret: String = b"secret".iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(!text.contains("secret") && !text.contains(&secret), "{text}");
        }
    }
    only_its_key_opens_it(&mut place).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_was_moved_elsewhere_is_not_believed() {
    let mut place = Place::sqlite();
    place.config.key_file = Some(place.key_file("key", 7));
    write_content(&place).await;
    until("unlocked", async || {
        let mut connection = SqliteConnection::connect(place.file().to_str().unwrap()).await.unwrap();
        let moved = "UPDATE kvit_run SET request = (SELECT request FROM kvit_run WHERE run = 'r') WHERE run = 'other'";
        connection.execute(moved).await.is_ok()
    })
    .await;
    let store = place.open().await;
    assert!(matches!(store.run(&key("other")).await, Err(StoreError::Unreadable(_))));
    assert!(store.run(&key("r")).await.is_ok());
}

/// What cannot be read, at the head of every list and more of it than a page has, keeps nobody from the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_rows_stand_in_no_others_way() {
    let mut place = Place::sqlite();
    place.config.key_file = Some(place.key_file("key", 7));
    let store = place.open().await;
    let names: Vec<String> = (0..9).map(|n| format!("r{n}")).collect();
    for (n, name) in (1..).zip(&names) {
        one(&store, accept(new(name))).await;
        commit(&store, vec![Write::Hook(hook(&format!("h-{name}"), name, n)), Write::Follow { run: key(name) }]).await;
        one(&store, Write::Want { run: key(name), cause: Cause::CancelRequested }).await;
    }
    drop(store);
    let damages = [
        "UPDATE kvit_run SET request = x'00' WHERE run < 'r5'",
        "UPDATE kvit_run SET wanted = 'a word of a later version' WHERE run = 'r6'",
        "UPDATE kvit_hook SET body = x'00' WHERE run < 'r5'",
    ];
    for damage in damages {
        until("unlocked", async || {
            let mut connection = SqliteConnection::connect(place.file().to_str().unwrap()).await.unwrap();
            connection.execute(damage).await.is_ok()
        })
        .await;
    }
    let store = place.open().await;
    let owned: Vec<String> = store.owned(A, 2).await.unwrap().into_iter().map(|run| run.key.run.to_string()).collect();
    assert_eq!(owned, ["r5", "r7"]);
    assert_eq!(store.owned(A, 100).await.unwrap().len(), 3);
    let due: Vec<String> = store.due_hooks(&HookQuery::any(99, 3)).await.unwrap().into_iter().map(|hook| hook.id).collect();
    assert_eq!(due, ["h-r5", "h-r6", "h-r7"]);
    assert_eq!(store.wanted(A).await.unwrap().len(), 8);
    assert_eq!(store.followed(A).await.unwrap().len(), 0, "these keep their events");
    assert_eq!(store.owners().await.unwrap(), [(A, 0)]);
    // Who asks for one is told.
    assert!(matches!(store.run(&key("r0")).await, Err(StoreError::Unreadable(_))));
    assert!(store.glance(&key("r0")).await.unwrap().is_some(), "it needs none of what is damaged");
}
