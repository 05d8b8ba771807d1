//! One story at a time: text, stops, cancels, deadlines and refusals through the whole worker.

use lifecycle::message::{ChatMessage, Prompt};
use lifecycle::params::Params;
use lifecycle::{Cause, OutcomeKind};

use crate::harness::{Rig, Sizes, greedy, tiny};

fn text(t: &str) -> Prompt {
    Prompt::Text(t.to_string())
}

#[test]
fn a_chat_is_rendered_answered_and_released() {
    let mut rig = Rig::new(&tiny(), Sizes::default());
    let turns = vec![ChatMessage { role: "user".into(), content: "Hello there".into() }];
    rig.submit("chat", Prompt::Chat(turns), greedy(12));
    let seen = rig.released("chat");
    assert_eq!(seen.tokens[&0].len(), 12);
    assert_eq!(seen.finish[&0], Cause::Length);
    assert_eq!(seen.outcome.map(|o| o.kind()), Some(OutcomeKind::Completed));
    rig.assert_at_rest();
}

// contract: C-12  field: F-01, F-19
#[test]
fn a_cancel_in_decode_is_acknowledged_and_released() {
    let mut rig = Rig::new(&tiny(), Sizes::default());
    rig.submit("long", text("Once upon a time"), greedy(1500));
    rig.until("five tokens", |rig| rig.tokens("long") >= 5);
    rig.cancel("long", Cause::ClientClosed);
    rig.cancel("long", Cause::CancelRequested);
    let seen = rig.released("long");
    assert_eq!(seen.outcome.map(|o| o.cause), Some(Cause::ClientClosed));
    rig.until("two answers", |rig| rig.seen["long"].acknowledged.len() == 2);
    assert!(rig.seen["long"].acknowledged[1] != Some(Cause::CancelRequested), "the first won");
    rig.assert_at_rest();
}

#[test]
fn a_stop_string_ends_the_answer_before_it_and_the_engine_learns_of_it() {
    let mut rig = Rig::new(&tiny(), Sizes::default());
    rig.submit("free", text("abc"), greedy(40));
    let free = rig.released("free").text[&0].clone();
    // Some piece in the middle of what it says anyway.
    let at = free.char_indices().nth(free.chars().count() / 2).map(|(i, _)| i).expect("it says something");
    let stop: String = free[at..].chars().take(2).collect();
    let params = Params { stop: vec![stop.clone()], ..greedy(40) };
    rig.submit("stopped", text("abc"), params);
    let seen = rig.released("stopped");
    assert_eq!(seen.text[&0], free[..free.find(&stop).expect("it is in there")]);
    assert_eq!(seen.finish[&0], Cause::Stop);
    assert_eq!(seen.outcome.map(|o| o.cause), Some(Cause::Stop));
    rig.assert_at_rest();
}

// contract: C-31  field: F-68, F-70
#[test]
fn n_answers_share_a_prompt_and_are_cancelled_as_one() {
    let mut rig = Rig::new(&tiny(), Sizes::default());
    rig.submit("three", text(&"word ".repeat(30)), Params { n: 3, ..greedy(400) });
    rig.until("some tokens", |rig| (0..3).all(|s| rig.seen["three"].tokens.get(&s).is_some_and(|t| t.len() > 2)));
    rig.cancel("three", Cause::ClientReset);
    let seen = rig.released("three");
    assert_eq!(seen.released, 1);
    rig.assert_at_rest();
}

#[test]
fn what_cannot_run_says_why() {
    let mut rig = Rig::new(&tiny(), Sizes { blocks: 8, ..Sizes::default() });
    rig.submit("big", Prompt::Tokens(vec![1; 100]), greedy(100));
    let outcome = rig.released("big").outcome.expect("it has one");
    assert_eq!(outcome.cause, Cause::CannotFit);
    assert!(outcome.reason.expect("and a reason").contains("blocks"));
    rig.submit("bad", Prompt::Tokens(vec![u32::MAX]), greedy(1));
    assert_eq!(rig.released("bad").outcome.map(|o| o.cause), Some(Cause::Invalid));
    rig.assert_at_rest();
}

#[test]
fn stopping_the_worker_ends_and_releases_everything() {
    let mut rig = Rig::new(&tiny(), Sizes::default());
    rig.submit("a", text("one"), greedy(1500));
    rig.submit("b", text("two"), greedy(1500));
    rig.until("both run", |rig| rig.tokens("a") > 1 && rig.tokens("b") > 1);
    let seen = rig.stop();
    for name in ["a", "b"] {
        assert_eq!((seen[name].released, seen[name].outcome.as_ref().map(|o| o.cause)), (1, Some(Cause::Shutdown)));
    }
}
