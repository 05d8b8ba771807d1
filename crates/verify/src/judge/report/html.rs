//! The report as a page that needs nothing but itself: no script, no font, no picture from elsewhere.
//!
//! Invariant: every text of a report passes [`escape`]; the page may load nothing, and says so itself.

use std::fmt::Write;

use super::super::advice;
use super::super::result::{Check, Judged, Report, Source, Try, Verdict};
use super::text::{advised, by, calendar, count, escape, failed, ms, prose, reason, seen, tokens, way};
use super::timeline::timeline;

/// Faults that are shown unfolded.
const OPEN_MAX: usize = 6;
const STYLE: &str = include_str!("style.css");

/// The page.
pub fn html(report: &Report) -> String {
    let mut out = String::with_capacity(64 << 10);
    head(&mut out, report);
    out.push_str("<main>\n");
    changes(&mut out, report);
    boundaries(&mut out, report);
    hints(&mut out, report);
    checks(&mut out, &report.checks);
    cells(&mut out, report);
    hops(&mut out, report);
    settings(&mut out, report);
    out.push_str("</main>\n");
    let _ = writeln!(out, "<footer>made by kvit {}; times are since the caller left</footer>\n</body>\n</html>", escape(&report.kvit));
    out
}

const fn class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail { .. } => "fail",
        Verdict::NotProven { .. } => "unsure",
        Verdict::NotApplicable { .. } => "na",
    }
}

fn mark(verdict: &Verdict) -> String {
    format!("<span class=\"mark {}\">{}</span>", class(verdict), verdict.word())
}

fn head(out: &mut String, report: &Report) {
    let title = escape(&format!("kvit verify: {}", report.target));
    let _ = writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>"
    );
    let profile = if report.profile.is_empty() { "none" } else { &report.profile };
    let looked = if report.polled { "looked at during tries" } else { "looked at before and after tries only" };
    let (began, took) = (calendar(report.began_s), ms(report.took_s * 1e3));
    let _ = writeln!(out, "<header>\n<h1>{title}</h1>\n<p class=\"way\">{}</p>", escape(&way(&report.hops)));
    let said = format!("Model {}. {began}, in {took}. Counters by profile {profile}, {looked}.", report.model);
    let _ = writeln!(out, "<p class=\"soft break\">{}</p>\n<ul class=\"counts\" aria-label=\"verdicts\">", escape(&said));
    for (word, class, says) in
        [("FAIL", "fail", "failed"), ("pass", "pass", "passed"), ("not proven", "unsure", "not proven"), ("n/a", "na", "not applicable")]
    {
        let _ = writeln!(out, "<li class=\"{class}\"><b>{}</b> {says}</li>", report.count(word));
    }
    out.push_str("</ul>\n</header>\n");
}

fn changes(out: &mut String, report: &Report) {
    let advised = advised(report);
    if advised.is_empty() {
        return;
    }
    out.push_str("<section aria-labelledby=\"change\">\n<h2 id=\"change\">What to change</h2>\n");
    for (id, of) in advised {
        out.push_str("<article class=\"card change\">\n");
        match advice::named(id) {
            Some(entry) => {
                let _ = writeln!(out, "<h3>{}</h3>\n<p>{}</p>", prose(&entry.title), prose(&entry.fix));
                if let Some(config) = &entry.config {
                    let _ = writeln!(out, "<pre>{}</pre>", escape(config));
                }
                let _ = writeln!(out, "<p class=\"soft\">{}</p>", prose(&entry.cause));
                cited(out, &of);
                out.push_str("<details><summary class=\"soft\">how that is known</summary><ul class=\"why\">");
                entry.evidence.iter().for_each(|evidence| {
                    let _ = write!(out, "<li>{}</li>", prose(evidence));
                });
                let _ = writeln!(out, "</ul><p class=\"soft\">entry <code>{}</code></p></details>", escape(id));
            }
            None => {
                let _ = writeln!(out, "<h3><code>{}</code></h3>\n<p>This release of kvit does not know the entry.</p>", escape(id));
                cited(out, &of);
            }
        }
        out.push_str("</article>\n");
    }
    out.push_str("</section>\n");
}

fn cited(out: &mut String, of: &[String]) {
    out.push_str("<ul class=\"chips\" aria-label=\"cells and checks\">");
    for name in of {
        let _ = write!(out, "<li><code>{}</code></li>", escape(name));
    }
    out.push_str("</ul>\n");
}

