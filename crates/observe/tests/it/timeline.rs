//! The timeline's text against a kept one, and against JSON that nobody should send.

use observe::render_timeline;
use serde_json::{Value, json};

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/run.json")).expect("the fixture is JSON")
}

#[test]
fn it_reads_as_kept() {
    let shown = render_timeline(&fixture(), 100, false);
    assert_eq!(shown, include_str!("../fixtures/timeline.txt"), "\n{shown}");
}

#[test]
fn colours_change_nothing_but_colours() {
    let (plain, coloured) = (render_timeline(&fixture(), 100, false), render_timeline(&fixture(), 100, true));
    let mut stripped = coloured.clone();
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m"] {
        stripped = stripped.replace(code, "");
    }
    assert_eq!(stripped, plain);
    assert!(coloured.contains("\x1b[31m●\x1b[0m"), "the disconnect is red");
}

#[test]
fn no_line_is_wider_than_the_page() {
    for width in [0, 80, 120, 1000] {
        for line in render_timeline(&fixture(), width, false).lines() {
            assert!(line.chars().count() <= width.clamp(76, 200), "{width}: {line}");
        }
    }
}

#[test]
fn a_live_run_has_no_outcome_and_nobody_left() {
    let run =
        json!({"id": "r", "state": "decoding", "outcome": null, "milestones": {"accepted": 0.0, "first_token": 9.5, "settled": null}});
    let shown = render_timeline(&run, 80, false);
    assert!(shown.contains("no outcome yet") && shown.contains("nobody left") && !shown.contains("settled"), "{shown}");
}

#[test]
fn any_json_gives_a_text_without_control_characters() {
    let odd = [
        json!(null),
        json!([1, 2]),
        json!({"milestones": {"accepted": "x", "queued": -5.0, "settled": 1e300}, "boundaries": [7, {"hop": 3, "observed": 1}], "superseded": [1]}),
        json!({"id": "a\u{1b}[2Jb\u{7}", "outcome": {"reason": "\u{9b}31m\r\n", "cause": "\u{1b}"}, "superseded": ["\u{1b}c"]}),
    ];
    for run in odd {
        let shown = render_timeline(&run, 90, false);
        assert!(shown.chars().all(|c| c == '\n' || !c.is_control()), "{shown:?}");
    }
}
