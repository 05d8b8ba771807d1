//! The rules one by one, and then all of them against an engine that is simulated with everything that could deceive them.

use proptest::prelude::*;

use super::*;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const FRESH: Freshness = Freshness {
    shown_before: 2,
    counted_within: Duration::from_millis(50),
    needs_witness: false,
    delivered_within: Duration::from_millis(20),
};

fn ledger() -> Ledger {
    Ledger::new(CancelBy::Close, Some(FRESH), ms(1000))
}

fn look(began: u64, ended: u64, present: u64) -> Look {
    Look { began: ms(began), ended: ms(ended), present }
}

fn levels(ledger: &mut Ledger, now: u64) -> Vec<(u64, Level, Option<Duration>)> {
    ledger.verdicts(ms(now)).into_iter().map(|v| (v.id, v.level, v.gone_by)).collect()
}

/// A request that has shown tokens at these moments.
fn with(ledger: &mut Ledger, id: u64, tokens: &[u64]) -> Arc<Tokens> {
    let shown = ledger.sent(id, ms(0));
    tokens.iter().for_each(|t| shown.shown(ms(*t), ms(t - 1)));
    shown
}

#[test]
fn none_there_is_a_proof_if_the_look_began_after_the_close() {
    let mut ledger = ledger();
    with(&mut ledger, 1, &[1, 2]);
    ledger.closed(1, ms(10));
    ledger.looked(look(9, 12, 0));
    assert_eq!(levels(&mut ledger, 12), []);
    ledger.looked(look(13, 14, 1));
    assert_eq!(levels(&mut ledger, 14), []);
    ledger.looked(look(15, 16, 0));
    assert_eq!(levels(&mut ledger, 16), [(1, Level::Observed, Some(ms(16)))]);
    assert_eq!((levels(&mut ledger, 9999), ledger.undecided()), (vec![], 0), "decided once");
}

// contract: C-29
#[test]
fn what_another_engine_shows_proves_nothing_of_the_one_before() {
    let mut ledger = ledger();
    // One that was left, one that still speaks, and one that will end well, all at the former engine.
    with(&mut ledger, 1, &[1, 2]);
    let speaks = with(&mut ledger, 2, &[1, 2]);
    with(&mut ledger, 3, &[1, 2]);
    ledger.closed(1, ms(10));
    ledger.looked(look(11, 12, 2));
    ledger.another(CancelBy::Close, Some(FRESH));
    assert_eq!((ledger.undecided(), ledger.due()), (1, Some(ms(10))));
    assert_eq!(levels(&mut ledger, 13), [(1, Level::BestEffort, None)], "whatever its counters are");
    // One of this engine's own is left and goes on in it; what speaks elsewhere is not it.
    with(&mut ledger, 4, &[14, 15]);
    ledger.closed(4, ms(20));
    ledger.looked(look(21, 22, 1));
    speaks.shown(ms(60), ms(59));
    assert_eq!(levels(&mut ledger, 60), []);
    ledger.looked(look(61, 62, 0));
    assert_eq!(levels(&mut ledger, 62), [(4, Level::Observed, Some(ms(62)))]);
    ledger.ended(3);
    ledger.closed(2, ms(70));
    ledger.looked(look(71, 72, 0));
    assert_eq!(levels(&mut ledger, 72), [(2, Level::BestEffort, None)]);
    assert_eq!((ledger.undecided(), ledger.former.len()), (0, 0));
    let mut nothing = Ledger::new(CancelBy::Nothing, None, ms(1000));
    with(&mut nothing, 1, &[1]);
    nothing.another(CancelBy::Nothing, None);
    nothing.closed(1, ms(10));
    assert_eq!(levels(&mut nothing, 10), [(1, Level::Unsupported, None)]);
}

#[test]
fn counters_that_lied_are_believed_again_only_of_another_engine() {
    let mut ledger = ledger();
    with(&mut ledger, 1, &[1, 2]);
    let other = with(&mut ledger, 2, &[1, 2]);
    ledger.closed(1, ms(10));
    ledger.looked(look(11, 12, 0));
    other.shown(ms(50), ms(49));
    assert_eq!((levels(&mut ledger, 50), ledger.contradictions()), (vec![(1, Level::BestEffort, None)], 1));
    ledger.another(CancelBy::Close, Some(FRESH));
    with(&mut ledger, 3, &[60, 61]);
    ledger.closed(3, ms(70));
    ledger.looked(look(71, 72, 0));
    assert_eq!(levels(&mut ledger, 72), [(3, Level::Observed, Some(ms(72)))]);
}

