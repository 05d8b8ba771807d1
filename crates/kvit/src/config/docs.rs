//! The reference of options, printed from the list that the program itself reads.

use super::{OPTIONS, OTHER_VARIABLES};

/// docs/config.md.
pub fn markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         Printed by `kvit config`; a test compares the two.\n\n\
         Flags stand over the environment, the environment over the TOML file that `--config FILE` or `KVIT_CONFIG` names (none is read\n\
         otherwise), the file over the defaults. An option has one name: `kv_blocks` in the file is `KVIT_KV_BLOCKS` in the environment and\n\
         `--kv-blocks` on the command line. A name that is not listed here is refused, with the one that was probably meant.\n\n\
         ## `kvit serve`\n\n\
         | key | value | default | what it does |\n|---|---|---|---|\n",
    );
    for option in OPTIONS {
        let default = match option.key {
            "threads" => "one a core".to_owned(),
            "model" => "the cached model".to_owned(),
            _ => format!("`{}`", (option.default)()),
        };
        out += &format!("| `{}` | {} | {default} | {} |\n", option.key, option.kind.to_lowercase(), option.about);
    }
    out += "\n## Every command\n\n| variable | what it does |\n|---|---|\n";
    for (name, about) in OTHER_VARIABLES {
        out += &format!("| `{name}` | {about} |\n");
    }
    out += "\n`KVIT_TEST_MODEL` names the model file that the project's tests use. `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean for\n\
            `kvit model pull` what they mean for Hugging Face's own tools.\n";
    out
}
