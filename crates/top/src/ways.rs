//! How long each part of the way from a leaving to the release took, over the runs that ended last.

use lifecycle::Milestone;
use serde_json::Value;

use crate::facts::Run;

/// The way's parts, with names for a column.
pub(crate) const WAYS: [(Milestone, &str); 6] = [
    (Milestone::CancelSent, "sent"),
    (Milestone::CancelReceived, "received"),
    (Milestone::CancelApplied, "applied"),
    (Milestone::CancelAcknowledged, "acked"),
    (Milestone::LastCompute, "last step"),
    (Milestone::Released, "released"),
];

/// Median and 95th percentile of one part, in milliseconds behind the first observation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) times: Option<(f64, f64)>,
}

/// The value below which a share of the sorted values lies.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let at = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied()
}

/// How many runs somebody left, and what is known of each part.
pub(crate) fn ways(ended: &[Value]) -> (usize, [Way; 6]) {
    let left: Vec<(Run<'_>, f64)> = ended.iter().filter_map(|run| Some((Run(run), Run(run).observed()?))).collect();
    let ways = WAYS.map(|(milestone, name)| {
        // The last computation of a run that was left in the queue was none, or was before.
        let mut times: Vec<f64> = left.iter().filter_map(|(run, gone)| Some(run.at(milestone)? - gone)).filter(|ms| *ms >= 0.0).collect();
        times.sort_by(f64::total_cmp);
        Way { name, times: quantile(&times, 0.5).zip(quantile(&times, 0.95)) }
    });
    (left.len(), ways)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_part_counts_from_the_first_observation() {
        let run = |gone: Value, released: f64| {
            let milestones = json!({"cancel_sent": 100.5, "last_compute": 90.0, "released": released});
            json!({"boundaries": [{"observed": gone}], "milestones": milestones})
        };
        let mut ended: Vec<Value> = (1..=20).map(|i| run(json!(100.0), 100.0 + f64::from(i))).collect();
        ended.push(run(Value::Null, 5.0));
        let (left, ways) = ways(&ended);
        let of = |name: &str| ways.iter().find(|way| way.name == name).unwrap().times;
        assert_eq!((left, of("sent"), of("released")), (20, Some((0.5, 0.5)), Some((10.0, 19.0))));
        assert_eq!((of("last step"), of("acked")), (None, None), "before it, and never");
        assert_eq!(super::ways(&[]).0, 0);
    }
}
