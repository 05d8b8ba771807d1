//! Webhooks from the configuration file: its `[[webhook]]` tables. Read by hand, as the API keys are, and for the same reason.
//!
//! Invariant: every error says where it stands and which field it is; none has a secret in it.
// contract: C-27

use gateway::{HookEvent, Webhook, Webhooks};
use lifecycle::Tenant;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, OPTIONS, nearest};

/// The tables' name in the file.
pub const TABLE: &str = "webhook";
/// The fields of one, each with its default and its sentence.
pub const FIELDS: [(&str, &str, &str); 4] = [
    ("url", "none", "Where it is sent: an http or https URL; no two webhooks have the same."),
    ("secret", "none", "What it is signed with: `whsec_` and the base64 of 24 to 64 bytes. Whoever reads the file has it."),
    ("tenants", "all", "Whose background runs it tells of: a list of tenants."),
    ("events", "all", "Which ends it tells of: a list of `completed`, `failed`, `incomplete` and `cancelled`."),
];

type Spanned<T> = toml::Spanned<T>;

/// The webhooks that the file lists; `place` says where in it a byte is.
///
/// # Errors
/// The first table that is no webhook, or not beside the others.
pub(super) fn read(value: &Spanned<DeValue<'_>>, place: &dyn Fn(usize) -> String) -> Result<Webhooks, ConfigError> {
    let wrong = |at: usize, why: &str| ConfigError::Value { place: place(at), name: TABLE.to_owned(), why: why.to_owned() };
    let tables = value.get_ref().as_array().ok_or_else(|| wrong(value.span().start, "must be written as tables `[[webhook]]`"))?;
    let mut webhooks = Webhooks::default();
    for table in tables {
        let at = table.span().start;
        let fields = table.get_ref().as_table().ok_or_else(|| wrong(at, "must be written as tables `[[webhook]]`"))?;
        webhooks.add(webhook(fields, at, place)?).map_err(|why| wrong(at, why))?;
    }
    Ok(webhooks)
}

fn webhook(table: &DeTable<'_>, at: usize, place: &dyn Fn(usize) -> String) -> Result<Webhook, ConfigError> {
    let wrong =
        |at: usize, field: &str, why: &str| ConfigError::Value { place: place(at), name: format!("{TABLE}: {field}"), why: why.to_owned() };
    for field in table.keys() {
        let word = field.get_ref().as_ref();
        if OPTIONS.iter().any(|option| option.key == word) {
            return Err(wrong(field.span().start, word, "is an option and none of a webhook: options stand above the first table"));
        }
        if !FIELDS.iter().any(|(known, ..)| *known == word) {
            return Err(ConfigError::Unknown {
                place: place(field.span().start),
                what: "field of [[webhook]]",
                name: word.to_owned(),
                nearest: nearest(word, FIELDS.iter().map(|(known, ..)| *known)),
            });
        }
    }
    let start = |field: &str| table.get(field).map_or(at, |value| value.span().start);
    let text = |field: &str| match table.get(field) {
        None => Err(wrong(at, field, "is missing")),
        Some(value) => value.get_ref().as_str().ok_or_else(|| wrong(start(field), field, "must be a text in quotes")),
    };
    let tenants = list(table, "tenants", &wrong)?;
    let tenants = tenants.into_iter().map(|(at, name)| Tenant::parse(name).map_err(|why| wrong(at, "tenants", &why.to_string())));
    let events = list(table, "events", &wrong)?.into_iter().map(|(at, word)| {
        let event = HookEvent::ALL.into_iter().find(|event| event.as_str() == word);
        event.ok_or_else(|| wrong(at, "events", "must be of completed, failed, incomplete and cancelled"))
    });
    let (tenants, events) = (tenants.collect::<Result<_, _>>()?, events.collect::<Result<_, _>>()?);
    Webhook::new(text("url")?, text("secret")?, tenants, events).map_err(|(field, why)| wrong(start(field), field, why))
}

