//! Who speaks with the engine thread: a gateway in this process over channels, or gateways in others over sessions.
//!
//! The sessions' state lives here and nowhere else, so that between a gateway's word and the next plan nothing can come (C-9). What the pure
//! side wants done waits in one queue and is carried out in order, the engine's answers behind what caused them.
//!
//! Invariant: nobody is waited for: a frame that a session's outlet has no room for is dropped, and comes again.
// contract: C-3, C-9, C-10, C-23

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use engine::Input;
use lifecycle::event::{Event, Record};
use lifecycle::message::{Down, From, Snapshot, Up};
use lifecycle::session::{Frame, Hello, PeerCut, PeerState, Refused, Welcome, WorkerEffect, WorkerSide};
use lifecycle::{AttemptId, Cause, Incarnation, Time};
use protocol::limits::RECORDS_MAX;
use tokio::sync::{mpsc, oneshot};

use crate::door::Session;
use crate::engine_thread::EngineThread;

/// Where a session's frames go.
pub type Outlet = mpsc::Sender<Frame<Up>>;

/// A worker's sessions at one moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SessionsCut {
    /// Gateways by name.
    pub gateways: Vec<PeerCut>,
    /// How much lies in the tables, by name. All but `gateways` are 0 at rest.
    pub held: Vec<(&'static str, u32)>,
    /// Messages of other lives or tenures that changed nothing (C-3).
    pub stale: u64,
}

/// Who speaks with the engine thread.
pub(crate) enum Links {
    /// A gateway in this process: its session is never lost, so nothing is suspended and there is no lease.
    Local {
        up: mpsc::Sender<From<Up>>,
        /// The newest life that was heard.
        gateway: Option<Incarnation>,
    },
    /// Gateways in other processes.
    Sessions(Box<Sessions>),
}

/// An open connection.
struct Connection {
    /// Which, of all that this worker ever had.
    id: u64,
    /// Its number in its gateway's life.
    session: u64,
    outlet: Outlet,
}

pub(crate) struct Sessions {
    side: WorkerSide,
    /// Each gateway's newest connection, while it is open.
    open: HashMap<Arc<str>, Connection>,
    /// Connections so far. A gateway's own number of one is not enough: its next life counts from 1 again.
    connections: u64,
    pending: VecDeque<WorkerEffect>,
    /// How each gateway stood when the journal was last told.
    told: BTreeMap<Arc<str>, PeerState>,
    /// What happened to attempts since something was last said.
    records: Vec<Record>,
    /// Those who wait until everything is acknowledged, and until when.
    flushes: Vec<(Time, oneshot::Sender<()>)>,
    /// Attempts that were orphaned, and times that one was suspended.
    orphaned: u64,
    suspensions: u64,
}

impl Sessions {
    pub(crate) fn new(side: WorkerSide) -> Sessions {
        Sessions {
            side,
            open: HashMap::new(),
            connections: 0,
            pending: VecDeque::new(),
            told: BTreeMap::new(),
            records: Vec::new(),
            flushes: Vec::new(),
            orphaned: 0,
            suspensions: 0,
        }
    }

    fn send(&self, gateway: &str, session: u64, frame: Frame<Up>) {
        if let Some(connection) = self.open.get(gateway).filter(|c| c.session == session) {
            // Full: one slow gateway never holds up the engine. Closed: its end is on its way.
            let _ = connection.outlet.try_send(frame);
        }
    }

    /// What happened goes out before what is said of it.
    // contract: C-24
    fn tell_records(&mut self, now: Time) {
        let mut records = std::mem::take(&mut self.records).into_iter().peekable();
        while records.peek().is_some() {
            let records = records.by_ref().take(RECORDS_MAX.default as usize).collect();
            let effects = self.side.said(Up::Records { records }, now);
            self.pending.extend(effects);
        }
    }

    fn is_acknowledged(&self) -> bool {
        self.side.gateways().iter().all(|peer| peer.waiting == 0 || !self.open.contains_key(&peer.gateway))
    }

    fn held(&self, kind: &str) -> u32 {
        self.side.held().iter().filter(|(name, _)| *name == kind).map(|(_, n)| n).sum()
    }
}

impl Links {
    pub(crate) const fn has_sessions(&self) -> bool {
        matches!(self, Links::Sessions(_))
    }

    /// Whether the gateway in this process that speaks is its newest life.
    pub(crate) fn is_current(&mut self, life: Incarnation) -> bool {
        match self {
            Links::Local { gateway, .. } if gateway.is_none_or(|newest| life >= newest) => {
                *gateway = Some(life);
                true
            }
            _ => false,
        }
    }

    /// Keeps a record for the gateway that it concerns. One in this process has the same journal.
    pub(crate) fn keep(&mut self, record: &Record) {
        if let Links::Sessions(sessions) = self
            && record.event.crosses()
            && record.attempt().is_some()
        {
            sessions.records.push(record.clone());
        }
    }

