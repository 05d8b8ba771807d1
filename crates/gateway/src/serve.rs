//! The accept loop and each connection's task; and the shutdown, in its order.
//!
//! Invariant: a connection's task may be dropped at any moment: it owns no run.
// contract: C-28

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use lifecycle::{Cause, WorkerIndex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::GatewayError;
use crate::calls::Calls;
use crate::config::GatewayConfig;
use crate::conn::{self, ConnState, Observed};
use crate::keeping::Jobs;
use crate::links::Events;
use crate::quiet::Quiet;
use crate::threads::{Held, Threads};

/// How long the accept loop pauses when the process is out of something (file descriptors, memory).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long runs may take to settle after the last connection is closed.
const LAST_LOOK: Duration = Duration::from_millis(200);
/// How long what a caller sends too much is read on after its last answer, for its end.
const LINGER: Duration = Duration::from_secs(1);
/// Parts of `client_lost_after` between two PINGs on an HTTP/2 connection.
const PING_PARTS: u32 = 2;
/// How long hyper itself waits for a PING's answer.
const PING_WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

pub(crate) async fn serve(
    calls: &Arc<Calls>,
    (heard, jobs): (Vec<(WorkerIndex, Events)>, Option<Jobs>),
    name: &Arc<str>,
    listener: TcpListener,
    (shutdown, at_once): (impl Future<Output = ()>, impl Future<Output = ()>),
) -> Result<(), GatewayError> {
    let threads = Threads::start(calls.config.connection_threads).map_err(GatewayError::Threads)?;
    calls.is_served_on(threads.runtimes());
    let mut tasks = JoinSet::new();
    let recorder = keep(calls, jobs, name, &mut tasks);
    for (worker, events) in heard {
        let pumped = calls.clone();
        tasks.spawn(async move { pumped.pump(worker, events).await });
    }
    let driven = calls.clone();
    tasks.spawn(async move { driven.drive().await });
    let exporting = calls.exporter.clone().map(|exporter| (exporter.clone(), tokio::spawn(exporter.run(name.clone()))));
    let filmed = calls.clone();
    tasks.spawn(async move { filmed.film().await });
    let mut connections = JoinSet::new();
    let stop = watch::Sender::new(false);
    let broken = {
        let (failed, mut error) = (Notify::new(), None);
        let asked = async {
            tokio::select! { () = shutdown => {}, () = failed.notified() => {} }
        };
        let mut ending = pin!(async {
            asked.await;
            drain(calls, at_once).await
        });
        let mut accepting = pin!(accept(calls, &listener, (&threads, &mut connections), &stop));
        loop {
            tokio::select! {
                () = &mut ending => break error,
                e = &mut accepting, if error.is_none() => {
                    error = Some(e);
                    failed.notify_one();
                }
            }
        }
    };
    drop(listener);
    stop.send_replace(true);
    let config = &calls.config;
    // Callers take their last bytes; whoever does not is cut off by dropping the set.
    let closed = tokio::time::timeout(config.settle, async { while connections.join_next().await.is_some() {} }).await;
    if closed.is_err() {
        tracing::warn!(connections = connections.len(), "connections closed before their answers were read");
    }
    connections.shutdown().await;
    // A reader that went with its connection settles its run, if the worker has let go of it.
    let mut live = calls.live.subscribe();
    let _ = tokio::time::timeout(LAST_LOOK, live.wait_for(|n| *n == 0)).await;
    if calls.keeper.is_some() {
        calls.outside.finish(config.settle).await;
    }
    tasks.shutdown().await;
    if let Some((keeper, recorder)) = calls.keeper.as_ref().zip(recorder) {
        calls.leave_store(keeper).await;
        recorder.abort();
    }
    // Last: an engine's proofs are still looked for there.
    threads.end().await;
    if let Some((exporter, running)) = exporting {
        exporter.finish(running).await;
    }
    let left = *live.borrow();
    match (broken, left) {
        (Some(e), _) => Err(GatewayError::Listener(e)),
        (None, 0) => Ok(()),
        (None, runs) => Err(GatewayError::Unsettled { runs }),
    }
}

/// Starts what the run store needs: its recorder, which is returned, and what looks after it, which goes with the other tasks.
fn keep(calls: &Arc<Calls>, jobs: Option<Jobs>, name: &Arc<str>, tasks: &mut JoinSet<()>) -> Option<JoinHandle<()>> {
    let (keeper, mut jobs) = calls.keeper.clone().zip(jobs)?;
    let (heard, hearing) = (calls.clone(), keeper.clone());
    tasks.spawn(async move { heard.hear_store(&hearing).await });
    let (housed, housing, name) = (calls.clone(), keeper.clone(), name.clone());
    tasks.spawn(async move { housed.keep_house(&housing, &name).await });
    let (sent, sending) = (calls.clone(), keeper.clone());
    tasks.spawn(async move { sent.send_outside(&sending).await });
    let recording = calls.clone();
    Some(tokio::spawn(async move { recording.record(&keeper, &mut jobs).await }))
}

/// Takes no more runs on and lets those that are live end; when its time is over, or at once if that is asked for, cancels the rest and
/// waits for it. All the while connections are accepted: whoever watches a run, or wants to cancel it, can still do so.
async fn drain(calls: &Calls, at_once: impl Future<Output = ()>) {
    calls.begin_drain();
    let mut live = calls.live.subscribe();
    let none = |n: &usize| *n == 0;
    let over = tokio::select! {
        _ = live.wait_for(none) => return,
        () = tokio::time::sleep(calls.config.drain) => "the drain's time is over",
        () = at_once => "the drain was cut short",
    };
    calls.park_background();
    tracing::info!(runs = *live.borrow(), "{over}; what still runs is cancelled");
    calls.cancel_all(Cause::Shutdown);
    let _ = tokio::time::timeout(calls.config.settle, live.wait_for(none)).await;
}

/// Accepts until the listener breaks.
async fn accept(
    calls: &Arc<Calls>,
    listener: &TcpListener,
    (threads, connections): (&Threads, &mut JoinSet<()>),
    stop: &watch::Sender<bool>,
) -> io::Error {
    let router = crate::http::router(calls.clone(), &stop.subscribe());
    let room = Arc::new(Semaphore::new(calls.config.connections_max));
    let mut last_id = 0;
    loop {
        while connections.try_join_next().is_some() {}
        let (stream, permit) = match next(listener, &room).await {
            Ok(next) => next,
            Err(e) if is_transient(&e) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
            Err(e) => return e,
        };
        last_id += 1;
        let state = Arc::new(ConnState::new(last_id, calls.clone()));
        let (runtime, held) = threads.least_busy();
        let served = connection(stream, (permit, held), state, router.clone(), calls.config.clone(), stop.subscribe());
        connections.spawn_on(served, runtime);
    }
}

/// A place first, then a connection: without a place, connections wait in the kernel.
async fn next(listener: &TcpListener, room: &Arc<Semaphore>) -> io::Result<(std::net::TcpStream, OwnedSemaphorePermit)> {
    let permit = room.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    // It is registered anew where it is served.
    Ok((stream.into_std()?, permit))
}

/// Whether accepting can go on: one connection's failure, or a shortage that passes. A listener that is broken gives other errors.
fn is_transient(e: &io::Error) -> bool {
    !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported | io::ErrorKind::NotConnected)
}

