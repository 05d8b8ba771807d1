//! Where a case works: the worker's address, what it said of itself, gateways with names of their own, and time.
//!
//! Invariant: when a case is over, its gateways have cancelled what they had running, every frame that they got was judged, and they are
//! gone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lifecycle::{AttemptId, Incarnation, RunId, RunKey, Tenant};
use protocol::worker_v1::worker_client::WorkerClient;
use protocol::{Opened, worker_v1 as wire};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::case::{Case, Fault, Length, must};
use super::gateway::Gateway;
use super::report::{Judged, Verdict};
use super::{Error, Options};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(2);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(5);
/// Names for gateways: so few that a worker's `gateways_max` is not reached, so many that a case does not meet the one before it.
const NAMES: u64 = 12;
/// Bytes of an answer to Snapshot that are taken.
const SNAPSHOT_BYTES: usize = protocol::limits::SNAPSHOT_BYTES_MAX.default as usize;
/// How long what a failed case left behind may take to be released.
const CLEAN: Duration = Duration::from_secs(3);

/// What a worker says of itself.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub name: String,
    pub model: String,
    pub life: Incarnation,
    pub context: u32,
    /// The lease that holds if the gateway states next to none.
    pub lease: Duration,
    pub suspend_after: Duration,
    pub heartbeat: Duration,
}

/// A case's place. Clones share it.
#[derive(Clone)]
pub(super) struct Bench {
    address: Arc<str>,
    pub options: Options,
    pub worker: Worker,
    /// Tells this judge's runs from any other's.
    nonce: Arc<str>,
    case: Arc<str>,
    /// Which case this is, from 1.
    turn: Arc<AtomicU64>,
    gateways: Arc<Mutex<Vec<Gateway>>>,
}

/// A life that is greater than any that was made before: milliseconds, then a count.
pub(super) fn fresh_life() -> Incarnation {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Incarnation(now.as_millis() << 80 | u128::from(count) << 40 | u128::from(now.subsec_nanos()))
}

impl Bench {
    /// Meets the worker and hears what it says of itself.
    pub async fn meet(address: &str, options: &Options) -> Result<Bench, Error> {
        let address: Arc<str> = address.strip_prefix("http://").or(address.strip_prefix("grpc://")).unwrap_or(address).into();
        Endpoint::from_shared(format!("http://{address}")).map_err(|_| Error::Address(address.to_string()))?;
        let lost = |why: String| Error::Unreachable { address: address.to_string(), why };
        let gateway = Gateway::new("conformance-meets".to_owned(), fresh_life(), options.lease, options.patience);
        let opened = gateway.open(&address, None).await.map_err(|status| lost(status.message().to_owned()))?;
        gateway.cut();
        let worker = Worker {
            name: opened.welcome.worker.to_string(),
            model: opened.model.id.to_string(),
            life: opened.welcome.incarnation,
            context: opened.model.context,
            lease: opened.welcome.lease,
            suspend_after: opened.limits.suspend_after,
            heartbeat: opened.limits.heartbeat,
        };
        let nonce = format!("{:x}", fresh_life().0 >> 76 & 0xffff_ffff);
        let (turn, gateways) = (Arc::default(), Arc::default());
        Ok(Bench { address, options: options.clone(), worker, nonce: nonce.into(), case: "".into(), turn, gateways })
    }

    /// Runs a case and judges what its gateways heard.
    pub async fn judge(&self, case: &Case) -> Judged {
        let began = Instant::now();
        let left_out = match case.length {
            Length::Long if self.options.quick => Some("takes as long as a lease or a question; left out by --quick"),
            Length::Last if !self.options.drain => Some("leaves the worker of no use; asked for by --drain"),
            _ => None,
        };
        let found = match left_out {
            Some(why) => Err(Fault::Skipped(why.to_owned())),
            None => {
                self.turn.fetch_add(1, Ordering::Relaxed);
                let bench = Bench { case: case.name.into(), gateways: Arc::default(), ..self.clone() };
                let found = (case.body)(bench.clone()).await;
                bench.clean(found.is_ok()).await.and(found)
            }
        };
        let (verdict, evidence) = match found {
            Ok(evidence) => (Verdict::Pass, evidence),
            Err(Fault::Failed(why)) => (Verdict::Fail, why),
            Err(Fault::Skipped(why)) => (Verdict::Skipped, why),
        };
        Judged { name: case.full_name(), proves: case.proves, verdict, evidence, took: began.elapsed() }
    }

    /// Cancels what still runs, and says what was wrong in what was heard.
    async fn clean(&self, well: bool) -> Result<(), Fault> {
        let gateways = std::mem::take(&mut *self.gateways.lock().unwrap_or_else(PoisonError::into_inner));
        let patience = if well { self.options.patience } else { CLEAN };
        for gateway in gateways.iter().filter(|gateway| gateway.is_open()) {
            gateway.see(|state| state.knobs = super::gateway::Knobs::default());
            gateway.cancel_all();
            let left = gateway.wait("the release of everything that was cancelled at the end", patience, |s| s.running().is_empty()).await;
            if well {
                left?;
            }
        }
        let breach = gateways.iter().find_map(|gateway| gateway.see(|state| state.breaches.first().cloned()));
        gateways.iter().for_each(Gateway::cut);
        match breach {
            Some(breach) => Err(Fault::Failed(breach)),
            None => Ok(()),
        }
    }

    /// A name for a gateway: `of` tells a case's gateways apart.
    pub fn name(&self, of: &str) -> String {
        format!("conformance-{}-{of}", self.turn.load(Ordering::Relaxed) % NAMES)
    }

