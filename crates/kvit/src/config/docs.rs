//! The reference of options, printed from the list that the program itself reads.

use serde_json::{Value, json};

use super::options::OptionDoc;
use super::{OPTIONS, OTHER_VARIABLES, commands, keys, webhooks};

/// The default where it is no fixed text.
fn told_default(option: &OptionDoc) -> Option<&'static str> {
    match option.key {
        "threads" | "connection_threads" => Some("one a core"),
        "model" => Some("the cached model"),
        "name" => Some("`worker` or `gateway`"),
        "worker" | "upstream" | "tool_urls" | "store_key_file" | "otlp_headers_file" | "journal_dir" => Some("none"),
        "nvml" => Some("by its usual name"),
        "store" => Some("`NAME.db` in the state folder"),
        "on_disconnect_chat" | "on_disconnect_completions" | "on_disconnect_responses" => Some("empty"),
        _ => None,
    }
}

/// The same for a machine: every option with its three names, and the other variables.
pub fn json() -> Value {
    let option = |o: &OptionDoc| {
        let default = told_default(o).map_or_else(o.default, str::to_owned);
        let flag = format!("--{}", o.key.replace('_', "-"));
        let commands = commands::of(o.key);
        json!({"key": o.key, "commands": commands, "flag": flag, "variable": o.variable(), "value": o.kind.to_lowercase(), "default": default, "about": o.about})
    };
    let variables = OTHER_VARIABLES.iter().map(|(name, about)| json!({"variable": name, "about": about}));
    let keys = keys::FIELDS.iter().map(|(field, default, about)| json!({"field": field, "default": default, "about": about}));
    let hooks = webhooks::FIELDS.iter().map(|(field, default, about)| json!({"field": field, "default": default, "about": about}));
    let words = upstream::WORDS.iter().map(|word| json!({"field": word.name, "default": word.default, "about": word.about}));
    json!({"object": "config", "options": OPTIONS.iter().map(option).collect::<Vec<_>>(), "variables": variables.collect::<Vec<_>>(),
           "key": keys.collect::<Vec<_>>(), "webhook": hooks.collect::<Vec<_>>(), "upstream": words.collect::<Vec<_>>()})
}

/// The part about API keys.
fn keys_markdown() -> String {
    let mut out = format!(
        "\n## API keys\n\n\
         `kvit serve` and `kvit gateway` take API keys from `[[key]]` tables, which stand in the file only, behind the options; at most {}. Without\n\
         any, nobody is asked for a key, and every request is the caller `anonymous` of the tenant `default`. What a key means for a request is in\n\
         [http.md](http.md#keys-and-tenants). They are read once, at the start.\n\n\
         | field | default | what it is |\n|---|---|---|\n",
        gateway::KEYS_MAX
    );
    for (field, default, about) in keys::FIELDS {
        out += &format!("| `{field}` | {default} | {about} |\n");
    }
    out += "\n`kvit key NAME [--tenant TENANT] [--operator] >> kvit.toml` makes a secret, shows it once on the terminal, and writes the table:\n\n\
            ```toml\n[[key]]\nname = \"alice\"\ntenant = \"research\"\n\
            secret_sha256 = \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"\n```\n\n\
            That digest is of the word `secret`, and such a key is nobody's; of a secret of your own it is what\n\
            `printf %s \"$SECRET\" | sha256sum` prints. Take a secret that nobody can guess: a digest hides no other kind.\n";
    out
}

/// The part about webhooks.
fn webhooks_markdown() -> String {
    let mut out = String::from(
        "\n## Webhooks\n\n\
         `kvit serve` and `kvit gateway` tell of the ends of background runs whoever stands in a `[[webhook]]` table; like the keys these stand in\n\
         the file only, behind the options. What is sent, and when again, is in [effects.md](effects.md#webhooks).\n\n\
         | field | default | what it is |\n|---|---|---|\n",
    );
    for (field, default, about) in webhooks::FIELDS {
        out += &format!("| `{field}` | {default} | {about} |\n");
    }
    out
}

/// The part about upstreams.
fn upstreams_markdown() -> String {
    let mut out = String::from(
        "\n## Upstreams\n\n\
         The words that may stand behind an upstream's URL, with a comma before each. In the file an upstream may be a `[[upstream]]` table, behind\n\
         the options, with `url` and the same words as fields; `model` may be a list. What they are for is in [upstreams.md](upstreams.md).\n\n\
         | word | default | what it is |\n|---|---|---|\n",
    );
    for word in upstream::WORDS {
        out += &format!("| `{}` | {} | {} |\n", word.name, word.default, word.about);
    }
    out += "\n```toml\n[[upstream]]\nurl = \"https://engine.example:8000\"\nkind = \"vllm\"\nslots = 64\nkey_file = \"engine.key\"\n```\n";
    out
}

/// docs/config.md.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         Printed by `kvit config`; a test compares the two.\n\n\
         Flags stand over the environment, the environment over the TOML file that `--config FILE` or `KVIT_CONFIG` names (none is read\n\
         otherwise), the file over the defaults. An option has one name: `kv_blocks` in the file is `KVIT_KV_BLOCKS` in the environment and\n\
         `--kv-blocks` on the command line. A name that is not listed here is refused, with the one that was probably meant.\n\n\
         The second column says which command reads it: one file may serve several, but a flag that its command does not read is refused, too.\n\n\
         ## Options\n\n\
         | key | command | value | default | what it does |\n|---|---|---|---|---|\n",
    );
    for option in OPTIONS {
        let default = told_default(option).map_or_else(|| format!("`{}`", (option.default)()), str::to_owned);
        let (key, command, kind) = (option.key, commands::of(option.key).join(", "), option.kind.to_lowercase());
        out += &format!("| `{key}` | {command} | {kind} | {default} | {} |\n", option.about);
    }
    out += &keys_markdown();
    out += &webhooks_markdown();
    out += &upstreams_markdown();
    out += "\n## Every command\n\n| variable | what it does |\n|---|---|\n";
    for (name, about) in OTHER_VARIABLES {
        out += &format!("| `{name}` | {about} |\n");
    }
    out += "\n`KVIT_TEST_MODEL` names the model file that the project's tests use. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean for\n\
            `kvit model pull` what they mean for Hugging Face's own tools.\n";
    out
}
