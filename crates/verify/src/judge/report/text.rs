//! Words and figures as reports of every form say them, and lines that fit.
//!
//! Invariant: no control character passes, and no line of [`wrap`] is wider than it was told to be.

use super::super::cell::Cell;
use super::super::result::{Fault, Hop, Judged, Report, Source, Verdict};

/// Text without what a terminal or a page could take for a command.
pub fn clean(text: &str) -> String {
    // Marks that turn the direction of a line could make it read as another one.
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| if c.is_control() || turns(c) { ' ' } else { c };
    text.chars().map(shown).collect()
}

/// Text for an attribute or an element of XML or HTML. Lines stay, as references, for an attribute would lose them.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let (body, end) = line.strip_suffix('\n').map_or((line, ""), |body| (body, "&#10;"));
        for c in clean(body).chars() {
            match c {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&quot;"),
                '\'' => out.push_str("&#39;"),
                // Characters that XML does not have at all.
                '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
                c => out.push(c),
            }
        }
        out.push_str(end);
    }
    out
}

/// The same for a page: what stands between two backticks is code.
pub fn prose(text: &str) -> String {
    let mut out = String::new();
    let parts: Vec<&str> = text.split('`').collect();
    for (index, part) in parts.iter().enumerate() {
        let is_code = index % 2 == 1 && index + 1 < parts.len();
        let is_lone = index % 2 == 1 && !is_code;
        let part = escape(part);
        out.push_str(&if is_code {
            format!("<code>{part}</code>")
        } else if is_lone {
            format!("`{part}")
        } else {
            part
        });
    }
    out
}

/// A time.
pub fn ms(ms: f64) -> String {
    match ms.abs() {
        _ if !ms.is_finite() => "?".to_owned(),
        x if x < 9.95 => format!("{ms:.1} ms"),
        x if x < 999.5 => format!("{ms:.0} ms"),
        x if x < 59_950.0 => format!("{:.1} s", ms / 1e3),
        _ => format!("{:.1} min", ms / 60e3),
    }
}

/// A count that may be a median.
pub fn count(n: f64) -> String {
    if !n.is_finite() {
        "?".to_owned()
    } else if n.fract() == 0.0 {
        format!("{n:.0}")
    } else if n.abs() < 10.0 {
        format!("{n:.2}")
    } else {
        format!("{n:.1}")
    }
}

/// `1 token`, `97 tokens`
pub fn tokens(n: f64) -> String {
    format!("{} token{}", count(n), if n == 1.0 { "" } else { "s" })
}

/// The figure, or a dash for what was not seen.
pub fn seen(value: Option<f64>, say: fn(f64) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), say)
}

/// What a cell is besides its phase and trigger, as in its name: `stream`, `whole/shared/n=2`.
pub fn variant(cell: &Cell) -> String {
    cell.to_string().splitn(3, '/').nth(2).unwrap_or_default().to_owned()
}

/// What stands beside a verdict: why, or what is missing.
pub fn reason(verdict: &Verdict) -> &str {
    match verdict {
        Verdict::Pass => "",
        Verdict::Fail { why, .. } | Verdict::NotApplicable { why } => why,
        Verdict::NotProven { missing } => missing,
    }
}

/// What failed, and where it was lost; of a stack with one boundary the place says nothing.
pub fn failed(judged: &Judged, fault: Fault) -> String {
    match judged.lost_at.as_deref().filter(|_| judged.boundaries.len() > 1) {
        Some(place) => format!("{fault} at {place}"),
        None => fault.to_string(),
    }
}

/// Evidence, in words.
pub fn by(sources: &[Source]) -> String {
    sources.iter().map(|source| source.word()).collect::<Vec<_>>().join(", ")
}

/// `nginx 1.22.1`
pub fn hop(hop: &Hop) -> String {
    let kind = hop.kind.as_deref().filter(|kind| *kind != hop.name).map(|kind| format!(" ({kind})")).unwrap_or_default();
    let version = hop.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
    clean(&format!("{}{kind}{version}", hop.name))
}

/// The way to the engine.
pub fn way(hops: &[Hop]) -> String {
    std::iter::once("client".to_owned()).chain(hops.iter().map(hop)).collect::<Vec<_>>().join(" → ")
}

