//! From what was seen of tries to a verdict on their cell.
//!
//! One try that shows a fault convicts: a stack that stops most of the time wastes the rest of the time. Tries that say nothing do not count, and
//! if none says anything the verdict is "not proven", with what is missing.
//!
//! Invariant: pure; the same tries give the same verdict.

use super::boundary::{Stop, Way, boundaries};
use super::cell::{Cell, Phase, Trigger};
use super::device::LATE_MS;
use super::result::{EngineSaw, Fault, Judged, NeighbourText, Source, Try, Verdict};

/// What a verdict allows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tolerance {
    /// Tokens that may be generated for a request after it was left: what is in flight, and a step or two.
    pub tokens: f64,
    /// Prompt tokens that may be: what is in the chunk that is being computed.
    pub prompt_tokens: f64,
    /// How long the work may go on, in milliseconds.
    pub stop_ms: f64,
    /// Whether a caller that closes its sending side alone may be taken for one that left.
    pub half_close_leaves: bool,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { tokens: 16.0, prompt_tokens: 2048.0, stop_ms: 2000.0, half_close_leaves: true }
    }
}

/// What is said of a pass by a tap's stamp where the processor did not rest.
const BUSY: &str =
    "its processes were busy on when the engine had closed its side: other work, or work that a closed connection does not end";

/// What one try shows.
struct Finding {
    verdict: Verdict,
    by: Vec<Source>,
    tokens: Option<f64>,
    steps: Option<f64>,
    stop_ms: Option<f64>,
    capacity_ms: Option<f64>,
    /// What has to be said of a pass.
    note: Option<String>,
}

/// Judges a cell.
pub fn judge(cell: Cell, tries: Vec<Try>, tolerance: &Tolerance, way: &Way) -> Judged {
    let findings: Vec<Finding> = tries.iter().map(|seen| find(cell, seen, tolerance, way)).collect();
    let fails = findings.iter().filter(|finding| finding.verdict.is_fail()).count();
    let passes = findings.iter().filter(|finding| finding.verdict == Verdict::Pass).count();
    let worst = findings
        .iter()
        .filter(|finding| finding.verdict.is_fail())
        .max_by(|a, b| a.tokens.partial_cmp(&b.tokens).unwrap_or(std::cmp::Ordering::Equal));
    let verdict = match (worst.map(|finding| finding.verdict.clone()), passes, findings.first()) {
        (Some(Verdict::Fail { fault, why }), _, _) if fails < fails + passes => {
            Verdict::Fail { fault, why: format!("{why} ({fails} of {} tries)", fails + passes) }
        }
        (Some(fail), _, _) => fail,
        (None, 1.., _) => Verdict::Pass,
        (None, 0, Some(first)) => first.verdict.clone(),
        (None, 0, None) => Verdict::NotProven { missing: "it was not tried".to_owned() },
    };
    let counts = |finding: &&Finding| matches!(finding.verdict, Verdict::Pass | Verdict::Fail { .. });
    let counted: Vec<&Finding> = findings.iter().filter(counts).collect();
    let mut by: Vec<Source> = counted.iter().flat_map(|finding| finding.by.iter().copied()).collect();
    by.sort_unstable();
    by.dedup();
    // Where it was lost is asked of the tries in which it was.
    let lost = went_on(&verdict);
    let of: Vec<&Try> =
        tries.iter().zip(&findings).filter(|(_, finding)| !lost || went_on(&finding.verdict)).map(|(seen, _)| seen).collect();
    let stopped = counted.iter().filter(|finding| !went_on(&finding.verdict));
    let stop = Stop {
        in_time: median(stopped.filter_map(|finding| finding.stop_ms)),
        by: counted.iter().flat_map(|finding| finding.by.iter().copied()).next(),
    };
    let (boundaries, lost_at) = boundaries(cell, &of, way, tolerance, &stop, lost);
    Judged {
        cell,
        by,
        tries: (fails + passes) as u64,
        tokens_after: median(counted.iter().filter_map(|finding| finding.tokens)),
        steps_after: median(counted.iter().filter_map(|finding| finding.steps)),
        stop_ms: median(counted.iter().filter_map(|finding| finding.stop_ms)),
        capacity_ms: median(counted.iter().filter_map(|finding| finding.capacity_ms)),
        boundaries,
        lost_at,
        advice: Vec::new(),
        note: findings.iter().filter(|finding| verdict == Verdict::Pass && finding.verdict == verdict).find_map(|of| of.note.clone()),
        verdict,
        seen: tries,
    }
}

/// The middle one; of an even number the lower of the two.
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len().saturating_sub(1) / 2).copied()
}

