//! What a key does to the state, and what is to be done outside for it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::menu::{Filter, Menu};
use crate::state::{Popup, State};

/// Longest part of an id that can be typed: as long as an id may be.
const PART_MAX: usize = 128;

/// What is to be done outside for a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Nothing but to draw anew.
    Draw,
    /// To draw everything anew, whatever the terminal shows now.
    Clear,
    /// The end.
    Quit,
    /// To look now, for what is wanted now.
    Look,
    /// To look no more until something is wanted.
    Pause,
    /// To cancel this run, which is the caller's own.
    Cancel(String),
}

impl State {
    /// Takes a key in.
    pub fn key(&mut self, key: KeyEvent) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::Draw;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c' | 'd') => Effect::Quit,
                KeyCode::Char('l') => Effect::Clear,
                _ => Effect::Draw,
            };
        }
        if self.is_typing {
            return self.type_part(key.code);
        }
        match self.popup.take() {
            None => self.main(key.code),
            Some(popup) => self.popup_key(popup, key.code),
        }
    }

    fn type_part(&mut self, code: KeyCode) -> Effect {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => (self.is_typing, self.part) = (false, String::new()),
            KeyCode::Backspace => _ = self.part.pop(),
            KeyCode::Char(letter) if self.part.len() < PART_MAX && letter.is_ascii_graphic() => self.part.push(letter),
            _ => {}
        }
        Effect::Draw
    }

    fn popup_key(&mut self, popup: Popup, code: KeyCode) -> Effect {
        match (popup, code) {
            (Popup::Confirm((_, id)), KeyCode::Char('y' | 'Y')) => {
                self.say(format!("cancelling {id} ..."));
                return Effect::Cancel(id);
            }
            (Popup::Confirm((_, id)), _) => self.say(format!("{id} was not cancelled")),
            (_, KeyCode::Esc | KeyCode::Char('q')) | (Popup::Help, _) => {}
            (Popup::Menu(menu), KeyCode::Enter) => {
                let place = match menu.filter {
                    Filter::State => &mut self.wanted.state,
                    Filter::Cause => &mut self.wanted.cause,
                    Filter::Tenant => &mut self.wanted.tenant,
                };
                *place = menu.chosen();
                self.chosen = None;
                return Effect::Look;
            }
            (Popup::Menu(mut menu), code) => {
                match (step(code, 8), code) {
                    (Some(by), _) => menu.step(by),
                    (None, KeyCode::Char(letter)) => menu.jump(letter),
                    (None, _) => {}
                }
                self.popup = Some(Popup::Menu(menu));
            }
            (Popup::Health(_), KeyCode::Char('h')) => {}
            (Popup::Health(at), code) => {
                let by = step(code, 8).map_or(0, |by| by.clamp(-1000, 1000) as i16);
                self.popup = Some(Popup::Health(at.saturating_add_signed(by).min(1000)));
            }
        }
        Effect::Draw
    }

    fn main(&mut self, code: KeyCode) -> Effect {
        match code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.popup = Some(Popup::Help),
            KeyCode::Char('h') => self.popup = Some(Popup::Health(0)),
            KeyCode::Enter => {
                (self.is_detailed, self.scroll) = (!self.is_detailed, 0);
                self.chosen = self.run().map(|run| run.key());
            }
            KeyCode::Esc if self.is_detailed => self.is_detailed = false,
            KeyCode::Esc => self.part.clear(),
            KeyCode::Char(']') => self.scroll = self.scroll.saturating_add(1).min(100),
            KeyCode::Char('[') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Char('s') => self.popup = Some(Popup::Menu(Menu::open(Filter::State, self.wanted.state.as_deref(), &[]))),
            KeyCode::Char('u') => self.popup = Some(Popup::Menu(Menu::open(Filter::Cause, self.wanted.cause.as_deref(), &[]))),
            KeyCode::Char('t') if self.look.is_operator() => {
                self.popup = Some(Popup::Menu(Menu::open(Filter::Tenant, self.wanted.tenant.as_deref(), &self.tenants())));
            }
            KeyCode::Char('t') => self.say("only an operator's key sees the runs of other tenants"),
            KeyCode::Char('x') => {
                (self.wanted.state, self.wanted.cause, self.wanted.tenant) = (None, None, None);
                (self.part, self.chosen) = (String::new(), None);
                return Effect::Look;
            }
            KeyCode::Char('w') => match self.next_worker() {
                true => return Effect::Look,
                false => self.say("there is one worker with blocks here, or none"),
            },
            KeyCode::Char('c') => match (self.uncancellable(), self.run().map(|run| run.key())) {
                // It stays the chosen one, whatever comes while it is asked.
                (None, Some(key)) => (self.chosen, self.popup) = (Some(key.clone()), Some(Popup::Confirm(key))),
                (why, _) => self.say(why.unwrap_or_default()),
            },
            KeyCode::Char('p') => {
                self.is_paused = !self.is_paused;
                return if self.is_paused { Effect::Pause } else { Effect::Look };
            }
            KeyCode::Char('r') => return Effect::Look,
            code => {
                if let Some(by) = step(code, self.page.max(1) as isize) {
                    self.step(by);
                }
            }
        }
        Effect::Draw
    }
}

