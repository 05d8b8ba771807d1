//! Looking at a server: what moves quickly at every look, the rest at every third.
//!
//! Invariant: a look that fails leaves what was known before, and says what the trouble is; what a server does not have is absent, and no
//! trouble.
// contract: C-30

use serde_json::{Value, json};

use crate::ask::{Ask, Trouble};
use crate::facts::Run;

/// Every so many looks: what changes more slowly, or costs more to say.
const SLOWLY: u64 = 3;
/// Runs that are listed.
const LIVE_MAX: u32 = 500;
const ENDED_MAX: u32 = 200;
/// Behind every moment there is: the answer has the server's clock and no moments.
const NO_MOMENTS: u64 = u64::MAX;

/// What a look is to find.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// Only runs in this state, `live` for all but the last.
    pub state: Option<String>,
    /// Only runs that ended for this cause.
    pub cause: Option<String>,
    /// Another tenant's runs, or `*` for everybody's: for operators.
    pub tenant: Option<String>,
    /// Whose blocks the map shows, where several workers have some.
    pub worker: Option<String>,
}

/// What a server said.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Look {
    pub(crate) caller: Value,
    /// Why new runs are not computed; empty while they are, `None` before it was asked.
    pub(crate) unready: Option<String>,
    pub(crate) workers: Vec<Value>,
    pub(crate) kv: Option<Value>,
    pub(crate) map: Option<Value>,
    pub(crate) live: Vec<Value>,
    pub(crate) ended: Vec<Value>,
    /// Whether there are more runs than are listed.
    pub(crate) more: bool,
    /// Those that the filters let through, as the server finds them; `None` without a filter.
    pub(crate) table: Option<Vec<Value>>,
    pub(crate) waste: Option<Value>,
    pub(crate) alerts: Option<Value>,
    pub(crate) diagnosis: Option<Value>,
    /// How far the server's calendar is ahead of this machine's, in milliseconds.
    pub(crate) skew_ms: f64,
    /// By this machine's calendar; 0 before the server has answered.
    pub(crate) at_ms: f64,
    /// Why the newest look found nothing.
    pub(crate) trouble: Option<Trouble>,
}

impl Look {
    /// Why the newest look found nothing, if it did not.
    pub fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    /// Every run that is listed: those that live, then those that ended last, each once: one may have ended between the two questions.
    pub(crate) fn runs(&self) -> Vec<&Value> {
        if let Some(table) = &self.table {
            return table.iter().collect();
        }
        let has_ended = |run: &Value| self.ended.iter().any(|other| other["id"] == run["id"] && other["tenant"] == run["tenant"]);
        self.live.iter().filter(|run| !has_ended(run)).chain(&self.ended).collect()
    }

    /// Whether all workers are engines of others, which keep no account that they could answer with.
    pub(crate) fn is_engines_only(&self) -> bool {
        !self.workers.is_empty() && self.workers.iter().all(|worker| worker["slots"].is_number())
    }

    /// The names of the workers that have blocks.
    pub(crate) fn block_workers(&self) -> Vec<&str> {
        let workers = self.kv.as_ref().and_then(|kv| kv["workers"].as_array());
        workers.into_iter().flatten().filter(|worker| worker["answered"] == true).filter_map(|worker| worker["worker"].as_str()).collect()
    }

    /// Cancels that nobody has acknowledged yet, with their age, the oldest first.
    pub(crate) fn unacknowledged(&self, now_ms: f64) -> Vec<(Run<'_>, f64)> {
        let mut waiting: Vec<_> = self.live.iter().filter_map(|run| Some((Run(run), Run(run).unacknowledged_ms(now_ms)?))).collect();
        waiting.sort_by(|a, b| b.1.total_cmp(&a.1));
        waiting
    }

    /// Whether the key is one that sees every tenant's runs.
    pub(crate) fn is_operator(&self) -> bool {
        self.caller["operator"] == true && self.caller["keys"] == true
    }
}

/// Asks a server again and again, and remembers.
pub struct Looker<'a> {
    ask: &'a dyn Ask,
    look: Look,
    looks: u64,
    /// What the newest lists were for.
    listed: Option<Wanted>,
}

/// The answer; `None` where there is no such thing, or where it was refused: another look may find it.
fn find(answer: Result<Value, Trouble>) -> Result<Option<Value>, Trouble> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(Trouble::Absent(_) | Trouble::Refused(_)) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

/// A path with a query, without what is empty. The values are words, numbers, tenants and workers' names.
fn query(path: &str, words: &[(&str, &str)]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~*".contains(&b);
    let encoded =
        |text: &str| text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect::<String>();
    let given = words.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("{name}={}", encoded(value)));
    let given: Vec<String> = given.collect();
    if given.is_empty() { path.to_owned() } else { format!("{path}?{}", given.join("&")) }
}

fn list(answer: &mut Value) -> Vec<Value> {
    match answer["data"].take() {
        Value::Array(list) => list,
        _ => Vec::new(),
    }
}

