//! Which engine an upstream is, and which models it has, by what it answers to a few harmless questions.
//!
//! Gateways in front of an engine pass on some of these questions and not others, so counters count only if they were seen, and the kind
//! says why it was chosen. The counters are looked at once: an engine may not like more. Whoever says that it is a kvit is asked for a run
//! that nobody has: one that answers yes to whatever it is asked has no record of any.
//!
//! Invariant: whatever it answers, and if it answers nothing, there is a kind; only an upstream that could not be reached is no upstream.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde::Deserialize;

use super::abort::nobodys;
use super::client::{CallError, Client, Limits};
use super::config::{MODELS_MAX, SLOTS_MAX, UpstreamConfig};
use super::counters;
use super::json::{List, Number, Object, Text};
use super::kind::Kind;

const VERSION: &str = "/version";
const PROPS: &str = "/props";
/// LiteLLM's question whether it is there, which asks none of its models for anything, unlike `/health`.
const LIVELINESS: &str = "/health/liveliness";
/// Whose models a kvit's are.
const KVIT: &str = "kvit";
/// What a kvit says of a run that it never had.
const NO_SUCH_RUN: &str = "run_not_found";
/// Longest text that is taken out of an answer.
const TEXT_BYTES_MAX: usize = 256;

/// What an upstream is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Detected {
    /// Which engine.
    pub kind: Kind,
    /// Why that one, for people: what was asked and what it answered.
    pub why: String,
    /// What may prove something was seen: its counters, or, of a kvit, that it keeps records of runs.
    pub counters: bool,
    /// How many engines its counters are of, as far as they say so.
    pub engines: usize,
    /// The models that it says it has.
    pub models: Vec<Model>,
    /// Requests that it computes at once, if it says that.
    pub slots: Option<u32>,
    /// Its release, if it says that.
    pub version: Option<String>,
    /// It is another kvit, which takes the time that a run has left.
    pub is_kvit: bool,
    /// It is LiteLLM, which takes it, too, in a word of its own.
    pub is_litellm: bool,
    /// When its process began, in milliseconds of the calendar, if its counters say that.
    pub started: Option<u64>,
    /// Which life of a kvit it is, if its counters say that.
    pub life: Option<String>,
}

impl Detected {
    /// Whether this is another engine than the one that `former` was: what that one had is nothing that this one shows. The same engine may
    /// have other models than before; whether it is the same is only known of one that says when it began.
    pub fn is_another(&self, former: &Detected) -> bool {
        let is_same_kind =
            (self.kind, self.counters, self.engines, &self.version) == (former.kind, former.counters, former.engines, &former.version);
        let born = |of: &Detected| (of.started, of.life.clone());
        let is_same = match (born(self), born(former)) {
            ((None, None), (None, None)) => self.is_like(former),
            (born, before) => born == before,
        };
        !(is_same_kind && is_same)
    }

    /// Whether it has the same models, in whatever order, and slots.
    fn is_like(&self, former: &Detected) -> bool {
        let within = |some: &[Model], all: &[Model]| some.iter().all(|model| all.contains(model));
        self.slots == former.slots && within(&self.models, &former.models) && within(&former.models, &self.models)
    }
}

/// One model of an upstream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// Its name.
    pub id: String,
    /// Most tokens of prompt and answer, if it says that.
    pub context: Option<u64>,
}

/// What one question was answered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Seen {
    /// A status and a text.
    Answer(u16, String),
    /// Nothing that can be read.
    Nothing(CallError),
    /// It was not asked.
    NotAsked,
}

impl Seen {
    fn good(&self) -> Option<&str> {
        match self {
            Seen::Answer(200, text) => Some(text),
            _ => None,
        }
    }

    fn object<'a, T: Deserialize<'a>>(&'a self) -> Option<T> {
        serde_json::from_str::<Object<T>>(self.good()?).ok()?.0
    }

