//! The judge against servers whose faults are known.

mod convicted;
mod scripted;
