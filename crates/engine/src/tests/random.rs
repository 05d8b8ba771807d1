//! Random schedules: shared prefixes, cancels, stops, deadlines, lost sessions, failed steps, a pool that is too small. Survivors' tokens are those of an
//! isolated run, every run is released once, and the account comes back to where it began.
// contract: C-10, C-13, C-14, C-15, C-16, C-18, C-19, C-20

use lifecycle::{Cause, Time};
use proptest::prelude::*;

use super::simulated::{World, id, isolated};
use crate::device::DeviceError;
use crate::{Input, Submission};

/// One thing that a schedule does.
#[derive(Clone, Debug)]
enum Act {
    /// Submit a run: which family of prompts, how long, how many tokens, how many sequences, a priority.
    Submit { family: u32, len: usize, cap: u32, n: u32, priority: i32, deadline: Option<u64> },
    /// Submit, and leave it in the tokeniser.
    SubmitSlow { family: u32 },
    /// End the k-th run with a cause.
    Cancel { k: usize, cause: usize },
    /// Cancel the k-th run while a step is running.
    CancelMidStep { k: usize },
    /// Say that a stop string was found in the k-th run's first sequence.
    Stop { k: usize },
    /// The session of the k-th run's gateway is lost.
    Suspend { k: usize },
    /// A session attaches to the k-th run.
    Attach { k: usize },
    /// Finish one step.
    Step,
    /// One step fails and is over.
    Fail,
    /// Let time pass.
    Tick { by: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    let submit = (0u32..3, 1usize..40, 1u32..14, 1u32..4, -1i32..2, prop::option::weighted(0.1, 5u64..400))
        .prop_map(|(family, len, cap, n, priority, deadline)| Act::Submit { family, len, cap, n, priority, deadline });
    prop_oneof![
        6 => submit,
        1 => (0u32..3).prop_map(|family| Act::SubmitSlow { family }),
        3 => (0usize..40, 0usize..4).prop_map(|(k, cause)| Act::Cancel { k, cause }),
        3 => (0usize..40).prop_map(|k| Act::CancelMidStep { k }),
        1 => (0usize..40).prop_map(|k| Act::Stop { k }),
        3 => (0usize..20).prop_map(|k| Act::Suspend { k }),
        2 => (0usize..20).prop_map(|k| Act::Attach { k }),
        20 => Just(Act::Step),
        1 => Just(Act::Fail),
        1 => (1u64..60).prop_map(|by| Act::Tick { by }),
    ]
}

/// Prompts of one family share their beginning.
fn prompt(family: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (family * 31 + i * 7 + 3) % 90).collect()
}

struct Run {
    name: String,
    prompt: Vec<u32>,
    cap: usize,
    n: u32,
    disturbed: bool,
    tokenised: bool,
}

fn play(acts: &[Act], blocks: u32) -> (World, Vec<Run>) {
    let mut world = World::small(blocks);
    let mut runs: Vec<Run> = Vec::new();
    for a in acts {
        match a.clone() {
            Act::Submit { family, len, cap, n, priority, deadline } => {
                let name = format!("r{}", runs.len());
                let deadlines = deadline.map(|d| (Time(world.now.0 + d), Cause::ClientDeadline)).into_iter().collect();
                let s = Submission { n, max_tokens: Some(cap), priority, deadlines, ..world.submission(&name) };
                let prompt = prompt(family, len);
                world.start(s, &prompt);
                runs.push(Run { name, prompt, cap: cap as usize, n, disturbed: deadline.is_some(), tokenised: true });
            }
            Act::SubmitSlow { family } => {
                let name = format!("r{}", runs.len());
                let s = world.submission(&name);
                world.apply(Input::Submit(Box::new(s)));
                runs.push(Run { name, prompt: prompt(family, 9), cap: 8, n: 1, disturbed: false, tokenised: false });
            }
            Act::Cancel { k, cause } => {
                if let Some(run) = runs.get_mut(k) {
                    run.disturbed = true;
                    let causes = [Cause::ClientClosed, Cause::ClientReset, Cause::CancelRequested, Cause::ClientDeadline];
                    world.cancel(&run.name, causes[cause]);
                }
            }
            Act::CancelMidStep { k } => mid_step(&mut world, runs.get_mut(k)),
            Act::Stop { k } => {
                if let Some(run) = runs.get_mut(k) {
                    run.disturbed = true;
                    world.apply(Input::Stop { attempt: id(&run.name), sequence: 0 });
                }
            }
            Act::Suspend { k } => {
                if let Some(run) = runs.get(k) {
                    world.apply(Input::Suspend { attempt: id(&run.name) });
                }
            }
            Act::Attach { k } => {
                if let Some(run) = runs.get(k) {
                    world.apply(Input::Attach { attempt: id(&run.name) });
                }
            }
            Act::Step => {
                world.step();
            }
            Act::Fail => {
                world.fill();
                let held: Vec<_> = world.device.queue.front().into_iter().flat_map(|p| p.rows.iter().map(|r| r.slot)).collect();
                if let Some(done) = world.device.fail_step(DeviceError::Step("simulated".into())) {
                    assert!(!held.is_empty());
                    world.apply(Input::StepDone(done));
                }
            }
            Act::Tick { by } => {
                world.now = Time(world.now.0 + by);
                world.apply(Input::Tick);
            }
        }
    }
    (world, runs)
}

/// The device is in the middle of a step when the cancel arrives: the engine has applied it before the step is done.
fn mid_step(world: &mut World, run: Option<&mut Run>) {
    let Some(run) = run else { return };
    run.disturbed = true;
    world.fill();
    let mut device = std::mem::take(&mut world.device);
    let done = device.run_step(|| world.cancel(&run.name, Cause::ClientClosed));
    world.device = device;
    if let Some(done) = done {
        world.apply(Input::StepDone(done));
    }
}

fn settle(mut world: World, runs: &[Run]) -> World {
    for run in runs.iter().filter(|r| !r.tokenised) {
        world.apply(Input::Tokenised { attempt: id(&run.name), tokens: run.prompt.clone() });
    }
    for run in runs {
        world.apply(Input::Attach { attempt: id(&run.name) });
    }
    world.now = Time(world.now.0 + 1000);
    world.apply(Input::Tick);
    world.finish(4000);
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn survivors_are_bit_identical_and_everything_comes_back(acts in prop::collection::vec(act(), 1..120), blocks in 14u32..60) {
        let (world, runs) = play(&acts, blocks);
        let world = settle(world, &runs);
        world.assert_at_rest();
        for run in &runs {
            let seen = world.seen(&run.name);
            prop_assert_eq!(seen.ended.len(), 1, "{} has one outcome", run.name);
            prop_assert_eq!(seen.released.len(), 1, "{} is released once", run.name);
            prop_assert!(seen.computed_after_cancel <= run.n, "{}: {:?}", run.name, seen);
            let expected = isolated(&run.prompt, run.cap, false);
            for answer in seen.answers.values() {
                prop_assert!(expected.starts_with(answer), "{}: {:?} is no beginning of {:?}", run.name, answer, expected);
            }
            let undisturbed = !run.disturbed && seen.ended[0].kind() == lifecycle::OutcomeKind::Completed;
            if undisturbed {
                prop_assert_eq!(seen.answers.len() as u32, run.n);
                prop_assert!(seen.answers.values().all(|a| *a == expected));
            }
        }
    }
}