    fn word(&self) -> String {
        match self {
            Seen::Answer(status @ (401 | 403), _) => format!("status {status}: it wants a key, or another one (key_file)"),
            Seen::Answer(status, _) => format!("status {status}"),
            Seen::Nothing(error) => error.to_string(),
            Seen::NotAsked => "not asked".to_owned(),
        }
    }
}

/// The answers to all questions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answers {
    /// `/v1/models`.
    pub models: Seen,
    /// `/metrics`.
    pub metrics: Seen,
    /// `/version`.
    pub version: Seen,
    /// `/server_info`, or `/get_server_info` before it was called that.
    pub server_info: Seen,
    /// `/props`.
    pub props: Seen,
    /// A run that nobody has, as a kvit would be asked for it.
    pub runs: Seen,
}

impl Answers {
    fn unasked(models: Seen, metrics: Seen) -> Answers {
        let no = || Seen::NotAsked;
        Answers { models, metrics, version: no(), server_info: no(), props: no(), runs: no() }
    }

    fn owner(&self) -> Option<Cow<'_, str>> {
        self.models.object::<Models<'_>>()?.data.0.into_iter().find_map(|info| info.owned_by.0)
    }
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Models<'a> {
    data: List<ModelInfo<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ModelInfo<'a> {
    id: Text<'a>,
    owned_by: Text<'a>,
    max_model_len: Number,
    meta: Object<Meta>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Meta {
    n_ctx: Number,
    n_ctx_train: Number,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Refusal<'a> {
    error: Object<Code<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Code<'a> {
    code: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Version<'a> {
    version: Text<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct ServerInfo<'a> {
    version: Text<'a>,
    max_running_requests: Number,
    max_total_num_tokens: Number,
    tp_size: Number,
}

#[derive(Deserialize, Default)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct Props<'a> {
    total_slots: Number,
    build_info: Text<'a>,
    default_generation_settings: Object<Settings>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Settings {
    n_ctx: Number,
}

/// Asks, and decides.
///
/// # Errors
/// [`CallError`]: nobody could be reached.
pub async fn detect(client: &Client, config: &UpstreamConfig) -> Result<Detected, CallError> {
    let limits = limits(config);
    let models = match look(client, "/v1/models", limits).await {
        Seen::Nothing(error @ CallError::NotSent(_)) => return Err(error),
        seen => seen,
    };
    let metrics = if config.kind == Some(Kind::OpenAi) { Seen::NotAsked } else { look(client, "/metrics", limits).await };
    let mut answers = Answers::unasked(models, metrics);
    if let (Seen::Nothing(_), Seen::Nothing(_)) = (&answers.models, &answers.metrics) {
        // It hangs or breaks off whatever it is asked.
        return Ok(decide(config.kind, &answers));
    }
    let ours = || answers.owner().is_some_and(|owner| owner == KVIT).then_some(Kind::Kvit);
    let kind = config.kind.or_else(|| answers.metrics.good().and_then(counters::whose)).or_else(ours);
    let asks = |of: Kind| kind.is_none_or(|kind| kind == of);
    if kind == Some(Kind::Kvit) {
        answers.runs = look(client, &nobodys(), limits).await;
    }
    if asks(Kind::Vllm) {
        answers.version = look(client, VERSION, limits).await;
    }
    if asks(Kind::Sglang) {
        answers.server_info = look(client, "/server_info", limits).await;
        if answers.server_info.good().is_none() {
            answers.server_info = look(client, "/get_server_info", limits).await;
        }
    }
    if asks(Kind::LlamaCpp) {
        answers.props = look(client, PROPS, limits).await;
    }
    let mut found = decide(config.kind, &answers);
    // Where the configuration says how it is told of deadlines there is nothing to learn by it.
    if found.kind == Kind::OpenAi && !found.is_kvit && config.deadline.is_none() {
        let alive = look(client, LIVELINESS, limits).await;
        found.is_litellm = alive.good().is_some_and(|text| text.trim() == "\"I'm alive!\"");
    }
    if found.is_litellm {
        found.why.push_str("; it says that it is alive as LiteLLM does, so it is told of deadlines as that is");
    }
    Ok(found)
}

