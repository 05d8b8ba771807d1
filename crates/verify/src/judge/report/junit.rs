//! The report as JUnit's XML, as CI systems read it: a suite for each phase and one for the checks. A fault is a failure; what was not proven
//! and what nobody can ask is skipped, with its reason, so that it is never counted as passed.
//!
//! Invariant: well-formed whatever the texts say, and of no element or attribute beyond what the usual schema knows.

use std::fmt::Write;

use super::super::cell::Phase;
use super::super::result::{Judged, Report, Source, Try, Verdict};
use super::text::{by, calendar, count, escape, hop, ms, reason};

/// The XML.
pub fn junit(report: &Report) -> String {
    let mut suites: Vec<Suite> = Vec::new();
    for &phase in Phase::ALL {
        let cells: Vec<&Judged> = report.cells.iter().filter(|judged| judged.cell.phase == phase).collect();
        if !cells.is_empty() {
            suites.push(Suite { name: format!("verify.{phase}"), cases: cells.into_iter().map(of_cell).collect() });
        }
    }
    if !report.checks.is_empty() {
        let cases = report.checks.iter().map(|check| {
            let mut says: Vec<String> = check.measured.iter().map(|(name, value)| format!("{name}: {}", count(*value))).collect();
            says.extend(advised(&check.advice));
            Case { name: check.name.clone(), seconds: 0.0, verdict: &check.verdict, says: says.join("\n"), by: by(&check.by) }
        });
        suites.push(Suite { name: "verify.checks".to_owned(), cases: cases.collect() });
    }
    let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
    let _ = writeln!(
        out,
        "<testsuites name=\"kvit verify\" tests=\"{}\" failures=\"{}\" errors=\"0\" time=\"{}\">",
        suites.iter().map(|suite| suite.cases.len()).sum::<usize>(),
        suites.iter().map(Suite::failures).sum::<usize>(),
        seconds(report.took_s)
    );
    for suite in &suites {
        suite.write(report, &mut out);
    }
    out.push_str("</testsuites>\n");
    out
}

struct Suite<'a> {
    name: String,
    cases: Vec<Case<'a>>,
}

impl Suite<'_> {
    fn failures(&self) -> usize {
        self.cases.iter().filter(|case| case.verdict.is_fail()).count()
    }

    fn write(&self, report: &Report, out: &mut String) {
        let skipped = self.cases.iter().filter(|case| case.is_skipped()).count();
        let began = calendar(report.began_s);
        let stamp = began.trim_end_matches(" UTC").replace(' ', "T");
        let _ = writeln!(
            out,
            "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{skipped}\" time=\"{}\" timestamp=\"{stamp}\">",
            escape(&self.name),
            self.cases.len(),
            self.failures(),
            seconds(self.cases.iter().map(|case| case.seconds).sum())
        );
        out.push_str("    <properties>\n");
        let hops = report.hops.iter().map(|of| ("hop", hop(of)));
        let all = [("target", report.target.clone()), ("model", report.model.clone()), ("kvit", report.kvit.clone())];
        for (name, value) in all.into_iter().chain(hops) {
            let _ = writeln!(out, "      <property name=\"{name}\" value=\"{}\"/>", escape(&value));
        }
        out.push_str("    </properties>\n");
        self.cases.iter().for_each(|case| case.write(&self.name, out));
        out.push_str("  </testsuite>\n");
    }
}

struct Case<'a> {
    name: String,
    seconds: f64,
    verdict: &'a Verdict,
    says: String,
    by: String,
}

impl Case<'_> {
    const fn is_skipped(&self) -> bool {
        matches!(self.verdict, Verdict::NotProven { .. } | Verdict::NotApplicable { .. })
    }

    fn write(&self, suite: &str, out: &mut String) {
        let (name, suite) = (escape(&self.name), escape(suite));
        let _ = writeln!(out, "    <testcase name=\"{name}\" classname=\"{suite}\" time=\"{}\">", seconds(self.seconds));
        let why = reason(self.verdict);
        match self.verdict {
            Verdict::Pass => {}
            Verdict::Fail { fault, .. } => {
                let message = escape(&format!("{fault}: {why}"));
                let _ = writeln!(out, "      <failure type=\"{fault}\" message=\"{message}\">{}</failure>", escape(&self.says));
            }
            Verdict::NotProven { .. } | Verdict::NotApplicable { .. } => {
                let message = escape(&format!("{}: {why}", self.verdict.word()));
                let _ = writeln!(out, "      <skipped message=\"{message}\"/>");
            }
        }
        if !self.by.is_empty() {
            let _ = writeln!(out, "      <system-out>judged by {}</system-out>", escape(&self.by));
        }
        out.push_str("    </testcase>\n");
    }
}

