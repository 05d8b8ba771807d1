//! The timeline's text against a kept one, and against JSON that nobody should send.

use observe::render_timeline;
use serde_json::{Value, json};

fn fixture() -> Value {
    serde_json::from_str(include_str!("../fixtures/run.json")).expect("the fixture is JSON")
}

/// Compares with a kept page. `KVIT_TEST_WRITE=1` writes the pages anew when the change is meant; read the diff before you commit it.
#[test]
fn it_reads_as_kept() {
    for (width, name) in [(100, "timeline.txt"), (80, "timeline-80.txt")] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let shown = render_timeline(&fixture(), width, false);
        if std::env::var_os("KVIT_TEST_WRITE").is_some() {
            std::fs::write(&path, &shown).expect("the page can be written");
        }
        let kept = std::fs::read_to_string(&path).expect("the kept page can be read");
        assert_eq!(shown, kept, "\n{shown}");
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let (plain, coloured) = (render_timeline(&fixture(), 100, false), render_timeline(&fixture(), 100, true));
    let mut stripped = coloured.clone();
    for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"] {
        stripped = stripped.replace(code, "");
    }
    assert_eq!(stripped, plain);
    assert!(coloured.contains("\x1b[31m● disconnect_observed\x1b[0m"), "the disconnect is red");
    assert!(coloured.contains("\x1b[31m╳ 1 token wasted\x1b[0m"), "so is what was computed in vain");
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

/// The lines of the story alone: from its head to the next empty line.
fn story(run: &Value, width: usize) -> Vec<String> {
    let shown = render_timeline(run, width, false);
    shown.lines().skip_while(|l| !l.contains("client    gateway")).take_while(|l| !l.is_empty()).map(str::to_owned).collect()
}

/// The column of the first character of a text in a line.
fn column(line: &str, of: &str) -> usize {
    let at = line.find(of).unwrap_or_else(|| panic!("no `{of}` in `{line}`"));
    line[..at].chars().count()
}

// contract: C-24
#[test]
fn each_milestone_stands_in_the_lane_where_it_happens() {
    for width in [76, 80, 100, 160] {
        let lines = story(&fixture(), width);
        let (gateway, worker) = (column(&lines[0], "gateway"), column(&lines[0], "worker"));
        let at_gateway = ["accepted", "disconnect_observed", "cancel_sent", "cancel_acknowledged", "settled"];
        let reached = fixture()["milestones"].as_object().expect("an object").clone();
        for name in reached.iter().filter(|(_, at)| at.is_number()).map(|(name, _)| name) {
            let wanted = format!("● {name}");
            let line = lines.iter().find(|l| l.contains(&wanted)).unwrap_or_else(|| panic!("{name} is missing at {width}"));
            let lane = if at_gateway.contains(&name.as_str()) { gateway } else { worker };
            assert_eq!(column(line, &wanted), lane, "{name} at {width}: {line}");
        }
    }
}

#[test]
fn what_was_wasted_stands_between_the_cancel_and_the_last_step() {
    let lines = story(&fixture(), 80);
    let at = |what: &str| lines.iter().position(|l| l.contains(what)).unwrap_or_else(|| panic!("no {what}"));
    assert!(at("cancel_acknowledged") < at("╳ 1 token wasted") && at("╳ 1 token wasted") < at("last_compute"), "{lines:#?}");
    let mut frugal = fixture();
    for count in ["/tokens/after_disconnect", "/steps/after_disconnect"] {
        *frugal.pointer_mut(count).expect("a count") = json!(0);
    }
    let shown = render_timeline(&frugal, 80, false);
    let marks = shown.matches('╳').count();
    assert_eq!(marks, 3, "the leaving in both drawings and the legend, and nothing computed in vain:\n{shown}");
    frugal["steps"] = json!({"total": 19, "after_disconnect": 1, "layers_dropped": 12});
    let shown = render_timeline(&frugal, 80, false);
    assert!(shown.contains("╳ 12 layers wasted") && shown.contains("steps 1 of 19, 12 layers of a dropped step"), "{shown}");
    *frugal.pointer_mut("/tokens/prompt_computed_after_disconnect").expect("a count") = json!(256);
    assert!(story(&frugal, 80).iter().any(|l| l.contains("╳ 256 prompt wasted")));
}

#[test]
fn who_left_is_shown_in_the_clients_lane_and_who_stayed_is_not() {
    for (cause, word) in [("client_closed", "closed"), ("client_reset", "reset"), ("client_lost", "lost"), ("client_stalled", "stalled")] {
        let mut run = fixture();
        run["outcome"]["cause"] = json!(cause);
        let line = story(&run, 80).into_iter().find(|l| l.contains("disconnect_observed")).expect("observed");
        assert!(line.contains(&format!("╳ {word}")), "{line}");
    }
    let mut run = fixture();
    run["outcome"]["cause"] = json!("cancel_requested");
    let shown = render_timeline(&run, 80, false);
    assert!(!shown.contains("╳ cancel") && !shown.contains("╳ deadline"), "{shown}");
    // It left, but another cause had won: the leaving still shows, and so does that it lost.
    run["superseded"] = json!(["client_reset"]);
    let shown = render_timeline(&run, 80, false);
    assert!(shown.contains("╳ reset") && shown.contains("late    client_reset (after cancel_requested had won"), "{shown}");
}

#[test]
fn a_deadline_fires_in_the_lane_of_who_watched_it() {
    let mut run = fixture();
    run["outcome"]["cause"] = json!("worker_deadline");
    run["milestones"]["disconnect_observed"] = Value::Null;
    run["milestones"]["deadline_fired"] = json!(140.2);
    let lane = |run: &Value| {
        let lines = story(run, 80);
        let line = lines.iter().find(|l| l.contains("● deadline_fired")).expect("it fired").clone();
        ["gateway", "worker"].into_iter().find(|name| column(&lines[0], name) == column(&line, "● deadline_fired"))
    };
    assert_eq!(lane(&run), Some("gateway"), "the gateway's boundary observed it at that moment");
    run["boundaries"][0]["observed"] = Value::Null;
    assert_eq!(lane(&run), Some("worker"));
}

#[test]
fn the_time_after_abandonment_is_drawn_on_a_finer_scale_and_says_so() {
    let shown = observe::render_lanes(&fixture(), 100, false);
    assert_eq!(shown.lines().count(), 5, "a scale, three lanes and a legend:\n{shown}");
    assert!(shown.lines().next().is_some_and(|l| l.contains("┊ ×30 finer")), "{shown}");
    // Half of the run came after it: one scale does.
    let mut run = fixture();
    run["milestones"]["settled"] = json!(280.4);
    assert!(!observe::render_lanes(&run, 100, false).contains("finer"));
    assert_eq!(observe::render_lanes(&json!({}), 100, false), "");
}