#[test]
fn whoever_had_not_shown_enough_may_not_be_counted_yet() {
    let mut ledger = ledger();
    with(&mut ledger, 1, &[1]);
    ledger.closed(1, ms(10));
    assert_eq!(ledger.look_from(), Some(ms(60)));
    ledger.looked(look(59, 60, 0));
    assert_eq!(levels(&mut ledger, 60), []);
    ledger.looked(look(60, 61, 0));
    assert_eq!(levels(&mut ledger, 61), [(1, Level::Observed, Some(ms(61)))]);
}

#[test]
fn what_needs_longer_to_come_is_looked_for_later_and_what_may_come_at_any_time_is_proven_by_nothing_but_its_own_tokens() {
    let mut ledger = ledger();
    for id in [1, 2] {
        with(&mut ledger, id, &[1]);
    }
    with(&mut ledger, 3, &[1, 2]);
    ledger.closed_on_its_way(1, ms(10), Some(ms(25)));
    ledger.closed_on_its_way(2, ms(10), None);
    ledger.closed_on_its_way(3, ms(10), None);
    assert_eq!(ledger.look_from(), Some(ms(10)));
    ledger.looked(look(84, 85, 0));
    assert_eq!(levels(&mut ledger, 85), [(2, Level::BestEffort, None), (3, Level::Observed, Some(ms(85)))]);
    ledger.looked(look(85, 86, 0));
    assert_eq!(levels(&mut ledger, 86), [(1, Level::Observed, Some(ms(86)))]);
}

#[test]
fn where_steps_have_no_bound_only_a_later_request_shows_that_one_is_over() {
    let fresh = Freshness { needs_witness: true, ..FRESH };
    let mut ledger = Ledger::new(CancelBy::Close, Some(fresh), ms(1000));
    with(&mut ledger, 1, &[1]);
    ledger.closed(1, ms(10));
    ledger.looked(look(500, 501, 0));
    assert_eq!((levels(&mut ledger, 501), ledger.look_from(), ledger.witness_from()), (vec![], None, Some(ms(60))));
    // One that was sent before that may have come before it.
    let early = ledger.sent(2, ms(59));
    [510, 511].iter().for_each(|t| early.shown(ms(*t), ms(*t - 1)));
    ledger.looked(look(512, 513, 0));
    assert_eq!(levels(&mut ledger, 513), []);
    let witness = ledger.sent(3, ms(60));
    witness.shown(ms(520), ms(519));
    ledger.looked(look(521, 522, 0));
    assert_eq!(levels(&mut ledger, 522), [], "its first token is handed on before its step is counted");
    witness.shown(ms(530), ms(529));
    ledger.ended(3);
    ledger.looked(look(529, 531, 0));
    assert_eq!(levels(&mut ledger, 531), []);
    ledger.looked(look(532, 533, 0));
    assert_eq!(levels(&mut ledger, 533), [(1, Level::Observed, Some(ms(533)))]);
    // One that is asked for nothing else says the same.
    with(&mut ledger, 4, &[]);
    ledger.closed(4, ms(600));
    ledger.witnessed(ms(649), ms(700));
    assert_eq!(ledger.look_from(), None);
    ledger.witnessed(ms(650), ms(700));
    assert_eq!((ledger.look_from(), ledger.witness_from()), (Some(ms(700)), None));
    // Without one nobody ever knows.
    with(&mut ledger, 5, &[]);
    ledger.closed(5, ms(800));
    let given_up = levels(&mut ledger, 1850);
    assert!(given_up.contains(&(5, Level::BestEffort, None)), "{given_up:?}");
}

#[test]
fn an_own_request_accounts_for_one_if_it_shows_a_token_after_the_look_that_was_generated_after_it() {
    let mut ledger = ledger();
    with(&mut ledger, 1, &[1, 2]);
    let other = with(&mut ledger, 2, &[3, 4]);
    ledger.closed(1, ms(10));
    ledger.looked(look(11, 13, 1));
    other.shown(ms(32), ms(32));
    assert_eq!(levels(&mut ledger, 32), [], "that one may be from before the look");
    other.shown(ms(100), ms(32));
    assert_eq!(levels(&mut ledger, 100), [], "and so may that one, which waited to be read");
    other.shown(ms(101), ms(33));
    // Over, closed even: it was there.
    ledger.closed(2, ms(102));
    assert_eq!(levels(&mut ledger, 102), [(1, Level::Observed, Some(ms(13)))]);
    assert_eq!(ledger.undecided(), 1);
}

