//! `kvit top`: what the console shows, in a terminal, against a server near or far.
//!
//! A thread asks the server (`look`), what came is put into the state (`state`), and a frame is drawn of the state alone (`draw`); keys change
//! the state and nothing else. Whatever asks and cancels is handed in (`Ask`), so that tests can stand in for the server, and the screen
//! for a terminal.
//!
//! Invariant: nothing is shown that the API does not say, no control character of anybody's reaches the terminal, and however it ends, the
//! terminal is as it was before.

mod ask;
mod draw;
mod facts;
mod health;
mod keys;
mod look;
mod map;
mod menu;
mod state;
mod terminal;
mod ways;

pub use ask::{Ask, Trouble};
pub use health::Level;
pub use keys::Effect;
pub use look::{Look, Looker, Wanted};
pub use state::{Settings, State};
pub use terminal::{Stop, frame, json, run};
