//! A proxy between a gateway and a worker that knows frames: it notes each one, and passes, drops, doubles or delays it whole, as a test's rule
//! says. Hello and welcome, and calls outside the session, are passed.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lifecycle::event::Record;
use lifecycle::message::{Down, Up};
use lifecycle::session::Frame;
use protocol::worker_v1::worker_server::{Worker, WorkerServer};
use protocol::worker_v1::{self as wire, worker_client::WorkerClient};
use protocol::{FromGateway, FromWorker};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

/// A frame that came by.
#[derive(Clone, Debug)]
pub enum Seen {
    Down(Frame<Down>),
    Up(Frame<Up>),
}

/// What becomes of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Pass,
    Drop,
    Double,
    Late(Duration),
}

type Rule = Box<dyn FnMut(&Seen) -> Fate + Send>;
type UpItem = Result<wire::Up, Status>;

pub struct Tap {
    pub address: String,
    shared: Arc<Shared>,
    _rt: Runtime,
}

struct Shared {
    target: String,
    rule: Mutex<Rule>,
    log: Mutex<Vec<(Seen, Fate)>>,
    /// Whether the worker's half of a session stays open when its gateway is gone.
    lingers: AtomicBool,
    down: Mutex<Option<WeakUnboundedSender<wire::Down>>>,
    up: Mutex<Option<WeakUnboundedSender<UpItem>>>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tap {
    pub fn to(target: &str) -> Tap {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            rule: Mutex::new(Box::new(|_| Fate::Pass)),
            log: Mutex::default(),
            lingers: AtomicBool::new(false),
            down: Mutex::default(),
            up: Mutex::default(),
        });
        let listener = rt.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it has an address").to_string();
        let service = WorkerServer::new(Service(shared.clone())).max_decoding_message_size(64 << 20);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        rt.spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
        Tap { address, shared, _rt: rt }
    }

    pub fn rule(&self, rule: impl FnMut(&Seen) -> Fate + Send + 'static) {
        *held(&self.shared.rule) = Box::new(rule);
    }

    pub fn linger(&self) {
        self.shared.lingers.store(true, Ordering::SeqCst);
    }

    pub fn log(&self) -> Vec<(Seen, Fate)> {
        held(&self.shared.log).clone()
    }

    /// The worker's frames, in the order in which they came.
    pub fn ups(&self) -> Vec<Frame<Up>> {
        let up = |(seen, _): (Seen, Fate)| if let Seen::Up(frame) = seen { Some(frame) } else { None };
        self.log().into_iter().filter_map(up).collect()
    }

    pub fn downs(&self) -> Vec<Frame<Down>> {
        let down = |(seen, _): (Seen, Fate)| if let Seen::Down(frame) = seen { Some(frame) } else { None };
        self.log().into_iter().filter_map(down).collect()
    }

    /// What the worker recorded of a run, each record once, whatever was sent again.
    pub fn records(&self, run: &str) -> Vec<Record> {
        let mut taken = BTreeSet::new();
        let mut records = Vec::new();
        for frame in self.ups() {
            let Some(Up::Records { records: some }) = frame.message else { continue };
            if taken.insert((frame.from, frame.tenure, frame.number)) {
                records.extend(some.into_iter().filter(|r| r.run.as_ref().is_some_and(|key| key.run.as_str() == run)));
            }
        }
        records
    }

    /// Puts a frame of the test's own onto the newest session.
    pub fn say_up(&self, frame: &Frame<Up>) {
        let up = held(&self.shared.up).as_ref().and_then(WeakUnboundedSender::upgrade).expect("a session is open");
        up.send(Ok(protocol::up(frame).expect("it can be said"))).expect("the gateway reads");
    }

    pub fn say_down(&self, frame: &Frame<Down>) {
        let down = held(&self.shared.down).as_ref().and_then(WeakUnboundedSender::upgrade).expect("a session is open");
        down.send(protocol::down(frame).expect("it can be said")).expect("the worker reads");
    }
}

impl Shared {
    async fn client(&self) -> Result<WorkerClient<Channel>, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.target)).expect("an address is one").tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|why| Status::unavailable(why.to_string()))?;
        Ok(WorkerClient::new(channel).max_decoding_message_size(256 << 20).max_encoding_message_size(256 << 20))
    }

    /// False if nobody is there any more who would take it.
    fn pass<T: Clone + Send + 'static>(&self, seen: Option<Seen>, message: T, out: &UnboundedSender<T>) -> bool {
        let fate = seen.map_or(Fate::Pass, |seen| {
            let fate = (held(&self.rule))(&seen);
            held(&self.log).push((seen, fate));
            fate
        });
        match fate {
            Fate::Pass => out.send(message).is_ok(),
            Fate::Drop => true,
            Fate::Double => out.send(message.clone()).is_ok() && out.send(message).is_ok(),
            Fate::Late(by) => {
                let out = out.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(by).await;
                    let _ = out.send(message);
                });
                true
            }
        }
    }
}

/// A message that may be sent twice; an error may not, and needs not.
fn copied(item: &wire::Up) -> Option<Seen> {
    match FromWorker::try_from(item.clone()) {
        Ok(FromWorker::Frame(frame)) => Some(Seen::Up(frame)),
        _ => None,
    }
}

struct Service(Arc<Shared>);

#[tonic::async_trait]
impl Worker for Service {
    type SessionStream = UnboundedReceiverStream<UpItem>;

    async fn session(&self, request: Request<Streaming<wire::Down>>) -> Result<Response<Self::SessionStream>, Status> {
        let shared = self.0.clone();
        let mut client = shared.client().await?;
        let mut down = request.into_inner();
        let (to_worker, frames) = unbounded_channel();
        *held(&shared.down) = Some(to_worker.downgrade());
        let downward = shared.clone();
        tokio::spawn(async move {
            while let Ok(Some(message)) = down.message().await {
                let seen = match FromGateway::try_from(message.clone()) {
                    Ok(FromGateway::Frame(frame)) => Some(Seen::Down(frame)),
                    _ => None,
                };
                if !downward.pass(seen, message, &to_worker) {
                    return;
                }
            }
            if downward.lingers.load(Ordering::SeqCst) {
                to_worker.closed().await;
            }
        });
        let mut up = client.session(UnboundedReceiverStream::new(frames)).await?.into_inner();
        let (to_gateway, answer) = unbounded_channel();
        *held(&shared.up) = Some(to_gateway.downgrade());
        tokio::spawn(async move {
            loop {
                match up.message().await {
                    Ok(Some(message)) => {
                        let seen = copied(&message);
                        if !shared.pass(seen, Ok(message), &to_gateway) && !shared.lingers.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(status) => return drop(to_gateway.send(Err(status))),
                }
            }
        });
        Ok(Response::new(UnboundedReceiverStream::new(answer)))
    }

    async fn snapshot(&self, request: Request<wire::SnapshotRequest>) -> Result<Response<wire::SnapshotReply>, Status> {
        self.0.client().await?.snapshot(request.into_inner()).await
    }

    async fn drain(&self, request: Request<wire::DrainRequest>) -> Result<Response<wire::DrainReply>, Status> {
        self.0.client().await?.drain(request.into_inner()).await
    }
}
