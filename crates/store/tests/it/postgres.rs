//! What only PostgreSQL does: several gateways on one store, wakes between them, connections that break, and waits that end.

use std::sync::Arc;
use std::time::Duration;

use lifecycle::Cause;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};
use store::{RunStore, StoreConfig, StoreError, Survives, Wake, Write, Wrote};
use tokio::sync::broadcast::Receiver;

use crate::common::*;

async fn hears(wakes: &mut Receiver<Wake>) -> Wake {
    tokio::time::timeout(Duration::from_secs(20), wakes.recv()).await.unwrap().unwrap()
}

/// Another connection to the same schema.
async fn beside(place: &Place) -> PgConnection {
    PgConnection::connect(&place.config.url).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_is_asked_for_at_one_gateway_is_heard_at_the_other() {
    let Some(place) = Place::postgres().await else { return };
    let (here, there) = (place.open().await, place.open().await);
    assert!(!here.is_exclusive());
    let mut wakes = here.wakes();
    commit(&here, vec![accept(new("r"))]).await;
    assert_eq!(one(&there, Write::Want { run: key("r"), cause: Cause::CancelRequested }).await, Wrote::Done);
    assert_eq!(hears(&mut wakes).await, Wake::Wanted(key("r")));
    assert_eq!(here.wanted(A).await.unwrap(), [(key("r"), Cause::CancelRequested)]);
    // And back; whoever asked hears himself, too, sooner or later.
    let mut elsewhere = there.wakes();
    one(&here, end("r", 0, Cause::CancelRequested, None)).await;
    while hears(&mut elsewhere).await != Wake::Moved(key("r")) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_wakes_everything_is_found_by_looking() {
    let Some(mut place) = Place::postgres().await else { return };
    let loud = place.open().await;
    place.config.notify = false;
    let silent = place.open().await;
    let (mut from_loud, mut from_silent) = (loud.wakes(), silent.wakes());
    commit(&silent, vec![accept(new("r")), Write::Want { run: key("r"), cause: Cause::Shutdown }]).await;
    assert_eq!(loud.wanted(A).await.unwrap(), [(key("r"), Cause::Shutdown)]);
    // What the loud one writes comes after what the silent one did not tell.
    one(&loud, append("r", 0, events(1..=1))).await;
    assert_eq!(hears(&mut from_loud).await, Wake::Moved(key("r")));
    assert!(from_silent.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_are_made_anew_and_lost_wakes_are_told() {
    let Some(place) = Place::postgres().await else { return };
    let store = place.open().await;
    let mut wakes = store.wakes();
    commit(&store, vec![accept(new("r"))]).await;
    store.run(&key("r")).await.unwrap();
    let cut =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = current_schema() AND pid <> pg_backend_pid()";
    let ended = beside(&place).await.fetch_all(cut).await.unwrap();
    assert!(ended.len() >= 2, "a listener and another");
    // At once, and as if nothing had been.
    assert_eq!(one(&store, append("r", 0, events(1..=1))).await, Wrote::Done);
    assert_eq!(run(&store, "r").await.last_event, 1);
    while hears(&mut wakes).await != Wake::Lost {}
    one(&store, append("r", 0, events(2..=2))).await;
    while hears(&mut wakes).await != Wake::Moved(key("r")) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateways_that_open_a_new_store_at_the_same_moment_make_one() {
    let Some(place) = Place::postgres().await else { return };
    let tasks = [(); 6].map(|()| {
        let config = place.config.clone();
        tokio::spawn(async move { store::open(&config).await })
    });
    let mut stores: Vec<Arc<dyn RunStore>> = Vec::new();
    for task in tasks {
        stores.push(task.await.unwrap().unwrap());
    }
    one(&stores[0], accept(new("r"))).await;
    assert!(stores[5].run(&key("r")).await.unwrap().is_some());

    beside(&place).await.execute("UPDATE kvit_schema SET version = 99").await.unwrap();
    assert!(matches!(store::open(&place.config).await.err(), Some(StoreError::Unreadable(why)) if why.contains("version 99")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_the_disk_only_if_it_must_survive_the_machine() {
    let Some(place) = Place::postgres().await else { return };
    let store = place.open().await;
    let mut connection = beside(&place).await;
    // The server itself notes how each row's transaction is to be committed.
    let noted = "CREATE TABLE noted (run text, how text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO noted VALUES (NEW.run, current_setting('synchronous_commit')); RETURN NEW; END $$;
        CREATE TRIGGER note AFTER INSERT ON kvit_run FOR EACH ROW EXECUTE FUNCTION note()";
    connection.execute(AssertSqlSafe(noted)).await.unwrap();
    for (name, survives) in [("r1", Survives::Process), ("r2", Survives::Machine), ("r3", Survives::Process)] {
        store.commit(vec![accept(new(name))], survives).await.unwrap();
    }
    let rows = connection.fetch_all("SELECT how FROM noted ORDER BY run").await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<String, _>(0)).collect::<Vec<_>>(), ["off", "on", "off"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_late_or_not_at_all_is_not_available() {
    let Some(mut place) = Place::postgres().await else { return };
    place.config.operation = Duration::from_millis(300);
    let patient = open(&StoreConfig { operation: Duration::from_secs(10), ..place.config.clone() }).await;
    one(&patient, accept(new("r"))).await;
    let store = place.open().await;
    let mut connection = beside(&place).await;
    connection.execute("BEGIN; SELECT * FROM kvit_run FOR UPDATE").await.unwrap();
    let want = || Write::Want { run: key("r"), cause: Cause::Shutdown };
    assert!(matches!(store.commit(vec![want()], Survives::Process).await, Err(StoreError::Unavailable(_))));
    // Whoever only reads is not in the way.
    assert_eq!(run(&patient, "r").await.wanted, None);
    connection.execute("ROLLBACK").await.unwrap();
    assert_eq!(one(&patient, want()).await, Wrote::Done);

    // A port that nobody listens at.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut nowhere = StoreConfig::at(format!("postgres://postgres@{free}/postgres"));
    (nowhere.connect, nowhere.acquire) = (Duration::from_millis(300), Duration::from_millis(300));
    assert!(matches!(store::open(&nowhere).await.err(), Some(StoreError::Unavailable(_))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_that_take_over_the_same_run_do_not_both_have_it() {
    let Some(place) = Place::postgres().await else { return };
    let (here, there) = (place.open().await, place.open().await);
    for number in 0..20 {
        let name = format!("r{number}");
        one(&here, accept(new(&name))).await;
        let take = |to| Write::TakeOver { run: key(&name), from: A, to, skip: 0 };
        let (one, other) = tokio::join!(
            here.commit(vec![take(B)], Survives::Process),
            there.commit(vec![take(lifecycle::Incarnation(3))], Survives::Process)
        );
        let wrote = [one.unwrap().remove(0), other.unwrap().remove(0)];
        let taken = wrote.iter().filter(|wrote| matches!(wrote, Wrote::Taken(_))).count();
        let stands = wrote.iter().filter(|wrote| matches!(wrote, Wrote::Stands(run) if run.owner != A)).count();
        assert_eq!((taken, stands), (1, 1), "{wrote:?}");
    }
}
