//! A cable of TCP between a gateway and a worker that a test can cut: connections are closed, and new ones too, until it is mended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub struct Relay {
    pub address: String,
    whole: Arc<AtomicBool>,
    cut: watch::Sender<u64>,
    _rt: Runtime,
}

impl Relay {
    pub fn to(target: &str) -> Relay {
        let rt = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (whole, cut, target) = (Arc::new(AtomicBool::new(true)), watch::Sender::new(0), target.to_owned());
        let listener = rt.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("it has an address").to_string();
        let (is_whole, seen) = (whole.clone(), cut.subscribe());
        rt.spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let mut seen = seen.clone();
                seen.mark_unchanged();
                if !is_whole.load(Ordering::SeqCst) {
                    continue;
                }
                let target = target.clone();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = seen.changed() => {}
                    }
                });
            }
        });
        Relay { address, whole, cut, _rt: rt }
    }

    pub fn cut(&self) {
        self.whole.store(false, Ordering::SeqCst);
        self.cut.send_modify(|n| *n += 1);
    }

    pub fn mend(&self) {
        self.whole.store(true, Ordering::SeqCst);
    }
}
