//! The journal as files, through the public API: what is replayed gives every view as the journal itself did; what is missing is said.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lifecycle::event::{Event, Record};
use lifecycle::{Cause, Incarnation, Time};
use observe::{AlertRules, Clock, FilesConfig, FilesError, Journal, Limits, Prices, Replayed, RunFilter, render_timeline, replay};
use serde_json::json;

use crate::story::*;

fn config(dir: &Path) -> FilesConfig {
    FilesConfig { dir: dir.to_owned(), file_bytes: 1 << 20, files_max: 8, release: "0.1.0".to_owned(), life: Incarnation(7) }
}

/// Records something into a journal while it is written to files, until it is all there.
fn written(config: FilesConfig, record: impl FnOnce(&Journal)) -> Journal {
    let journal = journal();
    let writer = journal.write_files(config).expect("the files are begun");
    record(&journal);
    drop(writer);
    journal
}

fn read(dir: &Path) -> Replayed {
    let mut lives = replay(dir, Limits::default()).expect("the files are read");
    assert_eq!(lives.len(), 1, "one life");
    lives.remove(0)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).expect("the folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = all.filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")).collect();
    files.sort();
    files
}

/// Some runs in different phases, and what concerns the whole worker.
fn stories(journal: &Journal) {
    cancelled_run(journal, &key("a"));
    cancelled_run(journal, &key("b"));
    at(journal, &key("rejected"), 2_000_000, accepted());
    at(journal, &key("rejected"), 2_000_100, outcome_set(Cause::QueueFull));
    at(journal, &key("rejected"), 2_000_200, Event::Settled { proven: true });
    at(journal, &key("living"), 2_000_300, accepted());
    at(journal, &key("living"), 2_000_350, dispatched());
    at(journal, &key("living"), 2_000_400, queued(37));
    at(journal, &key("living"), 2_000_500, computed(40, 37, 1, 0));
    at(journal, &key("late"), 2_000_600, Event::FirstToken);
    journal.record_at(Record { at: Time(2_000_700), run: None, attempt: 0, event: Event::StaleMessage });
}

/// A page without what the files themselves are counted by.
fn folded(journal: &Journal) -> String {
    page(journal).lines().filter(|line| !line.contains("kvit_journal_file_")).collect::<Vec<_>>().join("\n")
}

// contract: C-24
#[test]
fn a_replayed_journal_gives_every_view_as_the_journal_did() {
    let dir = tempfile::tempdir().expect("a folder");
    let live = written(config(dir.path()), stories);
    let life = read(dir.path());
    assert_eq!((life.records, life.removed, life.lost, life.torn), (live.count(|_| true) as u64, 0, 0, 0));
    assert!(life.missing().is_empty());
    assert_eq!((life.release.as_str(), life.life), ("0.1.0", Incarnation(7)));
    let (live_page, page) = (live.runs_of_all(&RunFilter::default()), life.journal.runs_of_all(&RunFilter::default()));
    assert_eq!(live_page, page);
    assert_eq!(page.data.len(), 4);
    for run in &page.data {
        let key = key(&run.id);
        assert_eq!(live.steps(&key), life.journal.steps(&key));
        assert_eq!(live.records(&key), life.journal.records(&key));
        let drawn = |journal: &Journal| render_timeline(&json!(journal.run(&key)), 80, false);
        assert_eq!(drawn(&live), drawn(&life.journal));
    }
    assert_eq!(folded(&live), folded(&life.journal));
    assert!(folded(&live).contains("kvit_journal_unmatched_records_total 1"));
    let waste = |journal: &Journal| json!(journal.waste(&Prices::default()))["total"].clone();
    assert_eq!(waste(&live), waste(&life.journal));
    let look = |journal: &Journal| {
        let look = journal.look(&AlertRules::default(), &[]);
        (look.runs, look.left_total, look.defects, look.tokens_generated, look.unproven)
    };
    assert_eq!(look(&live), look(&life.journal));
    // Its clock stands at the newest record.
    assert_eq!([life.journal.clock().now(), life.journal.clock().now()], [Time(2_000_700); 2]);
    assert_eq!(life.journal.clock().calendar_ns(Time::ZERO), live.clock().calendar_ns(Time::ZERO));
}