fn of_cell(judged: &Judged) -> Case<'_> {
    let mut says = Vec::new();
    says.extend(judged.lost_at.as_ref().map(|place| format!("lost at: {place}")));
    says.extend(judged.tokens_after.map(|tokens| format!("tokens after: {}", count(tokens))));
    says.extend(judged.stop_ms.map(|stop| format!("stopped after: {}", ms(stop))));
    for boundary in &judged.boundaries {
        let by = boundary.by.map_or("nobody", Source::word);
        let crossed = match (boundary.is_crossed(), boundary.crossed_ms) {
            (None, _) => "unknown".to_owned(),
            (Some(true), None) => "crossed".to_owned(),
            (Some(false), Some(at)) => format!("late, {}", ms(at)),
            (_, Some(at)) => ms(at),
            (_, None) => "not crossed".to_owned(),
        };
        says.push(format!("{}: {crossed}, seen by {by}", boundary.name));
    }
    says.extend(advised(&judged.advice));
    let seconds = judged.seen.iter().map(lasted).sum::<f64>();
    Case { name: judged.cell.to_string(), seconds, verdict: &judged.verdict, says: says.join("\n"), by: by(&judged.by) }
}

fn advised(advice: &[String]) -> Option<String> {
    (!advice.is_empty()).then(|| format!("advice: {}", advice.join(", ")))
}

/// How long a try took, from its request to the last thing that was seen of it, in seconds.
fn lasted(seen: &Try) -> f64 {
    let engine = seen.engine.as_ref();
    let looks = engine.into_iter().flat_map(|engine| engine.after.iter().chain(&engine.rest)).map(|look| look.ended_ms);
    let taps = seen.taps.iter().flat_map(|tap| [tap.last_byte_ms, tap.up_closed_ms]).flatten();
    let all = looks.chain(taps).chain(seen.client.end_ms).filter(|ms| ms.is_finite() && ms.abs() < 1e9);
    let last = all.fold(0.0, f64::max);
    (last - seen.client.sent_ms.filter(|ms| ms.is_finite()).unwrap_or(0.0)).max(0.0) / 1e3
}

