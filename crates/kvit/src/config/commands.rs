//! Which command takes which option. The file and the environment may hold all of them, for one may serve several processes; a flag that
//! its command does not read is refused.
//!
//! Invariant: every name here is an option, and stands in one list; an option in no list is read by all three.

use clap::error::ErrorKind;
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::ServeFlags;
use super::upstreams::Upstreams;
use super::value::Workers;

/// A command that takes options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reader {
    Serve,
    Worker,
    Gateway,
}

use Reader::{Gateway, Serve, Worker};

/// `kvit serve`, as a parameter of [`Flags`].
pub const SERVE: u8 = Serve as u8;
/// `kvit worker`.
pub const WORKER: u8 = Worker as u8;
/// `kvit gateway`.
pub const GATEWAY: u8 = Gateway as u8;

/// Options that not all of them read.
const LISTS: [(&[Reader], &[&str]); 5] = [
    (
        // Who has callers.
        &[Serve, Gateway],
        &[
            "host",
            "port",
            "queue_deadline_ms",
            "gateway_deadline_ms",
            "client_deadline_max_ms",
            "body_bytes_max",
            "body_timeout_ms",
            "head_bytes_max",
            "pipelined_bytes_max",
            "header_timeout_ms",
            "keep_alive_idle_ms",
            "calls_max",
            "tenant_percent",
            "stream_buffer_events",
            "replay_events_max",
            "replay_bytes_max",
            "readers_max",
            "send_buffer_bytes",
            "unread_max_ms",
            "client_lost_after_ms",
            "keepalive_comment_ms",
            "cancel_repeat_ms",
            "cancel_wait_max_ms",
            "allow_half_close",
            "on_disconnect",
            "on_disconnect_chat",
            "on_disconnect_completions",
            "on_disconnect_responses",
            "grace_max_ms",
            "idempotency_grace_ms",
            "watches_max",
            "store",
            "store_key_file",
            "store_patience_ms",
            "store_poll_ms",
            "store_notify",
            "store_lease_ms",
            "store_queue_max",
            "background_deadline_ms",
            "retention_s",
            "retention_max_s",
            "rejoin_s",
            "effects_max",
            "effect_text_bytes_max",
            "effect_wait_ms",
            "tool_urls",
            "tools_max",
            "tool_timeout_ms",
            "tool_tries_max",
            "tool_answer_bytes_max",
            "webhook_timeout_ms",
            "webhook_tries_max",
            "webhook_retry_ms",
            "webhook_retry_max_ms",
            "sends_max",
            "kv_moments_keep_ms",
            "kv_moments_every_ms",
            "kv_moments_bytes_max",
            "alert_window_s",
            "alert_waste_percent",
            "alert_cancel_ms",
            "alert_unacknowledged_ms",
            "alert_orphaned_ms",
            "nvml",
            "price_device_hour",
            "price_million_tokens",
            "otlp_endpoint",
            "otlp_protocol",
            "otlp_headers_file",
            "otlp_sample",
            "otlp_queue_max",
            "otlp_batch_max",
            "otlp_every_ms",
            "otlp_timeout_ms",
            "otlp_tries_max",
            "otlp_retry_ms",
        ],
    ),
    (
        // Who computes.
        &[Serve, Worker],
        &[
            "model",
            "threads",
            "isa",
            "kv_blocks",
            "block_tokens",
            "step_tokens",
            "max_running",
            "tombstones",
            "default_max_tokens",
            "in_flight",
            "tokenise_threads",
            "worker_deadline_ms",
            "deadline_check_percent",
        ],
    ),
    (
        // Who has sessions.
        &[Worker, Gateway],
        &[
            "name",
            "heartbeat_ms",
            "suspend_after_ms",
            "lease_ms",
            "resend_after_ms",
            "session_window",
            "session_early_max",
            "hello_timeout_ms",
        ],
    ),
    (
        &[Worker],
        &[
            "listen",
            "lease_max_ms",
            "tombstone_keep_ms",
            "session_outbox_max",
            "session_gateways_max",
            "session_tombstones_max",
            "ask_every_ms",
        ],
    ),
    (
        &[Gateway],
        &["worker", "upstream", "connection_threads", "affinity_bytes", "affinity_load_percent", "worker_refused_ms", "redispatch_max"],
    ),
];

