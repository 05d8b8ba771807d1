//! Callers of every kind, each of which writes down what it was told until its server is gone.
//!
//! Invariant: that somebody wants a run's end is written down before it is asked for, so that no cancel is a surprise.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::ledger::{Known, Ledger};
use super::payments::{AGAIN, ONCE};
use super::wire::{Answer, Next, ask};
use crate::outside::tool;

/// Keys that are used again and again, over all lives.
pub const KEYS: u64 = 60;
/// Tokens that no life is long enough for.
const ENDLESS: u64 = 15_000;
/// Background runs that may be without an end; with more, nobody begins another: a life is short, and they all begin again in the next.
const UNDER_WAY_MAX: usize = 24;

/// Its own small generator: a plan must be repeatable.
pub struct Dice(pub u64);

impl Dice {
    /// `what` and the seed give the plan.
    pub fn of(seed: u64, what: u64) -> Dice {
        let mut dice = Dice(seed ^ what.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = dice.roll(2));
        dice
    }

    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}

/// The server is gone.
pub struct Gone;
type Told = Result<(), Gone>;

/// One caller of one life.
pub struct Caller<'a> {
    pub port: u16,
    pub ledger: &'a Ledger,
    pub dice: Dice,
    /// Unique among all callers of all lives.
    pub name: String,
    pub asked: u64,
    /// Background runs under way, as far as callers know.
    pub under_way: &'a AtomicUsize,
    /// Where the payment service listens.
    pub payments: u16,
}

/// What is asked of a run, and by which policy.
struct Plan {
    path: &'static str,
    body: Value,
    headers: String,
    known: Known,
    /// Tokens after which its caller leaves; `None`: it stays.
    leaves_after: Option<u64>,
}

