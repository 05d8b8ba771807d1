//! Breadth-first through the states of a setup: closed, checked, and each with a fair way to rest.
//!
//! Only the newest states are kept whole. Of all others there is the fingerprint, and the action by which it was first reached from which
//! state: enough to go there again and tell how.
//!
//! Invariant: a state's number is the order in which it was first met, so the first violation is one of the nearest.

use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Once};
use std::time::Duration;

use lifecycle::Rules;

use super::action::Action;
use super::cells::Cells;
use super::marks::Marks;
use super::setup::Setup;
use super::world::{Scene, Violation, World};

/// A fingerprint is as good as its own hash.
#[derive(Default)]
pub struct Itself(u64);

impl Hasher for Itself {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u128(&mut self, n: u128) {
        self.0 = (n ^ (n >> 64)) as u64;
    }
}

/// How a state was first reached.
#[derive(Clone, Copy)]
struct Node {
    parent: u32,
    action: Action,
    /// The next state on the fair way; `NONE` at rest, `OPEN` where it is not known yet.
    fair: u32,
}

const NONE: u32 = u32::MAX;
const OPEN: u32 = u32::MAX - 1;

/// Why an exploration stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// There are no further states.
    Closed,
    /// A clause is broken.
    Violated,
    /// As many states as were allowed.
    Bound,
}

/// A counterexample.
#[derive(Clone, Debug)]
pub struct Found {
    /// What is broken.
    pub violation: Violation,
    /// The shortest way there.
    pub path: Vec<Action>,
}

/// What an exploration met.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which setup.
    pub setup: &'static str,
    /// Different states.
    pub states: usize,
    /// Actions taken from them.
    pub edges: u64,
    /// Actions on the shortest way to the farthest.
    pub depth: u32,
    /// States in which everything is over.
    pub rests: usize,
    /// Actions on the longest fair way to rest.
    pub longest: u32,
    /// How it stopped.
    pub stopped: Stopped,
    /// Situations met.
    pub marks: Marks,
    /// Cells of the machines' tables that were met, under rules that listen.
    pub cells: Cells,
    /// What was broken.
    pub found: Option<Found>,
    /// How long it took; the only figure here that differs from run to run.
    pub took: Duration,
}

struct Search<R: Rules> {
    seen: HashMap<u128, u32, BuildHasherDefault<Itself>>,
    nodes: Vec<Node>,
    next: Vec<(u32, World<R>)>,
    report: Report,
}

/// Explores a setup under some rules, at most so many states of it. `clock` says how long it has taken.
pub fn explore<R: Rules>(setup: &Setup, bound: usize, clock: &dyn Fn() -> Duration) -> Report {
    let scene = Scene::new(setup.clone());
    let begun = clock();
    let report = Report {
        setup: setup.name,
        states: 0,
        edges: 0,
        depth: 0,
        rests: 0,
        longest: 0,
        stopped: Stopped::Closed,
        marks: Marks::default(),
        cells: Cells::default(),
        found: None,
        took: Duration::ZERO,
    };
    let mut search: Search<R> = Search { seen: HashMap::default(), nodes: Vec::new(), next: Vec::new(), report };
    Cells::reset();
    search.run(&scene, bound);
    let mut report = search.report;
    report.cells = Cells::taken();
    report.took = clock().saturating_sub(begun);
    report
}

impl<R: Rules> Search<R> {
    fn run(&mut self, scene: &Arc<Scene>, bound: usize) {
        let root = World::<R>::new(scene);
        self.seen.insert(root.fingerprint(), 0);
        self.nodes.push(Node { parent: NONE, action: Action::Plan, fair: OPEN });
        self.next.push((0, root));
        while !self.next.is_empty() {
            for (at, world) in std::mem::take(&mut self.next) {
                self.expand(at, &world);
                if self.report.found.is_some() || self.nodes.len() >= bound {
                    break;
                }
            }
            self.report.depth += 1;
            if self.report.found.is_some() || self.nodes.len() >= bound {
                self.next.clear();
                let why = if self.report.found.is_some() { Stopped::Violated } else { Stopped::Bound };
                self.report.stopped = why;
            }
        }
        self.report.states = self.nodes.len();
        if self.report.stopped == Stopped::Closed {
            self.check_fair_ways(scene);
        }
    }

