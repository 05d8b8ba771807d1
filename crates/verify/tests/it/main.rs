//! The judge from outside: against servers whose faults are known, logs of proxies that others made, and its taps against sockets of the tests'
//! own.

mod convicted;
mod edge_idle;
mod gpus;
mod hop_logs;
mod hops;
mod no_alarm;
mod observed;
mod scripted;
mod stand;
mod tap_closes;
mod tap_passes;
mod tap_tells;
mod tls;
mod wanted;