impl<'a> Looker<'a> {
    /// One that has not looked yet.
    pub fn new(ask: &'a dyn Ask) -> Looker<'a> {
        Looker { ask, look: Look { caller: Value::Null, ..Look::default() }, looks: 0, listed: None }
    }

    /// Looks, at `now_ms` by this machine's calendar.
    pub fn look(&mut self, wanted: &Wanted, now_ms: f64) -> Look {
        match self.ask_all(wanted, now_ms) {
            Ok(()) => {
                self.look.trouble = None;
                self.look.at_ms = now_ms;
                self.looks += 1;
            }
            Err(trouble) => {
                self.look.trouble = Some(trouble);
                // Whoever comes back there may be another, and knows nothing of what this one said.
                self.looks = 0;
            }
        }
        self.look.clone()
    }

    fn ask_all(&mut self, wanted: &Wanted, now_ms: f64) -> Result<(), Trouble> {
        let slowly = self.looks.is_multiple_of(SLOWLY);
        if slowly {
            self.slowly(now_ms)?;
        }
        self.runs(wanted, slowly || self.listed.as_ref() != Some(wanted))?;
        if self.look.is_engines_only() {
            (self.look.kv, self.look.map) = (None, None);
        } else {
            self.look.kv = find(self.ask.get("/v1/kv"))?;
            let workers = self.look.block_workers();
            let chosen = wanted.worker.as_deref().filter(|name| workers.contains(name)).or(workers.first().copied()).unwrap_or("");
            self.look.map = find(self.ask.get(&query("/v1/kv/map", &[("worker", chosen)])))?;
        }
        Ok(())
    }

    fn slowly(&mut self, now_ms: f64) -> Result<(), Trouble> {
        self.look.caller = find(self.ask.get("/v1/caller"))?.unwrap_or_default();
        self.look.unready = match self.ask.get("/health/ready") {
            Ok(_) => Some(String::new()),
            Err(Trouble::Refused(why)) => Some(why),
            Err(trouble) => return Err(trouble),
        };
        self.look.workers = list(&mut self.ask.get("/v1/workers")?);
        let clock = find(self.ask.get(&query("/v1/kv/moments", &[("after", &NO_MOMENTS.to_string())])))?;
        self.look.skew_ms = clock.and_then(|clock| Some(clock["now_ms"].as_f64()? - now_ms)).unwrap_or(0.0);
        self.look.waste = find(self.ask.get("/v1/waste"))?;
        self.look.alerts = find(self.ask.get("/v1/alerts"))?;
        self.look.diagnosis = find(self.ask.get("/v1/diagnose"))?;
        Ok(())
    }

    fn runs(&mut self, wanted: &Wanted, all: bool) -> Result<(), Trouble> {
        let ask = self.ask;
        let (state, cause) = (wanted.state.as_deref().unwrap_or(""), wanted.cause.as_deref().unwrap_or(""));
        let tenant = match (&wanted.tenant, self.look.is_operator()) {
            (Some(tenant), true) => tenant.as_str(),
            (None, true) => "*",
            (_, false) => "",
        };
        let runs = |state: &str, cause: &str, limit: u32| {
            ask.get(&query("/v1/runs", &[("state", state), ("cause", cause), ("limit", &limit.to_string()), ("tenant", tenant)]))
        };
        let mut live = runs("live", "", LIVE_MAX)?;
        let mut more = live["has_more"] == true;
        let live = list(&mut live);
        // A run that lives no more is among those that have ended, at once and not at some later look.
        let has_ended = |run: &Value| !live.iter().any(|other| other["id"] == run["id"] && other["tenant"] == run["tenant"]);
        let all = all || self.look.live.iter().any(has_ended);
        self.look.live = live;
        if all {
            let mut ended = runs("ended", "", ENDED_MAX)?;
            more |= ended["has_more"] == true;
            self.look.ended = list(&mut ended);
            self.look.more = more;
            let mut table = Vec::new();
            if state != "ended" {
                table.extend(list(&mut runs(if state.is_empty() { "live" } else { state }, cause, LIVE_MAX)?));
            }
            if ["", "ended"].contains(&state) {
                table.extend(list(&mut runs("ended", cause, ENDED_MAX)?));
            }
            self.look.table = (!state.is_empty() || !cause.is_empty()).then_some(table);
            self.listed = Some(wanted.clone());
        }
        Ok(())
    }
}

/// What a program that reads a look is told of it.
pub(crate) fn object(look: &Look) -> Value {
    let runs: Vec<&Value> = look.runs();
    json!({"ready": look.unready.as_ref().map(String::is_empty), "workers": look.workers, "kv": look.kv, "runs": runs, "waste": look.waste,
           "alerts": look.alerts, "diagnosis": look.diagnosis})
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A server that says the same as long as it is there, and remembers what it was asked.
    struct Scripted {
        away: Mutex<bool>,
        idle: Mutex<bool>,
        asked: Mutex<Vec<String>>,
        operator: bool,
    }

    impl Ask for Scripted {
        fn get(&self, path: &str) -> Result<Value, Trouble> {
            if *self.away.lock().unwrap() {
                return Err(Trouble::Unreachable("nobody is there".into()));
            }
            self.asked.lock().unwrap().push(path.to_owned());
            match path.split('?').next().unwrap() {
                "/v1/caller" => Ok(json!({"keys": self.operator, "operator": self.operator, "tenant": "ops", "name": "op"})),
                "/v1/workers" => Ok(json!({"data": [{"name": "a", "slots": null, "state": "here"}]})),
                "/v1/kv/moments" => Ok(json!({"now_ms": 9000, "workers": []})),
                "/v1/runs" if path.contains("state=live") && *self.idle.lock().unwrap() => Ok(json!({"data": [], "has_more": false})),
                "/v1/runs" if path.contains("state=live") => {
                    Ok(json!({"data": [{"id": "a", "tenant": "t", "state": "decoding"}], "has_more": false}))
                }
                "/v1/runs" => Ok(json!({"data": [{"id": "b", "tenant": "t", "state": "ended"}], "has_more": true})),
                "/v1/kv" => Ok(json!({"workers": [{"worker": "x", "answered": true}, {"worker": "y", "answered": true}]})),
                "/health/ready" => Err(Trouble::Refused("no worker".into())),
                "/v1/kv/map" => Ok(json!({})),
                _ => Err(Trouble::Absent("no".into())),
            }
        }

        fn post(&self, _: &str) -> Result<Value, Trouble> {
            unreachable!("a look changes nothing")
        }
    }

    fn scripted(operator: bool) -> Scripted {
        Scripted { away: Mutex::new(false), idle: Mutex::new(false), asked: Mutex::default(), operator }
    }

    fn asked(server: &Scripted) -> Vec<String> {
        std::mem::take(&mut *server.asked.lock().unwrap())
    }

    #[test]
    fn what_moves_slowly_is_asked_for_at_every_third_look() {
        let server = scripted(false);
        let mut looker = Looker::new(&server);
        let first = looker.look(&Wanted::default(), 8000.0);
        assert_eq!((first.skew_ms, first.unready.as_deref(), first.more, first.runs().len()), (1000.0, Some("no worker"), true, 2));
        assert_eq!((first.waste.as_ref(), first.diagnosis.as_ref()), (None, None), "what is not there is no trouble");
        asked(&server);
        looker.look(&Wanted::default(), 8000.0);
        assert_eq!(asked(&server), ["/v1/runs?state=live&limit=500", "/v1/kv", "/v1/kv/map?worker=x"]);
        looker.look(&Wanted { worker: Some("y".into()), ..Wanted::default() }, 8000.0);
        let third = asked(&server);
        assert!(
            third.contains(&"/v1/kv/map?worker=y".into()) && third.contains(&"/v1/runs?state=ended&limit=200".into()),
            "another wish: {third:?}"
        );
        looker.look(&Wanted::default(), 8000.0);
        assert!(asked(&server).contains(&"/v1/alerts".into()));
        *server.idle.lock().unwrap() = true;
        looker.look(&Wanted::default(), 8000.0);
        let ended = asked(&server);
        assert!(
            ended.contains(&"/v1/runs?state=ended&limit=200".into()) && !ended.contains(&"/v1/alerts".into()),
            "its run has ended: {ended:?}"
        );
    }

    // contract: C-30
    #[test]
    fn filters_are_the_servers_and_everybodys_runs_are_asked_for_by_operators_only() {
        for (operator, tenant, part) in [(false, Some("two"), ""), (true, None, "&tenant=*"), (true, Some("two"), "&tenant=two")] {
            let server = scripted(operator);
            let wanted = Wanted { state: Some("stopping".into()), tenant: tenant.map(str::to_owned), ..Wanted::default() };
            let look = Looker::new(&server).look(&wanted, 0.0);
            assert!(asked(&server).contains(&format!("/v1/runs?state=stopping&limit=500{part}")), "{part}");
            assert_eq!(look.table.as_ref().map(Vec::len), Some(1));
        }
    }

    #[test]
    fn a_server_that_is_away_leaves_what_was_known_and_is_asked_for_everything_when_it_is_back() {
        let server = scripted(false);
        let mut looker = Looker::new(&server);
        looker.look(&Wanted::default(), 1.0);
        *server.away.lock().unwrap() = true;
        let away = looker.look(&Wanted::default(), 2.0);
        assert_eq!((away.trouble.as_ref().map(Trouble::text), away.at_ms, away.runs().len()), (Some("nobody is there"), 1.0, 2));
        *server.away.lock().unwrap() = false;
        asked(&server);
        let back = looker.look(&Wanted::default(), 3.0);
        assert_eq!((back.trouble.as_ref(), back.at_ms), (None, 3.0));
        assert!(asked(&server).contains(&"/v1/caller".into()));
    }
}
