//! The scenes in which one caller leaves: in decode, in prefill, in the queue, without a word, and by no longer reading.

mod beside;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::scene::{Found, Scene};
use super::stage::Stage;

/// Tokens that the first caller reads before it hangs up.
const READ: usize = 12;
/// Tokens of a long prompt.
const LONG: u64 = 3000;
/// How often a scene is played whose runs were over too soon.
const TRIES: u32 = 3;
/// Sequences that the server schedules at once (its `max_running`): so many runs fill it.
const PLACES: usize = 3;
/// Receive buffer of the caller that stops reading, in bytes, and the alternatives to each token that make its answer long.
const WINDOW: usize = 4096;
const ALTERNATIVES: u64 = 20;

/// All of them, in order.
pub fn all() -> Vec<Scene> {
    vec![
        Scene {
            name: "decode",
            title: "A caller hangs up in the middle of its answer",
            about: "It reads 12 tokens of a stream and closes its connection.",
            play: decode,
        },
        Scene {
            name: "prefill",
            title: "A caller hangs up while its prompt is computed",
            about: "Its prompt is long. It closes its connection before there is a first token.",
            play: prefill,
        },
        Scene {
            name: "queue",
            title: "A caller hangs up in the queue",
            about: "Three runs fill the engine. A fourth caller waits behind them and closes its connection.",
            play: queue,
        },
        Scene {
            name: "shared_prefix",
            title: "Two runs share a prompt's blocks, and one leaves",
            about: "Both have the same prompt. One closes after 12 tokens; the other reads on.",
            play: beside::shared_prefix,
        },
        Scene {
            name: "vanished",
            title: "A caller vanishes without a word",
            about: "Every packet to it is dropped from some moment on: no FIN, no RST, no acknowledgement. Only the kernel's probes can find out.",
            play: vanished,
        },
        Scene {
            name: "silent",
            title: "A caller is there and does not read",
            about: "It keeps its connection open and reads no more. Its answer may wait for 900 ms; then it is cut off.",
            play: silent,
        },
        Scene {
            name: "neighbour",
            title: "A healthy neighbour",
            about: "It is answered alone first; then again, while others close, reset and leave their prefill beside it.",
            play: beside::neighbour,
        },
    ]
}

fn decode(stage: &Stage<'_>) -> anyhow::Result<Found> {
    let mut caller = stage.ask("decode", &json!("Tell me a long story about a lighthouse."), stage.longest_answer().min(2000), true)?;
    let text = caller.read(READ)?;
    caller.close();
    let run = stage.settled("decode")?;
    let mut found = Found::about(run);
    found.check_cancelled("client_closed", &["decode"]);
    found.texts.push(("read", text));
    Ok(found)
}

fn prefill(stage: &Stage<'_>) -> anyhow::Result<Found> {
    in_time(|attempt| {
        let id = format!("prefill-{attempt}");
        let caller = stage.ask(&id, &stage.long_prompt(&id, LONG), 20, true)?;
        stage.wait(&id, "begin its prefill", |run| run["milestones"]["prefill_start"].is_number())?;
        caller.close();
        let run = stage.settled(&id)?;
        let (in_time, generated, prompt) =
            (run["phase_at_disconnect"] == "prefill", run["tokens"]["generated"].clone(), run["tokens"]["prompt"].clone());
        let mut found = Found::about(run);
        found.check_cancelled("client_closed", &["prefill"]);
        found.check(generated == 0, format!("{prompt} tokens of prompt, {generated} generated"));
        Ok((found, in_time))
    })
}

/// Plays a scene again if what it shows was over before its caller had gone, which a quick server or a busy machine can bring about. The
/// runs of every try are told.
fn in_time(mut play: impl FnMut(u32) -> anyhow::Result<(Found, bool)>) -> anyhow::Result<Found> {
    let mut before = Vec::new();
    for attempt in 1..TRIES {
        let (mut found, in_time) = play(attempt)?;
        if in_time {
            found.runs.append(&mut before);
            return Ok(found);
        }
        before.append(&mut found.runs);
    }
    let (mut found, _) = play(TRIES)?;
    found.runs.append(&mut before);
    Ok(found)
}

