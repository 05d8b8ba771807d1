//! Lists to choose a filter from.

use lifecycle::Cause;
use observe::RunState;

/// What a list is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filter {
    State,
    Cause,
    Tenant,
}

/// A list that is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Menu {
    pub(crate) filter: Filter,
    /// The words, the first of which stands for no filter.
    pub(crate) words: Vec<String>,
    pub(crate) at: usize,
}

impl Menu {
    /// Opens a list at the word that holds now.
    pub(crate) fn open(filter: Filter, now: Option<&str>, tenants: &[&str]) -> Menu {
        let words: Vec<String> = match filter {
            Filter::State => {
                ["all", "live"].into_iter().chain(RunState::ALL.into_iter().map(RunState::as_str)).map(str::to_owned).collect()
            }
            Filter::Cause => std::iter::once("any").chain(Cause::ALL.iter().map(|cause| cause.as_str())).map(str::to_owned).collect(),
            Filter::Tenant => std::iter::once("all").chain(tenants.iter().copied()).map(str::to_owned).collect(),
        };
        let at = now.and_then(|now| words.iter().position(|word| word == now)).unwrap_or(0);
        Menu { filter, words, at }
    }

    /// The word that is chosen; `None` for no filter.
    pub(crate) fn chosen(&self) -> Option<String> {
        self.words.get(self.at).filter(|_| self.at > 0).cloned()
    }

    pub(crate) fn title(&self) -> &'static str {
        match self.filter {
            Filter::State => "State",
            Filter::Cause => "Cause",
            Filter::Tenant => "Tenant",
        }
    }

    /// One word on or back, and on to the next that begins with a letter.
    pub(crate) fn step(&mut self, by: isize) {
        self.at = self.at.saturating_add_signed(by).min(self.words.len().saturating_sub(1));
    }

    pub(crate) fn jump(&mut self, letter: char) {
        let from = self.at + 1;
        let begins = |i: &usize| self.words[*i].starts_with(letter);
        self.at = (from..self.words.len()).chain(0..from.min(self.words.len())).find(begins).unwrap_or(self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_begins_at_what_holds_and_the_first_word_is_no_filter() {
        let mut menu = Menu::open(Filter::State, Some("decoding"), &[]);
        assert_eq!((menu.chosen().as_deref(), menu.words.len()), (Some("decoding"), 2 + RunState::ALL.len()));
        menu.step(-100);
        assert_eq!(menu.chosen(), None);
        let mut menu = Menu::open(Filter::Cause, None, &[]);
        menu.jump('d');
        assert_eq!(menu.chosen().as_deref(), Some("device_error"));
        menu.jump('d');
        assert_eq!(menu.chosen().as_deref(), Some("deadline_unreachable"));
        menu.jump('d');
        assert_eq!(menu.chosen().as_deref(), Some("device_error"), "around");
        menu.jump('§');
        assert_eq!(menu.chosen().as_deref(), Some("device_error"));
        assert_eq!(Menu::open(Filter::Tenant, None, &["one", "two"]).words, ["all", "one", "two"]);
    }
}