#[test]
fn what_many_record_at_once_is_all_written_in_its_order() {
    let dir = tempfile::tempdir().expect("a folder");
    let live = written(FilesConfig { file_bytes: 100_000, files_max: 1_000, ..config(dir.path()) }, |journal| {
        let record = |thread: u32| {
            let key = key(&format!("r{thread}"));
            journal.record(Some(&key), 0, accepted());
            (0..4_000).for_each(|_| journal.record(Some(&key), 1, Event::Delivered { tokens: 1 }));
        };
        std::thread::scope(|scope| (0..4).for_each(|thread| drop(scope.spawn(move || record(thread)))));
    });
    let life = read(dir.path());
    assert_eq!((life.records, life.lost), (4 * 4_001, 0));
    for thread in 0..4 {
        let key = key(&format!("r{thread}"));
        assert_eq!(live.records(&key), life.journal.records(&key));
        assert_eq!(live.run(&key), life.journal.run(&key));
    }
}

#[test]
fn files_are_rotated_by_size_and_the_oldest_go() {
    let dir = tempfile::tempdir().expect("a folder");
    let small = |files_max| FilesConfig { file_bytes: 2_000, files_max, ..config(dir.path()) };
    let live = written(small(1_000), |journal| (0..20).for_each(|i| cancelled_run(journal, &key(&format!("r{i}")))));
    let all = files(dir.path());
    assert!(all.len() > 20, "{}", all.len());
    assert!(all.iter().all(|file| fs::metadata(file).expect("a file").len() <= 2_000));
    let life = read(dir.path());
    assert_eq!((life.records, life.removed, life.lost), (live.count(|_| true) as u64, 0, 0));
    assert_eq!(folded(&live), folded(&life.journal));

    // Another life, which keeps fewer: the numbers go on, and the files of the first go first.
    let more = written(FilesConfig { life: Incarnation(8), ..small(6) }, |journal| {
        (0..20).for_each(|i| cancelled_run(journal, &key(&format!("s{i}"))));
    });
    let left = files(dir.path());
    assert_eq!(left.len(), 6);
    assert!(left[0] > all[all.len() - 1]);
    let life = read(dir.path());
    assert_eq!(life.life, Incarnation(8));
    assert!(life.removed > 0 && life.records > 0);
    assert_eq!((life.removed + life.records, life.lost), (more.count(|_| true) as u64, 0));
    assert!(life.missing()[0].contains("no longer there"), "{:?}", life.missing());
    assert_eq!(more.run(&key("s19")), life.journal.run(&key("s19")), "the newest run is whole");
    // A file has one record at the least, however small it should be.
    let tiny = tempfile::tempdir().expect("a folder");
    let live = written(FilesConfig { file_bytes: 1, files_max: 1_000, ..config(tiny.path()) }, |journal| cancelled_run(journal, &key("r")));
    assert_eq!(files(tiny.path()).len(), live.count(|_| true));
    assert_eq!(folded(&live), folded(&read(tiny.path()).journal));
}

#[test]
fn each_life_is_a_journal_of_its_own() {
    let dir = tempfile::tempdir().expect("a folder");
    let first = written(config(dir.path()), |journal| cancelled_run(journal, &key("same")));
    let second = written(FilesConfig { life: Incarnation(8), ..config(dir.path()) }, |journal| {
        at(journal, &key("same"), 5, accepted());
    });
    let lives = replay(dir.path(), Limits::default()).expect("both are read");
    assert_eq!(lives.iter().map(|life| life.life).collect::<Vec<_>>(), [Incarnation(7), Incarnation(8)]);
    assert_eq!((folded(&first), folded(&second)), (folded(&lives[0].journal), folded(&lives[1].journal)));
    assert_eq!(lives[1].journal.defects(), 0, "no run was accepted twice");
}

