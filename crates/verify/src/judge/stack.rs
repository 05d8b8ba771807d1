//! A stack as it is met: where it is asked, where its engine's counters are, and how long what takes with nobody leaving.
//!
//! Invariant: what is measured here is measured on requests that end by themselves, before anything is judged by it.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use super::boundary::Way;
use super::caller::{Ask, By, Caller, CallerError, End, Read, Target};
use super::cpu::Processes;
use super::device::Devices;
use super::hop::Named;
use super::logbook::LogFile;
use super::profile::{PAGE_BYTES_MAX, Profile};
use super::result::Look;
use super::settings::Settings;
use super::tap::TapClient;
use super::verdict::median;

/// Requests by which the pace is measured.
const CONTROLS: usize = 3;

/// Where an engine's counters are, and how they are read.
#[derive(Clone, Debug)]
pub struct Counters {
    /// Where.
    pub target: Target,
    /// How.
    pub profile: Profile,
}

impl Counters {
    /// Looks once. Times are since `zero`.
    pub async fn look(&self, zero: Instant) -> Option<Look> {
        let ms =
            |at: Instant| at.saturating_duration_since(zero).as_secs_f64() * 1e3 - zero.saturating_duration_since(at).as_secs_f64() * 1e3;
        let began = Instant::now();
        let (status, page) = self.target.ask(Method::GET, &self.profile.path, Bytes::new()).await.ok()?;
        let ended = Instant::now();
        (status == 200 && page.len() <= PAGE_BYTES_MAX).then(|| Look {
            began_ms: ms(began),
            ended_ms: ms(ended),
            ..self.profile.read(&page)
        })
    }
}

/// How long what takes, with nobody leaving.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Pace {
    /// From a request to its first token.
    pub first: Duration,
    /// Between two tokens.
    pub gap: Duration,
    /// Tokens of an answer that ends by itself.
    pub tokens: u64,
    /// Words of a prompt that is long enough to be left in its computing, and the time to its first token.
    pub long: Option<(usize, Duration)>,
}

impl Pace {
    /// How long an answer takes from its first token to its end.
    pub fn rest(&self, read: u64) -> Duration {
        self.gap.saturating_mul(u32::try_from(self.tokens.saturating_sub(read)).unwrap_or(u32::MAX))
    }
}

/// Why a stack cannot be judged at all.
#[derive(Debug, thiserror::Error)]
pub enum Unjudged {
    /// Nobody is there.
    #[error("{url} cannot be asked: {why}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        why: String,
    },
    /// It names no model.
    #[error("the stack names no model (/v1/models: {0}); name one with --model")]
    NoModel(String),
    /// A hop cannot be looked at.
    #[error("{0}")]
    Hop(String),
    /// A request that nobody left was not answered well.
    #[error("a request that nobody left did not end well: {0}")]
    Control(String),
}

/// A stack.
#[derive(Debug)]
pub struct Stack {
    /// Where it is asked.
    pub target: Target,
    /// The model that is asked for.
    pub model: String,
    /// Its engine's counters, where there are any.
    pub counters: Option<Counters>,
    /// The engine's processes, where they run on this machine and are known.
    pub processes: Option<Processes>,
    /// GPUs on which it computes, where they are in this machine and are known.
    pub devices: Option<Devices>,
    /// Taps in it, in the order of the hops, from the caller on.
    pub taps: Vec<TapClient>,
    /// The hops and what they are; where nobody named any, the engine alone.
    pub way: Way,
    /// Logs of hops, which are read when all is over.
    pub logs: Vec<LogFile>,
    /// How one of the first requests ended that nobody left, if it did not end well and the next one did: connections that are kept break now
    /// and then.
    pub missed: Option<String>,
    /// Whether `ignore_eos` is understood, so that an answer has the length that was asked for.
    pub ignores_eos: bool,
}

