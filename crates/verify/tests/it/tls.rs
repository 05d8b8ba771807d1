//! Stacks with TLS: what ends it is a program of the test's own that passes bytes on, and departures beneath TLS are departures.
// contract: C-29

use std::sync::Arc;

use rcgen::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use verify::judge::caller::Target;
use verify::judge::cell::{Cell, Phase, Trigger};
use verify::judge::profile::Profile;
use verify::judge::result::{Fault, Verdict};
use verify::judge::run::run;
use verify::judge::settings::Settings;
use verify::judge::stack::{Stack, Unjudged};

use crate::convicted::{settings, told};
use crate::scripted::{PROFILE, Scripted, Wrong};

/// Something that ends TLS in front of an engine: its port, and its certificate (PEM).
async fn secured(engine: &Scripted) -> (u16, String) {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions();
    let key = signing_key.serialize_der().try_into().expect("a key");
    let server = builder.expect("versions").with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).expect("a server");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let (acceptor, to) = (TlsAcceptor::from(Arc::new(server)), engine.addr);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let (mut down, mut up) = (acceptor.accept(socket).await.ok()?, TcpStream::connect(to).await.ok()?);
                // Both sides end when one does, however it does.
                tokio::io::copy_bidirectional(&mut down, &mut up).await.ok()
            });
        }
    });
    (port, cert.pem())
}

fn profile() -> Option<Profile> {
    Some(Profile::parse(PROFILE).expect("a profile"))
}

#[tokio::test(flavor = "multi_thread")]
async fn departures_beneath_tls_are_departures() {
    let ways = [Trigger::Close, Trigger::Reset, Trigger::Kill];
    let mut cells: Vec<Cell> = ways.into_iter().map(|way| Cell::new(Phase::EarlyDecode, way)).collect();
    cells.extend([Cell::new(Phase::Prefill, Trigger::Close), Cell::new(Phase::EarlyDecode, Trigger::HalfClose)]);
    for (wrong, fails) in [(Wrong::Nothing, false), (Wrong::NeverNotices, true)] {
        let engine = Scripted::start(wrong).await;
        let (port, pem) = secured(&engine).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, pem).expect("it is written");
        let mut target = Target::parse(&format!("https://localhost:{port}")).expect("a URL");
        target.trust(&file).expect("an authority");
        let engine_at = Target::parse(&format!("http://{}", engine.addr)).expect("a URL");
        let stack = Stack::meet(target, None, Some(engine_at), profile(), true).await.expect("it is there");
        let settings = Settings { neighbours: 0, departures: 0, ..settings() };
        let report = run(stack, &settings, &cells, |_| {}).await.expect("it can be judged");
        assert_eq!(report.target, format!("https://localhost:{port}"));
        for of in &report.cells {
            match of.cell.trigger {
                Trigger::HalfClose => assert!(matches!(of.verdict, Verdict::NotApplicable { .. }), "{}", told(&report)),
                _ if fails => assert!(matches!(of.verdict, Verdict::Fail { fault: Fault::NeverStops, .. }), "{}", told(&report)),
                _ => assert_eq!(of.verdict, Verdict::Pass, "{}", told(&report)),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_nobody_named_is_not_trusted() {
    let engine = Scripted::start(Wrong::Nothing).await;
    let (port, _) = secured(&engine).await;
    let target = Target::parse(&format!("https://localhost:{port}")).expect("a URL");
    let refused = Stack::meet(target.clone(), None, None, profile(), true).await.expect_err("it is nobody's");
    assert!(matches!(&refused, Unjudged::Unreachable { why, .. } if why.contains("TLS: ")), "{refused}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("none.pem");
    std::fs::write(&file, "nothing").expect("it is written");
    let error = target.clone().trust(&file).expect_err("it has none");
    assert!(error.contains("none.pem: no certificate is in it"), "{error}");
}
