//! One history: what happens, chosen by its seed, and the checks after each thing that happened, after each crash and at the end.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gateway::{GatewayConfig, KeepConfig};
use lifecycle::{Incarnation, OutcomeKind, Tenant};
use serde_json::{Value, json};
use store::{RunQuery, RunStore, StoredRun};

use super::flaky::{Flaky, Kind, Place, Weather};
use super::life::Life;
use super::model::{Asked, Model, outcome_of};
use super::reader::{Reader, What};
use super::rng::Rng;
use super::worker::Worker;
use crate::simulated::key;
use crate::wire::{get, ms, request_text};

const ACTIONS: usize = 70;

/// What came about.
#[derive(Debug, Default)]
pub struct Counts {
    runs: u64,
    background: u64,
    refused: u64,
    joined: u64,
    crashes: u64,
    stops: u64,
    lost_workers: u64,
    lost_answers: u64,
    /// Outcomes that were told while the store was away, and that a crash took.
    taken_by_crash: u64,
    completed: u64,
    cancelled: u64,
    expired: u64,
    failed: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.runs += other.runs;
        self.background += other.background;
        self.refused += other.refused;
        self.joined += other.joined;
        self.crashes += other.crashes;
        self.stops += other.stops;
        self.lost_workers += other.lost_workers;
        self.lost_answers += other.lost_answers;
        self.taken_by_crash += other.taken_by_crash;
        self.completed += other.completed;
        self.cancelled += other.cancelled;
        self.expired += other.expired;
        self.failed += other.failed;
    }

    /// Whether each kind of thing came about. Few histories need not meet a deadline: on a slow machine a run with a short one is seldom the
    /// first thing that happens in time.
    pub fn has_all_kinds(&self, many: bool) -> bool {
        // Answers are lost by chance at moments that a quick machine may not have: the directed tests have each.
        let seen = [self.background, self.refused, self.joined, self.crashes, self.stops, self.lost_workers];
        let ended = [self.completed, self.cancelled, self.failed, if many { self.expired } else { 1 }];
        seen.iter().chain(&ended).all(|count| *count > 0)
    }
}

pub struct World {
    rng: Rng,
    model: Model,
    place: Place,
    weather: Arc<Weather>,
    /// Whether the store ever fails in this history, and nobody waits for it for long.
    faulty: bool,
    life: Option<Life>,
    lives: u128,
    worker: Worker,
    readers: Vec<Reader>,
    /// Runs that were computed for each tag.
    of_tag: HashMap<String, BTreeSet<String>>,
    counts: Counts,
}

fn config(faulty: bool) -> GatewayConfig {
    // In a history whose store never fails nobody ever goes on without it, however slow the machine.
    let patience = if faulty { ms(25) } else { ms(60_000) };
    let keep = KeepConfig { patience, poll: ms(20), lease: ms(240), ..KeepConfig::default() };
    GatewayConfig {
        keep,
        answer_grace: ms(60_000),
        cancel_repeat: ms(20),
        cancel_repeat_max: ms(100),
        idempotency_grace: ms(30),
        drain: ms(15),
        settle: ms(3000),
        ..GatewayConfig::default()
    }
}

impl World {
    /// Plays it; `None` if there is no such store here.
    pub async fn play(kind: Kind, seed: u64) -> Option<Counts> {
        let place = Place::new(kind).await?;
        let weather = Arc::new(Weather::default());
        weather.rng.store(seed << 20, Ordering::Relaxed);
        let model = Model { seed, ..Model::default() };
        let mut world = World {
            rng: Rng(seed),
            model,
            place,
            weather,
            faulty: seed % 2 == 1,
            life: None,
            lives: 0,
            worker: Worker { life: 1 << 32, ..Worker::default() },
            readers: Vec::new(),
            of_tag: HashMap::new(),
            counts: Counts::default(),
        };
        let store = world.place.open().await;
        world.begin(store).await;
        for _ in 0..ACTIONS {
            world.act().await;
            world.look().await;
        }
        world.heal().await;
        world.verify().await;
        // Once more, in a life that knows what the store knows.
        world.crash().await;
        world.heal().await;
        world.verify().await;
        if let Some(life) = world.life.take() {
            life.kill().await;
        }
        world.counts.lost_answers = world.weather.lost.load(Ordering::SeqCst);
        Some(world.counts)
    }

