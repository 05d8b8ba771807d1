//! The connection to a stack: TCP, or TLS over it, with the kernel's socket within reach, so that a judge can close it in every way.
//!
//! Invariant: what is done to the socket is done beneath TLS: a close is a bare FIN or RST, as of a program that ended, without TLS's own word of it.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// Either kind of connection.
#[derive(Debug)]
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    /// The kernel's socket.
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(tls) => tls.get_ref().0,
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Wire::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_write(cx, buf),
            Wire::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Wire::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Wire::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}

/// What a connection speaks behind TLS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Speaks {
    Http1,
    Http2,
}

/// How a stack with TLS is met.
#[derive(Clone, Debug)]
pub(super) struct Secure {
    name: ServerName<'static>,
    roots: RootCertStore,
    /// The file whose authorities are trusted beside the usual ones, for callers that are other programs.
    pub(super) authorities: Option<PathBuf>,
}

impl Secure {
    /// With the usual authorities.
    ///
    /// # Errors
    /// The host can be in no certificate.
    pub(super) fn new(host: &str) -> Result<Secure, String> {
        let bare = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(bare).map_err(|_| format!("`{host}` cannot be in a certificate"))?;
        Ok(Secure { name, roots: RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() }, authorities: None })
    }

    /// Trusts those of this file (PEM), too.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(super) fn trust(&mut self, file: &Path) -> Result<(), String> {
        let wrong = |why: String| format!("{}: {why}", file.display());
        let before = self.roots.len();
        for certificate in CertificateDer::pem_file_iter(file).map_err(|e| wrong(e.to_string()))? {
            let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
            self.roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
        }
        if self.roots.len() == before {
            return Err(wrong("no certificate is in it".to_owned()));
        }
        self.authorities = Some(file.to_owned());
        Ok(())
    }

    /// Speaks TLS on a connection.
    pub(super) async fn over(&self, socket: TcpStream, speaks: Speaks) -> io::Result<Wire> {
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
        let mut config = builder.with_root_certificates(self.roots.clone()).with_no_client_auth();
        let wanted: &[u8] = if speaks == Speaks::Http2 { b"h2" } else { b"http/1.1" };
        config.alpn_protocols = vec![wanted.to_vec()];
        let tls = TlsConnector::from(Arc::new(config)).connect(self.name.clone(), socket).await;
        let tls = tls.map_err(|e| io::Error::new(e.kind(), format!("TLS: {e}")))?;
        // Who says nothing speaks HTTP/1.1.
        if speaks == Speaks::Http2 && tls.get_ref().1.alpn_protocol() != Some(wanted) {
            return Err(io::Error::other("it speaks no HTTP/2 over TLS"));
        }
        Ok(Wire::Tls(Box::new(tls)))
    }
}
