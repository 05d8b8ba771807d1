//! The judge's side of a tap: asks it for what it saw, and says it in the judge's own time.
//!
//! Two clocks are never compared without saying how well: a tap is asked for its clock several times, the quickest answer counts, and half
//! of the time that it took is how wrong the comparison can be.
//!
//! Invariant: a time that two clocks were compared for comes with how wrong it can be.

use std::time::{Duration, Instant};

use http::Method;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::super::result::TapSaw;
use super::super::target::{CallerError, Driver, Target, whole};
use super::super::wire::Speaks;
use super::control::escape;
use super::saw::saw;
use super::{Page, Which};

/// How often a clock is asked.
const ASKED: usize = 8;

/// Why a tap says nothing.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// It could not be asked.
    #[error("the tap at {0} cannot be asked: {1}; is that what it printed behind `reporting on`?")]
    Call(String, CallerError),
    /// What answers is no tap.
    #[error("what answers at {0} is no tap: {1}")]
    Answer(String, String),
}

/// A tap's clock, held against the judge's.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    at: Instant,
    ns: u64,
    /// How wrong a time that was converted can be, either way.
    pub error: Duration,
}

impl Clock {
    /// A time of the tap's as milliseconds after an instant of the judge's.
    pub fn ms_after(&self, ns: u64, instant: Instant) -> f64 {
        (i128::from(ns) - self.ns_of(instant)) as f64 / 1e6
    }

    /// An instant of the judge's in the tap's time. It may be before the tap's beginning.
    pub fn ns_of(&self, instant: Instant) -> i128 {
        let nanos = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
        let since = instant.checked_duration_since(self.at).map_or_else(|| -nanos(self.at.duration_since(instant)), nanos);
        i128::from(self.ns) + since
    }
}

/// One tap, from the judge's side.
#[derive(Clone, Debug)]
pub struct TapClient {
    target: Target,
    /// The hop that it stands in front of, where somebody said so; else it is called what it calls itself.
    hop: Option<String>,
}

impl TapClient {
    /// The one that reports on `HOST:PORT`.
    ///
    /// # Errors
    /// That is no address.
    pub fn new(address: &str) -> Result<TapClient, String> {
        let target = Target::parse(&format!("http://{}", address.trim_start_matches("http://")));
        target
            .map(|target| TapClient { target, hop: None })
            .map_err(|_| format!("`{address}` is no address of a tap; it looks like 127.0.0.1:8002"))
    }

    /// The same, in front of this hop.
    pub fn of_hop(self, hop: &str) -> TapClient {
        TapClient { hop: Some(hop.to_owned()), ..self }
    }

    /// Its clock.
    ///
    /// # Errors
    /// [`TapError`].
    pub async fn clock(&self) -> Result<Clock, TapError> {
        self.talk(async |asking| asking.clock().await).await
    }

    /// What it saw: one page.
    ///
    /// # Errors
    /// [`TapError`].
    pub async fn page(&self, which: &Which) -> Result<Page, TapError> {
        self.talk(async |asking| asking.page(which).await).await
    }

    /// What it saw of an id, in times since a trigger.
    ///
    /// # Errors
    /// [`TapError`].
    pub async fn saw(&self, id: &str, trigger: Instant) -> Result<TapSaw, TapError> {
        let which = Which::Id(id.to_owned());
        let (clock, page) = self.talk(async |asking| Ok((asking.clock().await?, asking.page(&which).await?))).await?;
        let seen = saw(&page, &clock, trigger);
        Ok(TapSaw { name: self.hop.clone().unwrap_or(seen.name), ..seen })
    }

    async fn talk<T>(&self, ask: impl AsyncFnOnce(&mut Asking<'_>) -> Result<T, TapError>) -> Result<T, TapError> {
        let all = async {
            let socket = self.target.connect(Speaks::Http1).await.map_err(|e| self.failed(e.into()))?;
            let (sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.map_err(|e| self.failed(e.into()))?;
            let driver = Driver::new(tokio::spawn(async move { drop(connection.await) }));
            let said = ask(&mut Asking { tap: self, sender }).await;
            drop(driver);
            said
        };
        tokio::time::timeout(self.target.patience, all).await.unwrap_or_else(|_| Err(self.failed(CallerError::Late)))
    }

    fn failed(&self, error: CallerError) -> TapError {
        TapError::Call(self.target.authority.clone(), error)
    }

    fn no_tap(&self, why: impl Into<String>) -> TapError {
        TapError::Answer(self.target.authority.clone(), why.into())
    }
}

/// One connection to a tap.
struct Asking<'a> {
    tap: &'a TapClient,
    sender: SendRequest<http_body_util::Full<bytes::Bytes>>,
}

impl Asking<'_> {
    async fn ask(&mut self, path: &str) -> Result<Vec<u8>, TapError> {
        let failed = |error: CallerError| self.tap.failed(error);
        let request = self.tap.target.request(Method::GET, path, None, bytes::Bytes::new()).map_err(failed)?;
        self.sender.ready().await.map_err(|e| self.tap.failed(e.into()))?;
        let answer = self.sender.send_request(request).await.map_err(|e| self.tap.failed(e.into()))?;
        let status = answer.status();
        let text = whole(answer.into_body()).await.map_err(|e| self.tap.failed(e))?;
        if status.is_success() { Ok(text) } else { Err(self.tap.no_tap(format!("{path} gives {status}"))) }
    }

    async fn clock(&mut self) -> Result<Clock, TapError> {
        let mut best: Option<Clock> = None;
        for _ in 0..ASKED {
            let before = Instant::now();
            let text = self.ask("/clock").await?;
            let took = before.elapsed();
            let said: Value = serde_json::from_slice(&text).map_err(|e| self.tap.no_tap(e.to_string()))?;
            let ns = said["now_ns"].as_u64().ok_or_else(|| self.tap.no_tap("its clock has no `now_ns`"))?;
            let clock = Clock { at: before + took / 2, ns, error: took / 2 };
            if best.is_none_or(|best| clock.error < best.error) {
                best = Some(clock);
            }
        }
        best.ok_or_else(|| self.tap.no_tap("it has no clock"))
    }

    async fn page(&mut self, which: &Which) -> Result<Page, TapError> {
        let path = match which {
            Which::Id(id) => format!("/exchanges?id={}", escape(id)),
            Which::After(number) => format!("/exchanges?after={number}"),
        };
        let text = self.ask(&path).await?;
        serde_json::from_slice(&text).map_err(|e| self.tap.no_tap(e.to_string()))
    }
}
