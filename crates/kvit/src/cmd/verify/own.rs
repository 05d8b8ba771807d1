//! `kvit verify --self`: kvit's own stacks, judged from outside by the rules that others are judged by.
//!
//! Two stacks, one after the other: `kvit serve`, and `kvit gateway` with a `kvit worker`. Each is made of child processes of this very binary
//! on free ports, with a tap in front of each; nothing of them is known but what they tell anybody.
//!
//! Invariant: the servers are ended by their process ids, whichever way the command ends; exit code 0 says that each stack passed, and that its
//! servers drained and ended well.
// contract: C-29

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::anyhow;
use verify::judge::cell::{Cell, Phase, Trigger};
use verify::judge::cpu::Processes;
use verify::judge::hop::Named;
use verify::judge::result::Report;
use verify::judge::settings::Settings;
use verify::judge::stack::{Stack, Unjudged};
use verify::judge::tap::{Options, Tap};

use super::{VerifyArgs, cells, files, older, runtime, show, target_at, told};
use crate::client;
use crate::cmd::child::{Brood, GATEWAY, Log, Program, SERVE, Server, WORKER};
use crate::failure::Failure;
use crate::model_file::{self, Cache};
use crate::out;

/// What whoever runs the model is told beside it: few places, so that a queue forms soon.
const OPTIONS: &[&str] = &["--max-running", "4"];
/// How often a gateway is asked whether it has met its worker, and the pause between.
const READY_LOOKS: u32 = 1200;
const READY_PAUSE: Duration = Duration::from_millis(50);

/// A stack of kvit's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Own {
    /// One process.
    Serve,
    /// Two.
    Gateway,
}

/// One that runs: its servers from the caller on, each with the tap in front of it.
struct Running {
    servers: Vec<(&'static str, Server, Tap)>,
}

/// Judges each of them.
///
/// # Errors
/// No model, a server that does not start or end, a wrong option, or a stack that failed.
pub fn run(args: &VerifyArgs, settings: &Settings, cache: Option<PathBuf>) -> Result<(), Failure> {
    let mut cells = cells(args, settings);
    if args.cell.is_empty() && !args.full {
        // What kvit has and few have.
        cells.extend([Trigger::GrpcCancel, Trigger::GrpcDeadline].map(|trigger| Cell::new(Phase::EarlyDecode, trigger)));
    }
    let model = model_file::resolve(args.model.as_deref().map(Path::new), &Cache::locate(cache)?)?;
    let both = [Own::Serve, Own::Gateway];
    let read = |own: Own| args.compare.as_deref().map(|file| older(&own.beside(file))).transpose();
    let old = both.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let (mut failed, mut unjudged) = (Vec::new(), Vec::new());
    let brood = Brood::guarded("verify")?;
    for (own, old) in both.into_iter().zip(old) {
        let running = own.start(&brood, &model)?;
        out::line(&format!("{}: {}", own.name(), running.told()))?;
        let report =
            runtime()?.block_on(running.judge(settings, &cells)).map_err(|why| Failure::Usage(format!("{}: {why}", own.name())))?;
        let ended_well = running.drain()?;
        files(args, &report, &|file| own.beside(file))?;
        show(&report, old.as_ref())?;
        out::line("")?;
        match report.exit_code() {
            0 => {}
            2 => unjudged.push(own.name()),
            _ => failed.push(format!("{}: {} failed", own.name(), report.count("FAIL"))),
        }
        if !ended_well {
            failed.push(format!("{}: a server did not end well", own.name()));
        }
    }
    match (&*failed, &*unjudged) {
        ([], []) => Ok(()),
        ([], none) => Err(Failure::Usage(format!("{}: nothing could be judged; what is missing stands above", none.join(", ")))),
        _ => Err(Failure::Other(anyhow!("{}", failed.join("; ")))),
    }
}

impl Own {
    /// What it is called in messages.
    const fn name(self) -> &'static str {
        match self {
            Own::Serve => "kvit serve",
            Own::Gateway => "kvit gateway and worker",
        }
    }

    /// The file of this stack: `now.json` is `now.serve.json`.
    fn beside(self, file: &Path) -> PathBuf {
        let word = match self {
            Own::Serve => "serve",
            Own::Gateway => "gateway",
        };
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let name = match file.extension() {
            Some(extension) => format!("{stem}.{word}.{}", extension.to_string_lossy()),
            None => format!("{stem}.{word}"),
        };
        file.with_file_name(name)
    }

