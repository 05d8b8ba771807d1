//! `kvit key`: makes an API key: a random secret for its caller, and the table for the configuration file, which has only the secret's digest.
//!
//! Invariant: the secret is printed once and kept nowhere. It goes to stderr and the table to stdout, so that `kvit key alice >> kvit.toml`
//! puts no secret into the file.

use anyhow::anyhow;
use gateway::{Key, SecretDigest};
use serde_json::json;

use crate::cli::KeyArgs;
use crate::config::key_table;
use crate::failure::Failure;
use crate::out;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;
/// What a secret begins with, so that tools that look for secrets know one.
const PREFIX: &str = "kvit-";

/// Makes a key and prints it.
///
/// # Errors
/// The system gives no randomness, or stdout cannot be written.
pub fn run(args: &KeyArgs) -> Result<(), Failure> {
    let mut random = [0; SECRET_BYTES];
    getrandom::fill(&mut random).map_err(|why| anyhow!("no randomness for a secret: {why}"))?;
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let secret = format!("{PREFIX}{digits}");
    let digest = SecretDigest::of(&secret).map_err(|why| anyhow!("the secret {why}"))?;
    let key = Key { name: args.name.as_str().into(), tenant: args.tenant.clone(), digest, is_operator: args.operator };
    let table = key_table(&key);
    if args.json {
        return out::json(&json!({
            "object": "key", "name": &*key.name, "tenant": key.tenant.as_str(), "operator": key.is_operator,
            "secret": secret, "secret_sha256": digest.to_hex(), "table": table,
        }));
    }
    eprintln!("The secret of `{}`, shown this once; it is sent as `Authorization: Bearer SECRET`:\n\n{secret}\n", key.name);
    eprintln!("And for the end of the configuration file of `kvit serve` or `kvit gateway`:\n");
    out::line(&table)
}