/// Whether it says that the wish to end was lost on its way, or came too late.
fn went_on(verdict: &Verdict) -> bool {
    use Fault::{CancelDoesNothing, NeverStops, QueuedIsBegun, StopsAtNextWrite, StopsLate};
    let Verdict::Fail { fault, .. } = verdict else { return false };
    matches!(fault, NeverStops | StopsAtNextWrite | StopsLate | QueuedIsBegun | CancelDoesNothing)
}

fn fail(fault: Fault, why: String) -> Verdict {
    Verdict::Fail { fault, why }
}

fn find(cell: Cell, seen: &Try, tolerance: &Tolerance, way: &Way) -> Finding {
    let plain = |verdict, by| Finding { verdict, by, tokens: None, steps: None, stop_ms: None, capacity_ms: None, note: None };
    let nothing = |missing: String| plain(Verdict::NotProven { missing }, Vec::new());
    if let Some(why) = &seen.void {
        return nothing(why.clone());
    }
    if seen.entered.is_none() {
        return nothing(format!("the phase `{}` was not seen", cell.phase));
    }
    // Who closed one side only and got all is well served.
    let half = seen.client.end.as_deref().filter(|_| cell.trigger == Trigger::HalfClose);
    if half == Some("complete") {
        return plain(Verdict::Pass, vec![Source::Client]);
    }
    let cut = half.map(|end| format!("its answer ended `{end}` behind {} of {} tokens", seen.client.tokens, seen.asked_tokens));
    if let Some(cut) = cut.as_ref().filter(|_| !tolerance.half_close_leaves) {
        let why = format!("a caller that closed its sending side alone, and still read, was taken for one that left: {cut}");
        return plain(fail(Fault::WantedIsCancelled, why), vec![Source::Client]);
    }
    // What buffers on the way take is made for nobody, and is no work that went on.
    let (tokens, stop_ms) = (tolerance.tokens + seen.unread_tokens as f64, tolerance.stop_ms + seen.unread_ms);
    let tolerance = &Tolerance { tokens, stop_ms, ..*tolerance };
    let work = Work::of(seen, way, tolerance);
    let verdict = match (beside(seen), work.verdict(cell, seen, tolerance)) {
        (Some(fault), _) => fault,
        (None, Verdict::Pass) if seen.neighbour.as_ref().is_some_and(|neighbour| neighbour.text.is_none()) => {
            let missing =
                "its work stopped; but the neighbour's text depends on what is computed beside it, so nothing can be said of that";
            Verdict::NotProven { missing: missing.to_owned() }
        }
        (None, verdict) => verdict,
    };
    let capacity_ms = seen.engine.as_ref().and_then(|engine| engine.capacity_ms);
    let ended = (verdict == Verdict::Pass && work.ended_by_itself(cell, seen, tolerance)).then(|| {
        let left = left(seen);
        format!("it ended before it could be stopped: {left} tokens were left, {} are allowed", tolerance.tokens)
    });
    let note = cut
        .map(|cut| format!("half a close is taken for a whole one ({cut}); if such callers stay, say half_close_leaves = false"))
        .or(ended)
        .or_else(|| work.busy.then(|| BUSY.to_owned()));
    Finding { verdict, by: work.by, tokens: work.tokens, steps: work.steps, stop_ms: work.stop_ms, capacity_ms, note }
}

/// What a neighbour that shares its prompt's beginning had of the departure.
fn beside(seen: &Try) -> Option<Verdict> {
    let neighbour = seen.neighbour.as_ref()?;
    match neighbour.text {
        _ if neighbour.end != "complete" => {
            let why = format!(
                "a neighbour that shares its prefix, and that nobody left, ended `{}` behind {} tokens",
                neighbour.end, neighbour.tokens
            );
            Some(fail(Fault::WantedIsCancelled, why))
        }
        Some(NeighbourText::Cut) => {
            let why = format!("a neighbour that shares its prefix, and that nobody left, had only {} tokens", neighbour.tokens);
            Some(fail(Fault::WantedIsCancelled, why))
        }
        Some(NeighbourText::Other) => {
            let why = "a neighbour that shares its prefix said something else than beside the same request that nobody leaves";
            Some(fail(Fault::NeighboursCorrupted, why.to_owned()))
        }
        Some(NeighbourText::Own) | None => None,
    }
}

/// Tokens that were not generated yet when the request was left, as far as that is known.
fn left(seen: &Try) -> f64 {
    // What was made of an answer that comes whole, nobody has read.
    let made = seen.engine.as_ref().and_then(|engine| engine.tokens_before).unwrap_or(0.0).max(seen.client.tokens as f64);
    (seen.asked_tokens as f64 - made).max(0.0)
}