/// Whether it still answers as one that was `met`, asked for what costs it nothing: its counters only if they say when it began, or were not
/// seen before.
pub async fn is_as_met(client: &Client, config: &UpstreamConfig, met: &Detected) -> bool {
    let limits = limits(config);
    let mut answers = Answers::unasked(look(client, "/v1/models", limits).await, Seen::NotAsked);
    match met.kind {
        Kind::Kvit => answers.runs = look(client, &nobodys(), limits).await,
        Kind::Vllm => answers.version = look(client, VERSION, limits).await,
        Kind::LlamaCpp => answers.props = look(client, PROPS, limits).await,
        Kind::Sglang | Kind::OpenAi => {}
    }
    let shows = met.kind == Kind::Kvit || met.kind.capabilities().fresh.is_some();
    if shows && (met.started.is_some() || met.life.is_some() || !met.counters) {
        answers.metrics = look(client, "/metrics", limits).await;
    }
    if matches!(answers.models, Seen::Nothing(_) | Seen::Answer(500.., _)) {
        return false;
    }
    // It is there; and a question that it had no time for says nothing else.
    if [&answers.metrics, &answers.version, &answers.props, &answers.runs].into_iter().any(|seen| matches!(seen, Seen::Nothing(_))) {
        return true;
    }
    let asked = answers.metrics != Seen::NotAsked;
    let mut now = decide(Some(met.kind), &answers);
    if !asked && met.kind != Kind::Kvit {
        (now.counters, now.engines, now.started) = (met.counters, met.engines, met.started);
    }
    if met.kind == Kind::Sglang {
        (now.slots, now.version) = (met.slots, met.version.clone());
    }
    now.is_like(met) && !now.is_another(met)
}

fn limits(config: &UpstreamConfig) -> Limits {
    Limits { head_timeout: config.look_timeout, idle_timeout: config.look_timeout, answer_bytes_max: config.look_bytes_max }
}

async fn look(client: &Client, path: &str, limits: Limits) -> Seen {
    let all = async {
        let answer = client.get(path, limits).await?;
        let status = answer.status;
        let body = answer.whole().await?;
        Ok(Seen::Answer(status, String::from_utf8_lossy(&body).into_owned()))
    };
    // One that drips is no quicker for each of its drops.
    let slow = CallError::Lost(super::client::Lost::IdleTimeout(limits.idle_timeout));
    tokio::time::timeout(limits.idle_timeout * 2, all).await.unwrap_or(Err(slow)).unwrap_or_else(Seen::Nothing)
}

/// Whether this is what a kvit answers to whoever asks for a run that nobody has.
// contract: C-29
fn keeps_runs(seen: &Seen) -> bool {
    matches!(seen, Seen::Answer(404, text) if says_no_run(text.as_bytes()))
}

/// Whether an answer of 404 is a kvit's that has no such run, and not somebody's that has no such place.
pub(crate) fn says_no_run(answer: &[u8]) -> bool {
    let refusal = serde_json::from_slice::<Object<Refusal<'_>>>(answer).ok().and_then(|object| object.0);
    refusal.and_then(|refusal| refusal.error.0).and_then(|error| error.code.0).is_some_and(|code| code == NO_SUCH_RUN)
}

/// Whether no kvit answers so, whoever asks and however busy it is.
fn keeps_none(seen: &Seen) -> bool {
    matches!(seen, Seen::Answer(status, _) if *status < 500 && !matches!(status, 401 | 403 | 429)) && !keeps_runs(seen)
}

