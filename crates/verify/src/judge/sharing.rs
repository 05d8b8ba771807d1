//! A neighbour that has the same beginning of its prompt as the request that is left, and is being answered when that is left: what the two
//! share is still needed, and the neighbour's text says whether it was there.
//!
//! An engine whose text depends on what is computed beside it says something else with a companion that nobody leaves, too; then nothing is
//! said of the text.
//!
//! Invariant: a neighbour is never left; its text is compared with its own, and with nothing else.
// contract: C-14

use super::caller::{Ask, By, Caller, End, Read};
use super::result::{NeighbourSaw, NeighbourText};
use super::stack::words;
use super::trial::Bench;
use super::watch::ended;

/// Words that both prompts begin with: several blocks of any engine.
const SHARED_WORDS: usize = 64;
/// Tokens that it has read when the other request is sent: its prompt is computed.
const BEGUN: usize = 3;

impl Bench<'_> {
    /// A prompt that begins as the neighbour's does, and goes on with its own words.
    pub(super) fn sharing(&self, own: &str) -> String {
        format!("{} {own}", words(self.settings.seed, "verify-shared", SHARED_WORDS))
    }

    /// The neighbour's request: always the same words, under a name of its own. Twice as long as an answer and a prompt, so that it is there
    /// when the other is left.
    fn neighbour_ask(&self, name: &str) -> Ask {
        let prompt = self.pace.long.map_or(0.0, |(_, took)| took.as_secs_f64() / self.pace.gap.as_secs_f64().max(1e-3));
        let tokens = (self.settings.max_tokens + prompt.ceil() as u64) * 2;
        self.stack.ask(name, &self.sharing(&words(self.settings.seed, "neighbour", 16)), true, tokens)
    }

    /// A neighbour that is being answered.
    pub(super) async fn neighbour(&self, name: &str) -> Result<Caller, String> {
        let asked = Caller::ask(&self.stack.target, self.neighbour_ask(name)).await;
        let mut caller = asked.map_err(|e| format!("its neighbour could not be sent: {e}"))?;
        if caller.tokens(BEGUN).await { Ok(caller) } else { Err("its neighbour's answer ended before it could be left".to_owned()) }
    }

    /// What the neighbour says alone.
    pub(super) async fn alone(&self) -> Result<&String, String> {
        let measured = async || {
            let mut caller = self.neighbour(&format!("verify-alone-{}", self.settings.seed)).await?;
            match caller.rest().await {
                End::Complete => Ok(caller.read.texts.concat()),
                how => Err(format!("a neighbour that was alone ended {}", ended(how))),
            }
        };
        self.alone.get_or_try_init(measured).await
    }

    /// What became of the neighbour of a request that was left; `ask` is that request.
    pub(super) async fn beside(&self, id: &str, ask: &Ask, (how, read): (End, Read)) -> Result<NeighbourSaw, String> {
        let mut saw = NeighbourSaw { tokens: read.tokens.len() as u64, end: ended(how).to_owned(), text: None };
        let (alone, said) = (self.alone().await?, read.texts.concat());
        saw.text = if how != End::Complete || said == *alone {
            Some(NeighbourText::Own).filter(|_| how == End::Complete)
        } else if self.with_companion(id, ask).await? == *alone {
            // The same two requests, of which nobody left one, say that its text does not depend on what is beside it.
            Some(if alone.starts_with(&said) { NeighbourText::Cut } else { NeighbourText::Other })
        } else {
            None
        };
        Ok(saw)
    }

    /// What the neighbour says beside the same request, if that is read to its end.
    async fn with_companion(&self, id: &str, ask: &Ask) -> Result<String, String> {
        let mut neighbour = self.neighbour(&format!("{id}-again-0")).await?;
        let ask = Ask { id: format!("{id}-again-1"), by: By::Http1, ..ask.clone() };
        let mut companion = Caller::ask(&self.stack.target, ask).await.map_err(|e| format!("a companion could not be sent: {e}"))?;
        let (how, _) = tokio::join!(neighbour.rest(), companion.rest());
        if how == End::Complete { Ok(neighbour.read.texts.concat()) } else { Err(format!("a healthy neighbour ended {}", ended(how))) }
    }
}
