//! A tap: a transparent proxy between two hops of a stack. It passes bytes and closes as they come, reads along, and tells over a socket of
//! its own what it saw of each exchange (`kvit tap`, or in the judge's own process).
//!
//! It runs in threads of its own, one that passes bytes and one that answers questions, so that neither a judge at work nor a question
//! delays what passes.
//!
//! Invariant: a tap decides nothing. Whether it reads along or not, whether it is asked or not, the same bytes pass in the same order, and
//! each side's close passes as it came.
// contract: C-29

mod book;
mod client;
mod control;
mod ear;
mod exchange;
mod http1;
mod link;
mod saw;
mod sse;
mod word;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

pub use book::{Book, PAGE_MAX, Page, Which};
pub use client::{Clock, TapClient, TapError};
pub use exchange::{Closed, End, Exchange, How, Mark, Protocol};

/// How a tap is run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// What it is called in reports.
    pub name: String,
    /// Where it answers questions.
    pub control: String,
    /// The header that an exchange is traced by.
    pub trace_header: String,
    /// Where a stack does not pass that header: how the word in a request's body begins that it is traced by. Nothing is looked for if it
    /// is empty.
    pub trace_text: String,
    /// Most connections at a time; further ones wait in the kernel until one is over.
    pub connections_max: usize,
    /// Most exchanges that are remembered; the oldest are forgotten first.
    pub exchanges_max: usize,
    /// Longest head that is read along, in bytes; a connection with a longer one is passed and counted, and not read any more.
    pub head_bytes_max: usize,
    /// Most pieces of one answer that are remembered one by one.
    pub marks_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            name: "tap".to_owned(),
            control: "127.0.0.1:0".to_owned(),
            trace_header: "x-request-id".to_owned(),
            trace_text: "verify-".to_owned(),
            connections_max: 4096,
            exchanges_max: 1024,
            head_bytes_max: 64 << 10,
            marks_max: 2048,
        }
    }
}

/// Why there is no tap.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Something that should be an address is none, or cannot be looked up.
    #[error("`{address}` is no address for a tap: {why}; it looks like 127.0.0.1:8001")]
    Address {
        /// It.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// It cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// It.
        address: String,
        /// The kernel's word.
        source: std::io::Error,
    },
    /// The traced header's name is none.
    #[error("`{0}` is no name of a header; it looks like x-request-id")]
    Header(String),
    /// No thread, or no runtime.
    #[error("cannot start a tap: {0}")]
    Io(#[from] std::io::Error),
}

/// A running tap; it ends with this.
pub struct Tap {
    listening: SocketAddr,
    reporting: SocketAddr,
    book: Arc<Book>,
    threads: Vec<(Option<oneshot::Sender<()>>, JoinHandle<()>)>,
}

impl Tap {
    /// Listens on `listen` and passes every connection to `upstream`.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(listen: &str, upstream: &str, options: Options) -> Result<Tap, StartError> {
        if http::HeaderName::try_from(options.trace_header.as_str()).is_err() {
            return Err(StartError::Header(options.trace_header));
        }
        // Looked up once: a name that is looked up for each connection would delay it.
        let upstream = addresses(upstream)?;
        let (listener, control) = (bind(listen)?, bind(&options.control)?);
        let (listening, reporting) = (listener.local_addr()?, control.local_addr()?);
        let book = Arc::new(Book::new(options));
        let mut tap = Tap { listening, reporting, book: Arc::clone(&book), threads: Vec::new() };
        tap.thread("tap-pass", accept(listener, upstream.into(), Arc::clone(&book)))?;
        tap.thread("tap-tell", control::serve(control, book))?;
        Ok(tap)
    }

    fn thread(&mut self, name: &str, work: impl Future<Output = std::io::Result<()>> + Send + 'static) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    _ = work => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        self.threads.push((Some(end), thread));
        Ok(())
    }

    /// Where it takes connections.
    pub fn listening(&self) -> SocketAddr {
        self.listening
    }

    /// Where it answers questions.
    pub fn reporting(&self) -> SocketAddr {
        self.reporting
    }

    /// What it has seen.
    pub fn page(&self, which: &Which) -> Page {
        self.book.page(which)
    }
}

/// Connections that are open are reset: nobody shall take an answer that a tap cut for one that was whole.
impl Drop for Tap {
    fn drop(&mut self) {
        for (end, _) in &mut self.threads {
            end.take().map(|end| end.send(()));
        }
        for (_, thread) in self.threads.drain(..) {
            // A thread that panicked has ended, too.
            thread.join().ok();
        }
    }
}

fn addresses(text: &str) -> Result<Vec<SocketAddr>, StartError> {
    let wrong = |why: String| StartError::Address { address: text.to_owned(), why };
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let all: Vec<SocketAddr> = std::net::ToSocketAddrs::to_socket_addrs(bare).map_err(|e| wrong(e.to_string()))?.collect();
    if all.is_empty() { Err(wrong("nothing is known of this name".to_owned())) } else { Ok(all) }
}

fn bind(text: &str) -> Result<TcpListener, StartError> {
    let all = addresses(text)?;
    let listener = TcpListener::bind(&all[..]).map_err(|source| StartError::Listen { address: text.to_owned(), source })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn accept(listener: TcpListener, upstream: Arc<[SocketAddr]>, book: Arc<Book>) -> std::io::Result<()> {
    /// Pause when the kernel has no more descriptors: the next try would fail as well.
    const PAUSE: Duration = Duration::from_millis(20);
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(book.options.connections_max.clamp(1, Semaphore::MAX_PERMITS)));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((down, _)) => {
                let (upstream, book) = (Arc::clone(&upstream), Arc::clone(&book));
                tokio::spawn(async move {
                    link::run(down, &upstream, book).await;
                    drop(permit);
                });
            }
            // Who was gone before it was taken is nobody's loss.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
