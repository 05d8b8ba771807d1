//! A gateway of the test's own at a real worker: the pure side over a real connection. It speaks and hears only while it is pumped, so what a
//! test says in one go arrives in one go.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lifecycle::message::{Down, Prompt, Submit, Up};
use lifecycle::params::{Params, Sampling};
use lifecycle::session::{GatewayEffect, GatewaySide, SessionConfig};
use lifecycle::{AttemptId, Cause, Incarnation, RunId, RunKey, Tenant, Time};
use protocol::worker_v1 as wire;
use protocol::{FromWorker, Opening, VERSIONS};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;

use crate::server::PATIENCE;
use crate::worker::{Process, client};

pub fn attempt(run: &str) -> AttemptId {
    AttemptId { key: RunKey { tenant: Tenant::default(), run: RunId::parse(run).expect("an id") }, attempt: 1 }
}

/// What a gateway was told of a run.
#[derive(Clone, Default, Debug)]
pub struct Told {
    pub text: String,
    pub tokens: usize,
    pub acknowledged: Vec<Option<Cause>>,
    pub ended: Vec<Cause>,
    pub released: usize,
}

pub struct Raw {
    rt: Runtime,
    side: GatewaySide,
    since: Instant,
    say: mpsc::UnboundedSender<wire::Down>,
    stream: Streaming<wire::Up>,
    pub told: BTreeMap<String, Told>,
}

impl Raw {
    pub fn connect(worker: &Process, name: &str) -> Raw {
        let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let mut side = GatewaySide::new(name.into(), Incarnation(1), SessionConfig::default());
        let (say, down) = mpsc::unbounded_channel();
        let hello = side.hello(Time::ZERO);
        say.send(wire::Down::from(&Opening { versions: VERSIONS.to_vec(), hello })).expect("its stream is there");
        let (welcome, stream) = rt.block_on(async {
            let stream = client(&worker.address).await.session(UnboundedReceiverStream::new(down)).await;
            let mut stream = stream.expect("it is taken").into_inner();
            (stream.message().await.expect("no error").expect("a welcome"), stream)
        });
        let Ok(FromWorker::Welcome(opened)) = FromWorker::try_from(welcome) else { panic!("the first message is a welcome") };
        let effects = side.welcome(&opened.welcome, Time::ZERO);
        let mut raw = Raw { rt, side, since: Instant::now(), say, stream, told: BTreeMap::new() };
        raw.carry_out(effects);
        raw
    }

    fn now(&self) -> Time {
        Time::ZERO.after(self.since.elapsed())
    }

    fn carry_out(&mut self, effects: Vec<GatewayEffect>) {
        for effect in effects {
            match effect {
                GatewayEffect::Send(frame) => drop(self.say.send(protocol::down(&frame).expect("it can be said"))),
                GatewayEffect::Deliver(message) => self.take(message),
                GatewayEffect::Lost { why, .. } => panic!("lost: {why}"),
                _ => {}
            }
        }
    }

    fn take(&mut self, message: Up) {
        let of = |id: &AttemptId| id.key.run.as_str().to_owned();
        match message {
            Up::Step { deltas, .. } => {
                for delta in deltas {
                    let told = self.told.entry(of(&delta.attempt)).or_default();
                    told.text.push_str(&delta.text);
                    told.tokens += delta.tokens.len();
                }
            }
            Up::CancelAcknowledged { attempt, won } => self.told.entry(of(&attempt)).or_default().acknowledged.push(won),
            Up::Ended { attempt, outcome, .. } => self.told.entry(of(&attempt)).or_default().ended.push(outcome.cause),
            Up::Released { attempt, .. } => self.told.entry(of(&attempt)).or_default().released += 1,
            _ => {}
        }
    }

    pub fn send(&mut self, message: Down) {
        let (sent, effects) = self.side.send(message, self.now());
        assert!(sent, "a worker is known");
        self.carry_out(effects);
    }

    pub fn submit(&mut self, run: &str, number: u64, content: &str, max_tokens: u32) {
        let params = Params {
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens: Some(max_tokens),
            ignore_eos: true,
            ..Params::default()
        };
        let worker = self.side.worker().expect("it is known");
        let turn = lifecycle::message::ChatMessage { role: "user".into(), content: content.into() };
        let prompt = Prompt::Chat(vec![turn]);
        self.send(Down::Submit(Box::new(Submit {
            attempt: attempt(run),
            worker,
            number,
            model: "".into(),
            prompt,
            params,
            deadlines: Vec::new(),
        })));
    }

    pub fn cancel(&mut self, run: &str, number: u64, cause: Cause) {
        self.send(Down::Cancel { attempt: attempt(run), cause, number, observed_ago: Duration::ZERO });
    }

    /// Hears what has come within a moment, and says what is due.
    pub fn pump(&mut self) {
        let until = Instant::now() + Duration::from_millis(5);
        while Instant::now() < until {
            let heard = self.rt.block_on(async { tokio::time::timeout(Duration::from_millis(1), self.stream.message()).await });
            if let Ok(Ok(Some(message))) = heard {
                let Ok(FromWorker::Frame(frame)) = FromWorker::try_from(message) else { panic!("what comes later is a frame") };
                let effects = self.side.hear(frame, self.now());
                self.carry_out(effects);
            }
        }
        let effects = self.side.tick(self.now());
        self.carry_out(effects);
    }

    pub fn of(&self, run: &str) -> Told {
        self.told.get(run).cloned().unwrap_or_default()
    }

    pub fn until(&mut self, what: &str, holds: impl Fn(&Raw) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < PATIENCE, "it never came to: {what}; {:?}", self.told);
            self.pump();
        }
    }

    pub fn until_released(&mut self, run: &str) -> Told {
        self.until(&format!("{run} is released"), |raw| raw.of(run).released > 0);
        self.of(run)
    }
}
