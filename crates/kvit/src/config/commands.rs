//! Which command takes which option. The file and the environment may hold all of them, for one may serve several processes; a flag that
//! its command does not read is refused.
//!
//! Invariant: every name here is an option, and stands in one list.

use clap::error::ErrorKind;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::ServeFlags;

/// Only `kvit serve` has callers.
const SERVE: &[&str] = &[
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
    "stream_buffer_events",
    "replay_events_max",
    "readers_max",
    "send_buffer_bytes",
    "unread_max_ms",
    "client_lost_after_ms",
    "keepalive_comment_ms",
    "cancel_repeat_ms",
    "cancel_wait_max_ms",
    "allow_half_close",
];
/// Only `kvit worker` has sessions.
const WORKER: &[&str] = &[
    "listen",
    "name",
    "heartbeat_ms",
    "suspend_after_ms",
    "lease_ms",
    "resend_after_ms",
    "session_window",
    "session_outbox_max",
    "session_gateways_max",
    "session_tombstones_max",
    "ask_every_ms",
    "hello_timeout_ms",
];

/// The commands that read an option, for the reference.
pub fn of(key: &str) -> &'static str {
    match (SERVE.contains(&key), WORKER.contains(&key)) {
        (true, _) => "serve",
        (_, true) => "worker",
        _ => "serve, worker",
    }
}

/// The flags of one command: of `kvit worker`, or of `kvit serve`.
#[derive(Clone, Debug, Default)]
pub struct Flags<const WORKER_COMMAND: bool>(pub ServeFlags);

impl<const WORKER_COMMAND: bool> Flags<WORKER_COMMAND> {
    const NAME: &'static str = if WORKER_COMMAND { "worker" } else { "serve" };
    const FOREIGN: &'static [&'static str] = if WORKER_COMMAND { SERVE } else { WORKER };

    fn shown(command: Command) -> Command {
        command.mut_args(|arg| {
            let foreign = Self::FOREIGN.contains(&arg.get_id().as_str());
            arg.hide(foreign)
        })
    }
}

impl<const WORKER_COMMAND: bool> FromArgMatches for Flags<WORKER_COMMAND> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = ServeFlags::from_arg_matches(matches)?;
        match flags.keys().into_iter().find(|key| Self::FOREIGN.contains(key)) {
            None => Ok(Flags(flags)),
            Some(key) => {
                let (flag, name) = (key.replace('_', "-"), Self::NAME);
                Err(clap::Error::raw(ErrorKind::UnknownArgument, format!("--{flag} is no option of `kvit {name}`\n")))
            }
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const WORKER_COMMAND: bool> Args for Flags<WORKER_COMMAND> {
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
        for key in SERVE.iter().chain(WORKER) {
            assert!(OPTIONS.iter().any(|o| o.key == *key), "{key}");
        }
        assert!(SERVE.iter().all(|key| !WORKER.contains(key)));
    }

    #[test]
    fn a_flag_of_another_command_is_refused_by_name() {
        let parse = |args: &[&str]| Flags::<true>::from_arg_matches(&Flags::<true>::augment_args(Command::new("x")).get_matches_from(args));
        assert_eq!(parse(&["x", "--lease-ms", "9000"]).unwrap().0.lease_ms, Some(9000));
        assert!(parse(&["x", "--port", "1"]).unwrap_err().to_string().contains("--port is no option of `kvit worker`"));
    }
}