/// What is known of the work that went on after the trigger.
#[derive(Default)]
struct Work {
    by: Vec<Source>,
    tokens: Option<f64>,
    prompt: Option<f64>,
    steps: Option<f64>,
    stop_ms: Option<f64>,
    /// When it was surely still there: of looks the last that counted it. A judge that is late itself sees the end late, too.
    there_ms: Option<f64>,
    /// It was watched to the end of what it could have been, and did not stop before.
    outlived: bool,
    /// A tap says that the engine closed its side, and the processor was busy on.
    busy: bool,
}

impl Work {
    fn of(seen: &Try, way: &Way, tolerance: &Tolerance) -> Work {
        let mut work = Work::default();
        if let Some(engine) = &seen.engine {
            let source = if engine.polled { Source::Counters } else { Source::CountersApart };
            (work.tokens, work.prompt, work.steps, work.stop_ms) =
                (engine.tokens_after, engine.prompt_after, engine.steps_after, engine.gone_ms);
            if work.tokens.is_some() || work.stop_ms.is_some() {
                work.by.push(source);
            }
            let gone = engine.gone_ms.filter(|_| engine.polled);
            let last = |gone: f64| {
                engine.after.iter().filter(|look| look.ended_ms < gone).map(|look| look.began_ms - engine.stale_ms).reduce(f64::max)
            };
            work.there_ms = gone.map(|gone| last(gone).unwrap_or(0.0));
            let has_counts = engine.after.iter().any(|look| look.running.is_some());
            work.outlived = (engine.polled && has_counts && engine.gone_ms.is_none()) || engine.outlived_ms.is_some();
            if engine.outlived_ms.is_some() {
                (work.stop_ms, work.there_ms) = (None, engine.outlived_ms);
            }
            if work.outlived && work.by.is_empty() {
                work.by.push(source);
            }
        }
        let tap = seen.taps.last().filter(|tap| tap.requests > 0 && !tap.is_refusal());
        // An engine that closed its side by itself was told, and when stands at the tap; whose work keeps a processor busy nobody knows.
        let told = tap.filter(|tap| way.is_before_engine(&tap.name)).and_then(|tap| tap.up_closed_ms);
        work.stop_ms = work.stop_ms.or(told.filter(|_| !work.outlived));
        // What computes tells before what looks after it.
        for (load, source, late_ms) in [(&seen.gpu, Source::Gpu, LATE_MS), (&seen.cpu, Source::Cpu, 0.0)] {
            let Some(load) = load.as_ref().filter(|_| source == Source::Gpu || seen.gpu.is_none()) else { continue };
            let quiet_ms = load.quiet_ms.map(|ms| (ms - late_ms).max(0.0));
            work.busy = told.is_some() && quiet_ms.is_none_or(|ms| ms > tolerance.stop_ms);
            if !work.busy {
                work.by.push(source);
            }
            // Counters know the request from others; where they say that it is gone, somebody else may be at work.
            work.outlived |= quiet_ms.is_none() && work.stop_ms.is_none();
            work.stop_ms = work.stop_ms.or(quiet_ms);
        }
        // The tap next to the engine: what passed there was computed, and where the engine's side was closed it was told.
        if let Some(tap) = tap {
            // A stream of which little was left when it was left may as well come to its end.
            let served = tap.complete && (tap.events == 0 || tap.events_after as f64 > tolerance.tokens);
            // One with further hops behind it convicts by an answer that came whole, and acquits of nothing.
            if !way.is_before_engine(&tap.name) {
                if served && work.stop_ms.is_none() {
                    (work.outlived, _) = (true, work.by.push(Source::Tap));
                }
                return work;
            }
            work.by.push(Source::Tap);
            work.tokens = work.tokens.or(Some(tap.events_after as f64).filter(|_| tap.last_byte_ms.is_some()));
            work.outlived |= served && work.stop_ms.is_none();
        }
        work
    }

