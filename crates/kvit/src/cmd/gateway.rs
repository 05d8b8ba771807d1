//! `kvit gateway`: wiring only. The front door of `kvit serve`, with links to workers in other processes in place of one in its own.
//!
//! Invariant: `listening on ...` is printed once, when the socket listens, whether any worker is there yet or not, and nothing else goes to
//! stdout.

use gateway::{Gateway, GatewayConfig, Identity};

use super::loaded::{self, incarnation, log};
use super::serve::{bind, raise_file_limit, serve};
use super::settings;
use super::stored;
use crate::config::{ConfigError, ServeConfig};
use crate::failure::Failure;

/// Serves until told to stop.
///
/// # Errors
/// No worker is named, an address is none or cannot be listened on, a journal's folder that cannot be written to, runs that were left unsettled,
/// or a second signal.
pub fn run(config: &ServeConfig) -> Result<(), Failure> {
    if config.worker.addresses().is_empty() && config.upstream.each().is_empty() {
        let why =
            "is needed, or an upstream: name at least one, as in --worker 127.0.0.1:8100 or --upstream http://127.0.0.1:8000".to_owned();
        return Err(ConfigError::Range { name: "worker", why }.into());
    }
    log(config);
    raise_file_limit(config.connections_max, config.connection_threads);
    let listener = bind(config)?;
    let who = Identity { name: config.name.get_or("gateway").into(), incarnation: incarnation() };
    let (journal, _files) = loaded::journal(config, who.incarnation)?;
    tracing::info!(name = %who.name, incarnation = %who.incarnation, workers = config.worker.addresses().len(), "gateway");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let link = |address: &String| gateway::link(address, &who, journal.clock(), settings::wire(config));
        let links = config.worker.addresses().iter().map(link).collect::<Result<Vec<_>, _>>();
        let mut links = links.map_err(|why| ConfigError::Range { name: "worker", why: why.to_string() })?;
        for (link, upstream) in upstreams(config)? {
            links.push(link);
            tokio::spawn(upstream.run());
        }
        let store = stored::open(config, &who.name).await?;
        // What kvit's workers say is heard by all threads.
        let connection_threads = if config.upstream.each().is_empty() { 0 } else { config.connection_threads };
        let mut front = GatewayConfig { connection_threads, gpus: settings::gpus(config)?, ..settings::gateway(config) };
        front.otlp.headers = settings::otlp_headers(config)?;
        let gateway = Gateway::keeping(front, links, journal.clone(), (who.incarnation, &who.name), store);
        serve(&gateway, listener).await
    })
}

/// Links to the engines that others wrote.
fn upstreams(config: &ServeConfig) -> Result<Vec<(gateway::Link, upstream::Upstream)>, ConfigError> {
    let link = |text: &String| upstream::link(text.parse()?, incarnation());
    let links: Result<_, upstream::config::ConfigError> = config.upstream.each().iter().map(link).collect();
    links.map_err(|why| ConfigError::Range { name: "upstream", why: why.to_string() })
}
