//! A real gateway with links to scripted engines, and its callers: raw sockets.

use std::net::SocketAddr;
use std::time::Duration;

use gateway::{Gateway, GatewayConfig, GatewayError};
use lifecycle::{Incarnation, RunId, RunKey, Tenant};
use observe::{Clock, Journal, Limits};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use upstream::InHand;
use upstream::config::UpstreamConfig;
use upstream::kind::Kind;

use crate::engine::Engine;
use crate::script::soon;

pub const MODEL: &str = "tiny";

pub struct Stand {
    pub addr: SocketAddr,
    pub journal: Journal,
    pub in_hand: Vec<InHand>,
    stop: Option<oneshot::Sender<()>>,
    served: JoinHandle<Result<(), GatewayError>>,
    _links: JoinSet<()>,
}

/// An upstream at this address that fails soon and is looked at often.
pub fn config(addr: SocketAddr) -> UpstreamConfig {
    let mut config = UpstreamConfig::at(&format!("http://{addr}")).expect("a URL");
    config.observe_every = Duration::from_millis(20);
    config
}

/// A gateway in front of one engine.
pub async fn before(engine: &Engine, change: impl FnOnce(&mut UpstreamConfig)) -> Stand {
    let mut config = config(engine.addr);
    change(&mut config);
    stand(GatewayConfig::default(), vec![config]).await
}

/// A gateway in front of these upstreams, all of which are here.
pub async fn stand(gateway: GatewayConfig, upstreams: Vec<UpstreamConfig>) -> Stand {
    let count = upstreams.len();
    let stand = begin(gateway, upstreams).await;
    stand.here(count).await;
    stand
}

