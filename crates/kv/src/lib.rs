//! The block pool: who owns each KV block, and when it may be handed out again.
//!
//! Pure; a single owner, no locks; nothing is released in `Drop`.
//!
//! One block is in one state, and the state is derived from four facts (contract: C-15):
//!
//! ```text
//!   has an owner ───────────────────────────► active
//!   else condemned ─────────────────────────► quarantined   (only a device reset frees it)
//!   else its fence is open ─────────────────► draining
//!   else the prefix index holds it ─────────► cached
//!   else ───────────────────────────────────► free
//! ```
//!
//! What the engine must do: let every [`Lease`] out by [`Pool::retire`] with the newest step that may still touch the block, and tell
//! [`Pool::fence_completed`] of each step that is done, or [`Pool::quarantine`] of one that can never be.

pub mod audit;
pub mod block;
pub mod error;
mod fence;
pub mod fingerprint;
mod items;
pub mod lease;
mod list;
mod owners;
pub mod pool;
pub mod prefix;
mod quarantine;
#[cfg(test)]
mod scale;
mod share;
mod slot;

pub use audit::{Account, BlockView};
pub use block::{BlockId, Generation, Owner};
pub use error::{BeginError, Defect, Exhausted, Refused};
pub use fingerprint::{Digest, NodeNames};
pub use lease::{Lease, Retired};
pub use pool::Pool;
pub use prefix::{Found, NodeId, NodeState};
pub use slot::BlockState;
