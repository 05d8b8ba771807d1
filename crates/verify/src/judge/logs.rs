//! What a proxy's own log says of a request: nginx' status, haproxy's termination state, envoy's response flags, caddy's status and its word of
//! an answer that it gave up, joined by the id that the request carried. A line may have any format as long as the id and the field stand in it; JSON lines are read, too.
//!
//! nginx writes 200 for a stream that its caller left, for the head was sent by then: only `$request_completion` tells the two apart. The
//! format in [`NGINX_FORMAT`] has it.
//!
//! Invariant: a line is a request's only if its id stands in it whole; a line that has the id and no known field says nothing.
// contract: C-29

use serde_json::Value;

use super::result::LogSaw;

/// Longest line that is looked at, in bytes; a longer one is passed over.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Most lines of one id that are kept.
pub const LINES_MAX: usize = 64;

/// A format for nginx that says all that is asked of it. `$request_completion` is `OK` or nothing.
pub const NGINX_FORMAT: &str =
    "log_format verify '\"$request\" $status id=$http_x_request_id completion=$request_completion upstream=$upstream_status';";
/// The same for haproxy: the id is in the line as the unique id.
pub const HAPROXY_FORMAT: &str =
    "unique-id-format %[req.hdr(x-request-id)]\nlog-format \"%ft %b/%s %ST %tsc %ac/%fc/%bc/%sc/%rc %{+Q}r %ID\"";
/// The same for envoy.
pub const ENVOY_FORMAT: &str =
    "json_format: {id: \"%REQ(X-REQUEST-ID)%\", response_code: \"%RESPONSE_CODE%\", response_flags: \"%RESPONSE_FLAGS%\"}";

/// Who left, or what happened.
mod means {
    pub const LEFT: &str = "client left";
    pub const LEFT_WAITING: &str = "client left before an answer";
    pub const CLIENT_SLOW: &str = "client timed out";
    pub const COMPLETED: &str = "completed";
    pub const CUT: &str = "not all of the answer was sent";
    pub const HEAD_SENT: &str = "answered, in part or whole";
    pub const REFUSED: &str = "refused";
    pub const UPSTREAM_FAILED: &str = "upstream failed";
    pub const UPSTREAM_SLOW: &str = "upstream timed out";
    pub const PROXY: &str = "ended by the proxy";
}

/// Whose log it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    Nginx,
    Haproxy,
    Envoy,
    Caddy,
}

/// What the log of a hop says of one request, in the order of its lines: more than one where it was asked again. `kind` is what the hop is
/// (`nginx`, `haproxy`, `envoy`, `caddy`); without it each line is read as what it looks like.
pub fn saw(hop: &str, kind: Option<&str>, log: &str, id: &str) -> Vec<LogSaw> {
    let lines = log.lines().filter(|line| line.len() <= LINE_BYTES_MAX && has(line, id));
    lines.filter_map(|line| read(hop, kind, line)).take(LINES_MAX).collect()
}

/// What one line says, whosever request it is.
pub fn read(hop: &str, kind: Option<&str>, line: &str) -> Option<LogSaw> {
    let whose = match kind {
        Some("nginx") => vec![Whose::Nginx],
        Some("haproxy") => vec![Whose::Haproxy],
        Some("envoy") => vec![Whose::Envoy],
        Some("caddy") => vec![Whose::Caddy],
        _ => vec![Whose::Haproxy, Whose::Envoy, Whose::Caddy, Whose::Nginx],
    };
    let json = line.find('{').and_then(|at| serde_json::from_str::<Value>(line[at..].trim_end()).ok()).filter(Value::is_object);
    let said = whose.iter().find_map(|whose| match (whose, &json) {
        (Whose::Nginx, Some(json)) => nginx_json(json),
        (Whose::Nginx, None) => nginx(line),
        (Whose::Haproxy, Some(json)) => haproxy_json(json),
        (Whose::Haproxy, None) => haproxy(line),
        (Whose::Envoy, Some(json)) => envoy_json(json),
        (Whose::Envoy, None) => envoy(line),
        (Whose::Caddy, Some(json)) => caddy_json(json),
        (Whose::Caddy, None) => None,
    });
    said.map(|(said, means)| LogSaw { hop: hop.to_owned(), said, means: means.to_owned() })
}

