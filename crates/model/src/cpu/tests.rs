//! The device on a tiny model: order, fences, slots that end, rows that drop.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use engine::device::{Device, DeviceError, Flag, Row, RowDone, RowTokens, Slot, SlotStart, StepDone, StepPlan, SubmitError};
use kv::BlockId;
use lifecycle::StepId;
use lifecycle::params::Sampling;

use super::{CpuDevice, CpuOptions, IN_FLIGHT, guarded};
use crate::arch::llama::{Llama, Precision};
use crate::gguf::Gguf;
use crate::tiny::{TinySpec, bytes};

fn device() -> CpuDevice {
    let gguf = Gguf::from_bytes(bytes(&TinySpec::default())).unwrap();
    let model = Arc::new(Llama::load(&gguf, Precision::Fast).unwrap());
    CpuDevice::new(model, CpuOptions { threads: 1, blocks_total: 64, block_tokens: 16, slots: 4, isa: None }).unwrap()
}

fn start(tokens: &[u32], stop_tokens: &[u32]) -> Option<Arc<SlotStart>> {
    let sampling = Arc::new(Sampling { temperature: 0.0, ..Sampling::default() });
    Some(Arc::new(SlotStart { tokens: tokens.to_vec(), prompt_len: tokens.len(), sampling, sequence: 0, stop_tokens: stop_tokens.into() }))
}

fn row(slot: u32, start: Option<Arc<SlotStart>>, position: u32, tokens: RowTokens) -> Row {
    let table = (0..4).map(|b| BlockId(slot * 8 + b)).collect();
    Row { slot: Slot(slot), start, position, tokens, table, sample: true, flag: Flag::default() }
}

/// Submits steps in order, never more than fit, and returns their results.
fn run(device: &mut CpuDevice, plans: Vec<Vec<Row>>) -> Vec<Result<Vec<RowDone>, DeviceError>> {
    let (sender, fences): (_, Receiver<StepDone>) = channel();
    let (mut out, mut in_flight) = (Vec::new(), 0);
    let get = || fences.recv_timeout(Duration::from_secs(60)).unwrap();
    for (id, rows) in plans.into_iter().enumerate() {
        if in_flight == IN_FLIGHT {
            out.push(get());
            in_flight -= 1;
        }
        let sender = sender.clone();
        device.submit(StepPlan { id: StepId(id as u64), rows }, Box::new(move |done| sender.send(done).unwrap())).unwrap();
        in_flight += 1;
    }
    (0..in_flight).for_each(|_| out.push(get()));
    assert!(out.iter().enumerate().all(|(i, done)| done.id == StepId(i as u64)), "fences come in order");
    out.into_iter().map(|done| done.result).collect()
}

fn token(done: &Result<Vec<RowDone>, DeviceError>, row: usize) -> u32 {
    match &done.as_ref().unwrap()[row] {
        RowDone::Computed { sampled: Some(sampled), .. } => sampled.token,
        other => panic!("no token: {other:?}"),
    }
}

const PROMPT: [u32; 5] = [40, 50, 60, 70, 80];

#[test]
fn steps_queued_ahead_go_on_from_the_chosen_token() {
    let mut device = device();
    let mut plans = vec![vec![row(0, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 })]];
    plans.extend((5..15).map(|p| vec![row(0, None, p, RowTokens::Last)]));
    let done = run(&mut device, plans);
    let tokens: Vec<u32> = done.iter().map(|d| token(d, 0)).collect();
    // Told to compute the same tokens as known ones, it chooses the same next token.
    let all = [&PROMPT[..], &tokens[..10]].concat();
    let again = run(&mut device, vec![vec![row(1, start(&all, &[]), 0, RowTokens::Known { count: 15 })]]);
    assert_eq!(token(&again[0], 0), tokens[10]);
}

// contract: C-12
#[test]
fn a_flagged_row_drops_before_its_first_layer_and_so_does_what_is_queued_behind_it() {
    let mut device = device();
    let dropped = row(0, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 });
    dropped.flag.set();
    let neighbour = |p: u32, s, t| row(1, s, p, t);
    // The row behind it has no flag of its own: its token was never chosen.
    let done = run(
        &mut device,
        vec![
            vec![dropped, neighbour(0, start(&PROMPT, &[]), RowTokens::Known { count: 5 })],
            vec![row(0, None, 5, RowTokens::Last), neighbour(5, None, RowTokens::Last)],
            vec![row(0, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 })],
        ],
    );
    assert_eq!(done[0].as_ref().unwrap()[0], RowDone::Dropped { layers: 0 });
    assert_eq!(done[1].as_ref().unwrap()[0], RowDone::Dropped { layers: 0 });
    assert_eq!(token(&done[2], 0), token(&done[0], 1), "started anew it computes again");
    token(&done[1], 1);
}

