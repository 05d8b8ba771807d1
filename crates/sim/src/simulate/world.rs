//! A simulated world: true time, what is to happen, and the processes that it happens to.
//!
//! First everything goes wrong that the seed has switched on (safety); then the network heals, what stands still goes on, what has died begins
//! anew, and everything must come to its end (liveness). The oracle looks at every step of both.
//!
//! Invariant: the same seed, rules and switched-off faults give the same events in the same order, whatever the machine.

use std::collections::BTreeMap;
use std::collections::VecDeque;

use lifecycle::{Incarnation, Rules, Time};

use super::chaos;
use super::event::{Event, Link, Process};
use super::faults::FaultKind;
use super::gateway::GatewayProcess;
use super::network::Pipe;
use super::oracle::Oracle;
use super::rng::{Rng, mix};
use super::scenario::{MS, Scenario};
use super::story::Story;
use super::worker::WorkerProcess;
use super::{Options, Sabotage};

/// A process's own clock: where it began, and how much it is too fast, in millionths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    offset: u64,
    too_fast: i64,
}

impl Clock {
    pub fn local(&self, now: u64) -> Time {
        Time(self.offset + now.saturating_add_signed(now as i64 * self.too_fast / 1_000_000))
    }

    /// The first true moment at which this clock shows `local` or more.
    pub fn when(&self, local: Time) -> u64 {
        let passed = local.0.saturating_sub(self.offset) as i128;
        let mut at = (passed * 1_000_000 / i128::from(1_000_000 + self.too_fast)).clamp(0, i128::from(u64::MAX / 4)) as u64;
        while self.local(at) < local && at < u64::MAX / 8 {
            at += 1;
        }
        at
    }
}

/// What every process has.
#[derive(Debug)]
pub(super) struct Shell {
    pub life: Incarnation,
    pub clock: Clock,
    pub alive: bool,
    pub paused: bool,
    /// What came while it stood still.
    pub mail: VecDeque<Event>,
    /// When it is woken next.
    pub wake_at: u64,
    /// Wakes in a row at which nothing was due later: a process that spins.
    pub spins: u32,
}

/// A world in the making.
#[derive(Debug)]
pub(super) struct World<R: Rules> {
    pub scenario: Scenario,
    pub now: u64,
    queue: BTreeMap<(u64, u64), Event>,
    last_event: u64,
    last_life: u128,
    pub gateways: Vec<GatewayProcess<R>>,
    pub workers: Vec<WorkerProcess<R>>,
    pub pipes: Vec<Pipe>,
    pub network: Rng,
    pub steps: Rng,
    pub misc: Rng,
    pub healed: bool,
    pub oracle: Oracle,
    pub story: Story,
    pub sabotage: Sabotage,
    pub events: u64,
    pub faults: u64,
    pub hash: u64,
    /// When everything must be over.
    until: u64,
    pub settled: bool,
    cuts_allowed: bool,
}

impl<R: Rules> World<R> {
    pub fn new(seed: u64, options: &Options) -> World<R> {
        let scenario = Scenario::of(seed, options.without);
        let mut world = World {
            now: 0,
            queue: BTreeMap::new(),
            last_event: 0,
            last_life: 0,
            gateways: Vec::new(),
            workers: Vec::new(),
            pipes: vec![Pipe::default(); scenario.gateways * scenario.workers],
            network: Rng::of(seed, 3),
            steps: Rng::of(seed, 4),
            misc: Rng::of(seed, 5),
            healed: false,
            oracle: Oracle::new(&scenario),
            story: Story::new(options.trace),
            sabotage: options.sabotage,
            events: 0,
            faults: 0,
            hash: seed,
            until: u64::MAX,
            settled: false,
            cuts_allowed: !options.without.has(FaultKind::Cut),
            scenario,
        };
        world.begin(seed);
        world
    }