/// What such a meaning says of whether the hop took note of the caller's leaving: that of an answer that it says it sent whole is no. Where the
/// upstream failed, or nobody can tell, it says neither.
pub fn noticed(meaning: &str) -> Option<bool> {
    match meaning {
        means::LEFT | means::LEFT_WAITING | means::CLIENT_SLOW | means::CUT => Some(true),
        means::COMPLETED => Some(false),
        _ => None,
    }
}

/// Whether such a meaning says that it took note before there was any answer.
pub fn is_waiting(meaning: &str) -> bool {
    meaning == means::LEFT_WAITING
}

/// The words of a line that begin so and that no other character of an id stands beside.
pub fn ids<'a>(line: &'a str, begins: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(begins).filter(|(at, _)| !line[..*at].chars().next_back().is_some_and(inside)).map(|(at, _)| {
        let end = line[at..].find(|c: char| !inside(c)).map_or(line.len(), |length| at + length);
        &line[at..end]
    })
}

fn inside(c: char) -> bool {
    c.is_alphanumeric() || c == '-' || c == '_' || c == '.'
}

/// Whether the id stands in it, and not only as a part of a longer one.
fn has(line: &str, id: &str) -> bool {
    !id.is_empty()
        && line.match_indices(id).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + id.len()..].chars().next();
            !before.is_some_and(inside) && !after.is_some_and(inside)
        })
}

type Said = (String, &'static str);

/// The words of a line, without what stands in quotes.
fn bare(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').step_by(2).flat_map(str::split_whitespace)
}

/// The words behind the request, which is the first thing in quotes that names a protocol.
fn behind_request(line: &str) -> Option<impl Iterator<Item = &str>> {
    let mut from = 0;
    loop {
        let open = from + line.get(from..)?.find('"')?;
        let close = open + 1 + line.get(open + 1..)?.find('"')?;
        if line[open + 1..close].rsplit(' ').next().is_some_and(|last| last.starts_with("HTTP/")) {
            return Some(line[close + 1..].split_whitespace());
        }
        from = close + 1;
    }
}

fn status(word: &str) -> Option<u16> {
    word.parse().ok().filter(|status| word.len() == 3 && (100..600).contains(status))
}

/// `name=value` or `name:value`, with or without quotes.
fn named<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let words = line.split([' ', '\t', ',', '|']);
    words.filter_map(|word| word.split_once(['=', ':'])).find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches(['"', '\'']))
}

fn nginx(line: &str) -> Option<Said> {
    let first = behind_request(line).and_then(|mut words| words.next().and_then(status));
    // A format of one's own: only a status that is named, or that is nginx' own, is one.
    let status =
        first.or_else(|| named(line, "status").and_then(status)).or_else(|| bare(line).find(|word| *word == "499").and(Some(499)))?;
    Some(nginx_means(status, named(line, "completion").or_else(|| named(line, "request_completion"))))
}

fn nginx_json(json: &Value) -> Option<Said> {
    let status = status(&text(json, &["status"])?)?;
    let completion = text(json, &["request_completion", "completion"]);
    Some(nginx_means(status, completion.as_deref()))
}

fn nginx_means(status: u16, completion: Option<&str>) -> Said {
    let means = match (status, completion) {
        (499, _) => means::LEFT_WAITING,
        (504, _) => means::UPSTREAM_SLOW,
        (408, _) => means::CLIENT_SLOW,
        (500.., _) => means::UPSTREAM_FAILED,
        (400.., _) => means::REFUSED,
        (_, Some("OK")) => means::COMPLETED,
        (_, Some(_)) => means::CUT,
        _ => means::HEAD_SENT,
    };
    let said = match completion {
        Some("") => format!("{status}, not complete"),
        Some(completion) => format!("{status} {completion}"),
        None => status.to_string(),
    };
    (said, means)
}

fn haproxy(line: &str) -> Option<Said> {
    let words: Vec<&str> = bare(line).collect();
    let counts = |word: &&str| word.split('/').count() == 5 && word.split('/').all(|n| n.trim_start_matches('+').parse::<u64>().is_ok());
    // The state stands in front of the five counts of connections; where there are none, only one of four letters is surely it.
    let before_counts = words.windows(2).find(|pair| counts(&pair[1]) && state(pair[0]).is_some()).map(|pair| pair[0]);
    let word = before_counts.or_else(|| words.iter().copied().find(|word| word.len() == 4 && state(word).is_some()))?;
    Some((word.to_owned(), state(word)?))
}

