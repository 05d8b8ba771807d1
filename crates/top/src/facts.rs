//! What a screen reads off a run's record, and numbers as a person reads them.

use lifecycle::Milestone;
use serde_json::Value;

/// A run's identity: its tenant and its id.
pub(crate) type Key = (String, String);

/// A run's record, of whatever shape.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a>(pub(crate) &'a Value);

impl<'a> Run<'a> {
    pub(crate) fn id(self) -> &'a str {
        self.0["id"].as_str().unwrap_or("?")
    }

    pub(crate) fn tenant(self) -> &'a str {
        self.0["tenant"].as_str().unwrap_or("")
    }

    pub(crate) fn key(self) -> Key {
        (self.tenant().to_owned(), self.id().to_owned())
    }

    pub(crate) fn is_live(self) -> bool {
        self.0["state"] != "ended"
    }

    /// How it is told of in a word: its outcome once it has ended, else its state.
    pub(crate) fn word(self) -> &'a str {
        let outcome = self.0["outcome"]["kind"].as_str().filter(|_| !self.is_live());
        outcome.or(self.0["state"].as_str()).unwrap_or("-")
    }

    /// What won, or where somebody left while nothing has won yet.
    pub(crate) fn cause(self) -> String {
        match (self.0["outcome"]["cause"].as_str(), self.0["phase_at_disconnect"].as_str()) {
            (Some(cause), _) => cause.to_owned(),
            (None, Some(phase)) => format!("left in {}", phase.replace('_', " ")),
            (None, None) => String::new(),
        }
    }

    pub(crate) fn at(self, milestone: Milestone) -> Option<f64> {
        self.0["milestones"][milestone.as_str()].as_f64()
    }

    /// Milliseconds since it was accepted.
    pub(crate) fn age_ms(self, now_ms: f64) -> Option<f64> {
        Some((now_ms - self.0["created_ms"].as_f64().filter(|ms| *ms > 0.0)?).max(0.0))
    }

    pub(crate) fn count(self, pointer: &str) -> Option<u64> {
        self.0.pointer(pointer)?.as_u64()
    }

    /// Tokens computed for nobody; `None` if nobody counted.
    pub(crate) fn wasted(self) -> Option<u64> {
        let after = self.count("/tokens/after_disconnect");
        let prompt = self.count("/tokens/prompt_computed_after_disconnect");
        after.or(prompt).map(|_| after.unwrap_or(0) + prompt.unwrap_or(0))
    }

    /// When somebody was first seen to leave, or it was first wanted to end.
    pub(crate) fn observed(self) -> Option<f64> {
        self.0.pointer("/boundaries/0/observed").and_then(Value::as_f64)
    }

    /// How long ago its cancel was sent, if nobody has acknowledged it yet.
    pub(crate) fn unacknowledged_ms(self, now_ms: f64) -> Option<f64> {
        let sent = self.at(Milestone::CancelSent).filter(|_| self.is_live() && self.at(Milestone::CancelAcknowledged).is_none())?;
        Some((self.age_ms(now_ms)? - sent).max(0.0))
    }
}

/// A text from elsewhere without what could steer a terminal, on one line.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A text that is cut where there is no room for more.
pub(crate) fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true if width == 0 => String::new(),
        true => text.chars().take(width.saturating_sub(1)).chain(std::iter::once('…')).collect(),
        false => text.to_owned(),
    }
}

/// An id that is too long for its column: its beginning and its end, for the ids of one second begin alike.
pub(crate) fn short(id: &str, width: usize) -> String {
    let length = id.chars().count();
    if length <= width {
        return id.to_owned();
    }
    let (head, tail) = ((width - 1) / 2, width - 1 - (width - 1) / 2);
    id.chars().take(head).chain(std::iter::once('…')).chain(id.chars().skip(length - tail)).collect()
}

/// A whole number with its thousands apart.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The same, or a dash.
pub(crate) fn or_dash(n: Option<u64>) -> String {
    n.map_or_else(|| "-".to_owned(), count)
}

/// A share.
pub(crate) fn percent(share: f64) -> String {
    let digits = if share > 0.0 && share < 0.1 { 2 } else { 1 };
    format!("{:.digits$} %", share * 100.0)
}

/// A latency in milliseconds, in six characters at most.
pub(crate) fn latency(ms: f64) -> String {
    match ms {
        _ if ms < 10.0 => format!("{ms:.2}"),
        _ if ms < 100.0 => format!("{ms:.1}"),
        _ if ms < 100_000.0 => format!("{ms:.0}"),
        _ => format!("{:.0}s", ms / 1000.0),
    }
}

/// An age for a table.
pub(crate) fn age(ms: f64) -> String {
    let seconds = (ms / 1000.0).max(0.0) as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// So many of something.
pub(crate) fn plural(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_as_a_person_reads_them() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 0.0004, 0.05, 0.5].map(percent), ["0.0 %", "0.04 %", "5.00 %", "50.0 %"]);
        assert_eq!([0.034, 12.34, 700.9, 250_000.0].map(latency), ["0.03", "12.3", "701", "250s"]);
        assert_eq!([900.0, 61_000.0, 7_200_000.0, 1e9].map(age), ["0 s", "1 min", "2 h", "11 d"]);
    }

    #[test]
    fn a_long_id_keeps_both_its_ends_and_a_text_its_beginning() {
        assert_eq!((short("0123456789", 10).as_str(), short("0123456789", 7).as_str()), ("0123456789", "012…789"));
        assert_eq!((cut("abcdef", 6).as_str(), cut("abcdef", 4).as_str()), ("abcdef", "abc…"));
        assert_eq!((cut("abc", 0).as_str(), cut("abc", 1).as_str()), ("", "…"));
        assert_eq!(clean("a\u{1b}[2Jb\nc"), "a [2Jb c");
    }

    #[test]
    fn a_cancel_is_unacknowledged_while_its_run_lives() {
        let run = |state: &str, acknowledged: Value| {
            let milestones = json!({"cancel_sent": 50.0, "cancel_acknowledged": acknowledged});
            json!({"id": "r", "state": state, "created_ms": 1000, "milestones": milestones})
        };
        assert_eq!(Run(&run("stopping", Value::Null)).unacknowledged_ms(3050.0), Some(2000.0));
        assert_eq!(Run(&run("stopping", json!(51.0))).unacknowledged_ms(3050.0), None);
        assert_eq!(Run(&run("ended", Value::Null)).unacknowledged_ms(3050.0), None);
        assert_eq!(Run(&json!({"id": "s", "state": null})).wasted(), None);
    }
}
