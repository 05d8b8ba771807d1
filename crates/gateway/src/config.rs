//! Every limit of the front door, with its default and why it is what it is.
//!
//! Invariant: no queue, body, buffer or wait in this crate is without a limit from here.

use std::sync::Arc;
use std::time::Duration;

use crate::keys::Keys;
use crate::moments::MomentsConfig;
use crate::otlp::OtlpConfig;
use crate::outside::{UrlPrefixes, Webhooks};
use lifecycle::OnDisconnect;

/// The front door's limits and policies.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Largest request body, in bytes. Default 4 MiB: longer than any prompt that fits a context, short enough to parse at once.
    pub body_bytes_max: usize,
    /// How long a caller may take to send its body. Default 30 s.
    pub body_timeout: Duration,
    /// How long a caller may take to send a request's head once it has begun; on a fresh connection, from its beginning. Default 10 s.
    pub header_timeout: Duration,
    /// How long an HTTP/1.1 connection is kept for a next request. Default 75 s, as usual elsewhere.
    pub keep_alive_idle: Duration,
    /// Largest request head in bytes; also what is buffered for a connection that is not read. Default 64 KiB, at least 8 KiB.
    pub head_bytes_max: usize,
    /// Bytes kept of what a caller sends behind a request whose answer is pending (HTTP/1.1), beside `head_bytes_max`. Beyond it they are
    /// thrown away and the connection is closed behind that answer. Default 64 KiB: requests are seldom pipelined at all.
    pub pipelined_bytes_max: usize,
    /// Open connections; further ones wait in the kernel's backlog. Default 1024.
    pub connections_max: usize,
    /// Threads that serve connections, each with a runtime of its own; 0 for the one that `Gateway::serve` is called on. Default 0: where the
    /// answers come from this process, another thread has them first anyway.
    pub connection_threads: usize,
    /// Runs in the table at once, ended ones that are not settled included. A further one is rejected (`queue_full`). Default 1024.
    pub calls_max: usize,
    /// Runs that wait for a worker, or that one was sent and has not yet answered. A further one is rejected (`queue_full`). Default 256.
    pub queue_max: usize,
    /// Most of `calls_max` and of `queue_max` that one tenant may have, in percent, where `keys` name several. Default 75: whoever fills the queue
    /// leaves a quarter of it to the others.
    pub tenant_percent: u32,
    /// Deltas kept for a caller that does not read; one more and the run is cancelled (`client_stalled`). Default 1024.
    pub stream_buffer_events: usize,
    /// Pieces of an answer kept for those who join its run by `Idempotency-Key`; a run that has said more cannot be joined. Default 4096.
    pub replay_events_max: usize,
    /// Bytes of such pieces; a run that has said more cannot be joined. Default 1 MiB: an engine that is forwarded to may say much at once.
    pub replay_bytes_max: usize,
    /// Readers of one run at once. Default 8.
    pub readers_max: usize,
    /// Bytes of a connection's kernel send buffer (the kernel doubles it). Small, so that a caller that does not read is noticed and
    /// "delivered" does not mean "somewhere in a buffer of megabytes". Default 128 KiB.
    pub send_buffer_bytes: usize,
    /// How long an answer that nobody reads is kept (C-28), from when it last moved; then the run is cancelled (`client_stalled`), or its
    /// delivery ends as it stands, and the connection is closed. Default 30 s.
    pub unread_max: Duration,
    /// The gateway's own deadline for every run (`gateway_deadline`). Default 10 min.
    pub gateway_deadline: Duration,
    /// How long a run may wait to be scheduled (`queue_deadline`): here while no worker is, then at the worker. Default 5 min.
    pub queue_deadline: Duration,
    /// Bytes of a prompt's beginning by which one of several workers is preferred; 0 to prefer none. Default 1024: longer than most greetings,
    /// shorter than most documents.
    pub affinity_bytes: usize,
    /// Most runs of a preferred worker, in percent of its share of all runs. Default 125.
    pub affinity_load_percent: u32,
    /// Largest deadline that a caller may give. Default 24 h.
    pub client_deadline_max: Duration,
    /// Longest run id in bytes that a caller may give; never more than `lifecycle::id::RUN_ID_MAX_LEN`. Default 128.
    pub run_id_bytes_max: usize,
    /// First wait before a cancel is repeated; doubles up to `cancel_repeat_max`. Default 250 ms.
    pub cancel_repeat: Duration,
    /// Longest wait before a cancel is repeated. Default 2 s.
    pub cancel_repeat_max: Duration,
    /// How long a caller whose run was cancelled or expired waits for the worker's word before it is told. Default 2 s.
    pub answer_grace: Duration,
    /// How often a run whose worker was lost is dispatched again, to another one, if nothing of it was delivered. 0 for never. Default 1.
    pub redispatch_max: u32,
    /// How long `POST /v1/runs/{id}/cancel` waits where the caller names no time. Default 1 s.
    pub cancel_wait: Duration,
    /// Longest wait that a canceller may ask for. Default 60 s.
    pub cancel_wait_max: Duration,
    /// How long the worker may take to answer a question (`/metrics`, `/v1/kv`). Default 1 s.
    pub ask_timeout: Duration,
    /// Questions to the worker at once. Default 64.
    pub asks_max: usize,
    /// How long live runs may go on after a shutdown was asked for. Default 10 s.
    pub drain: Duration,
    /// How long after `drain` the cancelled runs may take to settle, and callers to take their last bytes. Default 5 s.
    pub settle: Duration,
    /// Whether a caller that closes its sending side only is still there. Default no: hardly any HTTP client does that, and a proxy that
    /// closes does.
    pub allow_half_close: bool,
    /// How long a peer may leave what it is asked unanswered; then it has vanished without a word (`client_lost`). Sets keepalive's probes,
    /// the pauses between retransmissions and HTTP/2's PINGs. The kernel counts some of that in seconds: at least 2 s. Default 30 s.
    pub client_lost_after: Duration,
    /// How long a stream may be silent before a comment is sent on it; zero for never. A comment keeps proxies from giving up on the stream,
    /// and one that cannot be delivered shows that its reader is gone. Default 10 s.
    pub keepalive_comment: Duration,
    /// Requests at once on one HTTP/2 connection. Default 256.
    pub streams_max: u32,
    /// Watches over gRPC at once, of runs and of health. Each looks again and again, so a further one is refused. Default 256.
    pub watches_max: usize,
    /// How often a watch looks: changes that come quicker are shown as one. Default 50 ms.
    pub watch_every: Duration,
    /// What a disconnect means for a run whose request says nothing about it (C-25). Default `cancel`.
    pub on_disconnect: OnDisconnect,
    /// The same for `/v1/chat/completions`; `None` for `on_disconnect`.
    pub on_disconnect_chat: Option<OnDisconnect>,
    /// The same for `/v1/completions`.
    pub on_disconnect_completions: Option<OnDisconnect>,
    /// The same for `/v1/responses`.
    pub on_disconnect_responses: Option<OnDisconnect>,
    /// Longest grace, whoever asks for it. Default 60 s: a caller that is gone for longer asks for `continue`.
    pub grace_max: Duration,
    /// The grace of a run with an `Idempotency-Key` that would have none: SDKs close the first connection before they ask again. Default 5 s.
    pub idempotency_grace: Duration,
    /// What the process was started with, as a report for strangers may show it: names and values, no secret, no address and no path.
    pub told: Arc<[(&'static str, String)]>,
    /// Who may ask, and whose runs they see. Default none: everybody may, and all are one tenant.
    pub keys: Keys,
    /// What is kept of runs, where there is a run store.
    pub keep: KeepConfig,
    /// What is done outside for runs, where there is a run store.
    pub outside: OutsideConfig,
    /// What is remembered of the workers' blocks.
    pub moments: MomentsConfig,
    /// Where runs' spans are exported to.
    pub otlp: OtlpConfig,
    /// From where on alarms are raised.
    pub alerts: observe::AlertRules,
    /// What work costs.
    pub prices: observe::Prices,
    /// The GPUs of this machine, whose memory and load are shown beside the process's own; `None` where there is no driver.
    pub gpus: Option<Arc<gpu::Gpus>>,
}

/// Effects, declared tools and webhooks.
#[derive(Clone, Debug)]
pub struct OutsideConfig {
    /// Effects that a run may have. Default 100.
    pub effects_max: usize,
    /// Longest description and longest detail of an effect, and longest arguments of a declared tool, in bytes. Default 4096.
    pub effect_text_bytes_max: usize,
    /// How long an effect in flight is waited for once its run is over, before it is called unknown. Default 5 s.
    pub effect_wait: Duration,
    /// What declared tools may be sent to: URLs that begin like this. Default none.
    pub tool_urls: UrlPrefixes,
    /// Declared tools of one run. Default 8.
    pub tools_max: usize,
    /// Longest that one call of a tool may take. Default 30 s.
    pub tool_timeout_max: Duration,
    /// How often a tool that is safe to repeat is sent within one life of a gateway. Default 4.
    pub tool_tries_max: u32,
    /// Bytes of a tool's answer that are read. Default 64 KiB.
    pub answer_bytes_max: usize,
    /// Who is told of background runs' ends. Default nobody.
    pub webhooks: Webhooks,
    /// How long one try of a webhook may take. Default 15 s.
    pub webhook_timeout: Duration,
    /// How often one is tried. Default 10.
    pub webhook_tries_max: u32,
    /// First wait before it is tried again; each further one is four times as long. Default 5 s.
    pub webhook_retry: Duration,
    /// Longest such wait. Default 6 h.
    pub webhook_retry_max: Duration,
    /// Runs' tools and webhooks that are being sent at once. Default 16.
    pub sends_max: usize,
}

impl Default for OutsideConfig {
    fn default() -> Self {
        OutsideConfig {
            effects_max: 100,
            effect_text_bytes_max: 4096,
            effect_wait: Duration::from_secs(5),
            tool_urls: UrlPrefixes::default(),
            tools_max: 8,
            tool_timeout_max: Duration::from_secs(30),
            tool_tries_max: 4,
            answer_bytes_max: 64 << 10,
            webhooks: Webhooks::default(),
            webhook_timeout: Duration::from_secs(15),
            webhook_tries_max: 10,
            webhook_retry: Duration::from_secs(5),
            webhook_retry_max: Duration::from_secs(6 * 3600),
            sends_max: 16,
        }
    }
}

/// The limits and waits around the run store.
#[derive(Clone, Debug)]
pub struct KeepConfig {
    /// How long an interactive run waits for the store, before it begins and before its end is told. Default 100 ms.
    pub patience: Duration,
    /// How often the store is looked at for what its messages may have missed. Default 1 s.
    pub poll: Duration,
    /// After so long without a beat a life of a gateway is over, and others may take over its runs. Above the workers' lease, so that what it
    /// had is no longer computed then. Default 15 s.
    pub lease: Duration,
    /// Writes that wait for the store; with more, no run is taken on. Default 65,536.
    pub queue_max: usize,
    /// The gateway's deadline for a background run, waiting included, however many gateways it has. Default 1 h.
    pub background_deadline: Duration,
    /// How long a run is kept from its acceptance on, once it has ended, where it does not say so itself. Default 30 days.
    pub retention: Duration,
    /// Longest retention that a request may ask for. Default 365 days.
    pub retention_max: Duration,
    /// How long the answer of a request with a key and `store: false` is kept beyond the longest that its run may take, for whoever asks again
    /// with the key. Default 10 min.
    pub rejoin: Duration,
}

impl Default for KeepConfig {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        KeepConfig {
            patience: Duration::from_millis(100),
            poll: Duration::from_secs(1),
            lease: Duration::from_secs(15),
            queue_max: 65_536,
            background_deadline: Duration::from_secs(3600),
            retention: Duration::from_secs(30 * DAY),
            retention_max: Duration::from_secs(365 * DAY),
            rejoin: Duration::from_secs(600),
        }
    }
}

