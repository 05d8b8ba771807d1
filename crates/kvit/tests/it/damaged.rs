//! A cached model whose bytes have changed since it was fetched: nobody is told that it is verified, and nobody is served from it.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Said, kvit, said};
use crate::server::real_model;

const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const BYTES: u64 = 98_362_432;
const SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// Where the default model stands in a cache.
fn cached(cache: &Path) -> PathBuf {
    std::fs::create_dir_all(cache.join("models")).unwrap();
    cache.join("models").join(FILE)
}

fn ask(cache: &Path, args: &[&str]) -> Said {
    said(kvit(cache, args).output().unwrap())
}

/// What `model list` says of the only file.
fn listed(cache: &Path) -> (Value, Value) {
    let said = ask(cache, &["model", "list", "--json"]);
    let json: Value = serde_json::from_str(&said.out).unwrap();
    (json["data"][0]["verified"].clone(), json["data"][0]["sha256"].clone())
}

/// Every command that takes the default model finds it damaged, moves it aside, says where, and does not go on without another.
fn is_found_by_every_command(cache: &Path, damage: impl Fn(&Path)) {
    for args in [&["model", "pull", "--json"][..], &["model", "pull"], &["serve", "--port", "0"], &["bench", "forward"], &["demo"]] {
        let (file, aside) = (cached(cache), cache.join("models").join(format!("{FILE}.damaged")));
        damage(&file);
        assert_eq!(listed(cache).0, false);
        let said = ask(cache, args);
        assert_eq!((said.code, said.out.as_str()), (1, ""), "{args:?}: {}", said.err);
        for part in [
            format!("the cached model {} is damaged: {BYTES} bytes with SHA-256 ", file.display()),
            format!("expected {BYTES} bytes with {SHA256}; moved to {}", aside.display()),
            format!("the model {FILE} could not be fetched"),
            format!("A damaged copy that stood there is at {}", aside.display()),
        ] {
            assert!(said.err.contains(&part), "{args:?}: {part} in {}", said.err);
        }
        assert!(!file.exists(), "{args:?}: what is damaged keeps no name under which it could be taken");
        std::fs::rename(aside, file).unwrap();
    }
}

#[test]
fn a_file_of_the_right_length_and_other_bytes_is_no_model() {
    let dir = tempfile::tempdir().unwrap();
    is_found_by_every_command(dir.path(), |file| {
        let file = std::fs::File::options().create(true).truncate(false).write(true).open(file).unwrap();
        file.set_len(BYTES).unwrap();
    });
}

#[test]
#[ignore = "needs the real model: cargo xtask test"]
fn one_flipped_bit_is_found_and_the_digest_that_is_told_was_computed() {
    let dir = tempfile::tempdir().unwrap();
    let file = cached(dir.path());
    std::fs::copy(real_model(), &file).unwrap();
    assert_eq!(listed(dir.path()), (true.into(), SHA256.into()));
    let pulled = ask(dir.path(), &["model", "pull", "--json"]);
    let pulled: Value = serde_json::from_str(&pulled.out).unwrap();
    assert_eq!((&pulled["sha256"], &pulled["source"], &pulled["moved_aside"]), (&SHA256.into(), &"cache".into(), &Value::Null));
    flip(&file);
    is_found_by_every_command(dir.path(), |_| ());
    assert_ne!(listed(dir.path()).1, SHA256);
    // The same bytes as a caller's own file are the caller's affair: they are not compared with the default's digest.
    let named = ask(dir.path(), &["model", "inspect", file.to_str().unwrap()]);
    assert_eq!(named.code, 0, "{}", named.err);
    flip(&file);
    assert_eq!(ask(dir.path(), &["model", "pull"]).out.trim_end(), file.to_str().unwrap(), "the bit is back, and so is the model");
}

/// Flips one bit in the middle of the weights.
fn flip(path: &Path) {
    let mut file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(BYTES / 2)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(BYTES / 2)).unwrap();
    file.write_all(&[byte[0] ^ 1]).unwrap();
}
