//! Which numbers of an engine say what: profiles, as files of a few lines. Those of known engines are built in; one for any other engine is
//! written in the same form and named with `--profile FILE`.
//!
//! Invariant: a quantity is the sum of all samples that are named and there; a sample that is no count makes the quantity unknown.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::grpc::SERVICES;
use super::result::Look;

/// Longest page of counters that is read, in bytes.
pub const PAGE_BYTES_MAX: usize = 8 << 20;

/// Built in, in the order in which they are looked for.
const BUILT_IN: [&str; 6] = [
    include_str!("../../profiles/kvit.toml"),
    include_str!("../../profiles/vllm.toml"),
    include_str!("../../profiles/sglang.toml"),
    include_str!("../../profiles/llamacpp.toml"),
    include_str!("../../profiles/tgi.toml"),
    include_str!("../../profiles/dynamo.toml"),
];

/// Samples of a metric.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// Its name.
    pub metric: String,
    /// Labels that a sample must have, with these values.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What its value is multiplied by.
    #[serde(default = "one")]
    pub scale: f64,
}

fn one() -> f64 {
    1.0
}

/// How a request is cancelled by name.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelBy {
    /// The path of a POST; `{id}` is the request's id.
    pub path: String,
    /// What is posted, as JSON; `{id}` again.
    #[serde(default)]
    pub body: String,
    /// The status of a cancel that was taken.
    #[serde(default = "ok")]
    pub status: u16,
    /// Whether such an answer says that it was cancelled, and not only that it was heard.
    #[serde(default = "yes")]
    pub proves: bool,
}

fn ok() -> u16 {
    200
}

fn yes() -> bool {
    true
}

fn metrics() -> String {
    "/metrics".to_owned()
}

/// How an engine's counters are read.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// What it is called.
    pub name: String,
    /// A metric that only this engine has.
    pub detect: String,
    /// Where the counters are.
    pub path: String,
    /// Requests that are computed.
    pub running: Vec<Samples>,
    /// Requests that wait.
    pub waiting: Vec<Samples>,
    /// Used part of the KV memory, 0 to 1.
    pub kv_used: Vec<Samples>,
    /// Blocks or positions that requests hold, without what is only cached.
    pub kv_held: Vec<Samples>,
    /// Tokens generated since the start.
    pub generated: Vec<Samples>,
    /// Prompt tokens computed since the start.
    pub prompted: Vec<Samples>,
    /// Steps computed since the start.
    pub steps: Vec<Samples>,
    /// Requests that were given to it since the start.
    pub asked: Vec<Samples>,
    /// Entries of what is kept for each request.
    pub per_request: Vec<Samples>,
    /// Sums move only when a request ends.
    pub sums_move_at_end: bool,
    /// How old the gauges may be, in milliseconds.
    pub stale_ms: u64,
    /// Least time between two looks, in milliseconds.
    pub look_every_ms: u64,
    /// Looking keeps the engine from noticing closed connections.
    pub disturbs: bool,
    /// How a request is cancelled by name, where that can be.
    pub cancel: Option<CancelBy>,
    /// The field of a request by which it carries a deadline, in milliseconds.
    pub deadline: Option<String>,
    /// The gRPC service on the same port by which a run is asked for, too: one of [`SERVICES`].
    pub grpc: Option<String>,
    /// Where the stack keeps a record of a request: the path of a GET; `{id}` is its id.
    pub record: Option<String>,
}

impl Profile {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with the text, with its line.
    pub fn parse(text: &str) -> Result<Profile, String> {
        let mut profile: Profile = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
        if profile.name.is_empty() {
            return Err("`name` is missing".to_owned());
        }
        if profile.running.is_empty() && profile.generated.is_empty() {
            return Err("neither `running` nor `generated` says anything: name at least one metric in one of them".to_owned());
        }
        if let Some(service) = profile.grpc.as_deref().filter(|service| !SERVICES.contains(service)) {
            return Err(format!("the gRPC service `{service}` is none that is spoken here: {}", SERVICES.join(", ")));
        }
        if profile.path.is_empty() {
            profile.path = metrics();
        }
        Ok(profile)
    }

    /// Those that are built in.
    pub fn built_in() -> Vec<Profile> {
        let read = |text: &&str| match Profile::parse(text) {
            Ok(profile) => profile,
            Err(why) => unreachable!("a test reads every built-in profile: {why}"),
        };
        BUILT_IN.iter().map(read).collect()
    }

    /// The built-in one of this name.
    pub fn named(name: &str) -> Option<Profile> {
        Profile::built_in().into_iter().find(|profile| profile.name == name)
    }

    /// The built-in one whose counters these are.
    pub fn whose(page: &str) -> Option<Profile> {
        let has = |metric: &str| samples(page).any(|sample| sample.name == metric);
        Profile::built_in().into_iter().find(|profile| has(&profile.detect))
    }