#[test]
fn a_file_that_ends_in_the_middle_of_a_line_is_read_up_to_there() {
    let dir = tempfile::tempdir().expect("a folder");
    let live = written(config(dir.path()), |journal| cancelled_run(journal, &key("r")));
    let file = &files(dir.path())[0];
    let whole = fs::read(file).expect("the file");
    for cut in [1, 10] {
        fs::write(file, &whole[..whole.len() - cut]).expect("it can be cut");
        let life = read(dir.path());
        assert_eq!((life.records, life.lost, life.torn), (live.count(|_| true) as u64 - 1, 0, 1));
        assert!(life.missing()[0].contains("in the middle of a line"), "{:?}", life.missing());
        assert!(!life.journal.run(&key("r")).expect("the run").settled);
    }
    // Killed before even its head was whole: there is nothing in it.
    fs::write(file, &whole[..20]).expect("it can be cut");
    assert!(matches!(replay(dir.path(), Limits::default()), Err(FilesError::Empty { .. })));
}

#[test]
fn the_document_shows_a_file_as_it_is() {
    let document = include_str!("../../../../docs/journal.md");
    let shown = document.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("journal-00000001.jsonl"), shown).expect("it can be written");
    let life = read(dir.path());
    assert_eq!((life.records, life.lost, life.life), (2, 12, Incarnation(7)));
    let run = life.journal.run(&key("demo")).expect("the run");
    assert_eq!((run.model.as_str(), run.attempt, run.created_ms), ("m", 1, 1_764_547_201_000));
}

#[test]
fn a_file_of_another_format_or_a_damaged_one_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    written(config(dir.path()), |journal| cancelled_run(journal, &key("r")));
    let file = &files(dir.path())[0];
    let whole = fs::read_to_string(file).expect("the file");
    let said = |text: String| {
        fs::write(file, text).expect("it can be written");
        replay(dir.path(), Limits::default()).err().expect("it is refused").to_string()
    };
    let other = said(whole.replace("\"kvit_journal\":1", "\"kvit_journal\":2"));
    assert!(other.contains("journal-00000001.jsonl: is of format 2, and this kvit reads format 1"), "{other}");
    let event = said(whole.replace("\"event\":\"dispatched\"", "\"event\":\"exploded\""));
    assert!(event.contains("journal-00000001.jsonl:3: there is no event `exploded`"), "{event}");
    let head = said(whole.lines().skip(1).map(|line| format!("{line}\n")).collect());
    assert!(head.contains(":1: is not the head of a journal's file"), "{head}");
    // The same records once more.
    fs::write(file, &whole).expect("it can be written");
    fs::write(dir.path().join("journal-00000002.jsonl"), &whole).expect("a copy");
    let twice = replay(dir.path(), Limits::default()).err().expect("it is refused").to_string();
    assert!(twice.contains("journal-00000002.jsonl:1: it has records that stand in the file before it"), "{twice}");
}

#[test]
fn a_folder_that_cannot_be_written_is_told_at_once_and_is_one_process_own() {
    let dir = tempfile::tempdir().expect("a folder");
    let (first, second) = (journal(), Journal::new(Clock::start(), Limits::default()));
    let writer = first.write_files(config(&dir.path().join("a").join("b"))).expect("the folder is made");
    cancelled_run(&first, &key("r"));
    let taken = second.write_files(config(&dir.path().join("a").join("b"))).err().expect("it is taken");
    assert!(matches!(taken, FilesError::Taken { .. }), "{taken}");
    assert!(matches!(first.write_files(config(&dir.path().join("c"))).err(), Some(FilesError::Begun)));
    drop(writer);
    drop(second.write_files(config(&dir.path().join("a").join("b"))).expect("it is free again"));
    assert_eq!(files(&dir.path().join("a").join("b")).len(), 1, "who records nothing begins no file, and drives none out");
    let file = dir.path().join("file");
    fs::write(&file, "no folder").expect("a file");
    let refused = journal().write_files(config(&file)).err().expect("it is no folder").to_string();
    assert!(refused.starts_with(&format!("{}: ", file.display())), "{refused}");
    for file in files(&dir.path().join("a").join("b")) {
        assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    assert!(matches!(replay(dir.path(), Limits::default()), Err(FilesError::Empty { .. })));
    assert!(matches!(replay(&dir.path().join("none"), Limits::default()), Err(FilesError::Folder { .. })));
}
