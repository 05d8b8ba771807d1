use std::time::Instant;
fn main() { let t = Instant::now();
 for e in sim::museum::EXHIBITS { let c = e.catch(&|| t.elapsed()); println!("== {} {} want {} steps {} states {} {:?} {:.1}s", e.name, e.is_caught(&c), e.clause, c.steps(), c.report.states, c.report.stopped, c.report.took.as_secs_f64()); println!("{}", c.story.join("\n")); } }
