//! Properties: whatever is recorded, in whatever order, the metrics are the sum of the runs' views, and memory stays bounded.

use lifecycle::event::Event;
use lifecycle::message::Receipt;
use lifecycle::{Cause, Delivery, Incarnation, Outcome, Phase, StepId, Tenant};
use observe::{Clock, Journal, Limits, RunFilter, RunState, RunView};
use proptest::prelude::*;

use crate::metrics::parse;
use crate::story::{accepted, dispatched, key, of_attempt, page, queued};

fn cause() -> impl Strategy<Value = Cause> {
    (0..Cause::ALL.len()).prop_map(|i| Cause::ALL[i])
}

fn phase() -> impl Strategy<Value = Phase> {
    (0..Phase::ALL.len()).prop_map(|i| Phase::ALL[i])
}

/// Any event of a run, also where no sound machine would emit it.
fn event() -> impl Strategy<Value = Event> {
    let step = || (1..40_u64).prop_map(StepId);
    let gateway = prop_oneof![
        Just(accepted()),
        Just(dispatched()),
        cause().prop_map(|cause| Event::AbandonmentObserved { cause }),
        (cause(), 1..4_u32).prop_map(|(cause, count)| Event::CancelSent { cause, count }),
        Just(Event::CancelAcknowledged),
        (0..5_u32).prop_map(|tokens| Event::Delivered { tokens }),
        Just(Event::DeliveryEnded { delivery: Delivery::Partial }),
        cause().prop_map(|c| Event::OutcomeSet { outcome: Outcome::of(c) }),
        (cause(), cause()).prop_map(|(cause, won)| Event::Superseded { cause, won }),
        any::<bool>().prop_map(|proven| Event::Settled { proven }),
    ];
    let worker = prop_oneof![
        (0..99_u32).prop_map(queued),
        (0..9_u32, 0..40_u32, 0..4_u32).prop_map(|(held, cached_tokens, shared)| Event::BlocksAllocated { held, cached_tokens, shared }),
        Just(Event::PrefillStart),
        (step(), 0..40_u32, 0..3_u32, 0..3_u32).prop_map(|(step, prompt_tokens, generated, discarded)| Event::Computed {
            step,
            prompt_tokens,
            generated,
            discarded,
            late: discarded,
        }),
        (step(), 0..3_u32).prop_map(|(step, layers)| Event::RowsDropped { step, layers }),
        Just(Event::FirstToken),
        Just(Event::Preempted),
        cause().prop_map(|cause| Event::CancelReceived { cause }),
        (cause(), phase()).prop_map(|(cause, phase)| Event::CancelApplied { cause, phase }),
        cause().prop_map(|c| Event::AttemptEnded { outcome: Outcome::of(c) }),
        step().prop_map(|step| Event::FenceCompleted { step }),
        (0..2_u32).prop_map(|blocks_held| Event::Released { receipt: Receipt { blocks_held, ..Receipt::default() } }),
        Just(Event::Void { worker: Incarnation(1) }),
    ];
    prop_oneof![gateway, worker]
}

