//! The rule file: what the repository shows is what the program writes, and promtool finds that each rule fires for its incident, goes when it
//! is over, and is silent otherwise.

use std::path::PathBuf;

use super::{programs, promtool};
use crate::run;

fn folder() -> PathBuf {
    xtask::root().join("examples/prometheus")
}

#[test]
fn the_rule_file_in_the_examples_is_what_the_program_writes() {
    let shown = std::fs::read_to_string(folder().join("kvit-rules.yml")).expect("it is there");
    assert_eq!(run(&["alerts", "--rules"]).out, shown, "write it anew: cargo run -- alerts --rules > examples/prometheus/kvit-rules.yml");
}

#[test]
fn promtool_plays_every_rule_through_its_incident() {
    let Some(programs) = programs() else { return };
    promtool(&programs, &["check", "rules", "kvit-rules.yml"], &folder(), "");
    let said = promtool(&programs, &["test", "rules", "kvit-rules-test.yml"], &folder(), "");
    assert!(said.contains("SUCCESS"), "{said}");
    let played = std::fs::read_to_string(folder().join("kvit-rules-test.yml")).expect("it is there");
    for alert in observe::Alert::ALL {
        let times = played.split("alertname: ").skip(1).filter(|case| case.starts_with(&format!("{}\n", alert.name())));
        let fires: Vec<bool> = times.map(|case| !case.lines().nth(1).is_some_and(|l| l.contains("exp_alerts: []"))).collect();
        assert!(fires.contains(&true) && fires.last() == Some(&false), "{}: it fires, and goes: {fires:?}", alert.name());
    }
}

#[test]
fn the_configuration_makes_the_rules_and_a_machine_can_read_them() {
    let Some(programs) = programs() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("kvit.toml");
    std::fs::write(&config, "alert_window_s = 60\nalert_waste_percent = 2.5\nalert_orphaned_ms = 1500\n").expect("it can be written");
    let config = config.to_str().expect("a path");
    let said = run(&["alerts", "--rules", "--config", config]);
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("[60000ms] offset 120000ms") && said.out.contains("> 2.5\n") && said.out.contains("> 1.5\n"), "{}", said.out);
    // JSON is YAML, so this form is a rule file, too.
    let json = run(&["alerts", "--rules", "--json", "--config", config]).out;
    for (name, text) in [("rules.yml", &said.out), ("rules.json", &json)] {
        std::fs::write(folder.path().join(name), text).expect("it can be written");
        assert!(promtool(&programs, &["check", "rules", name], folder.path(), "").contains("6 rules found"), "{name}");
    }
}
