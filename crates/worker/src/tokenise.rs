//! Threads that render and tokenise prompts, so that a long or hostile prompt never holds up a step.
//!
//! A job nobody wants any more is dropped at its next look at the flag; the engine thread has ended its attempt already.

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

pub(crate) fn start(threads: usize, text: Arc<Text>, mailbox: Sender<Mail>) -> std::io::Result<Jobs> {
    let (send, receive) = channel::<Job>();
    let receive = Arc::new(Mutex::new(receive));
    for i in 0..threads {
        let (text, mailbox, receive) = (text.clone(), mailbox.clone(), receive.clone());
        std::thread::Builder::new().name(format!("kvit-tokenise-{i}")).spawn(move || run(&text, &mailbox, &receive))?;
    }
    Ok(Jobs(send))
}

fn run(text: &Text, mailbox: &Sender<Mail>, jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        if job.unwanted.is_set() {
            continue;
        }
        let result = tokens(text, &job).map_err(|why| Outcome::because(Cause::Invalid, why));
        let _ = mailbox.send(Mail::Tokenised { attempt: job.attempt, number: job.number, result });
    }
}

fn tokens(text: &Text, job: &Job) -> Result<Vec<u32>, String> {
    let unwanted = || job.unwanted.is_set();
    match &job.prompt {
        Prompt::Tokens(ids) => Ok(ids.clone()),
        Prompt::Text(plain) => text.encode(plain, &unwanted).map_err(|e| e.to_string()),
        Prompt::Chat(turns) => {
            let turns: Vec<(&str, &str)> = turns.iter().map(|t| (t.role.as_str(), t.content.as_str())).collect();
            text.encode_chat(&turns, &unwanted).map_err(|e| e.to_string())
        }
    }
}