    /// Starts it, from the model on.
    fn start(self, brood: &Brood, model: &Path) -> Result<Running, Failure> {
        let start = |program: Program, name: &'static str, arguments: &[&str]| -> Result<(&'static str, Server, Tap), Failure> {
            let server = Server::start_in(brood, program, Log::Kept, |command| {
                command.args(arguments);
                if program.words[0] != "gateway" {
                    command.args(OPTIONS).arg("--model").arg(model);
                }
                // It is judged as it is by its defaults.
                for (variable, _) in std::env::vars_os().filter(|(variable, _)| variable.to_string_lossy().starts_with("KVIT_")) {
                    command.env_remove(variable);
                }
            })?;
            let options = Options { name: name.to_owned(), ..Options::default() };
            let tap = Tap::start("127.0.0.1:0", &format!("127.0.0.1:{}", server.port), options);
            Ok((name, server, tap.map_err(|why| Failure::Other(why.into()))?))
        };
        let servers = match self {
            Own::Serve => vec![start(SERVE, "kvit", &[])?],
            Own::Gateway => {
                let worker = start(WORKER, "worker", &[])?;
                let gateway = start(GATEWAY, "gateway", &["--worker", &worker.2.listening().to_string()])?;
                ready(&gateway.1)?;
                vec![gateway, worker]
            }
        };
        Ok(Running { servers })
    }
}

impl Running {
    fn told(&self) -> String {
        let each = |(name, server, tap): &(&str, Server, Tap)| {
            format!("{name} is process {} on {}, its tap on {}", server.pid, server.address, tap.listening())
        };
        self.servers.iter().map(each).collect::<Vec<_>>().join("; ")
    }

    async fn judge(&self, settings: &Settings, cells: &[Cell]) -> Result<Report, String> {
        let (_, front, tap) = self.servers.first().ok_or("nothing runs")?;
        let at = |url: &str| target_at(url).map_err(|why| why.to_string());
        let (target, engine) = (at(&format!("http://{}", tap.listening()))?, at(&front.address)?);
        let met = Stack::meet(target, None, Some(engine.clone()), None, true).await;
        let mut stack = met.map_err(|why: Unjudged| why.to_string())?;
        // All of them are this very binary.
        let hop = |(name, _, tap): &(&str, Server, Tap)| {
            format!("{name},kind=kvit,version={},tap={}", env!("CARGO_PKG_VERSION"), tap.reporting()).parse::<Named>()
        };
        let hops = self.servers.iter().map(hop).collect::<Result<Vec<_>, String>>()?;
        stack.name_hops(&hops, Some(&engine)).await?;
        let pids: Vec<u32> = self.servers.iter().map(|(_, server, _)| server.pid).collect();
        stack.processes = Some(Processes::of(&pids)?);
        verify::judge::run::run(stack, settings, cells, told).await.map_err(|why| why.to_string())
    }

    /// Ends its servers, the first hop first: whether each drained and ended well. The taps end behind them.
    fn drain(self) -> Result<bool, Failure> {
        let mut well = true;
        let mut taps = Vec::new();
        for (_, server, tap) in self.servers {
            taps.push(tap);
            well &= server.drain()?;
        }
        Ok(well)
    }
}

/// Waits until it can take a request: a gateway listens before it has met its worker.
fn ready(server: &Server) -> Result<(), Failure> {
    for _ in 0..READY_LOOKS {
        if client::get(&server.address, "/health/ready").is_ok() {
            return Ok(());
        }
        std::thread::sleep(READY_PAUSE);
    }
    Err(Failure::Other(anyhow!("{} was not ready within {:?}", server.address, READY_PAUSE * READY_LOOKS)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeFlags;

    #[test]
    fn each_stack_has_files_of_its_own() {
        assert_eq!(Own::Serve.beside(Path::new("/a/now.json")), Path::new("/a/now.serve.json"));
        assert_eq!(Own::Gateway.beside(Path::new("now")), Path::new("now.gateway"));
    }

    #[test]
    fn the_servers_options_are_options_of_theirs() {
        let mut flags = ServeFlags::default();
        for two in OPTIONS.chunks(2) {
            assert_eq!(flags.set(&two[0].trim_start_matches("--").replace('-', "_"), two[1]), Some(Ok(())), "{two:?}");
        }
        flags.fill().check().expect("they go together");
    }
}
