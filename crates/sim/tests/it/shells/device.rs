//! A simulated device on the simulation's clock: a step takes its time, and a token is made from all tokens before it.
//!
//! Invariant: steps end in the order of their submission; every token that is chosen is counted, by run and position.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use engine::{Device, DeviceLimits, DoneSink, Row, RowDone, RowTokens, Sampled, StepDone, StepPlan, SubmitError};
use tokio::time::Instant;

use super::net::mix;

/// How long a step takes.
pub const STEP: Duration = Duration::from_millis(20);
const IN_FLIGHT: u32 = 2;

/// How often each token was chosen: by run, and by its position in the run's sequence.
pub type Chosen = Arc<Mutex<BTreeMap<(u32, usize), u32>>>;

fn next(tokens: &[u32]) -> u32 {
    // Letters only: what their bytes are is nobody's business here.
    3 + b'a' as u32 + (tokens.iter().fold(7, |fold, token| mix(fold ^ u64::from(*token))) % 26) as u32
}

/// What a run generates when nothing disturbs it.
pub fn isolated(prompt: &[u32], cap: usize) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    for _ in 0..cap {
        tokens.push(next(&tokens));
    }
    tokens.split_off(prompt.len())
}

#[derive(Clone, Default)]
struct Slot {
    tokens: Vec<u32>,
    /// A row of it was dropped, so what follows is not known.
    broken: bool,
}

/// The device. The first token of a prompt names its run.
pub struct SimulatedDevice {
    slots: Arc<Mutex<Vec<Slot>>>,
    free_at: Instant,
    queued: Arc<AtomicU32>,
    chosen: Chosen,
}

impl SimulatedDevice {
    pub fn new(chosen: Chosen) -> SimulatedDevice {
        let slots = vec![Slot::default(); 16];
        SimulatedDevice { slots: Arc::new(Mutex::new(slots)), free_at: Instant::now(), queued: Arc::default(), chosen }
    }
}

impl Device for SimulatedDevice {
    fn limits(&self) -> DeviceLimits {
        let vocab = model::tiny::VOCAB;
        DeviceLimits { blocks_total: 256, block_tokens: 16, block_bytes: 64, slots: 16, context: 2048, vocab, in_flight: IN_FLIGHT }
    }

    fn submit(&mut self, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)> {
        if self.queued.load(Ordering::Acquire) >= IN_FLIGHT {
            return Err((SubmitError::Full, plan));
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        self.free_at = self.free_at.max(Instant::now()) + STEP;
        let (until, slots, queued, chosen) = (self.free_at, self.slots.clone(), self.queued.clone(), self.chosen.clone());
        tokio::spawn(async move {
            tokio::time::sleep_until(until).await;
            let rows = {
                let (mut slots, mut chosen) = (slots.lock().expect("no panic"), chosen.lock().expect("no panic"));
                plan.rows.iter().map(|row| run(row, &mut slots[row.slot.0 as usize], &mut chosen)).collect()
            };
            queued.fetch_sub(1, Ordering::AcqRel);
            done(StepDone { id: plan.id, result: Ok(rows) });
        });
        Ok(())
    }
}

fn run(row: &Row, slot: &mut Slot, chosen: &mut BTreeMap<(u32, usize), u32>) -> RowDone {
    if let Some(start) = &row.start {
        *slot = Slot { tokens: start.tokens.clone(), broken: false };
    }
    if row.is_dropped() || (slot.broken && row.tokens == RowTokens::Last) {
        slot.broken = true;
        return RowDone::Dropped { layers: 0 };
    }
    let end = (row.position + row.count()) as usize;
    if !row.sample {
        return RowDone::Computed { sampled: None, late: false };
    }
    slot.tokens.truncate(end);
    let token = next(&slot.tokens);
    *chosen.entry((slot.tokens[0], end)).or_default() += 1;
    slot.tokens.push(token);
    RowDone::Computed { sampled: Some(Sampled { token, logprob: None, top: Vec::new() }), late: false }
}