#[test]
fn one_that_became_certain_within_the_look_accounts_for_nothing() {
    let mut ledger = ledger();
    with(&mut ledger, 1, &[1, 2]);
    let other = with(&mut ledger, 2, &[3]);
    ledger.closed(1, ms(10));
    other.shown(ms(12), ms(12));
    ledger.looked(look(11, 13, 1));
    other.shown(ms(500), ms(500));
    assert_eq!(levels(&mut ledger, 500), []);
}

#[test]
fn a_stranger_makes_it_harder_and_time_ends_it() {
    let mut ledger = ledger();
    with(&mut ledger, 1, &[1, 2]);
    ledger.closed(1, ms(10));
    for t in (20..1000).step_by(20) {
        ledger.looked(look(t, t + 1, 1));
        assert_eq!(levels(&mut ledger, t + 1), []);
    }
    assert_eq!(ledger.due(), Some(ms(1010)));
    assert_eq!(levels(&mut ledger, 1010), [(1, Level::BestEffort, None)]);
}

#[test]
fn counters_below_what_is_certain_prove_nothing() {
    let mut ledger = ledger();
    with(&mut ledger, 1, &[1, 2]);
    let (a, b) = (with(&mut ledger, 2, &[1, 2]), with(&mut ledger, 3, &[1, 2]));
    ledger.closed(1, ms(10));
    ledger.looked(look(11, 13, 1));
    a.shown(ms(50), ms(50));
    b.shown(ms(50), ms(50));
    assert_eq!((levels(&mut ledger, 51), ledger.contradictions()), (vec![(1, Level::BestEffort, None)], 1));
    // Nor does any later one.
    with(&mut ledger, 4, &[60, 61]);
    ledger.closed(4, ms(70));
    ledger.looked(look(71, 72, 0));
    assert_eq!(levels(&mut ledger, 72), [(4, Level::BestEffort, None)]);
}