    /// What a page of counters says.
    pub fn read(&self, page: &str) -> Look {
        let page: Vec<Sample<'_>> = samples(page).collect();
        Look {
            running: sum(&self.running, &page),
            waiting: sum(&self.waiting, &page),
            kv_used: sum(&self.kv_used, &page),
            kv_held: sum(&self.kv_held, &page),
            generated: sum(&self.generated, &page),
            prompted: sum(&self.prompted, &page),
            steps: sum(&self.steps, &page),
            asked: sum(&self.asked, &page),
            per_request: sum(&self.per_request, &page),
            ..Look::default()
        }
    }
}

/// The sum of what is there; `None` if nothing is, or something is no number.
fn sum(wanted: &[Samples], page: &[Sample<'_>]) -> Option<f64> {
    let mut total = None;
    for of in wanted {
        for sample in page.iter().filter(|sample| sample.name == of.metric && sample.has(&of.labels)) {
            let value = sample.value.filter(|value| value.is_finite() && *value >= 0.0)?;
            total = Some(total.unwrap_or(0.0) + value * of.scale);
        }
    }
    total
}

/// A line of Prometheus' text format (version 0.0.4, and OpenMetrics as far as it is the same).
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: Option<f64>,
}

impl Sample<'_> {
    fn has(&self, wanted: &BTreeMap<String, String>) -> bool {
        wanted.iter().all(|(name, value)| label(self.labels, name).is_some_and(|is| is == *value))
    }
}

/// The value of a label, with its escapes undone.
fn label(labels: &str, name: &str) -> Option<String> {
    let mut rest = labels;
    while let Some((key, after)) = rest.split_once("=\"") {
        let (mut value, mut chars) = (String::new(), after.char_indices());
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        if key.trim_matches([',', ' ']) == name {
            return Some(value);
        }
        rest = &after[end + 1..];
    }
    None
}

fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(|line| {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return None;
        }
        let (name, labels, rest) = match line.split_once('{') {
            // A label's value may have a brace in it: the last one ends them.
            Some((name, rest)) => rest.rsplit_once('}').map(|(labels, rest)| (name, labels, rest))?,
            None => line.split_once(char::is_whitespace).map(|(name, rest)| (name, "", rest))?,
        };
        let value = rest.split_whitespace().next().and_then(|value| value.parse().ok());
        Some(Sample { name: name.trim(), labels, value })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_profile_is_read_and_found_by_its_own_counters() {
        for text in BUILT_IN {
            let profile = Profile::parse(text).expect("a profile");
            let page = format!("# HELP x y\n{} 3\n", profile.detect);
            assert_eq!(Profile::whose(&page), Some(profile));
        }
        assert_eq!(Profile::whose("up 1\n"), None);
        assert_eq!(Profile::whose(""), None);
    }

    #[test]
    fn samples_are_summed_by_name_and_labels() {
        let page = "kvit_kv_pool_blocks 64\nkvit_worker_attempts{state=\"running\"} 2\nkvit_worker_attempts{worker=\"a}b\",state=\"running\"} 3\n\
                    kvit_worker_attempts{state=\"stopping\"} 1\nkvit_worker_attempts{state=\"queued\"} 7\nkvit_tokens_generated_total 1e3 1700000000\n";
        let look = Profile::named("kvit").expect("it is built in").read(page);
        assert_eq!((look.running, look.waiting, look.generated, look.kv_held), (Some(6.0), Some(7.0), Some(1000.0), None));
    }

    #[test]
    fn what_is_no_count_is_unknown_and_not_smaller() {
        let profile = Profile::named("vllm").expect("it is built in");
        for page in ["vllm:num_requests_running NaN\n", "vllm:num_requests_running -1\n", "vllm:num_requests_running many\n", "junk{\n"] {
            assert_eq!(profile.read(page).running, None, "{page}");
        }
        let page = "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} +Inf\n";
        assert_eq!(profile.read(page).running, None);
    }

    #[test]
    fn a_profile_of_ones_own_needs_few_lines_and_a_mistake_is_named() {
        let own = "name = \"mine\"\nrunning = [{ metric = \"jobs\", labels = { kind = \"a \\\"b\\\"\" }, scale = 0.5 }]\n";
        let profile = Profile::parse(own).expect("a profile");
        assert_eq!(profile.path, "/metrics");
        assert_eq!(profile.read("jobs{kind=\"a \\\"b\\\"\"} 4\njobs{kind=\"c\"} 9\n").running, Some(2.0));
        for (text, says) in [
            ("", "`name`"),
            ("name = \"x\"", "neither"),
            ("name = \"x\"\nruning = []", "runing"),
            ("name = 7", "name"),
            ("name = \"x\"\nrunning = [{ metric = \"a\" }]\ngrpc = \"y\"", "`y` is none that is spoken"),
        ] {
            assert!(Profile::parse(text).expect_err(text).contains(says), "{text}");
        }
    }
}