    fn tell(&mut self, what: impl Into<String>) {
        self.model.story.push(what.into());
    }

    fn life(&mut self) -> &mut Life {
        self.life.as_mut().expect("a gateway lives")
    }

    fn truth(&self) -> Arc<dyn RunStore> {
        self.life.as_ref().expect("a gateway lives").store.truth().clone()
    }

    async fn begin(&mut self, store: Arc<dyn RunStore>) {
        self.lives += 1;
        self.tell(format!("life {} begins", self.lives));
        let store = Flaky::new(store, self.weather.clone());
        self.life = Some(Life::begin(Incarnation(self.lives), config(self.faulty), store));
        self.worker.attempts.clear();
        self.worker.here = false;
        if self.rng.below(4) > 0 {
            self.come().await;
        }
    }

    async fn come(&mut self) {
        let life = self.life.as_ref().expect("a gateway lives");
        self.worker.come(life).await;
    }

    async fn work(&mut self, times: u64, obeys: bool) {
        for _ in 0..times {
            let life = self.life.as_mut().expect("a gateway lives");
            self.worker.work(life, &mut self.rng, obeys).await;
        }
        let life = self.life.as_mut().expect("a gateway lives");
        self.worker.hear(life).await;
        for tag in std::mem::take(&mut self.worker.news) {
            let runs = self.worker.attempts.iter().filter(|a| a.tag == tag).map(|a| a.id.key.run.to_string());
            self.of_tag.entry(tag.clone()).or_default().extend(runs);
            // A lost answer may have been the commit's; then only a crash before the store is back can make the refused run go on.
            if let Some(life) = self.model.refused.get(&tag) {
                let excused = self.weather.lost.load(Ordering::SeqCst) > 0 && *life < self.lives;
                self.model.check(excused, || format!("{tag} was refused and is computed"));
            }
        }
    }

    async fn look(&mut self) {
        tokio::time::sleep(ms(1 + self.rng.below(3))).await;
        for reader in &mut self.readers {
            self.model.absorb(reader);
        }
    }

    fn some_run(&mut self) -> Option<String> {
        let mut ids: Vec<String> = self.model.runs.keys().cloned().collect();
        ids.sort();
        self.rng.one(&ids).cloned()
    }

    fn ask(&mut self, what: What, request: String) {
        let lives = self.lives;
        let addr = self.life().addr;
        self.readers.push(Reader::new(addr, lives, what, request));
    }

    async fn act(&mut self) {
        match self.rng.below(100) {
            0..=19 => self.request(),
            20..=54 => {
                let times = 1 + self.rng.below(4);
                self.work(times, false).await;
            }
            55..=61 => {
                let Some(id) = self.some_run() else { return };
                self.tell(format!("{id} is cancelled by name"));
                self.ask(What::View(id.clone()), closing("POST", &format!("/v1/runs/{id}/cancel?wait_ms=0"), "", ""));
            }
            62..=67 => {
                let Some(id) = self.some_run() else { return };
                self.ask(What::View(id.clone()), closing("GET", &format!("/v1/runs/{id}"), "", ""));
            }
            68..=75 => self.follow(),
            76..=82 if !self.readers.is_empty() => {
                let at = self.rng.below(self.readers.len() as u64) as usize;
                let reader = self.readers.remove(at);
                self.tell(format!("who asked for {:?} leaves", reader.what));
                reader.leave();
            }
            83..=85 => {
                if self.worker.here {
                    self.tell("the worker is lost");
                    self.counts.lost_workers += 1;
                    let life = self.life.as_ref().expect("a gateway lives");
                    self.worker.be_lost(life).await;
                } else {
                    self.come().await;
                }
            }
            86..=92 if self.faulty => self.change_weather(),
            93..=95 => self.crash().await,
            96 => self.stop().await,
            _ if !self.worker.here => self.come().await,
            _ => self.work(6, true).await,
        }
    }

