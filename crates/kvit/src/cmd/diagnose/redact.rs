//! What a stranger may read of an incident: names of runs, tenants, workers and engines become other names, the same for the same one, and
//! nobody's words are in it.
//!
//! A new name is a digest of the old one with a salt that is kept nowhere, so it cannot be guessed from a list of likely names.
//!
//! Invariant: a field that is not known to be harmless does not stay as it is.

use std::cell::RefCell;
use std::collections::BTreeMap;

use observe::diagnose::Look;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// Labels of `/metrics` whose values are names.
const LABELS: [&str; 4] = ["worker", "upstream", "gateway", "run_id"];
/// Letters of a new name that tell one from another.
const DIGITS: usize = 12;
/// Fields of a run's record that stay as they are: numbers, states and words of the contract.
const HARMLESS: [&str; 21] = [
    "object",
    "created_ms",
    "state",
    "released",
    "settled",
    "attempt",
    "delivery",
    "told",
    "guarantee",
    "waste_bound_tokens",
    "phase_at_disconnect",
    "on_disconnect",
    "graces",
    "milestones",
    "boundaries",
    "tokens",
    "steps",
    "blocks",
    "superseded",
    "kind",
    "cause",
];

/// Who gives the new names.
pub struct Redactor {
    salt: [u8; 16],
    /// New names of runs, by the old ones.
    told: RefCell<BTreeMap<String, String>>,
}

impl Redactor {
    /// With a salt of its own.
    ///
    /// # Errors
    /// The system gives no randomness.
    pub fn new() -> Result<Redactor, getrandom::Error> {
        let mut salt = [0; 16];
        getrandom::fill(&mut salt)?;
        Ok(Redactor { salt, told: RefCell::default() })
    }

    /// The new name of something of a kind.
    fn name(&self, kind: &str, old: &str) -> String {
        let mut digest = Sha256::new();
        digest.update(self.salt);
        digest.update(kind);
        digest.update([0]);
        digest.update(old);
        let digits: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let new = format!("{kind}-{}", &digits[..DIGITS]);
        if kind == "run" {
            self.told.borrow_mut().insert(old.to_owned(), new.clone());
        }
        new
    }

    /// Which runs got which names, for whoever makes the bundle.
    pub fn runs(&self) -> BTreeMap<String, String> {
        self.told.borrow().clone()
    }

    /// A look: its sentences and its numbers may be told, its names not.
    pub fn look(&self, look: &Look) -> Look {
        let mut look = look.clone();
        for left in &mut look.left {
            (left.run, left.tenant) = (self.name("run", &left.run), self.name("tenant", &left.tenant));
            left.worker = left.worker.as_deref().map(|worker| self.name("worker", worker));
        }
        for worker in &mut look.workers {
            worker.name = self.name("worker", &worker.name);
            let Some(account) = &mut worker.account else { continue };
            // A device's own words, and nobody knows what is in them.
            account.device_lost = account.device_lost.as_ref().map(|_| "it said why".to_owned());
            for attempt in &mut account.attempts {
                (attempt.run, attempt.tenant) = (self.name("run", &attempt.run), self.name("tenant", &attempt.tenant));
            }
        }
        look
    }

    /// A run's record.
    pub fn run(&self, run: &Value) -> Value {
        let Value::Object(fields) = run else { return Value::Null };
        let mut kept: Map<String, Value> =
            fields.iter().filter(|(name, _)| HARMLESS.contains(&name.as_str())).map(|(n, v)| (n.clone(), v.clone())).collect();
        for (field, kind) in [("id", "run"), ("tenant", "tenant"), ("model", "model")] {
            if let Some(old) = fields.get(field).and_then(Value::as_str) {
                kept.insert(field.to_owned(), self.name(kind, old).into());
            }
        }
        if let Some(upstream) = run.pointer("/engine/upstream").and_then(Value::as_str) {
            kept.insert("engine".to_owned(), self.name("upstream", upstream).into());
        }
        if let Some(outcome) = fields.get("outcome").filter(|outcome| outcome.is_object()) {
            kept.insert("outcome".to_owned(), serde_json::json!({"kind": outcome["kind"], "cause": outcome["cause"]}));
        }
        Value::Object(kept)
    }

    /// A record of the journal.
    pub fn record(&self, record: &Value) -> Value {
        let mut record = record.clone();
        for (field, kind) in [("run", "run"), ("tenant", "tenant")] {
            if let Some(old) = record[field].as_str() {
                record[field] = self.name(kind, old).into();
            }
        }
        record
    }

    /// A page of metrics.
    pub fn metrics(&self, page: &str) -> String {
        let mut text = String::new();
        for line in page.lines() {
            let mut line = line.to_owned();
            for label in LABELS {
                let open = format!("{label}=\"");
                // A value ends at a quote that is not escaped.
                let Some(from) = line.find(&open).map(|at| at + open.len()).filter(|_| !line.starts_with('#')) else { continue };
                let length = line[from..].char_indices().scan(false, |escaped, (at, c)| {
                    let ends = c == '"' && !*escaped;
                    *escaped = c == '\\' && !*escaped;
                    Some((at, ends))
                });
                let Some(to) = length.into_iter().find(|(_, ends)| *ends).map(|(at, _)| from + at) else { continue };
                if to > from {
                    let new = self.name(label.trim_end_matches("_id"), &line[from..to]);
                    line.replace_range(from..to, &new);
                }
            }
            text += &line;
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_others_and_the_same_for_the_same() {
        let redactor = Redactor::new().expect("randomness");
        let page = "# HELP worker=\"x\" y\nup{worker=\"10.0.0.7:81\",state=\"free\"} 3\nup{state=\"free\",upstream=\"a\\\"b\"} 1\nup{upstream=\"\"} 0\nplain 2\n";
        let told = redactor.metrics(page);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[1].starts_with("up{worker=\"worker-") && lines[1].ends_with("\",state=\"free\"} 3"), "{told}");
        assert!(lines[2].starts_with("up{state=\"free\",upstream=\"upstream-") && lines[2].ends_with("\"} 1"), "{told}");
        assert_eq!((lines[0], lines[3], lines[4]), ("# HELP worker=\"x\" y", "up{upstream=\"\"} 0", "plain 2"));
        assert!(!told.contains("10.0.0.7"), "{told}");
        let (one, again) = (redactor.name("run", "r"), redactor.name("run", "r"));
        assert_eq!(one, again);
        assert_ne!(one, redactor.name("tenant", "r").replace("tenant", "run"), "a tenant of the same name is somebody else");
        assert_ne!(one, Redactor::new().expect("randomness").name("run", "r"), "nobody can look names up");
    }

    #[test]
    fn a_run_keeps_what_is_known_to_be_harmless_and_nothing_else() {
        let redactor = Redactor::new().expect("randomness");
        let run = json!({"id": "payroll-of-march", "tenant": "acme", "model": "secret-model", "state": "ended", "tokens": {"prompt": 3},
                         "engine": {"upstream": "http://10.1.1.1", "request": "payroll-of-march.1"}, "note": "a field of tomorrow",
                         "outcome": {"kind": "failed", "cause": "worker_error", "reason": "the prompt `fire Bob` is odd"}});
        let told = redactor.run(&run);
        let text = told.to_string();
        for hidden in ["payroll", "acme", "secret", "10.1.1.1", "Bob", "tomorrow"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        assert_eq!(
            (&told["state"], &told["tokens"], &told["outcome"]["cause"]),
            (&json!("ended"), &json!({"prompt": 3}), &json!("worker_error"))
        );
        assert_eq!(redactor.runs().len(), 1);
    }
}
