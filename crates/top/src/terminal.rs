//! The terminal: one thread looks at the server, this one draws and reads keys.
//!
//! Invariant: whatever ends it (a key, a signal, a panic, a terminal that is gone) the terminal's modes are put back. Nothing that asks the
//! server runs on the thread that draws, so that a server that does not answer leaves the keys alive.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lifecycle::Milestone;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use ratatui::layout::Rect;
use ratatui::{DefaultTerminal, Terminal};
use serde_json::{Value, json};

use crate::ask::{Ask, Trouble};
use crate::draw::{draw, page};
use crate::facts::{Run, latency};
use crate::health::judge;
use crate::keys::Effect;
use crate::look::{Look, Looker, Wanted, object};
use crate::state::{Settings, State};
use crate::ways::ways;

/// How long a key or a signal may wait until it is seen.
const PATIENCE: Duration = Duration::from_millis(30);
/// How often ages are drawn anew.
const SECOND: Duration = Duration::from_secs(1);
/// How long the server may take to say what became of a cancel.
const CANCEL_WAIT_MS: u32 = 2000;

/// Ends the screen from outside, for signals.
#[derive(Clone, Default, Debug)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends it, soon.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What another thread has to tell.
enum News {
    Look(Box<Look>),
    Cancelled(String, Result<Value, Trouble>),
    /// The thread that looks has ended, which it does only by a panic.
    Gone,
}

/// Tells that a thread has ended, however it did.
struct Last(Sender<News>);

impl Drop for Last {
    fn drop(&mut self) {
        let _ = self.0.send(News::Gone);
    }
}

/// What the thread that looks is told.
enum Order {
    Look(Wanted),
    Pause,
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1000.0)
}

/// Looks until nobody wants to hear of it.
fn look_on(ask: &dyn Ask, every: Duration, orders: &Receiver<Order>, news: Sender<News>) {
    let last = Last(news);
    let mut looker = Looker::new(ask);
    let mut wanted = Wanted::default();
    loop {
        let look = looker.look(&wanted, now_ms());
        if last.0.send(News::Look(Box::new(look))).is_err() {
            return;
        }
        let mut order = match orders.recv_timeout(every) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // Several at once are the newest of them; a pause lasts until the next.
        loop {
            let next = match &order {
                Order::Look(_) => orders.try_recv().ok(),
                Order::Pause => match orders.recv() {
                    Ok(next) => Some(next),
                    Err(_) => return,
                },
            };
            match next {
                Some(next) => order = next,
                None => break,
            }
        }
        if let Order::Look(now) = order {
            wanted = now;
        }
    }
}

/// Shows the screen until somebody ends it.
///
/// # Errors
/// The terminal does not do what it is asked.
pub fn run(settings: Settings, ask: Arc<dyn Ask>, stop: &Stop) -> io::Result<()> {
    let (order, orders) = channel();
    let (tell, news) = channel();
    let every = Duration::from_millis(settings.every_ms);
    let mut state = State::new(settings, now_ms());
    let terminal = ratatui::try_init();
    let result = terminal.and_then(|mut terminal| {
        let (asked, told) = (ask.clone(), tell.clone());
        thread::Builder::new().name("kvit-top-look".to_owned()).spawn(move || look_on(&*asked, every, &orders, told))?;
        let mut screen = Screen { state: &mut state, ask: &ask, order, tell };
        let result = screen.show(&mut terminal, &news, stop);
        if !io::stdin().is_terminal() {
            // It would show the cursor of a terminal that is gone, and panic for not being able to say that it cannot.
            std::mem::forget(terminal);
        }
        result
    });
    let restored = ratatui::try_restore();
    result.and(restored)
}

struct Screen<'a> {
    state: &'a mut State,
    ask: &'a Arc<dyn Ask>,
    order: Sender<Order>,
    tell: Sender<News>,
}

impl Screen<'_> {
    fn show(&mut self, terminal: &mut DefaultTerminal, news: &Receiver<News>, stop: &Stop) -> io::Result<()> {
        let mut drawn: Option<Instant> = None;
        let mut changed = true;
        // crossterm reads a terminal that was hung up for ever, and comes back from nothing that it is asked: so it is asked only for what is
        // there already, and only while there is a terminal.
        while !stop.is_set() && io::stdin().is_terminal() {
            while event::poll(Duration::ZERO)? {
                changed = true;
                self.state.at(now_ms());
                let effect = match event::read()? {
                    Event::Key(key) if key.kind != KeyEventKind::Release => self.state.key(key),
                    _ => Effect::Draw,
                };
                match effect {
                    Effect::Quit => return Ok(()),
                    Effect::Clear => terminal.clear()?,
                    effect => self.carry_out(effect),
                }
            }
            if changed || drawn.is_none_or(|at| at.elapsed() >= SECOND) {
                self.state.at(now_ms());
                let size = terminal.size()?;
                self.state.page = page(Rect::new(0, 0, size.width, size.height), self.state);
                terminal.draw(|frame| draw(frame, self.state))?;
                drawn = Some(Instant::now());
            }
            changed = match news.recv_timeout(PATIENCE) {
                Ok(news) => self.hear(news).map(|()| true)?,
                Err(_) => false,
            };
        }
        Ok(())
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Look => self.look(),
            Effect::Cancel(id) => {
                let (ask, tell) = (self.ask.clone(), self.tell.clone());
                thread::spawn(move || {
                    let answer = ask.post(&format!("/v1/runs/{}/cancel?wait_ms={CANCEL_WAIT_MS}", encoded(&id)));
                    let _ = tell.send(News::Cancelled(id, answer));
                });
            }
            Effect::Pause => _ = self.order.send(Order::Pause),
            Effect::Draw | Effect::Clear | Effect::Quit => {}
        }
    }

    fn look(&self) {
        let _ = self.order.send(Order::Look(self.state.wanted().clone()));
    }

    fn hear(&mut self, news: News) -> io::Result<()> {
        match news {
            News::Look(look) => {
                self.state.take(*look);
                // Another filter was looked through, once.
                if self.state.is_paused {
                    let _ = self.order.send(Order::Pause);
                }
            }
            News::Cancelled(id, answer) => {
                self.state.say(became(&id, &answer));
                self.look();
            }
            News::Gone => return Err(io::Error::other("what looks at the server has ended by a fault of kvit's own")),
        }
        Ok(())
    }
}