    fn change_weather(&mut self) {
        let (away, shaky) = (self.rng.below(3) == 0, self.rng.below(2) == 0);
        self.tell(format!(
            "the store is {}",
            if away {
                "away"
            } else if shaky {
                "shaky"
            } else {
                "well"
            }
        ));
        self.weather.away.store(away, Ordering::SeqCst);
        self.weather.shaky.store(shaky, Ordering::SeqCst);
    }

    /// A new run, or one more request with a key.
    fn request(&mut self) {
        let shared = self.rng.below(6);
        let keyed = self.rng.below(3) == 0;
        let tag = if keyed { format!("k{shared}") } else { format!("t{}", self.model.asked.len()) };
        let background = !keyed && self.rng.below(3) == 0;
        let response = background && self.rng.below(3) > 0 || !background && !keyed && self.rng.below(2) == 0;
        let goes_on = background && !response;
        let tokens = if keyed { 3 } else { 1 + self.rng.below(6) as u32 };
        let asked = Asked { tag: tag.clone(), background, keeps: background || response || keyed, response, tokens };
        let mut headers = format!("X-Request-Id: r-{tag}\r\n");
        if keyed {
            headers += &format!("Idempotency-Key: {tag}\r\n");
        }
        if goes_on {
            headers += "X-On-Disconnect: continue\r\n";
        } else if !background {
            headers += ["", "X-On-Disconnect: cancel\r\n", "X-On-Disconnect: grace(20)\r\n"][self.rng.below(3) as usize];
        }
        if !keyed && self.rng.below(6) == 0 {
            headers += &format!("X-Request-Timeout-Ms: {}\r\n", 5 + self.rng.below(40));
        }
        self.tell(format!("{tag} is asked for: background {background}, response {response}, {tokens} tokens, {:?}", headers.trim()));
        self.model.asked.entry(tag.clone()).or_insert(asked);
        let stream = self.rng.below(3) > 0;
        let text = format!("{tag} go");
        let (path, body, what) = match (response, background) {
            (true, true) => {
                let body = json!({"input": text, "background": true, "max_output_tokens": tokens, "stream": stream});
                ("/v1/responses", body, if stream { What::Response(tag) } else { What::Object(tag) })
            }
            (true, false) => ("/v1/responses", json!({"input": text, "max_output_tokens": tokens, "stream": true}), What::Response(tag)),
            (false, _) => {
                let turn = json!([{"role": "user", "content": text}]);
                ("/v1/chat/completions", json!({"messages": turn, "max_tokens": tokens, "stream": true}), What::Chat(tag))
            }
        };
        self.ask(what, closing("POST", path, &headers, &body.to_string()));
    }

