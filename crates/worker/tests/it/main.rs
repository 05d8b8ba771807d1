//! The worker as a whole: engine thread, CPU device, tokenising threads, on a model that is written by the test itself.

mod harness;
mod lost_device;
mod neighbours;
mod sessions;
mod stories;