    pub(crate) fn is_orphaned(&self, attempt: &AttemptId) -> bool {
        match self {
            Links::Local { .. } => false,
            Links::Sessions(sessions) => sessions.side.is_orphaned(attempt),
        }
    }

    /// Cancels that wait for their submit before the engine.
    pub(crate) fn tombstones(&self) -> u32 {
        match self {
            Links::Local { .. } => 0,
            Links::Sessions(sessions) => sessions.held("tombstones"),
        }
    }

    /// What the sessions count, for a cut of the worker's state: its process shows no page of its own.
    // contract: C-3, C-23
    pub(crate) fn count(&self, snapshot: &mut Snapshot) {
        if let Links::Sessions(sessions) = self {
            (snapshot.orphaned_attempts, snapshot.suspensions) = (sessions.orphaned, sessions.suspensions);
            snapshot.stale_messages = sessions.side.stale();
        }
    }

    pub(crate) fn cut(&self) -> SessionsCut {
        match self {
            Links::Local { .. } => SessionsCut::default(),
            Links::Sessions(sessions) => {
                let side = &sessions.side;
                SessionsCut { gateways: side.gateways(), held: side.held().to_vec(), stale: side.stale() }
            }
        }
    }

    pub(crate) fn next_due(&self) -> Option<Time> {
        match self {
            Links::Local { .. } => None,
            Links::Sessions(sessions) => sessions.flushes.iter().map(|(by, _)| *by).chain(sessions.side.next_due()).min(),
        }
    }

    pub(crate) fn flush_by(&mut self, by: Time, reply: oneshot::Sender<()>) {
        match self {
            Links::Sessions(sessions) => sessions.flushes.push((by, reply)),
            // Channels lose nothing.
            Links::Local { .. } => drop(reply.send(())),
        }
    }

    pub(crate) fn answer_flushes(&mut self, now: Time) {
        let Links::Sessions(sessions) = self else { return };
        if sessions.flushes.is_empty() {
            return;
        }
        let all = sessions.is_acknowledged();
        for (by, reply) in std::mem::take(&mut sessions.flushes) {
            if all || by <= now {
                let _ = reply.send(());
            } else {
                sessions.flushes.push((by, reply));
            }
        }
    }
}

impl EngineThread {
    /// Says something to whom it concerns.
    pub(crate) fn say(&mut self, message: Up) {
        let (incarnation, now) = (self.incarnation, self.now());
        match &mut self.links {
            // An error means that the gateway side is gone; the engine goes on until it is told to stop.
            Links::Local { up, .. } => drop(up.blocking_send(From { incarnation, message })),
            Links::Sessions(sessions) => {
                sessions.tell_records(now);
                let effects = sessions.side.said(message, now);
                sessions.pending.extend(effects);
            }
        }
    }

    /// To every gateway: no further attempt is taken.
    pub(crate) fn say_draining(&mut self) {
        if self.links.has_sessions() {
            self.say(Up::Draining);
        }
    }

    pub(crate) fn hello(&mut self, hello: &Hello, outlet: Outlet, reply: oneshot::Sender<Result<(Welcome, Session), Refused>>) {
        let now = self.now();
        let Links::Sessions(sessions) = &mut self.links else { return };
        let answer = match sessions.side.hello(hello, now) {
            Ok((welcome, effects)) => {
                sessions.connections += 1;
                let id = sessions.connections;
                sessions.open.insert(hello.gateway.clone(), Connection { id, session: hello.session, outlet });
                sessions.pending.extend(effects);
                let (gateway, incarnation, session) = (hello.gateway.clone(), hello.incarnation, hello.session);
                tracing::info!(%gateway, %incarnation, session, tenure = welcome.tenure, "session opened");
                self.journal.record(None, 0, Event::SessionOpened { gateway, incarnation, session });
                Ok((welcome, Session::new(self.mailbox.clone(), self.journal.clock(), hello.gateway.clone(), id)))
            }
            Err(refused) => {
                tracing::warn!(gateway = %hello.gateway, incarnation = %hello.incarnation, %refused, "session refused");
                if !matches!(refused, Refused::TooManyGateways { .. }) {
                    self.journal.record(None, 0, Event::StaleMessage);
                }
                Err(refused)
            }
        };
        // Nobody there any more: what comes back is dropped, and with it the session is over.
        drop(reply.send(answer));
    }

    pub(crate) fn hear(&mut self, gateway: &str, connection: u64, frame: Frame<Down>, arrived: Time) {
        let now = self.now();
        let Links::Sessions(sessions) = &mut self.links else { return };
        // Of a session that a newer one has replaced nothing is taken; the lanes send it again.
        if sessions.open.get(gateway).is_some_and(|c| c.id == connection) {
            let effects = sessions.side.hear(gateway, frame, now);
            sessions.pending.extend(effects);
            self.settle_as_of(arrived);
        }
    }

