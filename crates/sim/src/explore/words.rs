//! The messages of the explored world, small enough to be part of a state; at the doors of the cores they become the real ones.
//!
//! Invariant: nothing is in a message here that the real one does not say.

use lifecycle::message::{Delta, Receipt, Up as RealUp, Usage};
use lifecycle::{AttemptId, Cause, Outcome, RunId, RunKey, StepId, Tenant, Word};

/// An attempt: which run, and its number from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Try {
    /// Index of the run.
    pub run: u8,
    /// Number of the attempt.
    pub attempt: u8,
}

impl Try {
    /// The real id.
    pub fn id(self, names: &[AttemptId]) -> AttemptId {
        AttemptId { attempt: u32::from(self.attempt), ..names[usize::from(self.run)].clone() }
    }

    /// The try that a real id means.
    pub fn of(id: &AttemptId, names: &[AttemptId]) -> Option<Try> {
        let run = names.iter().position(|name| name.key == id.key)?;
        Some(Try { run: run as u8, attempt: id.attempt as u8 })
    }
}

/// The id of a run's first attempt.
pub fn first_id(name: &str) -> Option<AttemptId> {
    let run = RunId::parse(name).ok()?;
    Some(AttemptId { key: RunKey { tenant: Tenant::default(), run }, attempt: 1 })
}

/// From gateway to worker.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Down {
    /// Execute an attempt.
    Submit {
        /// Which.
        of: Try,
        /// Its number.
        number: u64,
        /// Whether its deadlines have passed already.
        late: bool,
    },
    /// End one.
    Cancel {
        /// Which.
        of: Try,
        /// Why.
        cause: Cause,
        /// The number of its submit.
        number: u64,
    },
}

/// A token on its way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Piece {
    /// Whose.
    pub of: Try,
    /// Which answer.
    pub sequence: u8,
    /// The token.
    pub token: u32,
    /// Why the answer is over with it.
    pub finish: Option<Cause>,
}

/// From worker to gateway.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Up {
    /// Taken on.
    Accepted(Try),
    /// What a step brought.
    Step(Vec<Piece>),
    /// A cancel was received.
    Acknowledged(Try, Option<Cause>),
    /// The end is decided.
    Ended(Try, Cause),
    /// Nothing is held.
    Released(Try),
    /// It takes nothing more.
    Draining,
}

impl Up {
    /// The real message.
    pub fn real(&self, names: &[AttemptId]) -> RealUp {
        match self {
            Up::Accepted(of) => RealUp::Accepted { attempt: of.id(names), prompt_tokens: 1 },
            Up::Step(pieces) => RealUp::Step { step: StepId(1), deltas: pieces.iter().map(|p| p.delta(names)).collect() },
            Up::Acknowledged(of, won) => RealUp::CancelAcknowledged { attempt: of.id(names), won: *won },
            Up::Ended(of, cause) => RealUp::Ended { attempt: of.id(names), outcome: Outcome::of(*cause), usage: Usage::default() },
            Up::Draining => RealUp::Draining,
            Up::Released(of) => RealUp::Released { attempt: of.id(names), receipt: Receipt::default() },
        }
    }

    /// The words that it is made of, each with the attempt that it is about.
    pub fn words(&self, names: &[AttemptId]) -> Vec<(Try, Word)> {
        let mut words = Vec::new();
        Word::each(self.real(names), |id, word| words.extend(Try::of(&id, names).map(|of| (of, word))));
        words
    }
}

impl Piece {
    fn delta(&self, names: &[AttemptId]) -> Delta {
        Delta {
            attempt: self.of.id(names),
            sequence: u32::from(self.sequence),
            text: String::new(),
            tokens: vec![self.token],
            logprobs: Vec::new(),
            finish: self.finish,
            passed: None,
        }
    }
}

impl super::net::Message {
    /// It in words.
    pub fn words(&self, scene: &super::world::Scene) -> String {
        use super::net::Message;
        match self {
            Message::Down(Down::Submit { of, .. }) => format!("submit {}", scene.word(*of)),
            Message::Down(Down::Cancel { of, cause, .. }) => format!("cancel {} ({cause})", scene.word(*of)),
            Message::Up(Up::Accepted(of)) => format!("accepted {}", scene.word(*of)),
            Message::Up(Up::Step(pieces)) => {
                let all: Vec<String> = pieces.iter().map(|p| scene.word(p.of)).collect();
                format!("a step's tokens for {}", all.join(" and "))
            }
            Message::Up(Up::Acknowledged(of, _)) => format!("the acknowledgement of {}'s cancel", scene.word(*of)),
            Message::Up(Up::Ended(of, cause)) => format!("ended {} ({cause})", scene.word(*of)),
            Message::Up(Up::Draining) => "the word that the worker stops".into(),
            Message::Up(Up::Released(of)) => format!("released {}", scene.word(*of)),
        }
    }
}
