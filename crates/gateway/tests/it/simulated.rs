//! A simulated worker: the test says by hand what it answers, so every interleaving is written down and not hoped for.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gateway::{Gateway, GatewayConfig, GatewayError, Here, Link, LinkClosed, LinkEvent, SendDown};
use lifecycle::event::Event;
use lifecycle::message::{Delta, Down, From, ModelInfo, Receipt, Snapshot, Submit, Up, Usage};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, RunId, RunKey, StepId, Tenant};
use observe::{Clock, Journal, Limits};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Longest wait for anything that must happen.
pub const SOON: Duration = Duration::from_secs(10);
pub const WORKER: Incarnation = Incarnation(0x1111);
pub const GATEWAY: Incarnation = Incarnation(0x2222);

/// A front door that serves, and its worker's script, or its workers'.
pub struct Stand<W = Simulated> {
    pub addr: SocketAddr,
    pub journal: Journal,
    pub worker: W,
    pub stop: Option<oneshot::Sender<()>>,
    pub hurry: Option<oneshot::Sender<()>>,
    pub served: JoinHandle<Result<(), GatewayError>>,
}

/// Where what the worker says goes in.
pub enum Mouth {
    /// A worker in the gateway's process.
    Thread(mpsc::Sender<From<Up>>),
    /// One elsewhere.
    Wire(mpsc::Sender<LinkEvent>),
}

/// The worker's end of both channels.
pub struct Simulated {
    down: mpsc::UnboundedReceiver<From<Down>>,
    pub up: Option<Mouth>,
    /// The life in which it speaks.
    pub life: Incarnation,
    journal: Journal,
    step: u64,
}

pub fn tiny() -> ModelInfo {
    ModelInfo { id: "tiny".into(), context: 512, default_max_tokens: 64, created: 1_700_000_000 }
}

/// The gateway's end of a way down, and the worker's.
fn way_down() -> (SendDown, mpsc::UnboundedReceiver<From<Down>>) {
    let (send_down, down) = mpsc::unbounded_channel();
    (Box::new(move |message| send_down.send(message).map_err(|_| LinkClosed)), down)
}

async fn serve<W>(config: GatewayConfig, links: Vec<Link>, journal: Journal, worker: W) -> Stand<W> {
    serve_kept(config, links, journal, worker, None).await
}

async fn serve_kept<W>(
    config: GatewayConfig,
    links: Vec<Link>,
    journal: Journal,
    worker: W,
    store: Option<Arc<dyn store::RunStore>>,
) -> Stand<W> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("an address");
    let gateway = Gateway::keeping(config, links, journal.clone(), (GATEWAY, "stand"), store);
    let (stop, stopped) = oneshot::channel::<()>();
    let (hurry, hurried) = oneshot::channel::<()>();
    let served = tokio::spawn(async move { gateway.serve(listener, async { drop(stopped.await) }, async { drop(hurried.await) }).await });
    Stand { addr, journal, worker, stop: Some(stop), hurry: Some(hurry), served }
}

pub async fn stand(config: GatewayConfig) -> Stand {
    kept_stand(config, None).await
}

/// One that keeps runs in this store.
pub async fn kept_stand(config: GatewayConfig, store: Option<Arc<dyn store::RunStore>>) -> Stand {
    let (send, down) = way_down();
    let (up, up_receive) = mpsc::channel(64);
    let journal = Journal::new(Clock::start(), Limits::default());
    let link = Link::thread(Here { incarnation: WORKER, offer: tiny().into(), name: "simulated".into() }, send, up_receive);
    let worker = Simulated { down, up: Some(Mouth::Thread(up)), life: WORKER, journal: journal.clone(), step: 0 };
    serve_kept(config, vec![link], journal, worker, store).await
}

/// These links, whoever is behind them.
pub async fn linked(config: GatewayConfig, links: Vec<Link>, journal: Journal) -> Stand<()> {
    serve(config, links, journal, ()).await
}

/// Several workers over links; none of them is here yet. Of equals the first is chosen, however prompts begin.
pub async fn several(config: GatewayConfig, count: usize) -> Stand<Vec<Simulated>> {
    let config = GatewayConfig { affinity_bytes: 0, ..config };
    let journal = Journal::new(Clock::start(), Limits::default());
    let (mut links, mut workers) = (Vec::new(), Vec::new());
    for i in 0..count {
        let (send, down) = way_down();
        let (up, events) = mpsc::channel(64);
        links.push(Link::new(format!("address-{i}").into(), send, events));
        let life = Incarnation(0x1000 * (i as u128 + 1));
        workers.push(Simulated { down, up: Some(Mouth::Wire(up)), life, journal: journal.clone(), step: 0 });
    }
    serve(config, links, journal, workers).await
}

pub async fn default_stand() -> Stand {
    stand(GatewayConfig::default()).await
}

pub async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("not within {SOON:?}: {what}"),
    }
}

pub fn key(id: &str) -> RunKey {
    RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("an id") }
}

impl<W> Stand<W> {
    /// The run as the API shows it.
    pub fn run(&self, id: &str) -> Value {
        serde_json::to_value(self.journal.run(&key(id))).expect("JSON")
    }