    /// Somebody reads a run's events: from anywhere on, or where a reader that goes away was.
    fn follow(&mut self) {
        let lives = self.lives;
        let of_events = |r: &Reader| matches!(r.what, What::Events(..) | What::Frames(..)) && r.run.is_some() && r.life <= lives;
        let back: Vec<usize> = (0..self.readers.len()).filter(|i| of_events(&self.readers[*i])).collect();
        if let Some(&at) = self.rng.one(&back)
            && self.rng.below(2) == 0
        {
            let reader = self.readers.remove(at);
            let last = reader.last;
            match reader.what.clone() {
                What::Events(id, after) => {
                    let after = last.unwrap_or(after);
                    let header = format!("Last-Event-ID: {after}\r\n");
                    self.tell(format!("who reads events of {id} comes back after {after}"));
                    self.ask(What::Events(id.clone(), after), closing("GET", &format!("/v1/runs/{id}/events"), &header, ""));
                }
                What::Frames(id, after) => self.frames(&id, last.or(after)),
                _ => {}
            }
            return;
        }
        let Some(id) = self.some_run() else { return };
        let known = &self.model.runs[&id];
        if known.asked.response && self.rng.below(2) == 0 {
            let after = [None, Some(self.rng.below(4))][self.rng.below(2) as usize];
            return self.frames(&id, after);
        }
        let after = if self.rng.below(2) == 0 { 0 } else { self.rng.below(3) };
        self.tell(format!("events of {id} after {after}"));
        self.ask(What::Events(id.clone(), after), closing("GET", &format!("/v1/runs/{id}/events?after={after}"), "", ""));
    }

    fn frames(&mut self, id: &str, after: Option<u64>) {
        self.tell(format!("response events of {id} after {after:?}"));
        let after_text = after.map(|n| format!("&starting_after={n}")).unwrap_or_default();
        let path = format!("/v1/responses/resp_{id}?stream=true{after_text}");
        self.ask(What::Frames(id.to_owned(), after), closing("GET", &path, "", ""));
    }

    async fn crash(&mut self) {
        self.tell("the gateway crashes");
        self.counts.crashes += 1;
        let life = self.life.take().expect("a gateway lives");
        life.kill().await;
        self.anew().await;
    }

    /// In good order: drained, what goes on is left to the next life.
    async fn stop(&mut self) {
        self.tell("the gateway stops");
        self.counts.stops += 1;
        self.life().stop.take().map(|stop| stop.send(()));
        for _ in 0..8000 {
            if self.life().is_over() {
                break;
            }
            self.work(2, true).await;
            tokio::time::sleep(ms(1)).await;
        }
        let over = self.life().is_over();
        self.model.check(over, || "the gateway does not stop".to_owned());
        let mut life = self.life.take().expect("a gateway lives");
        life.store.die();
        life.end().await;
        drop(life);
        self.anew().await;
    }

    /// A next life, after a look at what the last one left.
    async fn anew(&mut self) {
        // What was read before the end counts, also what is read late.
        tokio::time::sleep(ms(3)).await;
        for reader in &mut self.readers {
            self.model.absorb(reader);
        }
        self.readers.clear();
        let store = self.place.open().await;
        self.judge(&store).await;
        self.begin(store).await;
    }

    /// What was told is there, but for what a crash may take.
    async fn judge(&mut self, store: &Arc<dyn RunStore>) {
        for id in self.model.runs.keys().cloned().collect::<Vec<_>>() {
            let stored = store.run(&key(&id)).await.expect("the store answers");
            let run = self.model.runs.get_mut(&id).expect("a run");
            let Some(stored) = stored else {
                let excused = self.faulty && !run.asked.background;
                self.model.check(excused, || format!("{id} is not in the store"));
                self.counts.taken_by_crash += 1;
                self.model.runs.remove(&id);
                continue;
            };
            if run.asked.background {
                let newest = run.events.keys().last().copied().unwrap_or(0);
                self.model.check(newest <= stored.last_event, || format!("{id}: event {newest} was told and is not in the store"));
            } else {
                run.events.retain(|number, _| *number <= stored.last_event);
                run.frames.clear();
            }
            let run = self.model.runs.get_mut(&id).expect("a run");
            let is_there = stored.outcome.is_some();
            if run.outcome.is_some() && !is_there && self.faulty && !run.asked.background {
                self.counts.taken_by_crash += 1;
                run.outcome = None;
            }
            let told = run.outcome.clone();
            self.model.check(told.is_none() || is_there, || format!("{id}: {told:?} was told and is not in the store"));
            self.outcome_of(&id, &stored);
        }
    }

