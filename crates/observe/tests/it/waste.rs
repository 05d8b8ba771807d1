//! The two views of waste and the cost of an answer, over windows and since the beginning.
// contract: C-12

use lifecycle::event::{Event, Record};
use lifecycle::{Cause, StepId, Time};
use observe::waste::{EndedView, RatioView, ZeroDeliveryView};
use observe::{Journal, Prices};

use crate::hands;
use crate::metrics::parse;
use crate::story::{accepted, computed, key, outcome_set, page, queued};

fn whole(journal: &Journal, event: Event) {
    journal.record_at(Record { at: Time(hands::us()), run: None, attempt: 0, event });
}

/// A run of now that computed a prompt of 10 and these tokens, of which so many were delivered, then after a disconnect so many more.
fn run(journal: &Journal, id: &str, (before, delivered, after): (u32, u32, u32), cause: Cause) {
    let at = |event| crate::story::at(journal, &key(id), hands::us(), event);
    at(accepted());
    at(queued(10));
    at(computed(1, 10, before, 0));
    if delivered > 0 {
        at(Event::Delivered { tokens: delivered });
    }
    if after > 0 {
        at(Event::AbandonmentObserved { cause });
        at(computed(2, 0, 0, after));
    }
    at(outcome_set(cause));
    at(Event::Settled { proven: true });
}

#[test]
fn a_period_has_numerator_and_denominator_of_the_same_interval() {
    let journal = hands::journal();
    run(&journal, "early", (90, 90, 10), Cause::ClientClosed);
    hands::set(299);
    run(&journal, "still", (50, 50, 0), Cause::Stop);
    hands::set(300);
    run(&journal, "next", (40, 40, 0), Cause::Stop);
    hands::set(640);
    let view = journal.waste(&Prices::default());
    let counts = |r: &RatioView| (r.tokens, r.after_disconnect, r.ratio);
    // The window ends on the grid: from 330 s, and from 30 s.
    assert_eq!(view.windows.iter().map(counts).collect::<Vec<_>>(), [(0, 0, None), (90, 0, Some(0.0))], "a third would begin before 0");
    assert_eq!(counts(&view.total.ratio), (190, 10, Some(10.0 / 190.0)));
    assert_eq!(counts(&view.window.ratio), (0, 0, None));
    hands::set(599);
    let view = journal.waste(&Prices::default());
    assert_eq!(counts(&view.window.ratio), (90, 0, Some(0.0)), "the period under way counts from 285 s");
    hands::set(314);
    assert_eq!(counts(&journal.waste(&Prices::default()).window.ratio), (190, 10, Some(10.0 / 190.0)));
    assert_eq!(view.object, "waste");
}

#[test]
fn what_lies_further_back_than_it_remembers_is_in_no_window() {
    let journal = hands::journal();
    for second in 0..4000 {
        hands::set(second);
        run(&journal, &format!("r{second}"), (1, 1, 0), Cause::Stop);
    }
    let view = journal.waste(&Prices::default());
    assert_eq!(view.windows.iter().map(|w| w.tokens).collect::<Vec<_>>(), [300, 300, 300]);
    // From 3,690 s, the period in which the window began.
    assert_eq!((view.window.ratio.tokens, view.total.ratio.tokens), (310, 4000));
}

#[test]
fn cancelled_runs_show_what_was_made_beside_what_was_delivered_and_those_apart_that_delivered_nothing() {
    let journal = hands::journal();
    run(&journal, "read", (30, 20, 1), Cause::ClientClosed);
    run(&journal, "unread", (7, 0, 2), Cause::ClientReset);
    run(&journal, "late", (5, 4, 0), Cause::GatewayDeadline);
    run(&journal, "well", (9, 9, 0), Cause::Stop);
    let total = journal.waste(&Prices::default()).total;
    let zero = ZeroDeliveryView { runs: 1, generated: 9, prompt_tokens: 10 };
    assert_eq!(total.cancelled, EndedView { runs: 2, generated: 40, delivered: 20, zero_delivery: zero });
    let none = ZeroDeliveryView { runs: 0, generated: 0, prompt_tokens: 0 };
    assert_eq!(total.expired, EndedView { runs: 1, generated: 5, delivered: 4, zero_delivery: none });
    // The page and the view are one count.
    let samples = parse(&page(&journal));
    assert_eq!(samples["kvit_settled_tokens_generated_total{outcome=\"cancelled\"}"], 40.0);
    assert_eq!(samples["kvit_zero_delivery_tokens_generated_total{outcome=\"cancelled\"}"], 9.0);
    assert_eq!(samples["kvit_tokens_generated_total"], total.ratio.tokens as f64);
}

#[test]
fn an_answer_bears_the_cost_of_what_nobody_got() {
    let journal = hands::journal();
    run(&journal, "unread", (80, 0, 0), Cause::ClientReset);
    let prices = Prices { device_hour: 7.2, million_tokens: 1000.0 };
    let cost = journal.waste(&prices).total.cost;
    assert_eq!((cost.device_seconds, cost.tokens), (None, 90), "the device is elsewhere");
    assert!(cost.money.is_some_and(|m| (m - 0.09).abs() < 1e-12), "by tokens: {cost:?}");
    assert_eq!(cost.per_answer.money, None, "there is no answer");
    run(&journal, "a", (20, 20, 0), Cause::Stop);
    run(&journal, "b", (30, 30, 0), Cause::Length);
    whole(&journal, Event::StepDone { step: StepId(1), rows: 1, dropped: 0 });
    whole(&journal, Event::DeviceBusy { span: std::time::Duration::from_secs(10) });
    let cost = journal.waste(&prices).total.cost;
    assert_eq!((cost.completed, cost.device_seconds, cost.tokens), (2, Some(10.0), 160));
    let each = cost.per_answer;
    assert_eq!((each.device_seconds, each.tokens), (Some(5.0), Some(80.0)));
    assert!(each.money.is_some_and(|m| (m - 0.01).abs() < 1e-12), "{each:?}");
    assert_eq!(journal.waste(&Prices::default()).total.cost.money, None, "nobody named a price");
}
