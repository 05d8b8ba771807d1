//! The probe of reuse: four small runs at once, which together ask for blocks that the account calls free.
//!
//! Bounded: four runs of some hundred tokens, one token of an answer each, and a deadline. It asks for nothing where runs wait already, for then
//! a probe that waits proves nothing.
//!
//! Invariant: a conclusion is drawn only from what the runs' own records say.

use std::time::{Duration, Instant};

use observe::diagnose::{AccountLook, Look, Probe};
use serde_json::{Value, json};

use super::ask;
use crate::client;
use crate::failure::Failure;

/// Runs of a probe.
const RUNS: u32 = 4;
/// How long each may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Blocks that a run's prompt fills at least: a word is a token or more.
const BLOCKS_EACH: u32 = 4;
/// Words of a prompt for an engine whose blocks nobody knows.
const WORDS: u32 = 64;
/// How often it is looked whether a run is released.
const EVERY: Duration = Duration::from_millis(20);

/// Probes kvit, which looked like this before.
///
/// # Errors
/// Nobody answers.
pub fn kvit(server: &str, before: &Look) -> Result<Probe, Failure> {
    let accounts = || before.workers.iter().filter_map(|worker| worker.account.as_ref());
    let available: u64 = accounts().map(|a| u64::from(a.free) + u64::from(a.cached)).sum();
    let Some(tokens) = accounts().map(|account| account.block_tokens).max().filter(|tokens| *tokens > 0) else {
        return Ok(Probe::unsaid("no worker has an account that could call anything free"));
    };
    // Prompt, template and answer together; a word may be several tokens.
    let most = u64::from(RUNS * BLOCKS_EACH * 8);
    let is_full = |account: &AccountLook| account.queued > 0 || account.slots + RUNS > account.slots_total;
    if accounts().any(is_full) {
        return Ok(Probe::unsaid("runs wait already, or not four places are free: a run that waits would prove nothing"));
    }
    if accounts().any(|a| u64::from(a.free) + u64::from(a.cached) < most) {
        return Ok(Probe::unsaid(format!("fewer than {most} blocks are called free or cached, and a probe may need as many")));
    }
    let Some(model) = model(server)? else { return Ok(Probe::unsaid("the server names no model")) };
    let nonce = ask::now_ms();
    let deadline = json!({"timeout_ms": PATIENCE.as_millis() as u64});
    let sent = all(|i| send(server, &ask_for(&model, nonce, i, tokens * BLOCKS_EACH, &deadline), &id(nonce, i)));
    if sent.iter().any(|sent| matches!(sent, Sent::Refused)) {
        return Ok(Probe::unsaid("the server turned a probing run away"));
    }
    let records: Vec<Value> = (0..RUNS).map(|i| released(server, &id(nonce, i))).collect::<Result<_, _>>()?;
    let answered = records.iter().filter(|run| run["outcome"]["kind"] == "completed").count() as u32;
    let starved = |run: &&Value| {
        run["outcome"]["kind"] == "expired" && run["milestones"]["blocks_allocated"].is_null() && run["milestones"]["queued"].is_number()
    };
    let number = |run: &Value, path: &str| run.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let back = records.iter().all(|run| run["released"] == true && run["blocks"]["held"] == 0);
    Ok(Probe {
        runs: RUNS,
        answered,
        starved: records.iter().filter(starved).count() as u32,
        available,
        blocks: records.iter().map(|run| (number(run, "/tokens/prompt") + 1).div_ceil(u64::from(tokens))).sum(),
        held: Some(records.iter().map(|run| number(run, "/blocks/peak")).sum()),
        back: Some(back),
        patience_ms: PATIENCE.as_millis() as u64,
        unsaid: None,
    })
}

/// Probes an engine that others wrote: whether it serves requests at all, and in time.
///
/// # Errors
/// Nobody answers, or nobody names a model.
pub fn engine(server: &str) -> Result<Probe, Failure> {
    let Some(model) = model(server)? else { return Ok(Probe::unsaid("the engine names no model at /v1/models")) };
    let nonce = ask::now_ms();
    let sent = all(|i| send(server, &ask_for(&model, nonce, i, WORDS, &json!({})), &id(nonce, i)));
    let number = |wanted: &dyn Fn(&Sent) -> bool| sent.iter().filter(|sent| wanted(sent)).count() as u32;
    if number(&|sent| matches!(sent, Sent::Refused)) > 0 {
        return Ok(Probe::unsaid("the engine turned a probing request away"));
    }
    let (answered, starved) = (number(&|sent| matches!(sent, Sent::Answered)), number(&|sent| matches!(sent, Sent::Late)));
    Ok(Probe { runs: RUNS, answered, starved, patience_ms: PATIENCE.as_millis() as u64, ..Probe::default() })
}

/// What came of a request.
enum Sent {
    Answered,
    Late,
    Refused,
}

/// All of them at once.
fn all(send: impl Fn(u32) -> Sent + Sync) -> Vec<Sent> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..RUNS).map(|i| (i, &send)).map(|(i, send)| scope.spawn(move || send(i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Sent::Refused)).collect()
    })
}

fn id(nonce: u64, i: u32) -> String {
    format!("diagnose-{nonce}-{i}")
}

fn model(server: &str) -> Result<Option<String>, Failure> {
    let models = client::get(server, "/v1/models")?;
    Ok(models.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned))
}

/// A request for one token behind a prompt of so many words, which is nobody's and another one each time.
fn ask_for(model: &str, nonce: u64, i: u32, words: u32, more: &Value) -> Value {
    let word = |n: u32| format!("{}{}", ["a", "b", "c", "d"][(n % 4) as usize], (nonce + u64::from(i * 31 + n)) % 10);
    let words: Vec<String> = (0..words).map(word).collect();
    let mut body = json!({"model": model, "prompt": format!("{nonce} {i} {}", words.join(" ")), "max_tokens": 1, "temperature": 0});
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    body
}

fn send(server: &str, body: &Value, id: &str) -> Sent {
    match client::post(server, "/v1/completions", id, body, PATIENCE + Duration::from_secs(5)) {
        Ok(200) => Sent::Answered,
        // Its own deadline, or nobody answered in that time.
        Ok(408 | 499 | 504) | Err(_) => Sent::Late,
        Ok(_) => Sent::Refused,
    }
}

/// The run's record, once it is released or the time for that is over.
fn released(server: &str, run: &str) -> Result<Value, Failure> {
    let since = Instant::now();
    loop {
        let record = client::get(server, &format!("/v1/runs/{run}"))?;
        if record["released"] == true || since.elapsed() > PATIENCE {
            return Ok(record);
        }
        std::thread::sleep(EVERY);
    }
}
