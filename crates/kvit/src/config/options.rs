//! The list of options and the three types made from it: what a source says (`ServeFlags`), what holds (`ServeConfig`), what the
//! reference prints (`OPTIONS`).
//!
//! Invariant: each option stands here once. Every queue, buffer and wait of the server has its limit in this list.

use gateway::OtlpProtocol;
use lifecycle::OnDisconnect;
use observe::otlp::Sample;
use serde::Deserialize;

use super::otlp::Collector;
use super::upstreams::Upstreams;
use super::value::{Amount, Isa, LogLevel, ModelPath, Policy, ProcessName, StorePlace, Threads, ToolUrls, Workers};

/// One option as the reference shows it.
#[derive(Clone, Copy, Debug)]
pub struct OptionDoc {
    /// The key in the file; the flag and the variable follow from it.
    pub key: &'static str,
    /// What values it takes, in a word.
    pub kind: &'static str,
    /// The default as text.
    pub default: fn() -> String,
    /// What it does, in one or two sentences.
    pub about: &'static str,
}

impl OptionDoc {
    /// The variable in the environment.
    pub fn variable(&self) -> String {
        format!("KVIT_{}", self.key.to_uppercase())
    }
}

macro_rules! options {
    ($($key:ident : $kind:ty, $word:literal = $default:expr, $about:literal;)+) => {
        /// What one source says: each option, or nothing about it. Also the flags of the commands that take options; `Flags` says which.
        #[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct ServeFlags {
            $(#[doc = $about] #[arg(long, value_name = $word, help = $about)] pub $key: Option<$kind>,)+
        }

        /// What holds: every option with its value.
        #[derive(Clone, Debug, PartialEq)]
        pub struct ServeConfig {
            $(#[doc = $about] pub $key: $kind,)+
            /// Who may ask. Only a file has them.
            pub keys: gateway::Keys,
            /// Who is told of background runs' ends. Only a file has them.
            pub webhooks: gateway::Webhooks,
            /// What a collector of spans is told, from OpenTelemetry's own variable.
            pub otlp_headers: gateway::OtlpHeaders,
        }

        /// Every option, in the reference's order.
        pub const OPTIONS: &[OptionDoc] = &[
            $(OptionDoc { key: stringify!($key), kind: $word, default: || { let value: $kind = $default; value.to_string() }, about: $about },)+
        ];

        impl ServeConfig {
            /// Every option's value as text, in the reference's order.
            pub(super) fn values(&self) -> Vec<String> {
                vec![$(self.$key.to_string(),)+]
            }
        }

        impl ServeFlags {
            /// This source laid over `below`.
            pub fn or(self, below: ServeFlags) -> ServeFlags {
                ServeFlags { $($key: self.$key.or(below.$key),)+ }
            }

            /// Fills what no source says with the defaults.
            pub fn fill(self) -> ServeConfig {
                let (keys, webhooks, otlp_headers) = Default::default();
                ServeConfig { $($key: self.$key.unwrap_or_else(|| $default),)+ keys, webhooks, otlp_headers }
            }

            /// Options that this source sets.
            pub fn keys(&self) -> Vec<&'static str> {
                let mut keys = Vec::new();
                $(if self.$key.is_some() { keys.push(stringify!($key)); })+
                keys
            }

            /// Sets one option from text; `None` if there is no such option.
            pub fn set(&mut self, key: &str, text: &str) -> Option<Result<(), String>> {
                match key {
                    $(stringify!($key) => Some(match text.parse::<$kind>() {
                        Ok(value) => { self.$key = Some(value); Ok(()) }
                        Err(why) => Err(format!("`{text}` is not a {}: {why}", $word)),
                    }),)+
                    _ => None,
                }
            }
        }
    };
}

