//! What a link needs of the world beside time: connections, and chance. A trait, so that a simulation can be put in its place.
//!
//! Invariant: decides nothing; how often and how long it is tried is the link's business.

use std::pin::Pin;

use tonic::transport::{Channel, Endpoint, Error};

/// A connection on its way.
pub type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Channel, Error>> + Send + 'a>>;

/// Where connections are made.
pub trait Network: Send + Sync + 'static {
    /// Makes one, within the endpoint's limit.
    fn connect<'a>(&'a self, endpoint: &'a Endpoint) -> Connecting<'a>;

    /// From 0 to 1, so that many gateways do not come back at once.
    fn chance(&self) -> f64;
}

/// The system's TCP.
#[derive(Clone, Copy, Debug)]
pub struct System;

impl Network for System {
    fn connect<'a>(&'a self, endpoint: &'a Endpoint) -> Connecting<'a> {
        Box::pin(endpoint.connect())
    }

    /// Without chance in the system, always the middle.
    fn chance(&self) -> f64 {
        getrandom::u32().map_or(0.5, |n| f64::from(n) / f64::from(u32::MAX))
    }
}
