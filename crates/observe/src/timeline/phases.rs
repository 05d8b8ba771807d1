//! A run's life in phases that follow one another, read off its milestones: what a screen and a trace file draw.
//!
//! Invariant: a phase begins where the one before it ends, and none ends before it begins, whatever the stamps say (those of a worker in
//! another process may be off by its `clock_error_ms`).

use lifecycle::Milestone as M;
use serde_json::Value;

use super::facts::Facts;

/// One phase; times are milliseconds since the run was accepted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Phase {
    /// `accepted`, `queued`, `prefill`, `decode`, `after disconnect` (or `deadline`, or `cancel`), `draining` or `settling`.
    pub name: &'static str,
    /// When it began.
    pub from: f64,
    /// When it ended.
    pub to: f64,
}

/// Every milestone that a run (the JSON of `GET /v1/runs/{id}`) has reached, in order of time.
pub fn stamps(run: &Value) -> Vec<(f64, M)> {
    Facts(run).stamps()
}

/// What the time is called from when on somebody knew that the run was no longer wanted.
fn gone(facts: Facts<'_>) -> Option<(&'static str, f64)> {
    let at = facts.abandoned()?;
    let names = [(M::DisconnectObserved, "after disconnect"), (M::DeadlineFired, "after deadline"), (M::CancelApplied, "after cancel")];
    names.into_iter().find(|(milestone, _)| facts.stamp(*milestone) == Some(at)).map(|(_, name)| (name, at))
}

/// The phases of a run until it is settled, or, if it is not, until `end`.
pub fn phases(run: &Value, end: f64) -> Vec<Phase> {
    let facts = Facts(run);
    let at = |milestone| facts.stamp(milestone);
    let gone = gone(facts);
    let wanted = |at: &f64| gone.is_none_or(|(_, gone)| *at < gone);
    let lived = [(M::Accepted, "accepted"), (M::Queued, "queued"), (M::PrefillStart, "prefill"), (M::FirstToken, "decode")];
    let mut begins: Vec<(&str, f64)> = lived.into_iter().filter_map(|(m, name)| Some((name, at(m).filter(wanted)?))).collect();
    begins.extend(gone);
    // The newest computation is stamped while the run computes, too: only of one that is stopped or over it is the last.
    if at(M::Released).or(at(M::CancelApplied)).is_some() {
        let computed = [M::LastCompute, M::CancelApplied].into_iter().filter_map(at);
        begins.extend(computed.chain(gone.map(|(_, at)| at)).max_by(f64::total_cmp).map(|at| ("draining", at)));
    }
    begins.extend(at(M::Released).map(|at| ("settling", at)));
    let end = at(M::Settled).unwrap_or(end);
    let mut phases: Vec<Phase> = Vec::new();
    for (i, (name, from)) in begins.iter().enumerate() {
        let from = phases.last().map_or(*from, |before| before.to);
        let to = begins.get(i + 1).map_or(end, |(_, next)| *next).max(from);
        phases.push(Phase { name, from, to });
    }
    phases.retain(|phase| phase.to > phase.from);
    phases
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(run: &Value, end: f64) -> Vec<(&'static str, f64, f64)> {
        phases(run, end).iter().map(|p| (p.name, p.from, p.to)).collect()
    }

    #[test]
    fn a_run_that_was_left_in_decode_has_every_phase() {
        let run = json!({"milestones": {"accepted": 0.0, "queued": 1.0, "prefill_start": 2.0, "first_token": 20.0, "disconnect_observed": 50.0,
            "cancel_applied": 50.3, "last_compute": 51.0, "released": 51.5, "settled": 52.0}});
        assert_eq!(
            named(&run, 99.0),
            [
                ("accepted", 0.0, 1.0),
                ("queued", 1.0, 2.0),
                ("prefill", 2.0, 20.0),
                ("decode", 20.0, 50.0),
                ("after disconnect", 50.0, 51.0),
                ("draining", 51.0, 51.5),
                ("settling", 51.5, 52.0),
            ]
        );
    }

    #[test]
    fn one_that_nobody_left_drains_after_its_last_step() {
        let run = json!({"milestones": {"accepted": 0.0, "queued": 1.0, "prefill_start": 2.0, "first_token": 20.0, "last_compute": 30.0,
            "released": 31.0, "settled": 32.0, "disconnect_observed": null}});
        assert_eq!(named(&run, 99.0)[3..], [("decode", 20.0, 30.0), ("draining", 30.0, 31.0), ("settling", 31.0, 32.0)]);
    }

    #[test]
    fn one_that_lives_is_in_its_newest_phase_until_now() {
        let run = json!({"milestones": {"accepted": 0.0, "queued": 1.0, "prefill_start": 2.0, "first_token": 20.0, "last_compute": 30.0}});
        assert_eq!(named(&run, 40.0).last(), Some(&("decode", 20.0, 40.0)), "its newest step is not its last");
        let left = json!({"milestones": {"accepted": 0.0, "queued": 1.0, "disconnect_observed": 5.0, "cancel_applied": 6.0, "released": 6.0,
            "settled": 7.0}});
        assert_eq!(
            named(&left, 40.0),
            [("accepted", 0.0, 1.0), ("queued", 1.0, 5.0), ("after disconnect", 5.0, 6.0), ("settling", 6.0, 7.0)]
        );
        assert_eq!(named(&json!({"milestones": {"accepted": 0.0, "settled": 0.5}}), 40.0), [("accepted", 0.0, 0.5)], "refused");
    }

    #[test]
    fn stamps_of_clocks_that_disagree_turn_no_phase_around() {
        let run = json!({"milestones": {"accepted": 0.0, "queued": -0.2, "prefill_start": 3.0, "first_token": 2.5, "deadline_fired": 9.0,
            "cancel_applied": 8.9, "last_compute": 9.2, "released": 9.1, "settled": 9.5}});
        let phases = phases(&run, 99.0);
        assert!(phases.windows(2).all(|two| two[0].to <= two[1].from) && phases.iter().all(|p| p.from < p.to), "{phases:?}");
        assert!(phases.iter().any(|p| p.name == "after cancel"), "{phases:?}");
    }
}
