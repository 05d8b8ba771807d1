//! Threads that render and tokenise prompts, so that a long or hostile prompt never holds up a step.
//!
//! A job nobody wants any more is dropped at its next look at the flag; the engine thread has ended its attempt already.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::text::Text;
use lifecycle::message::Prompt;
use lifecycle::{Cause, Outcome};

use crate::mail::{Job, Mail};

/// Where jobs go. The engine's queue limit bounds how many there are.
pub(crate) struct Jobs(Sender<Job>);

impl Jobs {
    pub(crate) fn send(&self, job: Job) {
        // The threads end only when this sender is gone.
        let _ = self.0.send(job);
    }
}

/// Where jobs go, and where they come out.
pub(crate) fn queue() -> (Jobs, Receiver<Job>) {
    let (send, receive) = channel();
    (Jobs(send), receive)
}

pub(crate) fn start(threads: usize, text: Arc<Text>, context: u32, receive: Receiver<Job>, mailbox: Sender<Mail>) -> std::io::Result<()> {
    let receive = Arc::new(Mutex::new(receive));
    for i in 0..threads {
        let (text, mailbox, receive) = (text.clone(), mailbox.clone(), receive.clone());
        std::thread::Builder::new().name(format!("kvit-tokenise-{i}")).spawn(move || run(&text, context, &mailbox, &receive))?;
    }
    Ok(())
}

fn run(text: &Text, context: u32, mailbox: &Sender<Mail>, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        do_one(text, context, mailbox, job);
    }
}

/// Does one job, if anybody still wants it.
pub(crate) fn do_one(text: &Text, context: u32, mailbox: &Sender<Mail>, job: Job) {
    if job.unwanted.is_set() {
        return;
    }
    // A prompt must not be able to take the thread away from those that come after it.
    let result = catch_unwind(AssertUnwindSafe(|| tokens(text, context, &job)));
    let result = result.unwrap_or_else(|_| Err(Outcome::because(Cause::WorkerError, "the prompt could not be tokenised")));
    let _ = mailbox.send(Mail::Tokenised { attempt: job.attempt, result });
}

/// The prompt's tokens. One that cannot fit whatever its tokens are is refused before any work is done for it.
fn tokens(text: &Text, context: u32, job: &Job) -> Result<Vec<u32>, Outcome> {
    let bytes = match &job.prompt {
        Prompt::Tokens(ids) => return Ok(ids.clone()),
        Prompt::Text(plain) => plain.len(),
        Prompt::Chat(turns) => turns.iter().map(|t| t.content.len()).sum(),
        Prompt::Forward(_) | Prompt::Worded(_) => {
            let why = "a forwarded request goes to an engine that speaks HTTP, and this worker takes prompts";
            return Err(Outcome::because(Cause::Invalid, why));
        }
    };
    let most = context as usize * text.longest_token();
    if bytes > most {
        let why = format!("the prompt has {bytes} bytes; {context} tokens, the model's context, hold {most} at the very most");
        return Err(Outcome::because(Cause::OverLimit, why));
    }
    let unwanted = || job.unwanted.is_set();
    let encoded = match &job.prompt {
        Prompt::Chat(turns) => {
            let turns: Vec<(&str, &str)> = turns.iter().map(|t| (t.role.as_str(), t.content.as_str())).collect();
            text.encode_chat(&turns, &unwanted)
        }
        Prompt::Text(plain) => text.encode(plain, &unwanted),
        Prompt::Tokens(_) | Prompt::Forward(_) | Prompt::Worded(_) => Ok(Vec::new()),
    };
    encoded.map_err(|why| Outcome::because(Cause::Invalid, why.to_string()))
}
