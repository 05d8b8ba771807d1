//! How the demo looks on a terminal.

use serde_json::Value;

use super::scene::{Played, Scene, released_after};

/// Least width at which pages are indented, and how far.
const INDENT: (usize, usize) = (78, 2);
/// Characters of a text that are shown.
const TEXT_MAX: usize = 160;

/// The page: its width and whether it has colours.
#[derive(Clone, Copy)]
pub struct Page {
    /// Columns.
    pub width: usize,
    /// Whether ANSI colours are used.
    pub colour: bool,
}

impl Page {
    fn ink(self, code: u8, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn indent(self) -> usize {
        if self.width >= INDENT.0 { INDENT.1 } else { 0 }
    }

    /// A text broken at blanks so that no line is too wide, each line indented.
    fn wrapped(self, text: &str, lead: &str, follow: &str) -> String {
        let mut lines = vec![lead.to_owned()];
        let mut bare = true;
        for word in text.split_whitespace() {
            let line = lines.last_mut().expect("there is a line");
            if !bare && line.chars().count() + 1 + word.chars().count() > self.width {
                lines.push(format!("{follow}{word}"));
            } else {
                line.push_str(if bare { "" } else { " " });
                line.push_str(word);
            }
            bare = false;
        }
        lines.join("\n")
    }

    /// The first lines: what serves, and how it was told to.
    pub fn opening(self, lines: &[String]) -> String {
        lines.iter().map(|line| self.wrapped(line, "", "")).collect::<Vec<_>>().join("\n")
    }

    /// A scene's head, before it is played.
    pub fn head(self, number: usize, scene: &Scene) -> String {
        let pad = " ".repeat(self.indent());
        let title = self.ink(1, &format!("{number}  {}", scene.title));
        format!("\n{title}\n{}", self.ink(2, &self.wrapped(scene.about, &pad, &pad)))
    }

    /// What a scene found: the first one's whole timeline, the others' lanes, the statements, and the account before and after.
    pub fn scene(self, number: usize, played: &Played) -> String {
        let pad = " ".repeat(self.indent());
        let mut out = String::new();
        match &played.found {
            Err(why) => out += &self.mark(false, &format!("it broke off: {why}")),
            Ok(found) => {
                if let Some(text) = found.texts.iter().find(|(name, _)| *name == "read").map(|(_, text)| text) {
                    let shown: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX).collect();
                    out += &format!("{}\n", self.wrapped(&format!("“{}”", shown.trim()), &pad, &pad));
                }
                if let Some(run) = found.runs.first() {
                    let width = self.width - self.indent();
                    let drawn = if number == 1 {
                        observe::render_timeline(run, width, self.colour)
                    } else {
                        observe::render_lanes(run, width, self.colour)
                    };
                    out.push('\n');
                    for line in drawn.lines() {
                        out += format!("{pad}{line}").trim_end();
                        out.push('\n');
                    }
                    out.push('\n');
                }
                if let Some(why) = &found.skipped {
                    out += &format!("{pad}{}\n", self.ink(33, &format!("skipped: {why}")));
                }
                for check in &found.checks {
                    out += &self.mark(check.holds, &check.what);
                }
            }
        }
        out += &self.mark(played.account_equal(), &account(&played.before, &played.after));
        out.trim_end().to_owned()
    }

    fn mark(self, holds: bool, what: &str) -> String {
        let pad = " ".repeat(self.indent());
        let mark = if holds { self.ink(32, "✓") } else { self.ink(31, "✗") };
        // The mark is put on afterwards: its colour code has no width.
        let text = self.wrapped(what, &format!("{pad}  "), &format!("{pad}  "));
        format!("{pad}{mark} {}\n", text.trim_start())
    }