    /// Waits until the run's view is as wanted.
    pub async fn until(&self, id: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let check = async {
            loop {
                let run = self.run(id);
                if wanted(&run) {
                    return run;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        match tokio::time::timeout(SOON, check).await {
            Ok(run) => run,
            Err(_) => panic!("run {id} is not {what}: {}", self.run(id)),
        }
    }

    /// Waits until the run is settled, and checks that the machines never met anything impossible.
    pub async fn settled(&self, id: &str) -> Value {
        let run = self.until(id, "settled", |run| run["settled"] == true).await;
        assert_eq!(self.journal.defects(), 0);
        run
    }

    /// Records of a run that `wanted` picks.
    pub fn count(&self, id: &str, wanted: impl Fn(&Event) -> bool) -> usize {
        self.journal.records(&key(id)).iter().filter(|r| wanted(&r.event)).count()
    }
}

impl Simulated {
    pub async fn next(&mut self) -> Down {
        let message = soon("a message to the worker", self.down.recv()).await.expect("the gateway's side is open");
        assert_eq!(message.incarnation, GATEWAY);
        message.message
    }

    /// A message that is there already.
    pub fn try_next(&mut self) -> Option<Down> {
        self.down.try_recv().ok().map(|m| m.message)
    }

    /// The next message is a submit.
    pub async fn submit(&mut self) -> Submit {
        match self.next().await {
            Down::Submit(submit) => *submit,
            other => panic!("a submit was expected: {other:?}"),
        }
    }

    /// The next message is a cancel of this attempt.
    pub async fn cancelled(&mut self, attempt: &AttemptId) -> Cause {
        match self.next().await {
            Down::Cancel { attempt: named, cause, .. } if named == *attempt => cause,
            other => panic!("a cancel of {attempt:?} was expected: {other:?}"),
        }
    }

    pub async fn say(&self, message: Up) {
        self.say_as(self.life, message).await;
    }

    pub async fn say_as(&self, incarnation: Incarnation, message: Up) {
        let message = From { incarnation, message };
        match self.up.as_ref().expect("the worker is not lost") {
            Mouth::Thread(up) => soon("room in the channel", up.send(message)).await.expect("the gateway listens"),
            Mouth::Wire(_) => self.tell(LinkEvent::Up(message)).await,
        }
    }

    /// What its link tells.
    pub async fn tell(&self, event: LinkEvent) {
        let Some(Mouth::Wire(events)) = &self.up else { panic!("a link to a worker elsewhere") };
        soon("room in the channel", events.send(event)).await.expect("the gateway listens");
    }

    /// Its present life answers.
    pub async fn come(&self, name: &str) {
        self.tell(LinkEvent::Here(Here { incarnation: self.life, offer: tiny().into(), name: name.into() })).await;
    }

    /// Its present life is over; the next one does not answer yet.
    pub async fn be_lost(&mut self) {
        self.tell(LinkEvent::Lost { incarnation: self.life, why: "the test says so".into() }).await;
        self.life.0 += 1;
    }

    /// Takes the next submit and says that it is taken on.
    pub async fn accept(&mut self) -> Submit {
        let submit = self.submit().await;
        self.say(Up::Accepted { attempt: submit.attempt.clone(), prompt_tokens: 3 }).await;
        submit
    }

    pub fn delta(&self, attempt: &AttemptId, sequence: u32, text: &str, tokens: &[u32], finish: Option<Cause>) -> Delta {
        Delta { attempt: attempt.clone(), sequence, text: text.into(), tokens: tokens.into(), logprobs: Vec::new(), finish, passed: None }
    }

    pub async fn step(&mut self, deltas: Vec<Delta>) {
        self.step += 1;
        self.say(Up::Step { step: StepId(self.step), deltas }).await;
    }

    /// One token of text.
    pub async fn token(&mut self, attempt: &AttemptId, text: &str) {
        let delta = self.delta(attempt, 0, text, &[7], None);
        self.step(vec![delta]).await;
    }

    /// The attempt's end, and that nothing of it is left.
    pub async fn end(&self, attempt: &AttemptId, outcome: Outcome, generated: u32) {
        let usage = Usage { prompt: 3, cached_prompt: 1, generated };
        self.say(Up::Ended { attempt: attempt.clone(), outcome, usage }).await;
        self.release(attempt).await;
    }

    /// Nothing of the attempt is left: journalled by the worker, once, and then pushed.
    pub async fn release(&self, attempt: &AttemptId) {
        self.journal.record(Some(&attempt.key), attempt.attempt, Event::Released { receipt: Receipt::default() });
        self.say(Up::Released { attempt: attempt.clone(), receipt: Receipt::default() }).await;
    }

    /// Obeys a cancel as a worker does: acknowledged, ended, released.
    pub async fn obey(&mut self, attempt: &AttemptId) -> Cause {
        let cause = self.cancelled(attempt).await;
        self.say(Up::CancelAcknowledged { attempt: attempt.clone(), won: Some(cause) }).await;
        self.end(attempt, Outcome::of(cause), 0).await;
        cause
    }

    /// Obeys every cancel and computes nothing. One that is repeated finds its attempt released and is told so again.
    pub async fn obey_everything(mut self) {
        let mut ended = HashSet::new();
        while let Some(message) = self.down.recv().await {
            let Down::Cancel { attempt, cause, .. } = message.message else { continue };
            if ended.insert(attempt.clone()) {
                self.end(&attempt, Outcome::of(cause), 0).await;
            } else {
                self.say(Up::Released { attempt, receipt: Receipt::default() }).await;
            }
        }
    }

    /// Answers one question.
    pub async fn answer(&mut self, snapshot: Snapshot) -> bool {
        let question = self.next().await;
        self.answer_to(question, snapshot).await
    }

    /// Answers this question.
    pub async fn answer_to(&self, question: Down, snapshot: Snapshot) -> bool {
        match question {
            Down::Snapshot { ask, blocks } => {
                self.say(Up::Snapshot { ask, snapshot: Box::new(snapshot) }).await;
                blocks
            }
            other => panic!("a question was expected: {other:?}"),
        }
    }
}