    /// A gateway without a connection, in a new life.
    pub fn gateway(&self, of: &str) -> Gateway {
        self.gateway_that_states(of, self.options.lease)
    }

    /// The same with a lease of its own.
    pub fn gateway_that_states(&self, of: &str, lease: Duration) -> Gateway {
        let gateway = Gateway::new(self.name(of), fresh_life(), lease, self.options.patience);
        self.gateways.lock().unwrap_or_else(PoisonError::into_inner).push(gateway.clone());
        gateway
    }

    /// A gateway in a new life, with a session.
    pub async fn connected(&self, of: &str) -> Result<Gateway, Fault> {
        let gateway = self.gateway(of);
        self.connect(&gateway).await?;
        Ok(gateway)
    }

    /// Opens the next session of a gateway's life; says whether the tenure goes on.
    pub async fn connect(&self, gateway: &Gateway) -> Result<bool, Fault> {
        let before = gateway.see(|state| state.tenure);
        gateway
            .open(&self.address, None)
            .await
            .map_err(|status| Fault::Failed(format!("the worker refused a session: {}", said(&status))))?;
        Ok(before == gateway.see(|state| state.tenure))
    }

    /// Opens a session that must be refused: how it was.
    pub async fn refused(&self, gateway: &Gateway, first: wire::Down) -> Result<Status, Fault> {
        match gateway.open(&self.address, Some(first)).await {
            Err(status) => Ok(status),
            Ok(_) => Err(Fault::Failed("the worker opened the session".to_owned())),
        }
    }

    /// Opens a session with a Hello that a case made.
    pub async fn opened(&self, gateway: &Gateway, first: wire::Down) -> Result<Opened, Fault> {
        let opened = gateway.open(&self.address, Some(first)).await;
        opened.map_err(|status| Fault::Failed(format!("the worker refused a session: {}", said(&status))))
    }

    /// A channel of its own for the calls outside the session.
    pub async fn client(&self) -> Result<WorkerClient<Channel>, Fault> {
        connect(&self.address).await.map(|c| c.max_decoding_message_size(SNAPSHOT_BYTES)).map_err(|s| Fault::Failed(said(&s)))
    }

    /// A cut of the worker, which must add up.
    pub async fn snapshot(&self) -> Result<wire::Snapshot, Fault> {
        let request = wire::SnapshotRequest { blocks: false };
        let reply = tokio::time::timeout(self.options.patience, self.client().await?.snapshot(request)).await;
        let reply = reply.map_err(|_| Fault::Failed("Snapshot was not answered".to_owned()))?;
        let reply = reply.map_err(|status| Fault::Failed(format!("Snapshot: {}", said(&status))))?.into_inner();
        let life = self.worker.life.0.to_be_bytes();
        must(reply.worker == life, || "SnapshotReply.worker is not the life that Welcome states".to_owned())?;
        let cut = reply.snapshot.ok_or_else(|| Fault::Failed("SnapshotReply.snapshot is missing".to_owned()))?;
        let parts = [cut.free, cut.active, cut.cached, cut.draining, cut.quarantined];
        let sum: u64 = parts.iter().map(|part| u64::from(*part)).sum();
        must(sum == u64::from(cut.total), || {
            format!("free, active, cached, draining, quarantined are {parts:?}, and total is {}", cut.total)
        })?;
        must(cut.orphaned <= cut.active, || format!("{} orphaned blocks of {} active ones", cut.orphaned, cut.active))?;
        Ok(cut)
    }

    /// Where an attempt is, in a cut; none if it is not there.
    pub async fn state_of(&self, attempt: &AttemptId) -> Result<Option<wire::AttemptState>, Fault> {
        let cut = self.snapshot().await?;
        let named = wire::Attempt::from(attempt);
        Ok(cut.attempts.iter().find(|cut| cut.attempt.as_ref() == Some(&named)).map(wire::AttemptCut::state))
    }

    /// Waits until an attempt is in a state, or (none) nowhere, by the worker's own account.
    pub async fn until_state(&self, attempt: &AttemptId, state: Option<wire::AttemptState>, patience: Duration) -> Result<(), Fault> {
        let began = Instant::now();
        loop {
            let now = self.state_of(attempt).await?;
            if now == state {
                return Ok(());
            }
            let words = |state: Option<wire::AttemptState>| state.map_or("gone", |s| s.as_str_name());
            must(began.elapsed() < patience, || {
                format!("after {} ms an attempt is {} in Snapshot, and not {}", patience.as_millis(), words(now), words(state))
            })?;
            tokio::time::sleep(LOOK * 10).await;
        }
    }

    /// An attempt that no worker has seen.
    pub fn attempt(&self, of: &str) -> AttemptId {
        let turn = self.turn.load(Ordering::Relaxed);
        let text = format!("{}-{}-{turn}-{of}", self.nonce, self.case);
        let run = RunId::parse(&text).unwrap_or_else(|_| unreachable!("made of letters, digits, - and _"));
        AttemptId { key: RunKey { tenant: Tenant::default(), run }, attempt: 1 }
    }

    /// A time after which the worker has certainly suspended a silent gateway, if it ever does.
    pub fn surely_suspended(&self) -> Duration {
        self.worker.suspend_after * 4 + Duration::from_millis(500)
    }
}

/// Connects.
pub(super) async fn connect(address: &str) -> Result<WorkerClient<Channel>, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| Status::unavailable(error.to_string()))?;
    let channel = endpoint.connect_timeout(CONNECT).tcp_nodelay(true).connect().await;
    channel.map(WorkerClient::new).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        Status::unavailable(format!("{error}{cause}"))
    })
}

/// A status in a line.
pub(super) fn said(status: &Status) -> String {
    format!("{:?} ({})", status.code(), status.message())
}