/// A run's id as a path segment. Its characters are few, and one of them means something else in a path.
fn encoded(id: &str) -> String {
    id.bytes()
        .map(|b| if b.is_ascii_alphanumeric() || b"-._~".contains(&b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

/// What became of a cancel, in a sentence.
fn became(id: &str, answer: &Result<Value, Trouble>) -> String {
    match answer {
        Err(trouble) => format!("{id} was not cancelled: {}", crate::facts::clean(trouble.text())),
        Ok(run) => {
            let (after, kind) = (Run(run), run["outcome"]["kind"].as_str());
            let took = after.observed().zip(after.at(Milestone::Released)).map(|(seen, released)| released - seen).filter(|ms| *ms >= 0.0);
            let took = took.map(|ms| format!(", released after {} ms", latency(ms))).unwrap_or_default();
            match kind {
                Some(kind) => format!("{id}: {kind} ({}){took}", run["outcome"]["cause"].as_str().unwrap_or("-")),
                None => format!("{id}: the cancel was sent, and is not acknowledged yet"),
            }
        }
    }
}

/// One frame as text, lines without what is blank at their ends.
pub fn frame(state: &State, width: u16, height: u16) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(width, height));
    let Ok(_) = terminal.draw(|frame| draw(frame, state));
    let buffer = terminal.backend().buffer();
    let row = |y: u16| (0..width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(row).collect::<Vec<_>>().join("\n")
}

/// What a frame is drawn of, for a program.
pub fn json(state: &State) -> Value {
    let verdict = judge(&state.look, state.server_now());
    let checks = verdict
        .checks
        .iter()
        .map(|check| json!({"label": check.label, "level": check.level.word(), "value": check.value, "why": check.why}));
    let (left, ways) = ways(&state.look.ended);
    let part = |way: &crate::ways::Way| json!({"to": way.name, "p50_ms": way.times.map(|t| t.0), "p95_ms": way.times.map(|t| t.1)});
    let waiting = state.look.unacknowledged(state.server_now());
    let mut all = json!({
        "object": "top", "server": state.settings.server, "level": verdict.level.word(), "headline": verdict.headline,
        "because": verdict.because, "checks": checks.collect::<Vec<_>>(),
        "unacknowledged": waiting.iter().map(|(run, since)| json!({"run": run.id(), "since_ms": since})).collect::<Vec<_>>(),
        "leaving": {"runs": left, "parts": ways.iter().map(part).collect::<Vec<_>>()},
    });
    if let (Value::Object(all), Value::Object(look)) = (&mut all, object(&state.look)) {
        all.extend(look);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_a_cancel_is_said() {
        let outcome = json!({"kind": "cancelled", "cause": "cancel_requested"});
        let run = json!({"outcome": outcome, "boundaries": [{"observed": 5.0}], "milestones": {"released": 5.25}});
        assert_eq!(became("a", &Ok(run)), "a: cancelled (cancel_requested), released after 0.25 ms");
        assert_eq!(became("a", &Ok(json!({"outcome": null}))), "a: the cancel was sent, and is not acknowledged yet");
        assert_eq!(became("a", &Err(Trouble::Absent("no such run".into()))), "a was not cancelled: no such run");
        assert_eq!(encoded("a~b:c/1"), "a~b%3Ac%2F1");
    }

    #[test]
    fn a_thread_that_looks_obeys_the_newest_order_and_ends_with_whoever_hears_it() {
        struct Away;
        impl Ask for Away {
            fn get(&self, _: &str) -> Result<Value, Trouble> {
                Err(Trouble::Unreachable("away".into()))
            }
            fn post(&self, _: &str) -> Result<Value, Trouble> {
                self.get("")
            }
        }
        let (order, orders) = channel();
        let (tell, news) = channel();
        let looking = thread::spawn(move || look_on(&Away, Duration::from_secs(3600), &orders, tell));
        let looked = || matches!(news.recv(), Ok(News::Look(look)) if look.trouble.is_some());
        assert!(looked());
        order.send(Order::Look(Wanted::default())).unwrap();
        assert!(looked(), "at once");
        order.send(Order::Pause).unwrap();
        order.send(Order::Look(Wanted::default())).unwrap();
        assert!(looked(), "until it goes on");
        drop(order);
        assert!(matches!(news.recv(), Ok(News::Gone)));
        looking.join().unwrap();
    }
}
