//! One question to a stack: a request in this phase is left in this way. Does the work stop?
//!
//! Invariant: a cell's name says all of it and is read back as the same cell, in reports of every release.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$each:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$each])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];

            /// Its word.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<$name, String> {
                let words = || $name::ALL.iter().map(|known| known.word()).collect::<Vec<_>>().join(", ");
                $name::ALL.iter().copied().find(|known| known.word() == text).ok_or_else(|| format!("`{text}` is none of {}", words()))
            }
        }
    };
}
pub(crate) use words;

words! {
    /// Where a request is when it is left.
    Phase {
        /// It waits for a slot of the engine.
        Queued = "queued",
        /// Its prompt is being computed, and no head of an answer has come.
        Prefill = "prefill",
        /// The head of its answer has come, and no token.
        Headers = "headers",
        /// Few tokens were read.
        EarlyDecode = "early",
        /// Many were.
        LateDecode = "late",
        /// All but the last few were.
        NearEnd = "near-end",
    }
}

words! {
    /// How it is left.
    Trigger {
        /// The caller closes its connection (FIN).
        Close = "close",
        /// The caller's connection is reset (RST).
        Reset = "reset",
        /// The caller closes its sending side only, and goes on reading: no departure, unless the stack says that it is one.
        HalfClose = "half-close",
        /// The caller is there and reads nothing more.
        StopReading = "stop-reading",
        /// A deadline that the request carries is over.
        ClientDeadline = "deadline",
        /// A hop of the stack finds the request idle for too long.
        EdgeIdle = "edge-idle",
        /// The stack is told by name to cancel it.
        Cancel = "cancel",
        /// A gRPC call is cancelled.
        GrpcCancel = "grpc-cancel",
        /// A gRPC call's deadline is over.
        GrpcDeadline = "grpc-deadline",
        /// An HTTP/2 stream is reset, its connection stays.
        StreamReset = "h2-reset",
        /// The caller's process is killed (SIGKILL).
        Kill = "kill",
    }
}

impl Trigger {
    /// Whether it says that nobody wants the answer any more. What does not must change nothing.
    pub const fn is_departure(self) -> bool {
        !matches!(self, Trigger::HalfClose)
    }
}

/// One question.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cell {
    /// Where the request is when it is left.
    pub phase: Phase,
    /// How it is left.
    pub trigger: Trigger,
    /// Whether its answer is a stream.
    pub streaming: bool,
    /// Whether the beginning of its prompt is one that another request has, too.
    pub shared: bool,
    /// Answers that it asks for.
    pub n: u32,
}

impl Cell {
    /// A cold stream of one answer.
    pub const fn new(phase: Phase, trigger: Trigger) -> Cell {
        Cell { phase, trigger, streaming: true, shared: false, n: 1 }
    }

    /// The same, not streamed.
    pub const fn whole(self) -> Cell {
        Cell { streaming: false, ..self }
    }

    /// Why nobody can ask this, if nobody can.
    pub fn senseless(&self) -> Option<&'static str> {
        let reads_tokens = matches!(self.phase, Phase::Headers | Phase::NearEnd);
        match self.trigger {
            _ if !self.streaming && self.phase == Phase::Headers => Some("the head of an answer that is not streamed comes with all of it"),
            _ if !self.streaming && reads_tokens => Some("nothing of an answer that is not streamed can be read before its end"),
            Trigger::StopReading if !self.streaming => Some("an answer that is not streamed is not read before its end"),
            Trigger::StopReading if matches!(self.phase, Phase::Queued | Phase::Prefill) => Some("there is nothing to read yet"),
            Trigger::EdgeIdle if self.streaming && !matches!(self.phase, Phase::Queued | Phase::Prefill) => {
                Some("a stream that has begun is not silent, so no hop finds it idle")
            }
            Trigger::GrpcCancel | Trigger::GrpcDeadline if !self.streaming => Some("the answer of a gRPC call is a stream"),
            _ => None,
        }
    }
}

/// `phase/trigger/stream|whole[/shared][/n=N]`
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = if self.streaming { "stream" } else { "whole" };
        let shared = if self.shared { "/shared" } else { "" };
        let n = if self.n == 1 { String::new() } else { format!("/n={}", self.n) };
        f.pad(&format!("{}/{}/{stream}{shared}{n}", self.phase, self.trigger))
    }
}

impl FromStr for Cell {
    type Err = String;

    fn from_str(text: &str) -> Result<Cell, String> {
        let wrong = || format!("`{text}` is not PHASE/TRIGGER/stream or PHASE/TRIGGER/whole, with /shared and /n=N behind it");
        let mut parts = text.split('/');
        let phase = parts.next().ok_or_else(wrong)?.parse()?;
        let trigger = parts.next().ok_or_else(wrong)?.parse()?;
        let streaming = match parts.next() {
            Some("stream") => true,
            Some("whole") => false,
            _ => return Err(wrong()),
        };
        let mut cell = Cell { phase, trigger, streaming, shared: false, n: 1 };
        for part in parts {
            match part.split_once('=') {
                None if part == "shared" => cell.shared = true,
                Some(("n", n)) => cell.n = n.parse().ok().filter(|n| (1..=128).contains(n)).ok_or_else(wrong)?,
                _ => return Err(wrong()),
            }
        }
        Ok(cell)
    }
}

impl Serialize for Cell {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Cell, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// How many questions are asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Set {
    /// The common departures, in under a minute.
    Quick,
    /// All that make sense.
    Full,
}

impl Set {
    /// Its cells, in the order in which they are asked.
    pub fn cells(self) -> Vec<Cell> {
        use Phase::{EarlyDecode, Headers, LateDecode, NearEnd, Prefill, Queued};
        match self {
            Set::Quick => {
                let of = |phase| Cell::new(phase, Trigger::Close);
                let mut cells = vec![of(EarlyDecode), of(EarlyDecode).whole(), of(Prefill), of(Queued), of(LateDecode)];
                cells.push(Cell::new(EarlyDecode, Trigger::Reset));
                cells.push(Cell::new(EarlyDecode, Trigger::Cancel));
                cells
            }
            Set::Full => {
                let mut cells = Vec::new();
                for &trigger in Trigger::ALL {
                    for phase in [Queued, Prefill, Headers, EarlyDecode, LateDecode, NearEnd] {
                        let cell = Cell::new(phase, trigger);
                        cells.extend([cell, cell.whole()]);
                    }
                }
                for phase in [Prefill, EarlyDecode] {
                    let cell = Cell::new(phase, Trigger::Close);
                    cells.extend([Cell { shared: true, ..cell }, Cell { n: 2, ..cell }, Cell { shared: true, n: 2, ..cell }]);
                }
                cells.retain(|cell| cell.senseless().is_none());
                cells
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_as_its_cell() {
        for cell in Set::Full.cells() {
            assert_eq!(cell.to_string().parse(), Ok(cell));
            let json = serde_json::to_string(&cell).expect("a text");
            assert_eq!(serde_json::from_str::<Cell>(&json).expect("a cell"), cell);
        }
        for bad in ["", "early", "early/close", "early/close/other", "late/close/stream/n=0", "late/close/stream/odd", "x/close/stream"] {
            assert!(bad.parse::<Cell>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_set_asks_no_question_twice_and_none_that_nobody_can_ask() {
        for set in [Set::Quick, Set::Full] {
            let cells = set.cells();
            let mut once = cells.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), cells.len());
            assert!(cells.iter().all(|cell| cell.senseless().is_none()));
        }
        assert!(Set::Quick.cells().iter().all(|cell| Set::Full.cells().contains(cell)));
    }
}
