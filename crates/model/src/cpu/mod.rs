//! `CpuDevice`: the engine's `Device` on CPU threads.
//!
//! A thread of its own takes steps from a short queue in their order and sends one fence message a step. The tokens of each sequence stay
//! with the device, so that a step can be queued before the one that chooses its tokens has run.
//!
//! It never says [`DeviceError::Hung`]: that is for a device whose fences may stay open for ever. A CPU step is a bounded number of layers over
//! bounded rows, which waits for nothing but this process's own threads; so it always ends, in a result or in a panic that is caught, and its
//! fence with it. Nor does it report a step as lost: it is lost only when its thread is gone, and then takes no more plans.
//!
//! Invariant: for each plan taken the sink is called exactly once, after the step's last read or write of a block; a step that panics
//! fails alone.

mod slots;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use engine::device::{Device, DeviceError, DeviceLimits, DoneSink, RowDone, StepDone, StepPlan, SubmitError};

use crate::arch::forward::{Compute, Span, SpanDone};
use crate::arch::llama::Llama;
use crate::error::ModelError;
use crate::kernel::Isa;
use crate::kv_memory::KvMemory;
use slots::{Slots, Taken};

/// Steps in flight: one runs, one is queued, so that the host's work between two steps is hidden.
pub const IN_FLIGHT: u32 = 2;
/// Most slots of a device.
pub const SLOTS_MAX: u32 = 1 << 16;

/// How a device is made.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads that compute, the device's own included; at least 1.
    pub threads: usize,
    /// Blocks of the pool. Memory is taken when a block is first written.
    pub blocks_total: u32,
    /// Positions a block, a multiple of 16.
    pub block_tokens: u32,
    /// Sequences at a time, at most `SLOTS_MAX`.
    pub slots: u32,
    /// Instruction set; `None` takes the best there is.
    pub isa: Option<Isa>,
}

/// The device.
pub struct CpuDevice {
    limits: DeviceLimits,
    isa: Isa,
    queue: Option<mpsc::Sender<Job>>,
    in_flight: Arc<AtomicU32>,
    thread: Option<JoinHandle<()>>,
}

struct Job {
    plan: StepPlan,
    done: DoneSink,
}

impl CpuDevice {
    /// Reserves the pool and starts the device's threads.
    pub fn new(model: Arc<Llama>, options: CpuOptions) -> Result<CpuDevice, ModelError> {
        let memory = KvMemory::new(model.shape(), options.blocks_total as usize, options.block_tokens as usize)?;
        let compute = Compute::new(options.threads, options.isa)?;
        let slots = options.slots.min(SLOTS_MAX);
        let limits = DeviceLimits {
            blocks_total: options.blocks_total,
            block_tokens: options.block_tokens,
            block_bytes: memory.block_bytes() as u64,
            slots,
            context: model.shape().context as u32,
            vocab: model.shape().vocab as u32,
            in_flight: IN_FLIGHT,
        };
        let isa = compute.isa();
        let (queue, jobs) = mpsc::channel::<Job>();
        let in_flight = Arc::new(AtomicU32::new(0));
        let running = Arc::clone(&in_flight);
        let mut worker = Worker { model, compute, memory, slots: Slots::new(slots) };
        let thread = std::thread::Builder::new().name("kvit-device".into()).spawn(move || {
            while let Ok(Job { plan, done }) = jobs.recv() {
                let result = worker.step(&plan);
                // Before the fence message: whoever gets it may submit at once.
                running.fetch_sub(1, Ordering::AcqRel);
                done(StepDone { id: plan.id, result });
            }
        })?;
        Ok(CpuDevice { limits, isa, queue: Some(queue), in_flight, thread: Some(thread) })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl Device for CpuDevice {
    fn limits(&self) -> DeviceLimits {
        self.limits
    }

    fn submit(&mut self, plan: StepPlan, done: DoneSink) -> Result<(), (SubmitError, StepPlan)> {
        const LOST: &str = "its thread has ended";
        let Some(queue) = &self.queue else { return Err((SubmitError::Lost(LOST.into()), plan)) };
        // Only this method adds, and it has the device to itself.
        if self.in_flight.load(Ordering::Acquire) >= IN_FLIGHT {
            return Err((SubmitError::Full, plan));
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        queue.send(Job { plan, done }).map_err(|mpsc::SendError(job)| (SubmitError::Lost(LOST.into()), job.plan))
    }
}

impl Drop for CpuDevice {
    /// Steps in flight still run, so that each fence completes.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // It ends by a panic of a sink alone; that is the sink's owner's to report.
            let _ = thread.join();
        }
    }
}

/// What the device's thread owns.
struct Worker {
    model: Arc<Llama>,
    compute: Compute,
    memory: KvMemory,
    slots: Slots,
}

impl Worker {
    fn step(&mut self, plan: &StepPlan) -> Result<Vec<RowDone>, DeviceError> {
        let result = guarded(|| self.run(plan));
        if result.is_err() {
            // Rows of these sequences that are queued already must not go on from what this step did not write.
            plan.rows.iter().for_each(|row| self.slots.broken(row.slot));
        }
        result
    }

    fn run(&mut self, plan: &StepPlan) -> Result<Vec<RowDone>, DeviceError> {
        let taken = self.slots.take(&plan.rows).map_err(DeviceError::Step)?;
        let checks: Vec<_> = plan.rows.iter().map(|row| move || row.is_dropped()).collect();
        let mut spans = Vec::with_capacity(plan.rows.len());
        for ((row, taken), check) in plan.rows.iter().zip(&taken).zip(&checks) {
            if let Taken::Tokens(range) = taken {
                let tokens = &self.slots.tokens(row.slot)[range.clone()];
                spans.push(Span { tokens, position: row.position as usize, table: &row.table, logits: row.sample, is_dropped: check });
            }
        }
        let done = self.model.step(&mut self.compute, &mut self.memory, &spans).map_err(|e| DeviceError::Step(e.to_string()))?;
        let mut done = done.into_iter();
        let rows = plan.rows.iter().zip(taken).map(|(row, taken)| {
            let span = match taken {
                Taken::Nothing => None,
                Taken::Tokens(_) => done.next(),
            };
            match span.unwrap_or(SpanDone::Dropped { layers: 0 }) {
                SpanDone::Dropped { layers } => {
                    self.slots.broken(row.slot);
                    RowDone::Dropped { layers }
                }
                SpanDone::Computed { logits } => {
                    let sampled = logits.and_then(|index| self.slots.sample(row.slot, self.compute.logits(index)));
                    RowDone::Computed { sampled, late: row.is_dropped() }
                }
            }
        });
        Ok(rows.collect())
    }
}

/// Runs a step; a panic becomes its error. The step no longer runs then: the thread pool waits for every chunk before it unwinds.
fn guarded(step: impl FnOnce() -> Result<Vec<RowDone>, DeviceError>) -> Result<Vec<RowDone>, DeviceError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|panic| Err(DeviceError::Step(message(&*panic))))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panic: {}", text.unwrap_or("of unknown kind"))
}
