//! What the engine keeps of an attempt and of its sequences. The attempt's state itself is `lifecycle`'s machine.

use std::sync::Arc;

use kv::{BlockId, Lease, NodeId, Owner};
use lifecycle::params::Sampling;
use lifecycle::{AttemptId, AttemptState, Cause, Outcome, StepId, Time};

use crate::device::{Flag, Slot};

/// Order of service: priority, then arrival. Unique: the second part is the attempt's key.
pub(crate) type Rank = (i32, u64);

/// A live attempt.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub id: AttemptId,
    pub rank: Rank,
    pub state: AttemptState,
    pub sampling: Arc<Sampling>,
    pub stop_tokens: Arc<[u32]>,
    pub n: u32,
    pub max_tokens: Option<u32>,
    pub salt: String,
    pub deadlines: Vec<(Time, Cause)>,
    pub sequences: Vec<Sequence>,
    pub prompt_len: u32,
    pub cached_prompt: u32,
    pub generated: u32,
    pub outcome: Option<Outcome>,
    /// Rows in steps that are not over.
    pub rows_in_flight: u32,
    pub steps: u32,
    pub last_step: StepId,
    pub blocks_peak: u32,
    pub blocks_shared: u32,
    pub prefill_started: bool,
}

/// One of an attempt's n answers.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub owner: Owner,
    pub index: u32,
    /// Prompt and all tokens that are known.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    /// Positions whose rows are in a step or computed; K and V of those below it are or will be in `leases`.
    pub scheduled: usize,
    /// Tokens that steps in flight will choose.
    pub samples_in_flight: usize,
    /// Counts (re)starts; rows of an older one change no positions.
    pub epoch: u64,
    pub leases: Vec<Lease>,
    pub table: Arc<[BlockId]>,
    /// The chain in the prefix index, one node a full block, as far as it is known.
    pub nodes: Vec<NodeId>,
    /// Full blocks that the index has heard of.
    pub indexed: usize,
    /// The chain cannot be continued (its parent was evicted, or another computes the same block): blocks stay private.
    pub chain_broken: bool,
    pub slot: Option<Slot>,
    /// The slot was reset for this epoch.
    pub started: bool,
    /// A row that chooses a token was planned in this epoch.
    pub sampled: bool,
    pub flag: Flag,
    pub rows_in_flight: u32,
    /// The newest step with a row of it.
    pub last_step: StepId,
    pub finished: Option<Cause>,
}

impl Sequence {
    pub(crate) fn new(owner: Owner, index: u32, prompt: &[u32]) -> Sequence {
        Sequence {
            owner,
            index,
            tokens: prompt.to_vec(),
            prompt_len: prompt.len(),
            scheduled: 0,
            samples_in_flight: 0,
            epoch: 0,
            leases: Vec::new(),
            table: Arc::from([]),
            nodes: Vec::new(),
            indexed: 0,
            chain_broken: false,
            slot: None,
            started: false,
            sampled: false,
            flag: Flag::default(),
            rows_in_flight: 0,
            last_step: StepId(0),
            finished: None,
        }
    }

    /// Tokens generated and known.
    pub(crate) fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Its prompt is in steps and its next row continues from the token that its last row chooses.
    pub(crate) fn is_decoding(&self) -> bool {
        self.sampled && self.finished.is_none()
    }

    /// The fence its blocks must wait for: the newest step that holds it, if that is not over.
    pub(crate) fn fence(&self) -> Option<StepId> {
        (self.rows_in_flight > 0).then_some(self.last_step)
    }

    /// Forgets everything computed, so that it can start again from its known tokens. Leases must be gone.
    pub(crate) fn restart(&mut self) {
        debug_assert!(self.leases.is_empty());
        self.flag.set();
        self.flag = Flag::default();
        self.scheduled = 0;
        self.samples_in_flight = 0;
        self.epoch += 1;
        self.table = Arc::from([]);
        self.nodes.clear();
        self.indexed = 0;
        self.chain_broken = false;
        self.slot = None;
        self.started = false;
        self.sampled = false;
    }
}

impl Attempt {
    /// Most tokens a sequence may generate; set when the prompt is known.
    pub(crate) fn cap(&self) -> usize {
        self.max_tokens.unwrap_or(0) as usize
    }

    /// Blocks held by all sequences, shared ones counted once each sequence.
    pub(crate) fn blocks_held(&self) -> u32 {
        self.sequences.iter().map(|s| s.leases.len() as u32).sum()
    }
}
