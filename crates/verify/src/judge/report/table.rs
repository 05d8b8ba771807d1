//! The report as a table that a person reads in ten seconds: a line for each phase, trigger and verdict, then what to change, what is
//! missing, and how many of each verdict there are. Of more cells than [`CELLS_MAX`] it shows a grid, and each kind of fault once.
//!
//! Variants of one phase and trigger (streamed or not, shared, n) share a line where their verdict and its place are the same.
//!
//! Invariant: no line is wider than it was told to be, and without [`Paint::Colour`] it has no escape.

use std::fmt::Write;

use super::super::advice;
use super::super::cell::{Phase, Trigger};
use super::super::result::{Check, Judged, Report, Verdict};
use super::matrix::{grid, kinds};
use super::text::{advised, by, calendar, clean, count, failed, ms, pad, reason, variant, way, wrap};

/// As wide as a terminal often is.
pub const COLUMNS: usize = 100;
/// Most cells that have lines of their own.
pub const CELLS_MAX: usize = 24;
/// Narrower than this the columns of figures do not fit.
const COLUMNS_MIN: usize = 72;

/// Whether to use colours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paint {
    /// Text alone.
    Plain,
    /// With ANSI colours.
    Colour,
}

impl Paint {
    /// The text in the colour of its verdict.
    pub fn verdict(self, verdict: &Verdict, text: &str) -> String {
        let code = match verdict {
            Verdict::Pass => "32",
            Verdict::Fail { .. } => "1;31",
            Verdict::NotProven { .. } => "33",
            Verdict::NotApplicable { .. } => "2",
        };
        self.with(code, text)
    }

    /// The text with an ANSI code.
    pub fn with(self, code: &str, text: &str) -> String {
        if self == Paint::Colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// The table.
pub fn table(report: &Report, columns: usize, paint: Paint) -> String {
    let mut page = Page { out: String::new(), columns: columns.max(COLUMNS_MIN), paint };
    page.head(report);
    page.cells(&report.cells);
    page.checks(&report.checks);
    page.advice(report);
    page.hints(&report.hints);
    page.close(report);
    page.out
}

/// The verdicts that share a line.
pub struct Row<'a> {
    /// They are alike in what is said of them.
    pub of: Vec<&'a Judged>,
}

impl Row<'_> {
    /// The least and the most of a figure over the row.
    pub fn range(&self, of: fn(&Judged) -> Option<f64>, say: fn(f64) -> String) -> String {
        let mut all: Vec<f64> = self.of.iter().filter_map(|judged| of(judged)).collect();
        all.sort_by(f64::total_cmp);
        match (all.first().copied().map(say), all.last().copied().map(say)) {
            (Some(least), Some(most)) if least == most => most,
            // The most is what counts; the least only says that it is not always so.
            (Some(_), Some(most)) => format!("≤{most}"),
            _ => "–".to_owned(),
        }
    }

    fn says(&self) -> String {
        let first = self.of[0];
        match &first.verdict {
            Verdict::Pass => match &first.note {
                Some(note) => format!("by {}; {}", by(&first.by), clean(note)),
                None => format!("by {}", by(&first.by)),
            },
            Verdict::Fail { fault, .. } => failed(first, *fault),
            other => reason(other).to_owned(),
        }
    }
}

/// The rows of one phase and trigger: those that are alike share one, in the order of the first of each.
fn rows<'a>(of: &[&'a Judged]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for judged in of {
        let alike = |row: &Row<'_>| {
            let first = row.of[0];
            match (&first.verdict, &judged.verdict) {
                (Verdict::Pass, Verdict::Pass) => first.by == judged.by && first.note == judged.note,
                (Verdict::Fail { fault, .. }, Verdict::Fail { fault: other, .. }) => fault == other && first.lost_at == judged.lost_at,
                (one, other) => one == other,
            }
        };
        match rows.iter_mut().find(|row| alike(row)) {
            Some(row) => row.of.push(judged),
            None => rows.push(Row { of: vec![judged] }),
        }
    }
    rows
}

const PHASE: usize = 9;
const TRIGGER: usize = 14;
const VARIANT: usize = 15;
const VERDICT: usize = 11;
const AFTER: usize = 7;
const STOP: usize = 9;

/// Where what is said of a row begins.
const FIXED: usize = PHASE + TRIGGER + VARIANT + VERDICT + AFTER + STOP;

struct Page {
    out: String,
    columns: usize,
    paint: Paint,
}

impl Page {
    fn line(&mut self, line: &str) {
        self.out.push_str(line.trim_end());
        self.out.push('\n');
    }

    /// A paragraph: its first line behind `mark`, the others below its text.
    fn paragraph(&mut self, mark: &str, text: &str) {
        let indent = super::text::width(mark);
        for (index, line) in wrap(text, self.columns - indent).iter().enumerate() {
            let before = if index == 0 { mark.to_owned() } else { " ".repeat(indent) };
            self.line(&format!("{before}{line}"));
        }
    }

