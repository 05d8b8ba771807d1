//! API keys from the configuration file: its `[[key]]` tables.
//!
//! They are read by hand and not by serde, whose messages repeat the value that they complain about: here that may be a secret.
//!
//! Invariant: every error says where it stands and which field it is; none has a secret or a digest in it.
// contract: C-30

use gateway::{Key, Keys, SecretDigest};
use lifecycle::Tenant;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, OPTIONS, nearest};

/// The tables' name in the file.
pub const TABLE: &str = "key";
/// The fields of one, each with its default and its sentence.
pub const FIELDS: [(&str, &str, &str); 5] = [
    ("name", "none", "Who calls with it; no two keys have the same. 1 to 64 of A-Z a-z 0-9 . _ : ~ -."),
    ("tenant", "`default`", "Whose runs it sees, and with whom it shares prefixes. The same characters."),
    (
        "secret_sha256",
        "none",
        "SHA-256 of its secret, as 64 hexadecimal digits, so that the secret need not stand in the file. `kvit key` makes both.",
    ),
    ("secret", "none", "In place of that the secret itself: 16 to 256 visible ASCII characters. Whoever reads the file has it."),
    (
        "operator",
        "`false`",
        "Whether it may look at every tenant's runs, and is told the owners of their blocks, and not only its own tenant's; it cancels its own alone.",
    ),
];

type Spanned<T> = toml::Spanned<T>;

/// The keys that the file lists; `place` says where in it a byte is.
///
/// # Errors
/// The first table that is no key, or not beside the others.
pub(super) fn read(value: &Spanned<DeValue<'_>>, place: &dyn Fn(usize) -> String) -> Result<Keys, ConfigError> {
    let wrong = |at: usize, why: &str| ConfigError::Value { place: place(at), name: TABLE.to_owned(), why: why.to_owned() };
    let tables = value.get_ref().as_array().ok_or_else(|| wrong(value.span().start, "must be written as tables `[[key]]`"))?;
    let mut keys = Keys::default();
    for table in tables {
        let at = table.span().start;
        let fields = table.get_ref().as_table().ok_or_else(|| wrong(at, "must be written as tables `[[key]]`"))?;
        keys.add(key(fields, at, place)?).map_err(|why| wrong(at, &why.to_string()))?;
    }
    Ok(keys)
}

fn key(table: &DeTable<'_>, at: usize, place: &dyn Fn(usize) -> String) -> Result<Key, ConfigError> {
    let wrong = |at: usize, field: &str, why: String| ConfigError::Value { place: place(at), name: format!("{TABLE}: {field}"), why };
    for field in table.keys() {
        let word = field.get_ref().as_ref();
        // `name` is an option, too.
        if FIELDS.iter().any(|(known, ..)| *known == word) {
            continue;
        }
        if OPTIONS.iter().any(|option| option.key == word) {
            let why = "is an option and none of a key: options stand above the first [[key]]".to_owned();
            return Err(wrong(field.span().start, word, why));
        }
        return Err(ConfigError::Unknown {
            place: place(field.span().start),
            what: "field of [[key]]",
            name: word.to_owned(),
            nearest: nearest(word, FIELDS.iter().map(|(known, ..)| *known)),
        });
    }
    let text = |field: &str| match table.get(field) {
        None => Ok(None),
        Some(value) => {
            let at = value.span().start;
            value.get_ref().as_str().map(|text| Some((at, text))).ok_or_else(|| wrong(at, field, "must be a text in quotes".to_owned()))
        }
    };
    let tenant_of = |field: &str, (at, text): (usize, &str)| Tenant::parse(text).map_err(|why| wrong(at, field, why.to_string()));
    let Some(name) = text("name")? else { return Err(wrong(at, "name", "is missing".to_owned())) };
    // The same characters and length as a tenant's.
    let name = tenant_of("name", name)?;
    let tenant = text("tenant")?.map_or_else(|| Ok(Tenant::default()), |given| tenant_of("tenant", given))?;
    let read = |field: &str, (at, text): (usize, &str), read: fn(&str) -> Result<SecretDigest, gateway::GatewayError>| {
        read(text).map_err(|why| wrong(at, field, why.to_string()))
    };
    let digest = match (text("secret")?, text("secret_sha256")?) {
        (Some(secret), None) => read("secret", secret, SecretDigest::of)?,
        (None, Some(digest)) => read("secret_sha256", digest, SecretDigest::from_hex)?,
        (None, None) => return Err(wrong(at, "secret_sha256", "is missing; `kvit key` makes one".to_owned())),
        (Some((at, _)), Some(_)) => return Err(wrong(at, "secret", "stands beside secret_sha256: only one of them may".to_owned())),
    };
    let is_operator = match table.get("operator") {
        None => false,
        Some(value) => {
            value.get_ref().as_bool().ok_or_else(|| wrong(value.span().start, "operator", "must be true or false".to_owned()))?
        }
    };
    Ok(Key { name: name.as_str().into(), tenant, digest, is_operator })
}

