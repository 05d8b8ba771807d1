//! What a scenario is made of: hosts, runs, and what was seen of both.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use gateway::WireConfig;
use lifecycle::message::Snapshot;
use lifecycle::session::SessionConfig;
use lifecycle::{Cause, Incarnation, RunId, RunKey, Tenant, WorkerIndex};
use worker::SessionsCut;
use worker::grpc::GrpcConfig;

use super::device::{Chosen, isolated};
use super::net::{mix, time};
use super::{gateway as gateway_host, worker as worker_host};

pub const PORT: u16 = 7000;
/// The grain of the simulation's time.
pub const TICK: Duration = Duration::from_millis(2);

/// A run, as it is planned.
#[derive(Clone, Debug)]
pub struct Plan {
    pub gateway: usize,
    /// When it arrives, and when its caller no longer wants it.
    pub at: Duration,
    pub cancel: Option<Duration>,
    pub cap: u32,
}

/// What was seen of a run.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub arrived: bool,
    pub wanted: bool,
    pub tokens: Vec<u32>,
    pub outcomes: Vec<Cause>,
    /// Whether its release was proven; once.
    pub settled: Vec<bool>,
}

/// What a worker's host looked like: its state, its tasks and its open connections.
#[derive(Clone, Debug)]
pub struct Cut {
    pub snapshot: Snapshot,
    pub sessions: SessionsCut,
    pub tasks: usize,
    pub streams: usize,
}

#[derive(Default)]
struct Seens {
    trace: Vec<String>,
    lives: BTreeMap<String, u128>,
    runs: Vec<Seen>,
    workers: BTreeMap<usize, Cut>,
    /// Tasks on the gateways' hosts.
    gateways: BTreeMap<usize, usize>,
    /// Connections that were tried, by link.
    tried: BTreeMap<String, u32>,
    /// Lives that a gateway took for here.
    here: Vec<(String, WorkerIndex, Incarnation)>,
    /// How often one took a life for lost.
    lost: u32,
    asleep: Vec<usize>,
    stopped_gateways: Vec<usize>,
    mute: Vec<usize>,
    left: BTreeMap<usize, usize>,
}

pub struct Shared {
    pub seed: u64,
    pub workers: usize,
    pub session: SessionConfig,
    pub wire: WireConfig,
    pub grpc: GrpcConfig,
    pub plans: Vec<Plan>,
    pub chosen: Chosen,
    stops: Vec<tokio::sync::watch::Sender<bool>>,
    seen: Mutex<Seens>,
}

/// What hosts and test share.
#[derive(Clone)]
pub struct Stage(Arc<Shared>);

