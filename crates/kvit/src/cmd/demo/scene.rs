//! What a scene is and what it found: runs, accounts, and statements that hold or do not.
//!
//! Invariant: a scene passed if it was played and everything it states holds; one that could not be played says why and did not pass.

use serde_json::{Value, json};

use super::stage::Stage;

/// A scene before it is played.
pub struct Scene {
    /// Its name in the JSON and in its runs' ids.
    pub name: &'static str,
    /// What it is called on the screen.
    pub title: &'static str,
    /// What is done, in a sentence or two.
    pub about: &'static str,
    /// Plays it.
    pub play: fn(&Stage<'_>) -> anyhow::Result<Found>,
}

/// A statement about what happened.
pub struct Check {
    /// The statement.
    pub what: String,
    /// Whether it holds.
    pub holds: bool,
}

/// What a scene found.
#[derive(Default)]
pub struct Found {
    /// Its runs as `GET /v1/runs/{id}` shows them; the first is the one that the scene is about.
    pub runs: Vec<Value>,
    /// What it states.
    pub checks: Vec<Check>,
    /// Texts that were compared or shown, by name.
    pub texts: Vec<(&'static str, String)>,
    /// Why it was not played.
    pub skipped: Option<String>,
}

impl Found {
    /// A scene about this run.
    pub fn about(run: Value) -> Found {
        Found { runs: vec![run], ..Found::default() }
    }

    /// Not played, and why.
    pub fn skipped(why: String) -> Found {
        Found { skipped: Some(why), ..Found::default() }
    }

    /// States something.
    pub fn check(&mut self, holds: bool, what: impl Into<String>) -> &mut Found {
        self.checks.push(Check { what: what.into(), holds });
        self
    }

    /// States what every abandoned run must show: its end and why, where it was, how soon its blocks were back, and what was wasted.
    // contract: C-6 C-12 C-24 C-29
    pub fn check_cancelled(&mut self, cause: &str, phases: &[&str]) -> &mut Found {
        let run = self.runs.first().cloned().unwrap_or_default();
        let word = |at: &str| run.pointer(at).and_then(Value::as_str).unwrap_or("-").to_owned();
        let count = |name: &str| run["tokens"][name].as_u64().unwrap_or(u64::MAX);
        let phase = word("/phase_at_disconnect");
        let ended = word("/outcome/kind") == "cancelled" && word("/outcome/cause") == cause && phases.contains(&phase.as_str());
        self.check(ended, format!("{}: {}, seen in phase {phase}", word("/outcome/kind"), word("/outcome/cause")));
        let released = run["released"] == true && run["settled"] == true && run["guarantee"] == "confirmed" && run["blocks"]["held"] == 0;
        let ms = released_after(&run).map_or("-".to_owned(), |ms| format!("{ms:.3} ms"));
        self.check(released, format!("observed → released {ms}: {} blocks held, release {}", run["blocks"]["held"], word("/guarantee")));
        let (late, wasted, prompt) = (count("after_receipt"), count("after_disconnect"), count("prompt_computed_after_disconnect"));
        let tokens = if wasted == 1 { "token" } else { "tokens" };
        let layers = match run["steps"]["layers_dropped"].as_u64() {
            None | Some(0) => String::new(),
            Some(1) => ", 1 layer".to_owned(),
            Some(layers) => format!(", {layers} layers"),
        };
        let what = format!("wasted: {wasted} {tokens}, {prompt} of the prompt{layers}; after the cancel's receipt {late} (at most 1)");
        self.check(late <= 1, what)
    }
}

/// Milliseconds from the first observation of abandonment to the release.
pub fn released_after(run: &Value) -> Option<f64> {
    let at = |name: &str| run["milestones"][name].as_f64();
    Some(at("released")? - at("disconnect_observed")?)
}

/// A scene that was played, with the account before and after it.
pub struct Played {
    /// The scene.
    pub scene: Scene,
    /// What it found, or why it broke off.
    pub found: Result<Found, String>,
    /// `GET /v1/kv` before.
    pub before: Value,
    /// `GET /v1/kv` after.
    pub after: Value,
}

impl Played {
    /// Whether the account is what it was.
    pub fn account_equal(&self) -> bool {
        let rest = at_rest(&self.before);
        rest.is_some() && rest == at_rest(&self.after)
    }

