//! What only SQLite does: one process at a time, what a death loses, how often the disk is waited for, and what is left of erased content.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lifecycle::{Cause, Delivery};
use sqlx::{Connection, Executor, SqliteConnection};
use store::{NewRun, StoreConfig, StoreError, Survives, Write, Wrote};

use crate::common::*;

/// Set in a process of this test's own: the store's URL.
const CHILD: &str = "KVIT_TEST_STORE_CHILD";
/// A run's content in these tests.
const CONTENT: &[u8] = b"a-word-that-stands-nowhere-else";

/// This test as another process.
fn child(test: &str, place: &Place) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture", "--test-threads", "1"]).env(CHILD, &place.config.url);
    child
}

/// What an interactive run writes, and a background one.
fn life_of_a_run(name: &str) -> Vec<Vec<Write>> {
    let record = Write::Record { run: key(name), owner: A, delivery: Delivery::Complete, record: b"{}".to_vec() };
    vec![vec![accept(new(name))], vec![Write::Begin { run: key(name), from: 0, owner: A }], vec![end(name, 1, Cause::Stop, None), record]]
}

/// The child of the next test; on its own it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_until_it_is_ended() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let store = store::open(&StoreConfig::at(url)).await.unwrap();
    for number in 0..1_000_000 {
        one(&store, accept(new(&format!("r{number}")))).await;
        println!("accepted {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_the_process_loses_nothing_that_was_committed_and_frees_the_file() {
    let place = Place::sqlite();
    let mut child = child("sqlite::writes_until_it_is_ended", &place).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let number = |line: String| line.split_once("accepted ").and_then(|(_, number)| number.trim().parse::<u32>().ok());
    lines.by_ref().filter_map(number).find(|number| *number == 50).unwrap();
    let refused = store::open(&place.config).await.err();
    assert!(matches!(&refused, Some(StoreError::Open(why)) if why.contains("another process has it open")), "{refused:?}");
    child.kill().unwrap();
    let last = lines.filter_map(number).last().unwrap_or(50);
    child.wait().unwrap();

    let store = store::open(&place.config).await.unwrap();
    assert!(store.is_exclusive());
    for number in 0..=last {
        assert!(store.run(&key(&format!("r{number}"))).await.unwrap().is_some(), "{number} of {last}");
    }
}

/// The child of the next test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lives_through_three_phases() {
    let Ok(url) = std::env::var(CHILD) else { return };
    let folder = Path::new(url.strip_prefix("sqlite:").unwrap()).parent().unwrap().to_owned();
    // Carrying the log over is nobody's commit, and stays out of the count.
    let store = store::open(&StoreConfig { log_bytes: u64::MAX, ..StoreConfig::at(url) }).await.unwrap();
    let phase = |number: u32| std::fs::create_dir(folder.join(format!("phase-{number}"))).unwrap();
    phase(1);
    for number in 0..200 {
        for batch in life_of_a_run(&format!("interactive-{number}")) {
            store.commit(batch, Survives::Process).await.unwrap();
        }
    }
    phase(2);
    for number in 0..20 {
        store.commit(vec![accept(new(&format!("background-{number}")))], Survives::Machine).await.unwrap();
    }
    phase(3);
}

