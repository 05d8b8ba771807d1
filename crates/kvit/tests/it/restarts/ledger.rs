//! What callers were told, over all lives of the server; and what is wrong with it.
//!
//! Invariant: nothing that was told is forgotten, and nothing told later may contradict it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use serde_json::Value;

/// What callers know of one run.
#[derive(Default)]
pub struct Known {
    /// It goes on without readers, so it must come to an end of its own.
    pub lasts: bool,
    /// Its events are kept.
    pub kept: bool,
    /// It is too long to have ended in one life, nobody has asked for its end, and its caller stayed to the crash.
    pub was_cut: bool,
    /// Somebody asked for its end, or its caller left it.
    pub unwanted: bool,
    pub key: Option<usize>,
    /// How it ended, once anybody was told.
    pub outcome: Option<String>,
    /// Who said so first.
    pub told_by: String,
    /// What was read of each answer by whoever read farthest.
    pub texts: [String; 2],
    /// Events of `/v1/runs/{id}/events` by number, and of the Responses API by sequence number.
    pub events: BTreeMap<u64, String>,
    pub sequence: BTreeMap<u64, String>,
}

impl Known {
    /// Whether the run's event of this number is its end.
    pub fn is_end(&self, number: u64) -> bool {
        self.events.get(&number).is_some_and(|event| event.starts_with("end "))
    }
}

/// How often what was checked; a test that checked nothing shows nothing.
#[derive(Default, Debug)]
pub struct Count {
    pub asked: u64,
    pub refused: u64,
    pub unanswered: u64,
    pub ends_told: u64,
    pub looks: u64,
    pub events_again: u64,
    pub cancels: u64,
    pub rejoined: u64,
    pub effects_told: u64,
}

#[derive(Default)]
struct Book {
    runs: BTreeMap<String, Known>,
    /// The tools of each run that was asked for with some, acknowledged or not.
    declared: BTreeMap<String, &'static [&'static str]>,
    /// What somebody was told became of an effect, by run and tool, where that is final.
    settled: BTreeMap<(String, String), String>,
    count: Count,
    wrong: Vec<String>,
}

/// All of it, for many callers at once.
#[derive(Default)]
pub struct Ledger(Mutex<Book>);

/// Most contradictions that are listed.
const WRONG_MAX: usize = 20;

impl Ledger {
    fn with<T>(&self, change: impl FnOnce(&mut Book) -> T) -> T {
        change(&mut self.0.lock().expect("no caller panics with the ledger in hand"))
    }

    pub fn count(&self, change: impl FnOnce(&mut Count)) {
        self.with(|book| change(&mut book.count));
    }

    pub fn wrong(&self, what: String) {
        self.with(|book| book.wrong.push(what));
    }

    /// A run that its caller was told of: from now on the server must know it.
    pub fn acknowledged(&self, id: &str, change: impl FnOnce(&mut Known)) {
        self.with(|book| change(book.runs.entry(id.to_owned()).or_default()));
    }

    pub fn get<T>(&self, id: &str, look: impl FnOnce(&Known) -> T) -> Option<T> {
        self.with(|book| book.runs.get(id).map(look))
    }

    pub fn ids(&self, which: impl Fn(&Known) -> bool) -> Vec<String> {
        self.with(|book| book.runs.iter().filter(|(_, known)| which(known)).map(|(id, _)| id.clone()).collect())
    }

    /// Somebody was told how a run ended.
    pub fn ended(&self, id: &str, how: &str, by: &str) {
        self.with(|book| {
            let known = book.runs.entry(id.to_owned()).or_default();
            book.count.ends_told += 1;
            match &known.outcome {
                Some(before) if before != how => {
                    book.wrong.push(format!("{id}: {} said `{before}`, then {by} said `{how}`", known.told_by));
                }
                Some(_) => {}
                None => (known.outcome, known.told_by) = (Some(how.to_owned()), by.to_owned()),
            }
        });
    }

    /// Somebody read this of an answer from its beginning on; `whole` if that was all of it.
    pub fn read(&self, id: &str, index: usize, text: &str, whole: bool, by: &str) {
        self.with(|book| {
            let known = book.runs.entry(id.to_owned()).or_default();
            let before = &mut known.texts[index];
            let agrees = text.starts_with(before.as_str()) || (!whole && before.starts_with(text));
            if !agrees {
                book.wrong.push(format!("{id}/{index}: {before:?} was read, then {by} read {text:?}, whole: {whole}"));
            } else if text.len() > before.len() {
                *before = text.to_owned();
            }
        });
    }

    /// An event of this number; `of_run` or else of the Responses API.
    pub fn event(&self, id: &str, of_run: bool, number: u64, what: &str) {
        self.with(|book| {
            let known = book.runs.entry(id.to_owned()).or_default();
            let events = if of_run { &mut known.events } else { &mut known.sequence };
            match events.get(&number) {
                Some(before) if before != what => book.wrong.push(format!("{id}: event {number} was {before}, is {what}")),
                Some(_) => book.count.events_again += 1,
                None => drop(events.insert(number, what.to_owned())),
            }
        });
    }

    /// A run with these tools is about to be asked for.
    pub fn declared(&self, id: &str, tools: &'static [&'static str]) {
        self.with(|book| book.declared.insert(id.to_owned(), tools));
    }

    /// Every run that was asked for with tools, and its tools.
    pub fn declarations(&self) -> BTreeMap<String, &'static [&'static str]> {
        self.with(|book| book.declared.clone())
    }

    /// Somebody was told where an effect stands.
    pub fn effect(&self, id: &str, key: &str, state: &str, by: &str) {
        self.with(|book| {
            book.count.effects_told += 1;
            let at = (id.to_owned(), key.to_owned());
            match book.settled.get(&at) {
                Some(before) if before != state => book.wrong.push(format!("{id}: {key} was {before}, then {by} said {state}")),
                None if matches!(state, "committed" | "failed") => drop(book.settled.insert(at, state.to_owned())),
                _ => {}
            }
        });
    }

    /// What a `GET /v1/runs/{id}` said of a run that was acknowledged.
    pub fn looked(&self, id: &str, status: u16, run: &Value) -> bool {
        self.count(|count| count.looks += 1);
        if status != 200 {
            self.wrong(format!("{id}: was acknowledged, and is {status}: {run}"));
            return true;
        }
        for effect in run["effects"].as_array().into_iter().flatten() {
            self.effect(id, effect["key"].as_str().unwrap_or_default(), effect["state"].as_str().unwrap_or_default(), "its record");
        }
        let Some(cause) = run["outcome"]["cause"].as_str() else { return false };
        self.ended(id, cause, "its record");
        true
    }

    /// Panics with what is wrong, if anything is.
    pub fn check(&self, when: &str) {
        self.with(|book| {
            let shown: Vec<_> = book.wrong.iter().take(WRONG_MAX).collect();
            assert!(shown.is_empty(), "{when}: {} contradictions: {shown:#?}", book.wrong.len());
        });
    }

    pub fn figures(&self) -> String {
        self.with(|book| {
            let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
            for known in book.runs.values() {
                let kind = if known.lasts { "background" } else { "interactive" };
                *outcomes.entry(format!("{kind} {}", known.outcome.as_deref().unwrap_or("?"))).or_default() += 1;
            }
            format!("{} runs acknowledged, {:?}; {outcomes:?}", book.runs.len(), book.count)
        })
    }
}