    fn verdict(&self, cell: Cell, seen: &Try, tolerance: &Tolerance) -> Verdict {
        if let Some(tap) = seen.taps.iter().find(|tap| tap.requests > 1) {
            let why = format!("{} requests of one id passed the tap {}", tap.requests, tap.name);
            return fail(Fault::AskedAgain, why);
        }
        if let Some(asked) = seen.engine.as_ref().and_then(|engine| engine.asked).filter(|asked| *asked > 1.0) {
            return fail(Fault::AskedAgain, format!("the engine was given one request {asked} times"));
        }
        if self.by.is_empty() {
            let missing = "neither counters, nor taps, nor processor time say whether the work stopped: --engine URL, --tap or --pid would";
            return Verdict::NotProven { missing: missing.to_owned() };
        }
        if cell.phase == Phase::Queued && seen.engine.as_ref().is_none_or(|engine| engine.asked != Some(0.0)) {
            if let Some(begun) = self.begun() {
                return fail(Fault::QueuedIsBegun, begun);
            }
            // A queue that it has left may have been left for a slot.
            if self.tokens.is_none() && self.prompt.is_none() && !self.outlived {
                let missing = "no count of tokens says whether it was begun: `generated` in --profile, or a tap in front of the engine";
                return Verdict::NotProven { missing: missing.to_owned() };
            }
        }
        if let Some(fault) = self.goes_on(cell, seen, tolerance) {
            return fault;
        }
        let ended = self.ended_by_itself(cell, seen, tolerance);
        let left = left(seen);
        let all_was_made = self.tokens.is_some_and(|tokens| tokens >= left);
        if !ended && cell.phase != Phase::Queued && left > 0.0 && left <= tolerance.tokens && all_was_made {
            let missing = format!(
                "all of the {left} tokens that were left were generated, and that many are allowed: longer answers or fewer allowed tokens tell \
                 (`max_tokens`, `tokens` in --settings)"
            );
            return Verdict::NotProven { missing };
        }
        let wrong = seen.record.as_deref().filter(|record| record.starts_with("completed") || record.starts_with("failed"));
        if let Some(record) = wrong.filter(|_| cell.trigger.is_departure() && !ended) {
            return fail(Fault::WrongOutcome, format!("the stack's own record says `{record}` of a request that was left"));
        }
        Verdict::Pass
    }

    /// Whether it came to its own end before it could be stopped, by the stack's own record: no more tokens were left than are allowed, and the
    /// end came in time.
    fn ended_by_itself(&self, cell: Cell, seen: &Try, tolerance: &Tolerance) -> bool {
        // What was made between the last look and the departure nobody has seen; that all was made, sums at rest say.
        let all_made = seen.engine.as_ref().and_then(|engine| {
            let since = engine.rest.as_ref()?.generated? - engine.before.as_ref()?.generated?;
            Some(engine.tokens_before? + since >= seen.asked_tokens as f64)
        });
        let was_near = left(seen) <= tolerance.tokens || all_made == Some(true);
        let is_near = was_near && self.tokens.is_none_or(|tokens| tokens <= tolerance.tokens);
        let in_time = self.stop_ms.is_none_or(|ms| ms <= tolerance.stop_ms) && !self.outlived;
        let completed = seen.record.as_deref().is_some_and(|record| record.starts_with("completed"));
        completed && cell.phase != Phase::Queued && cell.trigger.is_departure() && is_near && in_time
    }

    /// Whether a request that waited was begun after it was left.
    fn begun(&self) -> Option<String> {
        let tokens = self.tokens.filter(|tokens| *tokens >= 1.0).map(|tokens| format!("{tokens} tokens"));
        let prompt = self.prompt.filter(|tokens| *tokens >= 1.0).map(|tokens| format!("{tokens} prompt tokens"));
        tokens.or(prompt).map(|what| format!("{what} were computed for a request that still waited when its caller left"))
    }

    fn goes_on(&self, cell: Cell, seen: &Try, tolerance: &Tolerance) -> Option<Verdict> {
        let left = left(seen);
        let is_late = self.there_ms.or(self.stop_ms).is_some_and(|ms| ms > tolerance.stop_ms);
        // Sums that were taken at rest know how much was made: an end that looks like the answer's own is none if most of it was not made.
        // `llama-server` ends an answer that it gave up like one that is whole; other work may keep a processor busy.
        let counts = |engine: &EngineSaw| {
            engine.tokens_after.is_some() && engine.gone_ms.is_none() && engine.outlived_ms.is_none() && !engine.polled
        };
        let stopped_short = seen.engine.as_ref().is_some_and(counts) && self.tokens.is_some_and(|tokens| tokens < 0.8 * left);
        let is_long = self.prompt.is_some_and(|tokens| tokens > tolerance.prompt_tokens);
        let fault = match self.tokens {
            Some(tokens) if tokens > tolerance.tokens && tokens >= 0.8 * left => Fault::NeverStops,
            Some(tokens) if tokens > tolerance.tokens => Fault::StopsLate,
            // Nothing was written before the first token, and then it stopped.
            Some(1.0..=2.0) if cell.phase == Phase::Prefill && (is_late || is_long) => Fault::StopsAtNextWrite,
            _ if self.outlived && !stopped_short => Fault::NeverStops,
            _ if is_late => Fault::StopsLate,
            _ if is_long => Fault::StopsLate,
            _ => return None,
        };
        let fault = match (fault, seen.cancel_confirmed) {
            (Fault::NeverStops | Fault::StopsLate, Some(true)) => Fault::CancelDoesNothing,
            (fault, _) => fault,
        };
        let stuck = seen.engine.as_ref().and_then(|engine| engine.outlived_ms);
        let after = match (stuck, self.tokens, self.stop_ms) {
            (Some(ms), ..) => {
                format!("the engine still counted it {ms:.0} ms after it was left, when it would have been over by itself")
            }
            (_, Some(tokens), Some(ms)) => format!("{tokens} of {left} tokens that were left were still generated, for {ms:.0} ms"),
            (_, Some(tokens), None) => format!("{tokens} of {left} tokens that were left were still generated"),
            (_, None, Some(ms)) => format!("it went on for {ms:.0} ms"),
            (_, None, None) => "it was at work for as long as it was watched".to_owned(),
        };
        Some(fail(fault, after))
    }
}

