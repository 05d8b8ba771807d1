//! Fair shares: of the tenants whose runs wait for a place, each has its turn, however many runs one of them brings.
//!
//! Start-time fair queueing (Goyal, Vin, Chen: "Start-time Fair Queuing", 1996) with runs as equal pieces: a run's turn is the later one of its
//! tenant's last turn plus one and the turn that is being served, so that who was idle has no credit and who has had much waits.
//!
//! Invariant: a tenant that is not in here is one that has had no more than the others.
// contract: C-30

use std::collections::HashMap;

use lifecycle::{RunKey, Tenant};

/// Turns.
#[derive(Default)]
pub(crate) struct Shares {
    /// The turn that was served last.
    now: u64,
    /// Each tenant's next turn, if it is later than that.
    next: HashMap<Tenant, u64>,
}

impl Shares {
    fn turn(&self, tenant: &Tenant) -> u64 {
        self.next.get(tenant).copied().unwrap_or(0).max(self.now)
    }

    /// A run of this tenant has got a place.
    pub(crate) fn placed(&mut self, tenant: &Tenant) {
        self.now = self.turn(tenant);
        self.next.insert(tenant.clone(), self.now + 1);
        let now = self.now;
        self.next.retain(|_, next| *next > now);
    }

    /// Runs that wait, each with its place in the order of coming, in the order of their turns; within a turn the first that came.
    pub(crate) fn order(&self, waiting: Vec<(u64, RunKey)>) -> Vec<RunKey> {
        let mut queues: HashMap<Tenant, Vec<(u64, RunKey)>> = HashMap::new();
        for (order, key) in waiting {
            queues.entry(key.tenant.clone()).or_default().push((order, key));
        }
        let mut turns: Vec<(u64, u64, RunKey)> = Vec::new();
        for (tenant, mut queue) in queues {
            queue.sort();
            turns.extend((self.turn(&tenant)..).zip(queue).map(|(turn, (order, key))| (turn, order, key)));
        }
        turns.sort();
        turns.into_iter().map(|(.., key)| key).collect()
    }
}

#[cfg(test)]
mod tests {
    use lifecycle::RunId;

    use super::*;

    fn key(name: &str) -> RunKey {
        RunKey { tenant: Tenant::parse(&name[..1]).unwrap(), run: RunId::parse(name).unwrap() }
    }

    fn order(shares: &Shares, names: &[&str]) -> String {
        let waiting = (0..).zip(names).map(|(order, name)| (order, key(name))).collect();
        shares.order(waiting).iter().map(|key| key.run.to_string()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn who_brings_many_waits_behind_who_brings_one() {
        let mut shares = Shares::default();
        assert_eq!(order(&shares, &["a1", "a2", "a3", "b1"]), "a1 b1 a2 a3");
        shares.placed(&key("a1").tenant);
        assert_eq!(order(&shares, &["a2", "a3", "b1"]), "b1 a2 a3");
        shares.placed(&key("b1").tenant);
        // Who was idle has saved nothing.
        for _ in 0..10 {
            shares.placed(&key("a2").tenant);
        }
        assert_eq!(order(&shares, &["a3", "c1", "c2", "c3", "b2"]), "c1 b2 a3 c2 c3");
        assert_eq!(shares.next.len(), 1, "only who has had more is known");
    }
}