/// The boundaries of all cells, from the caller on, in the order in which they first stand.
fn names(cells: &[Judged]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for boundary in cells.iter().flat_map(|judged| &judged.boundaries) {
        if !all.contains(&boundary.name.as_str()) {
            all.push(&boundary.name);
        }
    }
    all
}

fn boundaries(out: &mut String, report: &Report) {
    let names = names(&report.cells);
    out.push_str("<section aria-labelledby=\"bounds\">\n<h2 id=\"bounds\">Boundary by boundary</h2>\n");
    out.push_str(
        "<p class=\"soft\">When the departure crossed each boundary, what was generated after it, and when the work stopped.</p>\n",
    );
    let columns = ["cell", "verdict"].into_iter().chain(names.iter().copied()).chain(["tokens after", "stopped"]);
    open_table(out, "bounds", &columns.collect::<Vec<_>>());
    for (index, judged) in report.cells.iter().enumerate() {
        let cell = escape(&judged.cell.to_string());
        let _ = write!(out, "<tr><th scope=\"row\"><a href=\"#c{index}\"><code>{cell}</code></a></th><td>{}</td>", mark(&judged.verdict));
        names.iter().for_each(|name| crossing(out, judged, name));
        let (tokens, stop) = (seen(judged.tokens_after, count), seen(judged.stop_ms, ms));
        let _ = writeln!(out, "<td class=\"n\">{tokens}</td><td class=\"n\">{stop}</td></tr>");
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// A table that can be wider than the page, below the heading of this id.
fn open_table(out: &mut String, heading: &str, columns: &[&str]) {
    let _ = writeln!(out, "<div class=\"wide\" role=\"region\" aria-labelledby=\"{heading}\" tabindex=\"0\"><table class=\"{heading}\">");
    out.push_str("<thead><tr>");
    for column in columns {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(column));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
}

fn crossing(out: &mut String, judged: &Judged, name: &str) {
    let boundary = judged.boundaries.iter().find(|boundary| boundary.name == name);
    let by = boundary.and_then(|boundary| boundary.by).map_or("nobody looked", Source::word);
    let lost = lost_within(judged);
    let says = match boundary.map(|boundary| (boundary.is_crossed(), boundary.crossed_ms)) {
        None => return out.push_str("<td>–</td>"),
        _ if lost.contains(&name) && lost.len() == 1 => return lost_here(out, "lost here", by),
        Some((None | Some(false), _)) if lost.contains(&name) => return lost_here(out, "lost hereabouts", by),
        Some((Some(true), Some(at))) => ms(at),
        Some((Some(true), None)) => "crossed".to_owned(),
        Some((Some(false), Some(at))) => format!("late, {}", ms(at)),
        Some((Some(false), None)) => "not crossed".to_owned(),
        Some((None, _)) => "–".to_owned(),
    };
    let _ = write!(out, "<td>{says}<small>{by}</small></td>");
}

fn lost_here(out: &mut String, says: &str, by: &str) {
    let _ = write!(out, "<td class=\"lost\">{says}<small>{by}</small></td>");
}

/// The boundaries of the span in which it was lost: most often one.
fn lost_within(judged: &Judged) -> Vec<&str> {
    let names: Vec<&str> = judged.boundaries.iter().map(|boundary| boundary.name.as_str()).collect();
    let Some((left, right)) = judged.lost_at.as_deref().and_then(|name| name.split_once(" → ")) else { return Vec::new() };
    let place =
        |is: fn((&str, &str), &str) -> bool, side| names.iter().position(|name| name.split_once(" → ").is_some_and(|of| is(of, side)));
    let from = place(|(from, _), side| from == side, left);
    let to = place(|(_, to), side| to == side, right);
    match from.zip(to) {
        Some((from, to)) if from <= to => names[from..=to].to_vec(),
        _ => Vec::new(),
    }
}

fn hints(out: &mut String, report: &Report) {
    if report.hints.is_empty() {
        return;
    }
    out.push_str("<section aria-labelledby=\"hints\">\n<h2 id=\"hints\">What could not be proven, and what would help</h2>\n<ul>\n");
    for hint in &report.hints {
        let _ = writeln!(out, "<li class=\"break\">{}</li>", prose(hint));
    }
    out.push_str("</ul>\n</section>\n");
}

fn checks(out: &mut String, checks: &[Check]) {
    if checks.is_empty() {
        return;
    }
    out.push_str("<section aria-labelledby=\"checks\">\n<h2 id=\"checks\">Checks over all tries</h2>\n");
    open_table(out, "checks", &["check", "verdict", "why", "measured", "by"]);
    for check in checks {
        let why = match &check.verdict {
            Verdict::Fail { fault, why } => format!("{fault}: {why}"),
            other => reason(other).to_owned(),
        };
        let measured: Vec<String> = check.measured.iter().map(|(name, value)| escape(&format!("{name} {}", count(*value)))).collect();
        let (name, why, measured) = (escape(&check.name), escape(&why), measured.join("<br>"));
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{name}</th><td>{}</td><td class=\"break\">{why}</td><td>{measured}</td><td>{}</td></tr>",
            mark(&check.verdict),
            by(&check.by)
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

fn cells(out: &mut String, report: &Report) {
    out.push_str("<section aria-labelledby=\"cells\">\n<h2 id=\"cells\">Cell by cell</h2>\n");
    out.push_str(
        "<p class=\"soft\">In each picture: <b class=\"told\">×</b> that side closed, <b class=\"gone\">◆</b> the request ended there, ",
    );
    out.push_str("small ticks below a lane: the engine was looked at. Red is what went on after the caller had left. ");
    out.push_str("The scale is logarithmic.</p>\n");
    let engine = report.hops.last().map_or("engine", |hop| hop.name.as_str());
    let mut opened = 0;
    for (index, judged) in report.cells.iter().enumerate() {
        opened += usize::from(judged.verdict.is_fail());
        let open = if judged.verdict.is_fail() && opened <= OPEN_MAX { " open=\"\"" } else { "" };
        let says = match &judged.verdict {
            Verdict::Pass => format!("{} after, stopped after {}", seen(judged.tokens_after, tokens), seen(judged.stop_ms, ms)),
            Verdict::Fail { fault, .. } => failed(judged, *fault),
            other => reason(other).to_owned(),
        };
        let cell = judged.cell.to_string();
        let _ = writeln!(
            out,
            "<details class=\"card\" id=\"c{index}\"{open}>\n<summary>{} <code>{}</code> <span class=\"soft break\">{}</span></summary>",
            mark(&judged.verdict),
            escape(&cell),
            escape(&says)
        );
        if let Verdict::Fail { why, .. } = &judged.verdict {
            let _ = writeln!(out, "<p class=\"break\">{}.</p>", escape(why));
        }
        if let Some(note) = &judged.note {
            let _ = writeln!(out, "<p class=\"break\">{}.</p>", escape(note));
        }
        match shown(judged) {
            Some((at, of)) => {
                let _ = writeln!(
                    out,
                    "<p class=\"soft break\">Try {} of {}, id <code>{}</code></p>",
                    at + 1,
                    judged.seen.len(),
                    escape(&of.id)
                );
                out.push_str(&timeline(of, engine, &format!("{cell}, try {} of {}", at + 1, judged.seen.len())));
                facts(out, judged, of);
            }
            None => {
                let _ = writeln!(out, "<p class=\"soft\">No try of it says anything.</p>");
                voids(out, judged);
            }
        }
        out.push_str("</details>\n");
    }
    out.push_str("</section>\n");
}

/// The try to show: the one with the most work after it was left, of those that say something.
fn shown(judged: &Judged) -> Option<(usize, &Try)> {
    let work = |seen: &Try| {
        let tokens = seen.engine.as_ref().and_then(|engine| engine.tokens_after);
        let events = seen.taps.last().map(|tap| tap.events_after as f64);
        tokens.or(events).filter(|work| work.is_finite()).unwrap_or(0.0)
    };
    let mut all: Vec<(usize, &Try)> = judged.seen.iter().enumerate().filter(|(_, seen)| seen.void.is_none()).collect();
    all.sort_by(|a, b| work(b.1).total_cmp(&work(a.1)));
    all.first().copied()
}

fn facts(out: &mut String, judged: &Judged, seen_of: &Try) {
    let mut all: Vec<(&str, String)> = Vec::new();
    all.push(("judged by", by(&judged.by)));
    all.push(("tries that count", judged.tries.to_string()));
    all.push(("read of what was asked for", format!("{} of {} tokens", seen_of.client.tokens, seen_of.asked_tokens)));
    all.extend(judged.steps_after.map(|steps| ("steps after", count(steps))));
    all.extend(judged.capacity_ms.map(|at| ("room was there again", ms(at))));
    if let Some(engine) = &seen_of.engine {
        all.extend(engine.prompt_after.map(|tokens| ("prompt tokens after", count(tokens))));
    }
    for (load, name, of) in [(&seen_of.gpu, "GPU", "of the time"), (&seen_of.cpu, "processor", "of a core")] {
        let Some(load) = load else { continue };
        let quiet = load.quiet_ms.map_or_else(|| "not quiet while it was watched".to_owned(), |at| format!("quiet after {}", ms(at)));
        all.push((name, format!("{:.2} {of} at work, {:.2} at rest, {quiet}", load.busy, load.idle)));
    }
    for log in &seen_of.logs {
        all.push(("log", format!("{}: {} ({})", log.hop, log.said, log.means)));
    }
    all.extend(seen_of.record.as_ref().map(|record| ("the stack's own record", record.clone())));
    all.extend(seen_of.cancel_confirmed.map(|yes| ("the cancel was confirmed", if yes { "yes" } else { "no" }.to_owned())));
    list(out, &all);
    voids(out, judged);
}

fn voids(out: &mut String, judged: &Judged) {
    let all: Vec<(&str, String)> =
        judged.seen.iter().filter_map(|seen| Some(("a try that says nothing", seen.void.clone()?))).take(8).collect();
    if !all.is_empty() {
        list(out, &all);
    }
}

fn list(out: &mut String, all: &[(&str, String)]) {
    out.push_str("<dl>\n");
    for (name, value) in all {
        let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
    }
    out.push_str("</dl>\n");
}

fn hops(out: &mut String, report: &Report) {
    if report.hops.is_empty() {
        return;
    }
    out.push_str("<section aria-labelledby=\"hops\">\n<h2 id=\"hops\">What was judged</h2>\n");
    out.push_str(
        "<p class=\"soft\">Fingerprints of the hops, from the caller on. Where one of them is another by now, this report proves ",
    );
    out.push_str("nothing of it.</p>\n");
    open_table(out, "hops", &["hop", "kind", "release", "SHA-256 of its configuration"]);
    for of in &report.hops {
        let text = |text: &Option<String>| text.as_deref().map_or_else(|| "unknown".to_owned(), escape);
        let config = of.config_sha256.as_deref().map_or_else(|| "unknown".to_owned(), |hash| format!("<code>{}</code>", escape(hash)));
        let (name, kind, version) = (escape(&of.name), text(&of.kind), text(&of.version));
        let _ = writeln!(out, "<tr><th scope=\"row\">{name}</th><td>{kind}</td><td>{version}</td><td class=\"break\">{config}</td></tr>");
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

fn settings(out: &mut String, report: &Report) {
    if report.settings.is_empty() {
        return;
    }
    out.push_str("<section aria-labelledby=\"settings\">\n<h2 id=\"settings\">Settings that verdicts depend on</h2>\n");
    let all: Vec<(&str, String)> = report.settings.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
    list(out, &all);
    out.push_str("</section>\n");
}

#[cfg(test)]
mod tests {
    use super::super::super::result::Boundary;
    use super::super::example::{example, full, hostile};
    use super::*;

    /// As XML, so that a parser that forgives nothing reads it: the elements that HTML leaves open are closed.
    fn as_xml(page: &str) -> String {
        let body = page.strip_prefix("<!DOCTYPE html>\n").expect("a doctype");
        let mut out = String::new();
        for part in body.split_inclusive('>') {
            let open = ["<meta ", "<br"].iter().any(|tag| part.rfind('<').is_some_and(|at| part[at..].starts_with(tag)));
            out.push_str(&if open { part.trim_end_matches('>').to_owned() + "/>" } else { part.to_owned() });
        }
        out
    }

    #[test]
    fn the_page_is_well_formed_and_loads_nothing() {
        for report in [example(), hostile(), Report { cells: Vec::new(), hops: Vec::new(), ..example() }] {
            let xml = as_xml(&html(&report));
            let page = roxmltree::Document::parse(&xml).unwrap_or_else(|error| panic!("{error}\n{xml}"));
            for node in page.descendants().filter(|node| node.is_element()) {
                let name = node.tag_name().name();
                assert!(
                    !["script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image", "foreignObject"]
                        .contains(&name),
                    "{name}"
                );
                for attribute in node.attributes() {
                    let is_local = !["src", "href", "srcset", "action"].contains(&attribute.name()) || attribute.value().starts_with('#');
                    assert!(is_local && !attribute.name().starts_with("on"), "{} {}", name, attribute.name());
                }
            }
            let style = page.descendants().find(|node| node.tag_name().name() == "style").and_then(|node| node.text()).expect("a style");
            assert!(!style.contains("url(") && !style.contains("@import"));
        }
    }

    #[test]
    fn it_can_be_read_by_who_cannot_see_it() {
        let xml = as_xml(&html(&example()));
        let page = roxmltree::Document::parse(&xml).expect("a page");
        let all = |name: &'static str| page.descendants().filter(move |node| node.tag_name().name() == name);
        assert!(all("th").count() > 10 && all("th").all(|th| th.attribute("scope").is_some()));
        assert!(
            all("svg").count() >= 5 && all("svg").all(|svg| svg.attribute("role") == Some("img") && svg.attribute("aria-label").is_some())
        );
        let ids: Vec<&str> = page.descendants().filter_map(|node| node.attribute("id")).collect();
        let mut once = ids.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), ids.len(), "an id stands once");
        let named = |name: &str| ids.contains(&name);
        for node in page.descendants() {
            assert!(node.attribute("aria-labelledby").is_none_or(named));
            assert!(node.attribute("href").is_none_or(|href| named(&href[1..])));
        }
    }

    #[test]
    fn it_says_what_failed_where_and_what_to_change() {
        let page = html(&example());
        for says in [
            "<td class=\"lost\">lost here<small>tap</small></td>",
            "option abortonclose",
            "how that is known",
            "<code>engine-keeps-room</code>",
            "never-stops at haproxy → litellm",
            "<b>3</b> failed",
            "1.108.7",
            "haproxy: CD-- (client left)",
        ] {
            assert!(page.contains(says), "{says}");
        }
        let report = example();
        let hash = report.hops[0].config_sha256.as_deref().expect("a digest");
        assert!(page.contains(hash));
        assert_eq!(page.matches("<details class=\"card\"").count(), report.cells.len());
        assert_eq!(page.matches(" open=\"\">").count(), 2, "faults are open");
        assert_eq!(html(&full()).matches(" open=\"\">").count(), OPEN_MAX, "a few of many are");
    }

    #[test]
    fn a_boundary_is_crossed_late_not_or_somewhere_in_a_span() {
        let mut report = example();
        let of = |name: &str, crossed, crossed_ms, by| Boundary { name: name.to_owned(), crossed, crossed_ms, by };
        let judged = &mut report.cells[2];
        judged.boundaries = vec![
            of("client → nginx", Some(true), None, Some(Source::Log)),
            of("nginx → litellm", None, None, None),
            of("litellm → vllm", Some(false), Some(2500.0), Some(Source::Tap)),
            of("vllm → work", Some(false), None, Some(Source::Counters)),
        ];
        judged.lost_at = Some("nginx → vllm".to_owned());
        let row = |judged: &Judged| {
            let mut out = String::new();
            names(std::slice::from_ref(judged)).iter().for_each(|name| crossing(&mut out, judged, name));
            out
        };
        let lost = |by: &str| format!("<td class=\"lost\">lost hereabouts<small>{by}</small></td>");
        let (crossed, not) = ("<td>crossed<small>log</small></td>", "<td>not crossed<small>counters</small></td>");
        assert_eq!(row(judged), format!("{crossed}{}{}{not}", lost("nobody looked"), lost("tap")));
        judged.lost_at = Some("vllm → work".to_owned());
        let late = "<td>late, 2.5 s<small>tap</small></td>";
        let here = "<td class=\"lost\">lost here<small>counters</small></td>";
        assert_eq!(row(judged), format!("{crossed}<td>–<small>nobody looked</small></td>{late}{here}"));
    }

    #[test]
    fn the_try_with_the_most_work_is_shown() {
        let report = example();
        assert_eq!(shown(&report.cells[0]).map(|(at, seen)| (at, seen.id.as_str())), Some((1, "a2")));
        assert!(shown(&report.cells[5]).is_none());
    }

    #[test]
    fn no_text_of_a_report_becomes_markup() {
        let page = html(&hostile());
        assert!(!page.contains("<script") && !page.contains("alert(1)</script>"));
        assert!(!page.chars().any(|c| c.is_control() && c != '\n'));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    }

    #[test]
    #[ignore = "writes the pages for a person to look at: KVIT_TEST_PAGES names the folder"]
    fn pages_to_look_at() {
        let Some(folder) = std::env::var_os("KVIT_TEST_PAGES") else { return println!("skipped: KVIT_TEST_PAGES names no folder") };
        for (name, report) in [("example", example()), ("hostile", hostile()), ("full", full())] {
            let folder = std::path::Path::new(&folder);
            std::fs::write(folder.join(format!("{name}.html")), html(&report)).expect("a page");
            let text = super::super::table::table(&report, 100, super::super::table::Paint::Plain);
            std::fs::write(folder.join(format!("{name}.txt")), text).expect("a table");
        }
    }
}