    fn outcome_of(&mut self, id: &str, stored: &StoredRun) {
        if let Some(outcome) = &stored.outcome {
            self.model.told(id, (outcome.kind().as_str().to_owned(), outcome.cause.as_str().to_owned()), "the store".to_owned());
        }
    }

    /// Everything is well again: waits until every run has ended.
    async fn heal(&mut self) {
        self.tell("all is well");
        self.weather.away.store(false, Ordering::SeqCst);
        self.weather.shaky.store(false, Ordering::SeqCst);
        if !self.worker.here {
            self.come().await;
        }
        let mut left = String::new();
        for round in 0..4000 {
            self.work(4, true).await;
            tokio::time::sleep(ms(2)).await;
            for reader in &mut self.readers {
                self.model.absorb(reader);
            }
            if round % 10 == 9 {
                left = self.left().await;
                if left.is_empty() {
                    return;
                }
            }
        }
        self.model.check(false, || format!("without an end: {left}"));
    }

    /// Runs that are not over, in the store or for their readers.
    async fn left(&mut self) -> String {
        let store = self.truth();
        let query = RunQuery { ended: false, outcome: None, cause: None, after: None, limit: 1000 };
        let runs = store.runs(&Tenant::default(), &query).await.expect("the store answers");
        let open = runs.iter().filter(|run| run.outcome.is_none());
        let mut left: Vec<String> = open.map(|run| format!("{} (owner {}, attempt {})", run.key.run, run.owner, run.attempt)).collect();
        let absent = |id: &&String| runs.iter().all(|run| run.key.run.as_str() != id.as_str());
        left.extend(self.model.runs.keys().filter(absent).map(|id| format!("{id} (not in the store)")));
        let waits = self.readers.iter().filter(|r| !r.look().2);
        left.extend(waits.map(|reader| format!("a reader of {:?}", reader.what)));
        left.join(", ")
    }

    /// Every view of every run says the same.
    async fn verify(&mut self) {
        self.counts.runs = 0;
        self.counts.background = 0;
        let (store, addr) = (self.truth(), self.life().addr);
        let mut ids: Vec<String> = self.model.runs.keys().cloned().collect();
        ids.sort();
        for id in ids {
            let stored = store.run(&key(&id)).await.expect("the store answers").expect("it is in the store");
            self.outcome_of(&id, &stored);
            let view = get(addr, &format!("/v1/runs/{id}")).await;
            let outcome = outcome_of(&view.json()["outcome"]);
            self.model.check(outcome.is_some(), || format!("{id} has no outcome: {}", view.body));
            self.model.told(&id, outcome.expect("an outcome"), "who looks at the end".to_owned());
            let asked = self.model.runs[&id].asked.clone();
            self.counts.runs += 1;
            self.counts.background += u64::from(asked.background);
            // Whoever asks for its events elsewhere has them kept.
            self.model.check(stored.keeps || !asked.keeps, || format!("{id} keeps: {}", stored.keeps));
            if asked.keeps {
                self.read_all(&id, &stored).await;
            }
        }
        for (tag, runs) in &self.of_tag {
            let completed = runs.iter().filter(|id| {
                let run = self.model.runs.get(*id).and_then(|run| run.outcome.as_ref());
                run.is_some_and(|(kind, ..)| kind == OutcomeKind::Completed.as_str())
            });
            let completed = completed.count();
            // Whoever asks again while an end is wanted gets a run of its own (docs/http.md), and the first may complete all the same (C-4).
            let left = format!("who asked for Chat({tag:?}) leaves");
            let wanted = |line: &String| *line == left || runs.iter().any(|id| *line == format!("{id} is cancelled by name"));
            let excused = self.faulty || self.model.story.iter().any(wanted);
            self.model.check(completed <= 1 || excused, || format!("{tag} was generated {completed} times: {runs:?}"));
        }
        self.counts.refused = self.model.refused.len() as u64;
        self.counts.joined = self.model.story.iter().filter(|line| line.ends_with(", joined")).count() as u64;
        let of = |kind: OutcomeKind| {
            let is = |run: &&super::model::Known| run.outcome.as_ref().is_some_and(|(k, ..)| k == kind.as_str());
            self.model.runs.values().filter(is).count() as u64
        };
        let [completed, cancelled, expired, failed] =
            [OutcomeKind::Completed, OutcomeKind::Cancelled, OutcomeKind::Expired, OutcomeKind::Failed].map(of);
        (self.counts.completed, self.counts.cancelled, self.counts.expired, self.counts.failed) = (completed, cancelled, expired, failed);
    }

