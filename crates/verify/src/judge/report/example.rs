//! A report with a verdict of each kind, for the tests of every form; and one whose every text is meant to do harm.

use std::collections::BTreeMap;

use super::super::advice::advise;
use super::super::cell::Cell;
use super::super::result::{
    Boundary, Check, ClientSaw, CpuSaw, EngineSaw, Fault, Hop, Judged, LogSaw, Look, Report, Source, TapSaw, Try, Verdict,
};

fn hop(name: &str, version: &str, config: Option<u8>) -> Hop {
    let config_sha256 = config.map(|byte| super::super::fingerprint::sha256(&[byte]));
    Hop { name: name.to_owned(), kind: Some(name.to_owned()), version: Some(version.to_owned()), config_sha256 }
}

fn tap(name: &str, down: Option<f64>, up: Option<f64>, events_after: u64) -> TapSaw {
    TapSaw {
        name: name.to_owned(),
        requests: 1,
        request_ms: Some(-640.0),
        down_closed_ms: down,
        down_how: down.map(|_| "fin".to_owned()),
        up_closed_ms: up,
        up_how: up.map(|_| "rst".to_owned()),
        last_byte_ms: Some(if events_after > 3 { 1890.0 } else { 1.5 }),
        bytes_after: events_after * 170,
        events_after,
        complete: events_after > 3,
        ..TapSaw::default()
    }
}

/// A try that was left behind three tokens; `lost` is the number of boundaries that it crossed before it was lost, if it was.
fn tried(id: &str, lost: Option<usize>, tokens_after: f64, gone_ms: Option<f64>) -> Try {
    let crossed = |index: usize| lost.is_none_or(|lost| index < lost);
    let events = tokens_after as u64;
    let look = |at: f64, running: f64| Look { began_ms: at - 2.0, ended_ms: at, running: Some(running), ..Look::default() };
    let gone = gone_ms.unwrap_or(2400.0);
    Try {
        id: id.to_owned(),
        entered: Some(Source::Client),
        asked_tokens: 100,
        client: ClientSaw {
            sent_ms: Some(-642.0),
            head_ms: Some(-210.0),
            status: Some(200),
            first_token_ms: Some(-208.0),
            tokens: 3,
            end_ms: Some(0.0),
            end: Some("closed".to_owned()),
        },
        taps: vec![
            tap("litellm", crossed(1).then_some(1.2), crossed(1).then_some(2.1), events),
            tap("vllm", crossed(2).then_some(3.4), crossed(2).then_some(3.6), events),
        ],
        engine: Some(EngineSaw {
            before: Some(look(-60.0, 1.0)),
            after: vec![look(4.0, 1.0), look(gone / 2.0, 1.0), look(gone, if gone_ms.is_some() { 0.0 } else { 1.0 })],
            gone_ms,
            tokens_after: Some(tokens_after),
            polled: true,
            ..EngineSaw::default()
        }),
        cpu: Some(CpuSaw { busy: 0.97, idle: 0.02, quiet_ms: gone_ms.map(|ms| ms + 40.0) }),
        logs: vec![LogSaw { hop: "haproxy".to_owned(), said: "CD--".to_owned(), means: "client left".to_owned() }],
        ..Try::default()
    }
}

fn judged(cell: &str, verdict: Verdict, seen: Vec<Try>, hops: &[Hop]) -> Judged {
    let cell: Cell = cell.parse().expect("a cell");
    let first = seen.first();
    let crossed = |index: usize| first.and_then(|seen| seen.taps.get(index)?.down_closed_ms);
    let stop_ms = first.and_then(|seen| seen.engine.as_ref()?.gone_ms);
    let tap = Some(Source::Tap).filter(|_| first.is_some());
    let boundaries = vec![
        Boundary { name: "client → haproxy".to_owned(), crossed: None, crossed_ms: first.map(|_| 0.4), by: first.map(|_| Source::Log) },
        Boundary { name: "haproxy → litellm".to_owned(), crossed: None, crossed_ms: crossed(0), by: tap },
        Boundary { name: "litellm → vllm".to_owned(), crossed: None, crossed_ms: crossed(1), by: tap },
    ];
    let lost =
        boundaries.iter().find(|boundary| boundary.by.is_some() && boundary.crossed_ms.is_none()).map(|boundary| boundary.name.clone());
    let mut judged = Judged {
        cell,
        by: if first.is_some() { vec![Source::Tap, Source::Counters] } else { Vec::new() },
        tries: seen.len() as u64,
        tokens_after: first.and_then(|seen| seen.engine.as_ref()?.tokens_after),
        steps_after: None,
        stop_ms,
        capacity_ms: stop_ms.map(|ms| ms + 8.0),
        boundaries,
        lost_at: lost.filter(|_| verdict.is_fail()),
        advice: Vec::new(),
        note: None,
        verdict,
        seen,
    };
    judged.advice = advise(&judged, hops);
    judged
}

fn fail(fault: Fault, why: &str) -> Verdict {
    Verdict::Fail { fault, why: why.to_owned() }
}