/// Which kind it is, by what it answered. `told` is what the configuration says, which nobody overrules.
pub fn decide(told: Option<Kind>, answers: &Answers) -> Detected {
    let mut models = Vec::new();
    let mut owner = None;
    for info in answers.models.object::<Models<'_>>().unwrap_or_default().data.0 {
        let Some(id) = info.id.0.filter(|id| !id.is_empty() && id.len() <= TEXT_BYTES_MAX && models.len() < MODELS_MAX) else { continue };
        owner = owner.or(info.owned_by.0);
        let meta = info.meta.0.unwrap_or_default();
        models.push(Model { id: id.into_owned(), context: info.max_model_len.0.or(meta.n_ctx.0).or(meta.n_ctx_train.0) });
    }
    let counted = answers.metrics.good().and_then(counters::whose);
    let info = answers.server_info.object::<ServerInfo<'_>>().filter(|i| i.tp_size.0.is_some() || i.max_total_num_tokens.0.is_some());
    let props = answers.props.object::<Props<'_>>().filter(|p| p.total_slots.0.is_some());
    let is_kvits = owner.as_deref() == Some(KVIT);
    let (kind, mut why) = match (told, counted, &info, &props, owner.as_deref()) {
        (Some(kind), ..) => (kind, "the configuration says so".to_owned()),
        (_, Some(kind), ..) => (kind, format!("its counters are {kind}'s")),
        (.., Some(KVIT)) if !keeps_none(&answers.runs) => (Kind::Kvit, "its models are owned by kvit".to_owned()),
        (.., Some(_), _, _) => (Kind::Sglang, "it has server_info as sglang has it".to_owned()),
        (.., Some(_), _) => (Kind::LlamaCpp, "it has props with slots as llamacpp has them".to_owned()),
        (.., Some("vllm")) => (Kind::Vllm, "its models are owned by vllm".to_owned()),
        (.., Some("sglang")) => (Kind::Sglang, "its models are owned by sglang".to_owned()),
        (.., Some("llamacpp")) => (Kind::LlamaCpp, "its models are owned by llamacpp".to_owned()),
        _ => (Kind::OpenAi, "nothing in its answers is another engine's".to_owned()),
    };
    let is_kvit = kind == Kind::Kvit || (kind == Kind::OpenAi && is_kvits);
    let counters = if kind == Kind::Kvit { keeps_runs(&answers.runs) } else { counted == Some(kind) };
    let engines = answers.metrics.good().map_or(0, |page| counters::engines(kind, page));
    if engines > 1 {
        let _ = write!(why, "; its counters are of {engines} engines, so no cancel can be proven");
    }
    if kind == Kind::OpenAi && is_kvits && keeps_none(&answers.runs) {
        let _ = write!(
            why,
            "; its models are owned by kvit, and it answers for a run that nobody has as no kvit does ({})",
            answers.runs.word()
        );
    }
    if !counters && kind == Kind::Kvit {
        let _ = write!(why, "; its records of runs were not seen ({}), so no cancel can be proven", answers.runs.word());
    } else if !counters && kind != Kind::OpenAi {
        let _ = write!(why, "; its counters were not seen (/metrics: {}), so no cancel can be proven", answers.metrics.word());
    }
    if models.is_empty() {
        let _ = write!(why, "; it names no model (/v1/models: {})", answers.models.word());
    }
    let (mut slots, mut version, mut life) = (None, None, None);
    match kind {
        Kind::Kvit => {
            let shown = answers.metrics.good().and_then(counters::kvit).map(|(version, life)| (version.into(), life));
            (version, life) = shown.unzip();
        }
        Kind::Vllm => version = answers.version.object::<Version<'_>>().and_then(|v| v.version.0),
        Kind::Sglang => {
            let info = info.unwrap_or_default();
            (slots, version) = (info.max_running_requests.0, info.version.0);
        }
        Kind::LlamaCpp => {
            let props = props.unwrap_or_default();
            let context = props.default_generation_settings.0.and_then(|s| s.n_ctx.0);
            models.iter_mut().for_each(|model| model.context = context.or(model.context));
            (slots, version) = (props.total_slots.0, props.build_info.0);
        }
        Kind::OpenAi => {}
    }
    let slots = slots.and_then(|n| u32::try_from(n).ok()).filter(|n| (1..=SLOTS_MAX).contains(n));
    let version = version.filter(|v| v.len() <= TEXT_BYTES_MAX && v.chars().all(|c| !c.is_control())).map(|v| v.into_owned());
    let started = answers.metrics.good().and_then(counters::started);
    let life = life.filter(|life| life.len() <= TEXT_BYTES_MAX).map(str::to_owned);
    Detected { kind, why, counters, engines, models, slots, version, is_kvit, is_litellm: false, started, life }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Lost;

    fn answers() -> Answers {
        let none = || Seen::Answer(404, "<html>not found</html>".to_owned());
        Answers { models: none(), metrics: none(), version: none(), server_info: none(), props: none(), runs: none() }
    }

    fn good(text: &str) -> Seen {
        Seen::Answer(200, text.to_owned())
    }

    // contract: C-29
    #[test]
    fn another_kvit_is_one_if_it_knows_that_it_has_no_run_that_nobody_has() {
        let models = |owner: &str| good(&format!(r#"{{"data":[{{"id":"m","owned_by":"{owner}"}}]}}"#));
        let metrics = || good("kvit_build_info{version=\"0.1.0\",incarnation=\"00ff\"} 1\n");
        let no_run = || Seen::Answer(404, r#"{"error":{"message":"no run","code":"run_not_found"}}"#.to_owned());
        let seen = |owner: &str, runs: Seen| decide(None, &Answers { models: models(owner), metrics: metrics(), runs, ..answers() });
        let found = seen("kvit", no_run());
        assert_eq!((found.kind, found.counters, found.is_kvit), (Kind::Kvit, true, true));
        assert_eq!((found.version.as_deref(), found.life.as_deref()), (Some("0.1.0"), Some("00ff")));
        assert!(Detected { life: Some("0100".to_owned()), ..found.clone() }.is_another(&found), "another life of it");
        // It may be one, and shows no record to us.
        for (runs, says) in [(Seen::Answer(401, String::new()), "key_file"), (Seen::Nothing(CallError::Lost(Lost::HeadTimeout)), "in time")]
        {
            let found = seen("kvit", runs);
            assert_eq!((found.kind, found.counters, found.is_kvit), (Kind::Kvit, false, true));
            assert!(found.why.contains("no cancel can be proven") && found.why.contains(says), "{}", found.why);
        }
        for runs in [good("{}"), good(r#"{"object":"run","released":true}"#), Seen::Answer(404, "<html>".to_owned())] {
            let found = seen("kvit", runs.clone());
            assert_eq!((found.kind, found.counters, found.is_kvit), (Kind::OpenAi, false, true));
            assert!(found.why.contains("as no kvit does"), "{}", found.why);
            let told = decide(Some(Kind::Kvit), &Answers { models: models("kvit"), runs, ..answers() });
            assert_eq!((told.kind, told.counters), (Kind::Kvit, false), "the configuration is not overruled, and nothing is believed");
        }
        assert_eq!((seen("openai", no_run()).kind, seen("openai", no_run()).is_kvit), (Kind::OpenAi, false));
    }

    #[test]
    fn vllm_by_its_counters_and_without_them() {
        let models = good(r#"{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm","max_model_len":4096}]}"#);
        let metrics = good("vllm:num_requests_running{engine=\"0\"} 0.0\nvllm:num_requests_waiting 0\n");
        let found = decide(None, &Answers { models: models.clone(), metrics, version: good(r#"{"version":"0.32.0"}"#), ..answers() });
        assert_eq!((found.kind, found.counters, found.version.as_deref()), (Kind::Vllm, true, Some("0.32.0")));
        assert_eq!(found.models, [Model { id: "m".to_owned(), context: Some(4096) }]);
        let found = decide(None, &Answers { models, ..answers() });
        assert_eq!((found.kind, found.counters), (Kind::Vllm, false));
        assert!(found.why.contains("owned by vllm") && found.why.contains("status 404"), "{}", found.why);
    }

    #[test]
    fn sglang_and_llama_cpp() {
        let info = good(r#"{"tp_size":1,"version":"0.5.3","max_running_requests":48,"max_total_num_tokens":9000}"#);
        let found = decide(None, &Answers { server_info: info, ..answers() });
        assert_eq!((found.kind, found.slots, found.counters), (Kind::Sglang, Some(48), false));
        let props = good(r#"{"total_slots":2,"default_generation_settings":{"n_ctx":4096,"params":{}},"build_info":"b1"}"#);
        let metrics = good("llamacpp:requests_processing 0\nllamacpp:requests_deferred 0\n");
        let models = good(r#"{"models":[{"name":"x"}],"data":[{"id":"m","owned_by":"llamacpp","meta":{"n_ctx_train":8192}}]}"#);
        let found = decide(None, &Answers { props, metrics, models, ..answers() });
        assert_eq!((found.kind, found.slots, found.counters), (Kind::LlamaCpp, Some(2), true));
        assert_eq!((found.models[0].context, found.version.as_deref()), (Some(4096), Some("b1")));
    }

    // contract: C-29
    #[test]
    fn the_same_engine_may_have_other_models_if_it_says_when_it_began() {
        let model = |id: &str| Model { id: id.to_owned(), context: None };
        let one = Detected {
            kind: Kind::Vllm,
            why: "a".to_owned(),
            counters: true,
            engines: 1,
            models: vec![model("x"), model("y")],
            slots: None,
            is_kvit: false,
            is_litellm: false,
            version: Some("1".to_owned()),
            started: Some(5),
            life: None,
        };
        let another = |change: fn(&mut Detected)| {
            let mut now = one.clone();
            change(&mut now);
            now.is_another(&one)
        };
        assert!(!another(|now| now.why.clear()) && !another(|now| now.models.truncate(1)));
        assert!(another(|now| now.started = Some(6)) && another(|now| now.started = None) && another(|now| now.version = None));
        assert!(another(|now| now.counters = false) && another(|now| now.kind = Kind::LlamaCpp) && another(|now| now.engines = 2));
        let silent = Detected { started: None, ..one.clone() };
        let other_way = Detected { models: vec![model("y"), model("x")], ..silent.clone() };
        assert!(!other_way.is_another(&silent), "the order says nothing");
        assert!(Detected { models: vec![model("x")], ..silent.clone() }.is_another(&silent));
        assert!(Detected { slots: Some(3), ..silent.clone() }.is_another(&silent));
    }

    #[test]
    fn garbage_is_survived_and_the_configuration_is_not_overruled() {
        let slow = || Seen::Nothing(CallError::Lost(Lost::HeadTimeout));
        let garbage = ["", "<html>", "[]", "{\"data\":7}", "{\"data\":[{\"id\":7},{\"id\":\"\"},null]}", "\u{0}\u{1}"];
        for text in garbage {
            let all = good(text);
            let each = || all.clone();
            let answers = Answers { models: each(), metrics: each(), version: each(), server_info: each(), props: each(), runs: each() };
            let found = decide(None, &answers);
            assert_eq!((found.kind, found.slots, found.version), (Kind::OpenAi, None, None), "{text}");
            assert_eq!(decide(Some(Kind::Vllm), &answers).kind, Kind::Vllm);
        }
        let found = decide(None, &Answers { models: slow(), metrics: slow(), ..answers() });
        assert_eq!(found.kind, Kind::OpenAi);
        assert!(found.why.contains("no head of an answer came in time"), "{}", found.why);
        let found = decide(None, &Answers { models: Seen::Answer(401, String::new()), ..answers() });
        assert!(found.why.contains("/v1/models: status 401: it wants a key, or another one (key_file)"), "{}", found.why);
        let huge = good(r#"{"total_slots":99999999999}"#);
        assert_eq!(decide(None, &Answers { props: huge, ..answers() }).slots, None);
    }
}
