//! Each bug is caught breaking its clause, in the number of steps that is the fewest.
// contract: C-1 C-6 C-9 C-11 C-16 C-18 C-19 C-20 C-31
// field: F-21 F-22 F-28 F-39 F-40 F-43 F-61 F-68

use std::time::Duration;

use sim::museum::{EXHIBITS, SEEDS, exhibit};

/// Bug, clause and steps of the shortest counterexample. A change of these is a change of the cores or of a setup.
const GOLDEN: [(&str, &str, usize); 13] = [
    ("free-before-fence", "C-16", 8),
    ("deferred-counts-as-free", "C-16", 12),
    ("shared-block-freed", "C-18", 8),
    ("dropped-block-published", "C-19", 9),
    ("id-by-prefix", "C-1", 3),
    ("early-cancel-lost", "C-11", 3),
    ("released-again", "C-20", 3),
    ("answers-run-on", "C-31", 6),
    ("late-completion-filtered", "C-9", 11),
    ("released-at-the-end", "C-20", 3),
    ("acknowledgement-releases", "C-6", 3),
    ("state-removed-early", "C-6", 2),
    ("blind-timer", "C-6", 4),
];

#[test]
fn every_bug_is_caught_in_the_fewest_steps() {
    let found: Vec<_> = EXHIBITS
        .iter()
        .map(|e| {
            let caught = e.catch(&|| Duration::ZERO);
            assert!(e.is_caught(&caught), "{}: {}", e.name, caught.story.join("\n"));
            (e.name, e.clause, caught.steps())
        })
        .collect();
    assert_eq!(found, GOLDEN);
}

#[test]
fn every_bug_is_found_by_the_simulator_within_its_seeds() {
    for e in EXHIBITS {
        let found = e.play(SEEDS);
        let seen = found.as_ref().map(|f| (f.seed, &f.violation));
        assert!(e.is_seen(found.as_ref()), "{}: {seen:?}, not one of {:?}", e.name, e.seen_as);
    }
}

#[test]
fn exhibits_name_their_threads_and_a_sound_rule() {
    for e in EXHIBITS {
        let (repository, number) = e.thread.split_once('#').expect("repository#number");
        assert!(repository.split('/').count() == 2 && number.parse::<u32>().is_ok(), "{}", e.thread);
        assert!(!e.report.is_empty() && !e.fix.is_empty() && exhibit(e.name).is_some());
    }
}

fn story(name: &str) -> String {
    exhibit(name).expect("it is on show").catch(&|| Duration::ZERO).story.join("\n")
}

#[test]
fn the_story_of_a_block_that_is_free_too_early() {
    assert_eq!(
        story("free-before-fence"),
        "1. the gateway submits a: submit a/1 is sent\n\
         2. the gateway submits b: submit b/1 is sent\n\
         3. the engine plans: step 1 is planned: a/1 computes positions 0 to 2 in block 0, 1; step 2 is planned: a/1 computes positions 3 to 3 in block 0, 1\n\
         4. a is no longer wanted: client_closed; cancel a/1 (client_closed) is sent; a/1 ends: client_closed; a is cancelled: client_closed\n\
         5. the next step begins on the device\n\
         6. the running step ends; a flag came too late for its last layer, or there was none\n\
         7. the engine takes the oldest step's fence\n\
         8. the engine plans\n\
         C-16: block 0 is handed to b/1 while step 2 still has it for a/1"
    );
}

#[test]
fn the_story_of_a_cancel_that_came_too_early() {
    assert_eq!(
        story("early-cancel-lost"),
        "1. the gateway submits a: submit a/1 is sent\n\
         2. another gateway's cancel of a arrives\n\
         3. a frame arrives: submit a/1; step 1 is planned: a/1 computes positions 0 to 2 in block 0, 1\n\
         C-11: a/1 is executed, although its cancel came before its submit"
    );
}
