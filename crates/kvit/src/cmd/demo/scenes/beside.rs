//! The scenes in which one caller leaves and another must notice nothing.
// contract: C-14 C-18

use serde_json::json;

use super::{LONG, READ, in_time};
use crate::cmd::demo::scene::Found;
use crate::cmd::demo::stage::Stage;

/// Tokens of the shared prompt, and of the answers that are compared: long enough to go on until the others have left. Where they were not,
/// the next try's are twice as long.
const SHARED: u64 = 200;
const COMPARED: u64 = 96;

fn compared(attempt: u32) -> u64 {
    COMPARED << (attempt - 1)
}

/// Two runs with one prompt: its full blocks are held by both, then by one, and stay what they are.
pub fn shared_prefix(stage: &Stage<'_>) -> anyhow::Result<Found> {
    in_time(|attempt| share(stage, attempt))
}

fn share(stage: &Stage<'_>, attempt: u32) -> anyhow::Result<(Found, bool)> {
    let id = |name: &str| format!("shared-{name}-{attempt}");
    let (alone_id, stays_id, leaves_id) = (id("alone"), id("stays"), id("leaves"));
    let prompt = stage.long_prompt(&format!("Prompt {attempt} of two runs"), SHARED);
    let alone = stage.ask(&alone_id, &prompt, compared(attempt), true)?.read_all()?;
    let alone_run = stage.settled(&alone_id)?;

    let mut stays = stage.ask(&stays_id, &prompt, compared(attempt), true)?;
    let mut leaves = stage.ask(&leaves_id, &prompt, compared(attempt), true)?;
    let first = stays.read(1)?;
    let rest = std::thread::spawn(move || stays.read_all());
    leaves.read(READ)?;
    let both = stage.owned_by(&[&leaves_id, &stays_id])?;
    leaves.close();
    let left = stage.settled(&leaves_id)?;
    let after = stage.owned_by(&[&stays_id])?;
    let goes_on = stage.run(&stays_id)?.is_some_and(|run| run["state"] == "decoding");
    let rest = rest.join().map_err(|_| anyhow::anyhow!("a reader failed"))??;
    let stayed = stage.settled(&stays_id)?;

    let mut found = Found::about(left);
    found.check_cancelled("client_closed", &["decode"]);
    found.check(!both.is_empty(), format!("{} blocks of the prompt were owned by both", both.len()));
    let kept = both.intersection(&after).count();
    let all = goes_on && kept == both.len();
    found.check(all, format!("{kept} of them, in the same hand-out, were the other's alone once it had left, which went on"));
    let text = first + &rest;
    found.check(text == alone && stayed["outcome"]["kind"] == "completed", equal(&text, &alone));
    found.runs.extend([stayed, alone_run]);
    found.texts.extend([("alone", alone), ("beside", text)]);
    Ok((found, goes_on && !both.is_empty()))
}

/// One answer alone, and again between callers who leave in three ways.
pub fn neighbour(stage: &Stage<'_>) -> anyhow::Result<Found> {
    in_time(|attempt| beside(stage, attempt))
}

fn beside(stage: &Stage<'_>, attempt: u32) -> anyhow::Result<(Found, bool)> {
    let id = |name: &str| format!("neighbour-{name}-{attempt}");
    let prompt = json!("Explain in simple words why the sky is blue.");
    let (alone_id, own_id, prefill_id) = (id("alone"), id("beside"), id("prefill"));
    let alone = stage.ask(&alone_id, &prompt, compared(attempt), true)?.read_all()?;
    let alone_run = stage.settled(&alone_id)?;

    let mut own = stage.ask(&own_id, &prompt, compared(attempt), true)?;
    let first = own.read(1)?;
    let rest = std::thread::spawn(move || own.read_all());
    let mut leavers = Vec::new();
    for (id, resets) in [(id("closes"), false), (id("resets"), true)] {
        let mut caller = stage.ask(&id, &json!(format!("Tell me a long story. It begins with {id}.")), compared(attempt), true)?;
        caller.read(3)?;
        if resets {
            caller.reset()
        } else {
            caller.close()
        }
        leavers.push(stage.settled(&id)?);
    }
    let caller = stage.ask(&prefill_id, &stage.long_prompt(&prefill_id, LONG), 20, true)?;
    stage.wait(&prefill_id, "begin its prefill", |run| run["milestones"]["prefill_start"].is_number())?;
    caller.close();
    leavers.push(stage.settled(&prefill_id)?);
    let goes_on = stage.run(&own_id)?.is_some_and(|run| run["state"] == "decoding");
    let rest = rest.join().map_err(|_| anyhow::anyhow!("a reader failed"))??;
    let run = stage.settled(&own_id)?;

    let mut found = Found::about(run.clone());
    let causes: Vec<&str> = leavers.iter().filter_map(|run| run["outcome"]["cause"].as_str()).collect();
    let left = causes == ["client_closed", "client_reset", "client_closed"];
    found.check(left && goes_on, format!("{} were cancelled while it went on", causes.join(", ")));
    let complete = run["outcome"]["kind"] == "completed" && run["delivery"] == "complete";
    let counts = (&run["tokens"]["generated"], &run["tokens"]["delivered"]);
    found.check(complete, format!("it was answered in full: {} tokens generated, {} delivered", counts.0, counts.1));
    let text = first + &rest;
    found.check(text == alone, equal(&text, &alone));
    found.runs.extend(leavers);
    found.runs.push(alone_run);
    found.texts.extend([("alone", alone), ("beside", text)]);
    Ok((found, left && goes_on))
}

/// Whether two texts are equal, and if not from where on.
fn equal(beside: &str, alone: &str) -> String {
    if beside == alone {
        return format!("its text equals that of its run alone: {} characters, each", alone.chars().count());
    }
    let same = beside.chars().zip(alone.chars()).take_while(|(a, b)| a == b).count();
    format!("its text differs from that of its run alone after {same} characters")
}
