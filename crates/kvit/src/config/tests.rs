//! Precedence, refusals and the reference.

use std::ffi::OsString;

use super::file::parse;
use super::*;

fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs.iter().map(|(k, v)| (OsString::from(k), OsString::from(v))).collect()
}

#[test]
fn flags_stand_over_environment_over_file_over_defaults() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kvit.toml");
    std::fs::write(&file, "port = 1\nkv_blocks = 2\nhost = \"::1\"\n").unwrap();
    let env = env(&[("KVIT_PORT", "3"), ("KVIT_KV_BLOCKS", "4"), ("KVIT_ISA", "scalar"), ("KVIT_QUEUE_LIMIT", "")]);
    let flags = ServeFlags { port: Some(5), ..ServeFlags::default() };
    let config = load(flags, &env, Some(&file)).unwrap();
    assert_eq!((config.port, config.kv_blocks, config.host.as_str(), config.isa), (5, 4, "::1", Isa::Scalar));
    assert_eq!(config.queue_limit, 256, "an empty variable is not set");
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_known_one() {
    let error = parse("kvit.toml", "port = 1\n\n# a comment\nkv_block = 2\n").unwrap_err().to_string();
    assert_eq!(error, "kvit.toml:4: unknown key `kv_block`; did you mean `kv_blocks`?");
    let error = parse("kvit.toml", "zzz = 2").unwrap_err().to_string();
    assert_eq!(error, "kvit.toml:1: unknown key `zzz`");
    let error = parse("kvit.toml", "[serve]\nport = 1").unwrap_err().to_string();
    assert!(error.starts_with("kvit.toml:1: unknown key `serve`"), "{error}");
}

#[test]
fn a_value_of_the_wrong_kind_is_named_with_its_line() {
    for (text, line, key) in [
        ("host = \"a\"\nport = \"8000\"", 2, "port"),
        ("port = 70000", 1, "port"),
        ("threads = 0", 1, "threads"),
        ("isa = \"sse\"", 1, "isa"),
        ("kv_blocks = -1", 1, "kv_blocks"),
        ("price_device_hour = 2\nalert_waste_percent = -0.5", 2, "alert_waste_percent"),
        ("price_million_tokens = inf", 1, "price_million_tokens"),
    ] {
        let error = parse("f", text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("f:{line}: {key}: ")), "{text}: {error}");
    }
    let error = parse("f", "port = 1\nport = 2").unwrap_err().to_string();
    assert!(error.starts_with("f:2: ") && error.contains("duplicate"), "{error}");
}

#[test]
fn an_unknown_variable_is_refused_and_the_tests_own_are_not() {
    let error = refuse_unknown(&env(&[("KVIT_KV_BLOKS", "1")])).unwrap_err().to_string();
    assert_eq!(error, "environment: unknown variable `KVIT_KV_BLOKS`; did you mean `KVIT_KV_BLOCKS`?");
    refuse_unknown(&env(&[("KVIT_TEST_MODEL", "x"), ("KVIT_SERVER", "x"), ("KVITE", "x"), ("PATH", "x")])).unwrap();
}

#[test]
fn a_variable_of_the_wrong_kind_is_named() {
    let error = read_error(&[("KVIT_PORT", "many")]);
    assert!(error.starts_with("environment: KVIT_PORT: `many` is not a NUMBER"), "{error}");
    let error = read_error(&[("KVIT_ALLOW_HALF_CLOSE", "perhaps")]);
    assert!(error.starts_with("environment: KVIT_ALLOW_HALF_CLOSE: "), "{error}");
}

fn read_error(pairs: &[(&str, &str)]) -> String {
    load(ServeFlags::default(), &env(pairs), None).unwrap_err().to_string()
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    for (pairs, name) in [
        (&[("KVIT_BLOCK_TOKENS", "24")], "block_tokens"),
        (&[("KVIT_KV_BLOCKS", "0")], "kv_blocks"),
        (&[("KVIT_MAX_RUNNING", "257")], "max_running"),
        (&[("KVIT_CLIENT_LOST_AFTER_MS", "1999")], "client_lost_after_ms"),
        (&[("KVIT_UNREAD_MAX_MS", "0")], "unread_max_ms"),
        (&[("KVIT_DEADLINE_CHECK_PERCENT", "101")], "deadline_check_percent"),
        (&[("KVIT_JOURNAL_FILES", "0")], "journal_files"),
    ] {
        let error = read_error(pairs);
        assert!(error.starts_with(name), "{error}");
    }
}

#[test]
fn a_journal_in_files_needs_a_ring_to_take_records_from() {
    let error = read_error(&[("KVIT_JOURNAL_RECORDS", "0"), ("KVIT_JOURNAL_DIR", "folder")]);
    assert!(error.starts_with("journal_records must be at least 1 where there is a journal_dir"), "{error}");
    assert!(load(ServeFlags::default(), &env(&[("KVIT_JOURNAL_RECORDS", "0")]), None).is_ok());
}

#[test]
fn defaults_hold_and_every_option_reads_its_own_default() {
    let defaults = load(ServeFlags::default(), &[], None).unwrap();
    let mut flags = ServeFlags::default();
    let unset = ["model", "name", "worker", "store", "store_key_file", "journal_dir", "otlp_headers_file", "nvml"];
    for option in OPTIONS.iter().filter(|o| !unset.contains(&o.key)) {
        let default = (option.default)();
        flags.set(option.key, &default).unwrap().unwrap_or_else(|why| panic!("{}: {why}", option.key));
    }
    assert_eq!(flags.fill(), defaults);
    assert!(flags_of_nothing().set("no_such_option", "1").is_none());
}

fn flags_of_nothing() -> ServeFlags {
    ServeFlags::default()
}