/// Counted by the kernel's own word: every system call that waits for a disk, between two directories that the child makes.
#[test]
fn a_commit_that_survives_the_process_waits_for_no_disk() {
    let place = Place::sqlite();
    let trace = place.folder().join("trace");
    let inner = child("sqlite::lives_through_three_phases", &place);
    let mut strace = Command::new("strace");
    let calls = "trace=fsync,fdatasync,sync_file_range,msync,syncfs,sync,mkdir,mkdirat,pwrite64,write";
    strace.args(["-f", "-qq", "-y", "-e", calls, "-o"]).arg(&trace);
    strace.arg(inner.get_program()).args(inner.get_args()).env(CHILD, &place.config.url);
    match strace.stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => {}
        other => return println!("skipped: strace is not here, or may not trace: {other:?}"),
    }
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert!(trace.contains("phase-3"), "{trace}");
    let between = |from: &str, to: &str, call: fn(&str) -> bool| {
        let lines = trace.lines().skip_while(|line| !line.contains(from)).skip(1).take_while(|line| !line.contains(to));
        lines.filter(|line| call(line)).count()
    };
    let waits: fn(&str) -> bool = |line| line.contains("sync");
    let (process, machine) = (between("phase-1", "phase-2", waits), between("phase-2", "phase-3", waits));
    let writes = between("phase-1", "phase-2", |line| line.contains("write") && line.contains("runs.db"));
    println!("200 interactive runs in 600 commits: {process} waits for the disk, {writes} writes; 20 background runs: {machine} waits");
    assert_eq!(process, 0);
    assert!(machine >= 20, "{machine}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn erased_and_deleted_content_leaves_the_files() {
    let mut place = Place::sqlite();
    place.config.checkpoint = Duration::from_millis(20);
    let store = place.open().await;
    let content = |name: &str| NewRun { request: Some(CONTENT.repeat(300)), expires_ms: Some(1), ..new(name) };
    commit(&store, vec![accept(content("erased")), accept(content("deleted"))]).await;
    commit(&store, vec![end("erased", 0, Cause::Stop, None), end("deleted", 0, Cause::Stop, None)]).await;
    let found = || {
        let files = ["runs.db", "runs.db-wal"].map(|name| std::fs::read(place.folder().join(name)).unwrap());
        files.iter().any(|bytes| bytes.windows(CONTENT.len()).any(|window| window == CONTENT))
    };
    assert!(found());
    one(&store, Write::Erase { run: key("erased") }).await;
    until("one is gone, the other is there", async || run(&store, "erased").await.request.is_none() && found()).await;
    assert_eq!(store.expire(1, 10).await.unwrap(), 2);
    until("no byte of it is left", async || !found()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_log_is_carried_over_and_nothing_of_it_is_lost() {
    let mut place = Place::sqlite();
    (place.config.checkpoint, place.config.log_bytes) = (Duration::from_millis(10), 200_000);
    let store = place.open().await;
    let log = place.folder().join("runs.db-wal");
    let length = || std::fs::metadata(&log).unwrap().len();
    let (mut longest, mut number) = (0, 0);
    until("it became long, and short again", async || {
        one(&store, accept(NewRun { request: Some(vec![1; 20_000]), ..new(&format!("r{number}")) })).await;
        number += 1;
        longest = longest.max(length());
        longest > 200_000 && length() < 100_000
    })
    .await;
    for number in 0..number {
        assert_eq!(run(&store, &format!("r{number}")).await.request.unwrap().len(), 20_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_is_there_when_it_is_opened_again() {
    let place = Place::sqlite();
    let store = place.open().await;
    for batch in life_of_a_run("r") {
        commit(&store, batch).await;
    }
    let before = run(&store, "r").await;
    drop(store);
    let store = place.open().await;
    assert_eq!(run(&store, "r").await, before);
    assert_eq!(std::fs::metadata(place.file()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_not_ours_or_of_a_newer_version_is_not_touched() {
    let place = Place::sqlite();
    std::fs::write(place.file(), b"this is no database, and long enough to be taken for one at first sight".repeat(20)).unwrap();
    assert!(matches!(store::open(&place.config).await.err(), Some(StoreError::Unreadable(_))));

    let place = Place::sqlite();
    drop(place.open().await);
    until("unlocked", async || {
        let mut connection = SqliteConnection::connect(place.file().to_str().unwrap()).await.unwrap();
        connection.execute("UPDATE kvit_schema SET version = 99").await.is_ok()
    })
    .await;
    until("read", async || match store::open(&place.config).await.err() {
        Some(StoreError::Unreadable(why)) => why.contains("version 99"),
        _ => false,
    })
    .await;
    for url in ["", "sqlite:", ":memory:", "sqlite::memory:", "mysql://there/db", "/no/such/folder/runs.db"] {
        assert!(matches!(store::open(&StoreConfig::at(url)).await.err(), Some(StoreError::Open(_))), "{url}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_nobody_waits_for_any_more_is_whole_or_not_there() {
    let place = Place::sqlite();
    let store = place.open().await;
    for number in 0..40 {
        let writes = (0..20).map(|k| accept(new(&format!("r{number}-{k}")))).collect();
        // Given up somewhere in it.
        let _ = tokio::time::timeout(Duration::from_micros(100 * number), store.commit(writes, Survives::Process)).await;
    }
    // The next one is not in the way of what was given up.
    assert_eq!(one(&store, accept(new("last"))).await, Wrote::Accepted(id("last")));
    for number in 0..40 {
        let first = store.run(&key(&format!("r{number}-0"))).await.unwrap().is_some();
        let last = store.run(&key(&format!("r{number}-19"))).await.unwrap().is_some();
        assert_eq!(first, last, "{number}");
    }
}
