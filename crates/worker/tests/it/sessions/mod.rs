//! Sessions over real gRPC on loopback: a worker with the tiny model, and gateways that a test plays.

mod cancels;
mod drains;
mod gateway;
mod host;
mod leases;
mod lossy;
mod lost;
mod refused;
mod slow;

use gateway::{Answers, Gateway, both};
use host::{Cable, Host, Setup, alone};
