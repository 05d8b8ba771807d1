//! A gateway and a worker on two hosts (network namespaces): the cable is pulled, or what one of them sends reaches nobody, for less and for
//! more than the lease. No FIN and no RST tells anybody.
// contract: C-7, C-9, C-10, C-20, C-23

use std::time::Duration;

use serde_json::json;

use super::{Probe, SLOWLY, alone, ended, finish, gateway, metric, over, states, until};
use crate::lab::{Lab, SERVER, in_lab};
use crate::server::{Caller, Server, chat_body, lasting_model};
use crate::worker::Process;

// Many enough that the run is under way when the cable is out, however long that takes on a busy machine.
const TOKENS: u32 = 200;

/// What is lost on its way.
#[derive(Clone, Copy, Debug)]
enum Lost {
    Everything,
    FromWorker,
    FromGateway,
}

impl Lost {
    fn begins(self, lab: &Lab) {
        match self {
            Lost::Everything => lab.cut(),
            Lost::FromWorker => lab.server_is_unheard(true),
            Lost::FromGateway => lab.client_is_unheard(true),
        }
    }

    fn ends(self, lab: &Lab) {
        match self {
            Lost::Everything => lab.mend(),
            Lost::FromWorker => lab.server_is_unheard(false),
            Lost::FromGateway => lab.client_is_unheard(false),
        }
    }
}

/// The worker on the server's host, the gateway on the client's.
fn apart(lab: &Lab, lease_ms: &str) -> (Process, Probe, Server) {
    let flags = [&SLOWLY[..], &["--lease-ms", lease_ms]].concat();
    let worker = Process::named("w1", &format!("{SERVER}:0"), &lasting_model(), &flags);
    let probe = Probe::of(&worker);
    let gateway = lab.on_client(|| gateway(&[&worker.address], &["--lease-ms", lease_ms]));
    (worker, probe, gateway)
}

fn shorter_than_the_lease(lab: &Lab, lost: Lost, wanted: &str) {
    let (_worker, probe, gateway) = apart(lab, "600000");
    let mut caller = lab.on_client(|| Caller::chat(&gateway, "r", &chat_body("Hello", TOKENS, true)));
    let mut text = caller.read_tokens(2);
    lost.begins(lab);
    probe.until_run("r", "suspended");
    let still = probe.until("its last step is over", |cut| cut.held.steps == 0);
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(probe.cut().step, still.step, "{lost:?}");
    lost.ends(lab);
    let (rest, error) = finish(&mut caller);
    text.push_str(&rest);
    assert_eq!((text.as_str(), error), (wanted, None), "{lost:?}");
    lab.on_client(|| {
        let run = gateway.settled("r");
        assert_eq!((ended(&run), &run["attempt"], &run["guarantee"]), (("completed", "length"), &json!(1), &json!("confirmed")), "{run:#}");
        assert_eq!((&run["tokens"]["generated"], &run["tokens"]["overrun"]), (&json!(TOKENS), &json!(0)), "{run:#}");
        assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
    });
    assert_eq!(probe.until_at_rest().orphaned_attempts, 0, "{lost:?}");
}

fn longer_than_the_lease(lab: &Lab, lost: Lost) {
    let (_worker, probe, gateway) = apart(lab, "1500");
    let mut caller = lab.on_client(|| Caller::chat(&gateway, "r", &chat_body("Hello", 12_000, true)));
    caller.read_tokens(2);
    lost.begins(lab);
    // Each side concludes by itself: the worker that nobody claims the run, the gateway that nobody computes it.
    let cut = probe.until("the run is ended at the worker", |cut| cut.attempts.is_empty() && cut.orphaned_attempts == 1);
    assert_eq!((cut.active, cut.draining), (0, 0), "{lost:?}");
    let (_, error) = finish(&mut caller);
    let error = error.expect("the caller is told");
    let run = lab.on_client(|| over(&gateway, "r"));
    println!("{lost:?}: {:?}, {}", ended(&run), run["guarantee"]);
    assert_eq!(error, ended(&run).1);
    match lost {
        // What the worker says still arrives, and with it how the run ended.
        Lost::FromGateway => assert!(["orphaned", "worker_lost"].contains(&ended(&run).1), "{run:#}"),
        _ => assert_eq!((ended(&run), &run["guarantee"]), (("failed", "worker_lost"), &json!("best_effort")), "{run:#}"),
    }
    lost.ends(lab);
    lab.on_client(|| {
        until("it is heard again", || (states(&gateway) == ["here"]).then_some(()));
        assert_eq!(Caller::chat(&gateway, "next", &chat_body("Hi", 4, false)).answer().0, 200);
        assert_eq!(metric(&gateway, "kvit_run_outcomes_total"), 2);
        assert_eq!(metric(&gateway, "kvit_defects_total"), 0);
    });
    assert_eq!(probe.until_at_rest().orphaned_attempts, 1);
}

#[test]
fn a_partition_shorter_than_the_lease_loses_nothing() {
    in_lab("faults::partition::a_partition_shorter_than_the_lease_loses_nothing", |lab| {
        let texts = alone(&lasting_model(), &[("Hello", TOKENS)]);
        for lost in [Lost::Everything, Lost::FromWorker, Lost::FromGateway] {
            shorter_than_the_lease(lab, lost, &texts[0]);
        }
    });
}

#[test]
fn a_partition_longer_than_the_lease_ends_the_run_once_on_each_side() {
    in_lab("faults::partition::a_partition_longer_than_the_lease_ends_the_run_once_on_each_side", |lab| {
        for lost in [Lost::Everything, Lost::FromWorker, Lost::FromGateway] {
            longer_than_the_lease(lab, lost);
        }
    });
}
