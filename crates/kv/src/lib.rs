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
//! What the engine must do: tell [`Pool::step_submitted`] before a step goes to the device, [`Pool::fence_completed`] when it is done, and
//! let every [`Lease`] out by [`Pool::retire`] with the newest step that may still touch the block.

pub mod audit;
pub mod block;
pub mod error;
mod fence;
pub mod lease;
mod list;
mod owners;
pub mod pool;
pub mod prefix;
mod quarantine;
mod share;
mod slot;

pub use audit::{Account, BlockView};
pub use block::{BlockId, Generation, Owner};
pub use error::{Defect, Exhausted, NotBegun, Refused};
pub use lease::{Lease, Retired};
pub use pool::Pool;
pub use prefix::{Content, Found, NodeId};
pub use slot::BlockState;
