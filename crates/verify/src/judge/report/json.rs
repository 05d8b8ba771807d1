//! The report as JSON, and an older one read back.
//!
//! Invariant: what [`write`] wrote is read as the same report by this and every later release.

use super::super::result::Report;

/// Longest report that is read, in bytes.
pub const BYTES_MAX: usize = 256 << 20;

/// Why a text is no report.
#[derive(thiserror::Error, Debug)]
pub enum NoReport {
    /// It is too long.
    #[error("it has {0} bytes, and a report has at most {BYTES_MAX}")]
    TooLong(usize),
    /// It is no JSON, or lacks what every report has.
    #[error("{0}: name a file that `kvit verify --json` wrote")]
    Shape(#[from] serde_json::Error),
    /// It is something else.
    #[error("its `object` is `{0}` and not `verify`: name a file that `kvit verify --json` wrote")]
    Other(String),
}

/// As JSON, for a person to look into as well.
///
/// # Errors
/// Never for a report of `verify`'s own: its figures and names can all be written.
pub fn write(report: &Report) -> serde_json::Result<String> {
    serde_json::to_string_pretty(report)
}

/// The report that a text is.
///
/// # Errors
/// [`NoReport`].
pub fn read(text: &str) -> Result<Report, NoReport> {
    if text.len() > BYTES_MAX {
        return Err(NoReport::TooLong(text.len()));
    }
    let report: Report = serde_json::from_str(text.trim_start_matches('\u{feff}'))?;
    if report.object == "verify" { Ok(report) } else { Err(NoReport::Other(super::text::clean(&report.object))) }
}

#[cfg(test)]
mod tests {
    use super::super::super::result::{Fault, Verdict};
    use super::super::example::example;
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let mut report = example();
        assert_eq!(read(&write(&report).expect("a text")).expect("a report"), report);
        // Figures as clocks give them: a reader that rounds would make them others.
        for (at, cell) in (1_u32..).zip(&mut report.cells) {
            let measured = [13.998_331, -0.835_668_999_999_999_3, 7.162_166_999_999_999].map(|ms| ms * f64::from(at));
            (cell.stop_ms, cell.tokens_after, cell.capacity_ms) = (Some(measured[0]), Some(measured[1]), Some(measured[2]));
        }
        assert_eq!(read(&write(&report).expect("a text")).expect("a report"), report);
    }

    #[test]
    fn a_report_that_lacks_what_came_since_is_read() {
        let report = read(include_str!("old.json")).expect("a report");
        assert_eq!((report.cells.len(), report.checks.len(), report.exit_code()), (3, 1, 1));
        assert_eq!(report.cells[1].cell.to_string(), "early/close/whole");
        assert!(matches!(report.cells[1].verdict, Verdict::Fail { fault: Fault::NeverStops, .. }));
        assert_eq!((report.cells[0].seen[0].client.tokens, report.cells[0].seen[0].engine.is_none()), (3, true));
        assert_eq!((report.hops[0].version.as_deref(), report.hints.len()), (Some("2.6.12"), 0));
    }

    #[test]
    fn what_is_no_report_is_refused_with_what_to_do() {
        for (text, says) in [
            ("", "kvit verify --json"),
            ("{", "line 1"),
            ("{}", "object"),
            (r#"{"object":"list","cells":[]}"#, "`list`"),
            (r#"{"object":"verify","cells":[{"cell":"early/close"}]}"#, "PHASE/TRIGGER"),
            (r#"{"object":"verify","cells":[{"cell":"early/close/whole","verdict":"maybe"}]}"#, "maybe"),
        ] {
            let error = read(text).expect_err(text).to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
