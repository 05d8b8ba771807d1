//! The reference of options, printed from the list that the program itself reads.

use serde_json::{Value, json};

use super::options::OptionDoc;
use super::{OPTIONS, OTHER_VARIABLES, commands};

/// The default where it is no fixed text.
fn told_default(option: &OptionDoc) -> Option<&'static str> {
    match option.key {
        "threads" => Some("one a core"),
        "model" => Some("the cached model"),
        "name" => Some("`worker` or `gateway`"),
        "worker" => Some("none"),
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
    json!({"object": "config", "options": OPTIONS.iter().map(option).collect::<Vec<_>>(), "variables": variables.collect::<Vec<_>>()})
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
    out += "\n## Every command\n\n| variable | what it does |\n|---|---|\n";
    for (name, about) in OTHER_VARIABLES {
        out += &format!("| `{name}` | {about} |\n");
    }
    out += "\n`KVIT_TEST_MODEL` names the model file that the project's tests use. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean for\n\
            `kvit model pull` what they mean for Hugging Face's own tools.\n";
    out
}