#[test]
fn after_a_stop_token_later_rows_drop_by_themselves() {
    let mut device = device();
    let first = token(&run(&mut device, vec![vec![row(0, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 })]])[0], 0);
    let done = run(
        &mut device,
        vec![
            vec![row(0, start(&PROMPT, &[first]), 0, RowTokens::Known { count: 5 })],
            vec![row(0, None, 5, RowTokens::Last)],
            vec![row(0, None, 6, RowTokens::Last)],
        ],
    );
    assert_eq!(token(&done[0], 0), first);
    for later in &done[1..] {
        assert_eq!(later.as_ref().unwrap()[0], RowDone::Dropped { layers: 0 });
    }
}

#[test]
fn a_step_that_does_not_fit_fails_alone() {
    let mut device = device();
    let good = || vec![row(0, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 })];
    let mut short = row(1, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 });
    short.table = Arc::new([]);
    let mut foreign = row(1, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 });
    foreign.table = Arc::new([BlockId(64)]);
    let mut shared = row(1, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 });
    shared.table = Arc::new([BlockId(0)]);
    let bad = [
        vec![row(3, None, 0, RowTokens::Last)],
        vec![row(9, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 })],
        vec![row(1, start(&PROMPT, &[]), 0, RowTokens::Known { count: 6 })],
        vec![row(1, start(&[40, 1_000_000], &[]), 0, RowTokens::Known { count: 2 })],
        vec![row(1, start(&PROMPT, &[]), 0, RowTokens::Last)],
        vec![short],
        vec![foreign],
        [good(), good()].concat(),
        [good(), vec![shared]].concat(),
    ];
    let count = bad.len();
    let plans = bad.into_iter().flat_map(|b| [b, good()]).collect();
    let done = run(&mut device, plans);
    for pair in 0..count {
        assert!(matches!(done[2 * pair], Err(DeviceError::Step(_))), "step {pair}: {:?}", done[2 * pair]);
        assert_eq!(token(&done[2 * pair + 1], 0), token(&done[1], 0));
    }
}

#[test]
fn what_is_queued_behind_a_failed_step_drops() {
    let mut device = device();
    let mut bad = row(0, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 });
    bad.table = Arc::new([]);
    let done = run(&mut device, vec![vec![bad], vec![row(0, None, 5, RowTokens::Last)]]);
    assert!(done[0].is_err());
    assert_eq!(done[1].as_ref().unwrap()[0], RowDone::Dropped { layers: 0 });
}

#[test]
fn a_panic_is_an_error_of_the_step() {
    let error = guarded(|| panic!("index out of range")).unwrap_err();
    assert_eq!(error, DeviceError::Step("panic: index out of range".into()));
}

#[test]
fn the_queue_is_bounded_and_gives_the_plan_back() {
    let mut device = device();
    let (sender, fences) = channel();
    let (hold, held) = channel::<()>();
    let plan = |id| StepPlan { id: StepId(id), rows: vec![row(0, start(&PROMPT, &[]), 0, RowTokens::Known { count: 5 })] };
    // The first sink holds the device's thread, after its step has left the count.
    let first = sender.clone();
    let hold_on = move |done: StepDone| {
        first.send(done).unwrap();
        held.recv().unwrap();
    };
    device.submit(plan(0), Box::new(hold_on)).unwrap();
    fences.recv_timeout(Duration::from_secs(60)).unwrap();
    for id in 1..=u64::from(IN_FLIGHT) {
        let sender = sender.clone();
        device.submit(plan(id), Box::new(move |done| sender.send(done).unwrap())).unwrap();
    }
    let (error, back) = device.submit(plan(9), Box::new(|_| ())).unwrap_err();
    assert_eq!((error, back.id), (SubmitError::Full, StepId(9)));
    hold.send(()).unwrap();
    drop(device);
    assert_eq!(fences.try_iter().map(|d| d.id.0).collect::<Vec<_>>(), [1, 2], "dropping the device completes its fences");
}
