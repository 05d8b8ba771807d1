//! The writes that concern a run's register, its events and what is kept of it: each an UPDATE that names what must hold.
//!
//! Invariant: no statement here changes a run that has an outcome, but to keep its record, to erase it or to delete it.
// contract: C-5

use std::sync::LazyLock;

use lifecycle::effect::not_begun;
use lifecycle::message::Usage;
use lifecycle::{AttemptId, Cause, Delivery, Incarnation, Outcome, OutcomeKind, RunKey};

use super::db::{Arg, Held, Row};
use super::rows::{self, RunRow, life_text, of_run, run_columns, sealed, within};
use super::trouble::Trouble;
use crate::seal::Seal;
use crate::{Hook, StoredEvent, Wake, Wrote};

/// Rows of one INSERT of events.
const EVENTS_AT_ONCE: usize = 16;

const BY_KEY: &str = concat!("SELECT ", run_columns!(), " FROM kvit_run WHERE tenant = $1 AND run = $2");
const BEGIN: &str = "UPDATE kvit_run SET attempt = attempt + 1 \
    WHERE tenant = $1 AND run = $2 AND attempt = $3 AND owner = $4 AND cause IS NULL AND attempt < 4294967295";
const APPEND: &str = "UPDATE kvit_run SET last_event = $5 \
    WHERE tenant = $1 AND run = $2 AND attempt = $3 AND owner = $4 AND cause IS NULL AND last_event = $6 RETURNING id";
const EVENT: &str = "INSERT INTO kvit_event (run, number, body) VALUES ($1, $2, $3)";
const END: &str = "UPDATE kvit_run SET kind = $7, cause = $8, reason = $9, prompt_tokens = $10, cached_tokens = $11, generated_tokens = $12, \
    ended_ms = $13, last_event = $5 \
    WHERE tenant = $1 AND run = $2 AND attempt = $3 AND owner = $4 AND cause IS NULL AND last_event = $6 RETURNING id, last_effect";
const END_WITHOUT_EVENT: &str = "UPDATE kvit_run SET kind = $5, cause = $6, reason = $7, prompt_tokens = $8, cached_tokens = $9, \
    generated_tokens = $10, ended_ms = $11 WHERE tenant = $1 AND run = $2 AND attempt = $3 AND owner = $4 AND cause IS NULL RETURNING id, last_effect";
const RECORD: &str = "UPDATE kvit_run SET delivery = $3, record = CASE WHEN erased = 0 THEN $4 ELSE NULL END \
    WHERE tenant = $1 AND run = $2 AND owner = $5 AND cause IS NOT NULL";
const FOLLOW: &str = "UPDATE kvit_run SET keeps = 2 WHERE tenant = $1 AND run = $2 AND keeps <> 1 AND cause IS NULL";
const KEEP: &str = "UPDATE kvit_run SET keeps = $4 WHERE tenant = $1 AND run = $2 AND owner = $3 AND keeps = 2 AND cause IS NULL";
const ATTEND: &str = "INSERT INTO kvit_reader (run, life) SELECT id, $3 FROM kvit_run WHERE tenant = $1 AND run = $2 AND cause IS NULL \
    ON CONFLICT (run, life) DO UPDATE SET life = excluded.life";
const DEPART: &str = "DELETE FROM kvit_reader WHERE life = $3 AND run = (SELECT id FROM kvit_run WHERE tenant = $1 AND run = $2)";
const WANT: &str = "UPDATE kvit_run SET wanted = COALESCE(wanted, $3) WHERE tenant = $1 AND run = $2 AND cause IS NULL";
const TAKE_OVER: &str = concat!(
    "UPDATE kvit_run SET owner = $4, attempt = CASE WHEN attempt > 4294967295 - $5 THEN 4294967295 ELSE attempt + $5 END \
        WHERE tenant = $1 AND run = $2 AND owner = $3 AND cause IS NULL RETURNING ",
    run_columns!()
);
const ERASE: &str = "UPDATE kvit_run SET request = NULL, record = NULL, erased = 1 \
    WHERE tenant = $1 AND run = $2 AND cause IS NOT NULL RETURNING id";
const ERASE_EVENTS: &str = "DELETE FROM kvit_event WHERE run = $1";
const EFFECT_NAMES: &str = "SELECT name FROM kvit_effect WHERE run = $1";
const INTENDED: &str = "SELECT name FROM kvit_effect WHERE run = $1 AND state = 'intended'";
const NOT_BEGUN: &str =
    "UPDATE kvit_effect SET state = 'failed', detail = $3, updated_ms = $4 WHERE run = $1 AND name = $2 AND state = 'intended'";
const ERASE_EFFECT: &str = "UPDATE kvit_effect SET description = $3, detail = NULL WHERE run = $1 AND name = $2";
const ERASE_HOOKS: &str = "UPDATE kvit_hook SET body = $3 WHERE tenant = $1 AND run = $2 AND due_ms IS NULL";

