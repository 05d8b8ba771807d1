//! A diagnosis for a person.

use observe::diagnose::{Diagnosis, Verdict};

/// The verdict, why, and what to do.
pub fn text(diagnosis: &Diagnosis, width: usize) -> String {
    let verdict = diagnosis.verdict;
    let word = if verdict.is_fault() {
        "FAULT"
    } else if verdict == Verdict::CannotTell {
        "unknown"
    } else {
        "ok"
    };
    let mut text = format!("{}  {word}\n", verdict.as_str());
    text += &paragraph("", diagnosis.summary, width);
    if let Some(boundary) = &diagnosis.boundary {
        let since = diagnosis.since_ms.map_or_else(String::new, |at| format!(", since {}", time_of_day(at)));
        text += &format!("at {boundary}{since}\n");
    }
    let mut list = |title: &str, lines: &[String], mark: &dyn Fn(usize) -> String| {
        if !lines.is_empty() {
            text += &format!("\n{title}\n");
            for (i, line) in lines.iter().enumerate() {
                text += &paragraph(&mark(i), &printable(line), width);
            }
        }
    };
    list("evidence", &diagnosis.evidence, &|_| "  - ".to_owned());
    list("what to do next", &diagnosis.next, &|i| format!("  {}. ", i + 1));
    let also: Vec<String> = diagnosis.also.iter().map(|verdict| format!("{}: {}", verdict.as_str(), verdict.summary())).collect();
    list("found beside it", &also, &|_| "  - ".to_owned());
    list("what this cannot tell", &diagnosis.cannot_tell, &|_| "  - ".to_owned());
    let looks = if diagnosis.looks == 1 { "1 look".to_owned() } else { format!("{} looks", diagnosis.looks) };
    text += &format!("\nby {looks} over {:.1} s", diagnosis.over_ms as f64 / 1000.0);
    text
}

/// Names in it are other people's choice: nothing of them reaches the terminal but what can be read.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A text in lines, the first behind a mark and the others as far to the right.
fn paragraph(mark: &str, text: &str, width: usize) -> String {
    let room = width.saturating_sub(mark.len()).max(20);
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    let indent = " ".repeat(mark.len());
    let of = |(i, line): (usize, &String)| format!("{}{line}\n", if i == 0 { mark } else { &indent });
    lines.iter().enumerate().map(of).collect()
}

/// In UTC, as a log has it.
fn time_of_day(ms: u64) -> String {
    let s = ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}.{:03} UTC", s / 3600, s / 60 % 60, s % 60, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diagnosis_is_told_in_lines_that_fit() {
        let mut diagnosis = observe::diagnose::judge(&[], None);
        diagnosis.evidence = vec![format!("run a\u{1b}b: {}", "it waits and waits ".repeat(20))];
        diagnosis.boundary = Some("gateway-worker".to_owned());
        diagnosis.since_ms = Some(86_400_000 + 3_661_042);
        let text = text(&diagnosis, 60);
        assert!(text.starts_with("cannot_tell  unknown\n"), "{text}");
        assert!(
            text.contains("at gateway-worker, since 01:01:01.042 UTC\n") && text.contains("run a?b") && !text.contains('\u{1b}'),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("\nwhat to do next\n  1. Look at a server.\n"), "{text}");
    }
}
