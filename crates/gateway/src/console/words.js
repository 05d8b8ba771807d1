// The contract's words, in its order, and where on the timeline each milestone stands. A test of the gateway compares them with the contract's.

export const STATES = ["queued", "prefilling", "decoding", "preempted", "suspended", "stopping", "ended"];

export const CAUSES = [
  "stop", "length", "client_closed", "client_reset", "client_lost", "client_stalled", "cancel_requested", "edge_timeout", "orphaned",
  "shutdown", "client_deadline", "gateway_deadline", "worker_deadline", "queue_deadline", "worker_error", "device_error", "worker_lost",
  "upstream_error", "invalid", "over_limit", "queue_full", "cannot_fit", "deadline_unreachable",
];

export const BLOCK_STATES = ["active", "cached", "draining", "quarantined", "free"];

export const LANES = ["client", "gateway", "worker", "engine"];

/** Each milestone's lane and what it means, in the contract's order. */
export const MILESTONES = {
  accepted: ["gateway", "the front door took the run on"],
  queued: ["worker", "it waits at the worker to be scheduled"],
  blocks_allocated: ["engine", "the first blocks were taken for it"],
  prefill_start: ["engine", "its first prompt chunk went into a step"],
  first_token: ["engine", "its first token was there"],
  deadline_fired: ["gateway", "a deadline of it passed"],
  disconnect_observed: ["gateway", "its caller's leaving was seen"],
  cancel_sent: ["gateway", "the first cancel left the gateway"],
  cancel_received: ["worker", "a cancel reached the worker"],
  cancel_applied: ["engine", "the engine made it non-runnable"],
  cancel_acknowledged: ["gateway", "the gateway learned that"],
  last_compute: ["engine", "the newest step that computed rows of it was over"],
  fence_completed: ["engine", "the newest step that could touch its blocks was over"],
  released: ["worker", "it owned no block and no per-run state any more"],
  settled: ["gateway", "its gateway held nothing but the record"],
};