/// How far a key moves.
fn step(code: KeyCode, page: isize) -> Option<isize> {
    Some(match code {
        KeyCode::Down | KeyCode::Char('j') => 1,
        KeyCode::Up | KeyCode::Char('k') => -1,
        KeyCode::PageDown | KeyCode::Char(' ') => page,
        KeyCode::PageUp | KeyCode::Char('b') => -page,
        KeyCode::Home | KeyCode::Char('g') => isize::MIN,
        KeyCode::End | KeyCode::Char('G') => isize::MAX,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::look::Look;
    use crate::state::Settings;

    fn run(tenant: &str, id: &str, state: &str) -> Value {
        json!({"id": id, "tenant": tenant, "state": state})
    }

    fn state(operator: bool, live: Vec<Value>, ended: Vec<Value>) -> State {
        let settings = Settings { server: "here".into(), every_ms: 1000, colour: false };
        let mut state = State::new(settings, 10_000.0);
        let caller = json!({"keys": operator, "operator": operator, "tenant": "one"});
        state.take(Look { live, ended, caller, at_ms: 10_000.0, ..Look::default() });
        state
    }

    fn press(state: &mut State, keys: &str) -> Effect {
        let mut last = Effect::Draw;
        for letter in keys.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                '\u{1b}' => KeyCode::Esc,
                '↓' => KeyCode::Down,
                '↑' => KeyCode::Up,
                letter => KeyCode::Char(letter),
            };
            last = state.key(KeyEvent::from(code));
        }
        last
    }

    fn chosen(state: &State) -> &str {
        state.run().map_or("", |run| run.id())
    }

    #[test]
    fn a_chosen_run_stays_chosen_while_others_come_and_go() {
        let mut state = state(false, vec![run("one", "a", "decoding"), run("one", "b", "queued")], vec![run("one", "c", "ended")]);
        assert_eq!(chosen(&state), "a");
        press(&mut state, "↓");
        assert_eq!(chosen(&state), "b");
        let mut look = state.look.clone();
        look.live.insert(0, run("one", "newest", "queued"));
        state.take(look.clone());
        assert_eq!(chosen(&state), "b");
        press(&mut state, "G");
        assert_eq!(chosen(&state), "c");
        press(&mut state, "↓g");
        assert_eq!(chosen(&state), "newest");
        look.live.clear();
        state.take(look);
        assert_eq!(chosen(&state), "c", "the first, where it is gone");
    }

    #[test]
    fn a_cancel_asks_once_more_and_only_y_is_yes() {
        let mut state = state(false, vec![run("one", "a", "decoding")], vec![]);
        assert_eq!(press(&mut state, "c"), Effect::Draw);
        assert_eq!(press(&mut state, "\n"), Effect::Draw);
        assert_eq!((state.popup.clone(), state.said()), (None, Some("a was not cancelled")));
        assert_eq!(press(&mut state, "cn"), Effect::Draw);
        assert_eq!(press(&mut state, "cy"), Effect::Cancel("a".into()));
        assert_eq!(press(&mut state, "y"), Effect::Draw, "once");
        press(&mut state, "c");
        let mut look = state.look.clone();
        look.live.insert(0, run("one", "newer", "queued"));
        state.take(look);
        assert_eq!(chosen(&state), "a", "whatever came meanwhile");
        assert_eq!(press(&mut state, "y"), Effect::Cancel("a".into()));
    }

    // contract: C-30
    #[test]
    fn what_cannot_be_cancelled_is_said_and_not_asked() {
        let mut state = state(true, vec![run("two", "a", "decoding")], vec![run("one", "b", "ended")]);
        press(&mut state, "c");
        assert_eq!((state.popup.clone(), state.said()), (None, Some("a is a run of tenant two: only a key of that tenant cancels it")));
        press(&mut state, "↓c");
        assert_eq!((state.popup.clone(), state.said()), (None, Some("b has ended: there is nothing to cancel")));
        state.take(Look { at_ms: 1.0, ..Look::default() });
        press(&mut state, "c");
        assert_eq!(state.said(), Some("there is no run to cancel"));
        state.at(30_000.0);
        assert_eq!(state.said(), None, "for a while");
    }

    #[test]
    fn filters_are_chosen_from_lists_and_go_with_x() {
        let mut state = state(true, vec![run("one", "a1", "decoding"), run("two", "b1", "queued")], vec![]);
        assert_eq!(press(&mut state, "sq"), Effect::Draw, "closed without a choice");
        assert_eq!(press(&mut state, "sl\n"), Effect::Look);
        assert_eq!(press(&mut state, "uc\n"), Effect::Look);
        assert_eq!(press(&mut state, "t↓↓\n"), Effect::Look);
        let wanted = state.wanted();
        assert_eq!(
            [&wanted.state, &wanted.cause, &wanted.tenant].map(|word| word.as_deref().unwrap_or("-")),
            ["live", "client_closed", "two"]
        );
        press(&mut state, "/b1q\n");
        assert_eq!((state.part.as_str(), state.is_typing), ("b1q", false), "letters are letters while it is typed");
        assert_eq!(state.rows().len(), 0);
        assert_eq!(press(&mut state, "x"), Effect::Look);
        assert_eq!((state.wanted(), state.rows().len()), (&crate::Wanted::default(), 2));
    }

    #[test]
    fn it_ends_by_q_and_by_control_c_whatever_is_open() {
        let mut state = state(false, vec![], vec![]);
        assert_eq!(press(&mut state, "q"), Effect::Quit);
        assert_eq!(press(&mut state, "?q"), Effect::Draw, "q closes what is open");
        for open in ["", "?", "h", "s", "/"] {
            press(&mut state, open);
            assert_eq!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Effect::Quit, "{open}");
            press(&mut state, "\u{1b}");
        }
        assert_eq!((press(&mut state, "p"), state.is_paused), (Effect::Pause, true));
        assert_eq!((press(&mut state, "p"), state.is_paused), (Effect::Look, false));
    }

    #[test]
    fn the_map_goes_around_the_workers_that_have_blocks() {
        let mut state = state(false, vec![], vec![]);
        assert_eq!(press(&mut state, "w"), Effect::Draw);
        state.look.kv = Some(
            json!({"workers": [{"worker": "x", "answered": true}, {"worker": "gone", "answered": false}, {"worker": "y", "answered": true}]}),
        );
        state.look.map = Some(json!({"worker": "x"}));
        assert_eq!((press(&mut state, "w"), state.wanted().worker.as_deref()), (Effect::Look, Some("y")));
        state.look.map = Some(json!({"worker": "y"}));
        assert_eq!((press(&mut state, "w"), state.wanted().worker.as_deref()), (Effect::Look, Some("x")));
    }
}