fn haproxy_json(json: &Value) -> Option<Said> {
    let word = text(json, &["termination_state", "tsc", "ts"])?;
    Some((word.clone(), state(&word)?))
}

/// What a termination state says: who ended the session, and in which part of it.
fn state(word: &str) -> Option<&'static str> {
    let mut letters = word.chars();
    let (who, part) = (letters.next()?, letters.next()?);
    let rest: Vec<char> = letters.collect();
    let cookies = match rest[..] {
        [] => true,
        [cookie, set] => "NIDVEOU-".contains(cookie) && "NIUPRD-".contains(set),
        _ => false,
    };
    if !cookies || !"RQCHDLT-".contains(part) {
        return None;
    }
    Some(match (who, part) {
        ('C', 'R' | 'Q' | 'C' | 'H') => means::LEFT_WAITING,
        ('C', _) => means::LEFT,
        ('c', _) => means::CLIENT_SLOW,
        ('S', _) => means::UPSTREAM_FAILED,
        ('s', _) => means::UPSTREAM_SLOW,
        ('P' | 'R', _) => means::REFUSED,
        ('L' | 'I' | 'D' | 'U' | 'K' | 'T', _) => means::PROXY,
        ('-', '-') => means::COMPLETED,
        _ => return None,
    })
}

fn envoy(line: &str) -> Option<Said> {
    let mut words = behind_request(line)?;
    let code = words.next()?;
    let flags = words.next()?;
    // Behind the flags stand counts of bytes: a line of another proxy has no such words.
    let is_flags = flags == "-" || flags.split(',').all(|flag| !flag.is_empty() && flag.chars().all(|c| c.is_ascii_uppercase()));
    let is_count = words.next().is_some_and(|word| word.parse::<u64>().is_ok());
    (is_flags && is_count).then(|| envoy_means(code, flags)).flatten()
}

fn envoy_json(json: &Value) -> Option<Said> {
    let code = text(json, &["response_code", "status", "code"])?;
    envoy_means(&code, &text(json, &["response_flags", "flags", "response_flags_long"])?)
}

fn envoy_means(code: &str, flags: &str) -> Option<Said> {
    let code: u16 = code.parse().ok()?;
    let means = flags.split(',').find_map(flag).unwrap_or(match code {
        0 => means::CUT,
        500.. => means::UPSTREAM_FAILED,
        400.. => means::REFUSED,
        _ => means::COMPLETED,
    });
    Some((format!("{code} {flags}"), means))
}

/// What a response flag says, short or long.
fn flag(flag: &str) -> Option<&'static str> {
    Some(match flag {
        "DC" | "DownstreamConnectionTermination" | "DR" | "DownstreamRemoteReset" => means::LEFT,
        "UT" | "UpstreamRequestTimeout" | "UMSDR" | "UpstreamMaxStreamDurationReached" => means::UPSTREAM_SLOW,
        "SI" | "StreamIdleTimeout" | "DT" | "DurationTimeout" | "OM" | "OverloadManagerTerminated" => means::PROXY,
        "LR" | "LocalReset" | "DPE" | "DownstreamProtocolError" => means::PROXY,
        "UC" | "UpstreamConnectionTermination" | "UR" | "UpstreamRemoteReset" | "UPE" | "UpstreamProtocolError" => means::UPSTREAM_FAILED,
        "UF" | "UpstreamConnectionFailure" | "URX" | "UpstreamRetryLimitExceeded" => means::UPSTREAM_FAILED,
        "UH" | "NoHealthyUpstream" | "UO" | "UpstreamOverflow" | "NC" | "NoClusterFound" => means::UPSTREAM_FAILED,
        "NR" | "NoRouteFound" | "RL" | "RateLimited" | "UAEX" | "UnauthorizedExternalService" | "IH" | "InvalidEnvoyRequestHeaders" => {
            means::REFUSED
        }
        _ => return None,
    })
}