/// What an entry of the knowledge base is about in this report, in the order of its first cell or check: its name, and theirs.
pub fn advised(report: &Report) -> Vec<(&str, Vec<String>)> {
    let mut all: Vec<(&str, Vec<String>)> = Vec::new();
    let cells = report.cells.iter().map(|judged| (&judged.advice, judged.cell.to_string()));
    let checks = report.checks.iter().map(|check| (&check.advice, check.name.clone()));
    for (advice, of) in cells.chain(checks) {
        for id in advice {
            match all.iter_mut().find(|(known, _)| known == id) {
                Some((_, names)) => names.push(of.clone()),
                None => all.push((id, vec![of.clone()])),
            }
        }
    }
    all
}

/// Seconds of the calendar, as `2026-11-30 10:09:38 UTC`.
pub fn calendar(seconds: u64) -> String {
    let (mut days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Days since the first of March of the year 0, in eras of 400 years: every era has the same length, and a leap day is a year's last.
    days += 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Columns that a character takes, roughly: two where most terminals give it two.
fn columns(c: char) -> usize {
    match c {
        '\u{0300}'..='\u{036f}' | '\u{200b}'..='\u{200d}' | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{a4cf}' | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' => 2,
        '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}' | '\u{ffe0}'..='\u{ffe6}' | '\u{1f000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// How wide a text is.
pub fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

/// Lines of at most `columns` columns, broken between words where that can be. A text of nothing is one empty line.
pub fn wrap(text: &str, columns_max: usize) -> Vec<String> {
    let columns_max = columns_max.max(2);
    let mut lines = vec![String::new()];
    for word in clean(text).split_whitespace() {
        let last = lines.last_mut().expect("there is always a line");
        if last.is_empty() || width(last) + 1 + width(word) <= columns_max {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
        // A word that is wider than a line is broken where the line ends.
        while lines.last().is_some_and(|last| width(last) > columns_max) {
            let last = lines.pop().unwrap_or_default();
            let mut used = 0;
            let fits = |c: &(usize, char)| {
                used += columns(c.1);
                used <= columns_max
            };
            let at = last.char_indices().take_while(fits).last().map_or(last.len(), |(at, c)| at + c.len_utf8());
            let (head, tail) = last.split_at(at);
            lines.extend([head.to_owned(), tail.to_owned()]);
        }
    }
    lines
}

/// The text and blanks behind it, as wide as told.
pub fn pad(text: &str, columns: usize) -> String {
    format!("{text}{}", " ".repeat(columns.saturating_sub(width(text))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short_and_honest() {
        let said: Vec<String> = [0.04, 9.94, 12.4, 999.4, 1234.0, 61_000.0, -3.21, f64::NAN].map(ms).into();
        assert_eq!(said, ["0.0 ms", "9.9 ms", "12 ms", "999 ms", "1.2 s", "1.0 min", "-3.2 ms", "?"]);
        assert_eq!([97.0, 10.5, 1.024, f64::INFINITY].map(count), ["97", "10.5", "1.02", "?"]);
        assert_eq!(seen(None, ms), "–");
    }

    #[test]
    fn code_in_prose_is_closed() {
        assert_eq!(prose("set `a<b` to `on`, a ` alone"), "set <code>a&lt;b</code> to <code>on</code>, a ` alone");
        assert_eq!((prose(""), prose("`")), (String::new(), "`".to_owned()));
    }

    #[test]
    fn the_calendar() {
        assert_eq!(calendar(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(calendar(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(calendar(1_796_033_477), "2026-11-30 10:11:17 UTC");
        assert_eq!(calendar(4_107_542_399), "2100-02-28 23:59:59 UTC");
        assert_eq!(calendar(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn no_line_is_wider_than_told_and_no_word_is_lost() {
        let text = "a wish → 漢字漢字漢字 was lost\u{1b}[31m between two verylongwordsthatdonotfit hops";
        for columns in [2, 3, 7, 20, 200] {
            let lines = wrap(text, columns);
            assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
            let joined: String = lines.concat().split_whitespace().collect();
            assert_eq!(joined, clean(text).split_whitespace().collect::<String>(), "{columns}");
        }
        assert_eq!(wrap("", 10), [""]);
        assert!(!clean("\u{1b}]0;x\u{7}\u{202e}y").contains(['\u{1b}', '\u{7}', '\u{202e}']));
    }
}
