//! The dashboard and a real server: every query of every panel returns data, and an exemplar leads to a run.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::Value;

use super::{Prometheus, programs, promtool, until};
use crate::run;
use crate::server::{Caller, Leave, Server, chat_body, lasting_model};

/// Every expression of the dashboard, with the panel's title.
fn queries() -> Vec<(String, String)> {
    let file = std::fs::read_to_string(xtask::root().join("examples/prometheus/dashboard.json")).expect("it is there");
    let dashboard: Value = serde_json::from_str(&file).expect("JSON");
    let mut found = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(ids.insert(panel["id"].as_u64()), "each panel has an id of its own: {}", panel["title"]);
        let (is_row, title) = (panel["type"] == "row", panel["title"].as_str().expect("a title"));
        assert!(is_row || panel["description"].as_str().is_some_and(|d| !d.is_empty()), "{title} says what it shows");
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
            found.push((title.to_owned(), target["expr"].as_str().expect("an expression").to_owned()));
        }
        assert!(is_row || found.last().is_some_and(|(of, _)| of == title), "{title} asks for something");
    }
    found
}

/// As Grafana asks, of a short while.
fn filled(expression: &str) -> String {
    expression.replace("$__rate_interval", "5s").replace("$__range", "20s").replace("$instance", ".*")
}

/// Callers that stay to the end and callers that leave, until told to stop.
fn traffic(server: &Server, over: &AtomicBool, rounds: &AtomicU32) {
    for n in 0_u32.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let id = format!("leaves{n}");
        let mut caller = Caller::chat(server, &id, &chat_body("Tell me a long story.", 10_000, true));
        caller.read_tokens(2);
        caller.leave(if n % 2 == 0 { Leave::Close } else { Leave::Reset });
        server.settled(&id);
        let (status, _) = Caller::chat(server, &format!("stays{n}"), &chat_body("Short.", 20, false)).answer();
        assert_eq!(status, 200);
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn every_query_of_the_dashboard_returns_data() {
    let Some(programs) = programs() else { return };
    let server = Server::start(&lasting_model(), &[]);
    let rules = run(&["alerts", "--rules"]).out;
    let prometheus = Prometheus::start(&programs, server.port, &rules);
    let (over, rounds) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| traffic(&server, &over, &rounds));
        // Whatever is found wrong, the callers are told.
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _over = Over(&over);
        let queries = queries();
        assert!(queries.len() >= 40, "{} queries", queries.len());
        for (title, expression) in &queries {
            let expression = filled(expression);
            until(&format!("{title}: {expression}"), || prometheus.query(&expression).iter().any(|number| number.is_finite()));
        }
        until("an exemplar", || {
            let path = "/api/v1/query_exemplars?query=kvit_disconnect_to_released_seconds_bucket&start=0&end=9999999999";
            let found = prometheus.ask(path);
            let exemplar = found.pointer("/data/0/exemplars/0/labels/run_id").and_then(Value::as_str).map(str::to_owned);
            exemplar.is_some_and(|run| run.starts_with("leaves") && server.run(&run)["outcome"]["kind"] == "cancelled")
        });
        assert!(rounds.load(Ordering::Relaxed) > 0);
        let (_, _, page) = server.request("GET", "/metrics", None, None);
        promtool(&programs, &["check", "metrics"], &xtask::root(), &String::from_utf8(page).expect("text"));
    });
}
