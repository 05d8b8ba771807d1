//! The faults that come at a moment: partitions, clogs, cut connections, processes that stand still or die.
//!
//! Invariant: each kind has its own stream of random numbers, so that to leave one out moves no other.

use lifecycle::Rules;

use super::event::{Event, Link, Process};
use super::faults::FaultKind;
use super::gateway::GatewayProcess;
use super::rng::Rng;
use super::scenario::{MS, Scenario};
use super::worker::WorkerProcess;
use super::world::World;

/// A fault that comes at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Chaos {
    Partition { link: Link, down: bool, up: bool, lasts: u64 },
    Clog { link: Link, down: bool, up: bool, lasts: u64 },
    Cut { link: Link, later: u64 },
    HalfOpen { link: Link, gateway_sees: bool, worker_sees: bool },
    Pause { process: Process, lasts: u64 },
    Crash { process: Process, lasts: u64 },
    Refuse { worker: usize, lasts: u64 },
    Drain { worker: usize },
    DeviceLost { worker: usize },
}

/// What a seed has in store, and when.
pub(super) fn plan(seed: u64, scenario: &Scenario) -> Vec<(u64, Chaos)> {
    use FaultKind as K;
    let mut all = Vec::new();
    let lease = scenario.session.lease.as_micros() as u64;
    let kinds = [K::Partition, K::Clog, K::Cut, K::HalfOpen, K::Pause, K::GatewayCrash, K::WorkerCrash, K::Drain, K::DeviceLost, K::Refuse];
    for kind in kinds {
        let mut rng = Rng::of(seed, 100 + kind as u64);
        let most = match kind {
            K::DeviceLost | K::Drain => 1,
            K::GatewayCrash | K::WorkerCrash | K::Refuse => u64::from(scenario.hardness) * 2,
            _ => u64::from(scenario.hardness) * 4,
        };
        if !scenario.faults.has(kind) {
            continue;
        }
        for _ in 0..rng.between(1, most) {
            let at = rng.between(MS, scenario.safety);
            let link = Link { gateway: rng.below(scenario.gateways), worker: rng.below(scenario.workers) };
            let worker = Process::Worker(link.worker);
            let process = if rng.chance(500) { Process::Gateway(link.gateway) } else { worker };
            // Around what the limits are about: the silence that suspends, the lease, and the lease's double.
            let about = rng.pick(&[30 * MS, 300 * MS, lease, lease * 11 / 5]);
            let lasts = rng.between(about / 2, about * 5 / 4);
            let (down, up) = rng.pick(&[(true, true), (true, false), (false, true)]);
            all.push((
                at,
                match kind {
                    K::Partition => Chaos::Partition { link, down, up, lasts },
                    K::Clog => Chaos::Clog { link, down, up, lasts },
                    K::Cut => Chaos::Cut { link, later: rng.between(0, 5 * MS) },
                    K::HalfOpen => Chaos::HalfOpen { link, gateway_sees: down && !up, worker_sees: up && !down },
                    K::Pause => Chaos::Pause { process, lasts },
                    K::GatewayCrash => Chaos::Crash { process: Process::Gateway(link.gateway), lasts },
                    K::WorkerCrash => Chaos::Crash { process: worker, lasts },
                    K::Refuse => Chaos::Refuse { worker: link.worker, lasts },
                    K::Drain => Chaos::Drain { worker: link.worker },
                    _ => Chaos::DeviceLost { worker: link.worker },
                },
            ));
        }
    }
    all
}