    /// Whether everything holds.
    pub fn passed(&self) -> bool {
        let held = self.found.as_ref().is_ok_and(|f| f.skipped.is_none() && f.checks.iter().all(|c| c.holds));
        held && self.account_equal()
    }

    /// Whether it was played and something does not hold. A scene that cannot be played here did not pass, but neither did it fail.
    pub fn failed(&self) -> bool {
        let only_skipped = self.skipped().is_some() && self.account_equal();
        !(self.passed() || only_skipped)
    }

    /// Why it was not played, if it was not.
    pub fn skipped(&self) -> Option<&str> {
        self.found.as_ref().ok()?.skipped.as_deref()
    }

    /// The machine's form.
    pub fn json(&self, number: usize) -> Value {
        let (runs, checks, texts, error) = match &self.found {
            Ok(found) => {
                let checks: Vec<Value> = found.checks.iter().map(|c| json!({"what": c.what, "holds": c.holds})).collect();
                let texts: serde_json::Map<String, Value> =
                    found.texts.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
                (found.runs.clone(), checks, texts, None)
            }
            Err(error) => (Vec::new(), Vec::new(), serde_json::Map::new(), Some(error)),
        };
        json!({"number": number, "name": self.scene.name, "title": self.scene.title, "about": self.scene.about, "passed": self.passed(),
               "skipped": self.skipped(), "error": error, "checks": checks, "runs": runs, "texts": texts,
               "account": {"equal": self.account_equal(), "before": self.before, "after": self.after}})
    }
}

/// What of an account must come back exactly, if it is one of a server at rest: nothing is owned, nothing on its way, no run known.
// contract: C-15
fn at_rest(kv: &Value) -> Option<(u64, u64)> {
    let n = |key: &str| kv[key].as_u64();
    let nothing = ["active", "orphaned", "draining", "quarantined"].into_iter().all(|key| n(key) == Some(0));
    let no_run = ["queued", "running", "stopping"].into_iter().all(|key| kv["runs"][key].as_u64() == Some(0));
    (nothing && no_run && kv["conserved"] == true).then_some((n("free")? + n("cached")?, n("total")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(free: u64, cached: u64, active: u64) -> Value {
        json!({"total": 100, "free": free, "cached": cached, "active": active, "orphaned": 0, "draining": 0, "quarantined": 0,
               "conserved": true, "runs": {"queued": 0, "running": 0, "stopping": 0}})
    }

    fn played(found: Result<Found, String>, before: Value, after: Value) -> Played {
        let scene = Scene { name: "s", title: "t", about: "a", play: |_| Ok(Found::default()) };
        Played { scene, found, before, after }
    }

    #[test]
    fn an_account_is_equal_only_if_nothing_is_left_behind() {
        let equal = |after: Value| played(Ok(Found::default()), kv(98, 2, 0), after).account_equal();
        assert!(equal(kv(90, 10, 0)), "a cached block is nobody's and can be had");
        assert!(!equal(kv(97, 2, 1)), "one is still owned");
        assert!(!equal(kv(97, 2, 0)), "one is missing");
        let mut busy = kv(98, 2, 0);
        busy["runs"]["stopping"] = json!(1);
        assert!(!equal(busy));
        assert!(!equal(Value::Null));
        assert!(!played(Ok(Found::default()), Value::Null, Value::Null).account_equal(), "two accounts that are none are not equal");
    }

    #[test]
    fn a_scene_passes_only_if_it_was_played_and_everything_holds() {
        let good = || kv(98, 2, 0);
        let mut found = Found::default();
        found.check(true, "a");
        assert!(played(Ok(found), good(), good()).passed());
        let mut found = Found::default();
        found.check(true, "a").check(false, "b");
        assert!(!played(Ok(found), good(), good()).passed());
        let skipped = played(Ok(Found::skipped("why".into())), good(), good());
        assert!(!skipped.passed() && !skipped.failed());
        assert!(played(Ok(Found::skipped("why".into())), good(), kv(97, 2, 1)).failed(), "it left something behind all the same");
        assert!(!played(Err("it broke".into()), good(), good()).passed());
        assert!(!played(Ok(Found::default()), good(), kv(97, 2, 1)).passed());
    }
}
