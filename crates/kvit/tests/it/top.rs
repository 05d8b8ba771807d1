//! `kvit top` against real servers: what a frame says is what the API says, at every size, and keys do what they promise.

use serde_json::Value;
use top::{Ask, Effect, Looker, Settings, State, Trouble, Wanted};

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::{kvit, run, said};
use crate::server::{Caller, Leave, PATIENCE, Server, chat_body, lasting_model, tiny_model};

/// A server of a test, asked over its raw sockets.
struct Asked<'a>(&'a Server);

impl Asked<'_> {
    fn ask(&self, method: &str, path: &str) -> Result<Value, Trouble> {
        match self.0.json(method, path) {
            (200, json) => Ok(json),
            (404 | 410, json) => Err(Trouble::Absent(json["error"]["message"].to_string())),
            (_, json) => Err(Trouble::Refused(json["error"]["message"].to_string())),
        }
    }
}

impl Ask for Asked<'_> {
    fn get(&self, path: &str) -> Result<Value, Trouble> {
        self.ask("GET", path)
    }

    fn post(&self, path: &str) -> Result<Value, Trouble> {
        self.ask("POST", path)
    }
}

fn now_ms() -> f64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is past 1970").as_secs_f64() * 1000.0
}

/// The state after a look.
fn looked(server: &Server) -> State {
    let settings = Settings { server: "http://there".into(), every_ms: 1000, colour: true };
    let mut state = State::new(settings, now_ms());
    state.take(Looker::new(&Asked(server)).look(&Wanted::default(), now_ms()));
    state
}

fn press(state: &mut State, code: KeyCode) -> Effect {
    state.key(KeyEvent::from(code))
}

/// The lines of a frame, which fit.
fn lines(state: &State, width: u16, height: u16) -> Vec<String> {
    let frame = top::frame(state, width, height);
    let lines: Vec<String> = frame.split('\n').map(str::to_owned).collect();
    assert_eq!(lines.len(), usize::from(height));
    assert!(lines.iter().all(|line| line.chars().count() <= usize::from(width)), "{frame}");
    lines
}

fn line<'a>(lines: &'a [String], with: &str) -> &'a str {
    lines.iter().find(|line| line.contains(with)).unwrap_or_else(|| panic!("no `{with}` in\n{}", lines.join("\n")))
}

/// A server with a run that goes on, one that completed and one that was left.
fn busy() -> (Server, Caller) {
    let server = Server::start(&lasting_model(), &["--log", "warn"]);
    assert_eq!(Caller::chat(&server, "whole", &chat_body("Say something", 12, false)).answer().0, 200);
    let mut left = Caller::chat(&server, "left", &chat_body("Go on and on", 15_000, true));
    left.read_tokens(3);
    left.leave(Leave::Close);
    server.settled("left");
    let mut living = Caller::chat(&server, "living", &chat_body("And you, too", 15_000, true));
    living.read_tokens(3);
    (server, living)
}

