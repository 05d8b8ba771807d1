use std::time::Instant;
use lifecycle::Sound;
use sim::explore::*;
fn main() {
    let t = Instant::now();
    let want: Vec<String> = std::env::args().skip(1).collect();
    let mut marks = Marks::default(); let mut cells = Cells::default();
    for s in all().into_iter().chain(if want.is_empty() { Vec::new() } else { large() }) {
        if !want.is_empty() && !want.iter().any(|w| s.name == w) { continue; }
        let bound = std::env::var("BOUND").ok().and_then(|b| b.parse().ok()).unwrap_or(400_000);
        let r = explore::<Listening>(&s, bound, &|| t.elapsed());
        println!("{:12} {:?} states {} edges {} depth {} rests {} longest {} {:.1}s", r.setup, r.stopped, r.states, r.edges, r.depth, r.rests, r.longest, r.took.as_secs_f64());
        marks.union(r.marks); cells.union(&r.cells);
        if let Some(f) = &r.found { println!("{}", story::<Sound>(&s, f).join("\n")); println!("{:?}", f.path); }
    }
    println!("missing {:?}", marks.missing()); let a = cells.account(); println!("met {} excused {} holes {:#?} lies {:?}", a.met, a.excused, a.holes, a.lies);
}
