//! Engines that others wrote: one line each, in a flag, a variable and the file, or in the file a `[[upstream]]` table each.
//!
//! Invariant: whatever stands here was read by its own parser, so that a mistake is found before anything starts.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use upstream::config::UpstreamConfig;

use super::value::WORKERS_MAX;

/// Engines that others wrote, which a gateway drives over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstreams(Vec<String>);

impl Upstreams {
    /// Each as it was given, in order: `URL[,WORD=VALUE]...`.
    pub fn each(&self) -> &[String] {
        &self.0
    }

    fn checked(list: Vec<String>) -> Result<Upstreams, String> {
        if list.len() > WORKERS_MAX {
            return Err(format!("names {} upstreams; at most {WORKERS_MAX} are allowed", list.len()));
        }
        match list.iter().find_map(|one| one.parse::<UpstreamConfig>().err()) {
            Some(why) => Err(why.to_string()),
            None => Ok(Upstreams(list)),
        }
    }
}

impl FromIterator<Upstreams> for Upstreams {
    fn from_iter<I: IntoIterator<Item = Upstreams>>(lists: I) -> Upstreams {
        Upstreams(lists.into_iter().flat_map(|list| list.0).collect())
    }
}

impl FromStr for Upstreams {
    type Err = String;

    /// With blanks between them.
    fn from_str(text: &str) -> Result<Self, String> {
        Upstreams::checked(text.split_whitespace().map(str::to_owned).collect())
    }
}

impl fmt::Display for Upstreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.join(" ").fmt(f)
    }
}

impl<'de> Deserialize<'de> for Upstreams {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Upstreams, D::Error> {
        struct Given;
        impl<'de> Visitor<'de> for Given {
            type Value = Upstreams;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text of URLs, or [[upstream]] tables")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Upstreams, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<Upstreams, A::Error> {
                let mut list = Vec::new();
                while let Some(Line(line)) = tables.next_element()? {
                    list.push(line);
                }
                Upstreams::checked(list).map_err(de::Error::custom)
            }
        }
        from.deserialize_any(Given)
    }
}

/// One table as the line that says the same.
struct Line(String);

impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Line, D::Error> {
        struct Table;
        impl<'de> Visitor<'de> for Table {
            type Value = Line;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an [[upstream]] table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Line, A::Error> {
                let (mut url, mut words) = (None, String::new());
                while let Some(name) = fields.next_key::<String>()? {
                    let Texts(values) = fields.next_value()?;
                    if let Some(bad) = values.iter().find(|value| value.contains([',', ' ', '\t', '\n', '\r'])) {
                        return Err(de::Error::custom(format!("{name}: `{bad}` has a comma or a blank in it")));
                    }
                    match (name.as_str(), &*values) {
                        ("url", [one]) => url = Some(one.clone()),
                        _ => values.iter().for_each(|value| words += &format!(",{name}={value}")),
                    }
                }
                let line = url.ok_or_else(|| de::Error::custom("url is missing"))? + &words;
                line.parse::<UpstreamConfig>().map_err(de::Error::custom)?;
                Ok(Line(line))
            }
        }
        from.deserialize_map(Table)
    }
}

/// A text, a number, or a list of texts.
struct Texts(Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Texts, D::Error> {
        struct Given;
        impl<'de> Visitor<'de> for Given {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number or a list of texts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Texts, E> {
                Ok(Texts(vec![number.to_string()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Texts, A::Error> {
                let mut list = Vec::new();
                while let Some(text) = texts.next_element()? {
                    list.push(text);
                }
                Ok(Texts(list))
            }
        }
        from.deserialize_any(Given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct File {
        upstream: Upstreams,
    }

    fn file(text: &str) -> Result<Upstreams, String> {
        toml::from_str::<File>(text).map(|file| file.upstream).map_err(|e| e.message().to_owned())
    }

    #[test]
    fn a_table_says_what_a_line_says() {
        let text = "[[upstream]]\nurl = \"http://a:1\"\nkind = \"vllm\"\nslots = 8\nmodel = [\"x\", \"y\"]\n\n[[upstream]]\nurl = \"http://b:2\"\n";
        let lines = "http://a:1,kind=vllm,model=x,model=y,slots=8 http://b:2".parse::<Upstreams>();
        assert_eq!(file(text), lines);
        assert_eq!(file("upstream = \"http://b:2\""), "http://b:2".parse());
    }

    #[test]
    fn a_mistake_in_a_table_is_named() {
        for (text, says) in [
            ("[[upstream]]\nkind = \"vllm\"\n", "url is missing"),
            ("[[upstream]]\nurl = \"http://a\"\nslot = 8\n", "`slot` is unknown"),
            ("[[upstream]]\nurl = \"http://a\"\nslots = 0\n", "slots `0`"),
            ("[[upstream]]\nurl = \"http://a\"\nname = \"a,kind=vllm\"\n", "a comma or a blank"),
            ("[[upstream]]\nurl = \"http://a\"\nname = true\n", "a text, a number or a list"),
            ("upstream = 7", "[[upstream]]"),
        ] {
            let why = file(text).expect_err(text);
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
