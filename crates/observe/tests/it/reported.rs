//! What another kvit's record says of an attempt is counted beside what its answer showed, and once.
// contract: C-12 C-28 C-29

use lifecycle::event::Event;
use lifecycle::message::Reported;
use lifecycle::{Cause, Guarantee, Incarnation};
use observe::{Journal, RunView};

use crate::metrics::parse;
use crate::story::*;

fn reported(change: impl FnOnce(&mut Reported)) -> Event {
    let mut work = Reported {
        prompt: 30,
        cached_prompt: 16,
        generated: 9,
        after: 3,
        prompt_after: 0,
        after_receipt: 1,
        steps: 11,
        steps_after: 3,
        waste_bound: Some(0),
    };
    change(&mut work);
    Event::Reported { work: Box::new(work) }
}

/// A run at an engine behind a URL that has shown so many tokens before its caller left, and so many behind that.
fn left(journal: &Journal, before: u64, after: u64) {
    let (run, cause) = (key("r"), Cause::ClientClosed);
    of_attempt(journal, &run, 0, 0, accepted());
    at(journal, &run, 1, dispatched());
    at(journal, &run, 2, queued(0));
    (0..before).for_each(|token| at(journal, &run, 10 + token, computed(0, 0, 1, 0)));
    at(journal, &run, 100, Event::AbandonmentObserved { cause });
    at(journal, &run, 101, Event::CancelSent { cause, count: 1 });
    (0..after).for_each(|token| at(journal, &run, 110 + token, computed(0, 0, 1, 0)));
    at(journal, &run, 200, outcome_set(cause));
}

fn view(journal: &Journal) -> RunView {
    assert_eq!(journal.defects(), 0);
    journal.run(&key("r")).expect("it is known")
}

#[test]
fn what_was_read_is_not_counted_again_and_what_was_not_is() {
    // Read before the leaving, read behind it; in vain by the record, and in all.
    for (before, after, in_vain, all) in [(0, 0, 3, 9), (4, 0, 3, 9), (4, 2, 3, 9), (4, 5, 5, 9), (12, 0, 3, 12)] {
        let journal = journal();
        left(&journal, before, after);
        at(&journal, &key("r"), 300, reported(|_| {}));
        at(&journal, &key("r"), 301, released());
        at(&journal, &key("r"), 302, Event::Settled { proven: true });
        let run = view(&journal);
        assert_eq!((run.tokens.generated, run.tokens.after_disconnect), (all, in_vain), "{before} and {after} read");
        assert_eq!((run.tokens.prompt, run.tokens.cached_prompt, run.tokens.after_receipt), (30, 16, 1));
        assert_eq!((run.steps.total, run.steps.after_disconnect), (11.max(before + after), 3.max(after)));
        assert_eq!((run.guarantee, run.released, run.waste_bound_tokens), (Some("confirmed"), true, Some(0)));
        let samples = parse(&page(&journal));
        assert_eq!(samples["kvit_tokens_generated_total"], all as f64, "the metrics have what the view shows");
        assert_eq!((samples["kvit_prefix_lookups_total"], samples["kvit_prefix_cached_tokens_total"]), (1.0, 16.0));
    }
}

#[test]
fn a_prompt_that_its_answer_had_told_of_is_counted_once() {
    let journal = journal();
    left(&journal, 2, 0);
    at(&journal, &key("r"), 299, Event::PromptCounted { tokens: 30, cached: 16 });
    at(&journal, &key("r"), 300, reported(|work| work.prompt_after = 5));
    let run = view(&journal);
    assert_eq!((run.tokens.prompt, run.tokens.prompt_computed_after_disconnect), (30, 5));
    let samples = parse(&page(&journal));
    assert_eq!((samples["kvit_prefix_lookups_total"], samples["kvit_prompt_tokens_after_disconnect_total"]), (1.0, 5.0));
}

#[test]
fn where_nothing_is_proven_its_own_bound_stands_and_no_number_is_none() {
    for (waste_bound, bound) in [(Some(77), 77), (None, 8192)] {
        let journal = journal();
        left(&journal, 0, 0);
        at(&journal, &key("r"), 300, reported(|work| work.waste_bound = waste_bound));
        at(&journal, &key("r"), 301, Event::LetGo { guarantee: Guarantee::BestEffort });
        at(&journal, &key("r"), 302, Event::Void { worker: Incarnation(1) });
        at(&journal, &key("r"), 303, Event::Settled { proven: false });
        let run = view(&journal);
        assert_eq!((run.guarantee, run.released), (Some("best_effort"), false));
        assert_eq!(run.waste_bound_tokens, Some(bound));
    }
}

/// What it computed for a run that nobody left is no waste, whatever it took its own end for.
#[test]
fn a_run_that_broke_off_has_no_tokens_in_vain() {
    let journal = journal();
    of_attempt(&journal, &key("r"), 0, 0, accepted());
    at(&journal, &key("r"), 2, queued(0));
    at(&journal, &key("r"), 3, outcome_set(Cause::UpstreamError));
    at(&journal, &key("r"), 300, reported(|_| {}));
    let run = view(&journal);
    assert_eq!((run.tokens.generated, run.tokens.after_disconnect, run.steps.after_disconnect), (9, 0, 0));
}
