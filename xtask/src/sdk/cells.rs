//! What the clients' tests in front of a real engine wrote down, as a table.
//!
//! Invariant: a client has passed in a column only if a test of it ran there and none failed.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

/// The columns, as the tests name them.
const COLUMNS: [&str; 5] = ["answer", "streaming", "tools", "JSON mode", "leaving"];
/// The line that says what the engine is begins so.
const ENGINE: &str = "engine";

/// What came of a client's tests in one column.
#[derive(Debug, Default)]
struct Cell {
    passed: u32,
    failed: u32,
    left_out: u32,
}

/// A client's cells by column.
type Row = BTreeMap<String, Cell>;

/// One engine, and what came of each client.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What its markers in the document call it.
    name: String,
    /// The same with its version.
    told: String,
    /// Clients with their versions, in the order in which they came.
    clients: Vec<(String, Row)>,
}

/// Reads lines of client, version, column and `passed`, `failed` or `left out`, with tabs between them.
pub(super) fn read(text: &str) -> anyhow::Result<Found> {
    let mut found = Found::default();
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        let [client, version, column, came] = words[..] else { bail!("no cell: {line}") };
        if client == ENGINE {
            (found.name, found.told) = (column.to_owned(), version.to_owned());
            continue;
        }
        if !COLUMNS.contains(&column) {
            bail!("there is no column `{column}`");
        }
        let name = format!("{client} {version}");
        if found.clients.iter().all(|(known, _)| *known != name) {
            found.clients.push((name.clone(), Row::new()));
        }
        let row = found.clients.iter_mut().find(|(known, _)| *known == name);
        let cell = row.context("a row")?.1.entry(column.to_owned()).or_default();
        *match came {
            "passed" => &mut cell.passed,
            "left out" => &mut cell.left_out,
            _ => &mut cell.failed,
        } += 1;
    }
    if found.name.is_empty() {
        bail!("no test said which engine it is");
    }
    Ok(found)
}

impl Found {
    /// The Markdown.
    pub(super) fn table(&self) -> String {
        let mut lines = vec![
            format!("{}, `kvit gateway` {}.", self.told, env!("CARGO_PKG_VERSION")),
            String::new(),
            format!("| client | {} |", COLUMNS.join(" | ")),
            format!("|---|{}", "---|".repeat(COLUMNS.len())),
        ];
        for (client, row) in &self.clients {
            let cells = COLUMNS.map(|column| match row.get(column) {
                None => "no test".to_owned(),
                Some(Cell { failed: failed @ 1.., .. }) => format!("**{failed} failed**"),
                Some(Cell { passed, left_out: 0, .. }) => format!("passed ({passed})"),
                Some(Cell { passed, left_out, .. }) => format!("passed ({passed}), {left_out} left out"),
            });
            lines.push(format!("| {client} | {} |", cells.join(" | ")));
        }
        lines.join("\n")
    }

    /// The document with the table between this engine's markers.
    pub(super) fn put(&self, text: &str) -> anyhow::Result<String> {
        let (begin, end) =
            (format!("<!-- made by cargo xtask sdk upstream: {} -->", self.name), format!("<!-- end: clients of {} -->", self.name));
        let (before, rest) = text.split_once(&begin).with_context(|| format!("there is no line `{begin}`"))?;
        let (_, after) = rest.split_once(&end).with_context(|| format!("there is no line `{end}` behind `{begin}`"))?;
        Ok(format!("{before}{begin}\n{}\n{end}{after}", self.table()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: &str = "engine\tvllm 0.32.0\tvllm\tpassed\ncurl\t7.88\tanswer\tpassed\ncurl\t7.88\ttools\tpassed\ncurl\t7.88\ttools\tfailed\n\
        OpenAI (Node)\t6.49.0\tanswer\tpassed\nOpenAI (Node)\t6.49.0\tanswer\tpassed\nOpenAI (Node)\t6.49.0\ttools\tleft out\n\
        OpenAI (Node)\t6.49.0\ttools\tpassed\n";

    #[test]
    fn a_row_a_client_and_a_failure_hides_what_passed() {
        let table = read(TOLD).expect("cells").table();
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert!(table.starts_with("vllm 0.32.0, `kvit gateway` "), "{table}");
        assert_eq!(rows[2], "| curl 7.88 | passed (1) | no test | **1 failed** | no test | no test |");
        assert_eq!(rows[3], "| OpenAI (Node) 6.49.0 | passed (2) | no test | passed (1), 1 left out | no test | no test |");
    }

    #[test]
    fn it_is_put_between_its_own_markers_and_nowhere_else() {
        let found = read(TOLD).expect("cells");
        let text = "a\n<!-- made by cargo xtask sdk upstream: vllm -->\nold\n<!-- end: clients of vllm -->\nb\n";
        let put = found.put(text).expect("markers");
        assert!(put.starts_with("a\n<!-- made by") && put.ends_with("<!-- end: clients of vllm -->\nb\n") && !put.contains("old"), "{put}");
        assert_eq!(found.put(&put).expect("markers"), put);
        assert!(found.put("no markers").is_err());
    }

    #[test]
    fn what_is_no_cell_is_refused() {
        for told in ["", "curl\t1\tanswer", "engine\tvllm 1\tvllm\tpassed\ncurl\t1\tsinging\tpassed"] {
            assert!(read(told).is_err(), "{told}");
        }
    }
}
