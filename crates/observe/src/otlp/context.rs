//! A run's place in a trace: what its caller said of it (W3C Trace Context, level 1), and what whoever is called for it is told.
//!
//! Invariant: what does not follow the specification is as if it had not been sent; nothing that a caller sends is kept beyond its limits.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::Deserialize;

/// Longest `tracestate` that is kept, in bytes.
pub const STATE_MAX_LEN: usize = 512;
/// Most members of a `tracestate`.
const MEMBERS_MAX: usize = 32;
/// Length of a `traceparent` of version 00.
const PARENT_LEN: usize = 55;
/// The flag of a trace that its caller records.
const SAMPLED: u8 = 1;
/// The flag of a trace whose id is random (level 2).
const RANDOM: u8 = 2;

/// What a caller says of the trace that its request belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    trace: u128,
    parent: u64,
    flags: u8,
    state: Option<Arc<str>>,
}

/// `len` lower-case hexadecimal digits.
fn hex(text: &str, len: usize) -> Option<u128> {
    let is_hex = text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hex { u128::from_str_radix(text, 16).ok() } else { None }
}

impl Incoming {
    /// Reads `traceparent`, and of `tracestate` what is there and can be read. `None` if the first is none, and then the second means nothing.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Incoming> {
        let text = traceparent.trim_matches([' ', '\t']);
        let (version, known) = (hex(text.get(..2)?, 2)?, text.get(..PARENT_LEN)?);
        // A later version may say more, behind a further dash.
        let rest = &text[PARENT_LEN..];
        if version == 0xff || (version == 0 && !rest.is_empty()) || !(rest.is_empty() || rest.starts_with('-')) {
            return None;
        }
        let mut parts = known.split('-').skip(1);
        let (trace, parent, flags) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        if trace == 0 || parent == 0 || parts.next().is_some() {
            return None;
        }
        let (parent, flags) = (u64::try_from(parent).ok()?, u8::try_from(flags).ok()? & (SAMPLED | RANDOM));
        Some(Incoming { trace, parent, flags, state: tracestate.and_then(state) })
    }

    /// As it came, for whoever makes no spans of its own.
    pub fn traceparent(&self) -> String {
        parent(self.trace, self.parent, self.flags)
    }

    /// What came in `tracestate`.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

fn parent(trace: u128, span: u64, flags: u8) -> String {
    format!("00-{trace:032x}-{span:016x}-{flags:02x}")
}

/// A `tracestate` that can be passed on, without its empty members.
fn state(text: &str) -> Option<Arc<str>> {
    let members: Vec<&str> = text.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|member| !member.is_empty()).collect();
    let kept = members.join(",");
    let is_named = |name: &str| {
        let of_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
        (1..=256).contains(&name.len()) && name.bytes().all(of_name) && !name.starts_with(['_', '-', '*', '/', '@'])
    };
    let of_value = |byte: u8| (0x20..=0x7e).contains(&byte) && byte != b'=';
    let is_member = |member: &&str| {
        member
            .split_once('=')
            .is_some_and(|(name, value)| is_named(name) && (1..=256).contains(&value.len()) && value.bytes().all(of_value))
    };
    let mut names: Vec<&str> = members.iter().filter_map(|member| member.split('=').next()).collect();
    names.sort_unstable();
    names.dedup();
    let is_good = members.iter().all(is_member) && names.len() == members.len() && (1..=MEMBERS_MAX).contains(&members.len());
    (is_good && kept.len() <= STATE_MAX_LEN).then(|| kept.into())
}

/// Which runs are exported.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub enum Sample {
    /// All, also those whose caller says that it does not record their trace.
    Always,
    /// Those whose caller records their trace, and of those without one this part, from 0 to 1.
    Parent(f64),
}

impl Sample {
    /// Whether a run is exported whose caller says this of its trace, or nothing.
    fn takes(self, incoming: Option<&Incoming>, trace: u128) -> bool {
        match (self, incoming) {
            (Sample::Always, _) => true,
            (Sample::Parent(_), Some(incoming)) => incoming.is_sampled(),
            // By the id's random part, as OpenTelemetry's samplers choose: all that have one threshold choose the same.
            (Sample::Parent(part), None) => (trace & ((1 << 56) - 1)) >= ((1.0 - part) * (1_u64 << 56) as f64) as u128,
        }
    }
}

impl FromStr for Sample {
    type Err = String;

    fn from_str(text: &str) -> Result<Sample, String> {
        match text {
            "always" => Ok(Sample::Always),
            "parent" => Ok(Sample::Parent(1.0)),
            ratio => match ratio.parse::<f64>() {
                Ok(part) if (0.0..=1.0).contains(&part) => Ok(Sample::Parent(part)),
                _ => Err("must be `always`, `parent`, or a number from 0 to 1".to_owned()),
            },
        }
    }
}

impl TryFrom<String> for Sample {
    type Error = String;

    fn try_from(text: String) -> Result<Sample, String> {
        text.parse()
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sample::Always => f.write_str("always"),
            Sample::Parent(1.0) => f.write_str("parent"),
            Sample::Parent(part) => part.fmt(f),
        }
    }
}

/// A run's own place in a trace: the ids of all its spans are known when it begins, since others are told of them before they are exported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunTrace {
    trace: u128,
    parent: Option<u64>,
    state: Option<Arc<str>>,
    flags: u8,
    seed: u64,
}

