//! The table: every ending of the contract in every phase, each with what makes it a row, or with the word for why it cannot be.

use std::fmt;

use lifecycle::{Cause, OutcomeKind};

/// Where the run is when its end comes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Its prompt is not tokenised yet.
    Tokenising,
    /// It waits for its first step.
    Queued,
    /// A chunk of its prompt is in a step, and not the last.
    Prefill,
    /// The last chunk is in a step.
    BeforeFirstToken,
    /// Few tokens are there.
    EarlyDecode,
    /// Few tokens are left.
    LateDecode,
    /// The step of its last token is under way.
    LastStep,
    /// Its blocks were taken away.
    Preempted,
    /// It computes a prefix that a follower waits for.
    SharedPrefix,
}

impl Phase {
    pub const ALL: [Phase; 9] = [
        Phase::Tokenising,
        Phase::Queued,
        Phase::Prefill,
        Phase::BeforeFirstToken,
        Phase::EarlyDecode,
        Phase::LateDecode,
        Phase::LastStep,
        Phase::Preempted,
        Phase::SharedPrefix,
    ];

    pub fn word(self) -> &'static str {
        match self {
            Phase::Tokenising => "tokenising",
            Phase::Queued => "queued",
            Phase::Prefill => "prefill_chunk",
            Phase::BeforeFirstToken => "before_first_token",
            Phase::EarlyDecode => "early_decode",
            Phase::LateDecode => "late_decode",
            Phase::LastStep => "last_step",
            Phase::Preempted => "preempted",
            Phase::SharedPrefix => "shared_prefix",
        }
    }

    /// The engine's word for it.
    pub fn applied(self) -> lifecycle::Phase {
        match self {
            Phase::Tokenising | Phase::Queued => lifecycle::Phase::Queued,
            Phase::Prefill | Phase::SharedPrefix => lifecycle::Phase::Prefill,
            Phase::BeforeFirstToken => lifecycle::Phase::BeforeFirstToken,
            Phase::EarlyDecode | Phase::LateDecode | Phase::LastStep | Phase::Preempted => lifecycle::Phase::Decode,
        }
    }

    /// Whether tokens are generated in it.
    pub fn decodes(self) -> bool {
        matches!(self, Phase::EarlyDecode | Phase::LateDecode | Phase::LastStep)
    }

    /// Whether a step may hold rows of the run.
    pub fn has_rows(self) -> bool {
        !matches!(self, Phase::Tokenising | Phase::Queued | Phase::Preempted)
    }
}

/// What ends the run. Where a cause has several ways, each is an ending.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Ending {
    StopToken,
    StopString,
    Length,
    Closed,
    Reset,
    Lost,
    Stalled,
    Requested,
    EdgeTimeout,
    Orphaned,
    Shutdown,
    ClientDeadline,
    GatewayDeadline,
    WorkerDeadline,
    QueueDeadline,
    WorkerError,
    /// A step fails and the device goes on.
    DeviceStep,
    /// A step hangs: its blocks never come back.
    DeviceHung,
    /// The device is gone.
    DeviceLost,
    WorkerLost,
    UpstreamError,
    Invalid,
    OverLimit,
    QueueFull,
    CannotFit,
    DeadlineUnreachable,
}

impl Ending {
    pub const ALL: [Ending; 26] = [
        Ending::StopToken,
        Ending::StopString,
        Ending::Length,
        Ending::Closed,
        Ending::Reset,
        Ending::Lost,
        Ending::Stalled,
        Ending::Requested,
        Ending::EdgeTimeout,
        Ending::Orphaned,
        Ending::Shutdown,
        Ending::ClientDeadline,
        Ending::GatewayDeadline,
        Ending::WorkerDeadline,
        Ending::QueueDeadline,
        Ending::WorkerError,
        Ending::DeviceStep,
        Ending::DeviceHung,
        Ending::DeviceLost,
        Ending::WorkerLost,
        Ending::UpstreamError,
        Ending::Invalid,
        Ending::OverLimit,
        Ending::QueueFull,
        Ending::CannotFit,
        Ending::DeadlineUnreachable,
    ];

