//! A pool of threads that divide one piece of work into chunks, claimed through one atomic ticket.
//!
//! The submitting thread works too, and in the end waits only for chunks that another thread really claimed: a worker whose core was taken
//! away costs at most the chunk that it holds (a spin barrier would wait for it at each piece of work).
//!
//! Invariant: when `run` returns or unwinds, no thread runs a chunk of it any more; each chunk ran once.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Most threads of a pool.
pub const THREADS_MAX: usize = 256;
/// Most chunks of one piece of work.
pub const CHUNKS_MAX: usize = MASK as usize;

/// A ticket is (epoch, total, next): 24, 20 and 20 bits.
const BITS: u32 = 20;
const MASK: u64 = (1 << BITS) - 1;
/// Looks for work this often before a worker parks: about the time between two pieces of work of one step.
const SPINS_BEFORE_PARK: u32 = 20_000;
/// Looks for the others' last chunks this often before the submitter yields its core.
const SPINS_BEFORE_YIELD: u32 = 2_000;

type Work = *const (dyn Fn(usize) + Sync);

struct Shared {
    ticket: AtomicU64,
    done: AtomicUsize,
    work: UnsafeCell<Option<Work>>,
    parked: Vec<AtomicBool>,
    leave: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `work` is written only by the submitter while no chunk is claimable or running, and read only by a thread that has claimed a
// chunk; the claim's acquire and the ticket's release order the two. What it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only used between a claim and its `done`.
unsafe impl Send for Shared {}

impl Shared {
    fn claim(&self) -> Option<usize> {
        let mut ticket = self.ticket.load(Ordering::Acquire);
        loop {
            let next = ticket & MASK;
            if next >= ticket >> BITS & MASK {
                return None;
            }
            match self.ticket.compare_exchange_weak(ticket, ticket + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(next as usize),
                Err(now) => ticket = now,
            }
        }
    }

    /// Runs a claimed chunk. A panic is kept for the submitter, so that a chunk is always counted as done.
    fn run_claimed(&self, chunk: usize) {
        // SAFETY: a chunk was claimed and is not yet counted as done, so the submitter is still inside `run` and the work it set is alive.
        let work = unsafe { (*self.work.get()).map(|work| &*work) };
        if let Some(work) = work
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(chunk)))
        {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
        self.done.fetch_add(1, Ordering::Release);
    }

    fn work_loop(&self, worker: usize) {
        let mut idle = 0;
        while !self.leave.load(Ordering::Relaxed) {
            if let Some(chunk) = self.claim() {
                self.run_claimed(chunk);
                idle = 0;
            } else if idle < SPINS_BEFORE_PARK {
                idle += 1;
                std::hint::spin_loop();
            } else {
                // Says that it parks, then looks once more: the submitter publishes the ticket and then looks who is parked.
                self.parked[worker].store(true, Ordering::SeqCst);
                let ticket = self.ticket.load(Ordering::SeqCst);
                if ticket & MASK >= ticket >> BITS & MASK && !self.leave.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.parked[worker].store(false, Ordering::SeqCst);
                idle = 0;
            }
        }
    }
}

/// The pool.
pub struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    epoch: u64,
}

impl Threads {
    /// A pool of `count` threads (at least 1, at most `THREADS_MAX`), the submitting one included.
    pub fn new(count: usize) -> std::io::Result<Threads> {
        let others = count.clamp(1, THREADS_MAX) - 1;
        let shared = Arc::new(Shared {
            ticket: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            work: UnsafeCell::new(None),
            parked: (0..others).map(|_| AtomicBool::new(false)).collect(),
            leave: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let mut threads = Threads { shared, workers: Vec::new(), epoch: 0 };
        for worker in 0..others {
            let shared = Arc::clone(&threads.shared);
            let handle =
                std::thread::Builder::new().name(format!("kvit-compute-{}", worker + 1)).spawn(move || shared.work_loop(worker))?;
            threads.workers.push(handle);
        }
        Ok(threads)
    }

    /// Number of threads, the submitting one included.
    pub fn count(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `work` once for each chunk of `0..chunks`, on any thread, in any order. A panic of a chunk unwinds from here after all others.
    pub fn run(&mut self, chunks: usize, work: &(dyn Fn(usize) + Sync)) {
        assert!(chunks <= CHUNKS_MAX, "more chunks than a ticket can count");
        if self.workers.is_empty() || chunks <= 1 {
            (0..chunks).for_each(work);
            return;
        }
        let shared = &*self.shared;
        let work: *const (dyn Fn(usize) + Sync + '_) = std::ptr::from_ref(work);
        // SAFETY: the last `run` waited for all its chunks, so no thread reads the cell; the type differs in the lifetime alone, and this
        // call does not return before the last use.
        unsafe { *shared.work.get() = Some(std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Work>(work)) };
        shared.done.store(0, Ordering::Relaxed);
        self.epoch = (self.epoch + 1) & 0xff_ffff;
        shared.ticket.store(self.epoch << (2 * BITS) | (chunks as u64) << BITS, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers) {
            if parked.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        while let Some(chunk) = shared.claim() {
            shared.run_claimed(chunk);
        }
        let mut spins = 0u32;
        while shared.done.load(Ordering::Acquire) < chunks {
            spins = spins.saturating_add(1);
            if spins > SPINS_BEFORE_YIELD { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.leave.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panics were caught and handed to the submitter; nothing is left to report here.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_runs_once() {
        for count in 1..=3 {
            let mut threads = Threads::new(count).unwrap();
            for chunks in [0, 1, 2, 7, 100] {
                let seen: Vec<AtomicUsize> = (0..chunks).map(|_| AtomicUsize::new(0)).collect();
                threads.run(chunks, &|c| {
                    seen[c].fetch_add(1, Ordering::Relaxed);
                });
                assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{count} threads, {chunks} chunks");
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_submitter_after_all_other_chunks() {
        let mut threads = Threads::new(3).unwrap();
        let ran = AtomicUsize::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| {
            threads.run(50, &|c| {
                ran.fetch_add(1, Ordering::Relaxed);
                assert!(c != 13, "chunk 13");
            });
        }));
        assert!(result.is_err());
        assert_eq!(ran.load(Ordering::Relaxed), 50);
        threads.run(4, &|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.load(Ordering::Relaxed), 54);
    }

    #[test]
    fn parked_workers_wake() {
        let mut threads = Threads::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let both = std::sync::Barrier::new(2);
            // Two chunks that wait for each other: neither thread can do both.
            threads.run(2, &|_| {
                both.wait();
            });
        }
    }
}
