//! A worker for gateways in other processes that has no thread: whoever holds it gives it its turns. A simulation does, whose time is not the
//! system's.
//!
//! Invariant: what happens in a turn is the engine thread's own code; here is only who calls it and when.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use engine::Device;
use lifecycle::session::{SessionConfig, WorkerSide};
use observe::Journal;

use crate::door::{Door, Ended};
use crate::engine_thread::EngineThread;
use crate::mail::{Job, Mail};
use crate::sessions::{Links, Sessions};
use crate::start::{Ending, WorkerConfig};
use crate::text::Text;
use crate::tokenise;

/// A worker that runs when it is told to.
pub struct Turns {
    /// Dropped before the thread's outlets are.
    _ending: Ending,
    thread: EngineThread,
    mailbox: Sender<Mail>,
    mail: Receiver<Mail>,
    prompts: Receiver<Job>,
    text: Arc<Text>,
    context: u32,
    door: Door,
}

impl Turns {
    /// As [`crate::start_sessions`]; no thread is started.
    pub fn new(
        config: WorkerConfig,
        name: Arc<str>,
        session: SessionConfig,
        device: Box<dyn Device>,
        text: Arc<Text>,
        journal: Journal,
    ) -> Turns {
        let (incarnation, ended, context) = (config.incarnation, Ended::default(), device.limits().context);
        let links = Links::Sessions(Box::new(Sessions::new(WorkerSide::new(name, incarnation, session))));
        let ((mailbox, mail), (jobs, prompts)) = (channel(), tokenise::queue());
        let thread = EngineThread::new(config, device, text.clone(), journal, links, (mailbox.clone(), jobs));
        let door = Door::new(incarnation, mailbox.clone(), ended.clone());
        Turns { _ending: Ending(ended), thread, mailbox, mail, prompts, text, context, door }
    }

    /// What speaks with it.
    pub fn door(&self) -> Door {
        self.door.clone()
    }

    /// Takes in what has come and does what is due; whether there is to be another turn. A step's end and a prompt's tokens are mail of a later
    /// one.
    pub fn turn(&mut self) -> bool {
        let goes_on = self.thread.turn(&self.mail);
        for prompt in self.prompts.try_iter() {
            tokenise::do_one(&self.text, self.context, &self.mailbox, prompt);
        }
        goes_on
    }

    /// Ends every attempt (cause `shutdown`), in the turns that follow.
    pub fn stop(&self) {
        // It is held here, so it takes mail.
        let _ = self.mailbox.send(Mail::Stop);
    }
}