fn queue(stage: &Stage<'_>) -> anyhow::Result<Found> {
    let ids: Vec<String> = (1..=PLACES).map(|i| format!("holder-{i}")).collect();
    // They ask for whole answers: nobody has to read them meanwhile.
    let prompt = |id: &str| json!(format!("Tell me the story of {id}."));
    let longest = stage.longest_answer().min(2000);
    let holders = ids.iter().map(|id| stage.ask(id, &prompt(id), longest, false)).collect::<anyhow::Result<Vec<_>>>()?;
    for id in &ids {
        stage.wait(id, "decode", |run| run["state"] == "decoding")?;
    }
    let caller = stage.ask("queued", &json!("What is a tide?"), 50, true)?;
    stage.wait("queued", "queue", |run| run["milestones"]["queued"].is_number())?;
    caller.close();
    let run = stage.settled("queued")?;
    let mut found = Found::about(run.clone());
    found.check_cancelled("client_closed", &["queued"]);
    let untouched = run["blocks"]["peak"] == 0 && run["steps"]["total"] == 0;
    found.check(untouched, format!("it never had a block ({}) nor a part of a step ({})", run["blocks"]["peak"], run["steps"]["total"]));
    let mut decoding = 0;
    for id in &ids {
        decoding += usize::from(stage.run(id)?.is_some_and(|run| run["state"] == "decoding"));
    }
    found.check(decoding == PLACES, format!("the {PLACES} runs in front of it noticed nothing: {decoding} go on"));
    // What the scene is about is over; they go the short way.
    holders.into_iter().for_each(super::caller::Caller::reset);
    for id in &ids {
        found.runs.push(stage.settled(id)?);
    }
    Ok(found)
}

fn vanished(stage: &Stage<'_>) -> anyhow::Result<Found> {
    // A whole answer: while it is computed nothing is sent, so no unread byte gives the caller away before the probes do.
    let caller = stage.ask("vanished", &json!("Tell me about the sea."), stage.longest_answer(), false)?;
    let generated = |run: &Value| run["tokens"]["generated"].as_u64().unwrap_or(0);
    let before = stage.wait("vanished", "decode", |run| generated(run) >= 1)?;
    if let Err(why) = caller.vanish() {
        caller.reset();
        stage.settled("vanished")?;
        return Ok(Found::skipped(format!("this system does not let a socket drop its packets ({why}), so nobody can vanish on it")));
    }
    let since = Instant::now();
    let run = stage.settled("vanished");
    let took = since.elapsed();
    // A reset, so that the kernel does not go on trying to say goodbye on a connection that nobody answers.
    caller.reset();
    let run = run?;
    let unseen = generated(&run).saturating_sub(generated(&before) + run["tokens"]["after_disconnect"].as_u64().unwrap_or(0));
    let mut found = Found::about(run);
    found.check_cancelled("client_lost", &["decode"]);
    // Not measured on one clock with the run's milestones, so it is told and not judged.
    found.check(true, format!("nobody could know for about {:.1} s, and {unseen} tokens were computed meanwhile", seconds(took)));
    Ok(found)
}

fn silent(stage: &Stage<'_>) -> anyhow::Result<Found> {
    let more = json!({"logprobs": true, "top_logprobs": ALTERNATIVES});
    let mut caller = stage.ask_with("silent", &json!("Describe a harbour."), stage.longest_answer(), true, (more, Some(WINDOW)))?;
    let text = caller.read(3)?;
    let run = stage.settled("silent")?;
    drop(caller);
    let (generated, delivered) = (run["tokens"]["generated"].clone(), run["tokens"]["delivered"].clone());
    let mut found = Found::about(run);
    found.check_cancelled("client_stalled", &["decode"]);
    let not_complete = found.runs[0]["delivery"] == "partial";
    found.check(not_complete, format!("{generated} tokens were generated in all, {delivered} had gone into the connection's buffers"));
    found.texts.push(("read", text));
    Ok(found)
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_is_played_again_only_if_it_was_over_too_soon_and_every_try_is_told() {
        let play = |good: u32| {
            let mut played = 0;
            let found = in_time(|attempt| {
                played = attempt;
                Ok((Found::about(json!(attempt)), attempt == good))
            });
            (played, found.expect("played").runs)
        };
        assert_eq!(play(1), (1, vec![json!(1)]));
        assert_eq!(play(2), (2, vec![json!(2), json!(1)]));
        assert_eq!(play(99), (TRIES, vec![json!(3), json!(1), json!(2)]), "the last try counts as it is");
        assert!(in_time(|_| anyhow::bail!("broke off")).is_err());
    }
}
