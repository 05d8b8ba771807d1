//! Engines that others wrote, by pages of counters; and files that are compared.
// contract: C-29

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use crate::run;

/// Answers every request with the next of these pages, and then with the last of them.
fn pages(pages: Vec<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("it listens"));
    std::thread::spawn(move || {
        let last = pages.last().cloned().unwrap_or_default();
        for (stream, page) in listener.incoming().map_while(Result::ok).zip(pages.into_iter().chain(std::iter::repeat(last))) {
            let asked = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).count();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", page.len());
            if asked > 0 && (&stream).write_all(format!("{head}{page}").as_bytes()).is_err() {
                return;
            }
        }
    });
    address
}

fn vllm(running: u32, generated: u32) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"0\"}} {running}\nvllm:num_requests_waiting{{engine=\"0\"}} 0\nvllm:kv_cache_usage_perc {}\n\
         vllm:generation_tokens_total {generated}\nvllm:prompt_tokens_total 9\nvllm:iteration_tokens_total_count {generated}\n",
        if running > 0 { 0.2 } else { 0.0 }
    )
}

#[test]
fn of_another_makes_engine_it_is_told_what_its_counters_show_and_what_they_cannot() {
    let idle = pages(vec![vllm(0, 5)]);
    let said = run(&["diagnose", "--server", &idle, "--profile", "vllm"]);
    assert_eq!(said.code, 0, "{}", said.err);
    let out = said.out.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(out.starts_with("healthy ok") && out.contains("A cached block from a leaked one: the engine shows one number"), "{out}");

    let busy = || pages(vec![vllm(2, 5), vllm(2, 50)]);
    let said = run(&["diagnose", "--server", &busy(), "--profile", "vllm", "--watch", "1"]);
    assert_eq!((said.code, said.err.as_str()), (2, "kvit: nobody can tell; what is missing stands above\n"), "{}", said.out);
    assert!(said.out.contains("--callers N"), "{}", said.out);
    let said = run(&["diagnose", "--server", &busy(), "--profile", "vllm", "--watch", "1", "--callers", "0"]);
    assert_eq!((said.code, said.err.as_str()), (1, "kvit: upstream_never_cancelled\n"), "{}", said.out);
    assert!(said.out.contains("45 tokens were generated meanwhile"), "{}", said.out);
}

#[test]
fn a_mapping_of_ones_own_names_the_counters() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.toml");
    let text =
        "name = \"mine\"\nrunning = [{ metric = \"jobs\" }]\nkv_held = [{ metric = \"held\" }]\ngenerated = [{ metric = \"tokens\" }]\n";
    std::fs::write(&file, text).expect("it can be written");
    let profile = format!("generic-prometheus:{}", file.display());
    let leaks = pages(vec!["jobs 0\nheld 7\ntokens 3\n".to_owned()]);
    let said = run(&["diagnose", "--server", &leaks, "--profile", &profile, "--watch", "1"]);
    assert_eq!((said.code, said.err.as_str()), (1, "kvit: accounting_defect\n"), "{}", said.out);
    let other = pages(vec!["up 1\n".to_owned()]);
    let said = run(&["diagnose", "--server", &other, "--profile", &profile]);
    assert!(said.code == 2 && said.err.contains("is it this engine?"), "{}", said.err);
    let said = run(&["diagnose", "--profile", "generic-prometheus:nowhere.toml"]);
    assert!(said.code == 2 && said.err.contains("none of kvit, vllm"), "{}", said.err);
}

#[test]
fn files_are_compared_if_they_are_of_the_same_kind() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        path.to_str().expect("a path").to_owned()
    };
    let kvit = |at: u64, active: u32| {
        format!(
            "{{\"object\": \"snapshot\", \"source\": \"kvit\", \"looks\": [{{\"object\": \"look\", \"at_ms\": {at}, \"workers\": [{{\"name\": \"w\", \
             \"presence\": \"here\", \"account\": {{\"total\": 9, \"free\": {}, \"active\": {active}, \"conserved\": true, \"unowned\": {active}}}}}]}}]}}",
            9 - active
        )
    };
    let (sound, lossy) = (write("a.json", &kvit(1, 0)), write("b.json", &kvit(2, 3)));
    let engine = write("c.json", "{\"object\": \"snapshot\", \"source\": \"vllm\", \"looks\": [{\"at_ms\": 3, \"running\": 0}]}");
    let none = write("d.json", "{\"object\": \"kv\"}");
    let compare = |a: &str, b: &str| run(&["diagnose", "--compare", a, b]);
    assert_eq!(compare(&sound, &sound).code, 0);
    // Whichever is named first: their own times are their order.
    for (a, b) in [(&sound, &lossy), (&lossy, &sound)] {
        let said = compare(a, b);
        assert_eq!((said.code, said.err.as_str()), (1, "kvit: accounting_defect\n"), "{}", said.out);
    }
    let said = compare(&sound, &engine);
    assert!(said.code == 2 && said.err.contains("one file is of kvit, the other of vllm"), "{}", said.err);
    assert!(compare(&sound, &none).err.contains("this is no file that `kvit diagnose --snapshot` wrote"));
    assert_eq!(compare(&sound, "nowhere.json").code, 3);
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    assert_eq!(run(&["diagnose", "--server", &format!("http://{closed}")]).code, 4);
}