#[test]
fn what_is_no_request_and_what_proves_nothing() {
    let mut ledger = ledger();
    ledger.closed(7, ms(1));
    ledger.ended(7);
    with(&mut ledger, 8, &[1, 2]);
    ledger.ended(8);
    ledger.closed(8, ms(3));
    assert_eq!((levels(&mut ledger, 9999), ledger.look_from(), ledger.due()), (vec![], None, None));
    for (cancel, level) in [(CancelBy::Close, Level::BestEffort), (CancelBy::Nothing, Level::Unsupported)] {
        let mut ledger = Ledger::new(cancel, None, ms(1000));
        with(&mut ledger, 1, &[1, 2]);
        ledger.closed(1, ms(10));
        assert_eq!(ledger.look_from(), None, "no look is useful");
        ledger.looked(look(11, 12, 0));
        assert_eq!(levels(&mut ledger, 12), [(1, level, None)]);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

const STEP_MAX: u64 = 12;
/// Of an engine whose steps have no bound: far beyond what `counted_within` allows for.
const LONG_STEP_MAX: u64 = 250;
const ARRIVE_MAX: u64 = 15;
const DELIVER_MAX: u64 = 18;
const END: u64 = 600;
/// What holds of the simulated engine: it takes in what has arrived when a step begins, and counts a step before the next one's tokens.
const TRUE: Freshness = Freshness {
    shown_before: 2,
    counted_within: Duration::from_millis(ARRIVE_MAX + 3 * STEP_MAX),
    needs_witness: false,
    delivered_within: Duration::from_millis(DELIVER_MAX),
};

/// What holds of it if its steps have no bound.
const WITNESSED: Freshness = Freshness {
    counted_within: Duration::from_millis(ARRIVE_MAX),
    needs_witness: true,
    delivered_within: Duration::from_millis(LONG_STEP_MAX + DELIVER_MAX),
    ..TRUE
};

#[derive(Clone, Copy)]
enum Word {
    Add(u64),
    Abort(u64),
}

/// What the client sees, and does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Act {
    Sent(u64),
    Shown { id: u64, empty: u64 },
    Ended(u64),
    Closed(u64),
    Looked { began: u64, present: u64 },
}

/// Whoever reads one answer: when the last token came, from when on it can read, and when it last found nothing.
#[derive(Default)]
struct Reader {
    came: u64,
    free: u64,
    empty: u64,
}

/// One history of an engine: what its client saw, and when each request was really there.
struct History {
    acts: Vec<(u64, Act)>,
    gone: HashMap<u64, u64>,
}

/// Own requests have odd ids. Some are closed at any time, some of those are never dropped, some registered only after their abort; strangers
/// come and go; the gauge is that of
/// a step before, and some idle engines do not touch it.
fn history(seed: u64, long_steps: bool) -> History {
    let mut random = Random(seed);
    let (mut words, mut acts, mut closed) = (Vec::new(), Vec::new(), HashMap::new());
    let requests = 1 + random.below(7);
    let mut length = HashMap::new();
    for i in 0..requests {
        let id = 2 * i + u64::from(!random.one_in(4));
        let sent = random.below(END / 2);
        words.push((sent + random.below(ARRIVE_MAX), Word::Add(id)));
        length.insert(id, if random.one_in(3) { END } else { 1 + random.below(30) });
        if id % 2 == 1 {
            acts.push((sent, Act::Sent(id)));
        }
        if random.one_in(2) {
            let close = sent + random.below(100);
            if id % 2 == 1 {
                closed.insert(id, close);
                acts.push((close, Act::Closed(id)));
            }
            // Or never: it goes on for nobody.
            if !random.one_in(4) {
                words.push((close + random.below(2 * ARRIVE_MAX), Word::Abort(id)));
            }
        }
    }
    words.sort_by_key(|(at, _)| *at);
    let (mut waiting, mut running, mut gone) = (VecDeque::new(), Vec::<u64>::new(), HashMap::new());
    let (mut gauges, mut readers, mut next, mut now) = (vec![(0, 0)], HashMap::<u64, Reader>::new(), 0, 0);
    let (slots, idle_counts) = (1 + random.below(4) as usize, random.one_in(2));
    // A step's tokens are handed on before it is counted, which is before the next one's are.
    let mut uncounted: Option<(u64, u64)> = None;
    while now < END {
        while let Some((_, word)) = words.get(next).filter(|(at, _)| *at <= now) {
            next += 1;
            match *word {
                Word::Add(id) => waiting.push_back(id),
                Word::Abort(id) if running.contains(&id) || waiting.contains(&id) => {
                    running.retain(|r| *r != id);
                    waiting.retain(|w| *w != id);
                    gone.insert(id, now);
                }
                Word::Abort(_) => {}
            }
        }
        while running.len() < slots {
            let Some(id) = waiting.pop_front() else { break };
            running.push(id);
        }
        if running.is_empty() {
            gauges.extend(uncounted.take().map(|(_, n)| (now, n)));
            if idle_counts {
                gauges.push((now, 0));
            }
            now += 1;
            continue;
        }
        let longest = if long_steps && random.one_in(4) { LONG_STEP_MAX } else { STEP_MAX };
        let end = now + 1 + random.below(longest);
        if let Some((since, n)) = uncounted {
            gauges.push((since + random.below(end - since + 1), n));
        }
        for id in running.clone() {
            let left = length.get_mut(&id).expect("its length");
            *left -= 1;
            let (over, at) = (*left == 0, end + random.below(DELIVER_MAX));
            let Reader { came, free, empty } = readers.entry(id).or_default();
            *came = at.max(*came);
            // A reader that waits has found nothing since it was free; one that is held up reads what came meanwhile.
            let at = (*free).max(*came);
            *empty = if *came > *free { *free } else { *empty };
            *free = at + if random.one_in(8) { random.below(120) } else { 0 };
            let (empty, open) = (*empty, closed.get(&id).is_none_or(|close| at < *close));
            if id % 2 == 1 && open {
                acts.push((at, Act::Shown { id, empty }));
                if over {
                    acts.push((at, Act::Ended(id)));
                }
            }
            if over {
                running.retain(|r| *r != id);
                gone.insert(id, end);
            }
        }
        uncounted = Some((end, (running.len() + waiting.len()) as u64));
        now = end;
    }
    for _ in 0..random.below(60) {
        let began = random.below(END);
        let asked = began + random.below(6);
        let present = gauges.iter().rev().find(|(at, _)| *at <= asked).map_or(0, |(_, n)| *n);
        acts.push((asked + random.below(6), Act::Looked { began, present }));
    }
    // The order of what happens at one moment is that of the derive: sent first, looks last.
    acts.sort_unstable();
    History { acts, gone }
}

/// Feeds it all to a ledger; whether it is told how late its readers may be. How many were proven, how many of those with others present, and the first that was proven and was there.
fn judge(history: &History, fresh: Freshness, late_readers: bool) -> (u32, u32, Option<String>) {
    let mut ledger = Ledger::new(CancelBy::Close, Some(fresh), ms(300));
    let (mut tokens, mut proven, mut among) = (HashMap::new(), 0, 0);
    let mut zero = Vec::new();
    for (now, act) in &history.acts {
        match *act {
            Act::Sent(id) => drop(tokens.insert(id, ledger.sent(id, ms(*now)))),
            Act::Shown { id, empty } => tokens[&id].shown(ms(*now), ms(if late_readers { empty } else { *now })),
            Act::Ended(id) => ledger.ended(id),
            Act::Closed(id) => ledger.closed(id, ms(*now)),
            Act::Looked { began, present } => {
                ledger.looked(look(began, *now, present));
                zero.extend((present == 0).then_some(ms(*now)));
            }
        }
        for verdict in ledger.verdicts(ms(*now)) {
            let Some(by) = verdict.gone_by else { continue };
            proven += 1;
            among += u32::from(!zero.contains(&by));
            // One that never came to an end in the engine is there until the end, unless it was never taken in.
            let gone = history.gone.get(&verdict.id).map_or(u64::MAX, |gone| *gone);
            if ms(gone) > by {
                return (proven, among, Some(format!("{verdict:?}: gone at {gone}")));
            }
        }
    }
    (proven, among, None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    // contract: C-29
    #[test]
    fn observed_is_never_said_of_a_request_that_is_still_there(seed in any::<u64>()) {
        let (_, _, wrong) = judge(&history(seed, false), TRUE, true);
        prop_assert_eq!(wrong, None);
        let (_, _, wrong) = judge(&history(seed, true), WITNESSED, true);
        prop_assert_eq!(wrong, None);
    }
}

#[test]
fn the_simulation_proves_in_both_ways_and_would_notice_if_a_rule_were_left_out() {
    let run = |fresh: Freshness, late_readers: bool, long_steps: bool| {
        (0..1500).fold((0, 0, 0), |(proven, among, wrong), seed| {
            let (p, a, w) = judge(&history(seed, long_steps), fresh, late_readers);
            (proven + p, among + a, wrong + u32::from(w.is_some()))
        })
    };
    let (proven, among, wrong) = run(TRUE, true, false);
    assert!(proven > among && among > 0 && wrong == 0, "{proven} proven, {among} of them among others, {wrong} wrongly");
    assert!(run(TRUE, false, false).2 > 0, "a late reader goes unnoticed");
    let (proven, _, wrong) = run(WITNESSED, true, true);
    assert!(proven > 0 && wrong == 0, "{proven} proven with a witness, {wrong} wrongly");
    assert!(run(TRUE, true, true).2 > 0, "a step without a bound goes unnoticed");
    for too_sure in [
        Freshness { shown_before: 1, ..TRUE },
        Freshness { counted_within: Duration::ZERO, ..TRUE },
        Freshness { delivered_within: Duration::ZERO, ..TRUE },
    ] {
        assert!(run(too_sure, true, false).2 > 0, "{too_sure:?} goes unnoticed");
    }
}

#[test]
fn what_nobody_can_hear_later_is_decided_before() {
    let mut ledger = Ledger::new(CancelBy::Close, Some(FRESH), ms(20_000));
    ledger.sent(1, ms(0));
    ledger.closed(1, ms(0));
    ledger.end_by(ms(3000));
    ledger.end_by(ms(9000));
    assert_eq!((ledger.verdicts(ms(2999)), ledger.due()), (vec![], Some(ms(3000))));
    let levels: Vec<_> = ledger.verdicts(ms(3000)).iter().map(|verdict| verdict.level).collect();
    assert_eq!((levels, ledger.undecided()), (vec![Level::BestEffort], 0));
}