#[cfg(test)]
mod tests {
    use super::super::result::{ClientSaw, CpuSaw, Hop, Look, NeighbourSaw, TapSaw};
    use super::*;

    const CELL: Cell = Cell::new(Phase::EarlyDecode, Trigger::Close);

    /// A try of 100 tokens of which 3 were read.
    fn tried(tokens_after: Option<f64>, gone_ms: Option<f64>) -> Try {
        let still_ms = gone_ms.map_or(0.0, |ms| ms - 1.0);
        let look = Look { running: Some(1.0), began_ms: still_ms, ended_ms: still_ms, ..Look::default() };
        Try {
            entered: Some(Source::Client),
            asked_tokens: 100,
            client: ClientSaw { tokens: 3, ..ClientSaw::default() },
            engine: Some(EngineSaw { after: vec![look], gone_ms, tokens_after, polled: true, ..EngineSaw::default() }),
            ..Try::default()
        }
    }

    fn verdict(cell: Cell, seen: Try) -> Verdict {
        judge(cell, vec![seen], &Tolerance::default(), &Way::default()).verdict
    }

    /// An engine that goes on to a near end is not told from one that stops there.
    #[test]
    fn what_is_allowed_to_the_last_token_proves_nothing() {
        let short = |after| Try { asked_tokens: 8, ..tried(Some(after), Some(20.0)) };
        assert!(matches!(verdict(CELL, short(5.0)), Verdict::NotProven { .. }));
        assert_eq!(verdict(CELL, short(2.0)), Verdict::Pass);
    }

    #[test]
    fn a_queue_that_was_left_is_no_proof_where_nobody_counts_tokens() {
        let queued = Cell::new(Phase::Queued, Trigger::Close);
        let asked = |asked| {
            let mut seen = tried(None, Some(20.0));
            seen.engine.as_mut().expect("it was looked at").asked = asked;
            seen
        };
        assert!(matches!(verdict(queued, asked(None)), Verdict::NotProven { .. }));
        assert_eq!(verdict(queued, asked(Some(0.0))), Verdict::Pass, "a tap says that it never came");
    }

    fn fault(verdict: Verdict) -> Option<Fault> {
        if let Verdict::Fail { fault, .. } = verdict { Some(fault) } else { None }
    }

    #[test]
    fn what_the_counters_say() {
        assert_eq!(verdict(CELL, tried(Some(2.0), Some(40.0))), Verdict::Pass);
        assert_eq!(fault(verdict(CELL, tried(Some(97.0), Some(1900.0)))), Some(Fault::NeverStops));
        assert_eq!(fault(verdict(CELL, tried(Some(40.0), Some(900.0)))), Some(Fault::StopsLate));
        assert_eq!(fault(verdict(CELL, tried(Some(2.0), Some(5000.0)))), Some(Fault::StopsLate));
        assert_eq!(fault(verdict(CELL, tried(None, None))), Some(Fault::NeverStops), "it was still counted when the watch was over");
        // What the last look counted may have been over for as long as its gauges may be old.
        let mut old = tried(Some(2.0), Some(5000.0));
        old.engine.iter_mut().for_each(|engine| engine.stale_ms = 4000.0);
        assert_eq!(verdict(CELL, old), Verdict::Pass);
        // It had stopped by then; when, a judge that did not look meanwhile does not know.
        let mut unseen = tried(Some(2.0), Some(5000.0));
        unseen.engine.iter_mut().flat_map(|engine| &mut engine.after).for_each(|look| (look.began_ms, look.ended_ms) = (40.0, 41.0));
        assert_eq!(verdict(CELL, unseen), Verdict::Pass);
        let prefill = Cell { phase: Phase::Prefill, ..CELL };
        assert_eq!(fault(verdict(prefill, tried(Some(1.0), Some(5000.0)))), Some(Fault::StopsAtNextWrite));
        let queued = Cell { phase: Phase::Queued, ..CELL };
        assert_eq!(fault(verdict(queued, tried(Some(1.0), Some(10.0)))), Some(Fault::QueuedIsBegun));
        assert_eq!(verdict(queued, tried(Some(0.0), Some(10.0))), Verdict::Pass);
    }

