//! Options as the parts' own settings: the only place that knows both sides.
//!
//! Invariant: every option of the list is used here, in `serve` or in the logger; a part's limit that is no option keeps its default.

use std::time::Duration;

use engine::EngineConfig;
use gateway::GatewayConfig;
use model::cpu::CpuOptions;
use model::kernel;

use super::options::ServeConfig;
use super::value::{Isa, LogLevel};

impl ServeConfig {
    /// The device's settings.
    pub fn device(&self) -> CpuOptions {
        let isa = match self.isa {
            Isa::Auto => None,
            Isa::Amx => Some(kernel::Isa::Amx),
            Isa::Avx512 => Some(kernel::Isa::Avx512),
            Isa::Avx2 => Some(kernel::Isa::Avx2),
            Isa::Scalar => Some(kernel::Isa::Scalar),
        };
        let threads = self.threads.get();
        CpuOptions { threads, blocks_total: self.kv_blocks, block_tokens: self.block_tokens, slots: self.max_running, isa }
    }

    /// The engine's limits; prefixes of different `revision`s are kept apart.
    pub fn engine(&self, revision: String) -> EngineConfig {
        EngineConfig {
            model: revision,
            step_tokens: self.step_tokens,
            max_running: self.max_running,
            queue_limit: self.queue_limit,
            default_max_tokens: self.default_max_tokens,
            tombstones: self.tombstones,
            ..EngineConfig::default()
        }
    }

    /// The front door's limits.
    pub fn gateway(&self) -> GatewayConfig {
        let ms = Duration::from_millis;
        GatewayConfig {
            body_bytes_max: self.body_bytes_max,
            body_timeout: ms(self.body_timeout_ms),
            header_timeout: ms(self.header_timeout_ms),
            head_bytes_max: self.head_bytes_max,
            connections_max: self.connections_max,
            calls_max: self.calls_max,
            stream_buffer_events: self.stream_buffer_events,
            send_buffer_bytes: self.send_buffer_bytes,
            unread_max: ms(self.unread_max_ms),
            gateway_deadline: ms(self.gateway_deadline_ms),
            queue_deadline: ms(self.queue_deadline_ms),
            client_deadline_max: ms(self.client_deadline_max_ms),
            cancel_repeat: ms(self.cancel_repeat_ms),
            cancel_wait_max: ms(self.cancel_wait_max_ms),
            drain: ms(self.drain_ms),
            settle: ms(self.settle_ms),
            allow_half_close: self.allow_half_close,
            keepalive: ms(self.keepalive_ms),
            ..GatewayConfig::default()
        }
    }
}

impl LogLevel {
    /// Sends what is logged at this level and above to stderr. Ids and causes only: no prompt and no answer is ever logged.
    pub fn install(self) {
        let level = match self {
            LogLevel::Off => tracing::level_filters::LevelFilter::OFF,
            LogLevel::Error => tracing::level_filters::LevelFilter::ERROR,
            LogLevel::Warn => tracing::level_filters::LevelFilter::WARN,
            LogLevel::Info => tracing::level_filters::LevelFilter::INFO,
            LogLevel::Debug => tracing::level_filters::LevelFilter::DEBUG,
            LogLevel::Trace => tracing::level_filters::LevelFilter::TRACE,
        };
        tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false).init();
    }
}