impl Deref for Stage {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

pub fn key(run: usize) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(&format!("run-{run}")).expect("an id") }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Seens> {
        self.seen.lock().expect("no panic under it")
    }

    // --- what hosts say and ask ---

    pub fn tell(&self, who: &str, what: impl std::fmt::Display) {
        self.lock().trace.push(format!("{:>11.3} ms  {who}: {what}", time().as_secs_f64() * 1e3));
    }

    pub fn next_life(&self, name: &str) -> Incarnation {
        let life = {
            let mut seen = self.lock();
            let life = seen.lives.entry(name.to_owned()).or_default();
            *life += 1;
            *life
        };
        self.tell(name, format!("life {life} begins"));
        Incarnation(life)
    }

    pub fn tried(&self, link: &str) {
        *self.lock().tried.entry(link.to_owned()).or_default() += 1;
        self.tell(link, "connects");
    }

    pub fn here(&self, gateway: &str, worker: WorkerIndex, life: Incarnation) {
        self.tell(gateway, format!("worker-{} is here, life {}", worker.0, life.0));
        self.lock().here.push((gateway.to_owned(), worker, life));
    }

    pub fn lost(&self, gateway: &str, worker: WorkerIndex, life: Incarnation, why: &str) {
        self.tell(gateway, format!("worker-{} is lost, life {}: {why}", worker.0, life.0));
        self.lock().lost += 1;
    }

    pub fn look(&self, worker: usize, cut: Cut) {
        self.lock().workers.insert(worker, cut);
    }

    pub fn look_at_gateway(&self, gateway: usize, tasks: usize) {
        self.lock().gateways.insert(gateway, tasks);
    }

    /// Runs that arrive now at a gateway. Each arrives once, whatever becomes of the gateway.
    pub fn due(&self, gateway: usize) -> Vec<usize> {
        let (now, mut seen) = (time(), self.lock());
        let due = |(run, plan): (usize, &Plan)| (plan.gateway == gateway && plan.at <= now && !seen.runs[run].arrived).then_some(run);
        let due: Vec<usize> = self.plans.iter().enumerate().filter_map(due).collect();
        due.iter().for_each(|run| seen.runs[*run].arrived = true);
        due
    }

    /// Runs whose caller no longer wants them from now on.
    pub fn wants(&self, gateway: usize) -> Vec<usize> {
        let (now, mut seen) = (time(), self.lock());
        let due = |(run, plan): (usize, &Plan)| {
            (plan.gateway == gateway && plan.cancel.is_some_and(|at| at <= now) && !seen.runs[run].wanted).then_some(run)
        };
        let due: Vec<usize> = self.plans.iter().enumerate().filter_map(due).collect();
        due.iter().for_each(|run| seen.runs[*run].wanted = true);
        due
    }

    pub fn prompt(run: usize) -> Vec<u32> {
        // Longer than a block, and no two begin alike.
        (0..20).map(|i| if i == 0 { run as u32 + 1 } else { 3 + b'a' as u32 + i }).collect()
    }

    pub fn work(&self, run: usize) -> (Vec<u32>, u32) {
        (Self::prompt(run), self.plans[run].cap)
    }

    pub fn delivered(&self, run: usize, tokens: &[u32]) {
        self.lock().runs[run].tokens.extend(tokens);
    }

    pub fn ended(&self, run: usize, cause: Cause) {
        self.lock().runs[run].outcomes.push(cause);
    }

    pub fn settled(&self, run: usize, proven: bool) {
        self.lock().runs[run].settled.push(proven);
    }

    pub fn is_asleep(&self, gateway: usize) -> bool {
        self.lock().asleep.contains(&gateway)
    }

    pub fn is_gateway_stopped(&self, gateway: usize) -> bool {
        self.lock().stopped_gateways.contains(&gateway)
    }

    /// Tasks that are left on the host of a worker that has ended.
    pub fn left(&self, worker: usize, tasks: usize) {
        self.lock().left.insert(worker, tasks);
    }

    pub fn is_mute(&self, worker: usize) -> bool {
        self.lock().mute.contains(&worker)
    }

    pub fn is_stopped(&self, worker: usize) -> bool {
        *self.stops[worker].borrow()
    }

    pub fn stopped(&self, worker: usize) -> impl Future<Output = ()> + Send + 'static {
        let mut stop = self.stops[worker].subscribe();
        async move { drop(stop.wait_for(|stop| *stop).await) }
    }

    // --- what the test sees and does ---

    pub fn run(&self, run: usize) -> Seen {
        self.lock().runs[run].clone()
    }

    pub fn worker(&self, worker: usize) -> Option<Cut> {
        self.lock().workers.get(&worker).cloned()
    }

    /// Tasks on a gateway's host.
    pub fn gateway_tasks(&self, gateway: usize) -> usize {
        self.lock().gateways.get(&gateway).copied().unwrap_or_default()
    }

    /// Tasks and connections on a worker's host.
    pub fn worker_tasks(&self, worker: usize) -> (usize, usize) {
        self.worker(worker).map_or((0, 0), |cut| (cut.tasks, cut.streams))
    }

    pub fn tries(&self, link: &str) -> u32 {
        self.lock().tried.get(link).copied().unwrap_or_default()
    }

    pub fn is_any_lost(&self) -> bool {
        self.lock().lost > 0
    }

    /// Whether a gateway took this life of a worker for here.
    pub fn was_here(&self, gateway: &str, worker: usize, life: u128) -> bool {
        self.lock().here.contains(&(gateway.to_owned(), WorkerIndex(worker as u32), Incarnation(life)))
    }

    pub fn trace(&self) -> Vec<String> {
        self.lock().trace.clone()
    }

    /// The gateway's pump takes nothing in, or does again.
    pub fn sleep(&self, gateway: usize, asleep: bool) {
        let mut seen = self.lock();
        seen.asleep.retain(|g| *g != gateway);
        if asleep {
            seen.asleep.push(gateway);
        }
    }

    /// From its next life on.
    pub fn mute(&self, worker: usize, mute: bool) {
        let mut seen = self.lock();
        seen.mute.retain(|w| *w != worker);
        if mute {
            seen.mute.push(worker);
        }
    }

    pub fn tasks_left(&self, worker: usize) -> Option<usize> {
        self.lock().left.get(&worker).copied()
    }

    pub fn stop_gateway(&self, gateway: usize) {
        self.lock().stopped_gateways.push(gateway);
    }

    pub fn stop_worker(&self, worker: usize) {
        self.stops[worker].send_replace(true);
    }

    pub fn is_settled(&self, run: usize) -> bool {
        !self.lock().runs[run].settled.is_empty()
    }

    /// Tokens that were chosen so far.
    pub fn chosen(&self) -> usize {
        self.chosen.lock().expect("no panic").len()
    }

    /// Of those, the ones that were chosen more than once.
    pub fn chosen_twice(&self) -> usize {
        self.chosen.lock().expect("no panic").values().filter(|count| **count > 1).count()
    }
}

