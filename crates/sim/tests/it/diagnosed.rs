//! The verdict on accounts that the cores themselves came to: sound ones are never called faulty, and those of a museum's bug are.
// contract: C-15 C-16
// field: F-45 F-58 F-61 F-68

use std::time::Duration;

use lifecycle::message::Snapshot;
use observe::diagnose::{AccountLook, Diagnosis, Look, Verdict, WorkerLook, judge};
use sim::explore::{accounts, all};
use sim::museum::EXHIBITS;

fn look(cut: &Snapshot, at_ms: u64) -> Look {
    let worker = WorkerLook { name: "w".into(), presence: "here".into(), account: Some(AccountLook::of(cut)), ..WorkerLook::default() };
    Look { at_ms, patience_ms: 5000, orphaned_ms: 30_000, workers: vec![worker], ..Look::default() }
}

fn judged(cut: &Snapshot) -> Diagnosis {
    judge(&[look(cut, 0)], None)
}

/// What is seen of each bug in the account alone: the fault that its cuts are first convicted of. Of those that show elsewhere (a name taken for
/// another, a release that the gateway only believes) an account cannot know.
const GOLDEN: [(&str, Option<Verdict>); 13] = [
    ("free-before-fence", None),
    ("deferred-counts-as-free", None),
    ("shared-block-freed", Some(Verdict::AccountingDefect)),
    ("dropped-block-published", None),
    ("id-by-prefix", None),
    ("early-cancel-lost", None),
    ("released-again", None),
    ("answers-run-on", Some(Verdict::AccountingDefect)),
    ("late-completion-filtered", Some(Verdict::DrainingStuck)),
    ("released-at-the-end", None),
    ("acknowledgement-releases", None),
    ("state-removed-early", None),
    ("blind-timer", None),
];

#[test]
fn bugs_that_lose_blocks_are_told_by_the_account_that_they_leave() {
    let seen = EXHIBITS.iter().map(|exhibit| {
        let cuts = exhibit.cuts(&exhibit.catch(&|| Duration::ZERO));
        let fault = cuts.iter().map(judged).find(|diagnosis| diagnosis.fault);
        if let Some(fault) = &fault {
            println!("{}: {:?}", exhibit.name, fault.evidence);
            assert!(!fault.evidence.is_empty() && !fault.next.is_empty());
        }
        (exhibit.name, fault.map(|fault| fault.verdict))
    });
    assert_eq!(seen.collect::<Vec<_>>(), GOLDEN);
}

/// Of each setup so many states.
const STATES: usize = 1_500;

#[test]
fn no_state_that_sound_cores_reach_is_called_a_fault() {
    let mut looked = 0;
    for setup in all() {
        looked += accounts(&setup, STATES, &mut |cut| {
            let diagnosis = judged(cut);
            // A lost step's blocks are lost, and a lost device is: that is told, and is no false alarm.
            let is_lost = cut.quarantined > 0 || cut.device_lost.is_some();
            let wanted = if is_lost { diagnosis.verdict == Verdict::DrainingStuck } else { !diagnosis.fault };
            assert!(wanted, "{}: {diagnosis:#?}\n{cut:#?}", setup.name);
        });
    }
    assert!(looked > 10_000, "{looked} states");
}