options! {
    host: String, "ADDRESS" = "127.0.0.1".to_owned(),
        "Address to listen on. Anything but a loopback address shows the server to the network: without `[[key]]` tables it serves whoever reaches it.";
    port: u16, "NUMBER" = 8000,
        "Port to listen on; 0 picks a free one, which the `listening on` line names.";
    model: ModelPath, "FILE" = ModelPath::default(),
        "GGUF file to serve. Without it: the cached SmolLM2-135M-Instruct, fetched first if it is not there.";
    threads: Threads, "NUMBER" = Threads::default(),
        "Threads that compute, the device's own included.";
    isa: Isa, "NAME" = Isa::Auto,
        "Instruction set of the kernels: auto, amx, avx512, avx2 or scalar. All give the same bits; one that the machine lacks is refused.";
    kv_blocks: u32, "NUMBER" = 1024,
        "Blocks in the pool. A block of 16 positions of SmolLM2-135M takes 360 KiB, so 1024 take 360 MiB and hold 16,384 positions.";
    block_tokens: u32, "NUMBER" = 16,
        "Token positions in a block; a multiple of 16.";
    step_tokens: u32, "NUMBER" = 256,
        "Most tokens computed in one step, decodes first; a longer prompt is computed in chunks.";
    max_running: u32, "NUMBER" = 32,
        "Most sequences scheduled at once; further runs wait in the queue.";
    queue_limit: u32, "NUMBER" = 256,
        "Most runs that wait to be scheduled; a further one is rejected with `queue_full`.";
    tombstones: u32, "NUMBER" = 4096,
        "Cancels kept for submits that have not come yet. Beyond it the oldest is forgotten and the worker's low-water mark rises.";
    default_max_tokens: u32, "NUMBER" = 2048,
        "Output cap of a run that names none; never more than the model's context leaves.";
    in_flight: u32, "NUMBER" = 2,
        "Steps on the device at once: one computing, the others queued behind it.";
    tokenise_threads: u32, "NUMBER" = 2,
        "Threads that render and tokenise prompts, beside the engine.";
    queue_deadline_ms: u64, "MILLISECONDS" = 300_000,
        "Longest wait to be scheduled; then the run expires with `queue_deadline`.";
    gateway_deadline_ms: u64, "MILLISECONDS" = 600_000,
        "Longest life of a run; then it expires with `gateway_deadline`.";
    worker_deadline_ms: u64, "MILLISECONDS" = 3_600_000,
        "Longest that the worker keeps a run, whatever its gateway says; then it expires with `worker_deadline`.";
    deadline_check_percent: u32, "PERCENT" = 50,
        "A run is rejected with `deadline_unreachable` if this much of the time that its prompt takes at the fastest pace seen is more than is left to its earliest deadline; at most 100, and 0 for never.";
    client_deadline_max_ms: u64, "MILLISECONDS" = 86_400_000,
        "Largest deadline that a caller may name.";
    drain_ms: u64, "MILLISECONDS" = 10_000,
        "How long runs may go on after SIGINT or SIGTERM; what is left then is cancelled with `shutdown`, as it is at once by a second signal. Until then runs can be watched and cancelled, and new ones are refused.";
    settle_ms: u64, "MILLISECONDS" = 5_000,
        "How long, after the drain, cancelled runs may take to settle and callers to take their last bytes.";
    body_bytes_max: usize, "BYTES" = 4 << 20,
        "Largest request body.";
    body_timeout_ms: u64, "MILLISECONDS" = 30_000,
        "How long a caller may take to send its body.";
    head_bytes_max: usize, "BYTES" = 64 << 10,
        "Largest request head.";
    pipelined_bytes_max: usize, "BYTES" = 64 << 10,
        "Most bytes kept of what a caller sends on behind a request whose answer is pending (HTTP/1.1), beside one buffer of `head_bytes_max`. They are always read, so that its close is seen behind them; what is more is thrown away, and the connection is closed behind that answer, at most a second after it if bytes still come.";
    header_timeout_ms: u64, "MILLISECONDS" = 30_000,
        "How long a caller may take to send a request's head once it has begun; on a fresh connection, from its beginning. Judged at intervals of an eighth of the shorter limit, at most a second.";
    keep_alive_idle_ms: u64, "MILLISECONDS" = 75_000,
        "How long an HTTP/1.1 connection is kept for a next request. An HTTP/2 connection is kept while its peer answers PINGs.";
    connections_max: usize, "NUMBER" = 1024,
        "Most open connections; further ones wait in the kernel's backlog.";
    connection_threads: usize, "NUMBER" = Threads::default().get(),
        "Threads that serve connections in front of upstreams, each its own ones and the engine's side of their runs; at most 256. With 0, or with no upstream, all threads serve all.";
    tenant_percent: u32, "PERCENT" = 75,
        "Most of `calls_max` and of `queue_limit` that one tenant may have where the API keys name several; a further run of it is rejected with `queue_full`.";
    calls_max: usize, "NUMBER" = 1024,
        "Most live calls; a further one is rejected with `queue_full`.";
    stream_buffer_events: usize, "NUMBER" = 1024,
        "Most events kept for a caller that does not read; one more and the run is cancelled with `client_stalled`.";
    replay_events_max: usize, "NUMBER" = 4096,
        "Most events of an answer kept for requests that join its run with the same `Idempotency-Key`; a run that has said more cannot be joined.";
    replay_bytes_max: usize, "BYTES" = 1 << 20,
        "Most bytes of such events; a run that has said more cannot be joined.";
    readers_max: usize, "NUMBER" = 8,
        "Most callers that read one run at once, having joined it with the same `Idempotency-Key`.";
    send_buffer_bytes: usize, "BYTES" = 128 << 10,
        "Kernel send buffer of a connection, an eighth of it for bytes that are not sent yet. Small, so that a caller that does not read is noticed.";
    unread_max_ms: u64, "MILLISECONDS" = 60_000,
        "How long an answer of which nothing more is read is kept, from when it last moved; then its run is cancelled with `client_stalled`, within a second or an eighth of this.";
    client_lost_after_ms: u64, "MILLISECONDS" = 30_000,
        "How long a peer may answer nothing; then it has vanished and its runs are cancelled with `client_lost`, within a second or an eighth of this, in whatever phase they are. Sets TCP keepalive, the pauses between retransmissions and HTTP/2's PINGs; at least 2000.";
    keepalive_comment_ms: u64, "MILLISECONDS" = 10_000,
        "How long a stream may be silent before a comment (`: keepalive`) is sent on it; 0 for never. A client's read timeout that is longer does not fire then: a deadline does.";
    cancel_repeat_ms: u64, "MILLISECONDS" = 250,
        "First wait before an unanswered cancel is repeated; it doubles up to eight times this.";
    cancel_wait_max_ms: u64, "MILLISECONDS" = 60_000,
        "Longest `wait_ms` of a cancel request.";
    allow_half_close: bool, "BOOLEAN" = false,
        "Whether a caller that closes only its sending side is still there. Hardly any client does that, and a proxy that closes does.";
    on_disconnect: Policy, "POLICY" = Policy::of(OnDisconnect::Cancel),
        "What it means for a run that its last reader leaves, where its request does not say so itself: `cancel`, `grace(MILLISECONDS)` (it is cancelled unless somebody comes back in time), or `continue` (it goes on).";
    on_disconnect_chat: Policy, "POLICY" = Policy::default(),
        "The same for `/v1/chat/completions` alone; empty for `on_disconnect`.";
    on_disconnect_completions: Policy, "POLICY" = Policy::default(),
        "The same for `/v1/completions` alone; empty for `on_disconnect`.";
    on_disconnect_responses: Policy, "POLICY" = Policy::default(),
        "The same for `/v1/responses` alone; empty for `on_disconnect`.";
    grace_max_ms: u64, "MILLISECONDS" = 60_000,
        "Longest grace, whoever asks for it; a longer one becomes this.";
    idempotency_grace_ms: u64, "MILLISECONDS" = 5_000,
        "Grace of a run whose request has an `Idempotency-Key`, says nothing of a disconnect, and would be cancelled: SDKs close the first connection before they ask again. 0 for none.";
    listen: String, "ADDRESS:PORT" = "127.0.0.1:8100".to_owned(),
        "Where a worker listens for gateways; port 0 picks a free one, which the `listening on` line names. Whoever reaches it can use it: it asks for no password.";
    name: ProcessName, "NAME" = ProcessName::default(),
        "The process's name, the same after a restart: the other side knows by it that a newer life of the same worker or gateway answers. 1 to 64 of A-Z a-z 0-9 . _ : ~ -.";
    worker: Workers, "HOST:PORT,..." = Workers::default(),
        "Where a gateway's workers are; as a flag it may be given more than once. They need not be there yet. At least one worker or one upstream is needed.";
    upstream: Upstreams, "URL[,WORD=VALUE]..." = Upstreams::default(),
        "Engines that others wrote, which a gateway drives over HTTP (docs/upstreams.md): vLLM, SGLang, llama.cpp, anything OpenAI-compatible, another kvit. Several have blanks between them, or the flag is given more than once; in the file they may be `[[upstream]]` tables. The words are listed below.";
    affinity_bytes: usize, "BYTES" = 1024,
        "Bytes of a prompt's beginning (the instructions and the user's first words) by which one of several workers is preferred, which may have computed it before; `prompt_cache_key` stands in its place. 0 to prefer none.";
    affinity_load_percent: u32, "PERCENT" = 125,
        "Most runs of a preferred worker, in percent of its share of all runs; then the next one is preferred. At least 100.";
    heartbeat_ms: u64, "MILLISECONDS" = 50,
        "Pause between two frames of a session when there is nothing else to say.";
    suspend_after_ms: u64, "MILLISECONDS" = 250,
        "How long a gateway may be silent before its runs are no longer scheduled; they keep their blocks. A worker that is silent for as long gets no new runs. At least twice `heartbeat_ms`.";
    lease_ms: u64, "MILLISECONDS" = 10_000,
        "How long after a gateway's last sign of life its runs end with `orphaned`. The longer of this and the gateway's own counts. Above `suspend_after_ms`.";
    worker_refused_ms: u64, "MILLISECONDS" = 1_000,
        "How long a worker's host must have refused new connections, at least twice and with no other answer between, before its callers are told `worker_lost`, except where their runs may go to another worker. That ends no run at the worker: its next life, or the lease, does. 0 for never: callers wait for those.";
    lease_max_ms: u64, "MILLISECONDS" = 300_000,
        "Longest lease that a gateway can ask a worker for; a worker's own `lease_ms` may be longer.";
    resend_after_ms: u64, "MILLISECONDS" = 200,
        "How long a message of a session may be unacknowledged before it is sent again.";
    session_window: u64, "NUMBER" = 512,
        "Messages of a session on their way at once, each way.";
    session_early_max: usize, "NUMBER" = 64,
        "Messages of a session that came before their turn and are kept until then, each way; further ones come again.";
    session_outbox_max: usize, "NUMBER" = 8192,
        "Messages kept for a gateway that does not acknowledge them; with more, its runs are suspended until it does.";
    session_gateways_max: usize, "NUMBER" = 64,
        "Gateways that a worker serves at once, those included whose lease is over and that are not forgotten yet. Each may have two sessions for a while, the newer of which counts.";
    session_tombstones_max: usize, "NUMBER" = 1024,
        "Cancels for runs that have not come, kept for each gateway.";
    tombstone_keep_ms: u64, "MILLISECONDS" = 900_000,
        "How long such a cancel is kept. Longer than a run may wait at a gateway: above `queue_deadline_ms` there.";
    ask_every_ms: u64, "MILLISECONDS" = 5_000,
        "How often a worker asks a gateway which runs it claims.";
    redispatch_max: u32, "NUMBER" = 1,
        "How often a run whose worker is lost, or stops before it began with it, goes to another; 0 for never. Never once anything of it was delivered. One that its worker could not even be asked for goes to another eight times beside that.";
    watches_max: usize, "NUMBER" = 256,
        "Callers of gRPC's `Watch` at once.";
    hello_timeout_ms: u64, "MILLISECONDS" = 5_000,
        "How long a gateway may take to say who it is on a new session, and a worker to answer it.";
    store: StorePlace, "URL" = StorePlace::default(),
        "Where runs are kept: an SQLite file (a path, or sqlite:PATH), a PostgreSQL database (postgres://...), which several gateways can share, or `none`: then no run outlives the process and none can go on without its caller. Without it: NAME.db in $XDG_STATE_HOME/kvit.";
    store_key_file: ModelPath, "FILE" = ModelPath::default(),
        "File with the key that kept requests and answers are encrypted with: 32 bytes, as they are, in hexadecimal or in base64. Without it they are not encrypted.";
    store_patience_ms: u64, "MILLISECONDS" = 100,
        "How long an interactive run waits for the run store, before it begins and before its end is told; then it goes on without. A background run is refused while it is not there.";
    store_poll_ms: u64, "MILLISECONDS" = 1000,
        "How often the run store is looked at for what its messages may have missed.";
    store_notify: bool, "BOOLEAN" = true,
        "Whether PostgreSQL tells gateways of each other's writes (LISTEN and NOTIFY). Without it they find them when they look, every `store_poll_ms`.";
    store_lease_ms: u64, "MILLISECONDS" = 15_000,
        "After so long without a sign of life in the run store a gateway is over and others take over its runs. Above `lease_ms`.";
    store_queue_max: usize, "NUMBER" = 65_536,
        "Writes that may wait for the run store; with more, no run is taken on.";
    background_deadline_ms: u64, "MILLISECONDS" = 3_600_000,
        "Deadline of a background run from its acceptance on, waiting and restarts included.";
    retention_s: u64, "SECONDS" = 30 * 24 * 3600,
        "How long a run is kept from its acceptance on, once it has ended, where the request does not say.";
    retention_max_s: u64, "SECONDS" = 365 * 24 * 3600,
        "Longest retention that a request may ask for.";
    rejoin_s: u64, "SECONDS" = 600,
        "How long the answer of a response with `store: false` is kept beyond `gateway_deadline_ms` if it has an `Idempotency-Key`, for whoever asks again with the key; at most `retention_s`.";
    effects_max: usize, "NUMBER" = 100,
        "Most effects noted for a run.";
    effect_text_bytes_max: usize, "BYTES" = 4096,
        "Longest description and longest detail of an effect, and longest arguments of a declared tool.";
    effect_wait_ms: u64, "MILLISECONDS" = 5_000,
        "How long an effect in flight is waited for once its run has ended without completing; then it is called `unknown`. A cancel by name waits for its own `wait_ms`.";
    tool_urls: ToolUrls, "URL,..." = ToolUrls::default(),
        "What runs may declare as tools for kvit to call: http and https URLs that begin with one of these, at the end of a host or of a path's part. Without it: nothing.";
    tools_max: usize, "NUMBER" = 8,
        "Most tools that a run may declare.";
    tool_timeout_ms: u64, "MILLISECONDS" = 30_000,
        "Longest `timeout_ms` of a declared tool, and what one without has.";
    tool_tries_max: u32, "NUMBER" = 4,
        "How often a declared tool that is safe to repeat is sent before it is called `unknown`.";
    tool_answer_bytes_max: usize, "BYTES" = 64 << 10,
        "Most bytes of a declared tool's answer that are read.";
    webhook_timeout_ms: u64, "MILLISECONDS" = 15_000,
        "How long one try of a webhook may take.";
    webhook_tries_max: u32, "NUMBER" = 10,
        "How often a webhook is tried before it is given up.";
    webhook_retry_ms: u64, "MILLISECONDS" = 5_000,
        "First wait before a webhook is tried again; each further one is four times as long.";
    webhook_retry_max_ms: u64, "MILLISECONDS" = 21_600_000,
        "Longest wait before a webhook is tried again.";
    sends_max: usize, "NUMBER" = 16,
        "Most webhooks and runs' tools that are being sent at once.";
    kv_moments_keep_ms: u64, "MILLISECONDS" = 300_000,
        "How long it is kept how every block stood, for the console's scrubber (`/v1/kv/moments`); 0 for the newest moment alone, taken when somebody asks.";
    kv_moments_every_ms: u64, "MILLISECONDS" = 1000,
        "How often a worker is asked whether its blocks stand otherwise than before; only if they do is a further moment kept. Less often where the answer takes longer than a fiftieth of this.";
    kv_moments_bytes_max: usize, "BYTES" = 32 << 20,
        "Most bytes of the moments kept of one worker; beyond it every second of the older half goes.";
    journal_records: usize, "NUMBER" = 65_536,
        "Records kept in the journal's ring; the oldest go first.";
    journal_runs: usize, "NUMBER" = 10_000,
        "Ended runs that can still be asked for; beyond it the one that settled first is evicted from memory.";
    journal_evicted: usize, "NUMBER" = 32_768,
        "Ids of evicted runs that are kept, so that whoever asks for one is told that it was evicted and not that it never was.";
    journal_dir: ModelPath, "DIR" = ModelPath::default(),
        "Folder that the journal is written to, too, one for each process: what `--journal` of `kvit trace` and `kvit runs` reads, also when the process has gone (docs/journal.md). Without it: none.";
    journal_file_bytes: u64, "BYTES" = 64 << 20,
        "Size of a file of the journal, from which on the next is begun.";
    journal_files: usize, "NUMBER" = 8,
        "Most files of the journal; the oldest is removed before one more is begun.";
    alert_window_s: u64, "SECONDS" = 300,
        "Length of the window that waste and alerts are reckoned over.";
    alert_waste_percent: Amount, "PERCENT" = Amount::of(1),
        "`KvitWaste` fires if more than this part of the tokens, or of the prompt positions, was computed after disconnects in each of three windows in a row.";
    alert_cancel_ms: u64, "MILLISECONDS" = 50,
        "`KvitSlowCancel` fires if the 95th percentile from a disconnect to the cancel at the engine is above two scheduler cycles and above this.";
    alert_unacknowledged_ms: u64, "MILLISECONDS" = 5_000,
        "`KvitUnacknowledgedCancels` fires if a cancel is not confirmed for longer than this. Below `lease_ms`, whose end makes the cancels of a lost worker moot.";
    alert_orphaned_ms: u64, "MILLISECONDS" = 30_000,
        "`KvitOrphansNotReaped` fires if attempts that no gateway claims are not ended for longer than this.";
    nvml: ModelPath, "FILE" = ModelPath::default(),
        "The management library of NVIDIA's driver, whose word on this machine's GPUs stands in the metrics. One that is named has to be there.";
    price_device_hour: Amount, "MONEY" = Amount::of(0),
        "What an hour of the device costs, for the cost of an answer; 0 if it is not to be said.";
    price_million_tokens: Amount, "MONEY" = Amount::of(0),
        "What a million tokens cost, prompts included, where the device is in another process; 0 if it is not to be said.";
    otlp_endpoint: Collector, "URL" = Collector::default(),
        "The collector that runs' spans are exported to over OTLP (docs/otlp.md), or `none`: http or https, with or without `/v1/traces` at its end. Without it, what OTEL_EXPORTER_OTLP_ENDPOINT says.";
    otlp_protocol: OtlpProtocol, "PROTOCOL" = OtlpProtocol::Http,
        "How the collector is spoken to: `http/protobuf` (usually at port 4318) or `grpc` (4317, http only). Without it, what OTEL_EXPORTER_OTLP_PROTOCOL says.";
    otlp_headers_file: ModelPath, "FILE" = ModelPath::default(),
        "File with headers for the collector, one a line (`authorization: Bearer ...`). Without it, what OTEL_EXPORTER_OTLP_HEADERS says.";
    otlp_sample: Sample, "SAMPLE" = Sample::Parent(1.0),
        "Which runs are exported: `parent` (all, but for those whose `traceparent` says that their caller does not record the trace), a number from 0 to 1 (the same, and of the runs that came without a trace only this part), or `always` (all).";
    otlp_queue_max: usize, "NUMBER" = 2048,
        "Most runs that are over and wait to be exported; the spans of a further one are dropped and counted.";
    otlp_batch_max: usize, "NUMBER" = 512,
        "Spans that are sent at once, about: a run's are sent together.";
    otlp_every_ms: u64, "MILLISECONDS" = 1_000,
        "How long is waited for more spans before they are sent.";
    otlp_timeout_ms: u64, "MILLISECONDS" = 10_000,
        "How long one sending of spans may take, and how long is waited for it at the end of the process.";
    otlp_tries_max: u32, "NUMBER" = 4,
        "How often spans are sent that a collector cannot take now; then they are counted as failed.";
    otlp_retry_ms: u64, "MILLISECONDS" = 500,
        "First wait before they are sent again; each further one is twice as long.";
    log: LogLevel, "LEVEL" = LogLevel::Info,
        "Least severe level that is logged on stderr: off, error, warn, info, debug or trace.";
}