impl Stack {
    /// Meets it: its model, unless one is named, and its engine's counters, at the engine if that is named, else where the stack is. Without
    /// `looks` no counters are looked for where no profile is named.
    ///
    /// # Errors
    /// [`Unjudged`].
    pub async fn meet(
        target: Target,
        model: Option<String>,
        engine: Option<Target>,
        profile: Option<Profile>,
        looks: bool,
    ) -> Result<Stack, Unjudged> {
        let unreachable = |why: &CallerError| Unjudged::Unreachable { url: target.authority.clone(), why: why.to_string() };
        let asked = target.ask(Method::GET, "/v1/models", Bytes::new()).await;
        let model = match (model, asked) {
            (Some(model), Ok(_)) => model,
            (None, Ok((status, text))) => {
                let models: Value = serde_json::from_str(&text).unwrap_or_default();
                let first = models["data"].as_array().and_then(|all| all.first()?["id"].as_str().map(str::to_owned));
                first.ok_or_else(|| Unjudged::NoModel(format!("status {status}")))?
            }
            (_, Err(why)) => return Err(unreachable(&why)),
        };
        let at = engine.unwrap_or_else(|| target.clone());
        let page = |path: String| {
            let at = at.clone();
            async move { at.ask(Method::GET, &path, Bytes::new()).await.ok().filter(|(status, _)| *status == 200).map(|(_, page)| page) }
        };
        let profile = match profile {
            Some(profile) => Some(profile),
            None if !looks => None,
            None => page("/metrics".to_owned()).await.and_then(|page| Profile::whose(&page)),
        };
        let counters = profile.map(|profile| Counters { target: at, profile });
        let way = Way::default();
        Ok(Stack {
            target,
            model,
            counters,
            processes: None,
            devices: None,
            taps: Vec::new(),
            way,
            logs: Vec::new(),
            missed: None,
            ignores_eos: true,
        })
    }

    /// What the engine is by its counters.
    pub fn profile(&self) -> &str {
        self.counters.as_ref().map_or("none", |counters| counters.profile.name.as_str())
    }