/// A report of a stack that loses departures in two places.
pub fn example() -> Report {
    let hops = vec![hop("haproxy", "2.6.12", Some(1)), hop("litellm", "1.108.7", Some(2)), hop("vllm", "0.32.0", None)];
    let good = |id: &str, tokens| tried(id, None, tokens, Some(12.4));
    let never = "97 of 97 tokens that were left were still generated, for 1890 ms";
    let cells = vec![
        judged("early/close/stream", Verdict::Pass, vec![good("a1", 1.0), good("a2", 2.0)], &hops),
        judged("early/close/stream/shared", Verdict::Pass, vec![good("b1", 2.0)], &hops),
        judged("early/close/whole", fail(Fault::NeverStops, never), vec![tried("c1", Some(1), 97.0, Some(1890.0))], &hops),
        judged("prefill/close/stream", fail(Fault::StopsLate, never), vec![tried("d1", Some(2), 40.0, Some(900.0))], &hops),
        judged("late/reset/stream", Verdict::Pass, vec![good("e1", 0.0)], &hops),
        judged(
            "early/cancel/stream",
            Verdict::NotProven { missing: "neither counters nor taps say whether the work stopped: --tap would".to_owned() },
            Vec::new(),
            &hops,
        ),
        judged(
            "headers/close/whole",
            Verdict::NotApplicable { why: "the head of an answer that is not streamed comes with all of it".to_owned() },
            Vec::new(),
            &hops,
        ),
    ];
    let check = |name: &str, verdict, measured: &[(&str, f64)]| Check {
        name: name.to_owned(),
        verdict,
        by: vec![Source::Counters],
        measured: measured.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        advice: Vec::new(),
    };
    let mut report = Report {
        object: "verify".to_owned(),
        kvit: "0.1.0".to_owned(),
        began_s: 1_796_033_477,
        took_s: 48.2,
        target: "http://127.0.0.1:8000".to_owned(),
        model: "smollm2".to_owned(),
        profile: "vllm".to_owned(),
        hops,
        polled: true,
        settings: BTreeMap::from([("stop_ms".to_owned(), 2000.into()), ("tokens".to_owned(), 16.into())]),
        cells,
        checks: vec![
            check(
                "capacity",
                fail(Fault::CapacityLeaks, "1 block for each departure did not come back"),
                &[("repetitions", 40.0), ("blocks", 40.0)],
            ),
            check("neighbours", Verdict::Pass, &[("streams", 2.0), ("slowdown", 1.02)]),
            check("memory", Verdict::Pass, &[("rss_mib_per_100", 0.4)]),
            check("observer", Verdict::NotProven { missing: "it was asked one way only: --both-ways asks both".to_owned() }, &[]),
        ],
        hints: vec![
            "`early/cancel/stream`: nothing shows whether the work stopped; a tap in front of the engine would: --tap vllm".to_owned(),
        ],
    };
    super::super::advice::add(&mut report);
    report
}

/// Every question that makes sense, with the example's verdicts in turn.
pub fn full() -> Report {
    let mut report = example();
    let of = |(index, cell): (usize, &Cell)| Judged { cell: *cell, ..report.cells[index % 5].clone() };
    report.cells = super::super::cell::Set::Full.cells().iter().enumerate().map(of).collect();
    report
}

/// The same, with texts that try to leave their place, figures that are none, and names without end.
pub fn hostile() -> Report {
    let bad = "<script>alert(1)</script> \"'&]]>\u{1b}[2J\u{0}\u{202e} --> 漢字 ";
    let mut report = example();
    for text in [&mut report.target, &mut report.model, &mut report.profile, &mut report.kvit] {
        *text = bad.repeat(3);
    }
    for hop in &mut report.hops {
        (hop.name, hop.kind, hop.version, hop.config_sha256) =
            (bad.to_owned(), Some(bad.to_owned()), Some(bad.to_owned()), Some(bad.to_owned()));
    }
    report.settings.insert(bad.to_owned(), bad.into());
    report.hints.push("x".repeat(400));
    for judged in &mut report.cells {
        match &mut judged.verdict {
            Verdict::Fail { why: text, .. } | Verdict::NotProven { missing: text } | Verdict::NotApplicable { why: text } => {
                *text = bad.to_owned()
            }
            Verdict::Pass => {}
        }
        judged.note = Some(bad.to_owned());
        judged.advice.push(bad.to_owned());
        judged.lost_at = judged.lost_at.as_ref().map(|_| bad.repeat(4));
        judged.tokens_after = Some(f64::NAN);
        judged.stop_ms = Some(f64::INFINITY);
        judged.boundaries.push(Boundary { name: bad.to_owned(), crossed: None, crossed_ms: Some(f64::NAN), by: Some(Source::Tap) });
        for seen in &mut judged.seen {
            (seen.id, seen.client.end, seen.record, seen.void) = (bad.to_owned(), Some(bad.to_owned()), Some(bad.to_owned()), None);
            seen.client.head_ms = Some(f64::NAN);
            seen.client.end_ms = Some(1e300);
            for tap in &mut seen.taps {
                (tap.name, tap.down_how, tap.up_closed_ms) = (bad.to_owned(), Some(bad.to_owned()), Some(f64::NEG_INFINITY));
            }
            for log in &mut seen.logs {
                (log.hop, log.said, log.means) = (bad.to_owned(), bad.to_owned(), bad.to_owned());
            }
        }
    }
    for check in &mut report.checks {
        check.name = bad.to_owned();
        check.measured.insert(bad.to_owned(), f64::NAN);
    }
    report
}
