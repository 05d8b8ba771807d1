//! The same rules inside: a real worker that is stopped, and healthy runs under load.
// contract: C-9

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{PATIENCE, until};
use crate::run;
use crate::server::{Caller, Leave, Server, chat_body, lasting_model};
use crate::worker::Process;

/// Nothing here is a matter of how quick the machine is.
const PATIENT: [&str; 2] = ["--alert-cancel-ms", "60000"];

fn firing(server: &Server) -> Vec<String> {
    let (status, alerts) = server.json("GET", "/v1/alerts");
    assert_eq!(status, 200, "{alerts}");
    let all = alerts["data"].as_array().expect("rules");
    let names: Vec<String> = all.iter().filter(|a| a["state"] == "firing").filter_map(|a| a["name"].as_str().map(str::to_owned)).collect();
    assert_eq!((alerts["firing"].as_u64(), all.len()), (Some(names.len() as u64), 6));
    names
}

fn command(server: &Server, words: &[&str]) -> crate::Said {
    run(&[words, &["--server", &format!("http://127.0.0.1:{}", server.port)]].concat())
}

#[test]
fn a_stopped_worker_is_an_alarm_until_it_goes_on() {
    let worker = Process::start(&lasting_model(), &["--log", "error", "--lease-ms", "120000"]);
    let flags = [&PATIENT[..], &["--alert-unacknowledged-ms", "300", "--lease-ms", "120000", "--log", "error"]].concat();
    let gateway = Server::gateway(&[&worker.address], &flags);
    until("the worker is here", || gateway.json("GET", "/health").0 == 200);
    let mut caller = Caller::chat(&gateway, "left", &chat_body("Tell me a long story.", 10_000, true));
    caller.read_tokens(3);
    assert_eq!(firing(&gateway), [""; 0]);
    assert_eq!(command(&gateway, &["alerts"]).code, 0);
    worker.signal("STOP");
    caller.leave(Leave::Close);
    let since = Instant::now();
    while firing(&gateway) != ["KvitUnacknowledgedCancels"] {
        let seen = || ["/v1/alerts", "/v1/runs/left", "/v1/workers"].map(|path| format!("{:#}", gateway.json("GET", path).1)).join("\n");
        assert!(since.elapsed() < PATIENCE, "the alarm is never raised:\n{}", seen());
        std::thread::sleep(Duration::from_millis(50));
    }
    let said = command(&gateway, &["alerts"]);
    assert_eq!((said.code, said.err.as_str()), (1, "kvit: firing: KvitUnacknowledgedCancels\n"));
    assert!(said.out.contains("docs/metrics.md#kvitunacknowledgedcancels"), "{}", said.out);
    let json: Value = serde_json::from_str(&command(&gateway, &["alerts", "--json"]).out).expect("JSON");
    assert_eq!(json["firing"], 1);
    worker.signal("CONT");
    gateway.settled("left");
    assert_eq!(firing(&gateway), [""; 0]);
    assert_eq!(command(&gateway, &["alerts"]).code, 0);
}

/// Three windows pass, with callers that leave in each of them beside others that stay.
#[test]
fn twenty_healthy_runs_under_load_raise_no_alarm() {
    let server = Server::start(&lasting_model(), &[&PATIENT[..], &["--alert-window-s", "1", "--price-device-hour", "2.5"]].concat());
    let stay: Vec<Caller> = (0..4).map(|n| Caller::chat(&server, &format!("stays{n}"), &chat_body("On and on.", 15_000, true))).collect();
    let windows = || server.json("GET", "/v1/waste").1["windows"].as_array().map_or(0, Vec::len);
    let mut left = 0;
    while left < 20 || windows() < 3 {
        let id = format!("leaves{left}");
        let mut caller = Caller::chat(&server, &id, &chat_body(&id, 10_000, true));
        caller.read_tokens(2);
        caller.leave(if left % 2 == 0 { Leave::Close } else { Leave::Reset });
        server.settled(&id);
        left += 1;
        assert_eq!(firing(&server), [""; 0], "after {left}");
    }
    for (n, caller) in stay.into_iter().enumerate() {
        caller.leave(Leave::Close);
        server.settled(&format!("stays{n}"));
    }
    let (status, answer) = (200, Caller::chat(&server, "whole", &chat_body("Short.", 8, false)).answer());
    assert_eq!(answer.0, status);
    server.settled("whole");
    let waste = server.json("GET", "/v1/waste").1;
    let total = &waste["total"];
    assert_eq!(total["cancelled"]["runs"], left + 4);
    assert_eq!(total["cost"]["completed"], 1);
    assert!(total["ratio"]["tokens"].as_u64() > total["cancelled"]["delivered"].as_u64(), "{waste:#}");
    // The device's time comes with the last record of it, once it has nothing to do.
    until("the device's time is told", || {
        let cost = server.json("GET", "/v1/waste").1["total"]["cost"].clone();
        let of = |name: &str| cost["per_answer"][name].as_f64().unwrap_or(0.0);
        of("device_seconds") > 0.0 && (of("money") - of("device_seconds") / 3600.0 * 2.5).abs() < 1e-9
    });
    let text = command(&server, &["waste"]);
    assert!(
        text.code == 0 && text.out.contains("completed answers") && text.out.contains("handed to the connection of its caller"),
        "{}",
        text.out
    );
}