    /// An engine that keeps a request for ever makes no token of it: it is the place that is never free.
    #[test]
    fn what_is_still_counted_when_it_would_be_over_has_not_stopped() {
        let stuck = |polled, gone_ms| {
            let engine = EngineSaw { outlived_ms: Some(4000.0), tokens_after: Some(0.0), gone_ms, polled, ..EngineSaw::default() };
            Try { engine: Some(engine), ..tried(None, None) }
        };
        for polled in [true, false] {
            let Verdict::Fail { fault, why } = verdict(CELL, stuck(polled, None)) else { panic!("it is stuck") };
            assert!(fault == Fault::NeverStops && why.contains("still counted it 4000 ms"), "{fault}: {why}");
        }
        // It left the queue for a slot, and stays there.
        let queued = Cell { phase: Phase::Queued, ..CELL };
        let untold =
            Try { engine: stuck(true, Some(20.0)).engine.map(|engine| EngineSaw { tokens_after: None, ..engine }), ..stuck(true, None) };
        assert_eq!(fault(verdict(queued, untold)), Some(Fault::NeverStops));
    }

    #[test]
    fn one_try_that_shows_a_fault_convicts_and_tries_that_show_nothing_do_not_count() {
        let good = || tried(Some(1.0), Some(10.0));
        let void = || Try { void: Some("no slot was free".to_owned()), ..Try::default() };
        let judged = judge(CELL, vec![good(), tried(Some(97.0), None), void()], &Tolerance::default(), &Way::default());
        assert_eq!((fault(judged.verdict.clone()), judged.tries), (Some(Fault::NeverStops), 2));
        assert!(format!("{:?}", judged.verdict).contains("1 of 2 tries"), "{:?}", judged.verdict);
        assert_eq!(judge(CELL, vec![void(), good()], &Tolerance::default(), &Way::default()).verdict, Verdict::Pass);
        let judged = judge(CELL, vec![void()], &Tolerance::default(), &Way::default());
        assert_eq!(judged.verdict, Verdict::NotProven { missing: "no slot was free".to_owned() });
        assert!(matches!(judge(CELL, Vec::new(), &Tolerance::default(), &Way::default()).verdict, Verdict::NotProven { .. }));
        let unseen = Try { engine: None, ..good() };
        assert!(matches!(verdict(CELL, unseen), Verdict::NotProven { missing } if missing.contains("--tap")));
    }

    #[test]
    fn without_counters_taps_and_processor_time_say_it() {
        let tap = |events_after, up_closed_ms, complete| TapSaw {
            name: "t".to_owned(),
            requests: 1,
            down_closed_ms: Some(1.0),
            up_closed_ms,
            events_after,
            complete,
            last_byte_ms: Some(2.0),
            ..TapSaw::default()
        };
        let with = |tap| Try { engine: None, taps: vec![tap], ..tried(None, None) };
        assert_eq!(verdict(CELL, with(tap(1, Some(3.0), false))), Verdict::Pass);
        assert_eq!(fault(verdict(CELL, with(tap(97, None, true)))), Some(Fault::NeverStops));
        let twice = TapSaw { requests: 2, ..tap(1, Some(3.0), false) };
        assert_eq!(fault(verdict(CELL, with(twice))), Some(Fault::AskedAgain));
        let near_end = TapSaw { events: 100, ..tap(3, None, true) };
        assert_eq!(verdict(Cell { phase: Phase::NearEnd, ..CELL }, with(near_end)), Verdict::Pass, "three tokens are no work that went on");
        // Other work keeps a processor busy; the engine's own close has a stamp.
        let noisy = |quiet_ms| {
            let cpu = Some(CpuSaw { busy: 1.0, idle: 0.0, quiet_ms });
            judge(CELL, vec![Try { cpu, ..with(tap(1, Some(3.0), false)) }], &Tolerance::default(), &Way::default())
        };
        for quiet_ms in [None, Some(9000.0)] {
            let judged = noisy(quiet_ms);
            assert_eq!((judged.verdict, judged.by, judged.stop_ms), (Verdict::Pass, vec![Source::Tap], Some(3.0)));
            assert!(judged.note.is_some_and(|note| note.contains("busy on")));
        }
        let quiet = noisy(Some(100.0));
        assert_eq!((quiet.verdict, quiet.by, quiet.stop_ms, quiet.note), (Verdict::Pass, vec![Source::Tap, Source::Cpu], Some(3.0), None));
        let unclosed = Try { cpu: Some(CpuSaw { busy: 1.0, idle: 0.0, quiet_ms: None }), ..with(tap(1, None, false)) };
        assert_eq!(fault(verdict(CELL, unclosed)), Some(Fault::NeverStops), "where no stamp is, the processor's time is all there is");
        let cpu = |quiet_ms| Try { engine: None, cpu: Some(CpuSaw { busy: 1.0, idle: 0.0, quiet_ms }), ..tried(None, None) };
        assert_eq!(verdict(CELL, cpu(Some(100.0))), Verdict::Pass);
        assert_eq!(fault(verdict(CELL, cpu(None))), Some(Fault::NeverStops));
    }

