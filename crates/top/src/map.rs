//! A worker's blocks as a strip of characters: each stands for so many blocks in a row, and shows the state among them that matters most.

use ratatui::style::Color;
use serde_json::Value;

/// What a character of the strip shows, the least important first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Cell {
    Free,
    Cached,
    Active,
    Draining,
    /// Of the chosen run.
    Lit,
    Quarantined,
}

impl Cell {
    fn of(state: &str) -> Cell {
        match state {
            "cached" => Cell::Cached,
            "active" => Cell::Active,
            "draining" => Cell::Draining,
            "quarantined" => Cell::Quarantined,
            _ => Cell::Free,
        }
    }

    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Cell::Free => "·",
            Cell::Cached => "▒",
            Cell::Active => "█",
            Cell::Draining => "▚",
            Cell::Lit => "◆",
            Cell::Quarantined => "X",
        }
    }

    pub(crate) fn colour(self) -> Color {
        match self {
            Cell::Free => Color::DarkGray,
            Cell::Cached => Color::Blue,
            Cell::Active => Color::Green,
            Cell::Draining => Color::Yellow,
            Cell::Lit => Color::Magenta,
            Cell::Quarantined => Color::Red,
        }
    }
}

/// At most `room` characters for the blocks of `GET /v1/kv/map`, the chosen run's lit.
pub(crate) fn strip(map: &Value, room: usize, chosen: Option<&[String]>) -> Vec<Cell> {
    let is_chosen = |owner: &Value| {
        let run = owner.as_str().and_then(|owner| owner.rsplit_once('/')).map(|(run, _)| run);
        run.is_some_and(|run| chosen.is_some_and(|names| names.iter().any(|name| name == run)))
    };
    let kind = |kind: &Value| match kind["owners"].as_array().is_some_and(|owners| owners.iter().any(is_chosen)) {
        true => Cell::Lit.max(Cell::of(kind["state"].as_str().unwrap_or(""))),
        false => Cell::of(kind["state"].as_str().unwrap_or("")),
    };
    let kinds: Vec<Cell> = map["kinds"].as_array().into_iter().flatten().map(kind).collect();
    let numbers: Vec<u64> = map["cells"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
    let total: u64 = numbers.chunks_exact(2).map(|pair| pair[0]).sum();
    let length = total.min(room as u64);
    let mut strip = vec![Cell::Free; length as usize];
    let mut from = 0;
    for pair in numbers.chunks_exact(2) {
        let (to, cell) = (from + pair[0], kinds.get(pair[1] as usize).copied().unwrap_or(Cell::Free));
        if pair[0] > 0 && cell > Cell::Free {
            let (first, last) = (from * length / total, (to - 1) * length / total);
            for shown in &mut strip[first as usize..=last as usize] {
                *shown = cell.max(*shown);
            }
        }
        from = to;
    }
    strip
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(map: &Value, room: usize, chosen: Option<&[String]>) -> String {
        strip(map, room, chosen).into_iter().map(Cell::symbol).collect()
    }

    #[test]
    fn a_block_is_never_hidden_behind_free_ones() {
        let map = json!({"kinds": [{"state": "free", "owners": []}, {"state": "active", "owners": ["a/1"]}, {"state": "cached", "owners": []},
                                   {"state": "quarantined", "owners": ["two:b/2"]}],
                         "cells": [3, 1, 2, 2, 994, 0, 1, 3]});
        assert_eq!(shown(&map, 10, None), "█········X");
        assert_eq!(shown(&map, 1, None), "X");
        let small = json!({"kinds": map["kinds"], "cells": [2, 1, 1, 2, 3, 0]});
        assert_eq!(shown(&small, 80, None), "██▒···", "a small pool has a character a block");
        assert_eq!(shown(&json!({}), 80, None), "");
    }

    #[test]
    fn the_chosen_runs_blocks_are_lit_whoever_else_has_them() {
        let map = json!({"kinds": [{"state": "active", "owners": ["-", "two:b/2"]}, {"state": "active", "owners": ["a/1"]}],
                         "cells": [2, 0, 2, 1]});
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(shown(&map, 80, Some(&names(&["b", "two:b"]))), "◆◆██");
        assert_eq!(shown(&map, 80, Some(&names(&["a"]))), "██◆◆");
    }
}
