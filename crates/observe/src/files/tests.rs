//! What cannot be seen from outside: every event in a line, the ring as a queue that runs over, a disk that fails and comes back.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use lifecycle::event::{Event, Record};
use lifecycle::message::{Receipt, Reported};
use lifecycle::session::PeerState;
use lifecycle::{Cause, Delivery, Guarantee, Incarnation, OnDisconnect, Outcome, Phase, RunId, RunKey, StepId, Tenant, Time};

use super::line::{Line, put_record, read};
use super::writer::{BATCH, Writer};
use super::{Filed, FilesConfig, event, replay};
use crate::{Clock, Journal, Limits};

fn key() -> RunKey {
    RunKey { tenant: Tenant::parse("team:a").expect("a tenant"), run: RunId::parse("r~2").expect("an id") }
}

fn config(dir: &Path) -> FilesConfig {
    FilesConfig { dir: dir.to_owned(), file_bytes: 1 << 20, files_max: 8, release: "0.1.0".to_owned(), life: Incarnation(7) }
}

fn samples() -> Vec<Event> {
    let (step, cause) = (StepId(9), Cause::ClientClosed);
    let outcome = || Outcome::of(Cause::CannotFit);
    let name = || "gateway \"é\"\n".into();
    let receipt = Receipt { blocks_held: 1, blocks_peak: 2, blocks_shared: 3, steps: 4, fence: step };
    let work = Reported { prompt: 1, cached_prompt: 2, generated: 3, after: 4, prompt_after: 5, after_receipt: 6, ..Reported::default() };
    vec![
        Event::Accepted { model: "a \"model\" \\ of\u{1}many".into(), n: 3, stream: true, on_disconnect: OnDisconnect::Cancel },
        Event::Accepted { model: "m".into(), n: 1, stream: false, on_disconnect: OnDisconnect::Grace(Duration::from_millis(250)) },
        Event::Accepted { model: "".into(), n: 1, stream: false, on_disconnect: OnDisconnect::Continue },
        Event::Dispatched { tokens_max: u64::MAX },
        Event::SentAs { upstream: name(), request: "0194".into() },
        Event::AbandonmentObserved { cause },
        Event::GraceBegun { grace: Duration::from_micros(1_500) },
        Event::AbandonmentWithdrawn,
        Event::GraceRanOut,
        Event::LeftRunning { cause },
        Event::CancelSent { cause, count: 2 },
        Event::CancelAcknowledged,
        Event::Delivered { tokens: 3 },
        Event::DeliveryEnded { delivery: Delivery::Partial },
        Event::Dismissed { cause },
        Event::OutcomeSet { outcome: outcome() },
        Event::Superseded { cause, won: Cause::Stop },
        Event::Settled { proven: false },
        Event::WorkerClock { error: Duration::from_micros(31) },
        Event::HandedBack,
        Event::Queued { prompt_tokens: 1, n: 2, max_tokens: u32::MAX },
        Event::BlocksAllocated { held: 1, cached_tokens: 16, shared: 1 },
        Event::PrefillStart,
        Event::Computed { step, prompt_tokens: 1, generated: 2, discarded: 3, late: 4 },
        Event::RowsDropped { step, layers: 24 },
        Event::FirstToken,
        Event::Preempted,
        Event::CancelReceived { cause },
        Event::CancelApplied { cause, phase: Phase::BeforeFirstToken },
        Event::Tombstoned { cause },
        Event::Suspended,
        Event::Attached,
        Event::Orphaned,
        Event::AttemptEnded { outcome: outcome() },
        Event::PromptCounted { tokens: 5, cached: 4 },
        Event::FenceCompleted { step },
        Event::Released { receipt },
        Event::Void { worker: Incarnation(u128::MAX - 5) },
        Event::Reported { work: Box::new(work) },
        Event::Reported { work: Box::new(Reported { steps: 7, steps_after: 8, waste_bound: Some(0), ..work }) },
        Event::LetGo { guarantee: Guarantee::BestEffort },
        Event::StepDone { step, rows: 4, dropped: 1 },
        Event::DeviceBusy { span: Duration::from_micros(100_001) },
        Event::DeviceFailed { step, quarantined: 2 },
        Event::SessionOpened { gateway: name(), incarnation: Incarnation(1), session: 4 },
        Event::SessionClosed { gateway: name(), session: 4 },
        Event::Gateway { gateway: name(), state: Some(PeerState::LeaseOver) },
        Event::Gateway { gateway: name(), state: None },
        Event::StaleMessage,
        Event::Defect { what: "a defect that the journal's file names" },
    ]
}