impl Caller<'_> {
    /// Asks one thing after the other until the server is gone.
    pub fn go(mut self) {
        while self.one().is_ok() {
            self.asked += 1;
        }
    }

    fn one(&mut self) -> Told {
        match self.dice.roll(20) {
            0..4 => self.interactive(false),
            4 => self.interactive(true),
            5..8 => self.keyed(),
            8..11 => self.background(),
            11 => self.goes_on(),
            12..14 => self.look(),
            14..16 => self.follow(),
            16..18 => self.follow_response(),
            _ => self.cancel(),
        }
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.dice.roll(one_in) == 0
    }

    fn prompt(&mut self) -> String {
        let words = 1 + self.dice.roll(30);
        format!("{} {} {}", self.name, self.asked, "on ".repeat(words as usize))
    }

    fn sampled(&mut self, mut body: Value) -> Value {
        // Without a seed: the server draws one, and must draw the same tokens when it computes the run again.
        body["temperature"] = if self.chance(2) { json!(1) } else { json!(0) };
        body["ignore_eos"] = json!(true);
        body
    }

    fn chat(&mut self, tokens: u64) -> Value {
        let content = self.prompt();
        let stream = !self.chance(3);
        self.sampled(json!({"messages": [{"role": "user", "content": content}], "max_tokens": tokens, "stream": stream}))
    }

    fn response(&mut self, tokens: u64) -> Value {
        let input = self.prompt();
        let stream = self.chance(2);
        self.sampled(json!({"input": input, "max_output_tokens": tokens, "stream": stream}))
    }

    /// A chat or a response that its caller reads, and may leave.
    fn interactive(&mut self, endless: bool) -> Told {
        let tokens = if endless { ENDLESS } else { 1 + self.dice.roll(40) };
        let kept = self.chance(3);
        let (path, body) = if kept { ("/v1/responses", self.response(tokens)) } else { ("/v1/chat/completions", self.chat(tokens)) };
        let leaves_after = self.chance(if endless { 2 } else { 4 }).then(|| self.dice.roll(30));
        let headers = match self.dice.roll(4) {
            0 => "X-On-Disconnect: grace(1500)\r\n".to_owned(),
            1 => format!("X-Request-Id: {}-{}\r\n", self.name, self.asked),
            _ => String::new(),
        };
        self.ask(Plan { path, body, headers, known: Known { kept, ..Known::default() }, leaves_after })
    }

    /// One of the keys, each with a body of its own; of some keys the run is a background one.
    fn keyed(&mut self) -> Told {
        let key = self.dice.roll(KEYS);
        let lasts = key.is_multiple_of(3);
        let stream = key.is_multiple_of(2);
        let mut body = json!({"max_tokens": 5 + key, "stream": stream, "temperature": 1, "ignore_eos": true});
        body["messages"] = json!([{"role": "user", "content": format!("Key {key}, the same words each time")}]);
        let policy = if lasts { "X-On-Disconnect: continue\r\n" } else { "" };
        let headers = format!("Idempotency-Key: key-{key}\r\n{policy}");
        let leaves_after = self.chance(4).then(|| self.dice.roll(8));
        let known = Known { lasts, kept: true, key: Some(key as usize), ..Known::default() };
        self.ask(Plan { path: "/v1/chat/completions", body, headers, known, leaves_after })
    }

    /// A chat that goes on when its caller leaves, with two answers now and then.
    fn goes_on(&mut self) -> Told {
        let tokens = 5 + self.dice.roll(60);
        let mut body = self.chat(tokens);
        body["n"] = json!(1 + self.dice.roll(2));
        let leaves_after = (!self.chance(3)).then(|| self.dice.roll(20));
        let known = Known { lasts: true, kept: true, ..Known::default() };
        let headers = format!("X-On-Disconnect: continue\r\n{}", self.pays(&mut body));
        self.ask(Plan { path: "/v1/chat/completions", body, headers, known, leaves_after })
    }

    /// A background response; who streams it may stop at any time.
    fn background(&mut self) -> Told {
        if self.under_way.load(Ordering::Relaxed) >= UNDER_WAY_MAX {
            return self.look();
        }
        let tokens = 5 + self.dice.roll(100);
        let mut body = self.response(tokens);
        body["background"] = json!(true);
        let leaves_after = (!self.chance(3)).then(|| self.dice.roll(30));
        let known = Known { lasts: true, kept: true, ..Known::default() };
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let headers = self.pays(&mut body);
        self.ask(Plan { path: "/v1/responses", body, headers, known, leaves_after })
    }

    /// Most background runs pay when they are complete. That is written down before the server hears of it, under an id that the caller gives:
    /// a run whose acceptance nobody was told may pay too.
    fn pays(&mut self, body: &mut Value) -> String {
        let tools: &[&'static str] = match self.dice.roll(5) {
            0 => return String::new(),
            1 => &[ONCE],
            2 => &[AGAIN],
            3 => &[ONCE, AGAIN],
            _ => &[AGAIN, ONCE],
        };
        let id = format!("{}-{}", self.name, self.asked);
        self.ledger.declared(&id, tools);
        body["tools"] = tools.iter().map(|name| tool(self.payments, name, *name == AGAIN)).collect();
        format!("X-Request-Id: {id}\r\n")
    }

    /// Asks for a run and writes down what comes.
    fn ask(&mut self, plan: Plan) -> Told {
        self.ledger.count(|count| count.asked += 1);
        let Some(mut answer) = ask(self.port, "POST", plan.path, &plan.headers, Some(&plan.body)) else {
            self.ledger.count(|count| count.unanswered += 1);
            return Err(Gone);
        };
        let id = answer.id.clone().unwrap_or_else(|| panic!("an answer without an id: {}", answer.status));
        if answer.status != 200 {
            return self.refused(&id, &plan, answer.json().ok_or(Gone)?);
        }
        self.acknowledge(&id, &plan);
        if plan.body["stream"] == false {
            let whole = answer.json();
            if whole.is_none() {
                self.cut(&id, &plan);
            }
            return self.whole(&id, &whole.ok_or(Gone)?);
        }
        let mut texts = [String::new(), String::new()];
        let (mut seen, mut is_done) = (0, false);
        loop {
            if plan.leaves_after.is_some_and(|tokens| seen >= tokens) {
                self.ledger.acknowledged(&id, |known| known.unwanted |= !known.lasts);
                answer.leave(self.dice.roll(2) == 0);
                return Ok(());
            }
            seen += 1;
            match answer.event() {
                Next::Event(event) if event.data == "[DONE]" => is_done = true,
                Next::Event(event) => self.streamed(&id, &event.data, &mut texts),
                Next::Over => {
                    if is_done {
                        self.ledger.ended(&id, "length", "a stream");
                        texts.iter().enumerate().for_each(|(index, text)| self.ledger.read(&id, index, text, true, "a stream"));
                    } else if self.ledger.get(&id, |known| known.outcome.is_none()).unwrap_or(true) {
                        self.ledger.wrong(format!("{id}: a stream was over without an end"));
                    }
                    return Ok(());
                }
                Next::Broken => {
                    self.cut(&id, &plan);
                    return Err(Gone);
                }
            }
        }
    }

    fn acknowledge(&self, id: &str, plan: &Plan) {
        if plan.known.key.is_some() && self.ledger.get(id, |known| known.key.is_some()).unwrap_or(false) {
            self.ledger.count(|count| count.rejoined += 1);
        }
        let Known { lasts, kept, key, .. } = plan.known;
        self.ledger.acknowledged(id, |known| (known.lasts, known.kept, known.key) = (lasts, kept, key));
    }

    /// The answer broke off because the server was gone.
    fn cut(&self, id: &str, plan: &Plan) {
        let endless = [&plan.body["max_tokens"], &plan.body["max_output_tokens"]].iter().any(|n| **n == json!(ENDLESS));
        self.ledger.acknowledged(id, |known| known.was_cut |= endless);
    }

    /// No answer, but perhaps a run that ended: then its cause says how.
    fn refused(&self, id: &str, plan: &Plan, error: Value) -> Told {
        let code = error["error"]["code"].as_str().unwrap_or_default();
        if lifecycle::Cause::ALL.iter().any(|cause| cause.as_str() == code) {
            self.acknowledge(id, plan);
            self.ledger.ended(id, code, "the answer's status");
            return Ok(());
        }
        self.ledger.count(|count| count.refused += 1);
        if !matches!(code, "store_unavailable" | "idempotency_key_in_use") {
            self.ledger.wrong(format!("{id}: refused: {error}"));
        }
        Ok(())
    }

    /// A whole answer: of a chat, a response, or an error in its place.
    fn whole(&self, id: &str, body: &Value) -> Told {
        match body["object"].as_str() {
            Some("chat.completion") => {
                for choice in body["choices"].as_array().expect("choices") {
                    let index = choice["index"].as_u64().expect("an index") as usize;
                    self.ledger.read(id, index, choice["message"]["content"].as_str().unwrap_or_default(), true, "an answer");
                }
                self.ledger.ended(id, body["choices"][0]["finish_reason"].as_str().expect("a reason"), "an answer");
            }
            Some("response") => self.response_object(id, body),
            _ => self.ledger.wrong(format!("{id}: neither an answer nor an error: {body}")),
        }
        Ok(())
    }

    fn response_object(&self, id: &str, response: &Value) {
        let Some(cause) = response["kvit"]["cause"].as_str() else { return };
        self.ledger.ended(id, cause, "a response");
        let text = response["output"][0]["content"][0]["text"].as_str().unwrap_or_default();
        self.ledger.read(id, 0, text, cause == "length", "a response");
    }

    /// One event of a chat's stream or of a response's.
    fn streamed(&self, id: &str, data: &str, texts: &mut [String; 2]) {
        let event: Value = serde_json::from_str(data).expect("an event is JSON");
        if let Some(code) = event["error"]["code"].as_str() {
            return self.ledger.ended(id, code, "a stream's error");
        }
        for choice in event["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().expect("an index") as usize;
            texts[index] += choice["delta"]["content"].as_str().unwrap_or_default();
            self.ledger.read(id, index, &texts[index], false, "a stream");
        }
        if let Some(number) = event["sequence_number"].as_u64() {
            if self.ledger.get(id, |known| known.lasts) == Some(true) {
                self.ledger.event(id, false, number, data);
            }
            if event["type"] == "response.output_text.delta" {
                texts[0] += event["delta"].as_str().unwrap_or_default();
                self.ledger.read(id, 0, &texts[0], false, "a stream");
            }
            if event["response"].is_object() {
                self.response_object(id, &event["response"]);
            }
        }
    }

    /// Some run that callers know, of those that this picks.
    fn some(&mut self, which: impl Fn(&Known) -> bool) -> Option<String> {
        let ids = self.ledger.ids(which);
        let n = ids.len() as u64;
        // Mostly a new one; ids are ordered by time.
        let recent = n.min(40);
        if n == 0 {
            return None;
        }
        let back = if self.chance(4) { self.dice.roll(n) } else { self.dice.roll(recent) };
        Some(ids[(n - 1 - back) as usize].clone())
    }

    fn look(&mut self) -> Told {
        let Some(id) = self.some(|_| true) else { return Ok(()) };
        look(self.port, self.ledger, &id).map(drop)
    }

    /// Reads a run's events from some number on.
    fn follow(&mut self) -> Told {
        let Some(id) = self.some(|known| known.kept) else { return Ok(()) };
        let last = self.ledger.get(&id, |known| known.events.keys().last().copied().unwrap_or(0)).unwrap_or(0);
        let after = self.dice.roll(last + 1);
        let patience = self.dice.roll(40);
        follow(self.port, self.ledger, &id, after, Some(patience))
    }

    /// Reads a response's events from some number on.
    fn follow_response(&mut self) -> Told {
        let Some(id) = self.some(|known| known.lasts && !known.sequence.is_empty()) else { return Ok(()) };
        let last = self.ledger.get(&id, |known| known.sequence.keys().last().copied().unwrap_or(0)).unwrap_or(0);
        let after = self.dice.roll(last + 1);
        let mut patience = self.dice.roll(40);
        let path = format!("/v1/responses/resp_{id}?stream=true&starting_after={after}");
        let mut answer = ask(self.port, "GET", &path, "", None).ok_or(Gone)?;
        if answer.status != 200 {
            self.ledger.wrong(format!("{id}: a response's events are {}", answer.status));
            return Ok(());
        }
        let mut numbers = after + 1;
        while patience > 0 {
            patience -= 1;
            let event = match answer.event() {
                Next::Event(event) => event,
                Next::Over => break,
                Next::Broken => return Err(Gone),
            };
            let value: Value = serde_json::from_str(&event.data).expect("an event is JSON");
            let number = value["sequence_number"].as_u64();
            if number != Some(numbers) {
                self.ledger.wrong(format!("{id}: event {numbers} was due, and {} came", event.data));
            }
            self.ledger.event(&id, false, numbers, &event.data);
            numbers += 1;
            if value["response"].is_object() {
                self.response_object(&id, &value["response"]);
            }
        }
        Ok(())
    }

    /// Cancels some run by name, at either address.
    fn cancel(&mut self) -> Told {
        let Some(id) = self.some(|_| true) else { return Ok(()) };
        self.ledger.acknowledged(&id, |known| known.unwanted = true);
        self.ledger.count(|count| count.cancels += 1);
        let is_response = self.ledger.get(&id, |known| !known.sequence.is_empty()).unwrap_or(false);
        if is_response && self.chance(2) {
            let answer = ask(self.port, "POST", &format!("/v1/responses/resp_{id}/cancel"), "", None).ok_or(Gone)?;
            let (status, response) = (answer.status, answer.json().ok_or(Gone)?);
            if status != 200 {
                self.ledger.wrong(format!("{id}: the cancel of a response is {status}: {response}"));
            }
            self.response_object(&id, &response);
            return Ok(());
        }
        let answer = ask(self.port, "POST", &format!("/v1/runs/{id}/cancel"), "", None).ok_or(Gone)?;
        let status = answer.status;
        let run = answer.json().ok_or(Gone)?;
        self.ledger.looked(&id, status, &run);
        Ok(())
    }
}

