//! The judge against servers whose faults are known, and against logs of proxies that others made.

mod convicted;
mod hop_logs;
mod scripted;
