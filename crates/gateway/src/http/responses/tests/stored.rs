//! Responses that are there: what is shown, cancelled, deleted and listed, and chains of them.
// contract: C-8 C-26 C-28 C-30

use std::sync::atomic::Ordering;
use std::time::Duration;

use lifecycle::{Cause, RunKey, Said, Tenant};
use serde_json::{Value, json};

use super::super::asked::{Asked, Item, Message, Output, Role};
use super::super::chain;
use super::super::object::response_id;
use super::super::stored::{self, Found, Page};
use super::script::{Script, kept};
use super::{answer, asked, calls, delta, end, run};
use crate::http::error::ApiError;

const WAIT: Duration = Duration::ZERO;
const PATIENCE: Duration = Duration::from_millis(20);

async fn find(script: &Script, id: &str) -> Result<Found, ApiError> {
    stored::find(script, &Tenant::default(), id).await
}

async fn shown(script: &Script, id: &str) -> Value {
    let found = find(script, id).await.expect("it is there");
    stored::show(script, &found).await.expect("it can be read")
}

fn code(error: &ApiError) -> (u16, Option<&'static str>) {
    (error.status.as_u16(), error.word())
}

#[tokio::test]
async fn a_response_is_shown_as_it_grows() {
    let (script, key) = (Script::new(), run("r1"));
    script.add(&key, &asked(true), &[]);
    let now = shown(&script, "resp_r1").await;
    assert_eq!(
        (&now["status"], &now["output"], &now["created_at"], &now["usage"]),
        (&json!("queued"), &json!([]), &json!(1_700_000_000), &Value::Null)
    );
    for said in answer(Cause::Stop) {
        assert_ne!(shown(&script, "resp_r1").await["status"], "completed");
        script.say(&key, said);
    }
    let end = shown(&script, "resp_r1").await;
    assert_eq!((&end["status"], &end["output"][0]["content"][0]["text"]), (&json!("completed"), &json!("The Rhine")));
    assert_eq!((&end["completed_at"], &end["usage"]["total_tokens"]), (&json!(1_700_000_003), &json!(12)));
    // It says the same however often it is asked.
    assert_eq!(shown(&script, "resp_r1").await, end);
}

/// The end is known even where what was said is not kept.
// contract: C-6
#[tokio::test]
async fn an_outcome_is_shown_without_its_events() {
    let (script, key) = (Script::new(), run("r1"));
    script.add(&key, &asked(true), &[Said::Accepted, delta("a", 1, None), end(Cause::WorkerLost, 1)]);
    script.forget(&key);
    let now = shown(&script, "resp_r1").await;
    assert_eq!(
        (&now["status"], &now["error"]["code"], &now["kvit"]["cause"]),
        (&json!("failed"), &json!("server_error"), &json!("worker_lost"))
    );
}

#[tokio::test]
async fn what_is_no_response_of_the_asker_does_not_exist() {
    let script = Script::new();
    for id in ["chat", "unkept", "keyed", "erased"] {
        script.add(&run(id), &asked(false), &answer(Cause::Stop));
    }
    script.change(&run("chat"), |run| run.door = "chat".into());
    script.change(&run("unkept"), |run| run.request = None);
    script.change(&run("keyed"), |run| run.request = Some(kept(b"")));
    script.change(&run("erased"), |run| run.erased = true);
    let other = RunKey { tenant: Tenant::parse("other").expect("a name"), run: run("foreign").run };
    script.add(&other, &asked(false), &answer(Cause::Stop));
    for id in ["resp_chat", "resp_unkept", "resp_keyed", "resp_erased", "resp_foreign", "resp_none", "foreign", "resp_", "resp_a b", ""] {
        let error = find(&script, id).await.err().expect("it is not there");
        assert_eq!(code(&error), (404, Some("response_not_found")), "{id}");
    }
    assert!(stored::find(&script, &other.tenant, "resp_foreign").await.is_ok());
    // To delete, something has to be kept: also what is there for its key alone.
    script.change(&run("unkept"), |run| run.keeps = false);
    script.change(&run("keyed"), |run| run.request = None);
    for id in ["resp_chat", "resp_unkept", "resp_erased", "resp_foreign", "resp_none"] {
        let error = stored::deletable(&script, &Tenant::default(), id).await.expect_err("it is not there");
        assert_eq!(code(&error), (404, Some("response_not_found")), "{id}");
    }
    assert!(stored::deletable(&script, &Tenant::default(), "resp_keyed").await.is_ok());
    // A request that cannot be read is a fault here, and no word that nothing is there.
    script.add(&run("odd"), &asked(false), &[]);
    script.change(&run("odd"), |run| run.request = Some(kept(b"{\"v\":9,\"asked\":null}")));
    assert_eq!(code(&find(&script, "resp_odd").await.err().expect("it cannot be read")), (500, Some("unreadable")));
}