/// The same for [`EVENTS_AT_ONCE`] events.
static EVENTS: LazyLock<String> = LazyLock::new(|| {
    let rows: Vec<String> = (0..EVENTS_AT_ONCE).map(|i| format!("($1, ${}, ${})", 2 * i + 2, 2 * i + 3)).collect();
    format!("INSERT INTO kvit_event (run, number, body) VALUES {}", rows.join(", "))
});

/// A transaction that writes.
pub(crate) struct Tx<'a> {
    /// Its connection.
    pub held: Held,
    /// How content is kept.
    pub seal: &'a Seal,
    /// What is to be told once it is committed.
    pub wakes: Vec<Wake>,
    /// Content was deleted.
    pub erased: bool,
}

/// The first values of a statement that names a run.
pub(crate) fn named(key: &RunKey) -> Vec<Arg> {
    vec![key.tenant.as_str().into(), key.run.as_str().into()]
}

fn of_attempt(attempt: &AttemptId, owner: Incarnation) -> Vec<Arg> {
    let mut args = named(&attempt.key);
    args.extend([attempt.attempt.into(), life_text(owner).as_str().into()]);
    args
}

fn of_end(args: &mut Vec<Arg>, outcome: &Outcome, usage: Usage, now_ms: i64) {
    args.extend([outcome.kind().as_str().into(), outcome.cause.as_str().into(), outcome.reason.as_deref().into()]);
    args.extend([usage.prompt.into(), usage.cached_prompt.into(), usage.generated.into(), now_ms.into()]);
}

/// Numbered one after the other, from at least 1.
fn consecutive(events: &[StoredEvent]) -> bool {
    let follows = |pair: &[StoredEvent]| pair[0].number.checked_add(1) == Some(pair[1].number);
    events.first().is_some_and(|first| first.number > 0) && events.windows(2).all(follows)
}

