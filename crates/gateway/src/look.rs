//! A look at everything that this gateway sees, for whoever judges it: the workers' accounts, the journal's part, and what the process holds.
//!
//! Invariant: each account is one cut of its worker's own state; who did not answer has none.
// contract: C-15

use lifecycle::{RunId, RunKey, Tenant, WorkerIndex};
use observe::diagnose::{AccountLook, Look, ProcessLook, WorkerLook};

use crate::asks::Cut;
use crate::calls::{Calls, Table};
use crate::links::Journals;

impl Calls {
    /// One look, with every worker's blocks or with their sums alone.
    pub(crate) async fn see(&self, blocks: bool) -> Look {
        let cuts = self.snapshots(blocks).await;
        let scraped: Vec<_> = cuts.iter().map(Cut::scraped).collect();
        let look = self.journal.look(&self.config.alerts, &scraped);
        let process = crate::vitals::holdings(self).process.map(|process| ProcessLook {
            resident_bytes: process.resident_bytes,
            open_fds: process.open_fds,
            threads: process.threads,
        });
        let table = self.lock();
        let known: Vec<_> = table.workers.iter().map(|(_, known)| (known.word(), known.offer.forwards)).collect();
        let workers = cuts.iter().zip(known).map(|(cut, (presence, forwards))| WorkerLook {
            name: cut.name.to_string(),
            life: cut.life.map(|life| life.to_string()),
            presence: presence.to_owned(),
            forwards,
            runs: cut.runs,
            slots: cut.slots,
            account: cut.snapshot.as_deref().map(AccountLook::of),
        });
        let workers = workers.collect();
        let left = look.left.into_iter().map(|left| observe::diagnose::LeftRun { worker: whose(&table, &left.tenant, &left.run), ..left });
        let left = left.collect();
        drop(table);
        Look {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            incarnation: self.incarnation.to_string(),
            has_pool: self.links.iter().any(|link| link.journals == Journals::Here),
            workers,
            left,
            process,
            ..look
        }
    }
}

/// The worker that has a run, by the table.
fn whose(table: &Table, tenant: &str, run: &str) -> Option<String> {
    let key = RunKey { tenant: Tenant::parse(tenant).ok()?, run: RunId::parse(run).ok()? };
    let (worker, _): (WorkerIndex, _) = table.entries.get(&key)?.dispatch.load()?;
    table.workers.get(worker).map(|known| known.name.to_string())
}
