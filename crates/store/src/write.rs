//! What can be written, and what becomes of it.

use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Delivery, Incarnation, OnDisconnect, Outcome, RunId, RunKey, Tenant};

use crate::{Effect, EffectState, Hook, StoredEvent, StoredRun};

/// A run that is to be accepted.
#[derive(Clone, PartialEq, Debug)]
pub struct NewRun {
    /// Whose.
    pub tenant: Tenant,
    /// The id that was asked for; if it is taken the run gets `ID~2` and so on, up to `~100`, else `fresh`.
    pub wish: Option<RunId>,
    /// An id of its own.
    pub fresh: RunId,
    /// See [`StoredRun`].
    pub door: String,
    /// See [`StoredRun`].
    pub model: String,
    /// See [`StoredRun`].
    pub caller: String,
    /// See [`StoredRun`].
    pub on_disconnect: OnDisconnect,
    /// See [`StoredRun`].
    pub keeps: bool,
    /// Who has it.
    pub owner: Incarnation,
    /// See [`StoredRun`].
    pub created_ms: i64,
    /// See [`StoredRun`].
    pub expires_ms: Option<i64>,
    /// See [`StoredRun`].
    pub request: Option<Vec<u8>>,
    /// Its `Idempotency-Key`, and the digest of what was asked for with it.
    pub joining: Option<(String, [u8; 32])>,
}

impl NewRun {
    /// The run as the store has it once it is accepted under this id, before anything of it began.
    pub fn accepted(&self, run: RunId) -> StoredRun {
        StoredRun {
            key: RunKey { tenant: self.tenant.clone(), run },
            door: self.door.clone(),
            model: self.model.clone(),
            caller: self.caller.clone(),
            on_disconnect: self.on_disconnect,
            keeps: self.keeps,
            followed: false,
            owner: self.owner,
            attempt: 0,
            outcome: None,
            wanted: None,
            usage: Usage::default(),
            delivery: None,
            last_event: 0,
            created_ms: self.created_ms,
            ended_ms: None,
            expires_ms: self.expires_ms,
            request: self.request.clone(),
            record: None,
            erased: false,
        }
    }
}