    fn begin(&mut self, seed: u64) {
        self.tell(|| format!("seed {seed}"));
        let about = &self.scenario;
        let text = format!(
            "{} gateways, {} workers, {} runs, lease {} ms, faults: {} (hardness {})",
            about.gateways,
            about.workers,
            about.runs.len(),
            about.session.lease.as_millis(),
            about.faults,
            about.hardness
        );
        self.tell(|| text);
        for w in 0..self.scenario.workers {
            let shell = self.shell();
            self.workers.push(WorkerProcess::new(w, shell, &self.scenario));
        }
        for g in 0..self.scenario.gateways {
            let shell = self.shell();
            self.gateways.push(GatewayProcess::new(g, shell, &self.scenario));
            self.connect_all(g);
        }
        for run in 0..self.scenario.runs.len() {
            let plan = self.scenario.runs[run].clone();
            self.at(plan.arrives, Event::Arrive(run));
            if let Some((at, cause)) = plan.leaves {
                self.at(at, Event::Leave(run, cause));
            }
            plan.returns.into_iter().for_each(|at| self.at(at, Event::ComeBack(run)));
            if let Some((at, cause)) = plan.leaves_again {
                self.at(at, Event::Leave(run, cause));
            }
            if let Some((at, gateway)) = plan.cancelled {
                self.at(at, Event::CancelByName(run, gateway));
            }
        }
        for (at, what) in chaos::plan(seed, &self.scenario) {
            self.at(at, Event::Chaos(what));
        }
        self.at(self.scenario.safety, Event::Heal);
    }

    /// A new life of a process.
    pub fn shell(&mut self) -> Shell {
        self.last_life += 1;
        let (offset, too_fast) = (self.misc.between(0, 3_600_000 * MS), self.misc.between(0, 10_000) as i64 - 5000);
        let drifts = self.scenario.faults.has(FaultKind::Drift);
        let clock = if drifts { Clock { offset, too_fast } } else { Clock { offset: 0, too_fast: 0 } };
        Shell { life: Incarnation(self.last_life), clock, alive: true, paused: false, mail: VecDeque::new(), wake_at: u64::MAX, spins: 0 }
    }

    /// Lets something happen later.
    pub fn at(&mut self, at: u64, event: Event) {
        self.last_event += 1;
        self.queue.insert((at.max(self.now), self.last_event), event);
    }

    /// Whether a kind of fault may happen now.
    pub fn is_on(&self, kind: FaultKind) -> bool {
        !self.healed && self.scenario.faults.has(kind)
    }

    /// A fault happened.
    pub fn fault(&mut self, kind: FaultKind) {
        self.faults += 1;
        self.hash = mix(self.hash, kind as u64);
    }

    /// Adds to the story, if it is told.
    pub fn tell(&mut self, what: impl FnOnce() -> String) {
        self.story.add(self.now, what);
    }