async fn cancel(script: &Script, id: &str) -> Value {
    let found = find(script, id).await.expect("it is there");
    stored::cancel(script, found, WAIT, PATIENCE).await.expect("an answer")
}

// contract: C-8
#[tokio::test]
async fn to_cancel_twice_is_to_cancel_once_and_an_end_stays_what_it_is() {
    let script = Script::new();
    script.add(&run("live"), &asked(true), &[Said::Accepted, delta("a", 1, None)]);
    script.add(&run("over"), &asked(true), &answer(Cause::Length));
    let first = cancel(&script, "resp_live").await;
    assert_eq!(
        (&first["status"], &first["error"], &first["kvit"]["cause"]),
        (&json!("cancelled"), &Value::Null, &json!("cancel_requested"))
    );
    assert_eq!(first["output"][0]["content"][0]["text"], "a");
    assert_eq!(cancel(&script, "resp_live").await, first);
    let mut over = shown(&script, "resp_over").await;
    assert_eq!(over["status"], "incomplete");
    over["kvit"]["effects"] = json!([]);
    assert_eq!(cancel(&script, "resp_over").await, over);
    // Each of them was a cancel, for what an ended run does outside is stopped by it, too.
    assert_eq!(script.cancels.load(Ordering::Relaxed), 3);
}

/// Where the end does not come in time the answer says so; where it comes while the canceller waits, it has it.
// contract: C-29
#[tokio::test]
async fn a_cancel_says_what_is_true_when_its_wait_is_over() {
    let (mut script, key) = (Script::new(), run("r1"));
    script.slow_cancel = true;
    script.add(&key, &asked(true), &[Said::Accepted]);
    assert_eq!(cancel(&script, "resp_r1").await["status"], "in_progress");
    let found = find(&script, "resp_r1").await.expect("it is there");
    let late = async {
        tokio::task::yield_now().await;
        script.say(&key, end(Cause::CancelRequested, 0));
    };
    let (answer, ()) = tokio::join!(stored::cancel(&script, found, WAIT, Duration::from_secs(60)), late);
    assert_eq!(answer.expect("an answer")["status"], "cancelled");
}

/// A store that goes away behind the look at the run is no reason to wait: every answer that is made of what was said is refused.
// contract: C-28
#[tokio::test]
async fn what_cannot_be_read_is_said_and_not_waited_for() {
    let script = Script::new();
    script.add(&run("over"), &asked(true), &answer(Cause::Stop));
    script.add(&run("live"), &asked(true), &[Said::Accepted, delta("a", 1, None)]);
    script.away.store(true, Ordering::Relaxed);
    let down = (503, Some("store_unavailable"));
    for id in ["resp_over", "resp_live"] {
        let found = find(&script, id).await.expect("it is there");
        assert_eq!(stored::show(&script, &found).await.err().map(|e| code(&e)), Some(down), "{id}");
        assert_eq!(stored::cancel(&script, found, WAIT, PATIENCE).await.err().map(|e| code(&e)), Some(down), "{id}");
    }
    assert_eq!(turns(&script, "resp_over", 1000).await.err().map(|e| code(&e)), Some(down));
}

#[tokio::test]
async fn only_what_is_over_is_deleted_and_then_it_is_gone() {
    let (script, key) = (Script::new(), run("r1"));
    script.add(&key, &asked(true), &[Said::Accepted]);
    let found = find(&script, "resp_r1").await.expect("it is there");
    assert_eq!(code(&stored::delete(&script, &found.run).await.expect_err("it is live")), (409, Some("response_in_progress")));
    script.say(&key, end(Cause::CancelRequested, 0));
    let found = find(&script, "resp_r1").await.expect("it is there");
    let deleted = stored::delete(&script, &found.run).await.expect("it is over");
    assert_eq!(deleted, json!({"id": "resp_r1", "object": "response", "deleted": true}));
    assert_eq!(find(&script, "resp_r1").await.err().map(|e| code(&e)), Some((404, Some("response_not_found"))));
}

