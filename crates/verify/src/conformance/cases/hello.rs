//! How a session opens, and which ones do not.

use std::time::Duration;

use lifecycle::Incarnation;
use protocol::worker_v1 as wire;
use tonic::Code;

use crate::conformance::bench::{Bench, fresh_life, said};
use crate::conformance::case::{Case, Fault, Found, case, must};
use crate::conformance::gateway::{Gateway, bytes};

pub(super) const CASES: &[Case] = &[
    case!(
        "hello",
        welcome,
        Short,
        "\"The worker's answer to Hello\": all that is required is there, and lives, limits and names are possible"
    ),
    case!("hello", longer_lease_holds, Short, "\"Each side states its lease, and the longer one holds\""),
    case!("hello", unknown_versions_beside, Short, "\"The worker takes the highest that it speaks too and states it in Welcome\""),
    case!(
        "hello",
        no_common_version,
        Short,
        "\"If there is none it ends the call with FAILED_PRECONDITION and the words\" that name both lists"
    ),
    case!("hello", frame_first, Short, "\"The first one, and only that\": a stream that begins with a frame ends with INVALID_ARGUMENT"),
    case!("hello", no_hello, Long, "\"DEADLINE_EXCEEDED, no Hello in time\": it must come within `hello_timeout_ms`"),
    case!(
        "hello",
        broken_hello,
        Short,
        "\"A required field that is missing ... ends the stream with INVALID_ARGUMENT and names the field\""
    ),
    case!("hello", same_session_again, Short, "\"A Hello ... with a number that is not above the newest one's, is refused with ABORTED\""),
    case!("hello", older_life, Short, "C-3. \"A Hello of an older life ... is refused with ABORTED\""),
];

fn down(hello: wire::Hello) -> wire::Down {
    wire::Down { kind: Some(wire::down::Kind::Hello(hello)) }
}

fn code(status: &tonic::Status, code: Code) -> Result<(), Fault> {
    must(status.code() == code, || format!("it was refused with {}, and not with {code:?}", said(status)))
}

async fn welcome(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let limits = gateway.see(|state| state.limits).ok_or_else(|| Fault::Failed("Welcome.limits is missing".to_owned()))?;
    must(limits.suspend_after > limits.heartbeat, || {
        format!("suspend_after {:?} is not above heartbeat {:?}", limits.suspend_after, limits.heartbeat)
    })?;
    must(bench.worker.lease > limits.suspend_after, || {
        format!("lease {:?} is not above suspend_after {:?}", bench.worker.lease, limits.suspend_after)
    })?;
    gateway.until("five heartbeats", |state| state.beats >= 5).await?;
    Ok(format!("version 1, context {}, lease {:?}, {limits:?}", bench.worker.context, bench.worker.lease))
}

async fn longer_lease_holds(bench: Bench) -> Found {
    let stated = bench.worker.lease + Duration::from_secs(1);
    let (longer, shorter) = (bench.gateway_that_states("a", stated), bench.gateway_that_states("b", Duration::from_millis(1)));
    bench.connect(&longer).await?;
    bench.connect(&shorter).await?;
    let holds = [&longer, &shorter].map(|gateway| gateway.see(|state| state.lease));
    must(holds[0] == stated, || format!("the gateway stated {stated:?}, and Welcome states {:?}", holds[0]))?;
    must(holds[1] <= bench.worker.lease && !holds[1].is_zero(), || {
        format!("Welcome states {:?} to one and {:?} to another", holds[1], bench.worker.lease)
    })?;
    Ok(format!("{:?} for who states more, {:?} for who states less", holds[0], holds[1]))
}

async fn with_versions(bench: &Bench, of: &str, versions: &[u32]) -> (Gateway, wire::Hello) {
    let gateway = bench.gateway(of);
    let hello = wire::Hello { versions: versions.to_vec(), ..gateway.hello() };
    (gateway, hello)
}

async fn unknown_versions_beside(bench: Bench) -> Found {
    let (gateway, hello) = with_versions(&bench, "a", &[900, 1, 700]).await;
    let opened = bench.opened(&gateway, down(hello)).await?;
    must(opened.version == 1, || format!("of 900, 1 and 700 it took {}", opened.version))?;
    Ok("of 900, 1 and 700 it took 1".to_owned())
}

