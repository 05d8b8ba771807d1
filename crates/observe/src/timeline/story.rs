//! A run's milestones, a line each in order of time, in the lane where they happen, with the messages between the lanes as arrows.

use lifecycle::Milestone as M;

use super::cells::{Cells, Ink};
use super::facts::{Facts, Lane};

/// Columns left of the lanes: time, time since abandonment, and what separates them.
const MARGIN: usize = 11 + 1 + 9 + 2;
/// Columns of the client's lane, and least columns of the gateway's: its longest milestone with its mark and an arrow.
const CLIENT: usize = 10;
const GATEWAY_MIN: usize = 23;

struct Story<'a> {
    facts: Facts<'a>,
    width: usize,
    colour: bool,
    /// Column of each lane.
    lanes: [usize; 3],
    gone: Option<f64>,
    /// Whether each lane's party is there at the line that is drawn, and what its line is made of.
    alive: [Option<(char, Ink)>; 3],
    out: String,
}

pub(super) fn draw(facts: Facts<'_>, width: usize, colour: bool) -> String {
    let gateway = MARGIN + CLIENT;
    let worker = gateway + GATEWAY_MIN.max((width - gateway) / 2);
    let lanes = [MARGIN, gateway, worker];
    let mut story = Story { facts, width, colour, lanes, gone: facts.abandoned(), alive: [None; 3], out: String::new() };
    story.head();
    for (at, milestone) in facts.stamps() {
        story.before(milestone);
        story.milestone(at, milestone);
        story.after(milestone);
    }
    story.out
}

/// Layers of a step, in words.
pub(super) fn layers(n: u64) -> String {
    if n == 1 { "1 layer".to_owned() } else { format!("{n} layers") }
}

impl Story<'_> {
    fn head(&mut self) {
        let mut cells = Cells::new(self.width);
        cells.put(9, "ms", Ink::Dim);
        if self.gone.is_some() {
            cells.put(16, "after", Ink::Dim);
        }
        for (column, name) in self.lanes.into_iter().zip(["client", "gateway", "worker"]) {
            cells.put(column, name, Ink::Bold);
        }
        self.push(&cells);
    }

    fn push(&mut self, cells: &Cells) {
        self.out += &cells.line(self.colour);
    }

    fn column(&self, lane: Lane) -> usize {
        match lane {
            Lane::Gateway => self.lanes[1],
            Lane::Worker => self.lanes[2],
        }
    }

    /// A line on which only those show that are there.
    fn quiet(&self) -> Cells {
        let mut cells = Cells::new(self.width);
        for (column, alive) in self.lanes.into_iter().zip(self.alive) {
            if let Some((c, ink)) = alive {
                cells.fill(column..column + 1, c, ink);
            }
        }
        cells
    }

    /// What came to be since the milestone before, and has no time of its own.
    fn before(&mut self, milestone: M) {
        if milestone != M::LastCompute || !self.facts.wasted() {
            return;
        }
        let (tokens, prompt) = (self.facts.count("/tokens/after_disconnect"), self.facts.count("/tokens/prompt_computed_after_disconnect"));
        let plural = if tokens == 1 { "" } else { "s" };
        let lines = [(tokens, format!("╳ {tokens} token{plural} wasted")), (prompt, format!("╳ {prompt} prompt wasted"))];
        let mut lines: Vec<String> = lines.into_iter().filter(|(n, _)| *n > 0).map(|(_, line)| line).collect();
        if lines.is_empty() {
            lines.push(format!("╳ {} wasted", layers(self.facts.count("/steps/layers_dropped"))));
        }
        for line in lines {
            let mut cells = self.quiet();
            cells.put(self.column(Lane::Worker), &line, Ink::Red);
            self.push(&cells);
        }
    }

    fn milestone(&mut self, at: f64, milestone: M) {
        let lane = self.facts.lane(milestone);
        let [client, gateway, worker] = self.lanes;
        let mut cells = self.quiet();
        cells.put(0, &format!("{:>11}", format!("+{at:.3}")), Ink::Plain);
        if let Some(from) = self.gone.filter(|from| at > *from) {
            cells.put(12, &format!("{:>9}", format!("+{:.3}", at - from)), Ink::Plain);
        }
        let ink = match milestone {
            M::DisconnectObserved | M::DeadlineFired => Ink::Red,
            M::Released | M::Settled => Ink::Green,
            _ => Ink::Bold,
        };
        let name = format!("● {}", milestone.as_str());
        let end = self.column(lane) + name.chars().count();
        match milestone {
            M::Accepted => {
                cells.put(client, "●", Ink::Bold);
                cells.fill(client + 1..gateway - 1, '─', Ink::Dim);
                cells.put(gateway - 1, "▶", Ink::Dim);
            }
            M::DisconnectObserved => {
                if let Some(word) = self.facts.leaving() {
                    cells.fill(client + 1..gateway - 1, '─', Ink::Dim);
                    cells.put(gateway - 1, "▶", Ink::Dim);
                    let room = gateway - client - 3;
                    cells.put(client, &format!("╳ {}", word.chars().take(room).collect::<String>()), Ink::Red);
                }
            }
            M::CancelSent => {
                cells.fill(end + 1..worker - 1, '─', Ink::Dim);
                cells.put(worker - 1, "▶", Ink::Dim);
            }
            M::CancelAcknowledged => {
                cells.fill(end + 1..worker, '─', Ink::Dim);
                cells.put((end + 1).min(worker - 1), "◀", Ink::Dim);
            }
            _ => {}
        }
        cells.put(self.column(lane), &name, ink);
        self.push(&cells);
    }

    /// Who is there from here on; and, when the first token was there, what reached the caller in all.
    fn after(&mut self, milestone: M) {
        let line = Some(('│', Ink::Dim));
        let [client, gateway, worker] = &mut self.alive;
        match milestone {
            M::Accepted => (*client, *gateway) = (line, line),
            M::DisconnectObserved if self.facts.leaving().is_some() => *client = None,
            M::Settled => (*client, *gateway) = (None, None),
            M::Released => *worker = None,
            M::LastCompute if worker.is_some() => *worker = line,
            M::Queued | M::BlocksAllocated | M::PrefillStart | M::FirstToken => *worker = line,
            _ => {}
        }
        let begins = matches!(milestone, M::DisconnectObserved | M::DeadlineFired | M::CancelApplied);
        let computing = self.facts.stamp(M::LastCompute) > self.gone && self.facts.wasted();
        if begins && computing && worker.is_some() {
            *worker = Some(('╳', Ink::Red));
        }
        let delivered = self.facts.count("/tokens/delivered");
        if milestone == M::FirstToken && delivered > 0 {
            let mut cells = self.quiet();
            let [client, _, worker] = self.lanes;
            cells.fill(client + 1..worker, '─', Ink::Dim);
            cells.put(client, "◀", Ink::Dim);
            let plural = if delivered == 1 { "" } else { "s" };
            cells.put(client + 2, &format!(" {delivered} token{plural} delivered "), Ink::Plain);
            self.push(&cells);
        }
    }
}
