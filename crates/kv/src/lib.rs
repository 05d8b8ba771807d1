//! The block pool: who owns each KV block, and when it may be handed out again.
//!
//! Pure; a single owner, no locks; nothing is released in `Drop`.

mod audit;
pub mod block;
mod lease;
mod lru;
mod pool;
mod prefix;

pub use audit::{Account, BlockState, BlockView, Defect};
pub use block::{BlockId, Generation, Owner};
pub use lease::Lease;
pub use pool::{Exhausted, Pool, Refused};
pub use prefix::{BeginError, CLAIMS_MAX, Found, NodeId, NodeState, ROOTS_MAX};