    fn title(&mut self, title: &str) {
        let title = self.paint.with("1", title);
        self.line(&format!("\n{title}"));
    }

    /// On a narrow terminal what is said of a row stands below it.
    const fn is_wide(&self) -> bool {
        self.columns >= FIXED + 28
    }

    fn head(&mut self, report: &Report) {
        let looked = if report.polled { "looked at during tries" } else { "looked at before and after tries only" };
        self.paragraph("", &format!("kvit verify {}, model {}", report.target, report.model));
        self.paragraph("", &way(&report.hops));
        let profile = if report.profile.is_empty() { "none" } else { &report.profile };
        self.paragraph("", &format!("{}; counters by profile {profile}, {looked}", calendar(report.began_s)));
    }

    fn cells(&mut self, cells: &[Judged]) {
        if cells.len() > CELLS_MAX && self.columns >= COLUMNS {
            return self.many(cells);
        }
        let columns =
            [("phase", PHASE), ("left by", TRIGGER), ("answer", VARIANT), ("verdict", VERDICT), ("tokens", AFTER), ("stopped", STOP)];
        let head: String = columns.iter().map(|(name, wide)| pad(name, *wide)).collect();
        let last = if self.is_wide() { "evidence, or fault and where" } else { "" };
        self.title(&format!("{head}{last}"));
        for &phase in Phase::ALL {
            let mut name = phase.word();
            for &trigger in Trigger::ALL {
                let of: Vec<&Judged> = cells.iter().filter(|judged| (judged.cell.phase, judged.cell.trigger) == (phase, trigger)).collect();
                for row in rows(&of) {
                    self.row(std::mem::take(&mut name), trigger, &row);
                }
            }
        }
        if cells.is_empty() {
            self.line("no cell was asked");
        }
    }

    fn many(&mut self, cells: &[Judged]) {
        self.line("");
        grid(cells, self.paint).iter().for_each(|line| self.line(line));
        self.line("");
        for (verdict, says) in kinds(cells) {
            for (index, line) in wrap(&says, self.columns - VERDICT).iter().enumerate() {
                let word = self.paint.verdict(verdict, &pad(if index == 0 { verdict.word() } else { "" }, VERDICT));
                self.line(&format!("{word}{line}"));
            }
        }
    }

    fn row(&mut self, phase: &str, trigger: Trigger, row: &Row<'_>) {
        let first = row.of[0];
        let variants: Vec<String> = row.of.iter().flat_map(|judged| wrap(&variant(&judged.cell), VARIANT - 1)).collect();
        let beside = self.is_wide();
        let says = wrap(&row.says(), self.columns - if beside { FIXED } else { PHASE });
        let tokens = row.range(|judged| judged.tokens_after, count);
        let stop = row.range(|judged| judged.stop_ms, ms);
        let verdict = self.paint.verdict(&first.verdict, &pad(first.verdict.word(), VERDICT));
        let lines = variants.len().max(if beside { says.len() } else { 1 });
        for index in 0..lines {
            let variant = variants.get(index).map_or("", String::as_str);
            let said = if beside { says.get(index).map_or("", String::as_str) } else { "" };
            let line = if index == 0 {
                let (phase, trigger) = (pad(phase, PHASE), pad(trigger.word(), TRIGGER));
                format!("{phase}{trigger}{}{verdict}{}{}{said}", pad(variant, VARIANT), pad(&tokens, AFTER), pad(&stop, STOP))
            } else {
                format!("{}{}{said}", " ".repeat(PHASE + TRIGGER), pad(variant, VARIANT + VERDICT + AFTER + STOP))
            };
            self.line(&line);
        }
        if !beside {
            says.iter().for_each(|line| self.line(&format!("{}{line}", " ".repeat(PHASE))));
        }
    }

    fn checks(&mut self, checks: &[Check]) {
        if checks.is_empty() {
            return;
        }
        self.title("checks over all tries");
        for check in checks {
            let measured: Vec<String> = check.measured.iter().map(|(name, value)| format!("{name} {}", count(*value))).collect();
            let mut says = match &check.verdict {
                Verdict::Fail { fault, why } => format!("{fault}: {why}"),
                other => reason(other).to_owned(),
            };
            if !measured.is_empty() {
                let _ = write!(says, "{}{}", if says.is_empty() { "" } else { "; " }, measured.join(", "));
            }
            let name = wrap(&check.name, PHASE + TRIGGER + VARIANT - 2);
            let says = wrap(&says, self.columns - PHASE - TRIGGER - VARIANT - VERDICT);
            for index in 0..name.len().max(says.len()) {
                let word = if index == 0 { check.verdict.word() } else { "" };
                let word = self.paint.verdict(&check.verdict, &pad(word, VERDICT));
                let name = name.get(index).map_or("", String::as_str);
                let line = format!("{}{word}{}", pad(name, PHASE + TRIGGER + VARIANT), says.get(index).map_or("", String::as_str));
                self.line(&line);
            }
        }
    }