    pub fn cause(self) -> Cause {
        match self {
            Ending::StopToken | Ending::StopString => Cause::Stop,
            Ending::Length => Cause::Length,
            Ending::Closed => Cause::ClientClosed,
            Ending::Reset => Cause::ClientReset,
            Ending::Lost => Cause::ClientLost,
            Ending::Stalled => Cause::ClientStalled,
            Ending::Requested => Cause::CancelRequested,
            Ending::EdgeTimeout => Cause::EdgeTimeout,
            Ending::Orphaned => Cause::Orphaned,
            Ending::Shutdown => Cause::Shutdown,
            Ending::ClientDeadline => Cause::ClientDeadline,
            Ending::GatewayDeadline => Cause::GatewayDeadline,
            Ending::WorkerDeadline => Cause::WorkerDeadline,
            Ending::QueueDeadline => Cause::QueueDeadline,
            Ending::WorkerError => Cause::WorkerError,
            Ending::DeviceStep | Ending::DeviceHung | Ending::DeviceLost => Cause::DeviceError,
            Ending::WorkerLost => Cause::WorkerLost,
            Ending::UpstreamError => Cause::UpstreamError,
            Ending::Invalid => Cause::Invalid,
            Ending::OverLimit => Cause::OverLimit,
            Ending::QueueFull => Cause::QueueFull,
            Ending::CannotFit => Cause::CannotFit,
            Ending::DeadlineUnreachable => Cause::DeadlineUnreachable,
        }
    }

    pub fn kind(self) -> OutcomeKind {
        self.cause().outcome()
    }

    fn word(self) -> &'static str {
        match self {
            Ending::StopToken => "stop_token",
            Ending::StopString => "stop_string",
            Ending::DeviceStep => "device_error_step",
            Ending::DeviceHung => "device_error_hung",
            Ending::DeviceLost => "device_error_lost",
            other => other.cause().as_str(),
        }
    }
}

/// Why a combination cannot be. One word each; the test counts them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Never {
    /// A run completes by its tokens, and none is chosen before its prompt is computed.
    NoTokenYet,
    /// Who has nothing to read cannot fail to read it.
    NothingToRead,
    /// A whole answer is one frame, which is taken or not; before it there is nothing to read.
    OneFrame,
    /// A refusal falls when the run or its prompt arrives, and never later.
    JudgedOnArrival,
    /// The wait to be scheduled is over.
    Scheduled,
    /// The step that fails holds no row of the run.
    NotInTheStep,
    /// The pool is checked against the whole prompt before its first step: it cannot run short in the prompt.
    PromptFits,
    /// Only a panic of the tokeniser could do it, and no input is known to cause one.
    NoSuchInput,
    /// One gives way because there are several; the last one left is never preempted.
    AloneIsNotPreempted,
    /// Cannot occur here, because what a proxy cuts is a plain close on the wire: nothing tells it apart from its caller's.
    LooksLikeAClose,
    /// Cannot occur here, because there are no upstreams: this server's engine is its own.
    NoUpstream,
}

/// One line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Row {
    pub ending: Ending,
    pub phase: Phase,
    pub n: u32,
    pub stream: bool,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = if self.stream { "stream" } else { "whole" };
        write!(f, "{}-{}-n{}-{shape}", self.ending.word(), self.phase.word(), self.n)
    }
}

impl Row {
    /// Every combination.
    pub fn all() -> impl Iterator<Item = Row> {
        let shapes = [(1, true), (1, false), (3, true), (3, false)];
        Ending::ALL.into_iter().flat_map(move |ending| {
            Phase::ALL.into_iter().flat_map(move |phase| shapes.into_iter().map(move |(n, stream)| Row { ending, phase, n, stream }))
        })
    }

    /// Why it cannot be, if it cannot.
    pub fn never(&self) -> Option<Never> {
        use Ending as E;
        use Phase as P;
        let early = matches!(self.phase, P::Tokenising | P::Queued | P::Prefill | P::BeforeFirstToken | P::SharedPrefix);
        match (self.ending, self.phase) {
            (E::StopToken | E::StopString | E::Length, P::Tokenising | P::Queued | P::Prefill) => Some(Never::NoTokenYet),
            (E::Stalled, _) if early => Some(Never::NothingToRead),
            (E::Stalled, _) if !self.stream => Some(Never::OneFrame),
            (E::QueueDeadline, P::Tokenising | P::Queued) => None,
            (E::QueueDeadline, _) => Some(Never::Scheduled),
            (E::DeviceStep | E::DeviceHung, phase) if !phase.has_rows() => Some(Never::NotInTheStep),
            (E::WorkerError, P::Tokenising) => Some(Never::NoSuchInput),
            (E::WorkerError, P::Preempted) => Some(Never::AloneIsNotPreempted),
            (E::WorkerError, _) if early => Some(Never::PromptFits),
            (E::EdgeTimeout, _) => Some(Never::LooksLikeAClose),
            (E::UpstreamError, _) => Some(Never::NoUpstream),
            (E::Invalid | E::OverLimit | E::QueueFull | E::DeadlineUnreachable, P::Tokenising) => None,
            (E::Invalid | E::OverLimit | E::QueueFull | E::DeadlineUnreachable, _) => Some(Never::JudgedOnArrival),
            // Blocks that a device took along may be missed by a run that waits, first or again.
            (E::CannotFit, P::Tokenising | P::Queued | P::Preempted) => None,
            (E::CannotFit, _) => Some(Never::JudgedOnArrival),
            _ => None,
        }
    }
}