/// A simulation and what is seen of it.
pub struct World {
    pub sim: turmoil::Sim<'static>,
    pub stage: Stage,
    chance: u64,
}

/// What differs between scenarios.
pub struct Setup {
    pub seed: u64,
    pub gateways: usize,
    pub workers: usize,
    pub session: SessionConfig,
    pub wire: WireConfig,
    pub grpc: GrpcConfig,
    pub plans: Vec<Plan>,
    /// A worker whose first life is mute.
    pub mute: Option<usize>,
    /// Connections to the first worker on which nobody ever says a word.
    pub strangers: usize,
}

impl Setup {
    pub fn new(seed: u64, (gateways, workers): (usize, usize), plans: Vec<Plan>) -> Setup {
        // turmoil refuses a connection over a link that is cut, which no network does: a refusal is no evidence here.
        let session = SessionConfig { refused_after: Duration::ZERO, ..SessionConfig::default() };
        let (wire, grpc) = (WireConfig::default(), GrpcConfig::default());
        Setup { seed, gateways, workers, session, wire, grpc, plans, mute: None, strangers: 0 }
    }

    pub fn build(self) -> World {
        let Setup { seed, gateways, workers, session, wire, grpc, plans, mute, strangers } = self;
        let seen = Seens { runs: vec![Seen::default(); plans.len()], mute: mute.into_iter().collect(), ..Seens::default() };
        let stops = (0..workers).map(|_| tokio::sync::watch::Sender::new(false)).collect();
        let (chosen, seen) = (Chosen::default(), Mutex::new(seen));
        let stage = Stage(Arc::new(Shared { seed, workers, session, wire, grpc, plans, chosen, stops, seen }));
        let mut builder = turmoil::Builder::new();
        builder.rng_seed(seed).max_message_latency(Duration::from_millis(10)).tick_duration(TICK);
        let mut sim = builder.simulation_duration(Duration::from_secs(3600)).build();
        for w in 0..workers {
            let stage = stage.clone();
            sim.host(format!("worker-{w}"), move || {
                let stage = stage.clone();
                async move { if stage.is_mute(w) { worker_host::mute(stage, w).await } else { worker_host::live(stage, w).await } }
            });
        }
        if strangers > 0 {
            sim.host("stranger", move || worker_host::strangers(strangers));
        }
        for g in 0..gateways {
            let stage = stage.clone();
            sim.host(format!("gateway-{g}"), move || gateway_host::live(stage.clone(), g));
        }
        World { sim, stage, chance: mix(seed) }
    }
}

