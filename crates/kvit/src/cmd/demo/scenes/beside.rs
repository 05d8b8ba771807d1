//! The scenes in which one caller leaves and another must notice nothing.
// contract: C-14 C-18

use serde_json::json;

use super::{LONG, READ};
use crate::cmd::demo::scene::Found;
use crate::cmd::demo::stage::Stage;

/// Tokens of the shared prompt, and of the answers that are compared: long enough to go on until the others have left.
const SHARED: u64 = 200;
const COMPARED: u64 = 96;

/// Two runs with one prompt: its full blocks are held by both, then by one, and stay what they are.
pub fn shared_prefix(stage: &Stage<'_>) -> anyhow::Result<Found> {
    let prompt = stage.long_prompt("A prompt that two share", SHARED);
    let alone = stage.ask("alone", &prompt, COMPARED, true)?.read_all()?;
    let alone_run = stage.settled("alone")?;

    let mut stays = stage.ask("stays", &prompt, COMPARED, true)?;
    let mut leaves = stage.ask("leaves", &prompt, COMPARED, true)?;
    let first = stays.read(1)?;
    leaves.read(READ)?;
    let both = stage.owned_by(&["leaves", "stays"])?;
    let rest = std::thread::spawn(move || stays.read_all());
    leaves.close();
    let left = stage.settled("leaves")?;
    let after = stage.owned_by(&["stays"])?;
    let goes_on = stage.run("stays")?.is_some_and(|run| run["state"] == "decoding");
    let rest = rest.join().map_err(|_| anyhow::anyhow!("a reader failed"))??;
    let stayed = stage.settled("stays")?;

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
    Ok(found)
}

/// One answer alone, and again between callers who leave in three ways.
pub fn neighbour(stage: &Stage<'_>) -> anyhow::Result<Found> {
    let prompt = json!("Explain in simple words why the sky is blue.");
    let alone = stage.ask("isolated", &prompt, COMPARED, true)?.read_all()?;
    let isolated = stage.settled("isolated")?;

    let mut neighbour = stage.ask("neighbour", &prompt, COMPARED, true)?;
    let first = neighbour.read(1)?;
    let rest = std::thread::spawn(move || neighbour.read_all());
    let mut leavers = Vec::new();
    for (id, resets) in [("beside-close", false), ("beside-reset", true)] {
        let mut caller = stage.ask(id, &json!(format!("Tell me a long story. It begins with {id}.")), COMPARED, true)?;
        caller.read(3)?;
        if resets {
            caller.reset()
        } else {
            caller.close()
        }
        leavers.push(stage.settled(id)?);
    }
    let caller = stage.ask("beside-prefill", &stage.long_prompt("beside-prefill", LONG), 20, true)?;
    stage.wait("beside-prefill", "begin its prefill", |run| run["milestones"]["prefill_start"].is_number())?;
    caller.close();
    leavers.push(stage.settled("beside-prefill")?);
    let goes_on = stage.run("neighbour")?.is_some_and(|run| run["state"] == "decoding");
    let rest = rest.join().map_err(|_| anyhow::anyhow!("a reader failed"))??;
    let run = stage.settled("neighbour")?;

    let mut found = Found::about(run.clone());
    let causes: Vec<&str> = leavers.iter().filter_map(|run| run["outcome"]["cause"].as_str()).collect();
    let wanted = ["client_closed", "client_reset", "client_closed"];
    found.check(causes == wanted && goes_on, format!("{} were cancelled while it went on", causes.join(", ")));
    let complete = run["outcome"]["kind"] == "completed" && run["delivery"] == "complete";
    let counts = (&run["tokens"]["generated"], &run["tokens"]["delivered"]);
    found.check(complete, format!("it was answered in full: {} tokens generated, {} delivered", counts.0, counts.1));
    let text = first + &rest;
    found.check(text == alone, equal(&text, &alone));
    found.runs.extend(leavers);
    found.runs.push(isolated);
    found.texts.extend([("alone", alone), ("beside", text)]);
    Ok(found)
}

/// Whether two texts are equal, and if not from where on.
fn equal(beside: &str, alone: &str) -> String {
    if beside == alone {
        return format!("its text equals that of its run alone: {} characters, each", alone.chars().count());
    }
    let same = beside.chars().zip(alone.chars()).take_while(|(a, b)| a == b).count();
    format!("its text differs from that of its run alone after {same} characters")
}
