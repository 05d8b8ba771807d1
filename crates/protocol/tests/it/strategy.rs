//! Any message, frame and cut that can be sent.

use std::time::Duration;

use lifecycle::message::{
    AttemptCut, BlockCut, Called, ChatMessage, DeadlineLeft, Delta, Down, Forward, Held, ModelInfo, Passed, Piece, Prompt, Receipt,
    Snapshot, Submit, TokenLogprob, Up, Usage,
};
use lifecycle::params::{Params, Sampling};
use lifecycle::session::{Echo, Frame, Hello, Welcome};
use lifecycle::{AttemptId, Cause, Incarnation, Outcome, OutcomeKind, RunId, RunKey, StepId, Tenant, Time};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use protocol::{Drained, Limits, Opened, Opening};

const ATTEMPT_STATES: &[&str] = &["queued", "prefilling", "decoding", "preempted", "suspended", "stopping", "ended"];
const BLOCK_STATES: &[&str] = &["free", "active", "cached", "draining", "quarantined"];

fn n32() -> impl Strategy<Value = u32> {
    any::<u32>()
}

fn n64() -> impl Strategy<Value = u64> {
    any::<u64>()
}

fn incarnation() -> impl Strategy<Value = Incarnation> {
    any::<u128>().prop_map(Incarnation)
}

fn span() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), Just(u64::MAX), any::<u64>()].prop_map(Duration::from_micros)
}

fn long() -> impl Strategy<Value = Duration> {
    (1..=u64::MAX).prop_map(Duration::from_micros)
}

/// Any bits, with those that are lost first among them.
fn float() -> impl Strategy<Value = f32> {
    prop_oneof![Just(0.0), Just(-0.0), Just(f32::INFINITY), any::<u32>().prop_map(f32::from_bits)]
}

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..8).prop_map(String::from_iter)
}

fn name() -> impl Strategy<Value = String> {
    let letters: Vec<char> = "AZaz09_:~-".chars().collect();
    vec(select(letters), 1..12).prop_map(String::from_iter)
}

fn attempt() -> impl Strategy<Value = AttemptId> {
    (name(), name(), 1..=u32::MAX).prop_map(|(tenant, run, attempt)| {
        let key = RunKey { tenant: Tenant::parse(&tenant).expect("a name"), run: RunId::parse(&run).expect("an id") };
        AttemptId { key, attempt }
    })
}

fn attempts() -> impl Strategy<Value = Vec<AttemptId>> {
    vec(attempt(), 0..4)
}

fn cause() -> impl Strategy<Value = Cause> {
    select(Cause::ALL)
}

fn cause_of(kind: OutcomeKind) -> impl Strategy<Value = Cause> {
    let causes: Vec<Cause> = Cause::ALL.iter().copied().filter(|c| c.outcome() == kind).collect();
    select(causes)
}

fn prompt() -> impl Strategy<Value = Prompt> {
    let chat =
        |turns: Vec<(String, String)>| Prompt::Chat(turns.into_iter().map(|(role, content)| ChatMessage { role, content }).collect());
    let forward = |(path, body, stream): (String, Vec<u8>, bool)| Prompt::Forward(Forward { path: path.into(), body: body.into(), stream });
    prop_oneof![
        vec((text(), text()), 0..4).prop_map(chat),
        text().prop_map(Prompt::Text),
        vec(any::<u32>(), 0..9).prop_map(Prompt::Tokens),
        (text(), bytes(), any::<bool>()).prop_map(forward),
        bytes().prop_map(|fields| Prompt::Worded(fields.into())),
    ]
}

prop_compose! {
    fn sampling()(
        (temperature, top_k, top_p, min_p) in (float(), any::<u32>(), float(), float()),
        (presence_penalty, frequency_penalty, repetition_penalty) in (float(), float(), float()),
        (logit_bias, seed, logprobs, min_tokens) in (vec((any::<u32>(), float()), 0..4), n64(), any::<Option<u8>>(), n32()),
    ) -> Sampling {
        Sampling {
            temperature, top_k, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, logit_bias, seed, logprobs, min_tokens,
        }
    }
}

prop_compose! {
    fn params()(
        (sampling, max_tokens, n, stop) in (sampling(), any::<Option<u32>>(), 1..=u32::MAX, vec(text(), 0..3)),
        (stop_token_ids, ignore_eos, salt, priority) in (vec(any::<u32>(), 0..3), any::<bool>(), text(), any::<i32>()),
    ) -> Params {
        Params { sampling, max_tokens, n, stop, stop_token_ids, ignore_eos, cache_salt: salt.into(), priority }
    }
}

