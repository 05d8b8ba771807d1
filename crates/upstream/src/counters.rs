//! The few gauges of an engine that matter here, out of its Prometheus text.
//!
//! Invariant: a quantity is read only if every place that a request can be in is counted; a value that cannot be a count makes the whole
//! quantity unknown, never smaller.
// field: F-65

use super::kind::Kind;

/// What an engine's counters show at one look, summed over its label sets.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Reading {
    /// Requests that are computed.
    pub running: Option<u64>,
    /// Requests that wait, wherever they do.
    pub waiting: Option<u64>,
    /// Used part of the KV memory, 0 to 1; of several engines the largest.
    pub kv_usage: Option<f64>,
    /// Tokens generated since the engine's start.
    pub generated: Option<u64>,
}

impl Reading {
    /// All requests that the engine has.
    pub fn present(&self) -> Option<u64> {
        self.running?.checked_add(self.waiting?)
    }
}

/// The names of one kind's metrics. Of `running` and `waiting`, the first must be there, and all that are there are summed.
struct Names {
    running: &'static [&'static str],
    waiting: &'static [&'static str],
    kv_usage: &'static [&'static str],
    generated: &'static [&'static str],
}

const VLLM: Names = Names {
    running: &["vllm:num_requests_running"],
    // Older releases counted swapped ones apart.
    waiting: &["vllm:num_requests_waiting", "vllm:num_requests_swapped"],
    kv_usage: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
    generated: &["vllm:generation_tokens_total"],
};
const SGLANG: Names = Names {
    running: &["sglang:num_running_reqs"],
    waiting: &[
        "sglang:num_queue_reqs",
        "sglang:num_grammar_queue_reqs",
        "sglang:num_prefill_prealloc_queue_reqs",
        "sglang:num_prefill_inflight_queue_reqs",
        "sglang:num_decode_prealloc_queue_reqs",
        "sglang:num_decode_transfer_queue_reqs",
    ],
    kv_usage: &["sglang:token_usage"],
    generated: &["sglang:generation_tokens_total"],
};
const LLAMA_CPP: Names = Names {
    running: &["llamacpp:requests_processing"],
    waiting: &["llamacpp:requests_deferred"],
    kv_usage: &["llamacpp:kv_cache_usage_ratio"],
    generated: &["llamacpp:tokens_predicted_total"],
};

fn names(kind: Kind) -> Option<&'static Names> {
    match kind {
        Kind::Vllm => Some(&VLLM),
        Kind::Sglang => Some(&SGLANG),
        Kind::LlamaCpp => Some(&LLAMA_CPP),
        Kind::Kvit | Kind::OpenAi => None,
    }
}

/// Which kind's counters these are, if any.
pub fn whose(text: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| read(*kind, text).running.is_some())
}

/// Reads the counters of this kind.
pub fn read(kind: Kind, text: &str) -> Reading {
    let Some(names) = names(kind) else { return Reading::default() };
    let (mut running, mut waiting, mut generated) = (Sum::default(), Sum::default(), Sum::default());
    let mut kv_usage: Option<f64> = None;
    for (name, value) in text.lines().filter_map(sample) {
        running.add(names.running, name, value);
        waiting.add(names.waiting, name, value);
        generated.add(names.generated, name, value);
        if names.kv_usage.contains(&name) && value.is_some_and(f64::is_finite) {
            kv_usage = Some(kv_usage.unwrap_or(0.0).max(value.unwrap_or(0.0)));
        }
    }
    Reading { running: running.value(), waiting: waiting.value(), kv_usage, generated: generated.value() }
}

/// How many engines these counters are of: label sets of the gauge that each of them has.
pub fn engines(kind: Kind, text: &str) -> usize {
    let Some(first) = names(kind).and_then(|names| names.running.first()) else { return 0 };
    text.lines().filter_map(sample).filter(|(name, _)| name == first).count()
}

/// When the process began that shows these counters, in milliseconds of the calendar, if it says that: another moment is another process.
pub fn started(text: &str) -> Option<u64> {
    let (_, seconds) = text.lines().filter_map(sample).find(|(name, _)| *name == "process_start_time_seconds")?;
    seconds.filter(|seconds| (0.0..9e12).contains(seconds)).map(|seconds| (seconds * 1000.0) as u64)
}

/// Which kvit shows these counters, by the gauge that says what runs there: its release and its life.
pub fn kvit(text: &str) -> Option<(&str, &str)> {
    let line = text.lines().find_map(|line| line.strip_prefix("kvit_build_info{"))?;
    let label = |name: &str| {
        let (_, value) = line.split_once(name)?;
        value.split_once('"').map(|(value, _)| value).filter(|value| !value.is_empty())
    };
    Some((label("version=\"")?, label("incarnation=\"")?))
}

/// A sum of counts over label sets.
#[derive(Default)]
struct Sum {
    seen: bool,
    wrong: bool,
    sum: u64,
}