/// One change. Each is a compare-and-set: what it names must hold, or it changes nothing and says what does (`Absent` if there is no such run).
///
/// A NUL in a text (not in bytes) is kept as U+FFFD, as PostgreSQL knows no other way.
#[derive(Clone, PartialEq, Debug)]
pub enum Write {
    /// Accept a run: `Accepted`, and the same again for the same `fresh` (a commit whose answer was lost may be repeated); `Joined` if its key has one that is live or has completed and asked for the same; `OtherBody` if it
    /// has one that asked for another thing, whatever became of it. A key whose run ended otherwise, is wanted to end or is erased goes to the new run. Should even `fresh` be another run's, that one `Stands`.
    Accept(Box<NewRun>),
    /// Take an accept back whose asker was told that there is no run, or no longer waits for one: if it was committed after all, that run ends,
    /// as `End` of its attempt 0 would, and no key leads to it; else `Absent`, and there never is one.
    Disown {
        /// As it was to be accepted.
        new: Box<NewRun>,
        /// How the run ends that nobody knows.
        outcome: Outcome,
        /// Now.
        now_ms: i64,
    },
    /// Begin attempt `from + 1`: `Done`, if `from` is the current one and not `u32::MAX`, `owner` has the run and it has no outcome, else `Stands`.
    Begin {
        /// The run.
        run: RunKey,
        /// The attempt before.
        from: u32,
        /// Who begins it.
        owner: Incarnation,
    },
    /// Append events: `Done` if the attempt is the current one, `owner` has the run, it has no outcome and the first number follows the newest
    /// event; else `Stands`. Events that are there already with the same number are `Stands`, too.
    Append {
        /// The attempt.
        attempt: AttemptId,
        /// Who appends.
        owner: Incarnation,
        /// Consecutive, at least one.
        events: Vec<StoredEvent>,
    },
    /// Set the outcome, with the event that says it (if events are kept): `Done` if none is set, the attempt is the current one and `owner` has
    /// the run, else `Stands`. If it is another than completed, the effects that are intended will not be begun, and fail with it; those that
    /// are `submitted` become `unknown` only by a write of their own.
    End {
        /// The attempt; 0 if none began.
        attempt: AttemptId,
        /// Who ends it.
        owner: Incarnation,
        /// How.
        outcome: Outcome,
        /// Its counts.
        usage: Usage,
        /// The last event; its number must follow the newest one's.
        last: Option<StoredEvent>,
        /// What goes into the outbox with it, if it is `Done`: as [`Write::Hook`].
        hooks: Vec<Hook>,
        /// Now.
        now_ms: i64,
    },
    /// Keep the record of a settled run: `Done`; `Stands` if it has no outcome or another has the run; `Absent`. An erased run keeps the
    /// delivery only.
    Record {
        /// The run.
        run: RunKey,
        /// Who has it.
        owner: Incarnation,
        /// What its caller was sent.
        delivery: Delivery,
        /// Its JSON.
        record: Vec<u8>,
    },
    /// Ask for a run's end at a gateway that does not own it: `Done` if it has no outcome (the first cause stays), else `Stands`; `Absent`.
    Want {
        /// The run.
        run: RunKey,
        /// Why.
        cause: Cause,
    },
    /// Ask, at a gateway that does not own it, for the events of a run that keeps none: `Done` if it has no outcome and somebody asks already
    /// or from now on, else `Stands`; `Absent`.
    Follow {
        /// The run.
        run: RunKey,
    },
    /// Answer that: the events are appended behind this, from the first on, or cannot be. `Done` if somebody asks, `owner` has the run and it
    /// has no outcome, else `Stands`; `Absent`.
    Keep {
        /// The run.
        run: RunKey,
        /// Who answers.
        owner: Incarnation,
        /// Whether they are kept from now on.
        keeps: bool,
    },
    /// Say that somebody reads a run at this life of a gateway, which does not own it: `Done`, also if that was said before; `Stands` if it
    /// has an outcome; `Absent`.
    Attend {
        /// The run.
        run: RunKey,
        /// Where it is read.
        by: Incarnation,
    },
    /// Say that nobody does any more: `Done`, whether it was said or not.
    Depart {
        /// The run.
        run: RunKey,
        /// Where it was read.
        by: Incarnation,
    },
    /// Take over a run of a life that is over: `Taken` with the run if `from` has it and it has no outcome, else `Stands`. Its attempt is raised
    /// with it, so that what is begun from there on has a number that `from` cannot have given (at most `u32::MAX`).
    TakeOver {
        /// The run.
        run: RunKey,
        /// Who had it.
        from: Incarnation,
        /// Who has it then.
        to: Incarnation,
        /// Attempts that `from` may have begun and not written.
        skip: u32,
    },
    /// This life of a gateway lives: `Done`.
    Beat {
        /// Which life.
        owner: Incarnation,
        /// What it is called.
        name: String,
    },
    /// This life of a gateway is over in good order: `Done`. What it leaves without an outcome is nobody's, the life 0's, from whom it may be
    /// taken over at once.
    Leave {
        /// Which life.
        owner: Incarnation,
    },
    /// Delete an ended run's content (request, events, record, effects' texts): `Done`; `Stands` if it has no outcome; `Absent`.
    Erase {
        /// The run.
        run: RunKey,
    },
    /// Note an effect: `Effect` with it, or with the one that has its key already (which may be another); `Stands` if it is yet to be done and
    /// none of the run's may begin; `Full` if the run has as many as it may; `Absent`. Of an erased run no texts are kept.
    Intend {
        /// The run.
        run: RunKey,
        /// In which state it begins, and all else.
        effect: Effect,
        /// So many a run may have.
        max: usize,
    },
    /// Move an effect: `Effect` with what it is then, if it was in one of `from`; else `EffectStands` with what it is; `Absent`. None is
    /// submitted while none of the run's may begin: once its end is wanted, it ended without completing, or it is erased.
    Move {
        /// The run.
        run: RunKey,
        /// The effect's key.
        key: String,
        /// Where it must be.
        from: Vec<EffectState>,
        /// Where it goes.
        to: EffectState,
        /// What is known of its result; `None` leaves what was there.
        detail: Option<Vec<u8>>,
        /// Now.
        now_ms: i64,
    },
    /// Put a webhook into the outbox: `Done`; the same id again is `Done` and changes nothing.
    Hook(Hook),
    /// Take a webhook that is due, so that nobody else tries it before it is due again: `Done` if it is due at `from_ms`, else `Absent`.
    HookTaken {
        /// Its id.
        id: String,
        /// When it is due.
        from_ms: i64,
        /// When it is due again should nothing be heard of this try.
        due_ms: i64,
    },
    /// A webhook was tried: it is due again then, or `None` if it is over and its body is forgotten. `Done`, or `Absent`; one that is over
    /// stays so.
    HookTried {
        /// Its id.
        id: String,
        /// When again.
        due_ms: Option<i64>,
        /// What came of it, in a word.
        last: String,
    },
}

/// What became of a write.
#[derive(Clone, PartialEq, Debug)]
pub enum Wrote {
    /// It is done.
    Done,
    /// The run is accepted under this id.
    Accepted(RunId),
    /// The request belongs to this run.
    Joined(Box<StoredRun>),
    /// The key was used for something else.
    OtherBody,
    /// It changed nothing: the run stands like this.
    Stands(Box<StoredRun>),
    /// The run is the taker's now.
    Taken(Box<StoredRun>),
    /// The effect, as it is now.
    Effect(Effect),
    /// It changed nothing: the effect stands like this.
    EffectStands(Effect),
    /// The run has as many effects as it may.
    Full,
    /// There is no such run, effect or webhook.
    Absent,
}