/// The commands that read an option.
fn readers(key: &str) -> &'static [Reader] {
    LISTS.iter().find(|(_, keys)| keys.contains(&key)).map_or(&[Serve, Worker, Gateway], |(readers, _)| readers)
}

impl Reader {
    const fn name(self) -> &'static str {
        match self {
            Serve => "serve",
            Worker => "worker",
            Gateway => "gateway",
        }
    }
}

/// The commands that read an option, for the reference.
pub fn of(key: &str) -> Vec<&'static str> {
    readers(key).iter().map(|reader| reader.name()).collect()
}

/// The flags of one command.
#[derive(Clone, Debug, Default)]
pub struct Flags<const COMMAND: u8>(pub ServeFlags);

impl<const COMMAND: u8> Flags<COMMAND> {
    const READER: Reader = match COMMAND {
        WORKER => Worker,
        GATEWAY => Gateway,
        _ => Serve,
    };

    fn shown(command: Command) -> Command {
        let command = command.mut_args(|arg| {
            let foreign = !readers(arg.get_id().as_str()).contains(&Self::READER);
            arg.hide(foreign)
        });
        command.mut_arg("worker", |arg| arg.action(ArgAction::Append)).mut_arg("upstream", |arg| arg.action(ArgAction::Append))
    }
}

impl<const COMMAND: u8> FromArgMatches for Flags<COMMAND> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = ServeFlags::from_arg_matches(matches)?;
        // The flags that may stand more than once.
        flags.worker = matches.get_many::<Workers>("worker").map(|all| all.cloned().collect());
        flags.upstream = matches.get_many::<Upstreams>("upstream").map(|all| all.cloned().collect());
        match flags.keys().into_iter().find(|key| !readers(key).contains(&Self::READER)) {
            None => Ok(Flags(flags)),
            Some(key) => {
                let (flag, name) = (key.replace('_', "-"), Self::READER.name());
                Err(clap::Error::raw(ErrorKind::UnknownArgument, format!("--{flag} is no option of `kvit {name}`\n")))
            }
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const COMMAND: u8> Args for Flags<COMMAND> {
    fn augment_args(command: Command) -> Command {
        Self::shown(ServeFlags::augment_args(command))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::shown(ServeFlags::augment_args_for_update(command))
    }
}

#[cfg(test)]
mod tests {
    use super::super::OPTIONS;
    use super::*;

    #[test]
    fn every_name_is_an_option_and_stands_in_one_list() {
        let mut all: Vec<&str> = LISTS.iter().flat_map(|(_, keys)| keys.iter().copied()).collect();
        for key in &all {
            assert!(OPTIONS.iter().any(|o| o.key == *key), "{key}");
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn a_flag_of_another_command_is_refused_by_name() {
        fn parse<const COMMAND: u8>(args: &[&str]) -> Result<Flags<COMMAND>, clap::Error> {
            Flags::from_arg_matches(&Flags::<COMMAND>::augment_args(Command::new("x")).get_matches_from(args))
        }
        assert_eq!(parse::<WORKER>(&["x", "--lease-ms", "9000"]).unwrap().0.lease_ms, Some(9000));
        assert!(parse::<WORKER>(&["x", "--port", "1"]).unwrap_err().to_string().contains("--port is no option of `kvit worker`"));
        assert!(parse::<GATEWAY>(&["x", "--kv-blocks", "1"]).unwrap_err().to_string().contains("no option of `kvit gateway`"));
        let several = parse::<GATEWAY>(&["x", "--worker", "a:1,b:2", "--worker", "c:3"]).unwrap().0.worker.unwrap();
        assert_eq!(several.addresses(), ["a:1", "b:2", "c:3"]);
    }
}