    /// Takes the hops that were named, with their taps and logs, and looks what each of them is. `engine` is where that is, if not here.
    ///
    /// # Errors
    /// What cannot be read or asked, by which hop.
    pub async fn name_hops(&mut self, named: &[Named], engine: Option<&Target>) -> Result<(), String> {
        super::hop::check(named)?;
        self.way = super::hops::meet(named, &self.target, engine.unwrap_or(&self.target), self.profile()).await?;
        if !named.is_empty() {
            self.taps = named.iter().filter_map(|hop| hop.tap.clone()).collect();
        }
        let log = |hop: &Named| Some(LogFile::open(&hop.name, hop.kind.as_deref(), hop.log.as_ref()?));
        self.logs = named.iter().filter_map(log).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// A chat that asks for `max_tokens`.
    pub fn ask(&self, id: &str, prompt: &str, streaming: bool, max_tokens: u64) -> Ask {
        let mut body = json!({
            "model": self.model, "messages": [{"role": "user", "content": prompt}], "stream": streaming, "max_tokens": max_tokens,
            "temperature": 0,
        });
        if streaming {
            body["stream_options"] = json!({"include_usage": true});
        }
        if self.ignores_eos {
            body["ignore_eos"] = json!(true);
            // A small model that may not end says one word for ever, and litellm takes that for a failure.
            body["frequency_penalty"] = json!(0.5);
        }
        Ask { path: "/v1/chat/completions", body, id: id.to_owned(), by: By::Http1 }
    }

    /// A request that nobody leaves, read to its end.
    pub(super) async fn control(&self, ask: Ask, patience: Duration) -> Result<Caller, Unjudged> {
        let control = |why: String| Unjudged::Control(why);
        let all = async {
            let mut caller = Caller::ask(&self.target, ask).await.map_err(|e| control(e.to_string()))?;
            match caller.rest().await {
                End::Complete => Ok(caller),
                how => Err(control(ended_badly(&caller.read, how))),
            }
        };
        tokio::time::timeout(patience, all).await.map_err(|_| control(format!("it had not ended after {patience:?}")))?
    }

    /// Measures how long what takes, and whether `ignore_eos` is understood. One request that does not end well is asked again, and told.
    ///
    /// # Errors
    /// [`Unjudged::Control`]: two do not end well.
    pub async fn pace(&mut self, settings: &Settings) -> Result<Pace, Unjudged> {
        let prompt = |id: &str| words(settings.seed, id, 16);
        if self.control(self.ask("verify-first", &prompt("first"), true, 32), settings.patience()).await.is_err() {
            self.ignores_eos = false;
        }
        let (mut firsts, mut gaps, mut tokens) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..CONTROLS {
            let id = format!("verify-control-{number}-{}", settings.seed);
            let ask = |id: &str| self.ask(id, &prompt(id), true, settings.max_tokens);
            let caller = match self.control(ask(&id), settings.patience()).await {
                Err(Unjudged::Control(why)) if self.missed.is_none() => {
                    let again = self.control(ask(&format!("{id}-again")), settings.patience()).await?;
                    self.missed = Some(why);
                    again
                }
                other => other?,
            };
            let at = &caller.read.tokens;
            let Some((first, last)) = at.first().zip(at.last()) else {
                return Err(Unjudged::Control("it had no token in it".to_owned()));
            };
            firsts.push(first.duration_since(caller.sent).as_secs_f64());
            gaps.push(last.duration_since(*first).as_secs_f64() / (at.len().max(2) - 1) as f64);
            tokens.push(caller.read.usage.map_or(at.len() as u64, |(_, generated)| generated.max(at.len() as u64)) as f64);
        }
        let middle = |all: Vec<f64>| median(all.into_iter()).unwrap_or(0.0);
        let first = Duration::from_secs_f64(middle(firsts));
        let mut pace = Pace { first, gap: Duration::from_secs_f64(middle(gaps)), tokens: middle(tokens) as u64, long: None };
        pace.long = self.long(settings, first).await;
        Ok(pace)
    }

    /// A prompt whose computing takes long enough to be left.
    async fn long(&self, settings: &Settings, first: Duration) -> Option<(usize, Duration)> {
        let wanted = first + Duration::from_millis(settings.prefill_ms);
        let mut count = 256;
        let mut best = None;
        while count <= settings.prompt_words_max {
            let id = format!("verify-long-{count}-{}", settings.seed);
            // A prompt that is too long for the model is refused: the longest that is not is the one.
            let Ok(caller) = self.control(self.ask(&id, &words(settings.seed, &id, count), true, 1), settings.patience()).await else {
                break;
            };
            let Some(at) = caller.read.tokens.first().or(caller.read.end.as_ref().map(|(at, _)| at)) else { break };
            let took = at.duration_since(caller.sent);
            best = Some((count, took));
            if took >= wanted {
                break;
            }
            count *= 2;
        }
        best.filter(|(_, took)| *took >= first + Duration::from_millis(settings.prefill_ms / 4))
    }
}

/// How an answer ended that should have been whole.
pub(super) fn ended_badly(read: &Read, how: End) -> String {
    let what = if how == End::Error { "an error came" } else { "its connection was closed" };
    let status = read.head.map_or_else(|| "no status".to_owned(), |(_, status)| format!("status {status}"));
    let said = read.error.as_deref().filter(|said| !said.is_empty()).map(|said| format!(": {said}")).unwrap_or_default();
    format!("{what} behind {} tokens, {status}{said}", read.tokens.len())
}

/// A text of so many short words that nobody has computed before: it begins with what is its own.
pub fn words(seed: u64, id: &str, count: usize) -> String {
    const WORDS: [&str; 16] = [
        "red", "sea", "tree", "walk", "stone", "light", "house", "bird", "river", "song", "cloud", "hand", "road", "night", "ship", "rain",
    ];
    let mut state =
        id.bytes().fold(seed ^ 0x9e37_79b9_7f4a_7c15, |state, byte| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mut text = format!("Tell a long story about {id}:");
    for _ in 0..count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push(' ');
        text.push_str(WORDS[(state >> 60) as usize]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_ended_badly_is_told_with_what_the_stack_said() {
        let read = Read { head: Some((Instant::now(), 200)), error: Some("too often".to_owned()), ..Read::default() };
        assert_eq!(ended_badly(&read, End::Error), "an error came behind 0 tokens, status 200: too often");
        assert_eq!(ended_badly(&Read::default(), End::Broken), "its connection was closed behind 0 tokens, no status");
    }

    #[test]
    fn answers_have_their_length_and_do_not_repeat_themselves_where_that_is_understood() {
        let target = Target::parse("http://127.0.0.1:1").expect("a URL");
        let mut stack = Stack {
            target,
            model: "m".to_owned(),
            counters: None,
            processes: None,
            devices: None,
            taps: Vec::new(),
            way: Way::default(),
            logs: Vec::new(),
            missed: None,
            ignores_eos: true,
        };
        let ask = |stack: &Stack| stack.ask("i", "p", true, 8).body;
        assert_eq!((&ask(&stack)["ignore_eos"], &ask(&stack)["frequency_penalty"]), (&json!(true), &json!(0.5)));
        stack.ignores_eos = false;
        assert!(ask(&stack).get("ignore_eos").is_none() && ask(&stack).get("frequency_penalty").is_none());
    }

    #[test]
    fn two_prompts_differ_from_their_beginning_on_and_one_is_always_the_same() {
        let (a, b) = (words(1, "a", 300), words(1, "b", 300));
        assert_eq!(a, words(1, "a", 300));
        assert_ne!(a[..40], b[..40]);
        assert_ne!(a, words(2, "a", 300));
        assert_eq!(a.split(' ').count(), 306);
    }
}
