//! The arithmetic of waste, count by count.

use super::*;
use proptest::prelude::*;

fn decode() -> StepWork {
    StepWork { generated: 1, ..StepWork::default() }
}

fn chunk(prompt: u32) -> StepWork {
    StepWork { prompt, ..StepWork::default() }
}

#[test]
fn the_estimate_is_rate_times_latency_and_says_what_it_is() {
    assert!((estimate_tokens(40.0, &[0.25, 0.15, 0.10]) - 20.0).abs() < 1e-9);
    assert_eq!(estimate_tokens(40.0, &[]), 0.0);
    assert_eq!(Estimate::of(40.0, &[0.25, 0.15, 0.10]).to_string(), "about 20.0 tokens (an estimate, not a bound)");
}

#[test]
fn an_estimate_of_nonsense_is_nothing() {
    for nonsense in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(estimate_tokens(nonsense, &[1.0]), 0.0);
        assert_eq!(estimate_tokens(10.0, &[nonsense, 0.5]), 5.0);
    }
}

// contract: C-12
#[test]
fn work_before_abandonment_is_no_waste_and_work_after_it_is() {
    let mut meter = WasteMeter::default();
    meter.step(chunk(37));
    (0..18).for_each(|_| meter.step(decode()));
    meter.deliver(18);
    assert_eq!((meter.waste().after.total(), meter.waste().steps_after), (0, 0));
    assert!(meter.abandon(Phase::Decode));
    assert!(!meter.abandon(Phase::Queued), "the first observation counts");
    meter.step(decode());
    let w = meter.waste();
    assert_eq!(w.after, PhaseTokens { before_first_token: 0, decode: 1 });
    assert_eq!((w.generated, w.delivered, w.prompt, w.prompt_after, w.steps, w.steps_after), (19, 18, 37, 0, 20, 1));
    assert!(!w.is_zero_delivery());
}

// field: F-13
#[test]
fn waste_before_the_first_token_is_told_apart() {
    for phase in [Phase::Queued, Phase::Prefill, Phase::BeforeFirstToken] {
        let mut meter = WasteMeter::default();
        meter.step(chunk(512));
        meter.abandon(phase);
        meter.step(chunk(512));
        meter.step(StepWork { generated: 1, prompt: 100, overrun: 0 });
        let w = meter.waste();
        assert_eq!(w.after, PhaseTokens { before_first_token: 1, decode: 0 }, "{phase}");
        assert_eq!((w.prompt, w.prompt_after, w.steps_after), (1124, 612, 2));
        assert!(w.is_zero_delivery());
    }
}

// contract: C-12
#[test]
fn overrun_is_counted_apart_from_waste() {
    let mut meter = WasteMeter::default();
    meter.step(StepWork { generated: 3, prompt: 0, overrun: 2 });
    meter.abandon(Phase::Decode);
    meter.step(StepWork { generated: 3, prompt: 0, overrun: 2 });
    let w = meter.waste();
    assert_eq!((w.generated, w.overrun, w.after.decode), (6, 4, 1));
    meter.step(StepWork { generated: 1, prompt: 0, overrun: 9 });
    assert_eq!(meter.waste().overrun, 5, "no more overrun than tokens");
}

#[test]
fn a_run_that_was_never_computed_is_no_zero_delivery_run() {
    let mut totals = Totals::default();
    totals.add(&Waste::default());
    assert_eq!((totals.runs, totals.zero_delivery_runs, totals.ratio()), (1, 0, None));
}

#[test]
fn zero_delivery_runs_stand_apart_and_a_window_is_a_difference() {
    let mut totals = Totals::default();
    totals.add(&Waste { generated: 90, delivered: 90, steps: 91, prompt: 7, ..Waste::default() });
    let before = totals;
    let after = PhaseTokens { before_first_token: 0, decode: 5 };
    totals.add(&Waste { generated: 10, steps: 11, prompt: 64, after, steps_after: 5, ..Waste::default() });
    assert_eq!((totals.zero_delivery_runs, totals.zero_delivery_generated, totals.zero_delivery_prompt), (1, 10, 64));
    assert_eq!(totals.ratio(), Some(0.05));
    let window = totals.since(&before);
    assert_eq!((window.runs, window.sum.generated, window.sum.steps_after), (1, 10, 5));
    assert_eq!(window.ratio(), Some(0.5));
    assert_eq!(totals.since(&totals), Totals::default());
}

fn work() -> impl Strategy<Value = StepWork> {
    (0u32..5, 0u32..600, 0u32..5).prop_map(|(generated, prompt, overrun)| StepWork { generated, prompt, overrun })
}

proptest! {
    #[test]
    fn the_parts_never_exceed_the_whole(before in prop::collection::vec(work(), 0..20), after in prop::collection::vec(work(), 0..20)) {
        let mut meter = WasteMeter::default();
        before.iter().for_each(|w| meter.step(*w));
        let old = meter.waste();
        prop_assert_eq!((old.after.total(), old.prompt_after, old.steps_after), (0, 0, 0));
        meter.abandon(Phase::Decode);
        after.iter().for_each(|w| meter.step(*w));
        let w = meter.waste();
        prop_assert!(w.after.total() + w.overrun <= w.generated);
        prop_assert_eq!(w.steps_after, after.len() as u64);
        prop_assert_eq!(w.steps, (before.len() + after.len()) as u64);
        prop_assert_eq!(w.prompt_after, after.iter().map(|w| u64::from(w.prompt)).sum::<u64>());
        let mut totals = Totals::default();
        totals.add(&w);
        prop_assert!(totals.ratio().is_none_or(|r| (0.0..=1.0).contains(&r)));
    }
}