impl Default for GatewayConfig {
    fn default() -> Self {
        GatewayConfig {
            body_bytes_max: 4 << 20,
            body_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            keep_alive_idle: Duration::from_secs(75),
            head_bytes_max: 64 << 10,
            pipelined_bytes_max: 64 << 10,
            connections_max: 1024,
            connection_threads: 0,
            calls_max: 1024,
            queue_max: 256,
            tenant_percent: 75,
            stream_buffer_events: 1024,
            replay_events_max: 4096,
            replay_bytes_max: 1 << 20,
            readers_max: 8,
            send_buffer_bytes: 128 << 10,
            unread_max: Duration::from_secs(30),
            gateway_deadline: Duration::from_secs(600),
            queue_deadline: Duration::from_secs(300),
            affinity_bytes: 1024,
            affinity_load_percent: 125,
            client_deadline_max: Duration::from_secs(24 * 3600),
            run_id_bytes_max: lifecycle::id::RUN_ID_MAX_LEN,
            cancel_repeat: Duration::from_millis(250),
            cancel_repeat_max: Duration::from_secs(2),
            answer_grace: Duration::from_secs(2),
            redispatch_max: 1,
            cancel_wait: Duration::from_secs(1),
            cancel_wait_max: Duration::from_secs(60),
            ask_timeout: Duration::from_secs(1),
            asks_max: 64,
            drain: Duration::from_secs(10),
            settle: Duration::from_secs(5),
            allow_half_close: false,
            client_lost_after: Duration::from_secs(30),
            keepalive_comment: Duration::from_secs(10),
            streams_max: 256,
            watches_max: 256,
            watch_every: Duration::from_millis(50),
            keys: Keys::default(),
            keep: KeepConfig::default(),
            outside: OutsideConfig::default(),
            moments: MomentsConfig::default(),
            otlp: OtlpConfig::default(),
            alerts: observe::AlertRules::default(),
            prices: observe::Prices::default(),
            gpus: None,
            on_disconnect: OnDisconnect::Cancel,
            on_disconnect_chat: None,
            on_disconnect_completions: None,
            on_disconnect_responses: None,
            grace_max: Duration::from_secs(60),
            idempotency_grace: Duration::from_secs(5),
            told: Arc::default(),
        }
    }
}

impl GatewayConfig {
    /// What a run's machine goes by.
    pub(crate) fn dispatch(&self) -> lifecycle::DispatchConfig {
        lifecycle::DispatchConfig {
            cancel_repeat: self.cancel_repeat,
            cancel_repeat_max: self.cancel_repeat_max,
            answer_grace: self.answer_grace,
            queue_deadline: self.queue_deadline,
            redispatch_max: self.redispatch_max,
            unbegun_max: self.unbegun_max(),
        }
    }

    /// How often one that no worker began is dispatched again, beside `redispatch_max`.
    fn unbegun_max(&self) -> u32 {
        if self.redispatch_max == 0 { 0 } else { lifecycle::DispatchConfig::default().unbegun_max }
    }

    /// Most attempts that a run has in one life of a gateway.
    pub(crate) fn attempts_max(&self) -> u32 {
        self.redispatch_max.saturating_add(self.unbegun_max()).saturating_add(1)
    }

    /// And one that nobody waits for: it may wait as long as it may take.
    pub(crate) fn dispatch_background(&self) -> lifecycle::DispatchConfig {
        lifecycle::DispatchConfig { queue_deadline: self.keep.background_deadline, ..self.dispatch() }
    }
}