    fn expand(&mut self, at: u32, world: &World<R>) {
        let fair = world.fair();
        if world.is_at_rest() {
            self.report.rests += 1;
            self.nodes[at as usize].fair = NONE;
            if let Some(violation) = world.left_over() {
                return self.found(at, None, violation);
            }
        } else if fair.is_none() {
            let what = "nothing more happens by itself, and not everything is released or void".to_owned();
            return self.found(at, None, Violation { clause: "C-9", what });
        }
        for action in world.choices() {
            let mut next = world.fork();
            next.apply(action);
            self.report.edges += 1;
            self.report.marks.union(next.marks);
            if let Some(violation) = next.violation.take() {
                return self.found(at, Some(action), violation);
            }
            let to = match self.seen.entry(next.fingerprint()) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(free) => {
                    let to = self.nodes.len() as u32;
                    free.insert(to);
                    self.nodes.push(Node { parent: at, action, fair: OPEN });
                    self.next.push((to, next));
                    to
                }
            };
            if fair == Some(action) {
                self.nodes[at as usize].fair = to;
            }
        }
    }

    fn path(&self, mut at: u32) -> Vec<Action> {
        let mut path = Vec::new();
        while self.nodes[at as usize].parent != NONE {
            path.push(self.nodes[at as usize].action);
            at = self.nodes[at as usize].parent;
        }
        path.reverse();
        path
    }

    fn found(&mut self, at: u32, last: Option<Action>, violation: Violation) {
        let mut path = self.path(at);
        path.extend(last);
        self.report.found = Some(Found { violation, path });
    }

    /// From every state the fair way leads to rest: it is followed until a state from which that is known.
    // contract: C-9, C-13
    fn check_fair_ways(&mut self, _scene: &Arc<Scene>) {
        let mut far: Vec<u32> = vec![0; self.nodes.len()];
        let mut state: Vec<u8> = vec![0; self.nodes.len()]; // 1: on this way, 2: known
        for start in 0..self.nodes.len() as u32 {
            let (mut way, mut at) = (Vec::new(), start);
            while at < OPEN && state[at as usize] == 0 {
                state[at as usize] = 1;
                way.push(at);
                at = self.nodes[at as usize].fair;
            }
            if at == OPEN || (at < OPEN && state[at as usize] == 1) {
                let what = "a fair network and a fair worker go in a circle, and not everything is released or void".to_owned();
                self.found(start, None, Violation { clause: "C-9", what });
                self.report.stopped = Stopped::Violated;
                return;
            }
            let rest = if at < OPEN { far[at as usize] } else { 0 };
            for (length, node) in (rest..).zip(way.into_iter().rev()) {
                (state[node as usize], far[node as usize]) = (2, length);
            }
        }
        self.report.longest = far.into_iter().max().unwrap_or(0);
    }
}

impl<R: Rules> World<R> {
    /// What is left where nothing should be.
    // contract: C-15
    fn left_over(&self) -> Option<Violation> {
        let held: Vec<&str> = self.cut.held.kinds().iter().filter(|(_, n)| *n > 0).map(|(kind, _)| *kind).collect();
        let broken = |clause, what: String| Some(Violation { clause, what });
        if self.cut.active + self.cut.draining > 0 {
            return broken("C-15", format!("all is over, and {} blocks are not back", self.cut.active + self.cut.draining));
        }
        if !held.is_empty() {
            return broken("C-6", format!("all is over, and the worker keeps {}", held.join(", ")));
        }
        None
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs something that may make a core stop, which is then a finding and no line on stderr.
pub fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info);
            }
        }));
    });
    let before = QUIET.replace(true);
    let done = work();
    QUIET.set(before);
    done
}

/// A path as a story, a numbered line an action.
pub fn story<R: Rules>(setup: &Setup, found: &Found) -> Vec<String> {
    let scene = Scene::new(setup.clone());
    let mut world = World::<R>::new(&scene);
    let mut lines = Vec::new();
    for (i, action) in found.path.iter().enumerate() {
        world.log = Some(Vec::new());
        world.apply(*action);
        let names = |run: u8| scene.setup.runs[usize::from(run)].name.to_owned();
        let notes = world.log.take().unwrap_or_default();
        let notes = if notes.is_empty() { String::new() } else { format!(": {}", notes.join("; ")) };
        lines.push(format!("{}. {}{notes}", i + 1, action.words(&names)));
    }
    lines.push(format!("{}: {}", found.violation.clause, found.violation.what));
    lines
}
