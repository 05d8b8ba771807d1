//! What may go wrong, and how a seed chooses among it.
//!
//! Every seed has its own set of faults and its own hardness ("swarm testing", Groce et al. 2012): a seed with everything on hides what only
//! shows when something is off.
//!
//! Invariant: to switch one kind off changes no choice that was made for another.

use super::rng::Rng;

macro_rules! kinds {
    ($($(#[$m:meta])* $v:ident = $text:literal),+ $(,)?) => {
        /// One kind of fault.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum FaultKind { $($(#[$m])* $v),+ }
        impl FaultKind {
            /// All of them.
            pub const ALL: &'static [FaultKind] = &[$(FaultKind::$v),+];
            /// Its name.
            pub const fn as_str(self) -> &'static str { match self { $(FaultKind::$v => $text),+ } }
        }
    };
}

kinds! {
    /// A frame is lost.
    Loss = "loss",
    /// A frame comes twice.
    Duplicate = "duplicate",
    /// A frame takes long.
    Delay = "delay",
    /// A frame overtakes another.
    Reorder = "reorder",
    /// Nothing passes one way, or both.
    Partition = "partition",
    /// Everything is held, and comes at once.
    Clog = "clog",
    /// A connection is cut, and both ends see it.
    Cut = "cut",
    /// A connection is cut, and one end or none sees it.
    HalfOpen = "half_open",
    /// A frame of an earlier connection comes late.
    LateFrame = "late_frame",
    /// A process stands still, as after SIGSTOP; its clock goes on.
    Pause = "pause",
    /// A gateway's process dies, and another life of it begins.
    GatewayCrash = "gateway_crash",
    /// A worker's process dies, and another life of it begins.
    WorkerCrash = "worker_crash",
    /// A worker is told to stop.
    Drain = "drain",
    /// A step fails and is over.
    StepError = "step_error",
    /// A step hangs: what it holds is lost, and it may write later.
    HungStep = "hung_step",
    /// A step takes long.
    SlowStep = "slow_step",
    /// A worker's device is lost for good.
    DeviceLost = "device_lost",
    /// Clocks differ, and each goes up to half a per cent too fast or too slow.
    Drift = "drift",
    /// A worker lives, its connections are cut, and its host refuses new ones for a while, as when a proxy is gone.
    Refuse = "refuse",
}

/// Some kinds of faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultSet(u32);

impl FaultSet {
    /// None.
    pub const NONE: FaultSet = FaultSet(0);
    /// All.
    pub const ALL: FaultSet = FaultSet((1 << FaultKind::ALL.len()) - 1);

    /// Whether it holds a kind.
    pub const fn has(self, kind: FaultKind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }

    /// The same with one more.
    #[must_use]
    pub const fn with(self, kind: FaultKind) -> FaultSet {
        FaultSet(self.0 | 1 << kind as u32)
    }

    /// The same without those of another set.
    #[must_use]
    pub const fn without(self, other: FaultSet) -> FaultSet {
        FaultSet(self.0 & !other.0)
    }

    /// Those that are in it, in order.
    pub fn iter(self) -> impl Iterator<Item = FaultKind> {
        FaultKind::ALL.iter().copied().filter(move |kind| self.has(*kind))
    }

    /// A seed's choice: each kind is on in every second seed, and never fewer than three are.
    pub fn choose(rng: &mut Rng) -> FaultSet {
        let mut set = FaultSet(rng.word() as u32 & FaultSet::ALL.0);
        while set.iter().count() < 3 {
            set = set.with(rng.pick(FaultKind::ALL));
        }
        set
    }
}

impl std::fmt::Display for FaultSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if *self == FaultSet::NONE {
            return f.write_str("none");
        }
        for (i, kind) in self.iter().enumerate() {
            write!(f, "{}{}", if i > 0 { " " } else { "" }, kind.as_str())?;
        }
        Ok(())
    }
}