async fn connection(
    stream: std::net::TcpStream,
    place: (OwnedSemaphorePermit, Held),
    state: Arc<ConnState>,
    router: Router,
    config: GatewayConfig,
    stop: watch::Receiver<bool>,
) {
    let half = config.allow_half_close;
    let prepare = |stream: TcpStream| {
        conn::prepare(&stream, &config)?;
        Ok((conn::duplicate(&stream)?, stream))
    };
    let (fd, stream) = match TcpStream::from_std(stream).and_then(prepare) {
        Ok(both) => both,
        // A caller that left between its SYN and now.
        Err(e) => return tracing::debug!(error = %e, "a connection was gone before it was served"),
    };
    let io = Observed::new(stream, state.clone(), half);
    // The duplicate keeps the socket open, so it goes when the connection does, and after it: hyper drops its futures first.
    let (watching, attending) = (pin!(conn::watch(&fd, &state, half)), pin!(conn::attend(&fd, &state, &config)));
    let (mut watcher, mut attendant) = (Quiet::new(watching), Quiet::new(attending));
    let mut http = pin!(speak(io, state.clone(), router, &config, stop));
    let mut seen = false;
    loop {
        tokio::select! {
            () = &mut http => break,
            () = &mut watcher, if !seen => seen = true,
            // Told before hyper's streams are dropped, so that none of them guesses at a cause.
            cause = &mut attendant => {
                state.observe(cause);
                break;
            }
        }
    }
    // Bytes that still come would make a reset of the close, which may cost the caller an answer that it has not read yet.
    if state.ahead.overran() && state.gone().is_none() && !seen {
        let _ = tokio::time::timeout(LINGER, watcher).await;
    }
    conn::part(&fd, &state, &config);
    drop(place);
}

/// A request that is being handled, until its answer begins or it is dropped.
struct Handled(Arc<ConnState>);

impl Handled {
    fn new(state: Arc<ConnState>) -> Handled {
        state.ahead.request_began();
        Handled(state)
    }
}

impl Drop for Handled {
    fn drop(&mut self) {
        self.0.ahead.request_ended();
    }
}

/// HTTP/1.1 or HTTP/2, by what the peer begins with.
async fn speak(io: Observed, state: Arc<ConnState>, router: Router, config: &GatewayConfig, mut stop: watch::Receiver<bool>) {
    let inner = TowerToHyperService::new(router);
    let extension = state.clone();
    let service = hyper::service::service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        extension.speaks(request.version());
        request.extensions_mut().insert(extension.clone());
        let handled = Handled::new(extension.clone());
        let answer = hyper::service::Service::call(&inner, request);
        async move {
            let _handled = handled;
            answer.await
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    // How long a head may take is `attend`'s: hyper would count the idle time before it as well.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).half_close(config.allow_half_close);
    builder.http1().max_buf_size(config.head_bytes_max.max(8 << 10));
    let mut http2 = builder.http2();
    // hyper sends the PINGs; `attend` judges long before hyper's own limit, and knows a slow reader from one that is gone.
    let lost_after = config.client_lost_after;
    http2.timer(TokioTimer::new()).keep_alive_interval(lost_after / PING_PARTS).keep_alive_timeout(PING_WAIT_MAX);
    http2.max_send_buf_size(config.send_buffer_bytes.min(u32::MAX as usize));
    http2.max_concurrent_streams(config.streams_max).max_header_list_size(u32::try_from(config.head_bytes_max).unwrap_or(u32::MAX));
    let mut http = pin!(builder.serve_connection(TokioIo::new(io), service));
    let (closed, stopped) = (pin!(state.closing()), pin!(stop.wait_for(|stop| *stop)));
    let (mut closing, mut stopping) = (Quiet::new(closed), Quiet::new(stopped));
    let mut told = false;
    loop {
        tokio::select! {
            result = &mut http => {
                if let Err(e) = result {
                    tracing::debug!(error = %e, "a connection ended");
                }
                return;
            }
            () = &mut closing => return,
            _ = &mut stopping, if !told => {
                told = true;
                http.as_mut().graceful_shutdown();
            }
        }
    }
}