#[tokio::test]
async fn the_input_is_listed_in_pages_in_both_orders() {
    let script = Script::new();
    let id = |i: usize| (i == 1).then(|| "mine".to_owned());
    let item = |i: usize| Item::Message(Message { id: id(i), role: Role::User, parts: vec![format!("{i}")] });
    script.add(&run("r1"), &Asked { input: (0..5).map(item).collect(), ..asked(true) }, &[]);
    let found = find(&script, "resp_r1").await.expect("it is there");
    for ascending in [true, false] {
        let (mut texts, mut after, mut pages) = (Vec::new(), None, 0);
        loop {
            let page = stored::input_items(&found, &Page { limit: 2, ascending, after: after.clone() }).expect("a page");
            let data = page["data"].as_array().expect("a list").clone();
            texts.extend(data.iter().map(|item| item["content"][0]["text"].as_str().expect("a text").to_owned()));
            assert_eq!((&page["first_id"], &page["last_id"]), (&data[0]["id"], &data[data.len() - 1]["id"]));
            after = page["last_id"].as_str().map(str::to_owned);
            pages += 1;
            if page["has_more"] == false {
                break;
            }
        }
        let expected = if ascending { ["0", "1", "2", "3", "4"] } else { ["4", "3", "2", "1", "0"] };
        assert_eq!((texts, pages), (expected.map(str::to_owned).to_vec(), 3));
    }
    let behind = |id: &str| stored::input_items(&found, &Page { limit: 9, ascending: true, after: Some(id.into()) });
    assert_eq!(behind("mine").expect("a page")["data"].as_array().map(Vec::len), Some(3));
    assert_eq!(behind("msg_r1:4").expect("a page")["data"], json!([]));
    assert_eq!(behind("none").expect_err("no such item").status.as_u16(), 400);
}

async fn turns(script: &Script, previous: &str, max: usize) -> Result<Vec<String>, ApiError> {
    let items = chain::items(script, &Tenant::default(), previous, max).await?;
    let said = |item: Item| match item {
        Item::Message(message) => format!("{}: {}", message.role.in_template(), message.parts.concat()),
        Item::Call(call) => format!("{} calls {}({})", call.call_id, call.name, call.arguments),
        Item::Output(output) => format!("{} returned {}", output.call_id, output.output.concat()),
    };
    Ok(items.into_iter().map(said).collect())
}

#[tokio::test]
async fn a_chain_is_all_that_was_said_before_and_no_instructions() {
    let script = Script::new();
    let link = |i: usize| {
        let input = vec![Item::message(Role::User, format!("q{i}"))];
        let previous_response_id = (i > 0).then(|| response_id(&run(&format!("r{}", i - 1)).run));
        Asked { input, previous_response_id, ..asked(false) }
    };
    for i in 0..3 {
        script.add(&run(&format!("r{i}")), &link(i), &[Said::Accepted, delta(&format!("a{i}"), 1, Some(Cause::Stop)), end(Cause::Stop, 1)]);
    }
    let all = turns(&script, "resp_r2", 1000).await.expect("a chain");
    assert_eq!(all, ["user: q0", "assistant: a0", "user: q1", "assistant: a1", "user: q2", "assistant: a2"]);
    assert_eq!(code(&turns(&script, "resp_r2", 11).await.expect_err("too much")), (400, Some("context_length_exceeded")));
    assert!(turns(&script, "resp_r2", 12).await.is_ok());
    // One that is not over cannot be gone on from.
    script.add(&run("live"), &link(0), &[Said::Accepted]);
    assert_eq!(code(&turns(&script, "resp_live", 1000).await.expect_err("live")), (400, Some("response_in_progress")));
    // Nor can one behind a deleted one.
    script.change(&run("r0"), |run| run.erased = true);
    for id in ["resp_r2", "resp_r0", "resp_none", "odd"] {
        assert_eq!(code(&turns(&script, id, 1000).await.expect_err("gone")), (400, Some("previous_response_not_found")), "{id}");
    }
}

// contract: C-28
#[tokio::test]
async fn a_chain_is_bounded_also_where_it_bites_its_tail() {
    let script = Script::new();
    let ring = Asked { previous_response_id: Some("resp_r1".into()), ..asked(false) };
    script.add(&run("r1"), &ring, &answer(Cause::Stop));
    assert_eq!(code(&turns(&script, "resp_r1", usize::MAX).await.expect_err("endless")), (400, Some("context_length_exceeded")));
}

#[tokio::test]
async fn a_chain_goes_on_with_calls_and_what_they_returned() {
    let script = Script::new();
    let tools = vec![json!({"type": "function", "name": "depth"})];
    script.add(
        &run("r0"),
        &Asked { tools: tools.clone(), ..asked(false) },
        &[calls(Some(Cause::Stop)), vec![end(Cause::Stop, 6)]].concat(),
    );
    let output = Item::Output(Output { id: None, call_id: "c0".into(), output: vec!["12 m".into()] });
    let next = Asked { input: vec![output], tools: tools.clone(), previous_response_id: Some("resp_r0".into()), ..asked(false) };
    // One that was cancelled has calls that nobody is to make.
    script.add(&run("r1"), &next, &[calls(None), vec![end(Cause::CancelRequested, 6)]].concat());
    let all = turns(&script, "resp_r1", 1000).await.expect("a chain");
    let said = "assistant: I look.";
    let made = [r#"c0 calls depth({"of":"Rhine"})"#, r#"c1 calls depth({"of":"Elbe"})"#];
    assert_eq!(all, ["user: Name a river.", said, made[0], made[1], "c0 returned 12 m", said]);
}