    async fn read_all(&mut self, id: &str, stored: &StoredRun) {
        let addr = self.life().addr;
        let life = self.lives;
        let mut wants = vec![(What::Events(id.to_owned(), 0), closing("GET", &format!("/v1/runs/{id}/events?after=0"), "", ""))];
        if self.model.runs[id].asked.response {
            let path = format!("/v1/responses/resp_{id}?stream=true");
            wants.push((What::Frames(id.to_owned(), None), closing("GET", &path, "", "")));
        }
        for (what, request) in wants {
            let mut reader = Reader::new(addr, life, what, request);
            for _ in 0..2000 {
                self.model.absorb(&mut reader);
                if reader.look().2 {
                    break;
                }
                tokio::time::sleep(ms(1)).await;
            }
            self.model.absorb(&mut reader);
            let (reply, _, closed) = reader.look();
            let status = reply.map_or(0, |reply| reply.status);
            self.model.check(closed && status == 200, || format!("{id}: {:?} answers {status}, closed {closed}", reader.what));
            if let What::Events(..) = reader.what {
                self.model.check(reader.last == Some(stored.last_event), || format!("{id}: {:?} of {}", reader.last, stored.last_event));
                let numbers: Vec<u64> = self.model.runs[id].events.keys().copied().collect();
                self.model.check(numbers == (1..=stored.last_event).collect::<Vec<_>>(), || format!("{id}: events {numbers:?}"));
                self.text(id);
            } else {
                self.status(id);
            }
        }
    }

    /// What its deltas say is the beginning of its text, and all of it if it completed.
    fn text(&mut self, id: &str) {
        let run = &self.model.runs[id];
        let deltas = run.events.values().filter(|(kind, _)| kind == "delta");
        let text: String =
            deltas.map(|(_, data)| serde_json::from_str::<Value>(data).expect("JSON")["text"].as_str().expect("text").to_owned()).collect();
        let whole: String = (1..=run.asked.tokens).map(|k| super::worker::piece(&run.asked.tag, k)).collect();
        let completed = run.outcome.as_ref().is_some_and(|(kind, ..)| kind == "completed");
        self.model.check(if completed { text == whole } else { whole.starts_with(&text) }, || format!("{id}: its text is {text:?}"));
    }

    /// The response's last event says what the outcome says.
    fn status(&mut self, id: &str) {
        let run = &self.model.runs[id];
        let last: Value = serde_json::from_str(run.frames.values().last().expect("an event")).expect("JSON");
        let status = last["response"]["status"].as_str().unwrap_or_default().to_owned();
        let (kind, cause, _) = run.outcome.clone().expect("an outcome");
        let expected: &[&str] = match kind.as_str() {
            "completed" => &["incomplete", "completed"],
            "cancelled" => &["cancelled"],
            _ => &["failed", "incomplete"],
        };
        self.model.check(expected.contains(&status.as_str()), || format!("{id}: {kind} ({cause}), and its response is {status}"));
    }
}

/// On a connection that ends with the answer.
fn closing(method: &str, path: &str, headers: &str, body: &str) -> String {
    request_text(method, path, &format!("Connection: close\r\n{headers}"), body)
}
