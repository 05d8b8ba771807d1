use std::time::Instant;
use sim::explore::*;
fn main() {
    let t = Instant::now();
    let want: Vec<String> = std::env::args().skip(1).collect();
    let bound = std::env::var("BOUND").ok().and_then(|b| b.parse().ok()).unwrap_or(400_000);
    let setups: Vec<Setup> = all().into_iter().chain(if want.is_empty() { Vec::new() } else { large() }).filter(|s| want.is_empty() || want.iter().any(|w| s.name == w)).collect();
    let s = suite(&setups, bound, 2, &|| t.elapsed(), &|r| println!("{:12} {:?} states {} edges {} depth {} rests {} longest {} {:.1}s", r.setup, r.stopped, r.states, r.edges, r.depth, r.rests, r.longest, r.took.as_secs_f64()));
    println!("{}", s.story.join("\n"));
    println!("missing {:?} {:#?}", s.missing, s.cells);
}
