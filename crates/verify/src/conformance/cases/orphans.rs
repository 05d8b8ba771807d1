//! Whose attempts are they? Ask, Claim, Disclaim.

use std::time::Duration;

use lifecycle::message::Down;
use lifecycle::{AttemptId, Cause};
use protocol::worker_v1::AttemptState;

use super::{complete, decodes, decoding, ended};
use crate::conformance::bench::Bench;
use crate::conformance::case::{Case, Fault, Found, case, must};
use crate::conformance::gateway::{Answers, Gateway, Want};

/// `ask_every_ms`, and three times as long for a busy machine.
const ASKED_WITHIN: Duration = Duration::from_secs(20);

pub(super) const CASES: &[Case] = &[
    case!(
        "orphans",
        new_life_is_asked,
        Short,
        "C-23. \"The former life's attempts are suspended and named to it in Ask\"; claimed ones go on, disclaimed ones end"
    ),
    case!("orphans", missing_from_an_answer, Short, "C-23. \"An attempt that is named in no answer to Ask stays as it is\""),
    case!("orphans", disclaimed_by_its_owner, Short, "C-23. \"Those in its Disclaim end with CAUSE_ORPHANED\""),
    case!(
        "orphans",
        claim_and_disclaim_of_others,
        Short,
        "C-23. Neither Claim nor Disclaim reaches another gateway's attempts, or unknown ones"
    ),
    case!("orphans", claim_before_its_submit, Short, "a claim that comes before its submit, and names it, changes nothing"),
    case!("orphans", asked_every_now_and_then, Long, "C-23. \"A worker asks a gateway this often which attempts it claims\""),
    case!("orphans", former_life_lease_over, Long, "C-23. \"What is left when the former life's lease is over, end with CAUSE_ORPHANED\""),
];

/// A new life of the gateway of that name, which answers nothing by itself.
async fn next_life(bench: &Bench, of: &str) -> Result<Gateway, Fault> {
    let gateway = bench.gateway(of);
    gateway.see(|state| state.knobs.answers = Answers::Nothing);
    bench.connect(&gateway).await?;
    Ok(gateway)
}

fn claim(gateway: &Gateway, attempts: &[&AttemptId]) {
    gateway.see(|state| attempts.iter().for_each(|attempt| state.stories.entry((*attempt).clone()).or_default().claimed()));
    gateway.say(&Down::Claim { attempts: attempts.iter().map(|attempt| (*attempt).clone()).collect() });
}

async fn new_life_is_asked(bench: Bench) -> Found {
    let (before, claimed) = decoding(&bench, "a").await?;
    let disclaimed = decodes(&bench, &before, "other").await?;
    before.cut();
    let after = next_life(&bench, "a").await?;
    after.until("both attempts in Ask", |state| [&claimed, &disclaimed].iter().all(|attempt| state.asked.contains(attempt))).await?;
    for attempt in [&claimed, &disclaimed] {
        let state = bench.state_of(attempt).await?;
        must(state == Some(AttemptState::Suspended), || format!("nothing was answered yet, and an attempt is {state:?}"))?;
    }
    claim(&after, &[&claimed]);
    after.say(&Down::Disclaim { attempts: vec![disclaimed.clone()] });
    after.has_tokens(&claimed, 3).await?;
    bench.until_state(&disclaimed, None, bench.options.patience).await?;
    after.cancel(&claimed, Cause::CancelRequested, Some(0));
    ended(&after.released(&claimed).await?, Cause::CancelRequested)?;
    Ok("two named; the claimed one goes on for the new life, the disclaimed one is gone".to_owned())
}

async fn missing_from_an_answer(bench: Bench) -> Found {
    let (before, attempt) = decoding(&bench, "a").await?;
    before.cut();
    let after = next_life(&bench, "a").await?;
    after.until("Ask", |state| state.asked.contains(&attempt)).await?;
    let ghost = bench.attempt("ghost");
    after.say(&Down::Claim { attempts: vec![ghost.clone()] });
    after.say(&Down::Disclaim { attempts: vec![ghost] });
    after.until("both answers taken", |state| state.acknowledged == 2).await?;
    let state = bench.state_of(&attempt).await?;
    must(state == Some(AttemptState::Suspended), || format!("it was in no answer, and is {state:?}"))?;
    claim(&after, &[&attempt]);
    after.has_tokens(&attempt, 3).await?;
    Ok("it stayed suspended, and went on when it was claimed".to_owned())
}

async fn disclaimed_by_its_owner(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    let other = decodes(&bench, &gateway, "other").await?;
    gateway.say(&Down::Disclaim { attempts: vec![attempt.clone()] });
    ended(&gateway.released(&attempt).await?, Cause::Orphaned)?;
    let tokens = gateway.tokens(&other);
    gateway.has_tokens(&other, tokens + 3).await?;
    Ok("it ended with orphaned; the one beside it went on".to_owned())
}

async fn claim_and_disclaim_of_others(bench: Bench) -> Found {
    let (owner, attempt) = decoding(&bench, "a").await?;
    let other = bench.connected("b").await?;
    other.say(&Down::Claim { attempts: vec![attempt.clone(), bench.attempt("ghost")] });
    other.say(&Down::Disclaim { attempts: vec![attempt.clone(), bench.attempt("ghost")] });
    other.until("both taken", |state| state.acknowledged == 2).await?;
    let tokens = owner.tokens(&attempt);
    owner.has_tokens(&attempt, tokens + 5).await?;
    Ok("the owner's attempt went on, and the other heard nothing of it".to_owned())
}

async fn claim_before_its_submit(bench: Bench) -> Found {
    let (gateway, attempt) = (bench.connected("a").await?, bench.attempt("a"));
    gateway.say(&Down::Claim { attempts: vec![attempt.clone()] });
    gateway.submit(&attempt, Want::tokens(4));
    complete(&gateway.released(&attempt).await?, 4)?;
    Ok("it ran as any other".to_owned())
}

async fn asked_every_now_and_then(bench: Bench) -> Found {
    let (gateway, attempt) = decoding(&bench, "a").await?;
    let asked = |state: &crate::conformance::gateway::State| state.asked.contains(&attempt) || state.story(&attempt).outcome.is_some();
    gateway.wait("Ask", ASKED_WITHIN, asked).await?;
    gateway.still_runs(&attempt)?;
    let tokens = gateway.tokens(&attempt);
    gateway.has_tokens(&attempt, tokens + 3).await?;
    Ok("its live attempt was named, claimed, and went on".to_owned())
}

async fn former_life_lease_over(bench: Bench) -> Found {
    let (before, attempt) = decoding(&bench, "a").await?;
    before.cut();
    let after = next_life(&bench, "a").await?;
    after.until("Ask", |state| state.asked.contains(&attempt)).await?;
    bench.until_state(&attempt, None, bench.worker.lease + bench.options.patience).await?;
    Ok("claimed by nobody, it was gone when the former life's lease was over".to_owned())
}