/// The texts of a list, each with its place; none if there is no list, which means all. An empty list would look like none and mean all.
fn list<'a>(
    table: &'a DeTable<'_>,
    field: &str,
    wrong: &dyn Fn(usize, &str, &str) -> ConfigError,
) -> Result<Vec<(usize, &'a str)>, ConfigError> {
    let Some(value) = table.get(field) else { return Ok(Vec::new()) };
    let at = value.span().start;
    let what = "must be a list of texts in quotes, with one at least";
    let all = value.get_ref().as_array().filter(|all| !all.is_empty()).ok_or_else(|| wrong(at, field, what))?;
    let text = |value: &'a Spanned<DeValue<'_>>| {
        value.get_ref().as_str().map(|text| (value.span().start, text)).ok_or_else(|| wrong(value.span().start, field, what))
    };
    all.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::super::file::parse;
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn webhooks_stand_behind_the_options() {
        let text = format!(
            "port = 1\n[[webhook]]\nurl = \"https://a.example/h\"\nsecret = \"{SECRET}\"\n\n[[webhook]]\nurl = \"http://127.0.0.1:1/\"\n\
             secret = \"{SECRET}\"\ntenants = [\"one\", \"two\"]\nevents = [\"failed\"]\n"
        );
        let file = parse("f", &text).expect("it is right");
        let mut expected = Webhooks::default();
        expected.add(Webhook::new("https://a.example/h", SECRET, vec![], vec![]).expect("one")).expect("added");
        let tenants = ["one", "two"].map(|name| Tenant::parse(name).expect("a name")).to_vec();
        expected.add(Webhook::new("http://127.0.0.1:1/", SECRET, tenants, vec![HookEvent::Failed]).expect("one")).expect("added");
        assert_eq!((file.flags.port, file.webhooks), (Some(1), expected));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_without_the_secret() {
        let (url, secret) = ("url = \"https://a.example/h\"", format!("secret = \"{SECRET}\""));
        for (text, said) in [
            (format!("[[webhook]]\n{secret}"), "f:1: webhook: url: is missing"),
            (format!("[[webhook]]\n{url}"), "f:1: webhook: secret: is missing"),
            (format!("[[webhook]]\nurl = \"ftp://a\"\n{secret}"), "f:2: webhook: url: must be an http or https URL"),
            (format!("[[webhook]]\n{url}\nsecret = \"{}\"", &SECRET[6..]), "f:3: webhook: secret: must begin with whsec_"),
            (format!("[[webhook]]\n{url}\nsecret = [\"{SECRET}\"]"), "f:3: webhook: secret: must be a text in quotes"),
            (format!("[[webhook]]\n{url}\n{secret}\nevents = [\"done\"]"), "f:4: webhook: events: must be of completed"),
            (format!("[[webhook]]\n{url}\n{secret}\nevents = []"), "f:4: webhook: events: must be a list"),
            (format!("[[webhook]]\n{url}\n{secret}\ntenants = [\"a b\"]"), "f:4: webhook: tenants: has ' '"),
            (format!("[[webhook]]\n{url}\n{secret}\nport = 1"), "f:4: webhook: port: is an option"),
            (format!("[[webhook]]\n{url}\nsecrt = \"{SECRET}\""), "f:3: unknown field of [[webhook]] `secrt`; did you mean `secret`?"),
            (format!("[[webhook]]\n{url}\n{secret}\n[[webhook]]\n{url}\n{secret}"), "f:4: webhook: has the URL of another webhook"),
            (format!("webhook = \"{SECRET}\""), "f:1: webhook: must be written as tables `[[webhook]]`"),
            ("[[webhooks]]".to_owned(), "f:1: unknown key `webhooks`; did you mean `webhook`?"),
        ] {
            let error = parse("f", &text).expect_err("refused").to_string();
            assert!(error.starts_with(said) && !error.contains(&SECRET[6..]), "{text}\n{error}");
        }
    }
}
