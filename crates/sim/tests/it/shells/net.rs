//! The simulated network under the shells: what a link connects with and what a worker's server accepts from, and the simulated time.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gateway::{Connecting, Network};
use http::Uri;
use hyper_util::rt::TokioIo;
use tonic::transport::Endpoint;
use turmoil::net::{TcpListener, TcpStream};

use super::world::Stage;

/// The simulation's time. What is dropped outside of a host's turn reads nothing of it.
pub fn time() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

/// Numbers from a seed: SplitMix64.
pub fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A link's network: every connection that is tried, whoever tries it, stands in the trace.
pub struct Simulated {
    pub stage: Stage,
    pub name: String,
    pub chance: AtomicU64,
}

impl Network for Simulated {
    fn connect<'a>(&'a self, endpoint: &'a Endpoint) -> Connecting<'a> {
        let (stage, name) = (self.stage.clone(), self.name.clone());
        let connector = tower::service_fn(move |uri: Uri| {
            let (stage, name) = (stage.clone(), name.clone());
            async move {
                stage.tried(&name);
                let to = (uri.host().unwrap_or_default().to_owned(), uri.port_u16().unwrap_or_default());
                let stream =
                    TcpStream::connect(to).await.inspect_err(|error| stage.tell(&name, format!("no connection: {}", error.kind())))?;
                stage.tell(&name, "connected");
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        Box::pin(endpoint.connect_with_connector(connector))
    }

    fn chance(&self) -> f64 {
        let number = self.chance.fetch_add(1, Ordering::AcqRel);
        (mix(number) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A worker's listening socket.
pub struct Accepting {
    pub stage: Stage,
    pub name: String,
    pub socket: TcpListener,
}

impl worker::grpc::Listener for Accepting {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.socket.accept().await?;
        self.stage.tell(&self.name, "accepted a connection");
        Ok(stream)
    }
}