/// The same, before any of them was met.
pub async fn begin(gateway: GatewayConfig, upstreams: Vec<UpstreamConfig>) -> Stand {
    let (mut links, mut in_hand, mut running) = (Vec::new(), Vec::new(), JoinSet::new());
    for (life, config) in (0x1000..).zip(upstreams) {
        let (link, upstream) = upstream::link(config, Incarnation(life)).expect("a link");
        in_hand.push(upstream.in_hand());
        links.push(link);
        running.spawn(upstream.run());
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let addr = listener.local_addr().expect("its address");
    let journal = Journal::new(Clock::start(), Limits::default());
    // As `kvit gateway` serves.
    let gateway = GatewayConfig { connection_threads: 2, ..gateway };
    let gateway = Gateway::new(gateway, links, journal.clone(), Incarnation(0x2222));
    let (stop, stopped) = oneshot::channel::<()>();
    let served = tokio::spawn(async move { gateway.serve(listener, async { drop(stopped.await) }, async {}).await });
    Stand { addr, journal, in_hand, stop: Some(stop), served, _links: running }
}

impl Stand {
    /// Waits until so many upstreams are here.
    async fn here(&self, count: usize) {
        soon(async {
            loop {
                let workers = request(self.addr, "GET", "/v1/workers", "", "").await.json();
                let here = workers["data"].as_array().expect("workers").iter().filter(|worker| worker["state"] == "here").count();
                if here == count {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// What the gateway says of its first worker.
    pub async fn state(&self) -> String {
        let workers = soon(request(self.addr, "GET", "/v1/workers", "", "")).await.json();
        workers["data"][0]["state"].as_str().expect("a state").to_owned()
    }

    /// Waits until it says one of these.
    pub async fn until_state(&self, wanted: &[&str]) {
        soon(async {
            while !wanted.contains(&&*self.state().await) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }

    /// The models that the gateway serves.
    pub async fn models(&self) -> Vec<String> {
        let models = soon(request(self.addr, "GET", "/v1/models", "", "")).await.json();
        let named = models["data"].as_array().expect("models").iter();
        named.map(|model| model["id"].as_str().expect("a name").to_owned()).collect()
    }

    /// The run as the API shows it.
    pub fn run(&self, id: &str) -> Value {
        let key = RunKey { tenant: Tenant::default(), run: RunId::parse(id).expect("an id") };
        serde_json::to_value(self.journal.run(&key)).expect("JSON")
    }

    pub async fn until(&self, id: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let wait = async {
            loop {
                let run = self.run(id);
                if wanted(&run) {
                    return run;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), wait).await;
        waited.unwrap_or_else(|_| panic!("run {id}: {}", self.run(id)))
    }

    pub async fn settled(&self, id: &str) -> Value {
        let run = self.until(id, |run| run["settled"] == true).await;
        assert_eq!(self.journal.defects(), 0);
        run
    }

    /// Waits until nothing is left anywhere: no task and no request in a link, nothing that is answered at an engine, and, once the gateway
    /// has been told to end, no run in its table.
    pub async fn nothing_is_left(mut self, engines: &[&Engine]) {
        for in_hand in &self.in_hand {
            let left = || (in_hand.tasks(), in_hand.requests(), in_hand.unproven(), in_hand.busy());
            until(|| left() == (0, 0, 0, 0), || format!("tasks, requests, unproven, connections: {:?}", left())).await;
        }
        for engine in engines {
            until(|| engine.running() == 0, || format!("{} are answered", engine.running())).await;
        }
        self.shut_down().await;
    }

    /// Tells the gateway to end, and waits for that. It says so if a run is not settled.
    pub async fn shut_down(&mut self) {
        let _ = self.stop.take().expect("once").send(());
        soon(&mut self.served).await.expect("no panic").expect("all runs are settled");
    }
}

pub async fn until(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), wait).await;
    assert!(waited.is_ok(), "{}", what());
}

/// What an upstream of this kind is sure to be taken for.
pub fn of(kind: Kind) -> impl FnOnce(&mut UpstreamConfig) {
    move |config| config.kind = Some(kind)
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// The code of the error that the answer is, or that ends its stream; its shape is checked, and that nothing follows it.
    pub fn error(&self) -> (String, String) {
        let json = match self.body.rsplit_once("data: ") {
            Some((before, last)) => {
                assert!(before.is_empty() || before.ends_with("\n\n"), "an event of its own: {self:?}");
                serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {self:?}"))
            }
            None => self.json(),
        };
        let word = |name: &str| json["error"][name].as_str().unwrap_or_else(|| panic!("no {name}: {self:?}")).to_owned();
        (word("code"), word("message"))
    }
}

fn text(method: &str, path: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

/// One request on a connection of its own, and its whole answer.
pub async fn request(addr: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> Reply {
    let mut socket = TcpStream::connect(addr).await.expect("a connection");
    socket.write_all(text(method, path, headers, body).as_bytes()).await.expect("sent");
    read(socket).await
}

/// A chat that was sent and not yet answered.
pub async fn chat(addr: SocketAddr, id: &str, stream: bool, more: &Value) -> TcpStream {
    let mut body = json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": stream, "max_tokens": 40});
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    post(addr, "/v1/chat/completions", id, &body).await
}

/// Any request that was sent and not yet answered.
pub async fn post(addr: SocketAddr, path: &str, id: &str, body: &Value) -> TcpStream {
    let mut socket = soon(TcpStream::connect(addr)).await.expect("a connection");
    let text = text("POST", path, &format!("X-Request-Id: {id}\r\n"), &body.to_string());
    soon(socket.write_all(text.as_bytes())).await.expect("sent");
    socket
}

/// All that comes until the gateway closes.
pub async fn read(mut socket: TcpStream) -> Reply {
    let mut all = Vec::new();
    soon(socket.read_to_end(&mut all)).await.expect("an answer");
    let all = String::from_utf8(all).expect("text");
    let (head, rest) = all.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head: {all}"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    let mut body = String::new();
    if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        let mut rest = rest;
        loop {
            let (size, after) = rest.split_once("\r\n").unwrap_or_else(|| panic!("no chunk: {all}"));
            let size = usize::from_str_radix(size, 16).expect("a length");
            body.push_str(&after[..size]);
            if size == 0 {
                break;
            }
            rest = &after[size + 2..];
        }
    } else {
        body.push_str(rest);
    }
    Reply { status, head: head.to_owned(), body }
}

/// Reads until this has come.
pub async fn read_until(socket: &mut TcpStream, wanted: &str) {
    let (mut all, mut buffer) = (String::new(), [0; 4096]);
    while !all.contains(wanted) {
        let n = soon(socket.read(&mut buffer)).await.expect("more");
        assert!(n > 0, "closed before {wanted:?}: {all}");
        all.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
}

/// Cancels by name. The status.
pub async fn cancel(addr: SocketAddr, id: &str) -> u16 {
    soon(request(addr, "POST", &format!("/v1/runs/{id}/cancel?wait_ms=0"), "", "")).await.status
}
