//! Tests of the engine against a simulated device, whose memory makes every misuse of a block visible as a wrong token.

mod again;
mod blocks;
mod cases;
mod guards;
mod neighbour;
mod pace;
mod planning;
mod preempted;
mod prints;
mod race;
mod random;
mod simulated;
mod states;
mod suspend;
mod tombstones;
