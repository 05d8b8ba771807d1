//! A gateway that a test plays: the real pure side over a real connection. It speaks and hears only while it is pumped, so a test that does
//! not pump it has stopped it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lifecycle::message::{Down, Prompt, Submit, Up};
use lifecycle::params::Params;
use lifecycle::session::{Frame, GatewayEffect, GatewaySide, SessionConfig};
use lifecycle::{AttemptId, Cause, Incarnation};
use observe::Clock;
use protocol::worker_v1 as wire;
use protocol::worker_v1::worker_client::WorkerClient;
use protocol::{FromWorker, Opened, Opening, VERSIONS};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::host::{Host, PATIENCE};
use crate::harness::{Seen, id, see};

/// What a gateway says to a question which attempts it claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answers {
    Nothing,
    Claim,
    Disclaim,
}

/// Drops, doubles and swaps one frame in ten each.
pub struct Shim {
    dice: u64,
    kept: Vec<wire::Down>,
    kept_up: Vec<Frame<Up>>,
    pub meddled: u64,
}

impl Shim {
    pub fn new(seed: u64) -> Shim {
        Shim { dice: seed | 1, kept: Vec::new(), kept_up: Vec::new(), meddled: 0 }
    }

    fn roll(&mut self) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) % 100
    }

    fn pass<T: Clone>(&mut self, frame: T, kept: impl Fn(&mut Shim) -> &mut Vec<T>) -> Vec<T> {
        let roll = self.roll();
        self.meddled += u64::from(roll < 30);
        match roll {
            0..10 => Vec::new(),
            10..20 => vec![frame.clone(), frame],
            20..30 => {
                kept(self).push(frame);
                Vec::new()
            }
            // What was kept back comes behind a later one.
            _ => std::iter::once(frame).chain(std::mem::take(kept(self))).collect(),
        }
    }
}

/// A connection's two ends.
struct Conn {
    out: mpsc::UnboundedSender<wire::Down>,
    up: mpsc::UnboundedReceiver<Result<wire::Up, Status>>,
    /// Of one that is not read: kept, so that it stays open.
    _unread: Option<Streaming<wire::Up>>,
}

pub struct Gateway {
    rt: Arc<Runtime>,
    pub addr: SocketAddr,
    clock: Clock,
    side: GatewaySide,
    conn: Option<Conn>,
    pub opened: Option<Opened>,
    pub seen: HashMap<String, Seen>,
    pub asked: Vec<AttemptId>,
    pub answers: Answers,
    pub drainings: u32,
    pub lost: Vec<&'static str>,
    pub shim: Option<Shim>,
    /// Whether what the worker says is read from the connection.
    pub reads: bool,
    numbers: HashMap<String, u64>,
}

impl Gateway {
    pub fn new(host: &Host, name: &str, life: u128, config: SessionConfig) -> Gateway {
        Gateway {
            rt: host.rt.clone(),
            addr: host.addr,
            clock: Clock::start(),
            side: GatewaySide::new(name.into(), Incarnation(life), config),
            conn: None,
            opened: None,
            seen: HashMap::new(),
            asked: Vec::new(),
            answers: Answers::Claim,
            drainings: 0,
            lost: Vec::new(),
            shim: None,
            reads: true,
            numbers: HashMap::new(),
        }
    }

    /// As `new`, with a connection.
    pub fn connected(host: &Host, name: &str, life: u128, config: SessionConfig) -> Gateway {
        let mut gateway = Gateway::new(host, name, life, config);
        gateway.connect().expect("the worker takes the session");
        gateway
    }

    /// Opens a connection and says hello.
    pub fn connect(&mut self) -> Result<(), Status> {
        let hello = self.side.hello(self.clock.now());
        self.connect_with(&Opening { versions: VERSIONS.to_vec(), hello })
    }

    pub fn connect_with(&mut self, opening: &Opening) -> Result<(), Status> {
        self.conn = None;
        let (out, down) = mpsc::unbounded_channel();
        out.send(wire::Down::from(opening)).expect("its stream is there");
        let (addr, rt) = (self.addr, self.rt.clone());
        let (welcome, mut stream) = rt.block_on(async move {
            let mut client = client(addr).await?;
            let mut stream = client.session(UnboundedReceiverStream::new(down)).await?.into_inner();
            let welcome = stream.message().await?.expect("a stream begins with a welcome");
            Ok::<_, Status>((welcome, stream))
        })?;
        let Ok(FromWorker::Welcome(opened)) = FromWorker::try_from(welcome) else { panic!("the first message is no welcome") };
        let (tell, up) = mpsc::unbounded_channel();
        let mut unread = None;
        if self.reads {
            rt.spawn(async move {
                while let Some(message) = stream.next().await {
                    let over = message.is_err();
                    if tell.send(message).is_err() || over {
                        break;
                    }
                }
            });
        } else {
            unread = Some(stream);
        }
        self.conn = Some(Conn { out, up, _unread: unread });
        let effects = self.side.welcome(&opened.welcome, self.clock.now());
        self.opened = Some(opened);
        self.carry_out(effects);
        Ok(())
    }

    /// Lets go of the connection.
    pub fn hang_up(&mut self) {
        self.conn = None;
        self.side.closed();
    }