// contract: C-15, C-24
#[test]
fn a_frame_of_80_by_24_says_what_the_server_says() {
    let (server, living) = busy();
    // A server looks at its blocks once a second at most: until it has seen those of the newest run.
    let since = std::time::Instant::now();
    let state = loop {
        let state = looked(&server);
        if lines(&state, 80, 24).iter().any(|line| line.contains('◆')) {
            break state;
        }
        assert!(since.elapsed() < PATIENCE, "the chosen run's blocks are never lit\n{}", top::frame(&state, 80, 24));
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    let lines = lines(&state, 80, 24);
    assert!(lines[0].starts_with("kvit top  http://there") && lines[0].ends_with("every 1 s"), "{}", lines[0]);
    assert!(lines[1].starts_with(" Healthy  1 run live, every cancel acknowledged"), "{}", lines[1]);
    let kv = server.kv();
    let blocks = line(&lines, "KV blocks");
    assert!(blocks.contains("KV blocks 1,024") && blocks.contains(&format!("draining {}", kv["draining"])), "{blocks}");
    assert_eq!(kv["total"], 1024);
    assert!(line(&lines, "Unacked").contains("Unacked 0  Alerts none"), "{}", line(&lines, "Unacked"));
    assert!(line(&lines, "Runs").starts_with("Runs  1 live, 2 ended"));
    let columns = |with: &str| line(&lines, with).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(columns(" living ")[..3], [">", "decoding", "living"], "the first run is chosen");
    let left = server.run("left");
    let cells = columns(" left ");
    assert_eq!(cells[..3], ["cancelled", "left", "client_closed"]);
    let counts = ["/tokens/generated", "/tokens/delivered"].map(|at| left.pointer(at).expect("a count").to_string());
    assert_eq!((&cells[5..7], cells[7].as_str()), (&counts[..], left["tokens"]["after_disconnect"].to_string().as_str()), "{cells:?}");
    assert_eq!(columns(" whole ")[..3], ["completed", "whole", "length"]);
    // The way of the one leaving: one number is its own median and its own 95th percentile.
    let gone = left["boundaries"][0]["observed"].as_f64().expect("it was seen");
    let sent = left["milestones"]["cancel_sent"].as_f64().expect("it was sent") - gone;
    let times = columns("ms p50/p95");
    assert_eq!(times[2], format!("{sent:.2}/{sent:.2}"), "{times:?}");
    assert_eq!(lines[23], "? help  q quit  ↑↓ choose  ⏎ one run  c cancel  h health  s state  u cause  / id");
    living.leave(Leave::Close);
    assert!(server.terminate());
}

// contract: C-24
#[test]
fn one_run_in_full_shows_each_milestone_beside_the_others_or_in_their_place() {
    let (server, living) = busy();
    let mut state = looked(&server);
    while state.run_id() != Some("left") {
        let before = state.run_id().map(str::to_owned);
        press(&mut state, KeyCode::Down);
        assert_ne!(state.run_id(), before.as_deref(), "it is in the list");
    }
    let left = server.run("left");
    let shows = |lines: &[String]| {
        for (name, at) in left["milestones"].as_object().expect("milestones").iter().filter(|(_, at)| at.is_number()) {
            let stamp = format!("{:+.3}", at.as_f64().expect("a number"));
            assert!(
                lines.iter().any(|line| line.contains(&stamp) && line.contains(&name.replace('_', " "))),
                "{name}\n{}",
                lines.join("\n")
            );
        }
    };
    let wide = lines(&state, 120, 40);
    shows(&wide);
    assert!(line(&wide, "> cancelled").contains('│'), "beside the runs");
    assert!(line(&wide, "gateway-worker").contains("+"));
    // On a narrow screen it takes the runs' place, and scrolls.
    press(&mut state, KeyCode::Enter);
    let narrow = lines(&state, 80, 24);
    assert!(
        line(&narrow, "Run left").starts_with("Run left") && !narrow.iter().any(|line| line.starts_with("Runs")),
        "{}",
        narrow.join("\n")
    );
    (0..30).for_each(|_| _ = press(&mut state, KeyCode::Char(']')));
    let end = lines(&state, 80, 24);
    shows(&[narrow, end].concat());
    press(&mut state, KeyCode::Esc);
    assert!(lines(&state, 80, 24).iter().any(|line| line.starts_with("Runs")));
    living.leave(Leave::Close);
    assert!(server.terminate());
}

#[test]
fn filters_are_the_servers_and_every_size_has_a_frame() {
    let (server, living) = busy();
    let asked = Asked(&server);
    let mut looker = Looker::new(&asked);
    let mut state = looked(&server);
    press(&mut state, KeyCode::Char('u'));
    assert!(lines(&state, 80, 24).iter().any(|line| line.contains(" Cause ")));
    for _ in 0..3 {
        press(&mut state, KeyCode::Down);
    }
    assert_eq!(press(&mut state, KeyCode::Enter), Effect::Look);
    state.take(looker.look(state.wanted(), now_ms()));
    let filtered = lines(&state, 80, 24);
    assert!(line(&filtered, "Runs").starts_with("Runs  0 live, 1 ended  cause client_closed"), "{}", line(&filtered, "Runs"));
    assert!(filtered.iter().all(|line| !line.contains("whole")), "{}", filtered.join("\n"));
    assert_eq!(press(&mut state, KeyCode::Char('x')), Effect::Look);
    state.take(looker.look(state.wanted(), now_ms()));
    let health = |state: &mut State| press(state, KeyCode::Char('h'));
    health(&mut state);
    let shown = lines(&state, 120, 60);
    for part in ["Healthy.", "Diagnosis", "Alerts", "KvitWaste", "Workers", "since the start"] {
        line(&shown, part);
    }
    health(&mut state);
    // Whatever is open, and however small the screen is.
    for open in ['\0', '?', 'h', 's', 'c', '/'] {
        press(&mut state, KeyCode::Char(open));
        for (width, height) in [(1, 1), (20, 5), (24, 6), (40, 10), (60, 15), (79, 23), (109, 24), (110, 24), (200, 100)] {
            lines(&state, width, height);
        }
        press(&mut state, KeyCode::Esc);
    }
    let small = lines(&state, 40, 10);
    assert!(small[1].starts_with(" Healthy ") && small.iter().any(|line| line.contains("living")), "{}", small.join("\n"));
    living.leave(Leave::Close);
    assert!(server.terminate());
}

#[test]
fn once_prints_a_frame_or_its_json_and_says_by_its_exit_code_why_it_cannot() {
    let server = Server::start(&tiny_model(), &["--log", "warn"]);
    assert_eq!(Caller::chat(&server, "whole", &chat_body("Say something", 12, false)).answer().0, 200);
    server.settled("whole");
    let address = format!("http://127.0.0.1:{}", server.port);
    let dir = tempfile::tempdir().expect("a folder");
    let mut command = kvit(dir.path(), &["top", "--once", "--server", &address]);
    let frame = said(command.env("COLUMNS", "100").env("LINES", "30").output().expect("it runs"));
    assert_eq!((frame.code, frame.err.as_str(), frame.out.lines().count()), (0, "", 30), "{}", frame.out);
    assert!(frame.out.contains(" Healthy ") && frame.out.contains("completed  whole") && !frame.out.contains('\u{1b}'), "{}", frame.out);
    let json = run(&["top", "--json", "--server", &address]);
    let json: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!((&json["level"], &json["kv"], &json["runs"][0]["id"]), (&"ok".into(), &server.kv(), &"whole".into()), "{json:#}");
    assert!(server.terminate());

    assert_eq!(run(&["top", "--once", "--server", &address]).code, 4, "nobody is there");
    let no_terminal = run(&["top", "--server", &address]);
    assert!(no_terminal.code == 2 && no_terminal.err.contains("--once"), "{}", no_terminal.err);
    assert_eq!(run(&["top", "--once", "--server", "there"]).code, 2);
    assert_eq!(run(&["top", "--once", "--interval", "0"]).code, 2);
    let keys = dir.path().join("kvit.toml");
    std::fs::write(&keys, "[[key]]\nname = \"alice\"\ntenant = \"one\"\nsecret = \"secret-of-alice-of-one\"\n")
        .expect("the file can be written");
    let keyed = Server::start(&tiny_model(), &["--log", "error", "--config", keys.to_str().expect("a path")]);
    let address = format!("http://127.0.0.1:{}", keyed.port);
    let refused = run(&["top", "--once", "--server", &address]);
    assert!(refused.code == 2 && refused.err.contains("KVIT_API_KEY"), "{}", refused.err);
    let mut command = kvit(dir.path(), &["top", "--once", "--server", &address]);
    let known = said(command.env("KVIT_API_KEY", "secret-of-alice-of-one").output().expect("it runs"));
    assert!(known.code == 0 && known.out.contains("alice of tenant one"), "{}{}", known.out, known.err);
}