impl RunTrace {
    /// The place of a run that came with this, drawn from these random numbers.
    pub fn of(incoming: Option<Incoming>, sample: Sample, (trace, seed): (u128, u64)) -> RunTrace {
        // No id is zero.
        let own = trace.max(1);
        let sampled = sample.takes(incoming.as_ref(), own);
        let keep = |flags: u8| (flags & !SAMPLED) | u8::from(sampled);
        match incoming {
            Some(Incoming { trace, parent, flags, state }) => RunTrace { trace, parent: Some(parent), state, flags: keep(flags), seed },
            None => RunTrace { trace: own, parent: None, state: None, flags: keep(RANDOM), seed },
        }
    }

    /// Whether its spans are exported.
    pub const fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// What whoever is asked by this attempt is told: that the attempt's span is its caller.
    pub fn traceparent(&self, attempt: u32) -> String {
        parent(self.trace, self.span(u64::from(attempt)), self.flags)
    }

    /// What came in `tracestate`.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// The trace's id, as people write it.
    pub fn id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    pub(super) fn trace_bytes(&self) -> Vec<u8> {
        self.trace.to_be_bytes().to_vec()
    }

    pub(super) const fn parent(&self) -> Option<u64> {
        self.parent
    }

    pub(super) fn flags(&self) -> u32 {
        self.flags.into()
    }

    /// The id of the run's span of this number: 0 is the run's own, then each attempt has its own number, and the others come behind. A
    /// permutation of all numbers (splitmix64), so that no two of a run are one.
    pub(super) const fn span(&self, number: u64) -> u64 {
        let mut z = self.seed.wrapping_add(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        match z ^ (z >> 31) {
            // The one number that is no id.
            0 => 0x6b76_6974,
            id => id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_as_the_specification_says_and_passed_on_as_it_came() {
        let read = Incoming::parse(GOOD, Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")).expect("the specification's own example");
        assert_eq!((read.trace, read.parent, read.is_sampled()), (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 0xb7ad_6b71_6920_3331, true));
        assert_eq!((read.traceparent().as_str(), read.state()), (GOOD, Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")));
        // A later version is read as far as it is known, and answered in this one.
        let later = format!("cc{}-what-the-future-will-be-like", &GOOD[2..]);
        assert_eq!(Incoming::parse(&later, None).map(|read| read.traceparent()).as_deref(), Some(GOOD));
        let unsampled = format!("{}00", &GOOD[..53]);
        assert!(!Incoming::parse(&unsampled, None).expect("well formed").is_sampled());
    }

    #[test]
    fn what_is_no_traceparent_is_ignored() {
        let zero = |from: usize, len: usize| GOOD[..from].to_owned() + &"0".repeat(len) + &GOOD[from + len..];
        let mut bad = vec![
            String::new(),
            "00".to_owned(),
            "garbage".to_owned(),
            GOOD.to_uppercase(),
            format!("ff{}", &GOOD[2..]),
            format!("0x{}", &GOOD[2..]),
            format!("{GOOD}-00"),
            format!("{GOOD}0"),
            format!("cc{}.extra", &GOOD[2..]),
            GOOD[..54].to_owned(),
            GOOD.replace('-', "_"),
            zero(3, 32),
            zero(36, 16),
            "é".repeat(40),
            format!("00-{}", "é".repeat(30)),
            GOOD.replace("331-01", "331-+1"),
        ];
        bad.extend((0..GOOD.len()).map(|at| GOOD[..at].to_owned() + "g" + &GOOD[at + 1..]));
        for text in bad {
            assert_eq!(Incoming::parse(&text, None), None, "{text}");
        }
    }

    #[test]
    fn a_tracestate_that_cannot_be_passed_on_is_dropped_alone() {
        let state = |text: &str| Incoming::parse(GOOD, Some(text)).expect("the parent stands").state().map(str::to_owned);
        assert_eq!(state(" a=1 ,, b@t=x y "), Some("a=1,b@t=x y".to_owned()));
        let many = |n: usize| (0..n).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        assert!(state(&many(32)).is_some());
        for bad in ["", "a", "a=", "=1", "A=1", "a=1,a=2", "a=\u{7f}", "a=b=c", &many(33), &format!("a={}", "x".repeat(STATE_MAX_LEN))] {
            assert_eq!(state(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_callers_word_on_recording_holds_unless_always_is_said() {
        let parent = |flags: &str| Incoming::parse(&format!("{}{flags}", &GOOD[..53]), None);
        let taken = |sample: Sample, incoming| RunTrace::of(incoming, sample, (0x80_0000_0000_0000, 1)).is_sampled();
        assert!(taken(Sample::Parent(0.0), parent("01")) && !taken(Sample::Parent(1.0), parent("00")));
        assert!(taken(Sample::Always, parent("00")) && taken(Sample::Parent(1.0), None));
        // Half of all ids are below this one.
        assert!(taken(Sample::Parent(0.5), None) && !taken(Sample::Parent(0.49), None) && !taken(Sample::Parent(0.0), None));
        for text in ["always", "parent", "0.25", "0"] {
            assert_eq!(text.parse::<Sample>().expect("a sample").to_string(), text);
        }
        assert!(["", "never", "1.1", "-1", "NaN"].iter().all(|text| text.parse::<Sample>().is_err()));
    }

    #[test]
    fn each_span_of_a_run_has_an_id_of_its_own_and_the_attempts_is_told() {
        let trace = RunTrace::of(Incoming::parse(GOOD, None), Sample::Always, (7, 0x1234));
        let mut ids: Vec<u64> = (0..10_000).map(|number| trace.span(number)).collect();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() == 10_000 && ids[0] > 0);
        let told = Incoming::parse(&trace.traceparent(2), None).expect("well formed");
        assert_eq!((told.trace, told.parent), (0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, trace.span(2)));
        assert_ne!(RunTrace::of(None, Sample::Always, (7, 1)).span(0), RunTrace::of(None, Sample::Always, (7, 2)).span(0));
    }
}
