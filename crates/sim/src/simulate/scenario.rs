//! A seed's world before anything happens: how many of everything, their limits, the runs and what their callers will do.
//!
//! Invariant: every run fits into every worker's pool, so that only a fault can make it fail.

use std::time::Duration;

use engine::{DeviceLimits, EngineConfig};
use lifecycle::session::SessionConfig;
use lifecycle::{Cause, DispatchConfig, OnDisconnect, RunId, RunKey, Tenant};

use super::device::{BLOCK_TOKENS, VOCAB};
use super::faults::FaultSet;
use super::rng::Rng;

/// Microseconds in a millisecond.
pub(super) const MS: u64 = 1000;

/// How a caller comes and leaves.
#[derive(Clone, Debug)]
pub(super) struct RunPlan {
    pub key: RunKey,
    pub gateway: usize,
    pub arrives: u64,
    pub prompt: Vec<u32>,
    pub cap: u32,
    pub n: u32,
    pub priority: i32,
    /// The caller's deadline, from its arrival.
    pub deadline: Option<u64>,
    /// When the caller leaves, and how that is seen.
    pub leaves: Option<(u64, Cause)>,
    /// What its reader's leaving means.
    pub policy: OnDisconnect,
    /// It is accepted with nobody to read it.
    pub unread: bool,
    /// When somebody comes to read it.
    pub returns: Vec<u64>,
    /// When, and how, whoever came leaves.
    pub leaves_again: Option<(u64, Cause)>,
    /// When somebody cancels it by name, and at which gateway.
    pub cancelled: Option<(u64, usize)>,
}

/// A seed's world before anything happens.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub gateways: usize,
    pub workers: usize,
    /// How long faults happen.
    pub safety: u64,
    pub faults: FaultSet,
    /// 1 to 3.
    pub hardness: u32,
    pub session: SessionConfig,
    pub dispatch: DispatchConfig,
    pub engine: EngineConfig,
    pub limits: DeviceLimits,
    /// How long a step takes.
    pub step: (u64, u64),
    pub tokenise: (u64, u64),
    pub runs: Vec<RunPlan>,
}

/// A run's name. Many are the beginning of another's, so that whoever matches names by their beginning is seen.
pub(super) fn called(run: usize) -> String {
    let mut digits = Vec::new();
    let mut rest = run + 1;
    while rest > 0 {
        rest -= 1;
        digits.push(if rest.is_multiple_of(2) { '1' } else { '2' });
        rest /= 2;
    }
    std::iter::once('r').chain(digits.into_iter().rev()).collect()
}

const LEAVINGS: [Cause; 6] =
    [Cause::ClientClosed, Cause::ClientReset, Cause::ClientLost, Cause::ClientStalled, Cause::EdgeTimeout, Cause::CancelRequested];

impl Scenario {
    pub fn of(seed: u64, without: FaultSet) -> Scenario {
        let mut rng = Rng::of(seed, 1);
        let faults = FaultSet::choose(&mut rng).without(without);
        let (gateways, workers) = (rng.between(1, 3) as usize, rng.between(1, 3) as usize);
        let mut session = session(&mut rng);
        session.refused_after = Duration::from_micros(Rng::of(seed, 6).pick(&[0, 100 * MS, 300 * MS, 1000 * MS]));
        let lease = session.lease.as_micros() as u64;
        let safety = rng.between(lease * 3 / 2, lease * 3).max(1500 * MS);
        let dispatch = DispatchConfig {
            answer_grace: Duration::from_micros(rng.pick(&[50 * MS, 500 * MS, 2000 * MS])),
            queue_deadline: Duration::from_micros(rng.pick(&[400 * MS, 4000 * MS, 300_000 * MS])),
            redispatch_max: rng.between(0, 2) as u32,
            ..DispatchConfig::default()
        };
        let dispatch = DispatchConfig { unbegun_max: Rng::of(seed, 7).between(0, 2) as u32, ..dispatch };
        let engine = EngineConfig {
            step_tokens: rng.pick(&[8, 16, 32]),
            max_running: rng.between(3, 8) as u32,
            queue_limit: rng.pick(&[2, 16, 1024]),
            in_flight: rng.between(1, 2) as u32,
            ..EngineConfig::default()
        };
        let limits = DeviceLimits {
            blocks_total: blocks_total(&mut rng),
            block_tokens: BLOCK_TOKENS,
            block_bytes: 64,
            slots: 8,
            context: 64,
            vocab: VOCAB,
            in_flight: 2,
        };
        let step = rng.pick(&[(MS / 2, 2 * MS), (2 * MS, 8 * MS), (5 * MS, 40 * MS)]);
        let tokenise = rng.pick(&[(100, 500), (500, 20 * MS)]);
        let mut scenario = Scenario {
            gateways,
            workers,
            safety,
            faults,
            hardness: rng.between(1, 3) as u32,
            session,
            dispatch,
            engine,
            limits,
            step,
            tokenise,
            runs: Vec::new(),
        };
        scenario.add_runs(&mut Rng::of(seed, 2));
        scenario.add_policies(&mut Rng::of(seed, 7));
        scenario
    }

