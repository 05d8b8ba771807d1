//! A device that goes for good: everything ends, the gateway is told before the first end, and what comes later fails at once.

use std::sync::Arc;

use engine::device::{Device, DeviceError, DeviceLimits, DoneSink, RowDone, Sampled, StepDone, StepPlan, SubmitError};
use lifecycle::Cause;
use lifecycle::message::Prompt;
use model::gguf::Gguf;
use worker::Text;

use crate::harness::{Rig, Sizes, greedy, tiny};

/// How it goes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// A step comes back with the news.
    InAStep,
    /// It takes no more steps.
    AtASubmit,
}

/// Chooses the same token for ever, then is gone.
struct Mortal {
    way: Way,
    steps_left: u32,
}

impl Device for Mortal {
    fn limits(&self) -> DeviceLimits {
        DeviceLimits { blocks_total: 64, block_tokens: 16, block_bytes: 64, slots: 8, context: 512, vocab: 256, in_flight: 1 }
    }

    fn submit(&mut self, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)> {
        let why = || "it fell off the bus".to_owned();
        let token = |sample: bool| sample.then(|| Sampled { token: 7, logprob: None, top: Vec::new() });
        let computed = |sample| RowDone::Computed { sampled: token(sample), late: false };
        match (self.steps_left, self.way) {
            (0, Way::AtASubmit) => return Err((SubmitError::Lost(why()), plan)),
            (0, Way::InAStep) => done(StepDone { id: plan.id, result: Err(DeviceError::Lost(why())) }),
            _ => {
                self.steps_left -= 1;
                done(StepDone { id: plan.id, result: Ok(plan.rows.iter().map(|row| computed(row.sample)).collect()) });
            }
        }
        Ok(())
    }
}

// contract: C-6, C-15, C-20
#[test]
fn a_lost_device_is_said_once_and_before_the_ends_and_nothing_of_any_run_is_left() {
    let text = Arc::new(Text::load(&Gguf::open(&tiny()).expect("the model can be read")).expect("its tokenizer is supported"));
    for way in [Way::InAStep, Way::AtASubmit] {
        let mut rig = Rig::over(Box::new(Mortal { way, steps_left: 20 }), text.clone(), Sizes::default());
        assert_eq!(rig.snapshot().device_lost, None);
        for name in ["a", "b"] {
            rig.submit(name, Prompt::Tokens(vec![1, 2, 3]), greedy(400));
        }
        // Looked at after each message: when the first end is there, the news is, too.
        rig.until("an end", |rig| rig.seen.values().any(|s| s.outcome.is_some()));
        assert_eq!(rig.device_lost, ["it fell off the bus"], "{way:?}");
        rig.submit("late", Prompt::Tokens(vec![1]), greedy(4));
        for name in ["a", "b", "late"] {
            let seen = rig.released(name);
            let outcome = seen.outcome.expect("released only after its end");
            assert_eq!((outcome.cause, seen.released), (Cause::DeviceError, 1), "{way:?} {name}");
            assert!(outcome.reason.is_some_and(|why| why.contains("it fell off the bus")), "{way:?} {name}");
        }
        assert_eq!(rig.tokens("late"), 0);
        let cut = rig.snapshot();
        assert_eq!((cut.device_lost.as_deref(), rig.device_lost.len()), (Some("it fell off the bus"), 1));
        // What was in the step that never came back can never be handed out again.
        assert_eq!((cut.quarantined > 0, cut.active, cut.draining), (true, 0, 0), "{way:?}");
        assert!(cut.is_conserved() && cut.held.kinds().iter().all(|(_, n)| *n == 0), "{way:?} {:?}", cut.held);
        assert_eq!(rig.journal.defects(), 0);
        rig.stop();
    }
}
