//! Why a run ends and how: the contract's table of causes and outcomes, and the words for delivery and guarantee.

use std::fmt;

macro_rules! words {
    ($(#[$m:meta])* $name:ident { $($(#[$vm:meta])* $v:ident = $text:literal),+ $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name { $($(#[$vm])* $v),+ }
        impl $name {
            /// Every value, in the contract's order.
            pub const ALL: &'static [$name] = &[$($name::$v),+];
            /// The contract's word.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$v => $text),+ }
            }
            /// The value with this word.
            pub fn parse(word: &str) -> Option<$name> {
                Self::ALL.iter().copied().find(|v| v.as_str() == word)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.as_str()) }
        }
    };
}
pub(crate) use words;

words! {
    /// Why somebody, or something, wants a run to end.
    Cause {
        /// A stop token or a stop string was found.
        Stop = "stop",
        /// An output cap was reached.
        Length = "length",
        /// The caller's side closed the connection in good order.
        ClientClosed = "client_closed",
        /// The caller's side reset the connection.
        ClientReset = "client_reset",
        /// The caller vanished without a word.
        ClientLost = "client_lost",
        /// The caller is there and does not read.
        ClientStalled = "client_stalled",
        /// Somebody cancelled the run by name.
        CancelRequested = "cancel_requested",
        /// A proxy in front ran out of patience.
        EdgeTimeout = "edge_timeout",
        /// No gateway claims the attempt any more.
        Orphaned = "orphaned",
        /// The process is told to stop.
        Shutdown = "shutdown",
        /// The deadline that the caller gave passed.
        ClientDeadline = "client_deadline",
        /// The gateway's own deadline passed.
        GatewayDeadline = "gateway_deadline",
        /// A limit of the worker's own passed. A deadline that a gateway named keeps the gateway's cause, wherever it is found.
        WorkerDeadline = "worker_deadline",
        /// The run waited too long to be scheduled.
        QueueDeadline = "queue_deadline",
        /// The worker failed.
        WorkerError = "worker_error",
        /// The device failed in a step that held the run.
        DeviceError = "device_error",
        /// The worker is gone.
        WorkerLost = "worker_lost",
        /// An upstream engine answered with an error.
        UpstreamError = "upstream_error",
        /// The request is not valid.
        Invalid = "invalid",
        /// The request exceeds a limit.
        OverLimit = "over_limit",
        /// The queue has no room.
        QueueFull = "queue_full",
        /// The run can never fit into the pool.
        CannotFit = "cannot_fit",
        /// The deadline cannot be met.
        DeadlineUnreachable = "deadline_unreachable",
    }
}

words! {
    /// How a run ended.
    OutcomeKind {
        /// It came to its own end.
        Completed = "completed",
        /// Somebody no longer wanted it.
        Cancelled = "cancelled",
        /// Its time ran out.
        Expired = "expired",
        /// Something broke.
        Failed = "failed",
        /// It was never taken on.
        Rejected = "rejected",
    }
}

words! {
    /// What the caller was sent. A fact of its own: a completed run may have been delivered to nobody (C-6).
    Delivery {
        /// Nothing of the answer.
        None = "none",
        /// Some of it, or all of it without its end.
        Partial = "partial",
        /// All of it with its proper end.
        Complete = "complete",
    }
}

words! {
    /// How well a cancel's effect is proven (C-29).
    Guarantee {
        /// The engine acknowledged the release.
        Confirmed = "confirmed",
        /// The engine's own counters show it.
        Observed = "observed",
        /// The connection was closed; nothing more is known.
        BestEffort = "best_effort",
        /// Nothing can be done.
        Unsupported = "unsupported",
    }
}

words! {
    /// Where a run was when abandonment was first observed.
    Phase {
        /// Not yet scheduled; being tokenised counts as queued.
        Queued = "queued",
        /// Its prompt was being computed.
        Prefill = "prefill",
        /// The prompt was computed, no token was there yet.
        BeforeFirstToken = "before_first_token",
        /// Tokens were being generated.
        Decode = "decode",
    }
}

impl Cause {
    /// The outcome that the contract's table gives this cause.
    pub const fn outcome(self) -> OutcomeKind {
        use Cause::*;
        match self {
            Stop | Length => OutcomeKind::Completed,
            ClientClosed | ClientReset | ClientLost | ClientStalled | CancelRequested | EdgeTimeout | Orphaned | Shutdown => {
                OutcomeKind::Cancelled
            }
            ClientDeadline | GatewayDeadline | WorkerDeadline | QueueDeadline => OutcomeKind::Expired,
            WorkerError | DeviceError | WorkerLost | UpstreamError => OutcomeKind::Failed,
            Invalid | OverLimit | QueueFull | CannotFit | DeadlineUnreachable => OutcomeKind::Rejected,
        }
    }

    /// Whether this cause means that the caller is gone (so nothing more can be delivered).
    pub const fn is_disconnect(self) -> bool {
        use Cause::*;
        matches!(self, ClientClosed | ClientReset | ClientLost | ClientStalled | EdgeTimeout)
    }
}

/// How a run ended, and why. The kind follows from the cause.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Why.
    pub cause: Cause,
    /// One sentence for a person, where the cause alone does not say enough.
    pub reason: Option<String>,
}

impl Outcome {
    /// An outcome without a reason text.
    pub const fn of(cause: Cause) -> Outcome {
        Outcome { cause, reason: None }
    }

    /// An outcome with a reason text.
    pub fn because(cause: Cause, reason: impl Into<String>) -> Outcome {
        Outcome { cause, reason: Some(reason.into()) }
    }

    /// The kind, by the contract's table.
    pub const fn kind(&self) -> OutcomeKind {
        self.cause.outcome()
    }
}