fn seconds(seconds: f64) -> String {
    format!("{:.3}", if seconds.is_finite() { seconds.max(0.0) } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::super::example::{example, hostile};
    use super::*;

    fn elements<'a, 'x>(node: Node<'a, 'x>) -> Vec<Node<'a, 'x>> {
        node.children().filter(Node::is_element).collect()
    }

    /// The usual schema, as Jenkins and its kin read it: what may stand where, in which order, and with which attributes.
    fn is_valid(node: Node<'_, '_>) {
        let attributes: Vec<&str> = node.attributes().map(|attribute| attribute.name()).collect();
        let (children, needs, may): (&[&str], &[&str], &[&str]) = match node.tag_name().name() {
            "testsuites" => (&["testsuite"], &[], &["name", "time", "tests", "failures", "disabled", "errors"]),
            "testsuite" => (
                &["properties", "testcase", "system-out", "system-err"],
                &["name", "tests"],
                &["failures", "errors", "time", "disabled", "skipped", "timestamp", "hostname", "id", "package"],
            ),
            "properties" => (&["property"], &[], &[]),
            "property" => (&[], &["name", "value"], &[]),
            "testcase" => {
                (&["skipped", "error", "failure", "system-out", "system-err"], &["name"], &["classname", "time", "status", "assertions"])
            }
            "failure" | "error" => (&[], &[], &["type", "message"]),
            "skipped" => (&[], &[], &["message"]),
            "system-out" | "system-err" => (&[], &[], &[]),
            other => panic!("no element is called {other}"),
        };
        assert!(needs.iter().all(|name| attributes.contains(name)), "{} lacks one of {needs:?}", node.tag_name().name());
        assert!(attributes.iter().all(|name| needs.contains(name) || may.contains(name)), "{attributes:?}");
        let places: Vec<usize> = elements(node)
            .iter()
            .map(|child| children.iter().position(|name| *name == child.tag_name().name()).expect("it may stand here"))
            .collect();
        assert!(places.is_sorted(), "{places:?}");
        for name in ["tests", "failures", "errors", "skipped"] {
            assert!(node.attribute(name).is_none_or(|value| value.parse::<u64>().is_ok()), "{name}");
        }
        assert!(node.attribute("time").is_none_or(|value| value.parse::<f64>().is_ok_and(|seconds| seconds >= 0.0)));
        elements(node).into_iter().for_each(is_valid);
    }

    #[test]
    fn it_is_xml_of_the_usual_schema_whatever_a_report_says() {
        for report in [example(), hostile(), Report { cells: Vec::new(), checks: Vec::new(), ..example() }] {
            let text = junit(&report);
            let document = Document::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(document.root_element().tag_name().name(), "testsuites");
            is_valid(document.root_element());
        }
    }

    #[test]
    fn a_suite_for_each_phase_counts_its_own() {
        let text = junit(&example());
        let document = Document::parse(&text).expect("XML");
        let suites = elements(document.root_element());
        let counts = |suite: &Node<'_, '_>| {
            let of = |name: &str| suite.attribute(name).expect("it is there").to_owned();
            (of("name"), of("tests"), of("failures"), of("skipped"))
        };
        let all: Vec<_> = suites.iter().map(counts).collect();
        let want = [("prefill", 1, 1, 0), ("headers", 1, 0, 1), ("early", 4, 1, 1), ("late", 1, 0, 0), ("checks", 4, 1, 1)];
        let want =
            want.map(|(name, tests, fails, skips)| (format!("verify.{name}"), tests.to_string(), fails.to_string(), skips.to_string()));
        assert_eq!(all, want);
        let total = |name: &str| document.root_element().attribute(name).expect("it is there").to_owned();
        assert_eq!((total("tests"), total("failures")), ("11".to_owned(), "3".to_owned()));
        assert_eq!(suites[0].attribute("timestamp"), Some("2026-11-30T10:11:17"));
    }

    #[test]
    fn a_failure_says_its_fault_and_why_and_what_is_skipped_says_its_reason() {
        let text = junit(&example());
        let document = Document::parse(&text).expect("XML");
        let case = |name: &str| document.descendants().find(|node| node.attribute("name") == Some(name)).expect("a case");
        let failure = elements(case("early/close/whole"))[0];
        assert_eq!((failure.tag_name().name(), failure.attribute("type")), ("failure", Some("never-stops")));
        assert!(failure.attribute("message").is_some_and(|message| message.contains("97 of 97 tokens")));
        assert!(failure.text().is_some_and(|text| text.contains("lost at: haproxy → litellm\ntokens after: 97")));
        for (name, says) in [("early/cancel/stream", "not proven: "), ("headers/close/whole", "n/a: "), ("observer", "--both-ways")] {
            let skipped = elements(case(name))[0];
            assert_eq!(skipped.tag_name().name(), "skipped");
            assert!(skipped.attribute("message").is_some_and(|message| message.contains(says)), "{name}");
        }
        assert_eq!(elements(case("late/reset/stream"))[0].text(), Some("judged by tap, counters"));
        assert_eq!(case("late/reset/stream").attribute("time"), Some("0.654"));
    }

    #[test]
    fn texts_come_out_as_they_went_in() {
        let mut report = example();
        report.target = "http://x/?a=1&b=\"<'>\"".to_owned();
        let text = junit(&report);
        let document = Document::parse(&text).expect("XML");
        let target = document.descendants().find(|node| node.attribute("name") == Some("target")).expect("a property");
        assert_eq!(target.attribute("value"), Some(report.target.as_str()));
    }
}