#[test]
fn every_event_is_read_back_as_what_it_was() {
    let mut seen = Vec::new();
    for event in samples() {
        for (run, attempt) in [(Some(key()), 1), (Some(key()), 0), (None, 0)] {
            let record = Record { at: Time(1_234_567), run, attempt, event: event.clone() };
            let mut text = String::new();
            put_record(&mut text, &record);
            assert!(text.ends_with('\n') && text.matches('\n').count() == 1, "{text}");
            assert_eq!(read(text.trim_end().as_bytes()), Ok(Line::Record(record)), "{text}");
            let word = text.split("\"event\":\"").nth(1).and_then(|rest| rest.split('"').next()).expect("a word").to_owned();
            seen.push(word);
        }
    }
    for word in event::WORDS {
        assert!(seen.iter().any(|seen| seen == word), "no sample of {word}");
    }
}

#[test]
fn what_is_no_record_is_told_apart_by_what_is_wrong() {
    let because = |text: &str| read(text.as_bytes()).expect_err(text);
    assert!(because("{").contains("no JSON"));
    assert_eq!(because(r#"{"run":"r"}"#), "`at_us` is not there");
    assert!(because(r#"{"at_us":1,"run":"r","event":"first_token"}"#).starts_with("`tenant` is empty"));
    assert!(because(r#"{"at_us":1,"tenant":"t","run":"a b","event":"first_token"}"#).starts_with("`run` "));
    assert_eq!(because(r#"{"at_us":1,"attempt":-1,"event":"first_token"}"#), "`attempt` is no number of one");
    assert_eq!(because(r#"{"at_us":1}"#), "`event` is not there");
    assert_eq!(because(r#"{"at_us":1,"event":"exploded"}"#), "there is no event `exploded`");
    assert_eq!(because(r#"{"at_us":1,"event":"delivered","tokens":4294967296}"#), "`tokens` is not what an event has there");
}

#[test]
fn no_sentence_about_an_end_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let journal = Journal::new(Clock::start(), Limits::default());
    let mut writer = Writer::new(journal.clone(), config(dir.path())).expect("a writer");
    let outcome = || Outcome::because(Cause::Invalid, "the engine answered 400: your prompt `my secret` is too long");
    journal.record(Some(&key()), 0, accepted());
    journal.record(Some(&key()), 1, Event::AttemptEnded { outcome: outcome() });
    journal.record(Some(&key()), 0, Event::OutcomeSet { outcome: outcome() });
    assert!(writer.catch_up());
    let text = fs::read_to_string(dir.path().join("journal-00000001.jsonl")).expect("the file");
    assert!(text.contains(r#""outcome":"invalid""#) && !text.contains("secret") && !text.contains("engine"), "{text}");
}

fn accepted() -> Event {
    Event::Accepted { model: "m".into(), n: 1, stream: true, on_disconnect: OnDisconnect::Cancel }
}

fn deliver(journal: &Journal, times: usize) {
    for _ in 0..times {
        journal.record(Some(&key()), 1, Event::Delivered { tokens: 1 });
    }
}

fn counted(journal: &Journal) -> Filed {
    journal.filed().expect("it is written to files")
}

#[test]
fn what_the_ring_lets_go_of_unwritten_is_counted_once_and_marked_in_the_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let limits = Limits { records: 8, ..Limits::default() };
    let journal = Journal::new(Clock::start(), limits);
    let mut writer = Writer::new(journal.clone(), config(dir.path())).expect("a writer");
    journal.record(Some(&key()), 0, accepted());
    deliver(&journal, 7);
    assert!(writer.catch_up());
    assert_eq!(counted(&journal), Filed { written: 8, lost: 0, errors: 0 });
    // The disk is away for so long that the ring runs over twice.
    let failing = |writer: &mut Writer| writer.folder.file = Some(OpenOptions::new().write(true).open("/dev/full").expect("a full device"));
    deliver(&journal, 11);
    failing(&mut writer);
    assert!(!writer.catch_up());
    assert_eq!(counted(&journal), Filed { written: 8, lost: 3, errors: 1 });
    failing(&mut writer);
    deliver(&journal, 2);
    assert!(!writer.catch_up());
    assert_eq!(counted(&journal), Filed { written: 8, lost: 5, errors: 2 });
    assert!(writer.catch_up() && writer.catch_up());
    assert_eq!(counted(&journal), Filed { written: 16, lost: 5, errors: 2 });
    let page = page(&journal);
    for sample in ["records_total 16", "lost_records_total 5", "errors_total 2"] {
        assert!(page.contains(&format!("kvit_journal_file_{sample}\n")), "{page}");
    }
    // It goes on in a file of its own: what was written into the other is not known.
    let second = fs::read_to_string(dir.path().join("journal-00000002.jsonl")).expect("a second file");
    assert_eq!(second.lines().nth(1), Some(r#"{"gap":5}"#), "{second}");
    let lives = replay(dir.path(), limits).expect("it is read back");
    let [life] = lives.as_slice() else { panic!("{} lives", lives.len()) };
    assert_eq!((life.records, life.removed, life.lost, life.torn), (16, 0, 5, 0));
    let delivered = |journal: &Journal| journal.run(&key()).expect("the run").tokens.delivered;
    assert_eq!((delivered(&journal), delivered(&life.journal)), (20, 15));
    assert!(life.missing()[0].starts_with("5 records were lost"), "{:?}", life.missing());
}

#[test]
fn nothing_is_lost_to_a_disk_that_fails_for_a_while_and_no_recorder_waits_for_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let journal = Journal::new(Clock::start(), Limits::default());
    let mut writer = Writer::new(journal.clone(), config(dir.path())).expect("a writer");
    journal.record(Some(&key()), 0, accepted());
    assert!(writer.catch_up());
    // The folder goes, with the file that is written; the next one cannot be begun.
    fs::remove_dir_all(dir.path()).expect("it goes");
    writer.folder.file = None;
    deliver(&journal, 2 * BATCH);
    assert!(!writer.catch_up() && !writer.catch_up());
    assert_eq!(counted(&journal), Filed { written: 1, lost: 0, errors: 2 });
    fs::create_dir(dir.path()).expect("it is back");
    assert!(writer.catch_up());
    assert_eq!(counted(&journal), Filed { written: 1 + 2 * BATCH as u64, lost: 0, errors: 2 });
    let lives = replay(dir.path(), Limits::default()).expect("it is read back");
    assert_eq!((lives[0].records, lives[0].removed, lives[0].lost), (2 * BATCH as u64, 1, 0), "the first file went with its folder");
}

#[test]
fn a_line_that_is_not_written_whole_is_cut_off_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let journal = Journal::new(Clock::start(), Limits::default());
    let mut writer = Writer::new(journal.clone(), config(dir.path())).expect("a writer");
    journal.record(Some(&key()), 0, accepted());
    assert!(writer.catch_up());
    // As a disk leaves it that was full in the middle of a line, and of which nothing could be cut off.
    let file = dir.path().join("journal-00000001.jsonl");
    let whole = fs::read_to_string(&file).expect("the file");
    fs::write(&file, format!("{whole}{{\"at_us\":12,\"ten")).expect("half a line");
    writer.folder.file = None;
    deliver(&journal, 3);
    assert!(writer.catch_up());
    let lives = replay(dir.path(), Limits::default()).expect("it is read back");
    assert_eq!((lives[0].records, lives[0].lost, lives[0].torn), (4, 0, 1));
    // A file that takes no more than half of it.
    let small = dir.path().join("small");
    let mut folder = super::folder::Folder::open(config(&small), 0).expect("a folder");
    folder.append("{\"gap\":1}\n", 0).expect("a first line");
    let before = fs::metadata(small.join("journal-00000001.jsonl")).expect("a file").len();
    folder.file = Some(File::open(small.join("journal-00000001.jsonl")).expect("for reading alone"));
    folder.append("{\"gap\":1}\n", 1).expect_err("it cannot be written");
    assert_eq!(fs::metadata(small.join("journal-00000001.jsonl")).expect("a file").len(), before);
    folder.append("{\"gap\":1}\n", 1).expect("into a new one");
    assert!(small.join("journal-00000002.jsonl").exists());
}

fn page(journal: &Journal) -> String {
    journal.metrics(&crate::Scrape {
        version: "0",
        incarnation: Incarnation(7),
        workers: &[],
        holdings: None,
        outside: None,
        spans: None,
        format: crate::Format::Text,
    })
}