/// caddy says 499 of a request that was left before its head; of a stream that was left its access log says 200, and another line that it gave
/// the answer up.
fn caddy_json(json: &Value) -> Option<Said> {
    let request = json.get("request").filter(|request| request.is_object())?;
    if text(json, &["msg"]).is_some_and(|msg| msg.starts_with("aborting with incomplete response")) {
        return Some(("aborted".to_owned(), means::CUT));
    }
    request.get("headers")?;
    let status = text(json, &["status"])?;
    // It writes 0 for an answer that never had a head.
    let means = match status.parse().ok()? {
        0 | 499 => means::LEFT_WAITING,
        504 => means::UPSTREAM_SLOW,
        408 => means::CLIENT_SLOW,
        500..600 => means::UPSTREAM_FAILED,
        400..500 => means::REFUSED,
        100..400 => means::HEAD_SENT,
        _ => return None,
    };
    Some((status, means))
}

/// The first of these members that is there, as text.
fn text(json: &Value, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| match json.get(name)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that nginx 1.22.1, haproxy 2.6.12 and envoy 1.40.0 wrote, each of a request that was left or that came to its end.
    const LOG: &str = r#"
127.0.0.1 - - [30/Nov/2026:10:11:55 +0000] "POST /whole HTTP/1.1" 499 0 "-" "-" nginx-04-3033 - 0.123
127.0.0.1 - - [30/Nov/2026:10:11:55 +0000] "POST /stream HTTP/1.1" 200 371 "-" "-" nginx-01-3033 200 0.147
127.0.0.1:56550 [30/Nov/2026:10:10:49.076] f b/s 0/0/0/-1/122 400 206 - - CH-- 6/6/5/5/0 0/0 "POST /whole HTTP/1.1" ha-06
127.0.0.1:56492 [30/Nov/2026:10:10:49.076] f b/s 0/0/0/0/142 200 416 - - CD-- 2/2/1/1/0 0/0 "POST /stream HTTP/1.1" ha-01
127.0.0.1:50560 [30/Nov/2026:10:10:40.169] f f/<NOSRV> -1/-1/-1/-1/0 400 0 - - CR-- 1/1/0/0/0 0/0 "<BADREQ>" ha-00
127.0.0.1:50590 [30/Nov/2026:10:10:40.170] f b/s 0/0/0/2578/2578 200 79 - - ---- 4/4/3/3/0 0/0 "POST /whole HTTP/1.1" ha-04
[2026-11-30T10:11:06.913Z] "POST /whole HTTP/1.1" 0 DC 2 0 112 - "-" "-" "envoy-06-1313" "x" "127.0.0.1:37423"
{"details":"downstream_remote_disconnect","id":"envoy-07-1313","response_code":200,"response_flags":"DC"}
[2026-11-30T10:11:07.253Z] "POST /whole HTTP/1.1" 504 UT 2 24 1003 - "-" "-" "envoy-timeout-08-1313" "x" "127.0.0.1:37423"
"#;

    fn one(id: &str) -> (String, String) {
        let mut all = saw("hop", None, LOG, id);
        assert_eq!(all.len(), 1, "{id}");
        let saw = all.remove(0);
        assert_eq!(saw.hop, "hop");
        (saw.said, saw.means)
    }

    #[test]
    fn real_lines_are_joined_by_their_id_and_read() {
        for (id, said, means) in [
            ("nginx-04-3033", "499", "client left before an answer"),
            ("nginx-01-3033", "200", "answered, in part or whole"),
            ("ha-06", "CH--", "client left before an answer"),
            ("ha-01", "CD--", "client left"),
            ("ha-00", "CR--", "client left before an answer"),
            ("ha-04", "----", "completed"),
            ("envoy-06-1313", "0 DC", "client left"),
            ("envoy-07-1313", "200 DC", "client left"),
            ("envoy-timeout-08-1313", "504 UT", "upstream timed out"),
        ] {
            assert_eq!(one(id), (said.to_owned(), means.to_owned()), "{id}");
        }
    }

    #[test]
    fn an_id_that_is_a_part_of_another_one_is_not_it() {
        assert_eq!(saw("h", None, LOG, "nginx-04"), []);
        assert_eq!(saw("h", None, LOG, "04-3033"), []);
        assert_eq!(saw("h", None, LOG, ""), []);
        assert_eq!(saw("h", None, "a 499 id={ha-1|x}", "ha-1").len(), 1, "a captured header stands between braces and bars");
    }

    #[test]
    fn nginx_tells_a_stream_that_was_left_from_one_that_ended_by_its_completion() {
        let line = |status: u16, completion| format!("\"POST / HTTP/1.1\" {status} id=a completion={completion} upstream=200");
        let means = |line: String| saw("h", Some("nginx"), &line, "a").remove(0).means;
        assert_eq!(means(line(200, "OK")), "completed");
        assert_eq!(means(line(200, "")), "not all of the answer was sent");
        assert_eq!(means(line(502, "OK")), "upstream failed");
        assert_eq!(means(r#"{"id":"a","status":"200","request_completion":""}"#.to_owned()), "not all of the answer was sent");
        assert_eq!(means(r#"{"id":"a","status":499}"#.to_owned()), "client left before an answer");
    }

    #[test]
    fn states_of_haproxy_with_and_without_cookies_and_no_other_words() {
        for (word, means) in [
            ("CD", Some("client left")),
            ("cD--", Some("client timed out")),
            ("SD--", Some("upstream failed")),
            ("sH--", Some("upstream timed out")),
            ("CQ--", Some("client left before an answer")),
            ("PR--", Some("refused")),
            ("KDVN", Some("ended by the proxy")),
            ("CDNI", Some("client left")),
            ("POST", None),
            ("http", None),
            ("CDX-", None),
        ] {
            assert_eq!(state(word), means, "{word}");
        }
        let tcp = "1.2.3.4:5 [x] f b/s 0/0/5007 212 SD 0/0/0/0/3 0/0 id-1";
        assert_eq!(saw("h", Some("haproxy"), tcp, "id-1")[0].said, "SD");
        assert_eq!(saw("h", Some("haproxy"), r#"{"id":"id-1","termination_state":"cD"}"#, "id-1")[0].means, "client timed out");
    }

    #[test]
    fn caddy_says_it_by_its_status_and_by_the_answers_that_it_gave_up() {
        let line = |rest: &str| format!(r#"{{"level":"info","request":{{"headers":{{"X-Request-Id":["a"]}}}},{rest}}}"#);
        for (rest, means) in [
            (r#""status":499"#, "client left before an answer"),
            (r#""status":0"#, "client left before an answer"),
            (r#""status":200"#, "answered, in part or whole"),
            (r#""status":502"#, "upstream failed"),
            (r#""msg":"aborting with incomplete response","error":"write: broken pipe""#, "not all of the answer was sent"),
        ] {
            for kind in [Some("caddy"), None] {
                assert_eq!(saw("h", kind, &line(rest), "a").first().map(|saw| saw.means.as_str()), Some(means), "{rest}");
            }
        }
        assert_eq!(saw("h", Some("caddy"), "a 499 -", "a"), []);
    }

    #[test]
    fn what_a_hop_noticed_and_the_ids_of_a_line() {
        assert_eq!(
            [means::LEFT_WAITING, means::COMPLETED, means::HEAD_SENT, means::UPSTREAM_FAILED].map(noticed),
            [Some(true), Some(false), None, None]
        );
        assert_eq!(
            ids("verify-a {verify-b|x} averify-c id=verify-d-1 \"verify-e\"", "verify-").collect::<Vec<_>>(),
            ["verify-a", "verify-b", "verify-d-1", "verify-e"]
        );
    }

    #[test]
    fn lines_that_say_nothing_or_are_no_lines_say_nothing() {
        for line in [
            "",
            "a",
            "a \"",
            "a \"POST / HTTP/1.1\"",
            "{\"id\":\"a\"}",
            "{\"id\":\"a\",\"status\":true}",
            "a é\"é HTTP/1.1\" 20",
            "a 200 -",
        ] {
            assert_eq!(saw("h", None, line, "a"), [], "{line}");
        }
        let long = format!("a \"POST / HTTP/1.1\" 499 {}", "x".repeat(LINE_BYTES_MAX));
        assert_eq!(saw("h", None, &long, "a"), []);
        let again = "\"POST / HTTP/1.1\" 499 0 a\n".repeat(LINES_MAX + 5);
        assert_eq!(saw("h", None, &again, "a").len(), LINES_MAX);
    }
}