    pub fn say(&mut self, message: Down) {
        let (sent, effects) = self.side.send(message, self.clock.now());
        assert!(sent, "no worker is known");
        self.carry_out(effects);
    }

    pub fn submit(&mut self, name: &str, prompt: &[u32], params: Params) {
        let number = self.numbers.len() as u64 + 1;
        self.numbers.insert(name.to_string(), number);
        self.seen.entry(name.to_string()).or_default();
        let worker = self.side.worker().expect("a worker is known");
        let prompt = Prompt::Tokens(prompt.to_vec());
        self.say(Down::Submit(Box::new(Submit {
            attempt: id(name),
            worker,
            number,
            model: "".into(),
            prompt,
            params,
            deadlines: Vec::new(),
        })));
    }

    /// Cancels a run, its own or another's.
    pub fn cancel(&mut self, name: &str, cause: Cause) {
        let number = self.numbers.get(name).copied().unwrap_or(0);
        self.say(Down::Cancel { attempt: id(name), cause, number, observed_ago: Duration::ZERO });
    }

    /// Hears what has come, and says what is due.
    pub fn pump(&mut self) {
        while let Some(conn) = &mut self.conn {
            match conn.up.try_recv() {
                Ok(Ok(message)) => self.hear(message),
                Ok(Err(_)) => self.hang_up(),
                Err(_) => break,
            }
        }
        let effects = self.side.tick(self.clock.now());
        self.carry_out(effects);
    }

    fn hear(&mut self, message: wire::Up) {
        let Ok(FromWorker::Frame(frame)) = FromWorker::try_from(message) else { panic!("what comes later is a frame") };
        let frames = match &mut self.shim {
            Some(shim) => shim.pass(frame, |shim| &mut shim.kept_up),
            None => vec![frame],
        };
        for frame in frames {
            let effects = self.side.hear(frame, self.clock.now());
            self.carry_out(effects);
        }
    }

    fn carry_out(&mut self, effects: Vec<GatewayEffect>) {
        for effect in effects {
            match effect {
                GatewayEffect::Send(frame) => {
                    let frame = protocol::down(&frame).expect("it can be said");
                    let frames = match &mut self.shim {
                        Some(shim) => shim.pass(frame, |shim| &mut shim.kept),
                        None => vec![frame],
                    };
                    if let Some(conn) = &self.conn {
                        frames.into_iter().for_each(|frame| drop(conn.out.send(frame)));
                    }
                }
                GatewayEffect::Deliver(message) => self.deliver(message),
                GatewayEffect::Lost { why, .. } => self.lost.push(why),
                GatewayEffect::Close { .. } => self.hang_up(),
                GatewayEffect::Here { .. } | GatewayEffect::Refused { .. } | GatewayEffect::Silent | GatewayEffect::Back => {}
            }
        }
    }

    fn deliver(&mut self, message: Up) {
        match see(&mut self.seen, message) {
            Some(Up::Ask { attempts }) => {
                self.asked.extend(attempts.iter().cloned());
                match self.answers {
                    Answers::Nothing => {}
                    Answers::Claim => self.say(Down::Claim { attempts }),
                    Answers::Disclaim => self.say(Down::Disclaim { attempts }),
                }
            }
            Some(Up::Draining) => self.drainings += 1,
            _ => {}
        }
    }

    pub fn until(&mut self, what: &str, holds: impl Fn(&Gateway) -> bool) {
        let since = Instant::now();
        loop {
            self.pump();
            if holds(self) {
                return;
            }
            std::thread::sleep(Duration::from_micros(200));
            assert!(since.elapsed() < PATIENCE, "it never came to: {what}; {:?}", self.seen);
        }
    }

    pub fn tokens(&self, name: &str) -> usize {
        self.seen.get(name).map_or(0, |s| s.tokens.values().map(Vec::len).sum())
    }

    pub fn is_released(&self, name: &str) -> bool {
        self.seen.get(name).is_some_and(|s| s.released > 0)
    }

    pub fn released(&mut self, name: &str) -> Seen {
        self.until(&format!("{name} released"), |g| g.is_released(name));
        let seen = self.seen[name].clone();
        assert_eq!(seen.released, 1);
        seen
    }

    /// What ended a run.
    pub fn cause(&self, name: &str) -> Option<Cause> {
        self.seen.get(name).and_then(|s| s.outcome.as_ref()).map(|o| o.cause)
    }
}

/// Pumps two gateways until something holds.
pub fn both(a: &mut Gateway, b: &mut Gateway, what: &str, holds: impl Fn(&Gateway, &Gateway) -> bool) {
    let since = Instant::now();
    loop {
        a.pump();
        b.pump();
        if holds(a, b) {
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
        assert!(since.elapsed() < PATIENCE, "it never came to: {what}; {:?} {:?}", a.seen, b.seen);
    }
}

/// A client over a new connection.
pub async fn client(addr: SocketAddr) -> Result<WorkerClient<Channel>, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).expect("an address is one");
    let channel = endpoint.connect().await.map_err(|e| Status::unavailable(e.to_string()))?;
    Ok(WorkerClient::new(channel).max_decoding_message_size(128 << 20).max_encoding_message_size(128 << 20))
}
