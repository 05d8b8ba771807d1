//! Options into the parts' own settings. Nothing is chosen here but where an option goes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use engine::EngineConfig;
use gateway::{GatewayConfig, KeepConfig, MomentsConfig, OtlpConfig, OtlpHeaders, OutsideConfig, WireConfig};
use gpu::Gpus;
use lifecycle::Incarnation;
use lifecycle::session::SessionConfig;
use model::cpu::CpuOptions;
use observe::{AlertRules, FilesConfig, Limits, Prices};
use tracing_subscriber::filter::LevelFilter;
use worker::WorkerConfig;
use worker::grpc::GrpcConfig;

use crate::config::{LogLevel, ServeConfig};

/// How far the wait before a cancel's repetition grows, as a multiple of the first wait.
const CANCEL_REPEAT_GROWTH: u64 = 8;

/// Longest file of headers.
const HEADERS_BYTES_MAX: u64 = 64 << 10;

/// The front door's limits.
pub fn gateway(config: &ServeConfig) -> GatewayConfig {
    let ms = Duration::from_millis;
    GatewayConfig {
        body_bytes_max: config.body_bytes_max,
        body_timeout: ms(config.body_timeout_ms),
        header_timeout: ms(config.header_timeout_ms),
        keep_alive_idle: ms(config.keep_alive_idle_ms),
        head_bytes_max: config.head_bytes_max,
        pipelined_bytes_max: config.pipelined_bytes_max,
        connections_max: config.connections_max,
        calls_max: config.calls_max,
        tenant_percent: config.tenant_percent,
        queue_max: config.queue_limit as usize,
        stream_buffer_events: config.stream_buffer_events,
        replay_events_max: config.replay_events_max,
        replay_bytes_max: config.replay_bytes_max,
        affinity_bytes: config.affinity_bytes,
        affinity_load_percent: config.affinity_load_percent,
        readers_max: config.readers_max,
        send_buffer_bytes: config.send_buffer_bytes,
        unread_max: ms(config.unread_max_ms),
        gateway_deadline: ms(config.gateway_deadline_ms),
        queue_deadline: ms(config.queue_deadline_ms),
        client_deadline_max: ms(config.client_deadline_max_ms),
        cancel_repeat: ms(config.cancel_repeat_ms),
        cancel_repeat_max: ms(config.cancel_repeat_ms.saturating_mul(CANCEL_REPEAT_GROWTH)),
        cancel_wait_max: ms(config.cancel_wait_max_ms),
        drain: ms(config.drain_ms),
        settle: ms(config.settle_ms),
        allow_half_close: config.allow_half_close,
        client_lost_after: ms(config.client_lost_after_ms),
        keepalive_comment: ms(config.keepalive_comment_ms),
        redispatch_max: config.redispatch_max,
        watches_max: config.watches_max,
        keep: KeepConfig {
            patience: ms(config.store_patience_ms),
            poll: ms(config.store_poll_ms),
            lease: ms(config.store_lease_ms),
            queue_max: config.store_queue_max,
            background_deadline: ms(config.background_deadline_ms),
            retention: Duration::from_secs(config.retention_s),
            retention_max: Duration::from_secs(config.retention_max_s),
            rejoin: Duration::from_secs(config.rejoin_s),
        },
        outside: OutsideConfig {
            effects_max: config.effects_max,
            effect_text_bytes_max: config.effect_text_bytes_max,
            effect_wait: ms(config.effect_wait_ms),
            tool_urls: config.tool_urls.get().clone(),
            tools_max: config.tools_max,
            tool_timeout_max: ms(config.tool_timeout_ms),
            tool_tries_max: config.tool_tries_max,
            answer_bytes_max: config.tool_answer_bytes_max,
            webhooks: config.webhooks.clone(),
            webhook_timeout: ms(config.webhook_timeout_ms),
            webhook_tries_max: config.webhook_tries_max,
            webhook_retry: ms(config.webhook_retry_ms),
            webhook_retry_max: ms(config.webhook_retry_max_ms),
            sends_max: config.sends_max,
        },
        moments: MomentsConfig {
            keep: ms(config.kv_moments_keep_ms),
            every: ms(config.kv_moments_every_ms),
            bytes_max: config.kv_moments_bytes_max,
        },
        otlp: OtlpConfig {
            endpoint: config.otlp_endpoint.get().cloned(),
            protocol: config.otlp_protocol,
            headers: config.otlp_headers.clone(),
            sample: config.otlp_sample,
            queue_max: config.otlp_queue_max,
            batch_max: config.otlp_batch_max,
            every: ms(config.otlp_every_ms),
            timeout: ms(config.otlp_timeout_ms),
            tries_max: config.otlp_tries_max,
            retry: ms(config.otlp_retry_ms),
        },
        keys: config.keys.clone(),
        on_disconnect: config.on_disconnect.get().unwrap_or_default(),
        on_disconnect_chat: config.on_disconnect_chat.get(),
        on_disconnect_completions: config.on_disconnect_completions.get(),
        on_disconnect_responses: config.on_disconnect_responses.get(),
        grace_max: ms(config.grace_max_ms),
        idempotency_grace: ms(config.idempotency_grace_ms),
        alerts: alerts(config),
        prices: Prices { device_hour: config.price_device_hour.get(), million_tokens: config.price_million_tokens.get() },
        told: config.told().into(),
        ..GatewayConfig::default()
    }
}