    /// As `llama-server` ends an answer that it gave up, with its sums looked at before and after only.
    #[test]
    fn an_end_that_looks_whole_is_none_if_most_was_not_made() {
        let tap = TapSaw { requests: 1, down_closed_ms: Some(1.0), complete: true, last_byte_ms: Some(900.0), ..TapSaw::default() };
        let made = |tokens| {
            let engine = EngineSaw { tokens_after: Some(tokens), ..EngineSaw::default() };
            Try { engine: Some(engine), taps: vec![tap.clone()], ..tried(None, None) }
        };
        assert_eq!(verdict(CELL, made(9.0)), Verdict::Pass);
        assert_eq!(fault(verdict(CELL, made(44.0))), Some(Fault::StopsLate));
        assert_eq!(fault(verdict(CELL, made(97.0))), Some(Fault::NeverStops));
        let noise = CpuSaw { busy: 1.0, idle: 0.0, quiet_ms: None };
        assert_eq!(verdict(CELL, Try { cpu: Some(noise), ..made(9.0) }), Verdict::Pass);
    }

    /// kvit's gateway asks vLLM for two tokens of its own to see that a step is over.
    #[test]
    fn what_was_never_given_to_the_engine_was_not_begun() {
        let queued = Cell { phase: Phase::Queued, ..CELL };
        let asked = |asked| {
            let seen = tried(Some(4.0), Some(60.0));
            Try { engine: seen.engine.map(|engine| EngineSaw { asked, ..engine }), ..seen }
        };
        assert_eq!(verdict(queued, asked(Some(0.0))), Verdict::Pass);
        assert_eq!(fault(verdict(queued, asked(Some(1.0)))), Some(Fault::QueuedIsBegun));
        assert_eq!(fault(verdict(queued, asked(None))), Some(Fault::QueuedIsBegun));
        assert_eq!(fault(verdict(queued, asked(Some(2.0)))), Some(Fault::AskedAgain));
    }

    #[test]
    fn where_the_wish_was_lost_is_the_first_boundary_that_it_did_not_cross() {
        let tap = |name: &str, down_closed_ms| TapSaw { name: name.to_owned(), requests: 1, down_closed_ms, ..TapSaw::default() };
        let seen = Try { taps: vec![tap("a", Some(1.0)), tap("b", None)], ..tried(Some(97.0), None) };
        let hops = vec![Hop { name: "vllm".to_owned(), kind: None, version: None, config_sha256: None }];
        let way = Way { hops, named: false };
        let judged = judge(CELL, vec![seen], &Tolerance::default(), &way);
        let names: Vec<_> = judged.boundaries.iter().map(|hop| (hop.name.as_str(), hop.crossed_ms)).collect();
        assert_eq!(names, [("client → a", Some(1.0)), ("a → b", None), ("b → vllm", None)]);
        assert_eq!(judged.lost_at.as_deref(), Some("a → b"));
        let judged = judge(CELL, vec![tried(Some(1.0), Some(9.0))], &Tolerance::default(), &way);
        assert_eq!((judged.boundaries.len(), judged.lost_at), (1, None));
    }

