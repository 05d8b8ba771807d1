//! A run that ends while its engine is still being connected to: nobody has got anything of it.
// contract: C-8 C-29

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rcgen::CertifiedKey;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use upstream::config::UpstreamConfig;
use upstream::kind::Kind;

use crate::engine::Engine;
use crate::script::{Step, soon};
use crate::stand::{self, cancel, chat, read, until};

/// Speaks TLS before an engine, until it is told to take connections and say nothing.
struct Front {
    port: u16,
    authority: String,
    is_mute: Arc<AtomicBool>,
    /// Connections that it has said nothing on.
    waiting: Arc<AtomicUsize>,
    _task: JoinSet<()>,
}

impl Front {
    async fn before(engine: &Engine) -> Front {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
        let key = signing_key.serialize_der().try_into().expect("a key");
        let server = builder.expect("versions").with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let (is_mute, waiting, mut task) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)), JoinSet::new());
        let (mute, waits, acceptor, addr) = (is_mute.clone(), waiting.clone(), TlsAcceptor::from(Arc::new(server)), engine.addr);
        task.spawn(async move {
            let (mut connections, mut held) = (JoinSet::new(), Vec::new());
            while let Ok((socket, _)) = listener.accept().await {
                if mute.load(Ordering::SeqCst) {
                    held.push(socket);
                    waits.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    let Ok(mut socket) = acceptor.accept(socket).await else { return };
                    let Ok(mut engine) = TcpStream::connect(addr).await else { return };
                    let _ = tokio::io::copy_bidirectional(&mut socket, &mut engine).await;
                });
            }
        });
        Front { port, authority: cert.pem(), is_mute, waiting, _task: task }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_while_it_is_connected_to_was_given_to_nobody() {
    let engine = Engine::always(Kind::OpenAi, vec![Step::UntilClosed]).await;
    let front = Front::before(&engine).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, &front.authority).expect("written");
    let mut config = UpstreamConfig::at(&format!("https://localhost:{}", front.port)).expect("a URL");
    // Each request has a connection of its own.
    (config.kind, config.ca_file, config.idle_connections_max) = (Some(Kind::OpenAi), Some(file), 0);
    let stand = stand::stand(gateway::GatewayConfig::default(), vec![config]).await;
    front.is_mute.store(true, Ordering::SeqCst);
    for (number, cause) in [(1, "cancel_requested"), (2, "client_closed"), (3, "client_deadline")] {
        let id = format!("r{number}");
        let more = if cause == "client_deadline" { json!({"timeout_ms": 2000}) } else { json!({}) };
        let socket = chat(stand.addr, &id, true, &more).await;
        until(|| front.waiting.load(Ordering::SeqCst) >= number, || format!("{id} was not sent")).await;
        match cause {
            "cancel_requested" => {
                assert_eq!(cancel(stand.addr, &id).await, 200);
                assert_eq!(soon(read(socket)).await.status, 499);
            }
            "client_deadline" => assert_eq!(soon(read(socket)).await.status, 499),
            _ => drop(socket),
        }
        let run = stand.settled(&id).await;
        assert_eq!((&run["outcome"]["cause"], &run["guarantee"]), (&json!(cause), &json!("confirmed")), "{run}");
        assert_eq!(run["waste_bound_tokens"], json!(0), "{run}");
    }
    assert_eq!(engine.asked(), 0);
    // What was taken may be computed, and nobody says anything of it.
    front.is_mute.store(false, Ordering::SeqCst);
    let socket = chat(stand.addr, "r4", true, &json!({})).await;
    until(|| engine.asked() == 1, || "r4 was not sent".to_owned()).await;
    drop(socket);
    let run = stand.settled("r4").await;
    assert_eq!(run["guarantee"], "best_effort", "{run}");
    stand.nothing_is_left(&[&engine]).await;
}
