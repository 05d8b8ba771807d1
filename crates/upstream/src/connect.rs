//! A new connection to an upstream: its name is looked up, each of its addresses is tried, TLS is spoken where the URL says so.
//!
//! Invariant: whatever goes wrong here, no byte of a request has been sent.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::base::Base;
use super::client::NotSent;
use super::io::{Counted, Io, Meter, Stream};

/// Makes connections to one upstream.
pub(crate) struct Connector {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
    open: Arc<AtomicUsize>,
}

impl Connector {
    /// For `base`, trusting the usual authorities and those of the file.
    ///
    /// # Errors
    /// Why the file or the host's name cannot be used.
    pub(crate) fn new(base: &Base, authorities: Option<&Path>, timeout: Duration) -> Result<Connector, String> {
        let tls = if base.tls {
            let name = ServerName::try_from(base.host.clone()).map_err(|_| format!("`{}` cannot be in a certificate", base.host))?;
            Some((TlsConnector::from(Arc::new(tls_config(authorities)?)), name))
        } else {
            None
        };
        Ok(Connector { host: base.host.clone(), port: base.port, tls, timeout, open: Arc::default() })
    }

    /// Connections that are open now.
    pub(crate) fn open(&self) -> &Arc<AtomicUsize> {
        &self.open
    }

    /// A new connection, within the time-out.
    pub(crate) async fn connect(&self) -> Result<(Io, Arc<Meter>), NotSent> {
        tokio::time::timeout(self.timeout, self.try_connect()).await.unwrap_or(Err(NotSent::ConnectTimeout))
    }

    async fn try_connect(&self) -> Result<(Io, Arc<Meter>), NotSent> {
        let addresses = tokio::net::lookup_host((self.host.as_str(), self.port)).await.map_err(|e| NotSent::NoHost(e.to_string()))?;
        let mut refused = None;
        for address in addresses {
            let counted = Counted::new(&self.open);
            match TcpStream::connect(address).await {
                Ok(stream) => return self.secure(stream, counted).await,
                Err(why) => refused = Some(why),
            }
        }
        Err(refused.map_or_else(|| NotSent::NoHost("it has no address".to_owned()), |why| NotSent::NoConnection(why.kind())))
    }

    async fn secure(&self, stream: TcpStream, counted: Counted) -> Result<(Io, Arc<Meter>), NotSent> {
        stream.set_nodelay(true).map_err(|e| NotSent::NoConnection(e.kind()))?;
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some((connector, name)) => {
                let tls = connector.connect(name.clone(), stream).await.map_err(|e: io::Error| NotSent::Tls(e.to_string()))?;
                Stream::Tls(Box::new(tls))
            }
        };
        Ok(Io::new(stream, counted))
    }
}

fn tls_config(authorities: Option<&Path>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = authorities {
        let unreadable = |e: String| format!("{}: {e}", path.display());
        let before = roots.len();
        for certificate in CertificateDer::pem_file_iter(path).map_err(|e| unreadable(e.to_string()))? {
            let certificate = certificate.map_err(|e| unreadable(e.to_string()))?;
            roots.add(certificate).map_err(|e| unreadable(e.to_string()))?;
        }
        if roots.len() == before {
            return Err(unreadable("no certificate is in it".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