prop_compose! {
    fn submit()(
        (attempt, worker, number) in (attempt(), incarnation(), 1..=u64::MAX),
        (model, prompt, params) in (text(), prompt(), params()),
        deadlines in vec((span(), cause_of(OutcomeKind::Expired)), 0..=8),
    ) -> Submit {
        let deadlines = deadlines.into_iter().map(|(left, cause)| DeadlineLeft { left, cause }).collect();
        Submit { attempt, worker, number, model: model.into(), prompt, params, deadlines }
    }
}

pub fn down() -> impl Strategy<Value = Down> {
    prop_oneof![
        submit().prop_map(|submit| Down::Submit(Box::new(submit))),
        (attempt(), cause(), n64(), span()).prop_map(|(attempt, cause, number, observed_ago)| Down::Cancel {
            attempt,
            cause,
            number,
            observed_ago
        }),
        attempts().prop_map(|attempts| Down::Claim { attempts }),
        attempts().prop_map(|attempts| Down::Disclaim { attempts }),
    ]
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..5)
}

fn passed() -> impl Strategy<Value = Passed> {
    let header = (text(), text()).prop_map(|(name, value)| (name.into(), value.into()));
    let head = |(status, kind, headers): (u16, Option<String>, Vec<_>)| Piece::Head {
        status,
        content_type: kind.map(Into::into),
        headers: headers.into(),
    };
    let called = |(place, id, name, arguments)| Piece::Called(Box::new(Called { place, id, name, arguments }));
    let piece = prop_oneof![
        Just(Piece::Said),
        bytes().prop_map(|bytes| Piece::Body(bytes.into())),
        bytes().prop_map(|bytes| Piece::Tail(bytes.into())),
        (100..1000_u16, option::of(text()), vec(header, 0..3)).prop_map(head),
        (n32(), option::of(text()), option::of(text()), text()).prop_map(called),
    ];
    (n32(), piece).prop_map(|(tokens, piece)| Passed { tokens, piece })
}

fn delta() -> impl Strategy<Value = Delta> {
    let logprob = (any::<u32>(), bytes(), float(), vec((any::<u32>(), bytes(), float()), 0..3))
        .prop_map(|(token, bytes, logprob, top)| TokenLogprob { token, bytes, logprob, top });
    let finish = option::of(cause_of(OutcomeKind::Completed));
    (attempt(), n32(), text(), vec(n32(), 0..4), vec(logprob, 0..3), finish, option::of(passed())).prop_map(
        |(attempt, sequence, text, tokens, logprobs, finish, passed)| {
            let passed = passed.map(Box::new);
            Delta { attempt, sequence, text, tokens, logprobs, finish, passed }
        },
    )
}

fn usage() -> impl Strategy<Value = Usage> {
    any::<(u32, u32, u32)>().prop_map(|(prompt, cached_prompt, generated)| Usage { prompt, cached_prompt, generated })
}

fn receipt() -> impl Strategy<Value = Receipt> {
    any::<(u32, u32, u32, u32, u64)>().prop_map(|(blocks_held, blocks_peak, blocks_shared, steps, fence)| Receipt {
        blocks_held,
        blocks_peak,
        blocks_shared,
        steps,
        fence: StepId(fence),
    })
}

pub fn up() -> impl Strategy<Value = Up> {
    let outcome = (cause(), option::of(text())).prop_map(|(cause, reason)| Outcome { cause, reason });
    prop_oneof![
        (attempt(), n32()).prop_map(|(attempt, prompt_tokens)| Up::Accepted { attempt, prompt_tokens }),
        (n64(), vec(delta(), 0..4)).prop_map(|(step, deltas)| Up::Step { step: StepId(step), deltas }),
        (attempt(), option::of(cause())).prop_map(|(attempt, won)| Up::CancelAcknowledged { attempt, won }),
        (attempt(), outcome, usage()).prop_map(|(attempt, outcome, usage)| Up::Ended { attempt, outcome, usage }),
        (attempt(), receipt()).prop_map(|(attempt, receipt)| Up::Released { attempt, receipt }),
        text().prop_map(|why| Up::DeviceLost { why }),
        attempts().prop_map(|attempts| Up::Ask { attempts }),
        Just(Up::Draining),
        vec(prop::sample::select(crate::samples::records()), 0..5).prop_map(|records| Up::Records { records }),
    ]
}