/// Looks at a run; whether it has ended.
pub fn look(port: u16, ledger: &Ledger, id: &str) -> Result<bool, Gone> {
    let answer = ask(port, "GET", &format!("/v1/runs/{id}"), "", None).ok_or(Gone)?;
    let status = answer.status;
    Ok(ledger.looked(id, status, &answer.json().ok_or(Gone)?))
}

/// Reads a run's events behind `after`, at most so many.
pub fn follow(port: u16, ledger: &Ledger, id: &str, after: u64, patience: Option<u64>) -> Told {
    let mut answer: Answer = ask(port, "GET", &format!("/v1/runs/{id}/events?after={after}"), "", None).ok_or(Gone)?;
    if answer.status != 200 {
        ledger.wrong(format!("{id}: a run's events are {}", answer.status));
        return Ok(());
    }
    let lasts = ledger.get(id, |known| known.lasts).unwrap_or(false);
    let mut events: Vec<(u64, String)> = Vec::new();
    let mut texts = [String::new(), String::new()];
    let mut ended = None;
    while patience.is_none_or(|most| (events.len() as u64) < most) {
        let event = match answer.event() {
            Next::Event(event) => event,
            // Whoever has the end already is told nothing more.
            Next::Over if events.is_empty() && ledger.get(id, |known| known.is_end(after)) == Some(true) => return Ok(()),
            Next::Over if ended.is_none() => {
                ledger.wrong(format!("{id}: its events behind {after} broke off without an end after {}", events.len()));
                return Ok(());
            }
            Next::Over => break,
            Next::Broken => return Err(Gone),
        };
        let data: Value = serde_json::from_str(&event.data).expect("an event is JSON");
        let number = event.id.expect("an event has a number");
        if number != after + 1 + events.len() as u64 {
            ledger.wrong(format!("{id}: behind {after} came {number} as event {}", events.len() + 1));
        }
        if event.kind == "delta" {
            texts[data["index"].as_u64().expect("an index") as usize] += data["text"].as_str().expect("a text");
        }
        if event.kind == "end" {
            ended = Some(data["outcome"]["cause"].as_str().expect("a cause").to_owned());
        }
        let what = format!("{} {}", event.kind, event.data);
        if lasts {
            // Nobody is told an event of a background run that a crash could undo.
            ledger.event(id, true, number, &what);
        }
        events.push((number, what));
    }
    let completed = matches!(ended.as_deref(), Some("length" | "stop"));
    if let Some(how) = &ended {
        events.iter().filter(|_| !lasts).for_each(|(number, what)| ledger.event(id, true, *number, what));
        ledger.ended(id, how, "its events");
    }
    if after == 0 {
        texts.iter().enumerate().for_each(|(index, text)| ledger.read(id, index, text, completed, "its events"));
    }
    Ok(())
}