    pub(crate) fn closed(&mut self, gateway: &str, connection: u64) {
        let Links::Sessions(sessions) = &mut self.links else { return };
        // Otherwise a newer one has its place.
        let Some(Connection { session, .. }) = sessions.open.get(gateway).filter(|c| c.id == connection) else { return };
        let session = *session;
        sessions.open.remove(gateway);
        sessions.side.closed(gateway, session);
        tracing::info!(%gateway, session, "session closed");
        self.journal.record(None, 0, Event::SessionClosed { gateway: gateway.into(), session });
    }

    /// Who is silent, whose lease is over. Before every step.
    pub(crate) fn look_at_sessions(&mut self) {
        let now = self.now();
        let Links::Sessions(sessions) = &mut self.links else { return };
        let effects = sessions.side.tick(now);
        sessions.pending.extend(effects);
        self.settle();
    }

    /// Carries out what the sessions want done, and what follows from that.
    pub(crate) fn settle(&mut self) {
        self.settle_as_of(self.now());
    }

    /// The same, for what arrived at some time.
    fn settle_as_of(&mut self, arrived: Time) {
        while let Some(effect) = self.next_effect() {
            match effect {
                WorkerEffect::Send { gateway, session, frame } => {
                    if let Links::Sessions(sessions) = &self.links {
                        sessions.send(&gateway, session, *frame);
                    }
                }
                WorkerEffect::Submit(submit) => self.submit(*submit),
                WorkerEffect::Cancel { attempt, cause, number } => {
                    if cause == Cause::Orphaned && self.engine.knows(&attempt) {
                        if let Links::Sessions(sessions) = &mut self.links {
                            sessions.orphaned += 1;
                        }
                        tracing::warn!(run = %attempt.key.run, attempt = attempt.attempt, "no gateway claims this attempt: it ends");
                        self.note(&attempt, self.now(), Event::Orphaned);
                    }
                    self.cancel(attempt, cause, number, arrived);
                }
                WorkerEffect::Suspend(attempt) => {
                    if let Links::Sessions(sessions) = &mut self.links {
                        sessions.suspensions += u64::from(self.answers.contains_key(&attempt));
                    }
                    self.move_known(attempt, Event::Suspended, |attempt| Input::Suspend { attempt });
                }
                WorkerEffect::Attach(attempt) => self.move_known(attempt, Event::Attached, |attempt| Input::Attach { attempt }),
                WorkerEffect::Stale => self.journal.record(None, 0, Event::StaleMessage),
            }
        }
        self.tell_states();
    }

    fn next_effect(&mut self) -> Option<WorkerEffect> {
        let now = self.now();
        let Links::Sessions(sessions) = &mut self.links else { return None };
        if sessions.pending.is_empty() {
            sessions.tell_records(now);
        }
        sessions.pending.pop_front()
    }

    fn move_known(&mut self, attempt: AttemptId, event: Event, input: impl FnOnce(AttemptId) -> Input) {
        // What has ended meanwhile stays as it is.
        if self.answers.contains_key(&attempt) {
            self.note(&attempt, self.now(), event);
            self.apply(input(attempt));
        }
    }

    /// Tells the journal who stands otherwise than before.
    fn tell_states(&mut self) {
        let Links::Sessions(sessions) = &mut self.links else { return };
        let (side, told) = (&sessions.side, &mut sessions.told);
        let changed = side.states().filter(|(name, state)| told.get(*name) != Some(state));
        let mut news: Vec<(Arc<str>, Option<PeerState>)> = changed.map(|(name, state)| (name.clone(), Some(state))).collect();
        let strangers = news.iter().filter(|(name, _)| !told.contains_key(name)).count();
        if told.len() + strangers > side.states().count() {
            let there: BTreeSet<&Arc<str>> = side.states().map(|(name, _)| name).collect();
            news.extend(told.keys().filter(|name| !there.contains(name)).map(|name| (name.clone(), None)));
        }
        for (gateway, state) in news {
            match state {
                Some(state) => drop(told.insert(gateway.clone(), state)),
                None => {
                    told.remove(&gateway);
                    // A connection of a gateway that nothing is known of any more: it has to say hello again.
                    if let Some(Connection { session, .. }) = sessions.open.remove(&gateway) {
                        self.journal.record(None, 0, Event::SessionClosed { gateway: gateway.clone(), session });
                    }
                }
            }
            tracing::info!(%gateway, state = state.map_or("forgotten", PeerState::as_str), "gateway");
            self.journal.record(None, 0, Event::Gateway { gateway, state });
        }
    }
}
