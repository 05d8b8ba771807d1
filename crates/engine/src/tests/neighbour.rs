//! What a neighbour of runs that come and leave may notice: counted in steps and tokens, never timed.

use lifecycle::Cause;

use super::simulated::{IN_FLIGHT, World, isolated};
use crate::Submission;

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| (seed * 17 + i * 5) % 90).collect()
}

fn endless(w: &mut World, name: &str, prompt: &[u32], cap: u32) {
    let s = Submission { max_tokens: Some(cap), stop_tokens: vec![], ..w.submission(name) };
    w.start(s, prompt);
}

fn tokens(w: &World, name: &str) -> usize {
    w.seen(name).answers.get(&0).map_or(0, Vec::len)
}

// contract: C-14  field: F-43
#[test]
fn a_decoding_neighbour_gets_a_token_in_every_step_whoever_comes_and_leaves() {
    const CAP: u32 = 90;
    let mut w = World::small(120);
    endless(&mut w, "neighbour", &prompt(1, 10), CAP);
    while tokens(&w, "neighbour") == 0 {
        assert!(w.step());
    }
    let mut visit = 0;
    while tokens(&w, "neighbour") < CAP as usize {
        // One comes at each step; it leaves up to two steps later: queued, in its prefill, or decoding; planned, under way or neither.
        endless(&mut w, &format!("v{visit}"), &prompt(visit + 2, 1 + visit * 7 % 40), 30);
        if visit % 2 == 0 {
            w.fill();
        }
        for back in (0..3).filter(|back| visit >= *back && (visit + back) % 3 == 0) {
            w.cancel(&format!("v{}", visit - back), Cause::ClientClosed);
        }
        let before = tokens(&w, "neighbour");
        assert!(w.step());
        assert_eq!(tokens(&w, "neighbour"), before + 1, "visit {visit}");
        visit += 1;
    }
    (0..visit).for_each(|v| w.cancel(&format!("v{v}"), Cause::ClientClosed));
    w.finish(20);
    w.assert_at_rest();
    assert_eq!(w.seen("neighbour").answers[&0], isolated(&prompt(1, 10), CAP as usize, true));
    assert_eq!(w.seen("neighbour").preempted, 0);
}

/// When the run before the neighbour leaves.
#[derive(Clone, Copy, Debug)]
struct Leaves {
    after_steps: usize,
    /// With further steps of it in flight, which are then dropped.
    planned: bool,
}

/// Steps until a neighbour's first token, behind a run with a long prompt that leaves, if it does.
fn steps_to_first_token(leaves: Option<Leaves>, same_prompt: bool) -> usize {
    let mut w = World::small(120);
    let mine = prompt(3, 100);
    let other = if same_prompt { mine.clone() } else { prompt(4, 100) };
    endless(&mut w, "leaver", &other, 20);
    endless(&mut w, "neighbour", &mine, 4);
    let mut steps = 0;
    while tokens(&w, "neighbour") == 0 {
        if let Some(Leaves { planned, .. }) = leaves.filter(|l| l.after_steps == steps) {
            if planned {
                w.fill();
            }
            w.cancel("leaver", Cause::ClientReset);
        }
        assert!(w.step());
        steps += 1;
    }
    w.cancel("leaver", Cause::ClientReset);
    w.finish(50);
    w.assert_at_rest();
    assert_eq!(w.seen("neighbour").answers[&0], isolated(&mine, 4, true));
    steps
}

// contract: C-14, C-19  field: F-60
#[test]
fn a_cancel_makes_no_first_token_come_later_but_for_what_a_shared_prefix_lost_in_flight() {
    for same_prompt in [false, true] {
        let beside = steps_to_first_token(None, same_prompt);
        for after_steps in 0..beside {
            for planned in [false, true] {
                let leaves = Leaves { after_steps, planned };
                let steps = steps_to_first_token(Some(leaves), same_prompt);
                // What is dropped of a prefix that the neighbour waits for, the neighbour computes: as many steps as may be in flight.
                let again = if same_prompt && planned { IN_FLIGHT } else { 0 };
                assert!(steps <= beside + again, "{steps} steps, {beside} where nobody leaves: {leaves:?}, same prompt: {same_prompt}");
            }
        }
    }
}
