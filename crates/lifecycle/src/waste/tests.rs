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
fn what_somebody_else_counted_is_added_and_never_less_than_what_was_counted_here() {
    let after = |after, steps_after| Reported { after, steps_after, prompt_after: 7, ..Reported::default() };
    let mut meter = WasteMeter::default();
    meter.step(decode());
    meter.reported((5, 4), &after(3, 2));
    let w = meter.waste();
    assert_eq!((w.generated, w.steps, w.after.total(), w.prompt_after), (6, 5, 0, 0), "nobody had left");
    meter.abandon(Phase::Decode);
    meter.step(decode());
    meter.reported((2, 0), &after(3, 0));
    let w = meter.waste();
    assert_eq!((w.generated, w.after.of(Phase::Decode), w.steps_after.total()), (9, 3, 1));
    assert_eq!((w.prompt, w.prompt_after), (7, 7));
    meter.reported((0, 0), &after(2, 1));
    assert_eq!(meter.waste(), w, "it falls by no later word");
}

// contract: C-12
#[test]
fn work_before_abandonment_is_no_waste_and_work_after_it_is() {
    let mut meter = WasteMeter::default();
    meter.step(chunk(37));
    (0..18).for_each(|_| meter.step(decode()));
    meter.deliver(18);
    assert_eq!((meter.waste().after.total(), meter.waste().steps_after.total()), (0, 0));
    assert!(meter.abandon(Phase::Decode));
    assert!(!meter.abandon(Phase::Queued), "the first observation counts");
    meter.step(decode());
    let w = meter.waste();
    assert_eq!((w.after.total(), w.after.of(Phase::Decode), w.after.before_first_token()), (1, 1, 0));
    assert_eq!((w.steps_after.total(), w.steps_after.of(Phase::Decode)), (1, 1));
    assert_eq!((w.generated, w.delivered, w.prompt, w.prompt_after, w.steps), (19, 18, 37, 0, 20));
    assert!(!w.is_zero_delivery());
}

// contract: C-12, C-25
#[test]
fn what_is_computed_in_a_grace_is_waste_only_if_nobody_comes_back() {
    let held = || {
        let mut meter = WasteMeter::default();
        meter.step(chunk(37));
        assert!(meter.abandon(Phase::Decode) && !meter.holds());
        let mut gone = meter;
        assert!(!gone.give_back(), "nobody said that somebody may come back");
        meter.hold();
        meter.step(decode());
        assert!(meter.holds());
        meter
    };
    let mut back = held();
    assert!(back.give_back() && !back.holds() && back.abandoned().is_none());
    assert!(!back.give_back(), "once");
    let mut out = held();
    out.count_held();
    assert!(!out.holds() && out.abandoned() == Some(Phase::Decode));
    assert!(!out.give_back() && out.abandoned() == Some(Phase::Decode), "it is counted");
    assert_eq!((out.waste().after.total(), back.waste().after.total()), (1, 0));
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
        assert_eq!((w.after.of(phase), w.after.before_first_token(), w.after.total()), (1, 1, 1), "{phase}");
        assert_eq!((w.steps_after.of(phase), w.steps_after.before_first_token(), w.steps_after.total()), (2, 2, 2), "{phase}");
        assert_eq!((w.prompt, w.prompt_after), (1124, 612));
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
    assert_eq!((w.generated, w.overrun, w.after.of(Phase::Decode)), (6, 4, 1));
    meter.step(StepWork { generated: 1, prompt: 0, overrun: 9 });
    assert_eq!(meter.waste().overrun, 5, "no more overrun than tokens");
}

#[test]
fn a_run_that_was_never_computed_is_no_zero_delivery_run() {
    let mut totals = Totals::default();
    totals.add(&Waste::default());
    assert_eq!(totals, Totals::default());
}

#[test]
fn zero_delivery_runs_stand_apart_and_the_sum_has_them_too() {
    let mut totals = Totals::default();
    let delivered = Waste { generated: 90, delivered: 90, steps: 91, prompt: 7, ..Waste::default() };
    totals.add(&delivered);
    let mut meter = WasteMeter::default();
    meter.step(chunk(64));
    meter.abandon(Phase::Prefill);
    (0..10).for_each(|_| meter.step(decode()));
    totals.add(&meter.waste());
    assert_eq!((totals.zero_delivery_runs, totals.zero_delivery), (1, meter.waste()));
    assert_eq!((totals.sum.generated, totals.sum.delivered, totals.sum.prompt, totals.sum.steps), (100, 90, 71, 102));
    assert_eq!((totals.sum.after.of(Phase::Prefill), totals.sum.steps_after.of(Phase::Prefill)), (10, 10));
    assert_eq!(totals.sum.since(&delivered), meter.waste(), "a window is a difference");
}

fn work() -> impl Strategy<Value = StepWork> {
    (0u32..5, 0u32..600, 0u32..5).prop_map(|(generated, prompt, overrun)| StepWork { generated, prompt, overrun })
}

proptest! {
    #[test]
    fn the_parts_never_exceed_the_whole(
        before in prop::collection::vec(work(), 0..20),
        after in prop::collection::vec(work(), 0..20),
        phase in prop::sample::select(Phase::ALL),
    ) {
        let mut meter = WasteMeter::default();
        before.iter().for_each(|w| meter.step(*w));
        let old = meter.waste();
        prop_assert_eq!((old.after.total(), old.prompt_after, old.steps_after.total()), (0, 0, 0));
        meter.abandon(phase);
        after.iter().for_each(|w| meter.step(*w));
        let w = meter.waste();
        prop_assert!(w.after.total() + w.overrun <= w.generated);
        prop_assert_eq!((w.after.of(phase), w.steps_after.of(phase)), (w.after.total(), w.steps_after.total()));
        prop_assert_eq!(w.steps_after.total(), after.len() as u64);
        prop_assert_eq!(w.steps, (before.len() + after.len()) as u64);
        prop_assert_eq!(w.prompt_after, after.iter().map(|w| u64::from(w.prompt)).sum::<u64>());
        let mut sum = old;
        sum.add(&w.since(&old));
        prop_assert_eq!(sum, w);
    }
}