    fn advice(&mut self, report: &Report) {
        let advised = advised(report);
        if advised.is_empty() {
            return;
        }
        self.title("what to change");
        for (id, of) in advised {
            let is_check = |name: &&String| report.checks.iter().any(|check| check.name == **name);
            let cells = match (of.len(), of.iter().find(is_check)) {
                (1, Some(check)) => format!("check {check}"),
                (1, None) => "1 cell".to_owned(),
                (n, Some(_)) => format!("{n} cells and checks"),
                (n, None) => format!("{n} cells"),
            };
            match advice::named(id) {
                Some(entry) => self.paragraph("  * ", &format!("{}: {} ({cells}; {id})", entry.title, entry.fix)),
                None => self.paragraph("  * ", &format!("{id} ({cells}; this release does not know it)")),
            }
        }
    }

    fn hints(&mut self, hints: &[String]) {
        if hints.is_empty() {
            return;
        }
        self.title("what could not be proven, and what would help");
        for hint in hints {
            self.paragraph("  ? ", hint);
        }
    }

    fn close(&mut self, report: &Report) {
        let words = [
            Verdict::Pass,
            Verdict::Fail { fault: super::super::result::Fault::NeverStops, why: String::new() },
            Verdict::NotProven { missing: String::new() },
            Verdict::NotApplicable { why: String::new() },
        ];
        let counts: Vec<String> = words
            .iter()
            .map(|verdict| (verdict, report.count(verdict.word())))
            .filter(|(_, count)| *count > 0)
            .map(|(verdict, count)| self.paint.verdict(verdict, &format!("{count} {}", verdict.word())))
            .collect();
        let counts = if counts.is_empty() { "nothing was judged".to_owned() } else { counts.join(", ") };
        self.line(&format!("\n{counts} in {}", clean(&ms(report.took_s * 1e3))));
    }
}

#[cfg(test)]
mod tests {
    use super::super::example::{example, full, hostile};
    use super::super::text::width;
    use super::*;

    #[test]
    fn all_that_matters_is_there_and_fits() {
        let text = table(&example(), COLUMNS, Paint::Plain);
        for says in [
            "client → haproxy 2.6.12 → litellm 1.108.7 → vllm 0.32.0",
            "never-stops at haproxy → litellm",
            "not proven",
            "option abortonclose",
            "(check capacity; engine-keeps-room)",
            "--tap",
            "5 pass, 3 FAIL, 2 not proven, 1 n/a in 48.2 s",
        ] {
            assert!(text.contains(says), "{says}\n{text}");
        }
        assert!(text.lines().any(|line| line.starts_with("early    close") && line.contains("pass") && line.contains("12 ms")), "{text}");
        assert!(text.lines().count() < 50, "ten seconds\n{text}");
    }

    #[test]
    fn no_line_is_wider_than_told_whatever_a_report_says() {
        for columns in [72, 80, COLUMNS, 160] {
            for report in [example(), full(), hostile()] {
                let text = table(&report, columns, Paint::Plain);
                let wide: Vec<&str> = text.lines().filter(|line| width(line) > columns).collect();
                assert!(wide.is_empty(), "{columns}: {wide:#?}");
                assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
            }
        }
    }

    #[test]
    fn colours_come_only_when_they_are_asked_for_and_change_no_word() {
        let plain = table(&example(), COLUMNS, Paint::Plain);
        let mut colour = table(&example(), COLUMNS, Paint::Colour);
        assert!(colour.contains("\u{1b}[1;31mFAIL"));
        for code in ["0", "1", "2", "32", "33", "1;31"] {
            colour = colour.replace(&format!("\u{1b}[{code}m"), "");
        }
        let words = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(words(&colour), words(&plain));
    }

    #[test]
    fn variants_that_are_alike_share_a_line_and_others_do_not() {
        let report = example();
        let of = |name: &str| -> Vec<&Judged> { report.cells.iter().filter(|judged| judged.cell.to_string().starts_with(name)).collect() };
        let shared = rows(&of("early/close"));
        assert_eq!(shared.iter().map(|row| row.of.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(shared[0].range(|judged| judged.tokens_after, count), "≤2");
    }

    #[test]
    fn many_cells_are_a_grid_and_a_line_for_each_kind_of_fault() {
        let text = table(&full(), COLUMNS, Paint::Plain);
        assert!(text.lines().count() < 50, "ten seconds\n{text}");
        assert!(text.contains("FAIL       never-stops at haproxy → litellm: "), "{text}");
        assert!(table(&full(), 80, Paint::Plain).lines().count() > 100, "a narrow terminal has no room for the grid");
    }

    #[test]
    fn a_report_of_nothing_says_so() {
        let report = Report { cells: Vec::new(), checks: Vec::new(), hints: Vec::new(), ..example() };
        let text = table(&report, COLUMNS, Paint::Plain);
        assert!(text.contains("no cell was asked") && text.contains("nothing was judged"), "{text}");
    }
}
