//! What every scene needs: the server, what is asked of it, and prompts of a wanted length.
//!
//! Invariant: every wait has a limit.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use super::caller::Caller;
use crate::client;
use crate::cmd::child::Server;
use crate::failure::Failure;

/// Longest wait for a run to come where it is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for the server to be at rest before a scene.
const REST: Duration = Duration::from_secs(10);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(3);
/// What long prompts are made of.
const SENTENCE: &str = "The keeper counted the ships, one by one, and wrote their names into the book. ";

/// A server, and what is known of its model.
pub struct Stage<'a> {
    server: &'a Server,
    /// Positions that a sequence may have.
    pub context: u64,
    /// How many characters of a prompt make a token, about.
    characters_a_token: f64,
}

impl Stage<'_> {
    /// Looks at the server's model and answers one question with it, so that no scene is the first.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn set(server: &Server) -> anyhow::Result<Stage<'_>> {
        let models = ask(server, "/v1/models")?;
        let context = models.pointer("/data/0/max_model_len").and_then(Value::as_u64).context("the server names no context length")?;
        let mut stage = Stage { server, context, characters_a_token: 1.0 };
        let prompt = SENTENCE.repeat(8);
        let text = stage.ask("warm-up", &json!(prompt), 4, true)?.read_all()?;
        let run = stage.settled("warm-up")?;
        let tokens = run["tokens"]["prompt"].as_u64().filter(|n| *n > 0).context("the first answer counted no prompt")?;
        anyhow::ensure!(!text.is_empty(), "the first answer is empty");
        stage.characters_a_token = prompt.len() as f64 / tokens as f64;
        Ok(stage)
    }

    /// Asks for an answer of exactly `max_tokens` tokens, the likeliest each, so that it can be compared.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn ask(&self, id: &str, prompt: &Value, max_tokens: u64, stream: bool) -> anyhow::Result<Caller> {
        self.ask_with(id, prompt, max_tokens, stream, (json!({}), None))
    }

    /// The same with further fields, and a receive buffer of a given size.
    ///
    /// # Errors
    /// The server does not accept it.
    pub fn ask_with(
        &self,
        id: &str,
        prompt: &Value,
        max_tokens: u64,
        stream: bool,
        (more, window): (Value, Option<usize>),
    ) -> anyhow::Result<Caller> {
        let mut body = json!({"messages": [{"role": "user", "content": prompt}], "max_tokens": max_tokens, "temperature": 0, "stream": stream,
                              "ignore_eos": true});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        Caller::ask(self.server.port, id, &body, window)
    }

    /// A prompt of about so many tokens, or three quarters of the context, that begins like no other.
    pub fn long_prompt(&self, id: &str, tokens: u64) -> Value {
        let characters = (tokens.min(self.context * 3 / 4) as f64 * self.characters_a_token) as usize;
        let text = format!("{id}: {}", SENTENCE.repeat(characters / SENTENCE.len() + 1));
        json!(text[..characters.max(id.len())])
    }

    /// As many tokens as an answer to a short prompt may have.
    pub fn longest_answer(&self) -> u64 {
        (self.context * 7 / 8).max(1)
    }

    /// The run, if it is known yet.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn run(&self, id: &str) -> anyhow::Result<Option<Value>> {
        match client::get(&self.server.address, &format!("/v1/runs/{}", client::encode(id))) {
            Ok(run) => Ok(Some(run)),
            Err(Failure::NotFound(_)) => Ok(None),
            Err(other) => Err(anyhow!("{other}")),
        }
    }

    /// Waits until a run is as wanted.
    ///
    /// # Errors
    /// It does not come to be so in time.
    pub fn wait(&self, id: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.run(id)? {
                Some(run) if wanted(&run) => return Ok(run),
                Some(run) if run["settled"] == true => bail!("run {id} did not {what}: it is over, {}", run["outcome"]),
                _ => {}
            }
            if Instant::now() > until {
                bail!("run {id} did not {what} within {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until nothing is held of a run but its record.
    ///
    /// # Errors
    /// As `wait`.
    pub fn settled(&self, id: &str) -> anyhow::Result<Value> {
        self.wait(id, "settle", |run| run["settled"] == true)
    }

    /// The account.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn account(&self) -> anyhow::Result<Value> {
        ask(self.server, "/v1/kv")
    }

    /// The account once no run is known any more; as it is where that takes too long.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn account_at_rest(&self) -> anyhow::Result<Value> {
        let until = Instant::now() + REST;
        loop {
            let kv = self.account()?;
            let busy = kv["runs"].as_object().into_iter().flatten().any(|(_, n)| n.as_u64() != Some(0));
            if !busy || Instant::now() > until {
                return Ok(kv);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The hand-outs (block and generation) that every one of these runs owns, and no other.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn owned_by(&self, ids: &[&str]) -> anyhow::Result<BTreeSet<(u64, u64)>> {
        let kv = ask(self.server, "/v1/kv/blocks")?;
        let wanted: BTreeSet<&str> = ids.iter().copied().collect();
        let owners = |block: &Value| -> BTreeSet<String> {
            let names = block["owners"].as_array().into_iter().flatten().filter_map(Value::as_str);
            names.map(|name| name.rsplit_once('/').map_or(name, |(run, _)| run).to_owned()).collect()
        };
        let blocks = kv["blocks"].as_array().context("the account lists no blocks")?;
        let owned = blocks.iter().filter(|block| owners(block).iter().map(String::as_str).eq(wanted.iter().copied()));
        Ok(owned.filter_map(|block| Some((block["block"].as_u64()?, block["generation"].as_u64()?))).collect())
    }
}

fn ask(server: &Server, path: &str) -> anyhow::Result<Value> {
    client::get(&server.address, path).map_err(|failure| anyhow!("{failure}"))
}