impl<R: Rules> World<R> {
    pub fn wreak(&mut self, chaos: Chaos) {
        if self.healed {
            return;
        }
        match chaos {
            Chaos::Partition { link, down, up, lasts } => {
                self.fault(FaultKind::Partition);
                self.tell(|| format!("{link}: nothing passes for {} ms (down {down}, up {up})", lasts / MS));
                let until = self.now + lasts;
                let pipe = self.pipe(link);
                pipe.down.dark_until = if down { until } else { pipe.down.dark_until };
                pipe.up.dark_until = if up { until } else { pipe.up.dark_until };
            }
            Chaos::Clog { link, down, up, lasts } => {
                self.fault(FaultKind::Clog);
                self.tell(|| format!("{link}: everything is held for {} ms (down {down}, up {up})", lasts / MS));
                let until = self.now + lasts;
                let pipe = self.pipe(link);
                pipe.down.held_until = if down { until } else { pipe.down.held_until };
                pipe.up.held_until = if up { until } else { pipe.up.held_until };
            }
            Chaos::Cut { link, later } => {
                self.fault(FaultKind::Cut);
                self.cut(link, Some(later), Some(5 * MS - later));
            }
            Chaos::HalfOpen { link, gateway_sees, worker_sees } => {
                self.fault(FaultKind::HalfOpen);
                self.cut(link, gateway_sees.then_some(MS), worker_sees.then_some(MS));
            }
            Chaos::Pause { process, lasts } => self.pause(process, lasts),
            Chaos::Crash { process, lasts } => {
                let kind = if matches!(process, Process::Gateway(_)) { FaultKind::GatewayCrash } else { FaultKind::WorkerCrash };
                self.fault(kind);
                self.crash(process, lasts);
            }
            Chaos::Refuse { worker, lasts } => {
                self.fault(FaultKind::Refuse);
                self.tell(|| format!("worker-{} is unreachable, its host refuses connections for {} ms", worker + 1, lasts / MS));
                self.workers[worker].refuses_until = self.now + lasts;
                for link in self.links_of(Process::Worker(worker)) {
                    self.cut(link, Some(MS), Some(MS));
                }
            }
            Chaos::Drain { worker } => self.drain(worker),
            Chaos::DeviceLost { worker } => self.lose_device(worker),
        }
    }

    fn pause(&mut self, process: Process, lasts: u64) {
        let shell = self.shell_of(process);
        if !shell.alive || shell.paused {
            return;
        }
        shell.paused = true;
        self.fault(FaultKind::Pause);
        self.tell(|| format!("{process} stands still for {} ms", lasts / MS));
        self.at(self.now + lasts, Event::Resume(process));
    }

    pub fn resume(&mut self, process: Process) {
        let shell = self.shell_of(process);
        if !std::mem::take(&mut shell.paused) {
            return;
        }
        let mail = std::mem::take(&mut shell.mail);
        self.tell(|| format!("{process} goes on"));
        // Its own timers and what has come meanwhile are noticed in any order.
        if self.misc.chance(500) {
            match process {
                Process::Gateway(g) => self.pump_gateway(g),
                Process::Worker(w) => self.pump_worker(w),
            }
        }
        for event in mail {
            match process {
                Process::Gateway(g) => self.at_gateway(g, event),
                Process::Worker(w) => self.at_worker(w, event),
            }
        }
        match process {
            Process::Gateway(g) => self.pump_gateway(g),
            Process::Worker(w) => self.pump_worker(w),
        }
    }

    /// A process dies with everything that it holds. Its peers see their connections end, sooner or later or not at all.
    pub fn crash(&mut self, process: Process, lasts: u64) {
        let shell = self.shell_of(process);
        if !shell.alive {
            return;
        }
        let life = shell.life;
        shell.alive = false;
        shell.paused = false;
        shell.mail.clear();
        self.tell(|| format!("{process} dies"));
        let seen = self.misc.chance(700);
        for link in self.links_of(process) {
            let is_gateway = matches!(process, Process::Gateway(_));
            let later = seen.then_some(MS);
            self.cut(link, later.filter(|_| !is_gateway), later.filter(|_| is_gateway));
        }
        if let Process::Gateway(g) = process {
            self.oracle.owner_died(g, life);
            self.gateways[g].runs.clear();
        }
        self.at(self.now + lasts, Event::Restart(process));
    }

    fn links_of(&self, process: Process) -> Vec<Link> {
        match process {
            Process::Gateway(gateway) => (0..self.scenario.workers).map(|worker| Link { gateway, worker }).collect(),
            Process::Worker(worker) => (0..self.scenario.gateways).map(|gateway| Link { gateway, worker }).collect(),
        }
    }

    /// Another life of a process begins, with nothing.
    pub fn restart(&mut self, process: Process) {
        if self.shell_of(process).alive {
            return;
        }
        self.tell(|| format!("another life of {process} begins"));
        let shell = self.shell();
        match process {
            Process::Gateway(g) => {
                self.gateways[g] = GatewayProcess::new(g, shell, &self.scenario);
                self.connect_all(g);
                self.pump_gateway(g);
            }
            Process::Worker(w) => {
                self.workers[w] = WorkerProcess::new(w, shell, &self.scenario);
                self.pump_worker(w);
            }
        }
    }
}
