//! Streams of events: from the beginning, from any number on, with comments, and what a follower leaves behind.
// contract: C-6 C-26

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use lifecycle::{Cause, Said};
use serde_json::Value;

use super::super::fold::Fold;
use super::super::runs::Runs;
use super::super::stream::{Events, Follower, Source};
use super::script::Script;
use super::{answer, asked, delta, end, head, run};

/// What a stream told its source.
#[derive(Default, Debug, PartialEq)]
struct Told {
    tokens: u32,
    frames: u32,
    finished: Option<bool>,
}

/// A source with all its items there, which breaks off behind them.
struct Items {
    items: VecDeque<Said>,
    told: Arc<Mutex<Told>>,
    gone: bool,
}

impl Source for Items {
    fn poll(&mut self, _: &mut Context<'_>) -> Poll<Option<Said>> {
        Poll::Ready(self.items.pop_front())
    }

    fn is_gone(&self) -> bool {
        self.gone
    }

    fn taken(&self, tokens: u32) {
        let mut told = self.told.lock().expect("no panic");
        told.tokens += tokens;
        told.frames += 1;
    }

    fn finish(&mut self, complete: bool) {
        self.told.lock().expect("no panic").finished = Some(complete);
    }
}

fn items(said: Vec<Said>) -> (Items, Arc<Mutex<Told>>) {
    let told = Arc::new(Mutex::new(Told::default()));
    (Items { items: said.into(), told: told.clone(), gone: false }, told)
}

/// All frames as text.
async fn read<S: Source>(events: Events<S>) -> String {
    let bytes = events.collect().await.expect("never fails").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

/// The numbers in a stream, each frame of which has its event's name.
fn numbers(stream: &str) -> Vec<u64> {
    let one = |frame: &str| {
        let (name, data) = frame.strip_prefix("event: ")?.split_once("\ndata: ")?;
        let body: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(body["type"], name);
        body["sequence_number"].as_u64()
    };
    stream.split_terminator("\n\n").map(|frame| one(frame).unwrap_or_else(|| panic!("{frame}"))).collect()
}

#[tokio::test]
async fn a_reader_gets_every_event_and_its_tokens_are_counted() {
    let (source, told) = items(answer(Cause::Stop).split_off(1));
    let stream = read(Events::new(source, Fold::new(head(false)), &[Said::Accepted], None, None)).await;
    assert_eq!(numbers(&stream), (0..10).collect::<Vec<_>>(), "{stream}");
    assert!(stream.contains("event: response.completed\n") && !stream.contains("[DONE]"));
    assert_eq!(*told.lock().expect("no panic"), Told { tokens: 3, frames: 10, finished: Some(true) });
}

// contract: C-6
#[tokio::test]
async fn an_answer_that_did_not_end_well_is_not_complete() {
    for cause in [Cause::CancelRequested, Cause::WorkerLost] {
        let (source, told) = items(vec![delta("a", 1, None), end(cause, 1)]);
        let stream = read(Events::new(source, Fold::new(head(false)), &[Said::Accepted], None, None)).await;
        assert!(stream.contains("event: response.failed\n") && !stream.contains("response.completed"), "{stream}");
        assert_eq!(told.lock().expect("no panic").finished, Some(false), "{cause}");
    }
    // No end is made up for what breaks off.
    let (source, told) = items(vec![delta("a", 1, None)]);
    let stream = read(Events::new(source, Fold::new(head(false)), &[Said::Accepted], None, None)).await;
    assert!(!stream.contains("response.failed") && !stream.contains("response.completed"));
    assert_eq!(told.lock().expect("no panic").finished, Some(false));
    // A caller that is gone is told nothing.
    let (mut source, told) = items(answer(Cause::Stop));
    source.gone = true;
    assert_eq!(read(Events::new(source, Fold::new(head(true)), &[], None, None)).await, "");
    assert_eq!(*told.lock().expect("no panic"), Told { finished: Some(false), ..Told::default() });
}

async fn follow(script: &Script, after: Option<u64>) -> Events<Follower<<Script as Runs>::Follow>> {
    let follow = script.follow(&run("r1")).expect("a run");
    Events::new(Follower::new(follow, None), Fold::new(head(true)), &[], after, None)
}

/// Whoever comes back with number n, for every n, reads byte for byte what the first reader read behind n.
// contract: C-26
#[tokio::test]
async fn a_resume_from_any_number_is_the_rest_of_the_stream() {
    let script = Script::new();
    script.add(&run("r1"), &asked(true), &answer(Cause::Stop));
    let all = read(follow(&script, None).await).await;
    let frames: Vec<&str> = all.split_inclusive("\n\n").collect();
    assert_eq!(numbers(&all).len(), 11);
    for n in 0..13 {
        let rest = read(follow(&script, Some(n)).await).await;
        assert_eq!(rest, frames.get(n as usize + 1..).unwrap_or_default().concat(), "{n}");
    }
}

/// Several followers read the same while the run still speaks; one that leaves harms nobody.
// contract: C-26
#[tokio::test]
async fn followers_read_the_same_and_one_that_leaves_harms_nobody() {
    let script = Script::new();
    script.add(&run("r1"), &asked(true), &[]);
    let (mut leaves, stays, late) = (follow(&script, None).await, follow(&script, None).await, follow(&script, None).await);
    let first = leaves.frame().await.expect("a frame").expect("never fails");
    assert!(first.data_ref().expect("data").starts_with(b"event: response.created\n"));
    let say = async {
        for (i, said) in answer(Cause::Stop).into_iter().enumerate() {
            script.say(&run("r1"), said);
            tokio::task::yield_now().await;
            if i == 1 {
                drop(std::mem::replace(&mut leaves, follow(&script, Some(3)).await));
            }
        }
    };
    let (one, ()) = tokio::join!(read(stays), say);
    let two = read(late).await;
    assert_eq!(one, two);
    assert_eq!(numbers(&one), (0..11).collect::<Vec<_>>());
    assert_eq!(numbers(&read(leaves).await), (4..11).collect::<Vec<_>>());
}

/// A silent stream gets comments, which have no number and change nothing of what follows.
#[tokio::test]
async fn a_silent_stream_gets_comments() {
    let script = Script::new();
    script.add(&run("r1"), &asked(true), &[Said::Accepted]);
    let follow = script.follow(&run("r1")).expect("a run");
    let silent = Some(Duration::from_millis(1));
    let mut events = Events::new(Follower::new(follow, None), Fold::new(head(true)), &[], Some(2), silent);
    for _ in 0..2 {
        let frame = events.frame().await.expect("a frame").expect("never fails");
        assert_eq!(frame.data_ref().expect("data"), ": keepalive\n\n");
    }
    script.say(&run("r1"), end(Cause::CancelRequested, 0));
    assert_eq!(numbers(&read(events).await), [3]);
}
