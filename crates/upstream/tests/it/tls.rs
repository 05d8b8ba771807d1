//! https: an authority of one's own is trusted if it is named, nobody else is, and a refused one was sent nothing.

use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use rcgen::CertifiedKey;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use upstream::client::{CallError, Client, NotSent};
use upstream::config::UpstreamConfig;

use crate::script::*;

#[tokio::test]
async fn a_named_authority_is_trusted_and_no_other() {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let key = signing_key.serialize_der().try_into().expect("a key");
    let server = builder.expect("versions").with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let counts = Arc::new(Counts::default());
    let (acceptor, to) = (TlsAcceptor::from(Arc::new(server)), counts.clone());
    let served = tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let Ok(mut socket) = acceptor.accept(socket).await else { continue };
            let answer = || [Step::Request, reply("200 OK", "a/b", "secured")];
            let _ = perform(&mut socket, [answer(), answer()].concat(), &to).await;
        }
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    let mut config = UpstreamConfig::at(&format!("https://localhost:{port}")).expect("a URL");
    let post = async |config: &UpstreamConfig| {
        let client = Client::new(config).expect("a client");
        let mut bodies = Vec::new();
        for _ in 0..2 {
            bodies.push(soon(client.post("/v1/x", HeaderMap::new(), Bytes::from_static(b"{}"))).await?.whole().await?);
        }
        Ok::<_, CallError>(bodies)
    };
    assert!(matches!(post(&config).await, Err(CallError::NotSent(NotSent::Tls(_)))));
    assert_eq!(counts.requests.lock().expect("counts").len(), 0);
    config.ca_file = Some(file.clone());
    let why = |config: &UpstreamConfig| Client::new(config).map(|_| ()).expect_err("no client").to_string();
    assert!(why(&config).contains("ca.pem"), "{}", why(&config));
    std::fs::write(&file, "no certificate").expect("written");
    assert!(why(&config).contains("no certificate is in it"), "{}", why(&config));
    std::fs::write(&file, cert.pem()).expect("written");
    assert_eq!(post(&config).await, Ok(vec![Bytes::from_static(b"secured"); 2]));
    assert_eq!(counts.requests.lock().expect("counts").len(), 2);
    served.abort();
}
