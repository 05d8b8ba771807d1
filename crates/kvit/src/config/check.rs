//! What no single value shows: ranges, and values that must go together.
//!
//! Invariant: what passes here, no part of the server has to refuse.

use gateway::OtlpConfig;

use super::value::{THREADS_MAX, WORKERS_MAX};
use super::{ConfigError, ServeConfig};

/// Least `client_lost_after_ms`: a second of idleness, and a second for the answer to the probe.
const CLIENT_LOST_AFTER_MIN_MS: u64 = 2000;

impl ServeConfig {
    /// Checks ranges, and values that must go together.
    ///
    /// # Errors
    /// The first option that is out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let at_least_one: [(&'static str, u64); 41] = [
            ("kv_blocks", self.kv_blocks.into()),
            ("step_tokens", self.step_tokens.into()),
            ("max_running", self.max_running.into()),
            ("queue_limit", self.queue_limit.into()),
            ("default_max_tokens", self.default_max_tokens.into()),
            ("in_flight", self.in_flight.into()),
            ("tokenise_threads", self.tokenise_threads.into()),
            ("connections_max", self.connections_max as u64),
            ("calls_max", self.calls_max as u64),
            ("stream_buffer_events", self.stream_buffer_events as u64),
            ("unread_max_ms", self.unread_max_ms),
            ("readers_max", self.readers_max as u64),
            ("heartbeat_ms", self.heartbeat_ms),
            ("suspend_after_ms", self.suspend_after_ms),
            ("resend_after_ms", self.resend_after_ms),
            ("session_window", self.session_window),
            ("session_early_max", self.session_early_max as u64),
            ("tombstone_keep_ms", self.tombstone_keep_ms),
            ("session_outbox_max", self.session_outbox_max as u64),
            ("session_gateways_max", self.session_gateways_max as u64),
            ("session_tombstones_max", self.session_tombstones_max as u64),
            ("ask_every_ms", self.ask_every_ms),
            ("hello_timeout_ms", self.hello_timeout_ms),
            ("store_poll_ms", self.store_poll_ms),
            ("store_queue_max", self.store_queue_max as u64),
            ("background_deadline_ms", self.background_deadline_ms),
            ("tool_timeout_ms", self.tool_timeout_ms),
            ("tool_tries_max", self.tool_tries_max.into()),
            ("webhook_timeout_ms", self.webhook_timeout_ms),
            ("webhook_tries_max", self.webhook_tries_max.into()),
            ("webhook_retry_ms", self.webhook_retry_ms),
            ("sends_max", self.sends_max as u64),
            ("kv_moments_every_ms", self.kv_moments_every_ms),
            ("journal_file_bytes", self.journal_file_bytes),
            ("journal_files", self.journal_files as u64),
            ("alert_window_s", self.alert_window_s),
            ("otlp_queue_max", self.otlp_queue_max as u64),
            ("otlp_batch_max", self.otlp_batch_max as u64),
            ("otlp_timeout_ms", self.otlp_timeout_ms),
            ("otlp_tries_max", self.otlp_tries_max.into()),
            ("otlp_retry_ms", self.otlp_retry_ms),
        ];
        for (name, value) in at_least_one {
            if value == 0 {
                return Err(ConfigError::Range { name, why: "must be at least 1".to_owned() });
            }
        }
        if self.block_tokens == 0 || !self.block_tokens.is_multiple_of(16) {
            return Err(ConfigError::Range {
                name: "block_tokens",
                why: format!("must be a multiple of 16, and {} is not", self.block_tokens),
            });
        }
        if self.connection_threads > THREADS_MAX {
            return Err(ConfigError::Range { name: "connection_threads", why: format!("must be at most {THREADS_MAX}") });
        }
        if !(1..=100).contains(&self.tenant_percent) {
            return Err(ConfigError::Range { name: "tenant_percent", why: "must be 1 to 100".to_owned() });
        }
        if self.deadline_check_percent > 100 {
            let why = "must be at most 100: beyond it runs are rejected that may make it".to_owned();
            return Err(ConfigError::Range { name: "deadline_check_percent", why });
        }
        if self.client_lost_after_ms < CLIENT_LOST_AFTER_MIN_MS {
            let why = format!("must be at least {CLIENT_LOST_AFTER_MIN_MS}: the kernel probes by the second, and a probe needs an answer");
            return Err(ConfigError::Range { name: "client_lost_after_ms", why });
        }
        if self.worker.addresses().len() > WORKERS_MAX {
            let why = format!("names {} workers; at most {WORKERS_MAX} are allowed", self.worker.addresses().len());
            return Err(ConfigError::Range { name: "worker", why });
        }
        if self.affinity_load_percent < 100 {
            let why = "must be at least 100: with less, no worker could be preferred when all have their share".to_owned();
            return Err(ConfigError::Range { name: "affinity_load_percent", why });
        }
        if self.suspend_after_ms < 2 * self.heartbeat_ms {
            let why = format!("must be at least twice heartbeat_ms ({}): one lost heartbeat is no silence", self.heartbeat_ms);
            return Err(ConfigError::Range { name: "suspend_after_ms", why });
        }
        if self.lease_ms <= self.suspend_after_ms {
            let why = format!("must be above suspend_after_ms ({})", self.suspend_after_ms);
            return Err(ConfigError::Range { name: "lease_ms", why });
        }
        // Of a file nobody else can take anything over.
        let is_shared = self.store.get().is_some_and(|place| place.starts_with("postgres"));
        if is_shared && self.store_lease_ms <= self.lease_ms {
            let why = format!("must be above lease_ms ({}): what a lost gateway's workers still compute ends with that", self.lease_ms);
            return Err(ConfigError::Range { name: "store_lease_ms", why });
        }
        if self.journal_records == 0 && self.journal_dir.get().is_some() {
            let why = "must be at least 1 where there is a journal_dir: what is written is taken from the ring".to_owned();
            return Err(ConfigError::Range { name: "journal_records", why });
        }
        if self.retention_s > self.retention_max_s {
            let why = format!("must be at most retention_max_s ({})", self.retention_max_s);
            return Err(ConfigError::Range { name: "retention_s", why });
        }
        let otlp = OtlpConfig { endpoint: self.otlp_endpoint.get().cloned(), protocol: self.otlp_protocol, ..OtlpConfig::default() };
        otlp.check().map_err(|why| ConfigError::Range { name: "otlp_endpoint", why: why.to_owned() })?;
        if self.max_running > self.step_tokens {
            let why = format!("is {}, more than step_tokens ({}): a step must hold a token of each", self.max_running, self.step_tokens);
            return Err(ConfigError::Range { name: "max_running", why });
        }
        Ok(())
    }
}