pub fn frame<M: std::fmt::Debug>(message: impl Strategy<Value = M>) -> impl Strategy<Value = Frame<M>> {
    let ids = (incarnation(), incarnation(), 1..=u64::MAX, 1..=u64::MAX);
    let rest = (n64(), any::<bool>(), n64(), option::of((n64(), span())));
    (option::weighted(0.9, message), ids, rest).prop_map(|(message, (from, to, tenure, number), (received, missing, stamp, echo))| {
        let number = if message.is_some() { number } else { 0 };
        let echo = echo.map(|(stamp, held)| Echo { stamp: Time(stamp), held });
        Frame { from, to, tenure, number, received, missing, stamp: Time(stamp), echo, message }
    })
}

prop_compose! {
    pub fn opening()(
        (versions, gateway, incarnation, session) in (vec(any::<u32>(), 1..=16), name(), incarnation(), 1..=u64::MAX),
        (resume, received, lease, stamp) in (option::of((incarnation(), 1..=u64::MAX)), n64(), long(), n64()),
    ) -> Opening {
        let hello = Hello { gateway: gateway.into(), incarnation, session, resume, received, lease, stamp: Time(stamp) };
        Opening { versions, hello }
    }
}

prop_compose! {
    pub fn opened()(
        (version, worker, incarnation, tenure) in (1..=u32::MAX, name(), incarnation(), 1..=u64::MAX),
        (received, lease, stamp) in (n64(), long(), n64()),
        (id, context, default_max_tokens, created) in (name(), 1..=u32::MAX, 1..=u32::MAX, n64()),
        (frame_bytes_max, window, heartbeat, resend_after, suspend_after) in (1..=u64::MAX, 1..=u64::MAX, long(), long(), long()),
    ) -> Opened {
        Opened {
            version,
            welcome: Welcome { worker: worker.into(), incarnation, tenure, received, lease, stamp: Time(stamp) },
            model: ModelInfo { id: id.into(), context, default_max_tokens, created },
            limits: Limits { frame_bytes_max, window, heartbeat, resend_after, suspend_after },
        }
    }
}

fn attempt_cut() -> impl Strategy<Value = AttemptCut> {
    (attempt(), select(ATTEMPT_STATES), n32()).prop_map(|(attempt, state, blocks)| AttemptCut { attempt, state, blocks })
}

fn block_cut() -> impl Strategy<Value = BlockCut> {
    (n32(), n64(), select(BLOCK_STATES), attempts(), option::of(n64().prop_map(StepId)))
        .prop_map(|(block, generation, state, owners, fence)| BlockCut { block, generation, state, owners, fence })
}

fn held() -> impl Strategy<Value = Held> {
    any::<[u32; 9]>().prop_map(|[attempts, owners, waiting, running, deadlines, slots, slots_total, steps, answers]| Held {
        attempts,
        owners,
        waiting,
        running,
        deadlines,
        slots,
        slots_total,
        steps,
        answers,
    })
}

prop_compose! {
    pub fn snapshot()(
        counts in any::<[u32; 12]>(),
        wide in any::<[u64; 9]>(),
        (device_lost, held) in (option::of(text()), held()),
        (attempts, blocks) in (vec(attempt_cut(), 0..3), vec(block_cut(), 0..3)),
    ) -> Snapshot {
        let [block_tokens, total, free, active, orphaned, cached, draining, quarantined, queued, running, stopping, tombstones] = counts;
        let [step, stale_releases, foreign_releases, double_releases, late_completions, reserved_bytes, rest @ ..] = wide;
        let [orphaned_attempts, suspensions, stale_messages] = rest;
        Snapshot {
            step: StepId(step), block_tokens, total, free, active, orphaned, cached, draining, quarantined, queued, running, stopping,
            stale_releases, foreign_releases, double_releases, device_lost, late_completions, reserved_bytes, tombstones, held, attempts, blocks,
            orphaned_attempts, suspensions, stale_messages,
        }
    }
}

pub fn drained() -> impl Strategy<Value = Drained> {
    (incarnation(), attempts(), attempts(), attempts(), n64()).prop_map(|(worker, finished, handed_back, cancelled, left_out)| Drained {
        worker,
        finished,
        handed_back,
        cancelled,
        left_out,
    })
}