/// A table as it is pasted into the file.
pub fn table(key: &Key) -> String {
    let operator = if key.is_operator { "operator = true\n" } else { "" };
    let (name, tenant, digest) = (&key.name, &key.tenant, key.digest.to_hex());
    // A name has no character that would have to be escaped.
    format!("[[{TABLE}]]\nname = \"{name}\"\ntenant = \"{tenant}\"\n{operator}secret_sha256 = \"{digest}\"\n")
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;
    use super::*;

    const SECRET: &str = "a-secret-of-somebodys";

    fn why(text: &str) -> String {
        let error = parse("f", text).expect_err("refused").to_string();
        assert!(!error.contains(SECRET) && !error.contains("0123456789abcdef"), "{error}");
        error
    }

    #[test]
    fn keys_stand_behind_the_options_in_either_form() {
        let digest = SecretDigest::of("another-secret-of-somebodys").expect("a secret").to_hex();
        let text = format!(
            "port = 1\n[[key]]\nname = \"a\"\nsecret = \"{SECRET}\"\n\n[[key]]\nname = \"b\"\ntenant = \"t\"\noperator = true\nsecret_sha256 = \"{digest}\"\n"
        );
        let file = parse("f", &text).expect("it is right");
        assert_eq!((file.flags.port, file.keys.len()), (Some(1), 2));
        let mut expected = Keys::default();
        let key = |name: &str, tenant: &str, secret: &str, is_operator| Key {
            name: name.into(),
            tenant: Tenant::parse(tenant).expect("a name"),
            digest: SecretDigest::of(secret).expect("a secret"),
            is_operator,
        };
        expected.add(key("a", "default", SECRET, false)).expect("a key");
        expected.add(key("b", "t", "another-secret-of-somebodys", true)).expect("a key");
        assert_eq!(file.keys, expected);
        assert!(parse("f", "port = 1").expect("it is right").keys.is_empty());
    }

    #[test]
    fn what_is_printed_to_be_pasted_is_read_again() {
        let digest = SecretDigest::of(SECRET).expect("a secret");
        for is_operator in [true, false] {
            let key = Key { name: "a.b:c~d-e_f".into(), tenant: Tenant::parse("t").expect("a name"), digest, is_operator };
            let mut keys = Keys::default();
            keys.add(key.clone()).expect("a key");
            assert_eq!(parse("f", &format!("port = 1\n{}", table(&key))).expect("it is right").keys, keys);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_without_the_secret() {
        let secret = format!("secret = \"{SECRET}\"");
        for (text, said) in [
            (format!("[[key]]\n{secret}"), "f:1: key: name: is missing"),
            ("[[key]]\nname = \"a\"".to_owned(), "f:1: key: secret_sha256: is missing; `kvit key` makes one"),
            (format!("[[key]]\nname = \"a b\"\n{secret}"), "f:2: key: name: "),
            (format!("[[key]]\nname = 1\n{secret}"), "f:2: key: name: must be a text in quotes"),
            (format!("[[key]]\nname = \"a\"\ntenant = \"\"\n{secret}"), "f:3: key: tenant: "),
            (format!("[[key]]\nname = \"a\"\noperator = \"yes\"\n{secret}"), "f:3: key: operator: must be true or false"),
            (format!("[[key]]\nname = \"a\"\n{secret}\nsecret_sha256 = \"\""), "f:3: key: secret: stands beside secret_sha256"),
            ("[[key]]\nname = \"a\"\nsecret = \"short\"".to_owned(), "f:3: key: secret: has 5 bytes; a secret has 16 to 256"),
            (format!("[[key]]\nname = \"a\"\nsecret = \"{SECRET} {SECRET}\""), "f:3: key: secret: has a character"),
            ("[[key]]\nname = \"a\"\nsecret_sha256 = \"0123456789abcdef\"".to_owned(), "f:3: key: secret_sha256: must be the 64"),
            (format!("[[key]]\nname = \"a\"\nsecret_sha256 = \"{SECRET}\""), "f:3: key: secret_sha256: must be the 64"),
            (format!("[[key]]\nname = \"a\"\nsecret = [\"{SECRET}\"]"), "f:3: key: secret: must be a text in quotes"),
            (format!("[[key]]\nname = \"a\"\nsecrt = \"{SECRET}\""), "f:3: unknown field of [[key]] `secrt`; did you mean `secret`?"),
            (format!("[[key]]\nname = \"a\"\n{secret}\nport = 1"), "f:4: key: port: is an option and none of a key"),
            (format!("[[key]]\nname = \"a\"\n{secret}\n[[key]]\nname = \"b\"\n{secret}"), "f:4: key: has the secret of `a`"),
            (format!("[[key]]\nname = \"a\"\n{secret}\n[[key]]\nname = \"a\"\n{secret}"), "f:4: key: `a` is the name of another key"),
            (format!("[key]\nname = \"a\"\n{secret}"), "f:1: key: must be written as tables `[[key]]`"),
            (format!("key = \"{SECRET}\""), "f:1: key: must be written as tables `[[key]]`"),
            (format!("key = [\"{SECRET}\"]"), "f:1: key: must be written as tables `[[key]]`"),
            (format!("[[keys]]\n{secret}"), "f:1: unknown key `keys`; did you mean `key`?"),
            (secret.clone(), "f:1: unknown key `secret`"),
            // What is no TOML, with a secret in it.
            (format!("[[key]]\nname = \"a\"\nsecret = \"{SECRET}"), "f:3: "),
            (format!("[[key]]\nname = \"a\"\nsecret = {SECRET}"), "f:3: "),
            (format!("[[key]]\nname = \"a\"\n{secret}\n{secret}"), "f:4: "),
        ] {
            let error = why(&text);
            assert!(error.starts_with(said), "{text}\n{error}");
        }
    }
}