    fn add_runs(&mut self, rng: &mut Rng) {
        let count = rng.pick(&[4, 6, 8, 12, 20, 40]);
        let families = rng.between(1, 3) as u32;
        // Of many runs each is shorter.
        let longest = if count > 12 { 5 } else { 14 };
        for i in 0..count {
            let arrives = rng.between(1, self.safety * 9 / 10);
            let (family, length) = (rng.between(1, u64::from(families)) as u32, rng.between(1, 22) as u32);
            let prompt = (0..length).map(|p| (family * 31 + p * 7 + 3) % 90).collect();
            let in_time = |rng: &mut Rng| rng.pick(&[5 * MS, 50 * MS, 400 * MS]).min(self.safety / 4);
            let leaves = rng.chance(350).then(|| {
                let within = in_time(rng);
                (arrives + rng.between(0, within), rng.pick(&LEAVINGS))
            });
            let cancelled = rng.chance(200).then(|| {
                let within = in_time(rng);
                (arrives + rng.between(0, within), rng.below(self.gateways))
            });
            let deadline = rng.chance(200).then(|| rng.between(10 * MS, 1500 * MS));
            let Ok(run) = RunId::parse(&called(i)) else { unreachable!("a number is a run id") };
            self.runs.push(RunPlan {
                key: RunKey { tenant: Tenant::default(), run },
                gateway: rng.below(self.gateways),
                arrives,
                prompt,
                cap: rng.between(1, longest) as u32,
                n: rng.pick(&[1, 1, 1, 2, 3]),
                priority: rng.between(0, 2) as i32 - 1,
                deadline,
                leaves,
                policy: OnDisconnect::Cancel,
                unread: false,
                returns: Vec::new(),
                leaves_again: None,
                cancelled,
            });
        }
    }

    /// In a third of all seeds a leaving means other things than a cancel, more of the readers leave, and some come back.
    fn add_policies(&mut self, rng: &mut Rng) {
        if !rng.chance(333) {
            return;
        }
        for plan in &mut self.runs {
            let grace = rng.pick(&[20 * MS, 150 * MS, 800 * MS]);
            plan.policy = match rng.below(6) {
                0 => OnDisconnect::Cancel,
                1 | 2 => OnDisconnect::Continue,
                _ => OnDisconnect::Grace(Duration::from_micros(grace)),
            };
            if plan.policy != OnDisconnect::Cancel && rng.chance(500) {
                plan.leaves = Some((plan.arrives + rng.between(0, 50 * MS), rng.pick(&LEAVINGS)));
            }
            plan.unread = plan.policy == OnDisconnect::Continue && rng.chance(300);
            let away = plan.leaves.map_or(plan.arrives, |(at, _)| at);
            if rng.chance(600) {
                let back = away + rng.between(0, grace * 5 / 4);
                plan.returns.push(back);
                if rng.chance(400) {
                    let at = back + rng.between(0, 30 * MS);
                    plan.leaves_again = Some((at, rng.pick(&LEAVINGS)));
                    plan.returns.extend(rng.chance(500).then(|| at + rng.between(0, grace * 5 / 4)));
                }
            }
        }
    }
}

/// Half of the pools are so tight that a single run may fill them.
fn blocks_total(rng: &mut Rng) -> u32 {
    let (low, high) = if rng.chance(500) { (19, 24) } else { (30, 64) };
    rng.between(low, high) as u32
}

fn session(rng: &mut Rng) -> SessionConfig {
    let lease = rng.pick(&[600, 1000, 1000, 1500, 2500]);
    SessionConfig {
        lease: Duration::from_millis(if rng.chance(20) { 10_000 } else { lease }),
        window: rng.pick(&[4, 32, 512]),
        outbox_max: rng.pick(&[6, 64, 8192]),
        ask_every: Duration::from_millis(rng.pick(&[300, 1000, 5000])),
        ask_max: rng.pick(&[1, 3, 1024]),
        ..SessionConfig::default()
    }
}
