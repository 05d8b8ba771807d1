//! All that a frame is drawn of: what the server said last, and what whoever looks has chosen.
//!
//! Invariant: a run is chosen by tenant and id, not by its row, so that it stays chosen while others come and go.

use serde_json::Value;

use crate::facts::{Key, Run};
use crate::look::{Look, Wanted};
use crate::menu::Menu;

/// How long a sentence stays.
const SAID_MS: f64 = 8000.0;

/// What stays as it was when it began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The server's address, as it is shown.
    pub server: String,
    /// How often it is looked at, in milliseconds.
    pub every_ms: u64,
    /// Whether there may be colours.
    pub colour: bool,
}

/// What stands in front of everything else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Popup {
    Help,
    /// Every check, the alerts and the diagnosis, from this line on.
    Health(u16),
    Menu(Menu),
    /// Whether this run is really to be cancelled.
    Confirm(Key),
}

/// The screen's state.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    pub(crate) settings: Settings,
    pub(crate) look: Look,
    /// This machine's calendar.
    pub(crate) now_ms: f64,
    pub(crate) wanted: Wanted,
    /// Part of the ids of the runs that are listed.
    pub(crate) part: String,
    /// Whether that part is being typed.
    pub(crate) is_typing: bool,
    /// `None` until somebody moves: then it is the first.
    pub(crate) chosen: Option<Key>,
    /// Whether one run is shown in full; on a wide screen it always is.
    pub(crate) is_detailed: bool,
    /// First line of it.
    pub(crate) scroll: u16,
    pub(crate) popup: Option<Popup>,
    pub(crate) is_paused: bool,
    said: Option<(String, f64)>,
    /// How many rows of runs were drawn last: how far a page goes.
    pub(crate) page: usize,
}

impl State {
    /// Before the first look.
    pub fn new(settings: Settings, now_ms: f64) -> State {
        State {
            settings,
            look: Look::default(),
            now_ms,
            wanted: Wanted::default(),
            part: String::new(),
            is_typing: false,
            chosen: None,
            is_detailed: false,
            scroll: 0,
            popup: None,
            is_paused: false,
            said: None,
            page: 1,
        }
    }

    /// Takes in what a look found.
    pub fn take(&mut self, look: Look) {
        self.look = look;
    }

    /// What the next look is to find.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// What time it is by this machine's calendar.
    pub fn at(&mut self, now_ms: f64) {
        self.now_ms = now_ms;
    }

    /// Says something at the bottom, for a while.
    pub fn say(&mut self, text: impl Into<String>) {
        self.said = Some((text.into(), self.now_ms));
    }

    pub(crate) fn said(&self) -> Option<&str> {
        self.said.as_ref().filter(|(_, at)| self.now_ms - at < SAID_MS).map(|(text, _)| text.as_str())
    }

    /// What time it is by the server's calendar.
    pub(crate) fn server_now(&self) -> f64 {
        self.now_ms + self.look.skew_ms
    }

    /// How long ago the server answered.
    pub(crate) fn silence_ms(&self) -> f64 {
        (self.now_ms - self.look.at_ms).max(0.0)
    }

    /// The runs that are listed.
    pub(crate) fn rows(&self) -> Vec<Run<'_>> {
        self.look.runs().into_iter().map(Run).filter(|run| run.id().contains(&self.part)).collect()
    }

    /// Where the chosen run is among them; the first, if nobody has chosen or it is gone.
    pub(crate) fn row(&self, rows: &[Run<'_>]) -> usize {
        let chosen = self.chosen.as_ref();
        chosen.and_then(|(tenant, id)| rows.iter().position(|run| run.id() == id && run.tenant() == tenant)).unwrap_or(0)
    }

    /// The id of the chosen run, if there is a run at all.
    pub fn run_id(&self) -> Option<&str> {
        self.run().map(Run::id)
    }

    pub(crate) fn run(&self) -> Option<Run<'_>> {
        let rows = self.rows();
        rows.get(self.row(&rows)).copied()
    }

    /// By which names the chosen run owns blocks: to an operator another tenant's run is `TENANT:RUN`.
    pub(crate) fn owner_names(&self) -> Option<Vec<String>> {
        let run = self.run()?;
        let foreign = self.look.caller["tenant"].as_str().is_some_and(|own| own != run.tenant());
        Some(vec![if foreign { format!("{}:{}", run.tenant(), run.id()) } else { run.id().to_owned() }])
    }

    /// Why the chosen run cannot be cancelled; `None` if it can.
    // contract: C-30
    pub(crate) fn uncancellable(&self) -> Option<String> {
        let Some(run) = self.run() else { return Some("there is no run to cancel".to_owned()) };
        let own = self.look.caller["tenant"].as_str();
        if !run.is_live() {
            return Some(format!("{} has ended: there is nothing to cancel", run.id()));
        }
        let foreign = own.is_some_and(|own| !run.tenant().is_empty() && own != run.tenant());
        foreign.then(|| format!("{} is a run of tenant {}: only a key of that tenant cancels it", run.id(), run.tenant()))
    }

    /// Moves the choice by so many rows.
    pub(crate) fn step(&mut self, by: isize) {
        let key = {
            let rows = self.rows();
            let at = self.row(&rows).saturating_add_signed(by).min(rows.len().saturating_sub(1));
            rows.get(at).map(|run| run.key())
        };
        if key.is_some() && key != self.chosen {
            (self.chosen, self.scroll) = (key, 0);
        }
    }

    /// The tenants that runs have been seen of, for a list.
    pub(crate) fn tenants(&self) -> Vec<&str> {
        let all = self.look.live.iter().chain(&self.look.ended).filter_map(|run: &Value| run["tenant"].as_str());
        let mut tenants: Vec<&str> = all.chain(self.wanted.tenant.as_deref()).chain(self.look.caller["tenant"].as_str()).collect();
        tenants.sort_unstable();
        tenants.dedup();
        tenants
    }

    /// The next worker that has blocks, around.
    pub(crate) fn next_worker(&mut self) -> bool {
        let names: Vec<String> = self.look.block_workers().into_iter().map(str::to_owned).collect();
        let shown = self.look.map.as_ref().and_then(|map| map["worker"].as_str());
        let at = shown.and_then(|shown| names.iter().position(|name| name == shown)).map_or(0, |at| (at + 1) % names.len());
        let next = names.get(at).cloned().filter(|_| names.len() > 1);
        let changes = next.is_some();
        self.wanted.worker = next.or(self.wanted.worker.take());
        changes
    }
}
