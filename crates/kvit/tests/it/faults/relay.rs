//! A cable of TCP between a gateway and a worker that a test can cut: connections are closed, and new ones too, until it is mended. Or nobody
//! listens at its near end any more, so that its host refuses new connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub struct Relay {
    pub address: String,
    whole: Arc<AtomicBool>,
    cut: watch::Sender<u64>,
    listens: watch::Sender<bool>,
    _rt: Runtime,
}

impl Relay {
    pub fn to(target: &str) -> Relay {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (whole, cut, target) = (Arc::new(AtomicBool::new(true)), watch::Sender::new(0), target.to_owned());
        let listener = rt.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let listens = watch::Sender::new(true);
        let (is_whole, seen, mut open) = (whole.clone(), cut.subscribe(), listens.subscribe());
        rt.spawn(async move {
            let mut listener = Some(listener);
            while let Some(here) = listener.take() {
                tokio::select! {
                    () = carry(&here, &is_whole, &seen, &target) => return,
                    closed = open.wait_for(|open| !open) => if closed.is_err() { return },
                }
                drop(here);
                if open.wait_for(|open| *open).await.is_err() {
                    return;
                }
                listener = Some(again(address).await);
            }
        });
        Relay { address: address.to_string(), whole, cut, listens, _rt: rt }
    }

    pub fn cut(&self) {
        self.whole.store(false, Ordering::SeqCst);
        self.cut.send_modify(|n| *n += 1);
    }

    pub fn mend(&self) {
        self.whole.store(true, Ordering::SeqCst);
    }

    /// Connections are closed, and nobody listens here until `listen`.
    pub fn refuse(&self) {
        self.listens.send_replace(false);
        self.cut.send_modify(|n| *n += 1);
    }

    pub fn listen(&self) {
        self.listens.send_replace(true);
    }
}

async fn again(address: SocketAddr) -> TcpListener {
    TcpListener::bind(address).await.expect("the port is still free")
}

async fn carry(listener: &TcpListener, whole: &AtomicBool, cut: &watch::Receiver<u64>, target: &str) {
    while let Ok((mut near, _)) = listener.accept().await {
        let mut cut = cut.clone();
        cut.mark_unchanged();
        if !whole.load(Ordering::SeqCst) {
            continue;
        }
        let target = target.to_owned();
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(target).await else { return };
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                _ = cut.changed() => {}
            }
        });
    }
}