    #[test]
    fn a_cancel_that_is_confirmed_and_a_record_that_is_wrong() {
        let cancel = Cell { trigger: Trigger::Cancel, ..CELL };
        let confirmed = Try { cancel_confirmed: Some(true), ..tried(Some(97.0), None) };
        assert_eq!(fault(verdict(cancel, confirmed)), Some(Fault::CancelDoesNothing));
        let recorded = |text: &str| Try { record: Some(text.to_owned()), ..tried(Some(1.0), Some(9.0)) };
        assert_eq!(fault(verdict(CELL, recorded("completed/stop"))), Some(Fault::WrongOutcome));
        assert_eq!(fault(verdict(CELL, recorded("failed/worker_error"))), Some(Fault::WrongOutcome));
        assert_eq!(verdict(CELL, recorded("cancelled/client_closed")), Verdict::Pass);
    }

    /// A departure that races with the answer's own end may lose: the record then says so, and nothing is wrong with it.
    #[test]
    fn what_ended_by_itself_before_it_could_be_stopped_is_no_wrong_outcome() {
        let recorded = |asked_tokens, after, gone_ms, record: &str| {
            let seen = Try { asked_tokens, record: Some(record.to_owned()), ..tried(Some(after), Some(gone_ms)) };
            judge(CELL, vec![seen], &Tolerance::default(), &Way::default())
        };
        for after in [2.0, 9.0] {
            let judged = recorded(12, after, 40.0, "completed/length");
            assert_eq!(judged.verdict, Verdict::Pass);
            assert_eq!(judged.note.as_deref(), Some("it ended before it could be stopped: 9 tokens were left, 16 are allowed"));
        }
        assert_eq!(fault(recorded(12, 2.0, 40.0, "failed/worker_error").verdict), Some(Fault::WrongOutcome));
        assert_eq!(fault(recorded(12, 2.0, 2500.0, "completed/length").verdict), Some(Fault::StopsLate));
        assert_eq!(fault(recorded(100, 2.0, 40.0, "completed/length").verdict), Some(Fault::WrongOutcome), "97 tokens are no race");
        assert_eq!(recorded(100, 2.0, 40.0, "cancelled/client_closed").note, None);
    }

    #[test]
    fn half_a_close_is_well_served_by_all_of_the_answer_or_by_an_end_of_the_work() {
        let half = Cell { trigger: Trigger::HalfClose, ..CELL };
        let served =
            Try { client: ClientSaw { tokens: 100, end: Some("complete".to_owned()), ..ClientSaw::default() }, ..tried(Some(0.0), None) };
        assert_eq!(verdict(half, served), Verdict::Pass);
        assert_eq!(verdict(half, tried(Some(1.0), Some(9.0))), Verdict::Pass);
        assert_eq!(fault(verdict(half, tried(Some(97.0), None))), Some(Fault::NeverStops));
    }

    /// Whether half a close may be taken for a whole one is the user's wish; that it was is told in any case.
    #[test]
    fn half_a_close_that_was_taken_for_a_whole_one_is_told_and_a_fault_where_such_callers_stay() {
        let half = Cell { trigger: Trigger::HalfClose, ..CELL };
        let cut = ClientSaw { tokens: 4, end: Some("closed".to_owned()), ..ClientSaw::default() };
        let seen = Try { client: cut, ..tried(Some(1.0), Some(9.0)) };
        let judged = judge(half, vec![seen.clone()], &Tolerance::default(), &Way::default());
        assert_eq!(judged.verdict, Verdict::Pass);
        assert!(judged.note.is_some_and(|note| note.contains("half_close_leaves = false")));
        let stays = Tolerance { half_close_leaves: false, ..Tolerance::default() };
        let judged = judge(half, vec![seen], &stays, &Way::default());
        let Verdict::Fail { fault, why } = judged.verdict else { panic!("it was cut") };
        assert!(fault == Fault::WantedIsCancelled && why.contains("behind 4 of 100 tokens"), "{why}");
        assert_eq!(judged.note, None);
    }

    #[test]
    fn a_neighbour_that_lost_its_answer_or_says_something_else_convicts() {
        let beside = |end: &str, text| {
            let neighbour = NeighbourSaw { tokens: 40, end: end.to_owned(), text };
            verdict(Cell { shared: true, ..CELL }, Try { neighbour: Some(neighbour), ..tried(Some(1.0), Some(9.0)) })
        };
        assert_eq!(beside("complete", Some(NeighbourText::Own)), Verdict::Pass);
        assert_eq!(fault(beside("closed", None)), Some(Fault::WantedIsCancelled));
        assert_eq!(fault(beside("complete", Some(NeighbourText::Cut))), Some(Fault::WantedIsCancelled));
        assert_eq!(fault(beside("complete", Some(NeighbourText::Other))), Some(Fault::NeighboursCorrupted));
        assert!(matches!(beside("complete", None), Verdict::NotProven { missing } if missing.contains("text")));
    }
}
