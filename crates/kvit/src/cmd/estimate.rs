//! `kvit estimate`: how many tokens are likely computed in vain while the word of a hang-up travels.

use lifecycle::Estimate;
use serde_json::json;

use crate::cli::EstimateArgs;
use crate::failure::Failure;
use crate::out;

/// Prints rate × latency, and that it is no bound.
///
/// # Errors
/// A rate or latency that is no number of 0 or more.
pub fn run(args: &EstimateArgs) -> Result<(), Failure> {
    let sane = |x: &f64| x.is_finite() && *x >= 0.0;
    if !sane(&args.rate) {
        return Err(Failure::Usage(format!("--rate {}: must be 0 or more tokens a second", args.rate)));
    }
    if let Some(latency) = args.latency.iter().find(|l| !sane(l)) {
        return Err(Failure::Usage(format!("--latency {latency}: must be 0 or more seconds")));
    }
    let estimate = Estimate::of(args.rate, &args.latency);
    let seconds: f64 = args.latency.iter().sum();
    if args.json {
        return out::json(&json!({
            "object": "estimate", "tokens": estimate.tokens, "rate_tokens_per_s": args.rate, "latency_s": args.latency, "is_bound": false,
        }));
    }
    let hops: Vec<String> = args.latency.iter().map(f64::to_string).collect();
    out::line(&format!(
        "{} tokens/s x ({}) s = {} tokens\n\
         {estimate}: the rate varies, a hop can be slower or lose the word, and a queued step may still run.",
        args.rate,
        hops.join(" + "),
        round(args.rate * seconds),
    ))
}

/// Without the noise of binary fractions.
fn round(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}