    /// One line a scene.
    pub fn summary(self, played: &[Played]) -> String {
        let row = |cells: [&str; 6]| {
            let [number, scene, cause, ms, wasted, account] = cells;
            format!("{number:<3}{scene:<14}{cause:<24}{ms:>12}{wasted:>15}  {account:<8}")
        };
        let mut out = self.ink(1, row(["", "scene", "how it ended", "released in", "tokens wasted", "account"]).trim_end());
        for (i, played) in played.iter().enumerate() {
            let run = played.found.as_ref().ok().and_then(|f| f.runs.first());
            let text = |at: &str| run.and_then(|r| r.pointer(at)).and_then(Value::as_str).unwrap_or("-").to_owned();
            let cause = match played.skipped() {
                Some(_) => "skipped".to_owned(),
                None if played.found.is_err() => "broke off".to_owned(),
                None => format!("{} {}", text("/outcome/kind"), text("/outcome/cause")),
            };
            let ms = run.and_then(released_after).map_or("-".to_owned(), |ms| format!("{ms:.3} ms"));
            let count = |run: &Value, name: &str| run["tokens"][name].as_u64().unwrap_or(0);
            let wasted = run.map_or("-".to_owned(), |r| {
                let tokens = count(r, "after_disconnect") + count(r, "prompt_computed_after_disconnect");
                let layers = r["steps"]["layers_dropped"].as_u64().filter(|n| *n > 0);
                layers.map_or(tokens.to_string(), |n| format!("{tokens} + {n} layer{}", if n == 1 { "" } else { "s" }))
            });
            let account = if played.account_equal() { "equal" } else { "DIFFERS" };
            let mark = match (played.passed(), played.failed()) {
                (true, _) => self.ink(32, "✓"),
                (_, true) => self.ink(31, "✗"),
                _ => self.ink(33, "-"),
            };
            out += &format!("\n{}{mark}", row([&(i + 1).to_string(), played.scene.name, &cause, &ms, &wasted, account]));
        }
        out
    }
}

/// Both accounts in a line.
fn account(before: &Value, after: &Value) -> String {
    let n = |kv: &Value, key: &str| kv[key].as_u64().map_or("-".to_owned(), |n| n.to_string());
    let left: u64 = ["active", "draining", "quarantined"].iter().filter_map(|key| after[*key].as_u64()).sum();
    let total = n(after, "total");
    let (free, cached) = (n(before, "free"), n(before, "cached"));
    format!("account: {free} free + {cached} cached before, {} + {} after, {left} in use, of {total}", n(after, "free"), n(after, "cached"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cmd::demo::scene::Found;

    fn played() -> Played {
        let kv = json!({"total": 8, "free": 7, "cached": 1, "active": 0, "orphaned": 0, "draining": 0, "quarantined": 0, "conserved": true,
                        "runs": {"queued": 0, "running": 0, "stopping": 0}});
        let run = json!({"id": "r", "released": true, "settled": true, "guarantee": "confirmed", "phase_at_disconnect": "decode",
                         "outcome": {"kind": "cancelled", "cause": "client_closed"}, "blocks": {"held": 0},
                         "tokens": {"after_receipt": 0, "after_disconnect": 1, "prompt_computed_after_disconnect": 0},
                         "milestones": {"accepted": 0.0, "first_token": 5.0, "disconnect_observed": 20.0, "released": 21.5, "settled": 22.0}});
        let mut found = Found::about(run);
        found.check_cancelled("client_closed", &["decode"]);
        found.texts.push(("read", "Once upon\n a\u{1b}[31m time".to_owned()));
        let scene = Scene { name: "decode", title: "A title", about: "About it.", play: |_| Ok(Found::default()) };
        Played { scene, found: Ok(found), before: kv.clone(), after: kv }
    }

    #[test]
    fn a_scene_shows_its_lanes_its_statements_and_its_account() {
        let page = Page { width: 80, colour: false };
        let shown = page.scene(2, &played());
        for part in [
            "worker",
            "✓ cancelled: client_closed, seen in phase decode",
            "✓ observed → released 1.500 ms",
            "✓ wasted: 1 token, 0 of the prompt; after",
        ] {
            assert!(shown.contains(part), "{part}:\n{shown}");
        }
        assert!(shown.contains("✓ account: 7 free + 1 cached before, 7 + 1 after, 0 in use, of 8"), "{shown}");
        assert!(shown.contains("“Once upon a [31m time”") && !shown.contains('\u{1b}'), "{shown}");
        let summary = page.summary(&[played()]);
        let last: Vec<&str> = summary.lines().last().expect("a row").split_whitespace().collect();
        assert_eq!(last, ["1", "decode", "cancelled", "client_closed", "1.500", "ms", "1", "equal", "✓"]);
        for line in shown.lines().chain(summary.lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }

    #[test]
    fn what_does_not_hold_is_marked_so() {
        let mut bad = played();
        bad.after["free"] = json!(6);
        let page = Page { width: 100, colour: true };
        assert!(page.scene(1, &bad).contains("\x1b[31m✗\x1b[0m account: "));
        assert!(page.summary(&[bad]).contains("DIFFERS"));
        let broken = Played { found: Err("nobody answered".to_owned()), ..played() };
        assert!(Page { width: 80, colour: false }.scene(3, &broken).contains("✗ it broke off: nobody answered"));
    }
}
