//! The engine's limits. Each has a name, a default and a place in the config reference.

/// Limits of one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// The model's revision: prefixes of different revisions are never shared.
    pub model: String,
    /// Most tokens computed in one step, over all rows. Larger steps prefill faster and make neighbours wait longer for their next token.
    pub step_tokens: u32,
    /// Most sequences that run at once.
    pub max_running: u32,
    /// Most attempts that wait (tokenising, queued or preempted).
    pub queue_limit: u32,
    /// Cap on generated tokens a sequence where the caller names none.
    pub default_max_tokens: u32,
    /// Most cancels remembered for attempts whose submit has not come yet (C-11).
    pub tombstones: u32,
    /// Steps in flight: one running, the others queued behind it. At most what the device allows.
    pub in_flight: u32,
    /// An attempt is rejected with `deadline_unreachable` if this much of the time that its prompt takes at the fastest pace seen is more
    /// than is left, in percent; 0 for never.
    pub deadline_check_percent: u32,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            model: "model".into(),
            step_tokens: 256,
            max_running: 32,
            queue_limit: 1024,
            default_max_tokens: 2048,
            tombstones: 4096,
            in_flight: 2,
            deadline_check_percent: 50,
        }
    }
}