/// What a collector of spans is told beside them: what the file says, if one is named.
///
/// # Errors
/// The file cannot be read, or is none of headers.
pub fn otlp_headers(config: &ServeConfig) -> anyhow::Result<OtlpHeaders> {
    let Some(path) = config.otlp_headers_file.get() else { return Ok(config.otlp_headers.clone()) };
    let shown = path.display();
    let unreadable = || format!("cannot read otlp_headers_file {shown}");
    let len = std::fs::metadata(path).with_context(unreadable)?.len();
    ensure!(len <= HEADERS_BYTES_MAX, "otlp_headers_file {shown} has {len} bytes, at most {HEADERS_BYTES_MAX} are read");
    let text = std::fs::read_to_string(path).with_context(unreadable)?;
    OtlpHeaders::of_lines(&text).map_err(|why| anyhow::anyhow!("otlp_headers_file {shown}: {why}"))
}

/// From where on alarms are raised.
pub fn alerts(config: &ServeConfig) -> AlertRules {
    let ms = Duration::from_millis;
    AlertRules {
        waste_percent: config.alert_waste_percent.get(),
        cancel: ms(config.alert_cancel_ms),
        unacknowledged: ms(config.alert_unacknowledged_ms),
        orphaned: ms(config.alert_orphaned_ms),
    }
}

/// The worker's limits, the engine's among them.
pub fn worker(config: &ServeConfig, model: &str, incarnation: Incarnation) -> WorkerConfig {
    WorkerConfig {
        incarnation,
        engine: engine(config, model),
        tokenise_threads: config.tokenise_threads as usize,
        deadline: Duration::from_millis(config.worker_deadline_ms),
    }
}

/// Sessions between processes, on either side.
pub fn session(config: &ServeConfig) -> SessionConfig {
    let ms = Duration::from_millis;
    SessionConfig {
        heartbeat: ms(config.heartbeat_ms),
        suspend_after: ms(config.suspend_after_ms),
        lease: ms(config.lease_ms),
        refused_after: ms(config.worker_refused_ms),
        resend_after: ms(config.resend_after_ms),
        lease_max: ms(config.lease_max_ms),
        window: config.session_window,
        early_max: config.session_early_max,
        outbox_max: config.session_outbox_max,
        gateways_max: config.session_gateways_max,
        tombstones_max: config.session_tombstones_max,
        tombstone_keep: ms(config.tombstone_keep_ms),
        ask_every: ms(config.ask_every_ms),
        ..SessionConfig::default()
    }
}

/// A gateway's links to workers in other processes.
pub fn wire(config: &ServeConfig) -> WireConfig {
    let quiet_max = WireConfig::default().quiet_max.max(Duration::from_millis(config.suspend_after_ms.saturating_mul(2)));
    WireConfig {
        session: session(config),
        hello_timeout: Duration::from_millis(config.hello_timeout_ms),
        quiet_max,
        ..WireConfig::default()
    }
}

/// The server that those sessions come to. A gateway that connects again has two for a while.
pub fn grpc(config: &ServeConfig) -> GrpcConfig {
    GrpcConfig {
        connections_max: config.connections_max,
        sessions_max: config.session_gateways_max.saturating_mul(2),
        hello_timeout: Duration::from_millis(config.hello_timeout_ms),
        ..GrpcConfig::default()
    }
}

/// The engine's limits; `model` is the revision that prefixes belong to.
fn engine(config: &ServeConfig, model: &str) -> EngineConfig {
    EngineConfig {
        model: model.to_owned(),
        step_tokens: config.step_tokens,
        max_running: config.max_running,
        queue_limit: config.queue_limit,
        default_max_tokens: config.default_max_tokens,
        tombstones: config.tombstones,
        in_flight: config.in_flight,
        deadline_check_percent: config.deadline_check_percent,
    }
}

/// The GPUs of this machine. Without a driver there are none, unless its library was named.
///
/// # Errors
/// The named library cannot be opened.
pub fn gpus(config: &ServeConfig) -> anyhow::Result<Option<Arc<Gpus>>> {
    let named = config.nvml.get();
    match Gpus::open(named) {
        Ok(gpus) => Ok(Some(Arc::new(gpus))),
        Err(_) if named.is_none() => Ok(None),
        Err(why) => bail!("nvml: {why}"),
    }
}

/// The device.
pub fn device(config: &ServeConfig) -> CpuOptions {
    let isa = crate::cmd::kernel_isa(config.isa);
    CpuOptions {
        threads: config.threads.get(),
        blocks_total: config.kv_blocks,
        block_tokens: config.block_tokens,
        slots: config.max_running,
        isa,
    }
}

/// The journal's limits.
pub fn journal(config: &ServeConfig) -> Limits {
    let window = Duration::from_secs(config.alert_window_s);
    Limits { records: config.journal_records, runs: config.journal_runs, evicted: config.journal_evicted, window }
}

/// Where it is written to as well, if anywhere.
pub fn journal_files(config: &ServeConfig, life: Incarnation) -> Option<FilesConfig> {
    config.journal_dir.get().map(|dir| FilesConfig {
        dir: dir.to_owned(),
        file_bytes: config.journal_file_bytes,
        files_max: config.journal_files,
        release: env!("CARGO_PKG_VERSION").to_owned(),
        life,
    })
}

/// The least severe level that is logged.
pub fn level(config: &ServeConfig) -> LevelFilter {
    match config.log {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