impl Sum {
    fn add(&mut self, names: &[&str], name: &str, value: Option<f64>) {
        let Some(at) = names.iter().position(|n| *n == name) else { return };
        self.seen |= at == 0;
        match value {
            Some(v) if v.fract() == 0.0 && (0.0..9e15).contains(&v) => self.sum = self.sum.saturating_add(v as u64),
            _ => self.wrong = true,
        }
    }

    fn value(&self) -> Option<u64> {
        (self.seen && !self.wrong).then_some(self.sum)
    }
}

/// `name{labels} value [time]`; the value is `None` where it is no number.
fn sample(line: &str) -> Option<(&str, Option<f64>)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
    let (name, mut rest) = line.split_at(end);
    if rest.trim_start().starts_with('{') {
        rest = behind_labels(rest.trim_start())?;
    }
    Some((name, rest.split_ascii_whitespace().next().and_then(|value| value.parse().ok())))
}

/// What stands behind `{...}`, whose quoted values may have braces in them.
fn behind_labels(text: &str) -> Option<&str> {
    let (mut quoted, mut escaped) = (false, false);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return text.get(i + 1..),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kvit_says_which_it_is_and_in_which_life() {
        let page = "# HELP kvit_build_info What runs here.\nkvit_build_info{version=\"0.1.0\",incarnation=\"00ff\"} 1\nkvit_runs 0\n";
        assert_eq!(kvit(page), Some(("0.1.0", "00ff")));
        for text in ["", "kvit_build_info 1\n", "kvit_build_info{version=\"1\"} 1\n", "kvit_build_info{version=\"\",incarnation=\"\"} 1\n"]
        {
            assert_eq!(kvit(text), None, "{text}");
        }
        assert_eq!((whose(page), read(Kind::Kvit, page)), (None, Reading::default()));
    }

    #[test]
    fn vllm_over_two_engines() {
        let text = "# HELP vllm:num_requests_running Number\n# TYPE vllm:num_requests_running gauge\n\
            vllm:num_requests_running{engine=\"0\",model_name=\"a}b\\\"c\"} 3.0\nvllm:num_requests_running{engine=\"1\"} 1.0\n\
            vllm:num_requests_waiting{engine=\"0\"} 2.0\nvllm:num_requests_waiting{engine=\"1\"} 0.0\n\
            vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 2.0\n\
            vllm:kv_cache_usage_perc{engine=\"0\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.5 1700000000\n\
            vllm:generation_tokens_total{engine=\"0\"} 1.2e+03\n";
        assert_eq!((engines(Kind::Vllm, text), engines(Kind::LlamaCpp, text), engines(Kind::OpenAi, text)), (2, 0, 0));
        let reading = read(Kind::Vllm, text);
        let all = Reading { running: Some(4), waiting: Some(2), kv_usage: Some(0.5), generated: Some(1200) };
        assert_eq!((reading, reading.present(), whose(text)), (all, Some(6), Some(Kind::Vllm)));
    }

    #[test]
    fn sglang_counts_every_queue() {
        let text = "sglang:num_running_reqs{tp_rank=\"0\"} 1\nsglang:num_queue_reqs{tp_rank=\"0\"} 2\n\
            sglang:num_grammar_queue_reqs 4\nsglang:token_usage 0.1\n";
        assert_eq!(read(Kind::Sglang, text).present(), Some(7));
        assert_eq!(whose(text), Some(Kind::Sglang));
    }

    #[test]
    fn llama_cpp() {
        let text = "llamacpp:requests_processing 2\nllamacpp:requests_deferred 5\nllamacpp:n_decode_total 9\n";
        assert_eq!((read(Kind::LlamaCpp, text).present(), whose(text)), (Some(7), Some(Kind::LlamaCpp)));
    }

    #[test]
    fn when_a_process_began() {
        let page = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.76e+09\nvllm:num_requests_running 0\n";
        assert_eq!(started(page), Some(1_760_000_000_000));
        for text in ["", "process_start_time_seconds x\n", "process_start_time_seconds -1\n", "process_start_time_seconds NaN\n"] {
            assert_eq!(started(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_missing_or_impossible_is_unknown() {
        for text in [
            "",
            "vllm:num_requests_running 1\n",
            "vllm:num_requests_running 1\nvllm:num_requests_waiting -1\n",
            "vllm:num_requests_running NaN\nvllm:num_requests_waiting 0\n",
            "vllm:num_requests_running 0.5\nvllm:num_requests_waiting 0\n",
            "vllm:num_requests_running 0\nvllm:num_requests_swapped 0\n",
            "vllm:num_requests_running{a=\"x 0\nvllm:num_requests_waiting 0\n",
            "vllm:num_requests_running 1\nvllm:num_requests_running\nvllm:num_requests_waiting x\n",
            "<html>vllm:num_requests_running 0</html>",
        ] {
            assert_eq!(read(Kind::Vllm, text).present(), None, "{text}");
        }
        assert_eq!(whose("vllm_router:num_requests_running 0\n"), None);
        assert_eq!(read(Kind::OpenAi, "vllm:num_requests_running 0\n"), Reading::default());
    }
}