impl Tx<'_> {
    /// A run, as this transaction sees it.
    pub async fn run(&mut self, key: &RunKey) -> Result<Option<RunRow>, Trouble> {
        let row = self.held.one(BY_KEY, named(key)).await?;
        row.map(|row| rows::run(&row, self.seal)).transpose()
    }

    /// It changed nothing; why.
    pub async fn stands(&mut self, key: &RunKey) -> Result<Wrote, Trouble> {
        Ok(self.run(key).await?.map_or(Wrote::Absent, |row| Wrote::Stands(Box::new(row.run))))
    }

    pub async fn begin(&mut self, run: RunKey, from: u32, owner: Incarnation) -> Result<Wrote, Trouble> {
        let attempt = AttemptId { key: run, attempt: from };
        match self.held.execute(BEGIN, of_attempt(&attempt, owner)).await? {
            0 => self.stands(&attempt.key).await,
            _ => Ok(Wrote::Done),
        }
    }

    pub async fn append(&mut self, attempt: AttemptId, owner: Incarnation, events: Vec<StoredEvent>) -> Result<Wrote, Trouble> {
        let (Some(first), Some(last), true) = (events.first(), events.last(), consecutive(&events)) else {
            return self.stands(&attempt.key).await;
        };
        let mut args = of_attempt(&attempt, owner);
        args.extend([last.number.into(), (first.number - 1).into()]);
        let Some(row) = self.held.one(APPEND, args).await? else { return self.stands(&attempt.key).await };
        self.insert_events(row.get(0)?, &attempt.key, &events).await?;
        self.wakes.push(Wake::Moved(attempt.key));
        Ok(Wrote::Done)
    }

    async fn insert_events(&mut self, id: i64, key: &RunKey, events: &[StoredEvent]) -> Result<(), Trouble> {
        let rows: Result<Vec<(Arg, Arg)>, Trouble> = events.iter().map(|event| self.event_args(key, event)).collect();
        let mut rows = rows?.into_iter();
        while rows.len() >= EVENTS_AT_ONCE {
            let args = rows.by_ref().take(EVENTS_AT_ONCE).flat_map(|(number, body)| [number, body]);
            let args = std::iter::once(id.into()).chain(args).collect();
            self.held.execute(EVENTS.as_str(), args).await?;
        }
        for (number, body) in rows {
            self.held.execute(EVENT, vec![id.into(), number, body]).await?;
        }
        Ok(())
    }

    fn event_args(&self, key: &RunKey, event: &StoredEvent) -> Result<(Arg, Arg), Trouble> {
        let body = self.seal.seal(&within("event", key, &event.number.to_string()), &event.body)?;
        Ok((event.number.into(), body.into()))
    }

    pub async fn end(
        &mut self,
        (attempt, owner): (AttemptId, Incarnation),
        (outcome, usage): (Outcome, Usage),
        (last, hooks): (Option<StoredEvent>, Vec<Hook>),
        now_ms: i64,
    ) -> Result<Wrote, Trouble> {
        let mut args = of_attempt(&attempt, owner);
        let row: Option<Row> = match &last {
            Some(event) if event.number == 0 => None,
            Some(event) => {
                args.extend([event.number.into(), (event.number - 1).into()]);
                of_end(&mut args, &outcome, usage, now_ms);
                self.held.one(END, args).await?
            }
            None => {
                of_end(&mut args, &outcome, usage, now_ms);
                self.held.one(END_WITHOUT_EVENT, args).await?
            }
        };
        let Some(row) = row else { return self.stands(&attempt.key).await };
        let id: i64 = row.get(0)?;
        if let Some(event) = last {
            self.insert_events(id, &attempt.key, &[event]).await?;
        }
        if row.get::<i64>(1)? > 0 && outcome.kind() != OutcomeKind::Completed {
            self.begin_no_effect(id, &attempt.key, outcome.kind(), now_ms).await?;
        }
        for hook in hooks {
            self.hook(hook).await?;
        }
        self.wakes.push(Wake::Moved(attempt.key));
        Ok(Wrote::Done)
    }

    /// What was intended is not begun any more.
    // contract: C-27
    async fn begin_no_effect(&mut self, id: i64, run: &RunKey, outcome: OutcomeKind, now_ms: i64) -> Result<(), Trouble> {
        for row in self.held.query(INTENDED, vec![id.into()]).await? {
            let name: String = row.get(0)?;
            let detail = self.seal.seal(&within("detail", run, &name), not_begun(Some(outcome)).as_bytes())?;
            self.held.execute(NOT_BEGUN, vec![id.into(), name.as_str().into(), detail.into(), now_ms.into()]).await?;
        }
        Ok(())
    }

    pub async fn record(&mut self, (run, owner): (RunKey, Incarnation), delivery: Delivery, record: &[u8]) -> Result<Wrote, Trouble> {
        let mut args = named(&run);
        args.extend([
            delivery.as_str().into(),
            sealed(self.seal, &of_run("record", &run), Some(record))?.into(),
            life_text(owner).as_str().into(),
        ]);
        match self.held.execute(RECORD, args).await? {
            0 => self.stands(&run).await,
            _ => Ok(Wrote::Done),
        }
    }

    pub async fn want(&mut self, run: RunKey, cause: Cause) -> Result<Wrote, Trouble> {
        let mut args = named(&run);
        args.push(cause.as_str().into());
        match self.held.execute(WANT, args).await? {
            0 => self.stands(&run).await,
            _ => {
                self.wakes.push(Wake::Wanted(run));
                Ok(Wrote::Done)
            }
        }
    }

    pub async fn follow(&mut self, run: RunKey) -> Result<Wrote, Trouble> {
        match self.held.execute(FOLLOW, named(&run)).await? {
            0 => self.stands(&run).await,
            _ => {
                self.wakes.push(Wake::Wanted(run));
                Ok(Wrote::Done)
            }
        }
    }

    pub async fn attend(&mut self, run: RunKey, by: Incarnation) -> Result<Wrote, Trouble> {
        let mut args = named(&run);
        args.push(life_text(by).as_str().into());
        match self.held.execute(ATTEND, args).await? {
            0 => self.stands(&run).await,
            _ => {
                self.wakes.push(Wake::Wanted(run));
                Ok(Wrote::Done)
            }
        }
    }

    pub async fn depart(&mut self, run: RunKey, by: Incarnation) -> Result<Wrote, Trouble> {
        let mut args = named(&run);
        args.push(life_text(by).as_str().into());
        if self.held.execute(DEPART, args).await? > 0 {
            self.wakes.push(Wake::Wanted(run));
        }
        Ok(Wrote::Done)
    }

    pub async fn keep(&mut self, run: RunKey, owner: Incarnation, keeps: bool) -> Result<Wrote, Trouble> {
        let mut args = named(&run);
        args.extend([life_text(owner).as_str().into(), keeps.into()]);
        match self.held.execute(KEEP, args).await? {
            0 => self.stands(&run).await,
            _ => {
                self.wakes.push(Wake::Moved(run));
                Ok(Wrote::Done)
            }
        }
    }

    pub async fn take_over(&mut self, run: RunKey, from: Incarnation, to: Incarnation, skip: u32) -> Result<Wrote, Trouble> {
        let mut args = named(&run);
        args.extend([life_text(from).as_str().into(), life_text(to).as_str().into(), skip.into()]);
        let Some(row) = self.held.one(TAKE_OVER, args).await? else { return self.stands(&run).await };
        self.wakes.push(Wake::Moved(run));
        Ok(Wrote::Taken(Box::new(rows::run(&row, self.seal)?.run)))
    }

    pub async fn erase(&mut self, run: RunKey) -> Result<Wrote, Trouble> {
        let Some(row) = self.held.one(ERASE, named(&run)).await? else { return self.stands(&run).await };
        let id: i64 = row.get(0)?;
        self.held.execute(ERASE_EVENTS, vec![id.into()]).await?;
        for row in self.held.query(EFFECT_NAMES, vec![id.into()]).await? {
            let name: String = row.get(0)?;
            let nothing = self.seal.seal(&within("description", &run, &name), b"")?;
            self.held.execute(ERASE_EFFECT, vec![id.into(), name.as_str().into(), nothing.into()]).await?;
        }
        let mut args = named(&run);
        args.push(Vec::new().into());
        self.held.execute(ERASE_HOOKS, args).await?;
        self.erased = true;
        Ok(Wrote::Done)
    }
}