    /// Runs until everything is over, or a clause is broken.
    pub fn run(&mut self) {
        while let Some(((at, _), event)) = self.queue.pop_first() {
            self.now = at;
            self.events += 1;
            self.hash = mix(self.hash, mix(at, event.tag()));
            self.happen(event);
            if self.oracle.violation().is_some() || self.settled {
                return;
            }
            if at > self.until {
                return self.judge_liveness();
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event.process() {
            Some(process) => self.at_process(process, event),
            None => self.at_world(event),
        }
    }

    pub fn shell_of(&mut self, process: Process) -> &mut Shell {
        match process {
            Process::Gateway(g) => &mut self.gateways[g].shell,
            Process::Worker(w) => &mut self.workers[w].shell,
        }
    }

    fn at_process(&mut self, process: Process, event: Event) {
        let now = self.now;
        let shell = self.shell_of(process);
        if let Event::Wake(_) = event {
            // One that was put off, or brought forward.
            if !shell.alive || shell.paused || shell.wake_at != now {
                return;
            }
            shell.wake_at = u64::MAX;
        } else if shell.paused {
            return shell.mail.push_back(event);
        } else if !shell.alive {
            return self.at_dead(event);
        }
        if let (Event::Hello { link, .. }, false) = (&event, self.healed)
            && self.workers[link.worker].refuses_until > now
        {
            return self.at_dead(event);
        }
        match process {
            Process::Gateway(g) => self.at_gateway(g, event),
            Process::Worker(w) => self.at_worker(w, event),
        }
    }

    /// Nobody is there. Whoever opens a connection is told so by the host.
    fn at_dead(&mut self, event: Event) {
        if let Event::Hello { link, hello } = event {
            let session = (hello.incarnation, hello.session);
            self.oracle.refuses(link.worker);
            self.transmit(link, true, session, Event::Refused { link, session });
        }
    }

    fn at_world(&mut self, event: Event) {
        match event {
            Event::Arrive(run) => self.route(self.scenario.runs[run].gateway, Event::Arrive(run)),
            Event::Leave(run, cause) => self.route(self.scenario.runs[run].gateway, Event::Leave(run, cause)),
            Event::ComeBack(run) => self.route(self.scenario.runs[run].gateway, Event::ComeBack(run)),
            Event::GraceOver { run, leaving } => self.grace_over(run, leaving),
            Event::Scribble { worker, life, rows } => self.scribble(worker, life, &rows),
            Event::Chaos(chaos) => self.wreak(chaos),
            Event::Resume(process) => self.resume(process),
            Event::Restart(process) => self.restart(process),
            Event::Exit { worker, life } => self.exit(worker, life),
            Event::Heal => self.heal(),
            Event::Look => self.look(),
            _ => {}
        }
    }

    fn route(&mut self, gateway: usize, event: Event) {
        let shell = &mut self.gateways[gateway].shell;
        match (shell.alive, shell.paused) {
            (true, true) => shell.mail.push_back(event),
            (true, false) => self.at_gateway(gateway, event),
            // The caller finds nobody: there is no run.
            (false, _) => {}
        }
    }

    /// Sees to it that a process is woken when its cores want it, on its own clock.
    pub fn wake_when_due(&mut self, process: Process, due: Option<Time>) {
        let now = self.now;
        let shell = self.shell_of(process);
        let Some(due) = due else { return };
        let at = shell.clock.when(due).max(now);
        if at > now {
            shell.spins = 0;
        } else {
            shell.spins += 1;
            if shell.spins > SPINS_MAX {
                return self.oracle.fail("liveness", || format!("{process} is due again and again at the same moment"));
            }
        }
        let shell = self.shell_of(process);
        if at < shell.wake_at || shell.wake_at < now {
            shell.wake_at = at;
            self.at(at, Event::Wake(process));
        }
    }

    fn heal(&mut self) {
        if self.faults < FAULTS_MIN && self.cuts_allowed {
            // A calm seed: the connections are cut until enough has gone wrong.
            let link = Link { gateway: self.misc.below(self.scenario.gateways), worker: self.misc.below(self.scenario.workers) };
            self.fault(FaultKind::Cut);
            self.cut(link, Some(MS), Some(MS));
            return self.at(self.now + CALM, Event::Heal);
        }
        if self.events < EVENTS_MIN {
            return self.at(self.now + CALM, Event::Heal);
        }
        self.healed = true;
        self.tell(|| "the network heals, and everybody goes on".to_string());
        for pipe in &mut self.pipes {
            pipe.down.dark_until = 0;
            pipe.up.dark_until = 0;
            pipe.down.held_until = 0;
            pipe.up.held_until = 0;
        }
        let all = (0..self.scenario.gateways).map(Process::Gateway).chain((0..self.scenario.workers).map(Process::Worker));
        for process in all.collect::<Vec<_>>() {
            self.resume(process);
            self.restart(process);
        }
        let lease = self.scenario.session.lease.as_micros() as u64;
        self.until = self.now + 4 * lease + LIVENESS;
        self.at(self.now + LOOK_EVERY, Event::Look);
    }

    fn look(&mut self) {
        if self.open_ends().is_none() {
            self.settled = true;
            self.judge_rest();
        } else {
            self.at(self.now + LOOK_EVERY, Event::Look);
        }
    }
}

/// So many events happen in each seed at least.
pub(super) const EVENTS_MIN: u64 = 200;
/// So many faults happen in each seed at least.
pub(super) const FAULTS_MIN: u64 = 5;
/// How long everything may take to come to its end once the network has healed, beside four leases.
const LIVENESS: u64 = 20_000 * MS;
/// Between two cuts of a calm seed.
const CALM: u64 = 120 * MS;
const LOOK_EVERY: u64 = 20 * MS;
/// So often a process may be due again at the very moment at which it was looked at.
const SPINS_MAX: u32 = 200;