async fn no_common_version(bench: Bench) -> Found {
    let (gateway, hello) = with_versions(&bench, "a", &[904, 903]).await;
    let status = bench.refused(&gateway, down(hello)).await?;
    code(&status, Code::FailedPrecondition)?;
    let words = "no common protocol version: the gateway speaks 903, 904; the worker speaks ";
    let own = status.message().strip_prefix(words).unwrap_or_default();
    must(!own.is_empty(), || format!("it says `{}`, and not `{words}...`", status.message()))?;
    Ok(status.message().to_owned())
}

async fn frame_first(bench: Bench) -> Found {
    let gateway = bench.gateway("a");
    let frame = gateway.see(|state| state.frame(0, None));
    let status = bench.refused(&gateway, wire::Down { kind: Some(wire::down::Kind::Frame(frame)) }).await?;
    code(&status, Code::InvalidArgument)?;
    Ok(said(&status))
}

/// The field that is to be named, and a way to break it.
type Break = (&'static str, fn(&mut wire::Hello));

async fn broken_hello(bench: Bench) -> Found {
    let breaks: [Break; 6] = [
        ("versions", |hello| hello.versions.clear()),
        ("gateway", |hello| hello.gateway.clear()),
        ("gateway", |hello| hello.gateway = "no name".to_owned()),
        ("incarnation", |hello| hello.incarnation.truncate(3)),
        ("session", |hello| hello.session = 0),
        ("lease_us", |hello| hello.lease_us = 0),
    ];
    for (field, breaks) in breaks {
        let gateway = bench.gateway("a");
        let mut hello = gateway.hello();
        breaks(&mut hello);
        let status = bench.refused(&gateway, down(hello)).await?;
        code(&status, Code::InvalidArgument).map_err(|fault| match fault {
            Fault::Failed(why) => Fault::Failed(format!("Hello.{field} was broken; {why}")),
            skipped => skipped,
        })?;
        must(status.message().contains(field), || format!("Hello.{field} was broken, and it says `{}`", status.message()))?;
    }
    Ok(format!("{} ways to break it, each named", breaks.len()))
}

async fn same_session_again(bench: Bench) -> Found {
    let gateway = bench.connected("a").await?;
    let late = Gateway::new(bench.name("a"), gateway.see(|state| state.me), bench.options.lease, bench.options.patience);
    let status = bench.refused(&late, down(late.hello())).await?;
    code(&status, Code::Aborted)?;
    let beats = gateway.see(|state| state.beats);
    gateway.until("further heartbeats on the session that counts", |state| state.beats > beats + 2).await?;
    Ok(said(&status))
}

async fn older_life(bench: Bench) -> Found {
    let older = fresh_life();
    let gateway = bench.connected("a").await?;
    let late = Gateway::new(bench.name("a"), older, bench.options.lease, bench.options.patience);
    let mut hello = late.hello();
    hello.session = 1000;
    let status = bench.refused(&late, down(hello)).await?;
    code(&status, Code::Aborted)?;
    // Lives are compared as numbers, big endian: one that differs in its last byte alone is older too.
    let mut hello = late.hello();
    hello.incarnation = bytes(Incarnation(gateway.see(|state| state.me.0) - 1));
    let status = bench.refused(&late, down(hello)).await?;
    code(&status, Code::Aborted)?;
    let beats = gateway.see(|state| state.beats);
    gateway.until("further heartbeats for the newer life", |state| state.beats > beats + 2).await?;
    Ok(said(&status))
}

async fn no_hello(bench: Bench) -> Found {
    let mut client = bench.client().await?;
    let opening = async {
        let mut stream = client.session(tokio_stream::pending::<wire::Down>()).await?.into_inner();
        stream.message().await
    };
    let timeout = Duration::from_millis(protocol::limits::HELLO_TIMEOUT_MS.default) + bench.options.patience;
    match tokio::time::timeout(timeout, opening).await {
        Err(_) => Err(Fault::Failed(format!("the stream was open for {timeout:?} without a Hello"))),
        Ok(Ok(_)) => Err(Fault::Failed("the worker answered a Hello that was never said".to_owned())),
        Ok(Err(status)) => code(&status, Code::DeadlineExceeded).map(|()| said(&status)),
    }
}