impl World {
    /// A number below `bound`, from the seed.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.chance = mix(self.chance);
        self.chance % bound
    }

    pub fn ms(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(TICK.as_millis() as u64) {
            self.sim.step().unwrap_or_else(|error| panic!("{error}\n{}", self.story()));
        }
    }

    /// Lets time pass until something holds, at most so many milliseconds of it.
    pub fn until(&mut self, what: &str, limit_ms: u64, holds: impl Fn(&Stage) -> bool) {
        let until = self.sim.elapsed() + Duration::from_millis(limit_ms);
        while self.sim.elapsed() < until && !holds(&self.stage) {
            self.ms(1);
        }
        assert!(holds(&self.stage), "seed {}: not within {limit_ms} ms: {what}\n{}", self.stage.seed, self.story());
    }

    pub fn story(&self) -> String {
        let runs: Vec<String> = (0..self.stage.plans.len()).map(|run| format!("run {run}: {:?}", self.stage.run(run))).collect();
        format!("{}\n{}", self.stage.trace().join("\n"), runs.join("\n"))
    }

    pub fn tell(&self, what: impl std::fmt::Display) {
        let mut seen = self.stage.lock();
        seen.trace.push(format!("{:>11.3} ms  -- {what}", self.sim.elapsed().as_secs_f64() * 1e3));
    }

    /// Every run has come to its end, and its tokens are a beginning of what it gives alone: all of them if it completed.
    pub fn all_settle(&mut self, limit_ms: u64) {
        self.until("every run is settled", limit_ms, |stage| (0..stage.plans.len()).all(|run| stage.is_settled(run)));
        for run in 0..self.stage.plans.len() {
            self.check(run);
        }
    }

    pub fn check(&self, run: usize) {
        let (seen, (prompt, cap)) = (self.stage.run(run), self.stage.work(run));
        let alone = isolated(&prompt, cap as usize);
        let story = || format!("seed {}, run {run}: {seen:?}\n{}", self.stage.seed, self.story());
        assert!(alone.starts_with(&seen.tokens), "other tokens than alone: {}", story());
        assert!(seen.outcomes.len() == 1 && seen.settled.len() == 1, "one outcome, one end: {}", story());
        if seen.outcomes == [Cause::Length] {
            assert_eq!(seen.tokens.len(), alone.len(), "{}", story());
        }
    }

    /// A run was computed to its end, at one attempt, and its release is proven.
    pub fn check_whole(&self, run: usize) {
        let seen = self.stage.run(run);
        assert_eq!((&seen.outcomes[..], &seen.settled[..]), (&[Cause::Length][..], &[true][..]), "run {run}\n{}", self.story());
    }

    /// However it ended, its release is proven.
    pub fn check_released(&self, run: usize) {
        assert_eq!(self.stage.run(run).settled, [true], "run {run}\n{}", self.story());
    }

    /// At the workers nothing is left of any run.
    pub fn rest(&mut self, limit_ms: u64) {
        let is_idle = |cut: &Cut| {
            let s = &cut.snapshot;
            s.attempts.is_empty() && s.is_conserved() && (s.active, s.draining, s.quarantined) == (0, 0, 0)
        };
        self.until("nothing is held", limit_ms, |stage| (0..stage.workers).all(|w| stage.worker(w).as_ref().is_some_and(is_idle)));
    }
}