fn views(journal: &Journal) -> Vec<RunView> {
    let filter = RunFilter { limit: 1000, ..RunFilter::default() };
    journal.runs(&Tenant::default(), &filter).expect("no cursor was given").data
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn metrics_are_the_sums_of_the_views(records in prop::collection::vec((0..4_u8, 0..3_u32, event()), 0..120)) {
        let journal = Journal::new(Clock::start(), Limits::default());
        for run in 0..4 {
            of_attempt(&journal, &key(&format!("r{run}")), 0, 0, accepted());
        }
        for (us, (run, attempt, event)) in records.into_iter().enumerate() {
            of_attempt(&journal, &key(&format!("r{run}")), attempt, us as u64 * 70, event);
        }
        let (samples, runs) = (parse(&page(&journal)), views(&journal));
        let sum = |of: fn(&RunView) -> u64| runs.iter().map(of).sum::<u64>() as f64;
        let by_label = |name: &str| samples.iter().filter(|(s, _)| s.starts_with(&format!("{name}{{"))).map(|(_, v)| v).sum::<f64>();
        prop_assert_eq!(samples["kvit_tokens_generated_total"], sum(|r| r.tokens.generated));
        prop_assert_eq!(samples["kvit_tokens_delivered_total"], sum(|r| r.tokens.delivered));
        prop_assert_eq!(samples["kvit_tokens_overrun_total"], sum(|r| r.tokens.overrun));
        prop_assert_eq!(samples["kvit_prefix_cached_tokens_total"], sum(|r| r.tokens.cached_prompt));
        prop_assert_eq!(samples["kvit_prompt_tokens_after_disconnect_total"], sum(|r| r.tokens.prompt_computed_after_disconnect));
        prop_assert_eq!(by_label("kvit_steps_after_disconnect_total"), sum(|r| r.steps.after_disconnect));
        prop_assert_eq!(samples["kvit_settled_total"], sum(|r| u64::from(r.settled)));
        prop_assert_eq!(by_label("kvit_tokens_after_disconnect_total"), sum(|r| r.tokens.after_disconnect));
        for phase in Phase::ALL {
            let here = |r: &&RunView| r.phase_at_disconnect == Some(phase.as_str());
            let tokens: u64 = runs.iter().filter(here).map(|r| r.tokens.after_disconnect).sum();
            prop_assert_eq!(samples[&format!("kvit_tokens_after_disconnect_total{{phase=\"{phase}\"}}")], tokens as f64);
            let steps: u64 = runs.iter().filter(here).map(|r| r.steps.after_disconnect).sum();
            prop_assert_eq!(samples[&format!("kvit_steps_after_disconnect_total{{phase=\"{phase}\"}}")], steps as f64);
        }
        for cause in Cause::ALL {
            let ended = runs.iter().filter(|r| r.outcome.as_ref().is_some_and(|o| o.cause == cause.as_str())).count();
            prop_assert_eq!(
                samples[&format!("kvit_run_outcomes_total{{outcome=\"{}\",cause=\"{cause}\"}}", cause.outcome())],
                ended as f64
            );
        }
        for state in RunState::ALL.into_iter().filter(|s| *s != RunState::Ended) {
            let there = runs.iter().filter(|r| r.state == state).count();
            prop_assert_eq!(samples[&format!("kvit_runs{{state=\"{}\"}}", state.as_str())], there as f64);
        }
        for run in &runs {
            prop_assert!(run.steps.after_disconnect <= run.steps.total);
            prop_assert!(run.tokens.cached_prompt <= 99);
        }
    }

    /// `released` is journalled once an attempt; each further one, whatever raced to write it, is a defect and moves no total.
    // contract: C-20
    #[test]
    fn a_further_release_is_a_defect(order in prop::collection::vec(1..4_u32, 1..12)) {
        let (journal, key) = (Journal::new(Clock::start(), Limits::default()), key("r"));
        of_attempt(&journal, &key, 0, 0, accepted());
        for attempt in &order {
            of_attempt(&journal, &key, *attempt, 1, Event::Released { receipt: Receipt::default() });
        }
        let attempts = order.iter().collect::<std::collections::BTreeSet<_>>().len();
        let samples = parse(&page(&journal));
        prop_assert_eq!(samples["kvit_released_total"], attempts as f64);
        prop_assert_eq!(samples["kvit_defects_total{kind=\"released_twice\"}"], (order.len() - attempts) as f64);
    }

    #[test]
    fn memory_is_bounded_and_gauges_follow(settles in prop::collection::vec(any::<bool>(), 0..80)) {
        let journal = Journal::new(Clock::start(), Limits { records: 16, runs: 3, ..Limits::default() });
        let mut live = 0;
        for (i, settle) in settles.into_iter().enumerate() {
            let key = key(&format!("r{i}"));
            of_attempt(&journal, &key, 0, 0, accepted());
            if settle {
                of_attempt(&journal, &key, 0, 1, Event::Settled { proven: true });
            } else {
                live += 1;
            }
            let held = views(&journal);
            let settled = held.iter().filter(|r| r.settled).count();
            let queued = held.len() - settled;
            prop_assert!(held.len() <= 24 && settled <= 3, "{} held, {settled} of them settled", held.len());
            prop_assert_eq!(queued.min(20), live.min(20), "no live run is forgotten below the hard limit");
            prop_assert!(journal.count(|_| true) <= 16);
        }
        let queued = views(&journal).iter().filter(|r| !r.settled).count();
        prop_assert_eq!(parse(&page(&journal))["kvit_runs{state=\"queued\"}"], queued as f64);
    }
}
