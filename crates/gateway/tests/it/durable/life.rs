//! A life of a gateway on a thread and a runtime of its own, so that it can end as a process does: at once, with nothing flushed.

use std::net::SocketAddr;
use std::sync::Arc;

use gateway::{Gateway, GatewayConfig, Link, LinkClosed, LinkEvent};
use lifecycle::Incarnation;
use lifecycle::message::{Down, From};
use observe::{Clock, Journal, Limits};
use tokio::sync::{mpsc, oneshot};

use super::flaky::Flaky;

pub struct Life {
    pub addr: SocketAddr,
    pub store: Arc<Flaky>,
    pub down: mpsc::UnboundedReceiver<From<Down>>,
    pub up: mpsc::Sender<LinkEvent>,
    pub stop: Option<oneshot::Sender<()>>,
    kill: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Life {
    pub fn begin(incarnation: Incarnation, config: GatewayConfig, store: Arc<Flaky>) -> Life {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a listener that does not block");
        let addr = listener.local_addr().expect("an address");
        let (send_down, down) = mpsc::unbounded_channel();
        let (up, events) = mpsc::channel(4096);
        let send = Box::new(move |message| send_down.send(message).map_err(|_| LinkClosed));
        let link = Link::new("simulated".into(), send, events);
        let journal = Journal::new(Clock::start(), Limits::default());
        let gateway = Gateway::keeping(config, vec![link], journal, (incarnation, "durable"), Some(store.clone()));
        let (stop, stopped) = oneshot::channel::<()>();
        let (kill, killed) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let stopped = async {
                    if stopped.await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    _ = gateway.serve(listener, stopped, std::future::pending()) => {}
                    _ = killed => {}
                }
            });
            // Every task of it is dropped where it stands.
            drop(runtime);
        });
        Life { addr, store, down, up, stop: Some(stop), kill: Some(kill), thread: Some(thread) }
    }

    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
    }

    /// As `kill -9` does it.
    pub async fn kill(mut self) {
        self.store.die();
        self.end().await;
    }

    pub async fn end(&mut self) {
        if let Some(kill) = self.kill.take() {
            let _ = kill.send(());
        }
        if let Some(thread) = self.thread.take() {
            tokio::task::spawn_blocking(move || thread.join()).await.expect("joined").expect("the gateway's thread did not panic");
        }
    }
}
