use forebay_sim::explore::Run;
use forebay_sim::plan::Plan;
use forebay_sim::{Counters, PlantedBug};
use std::panic::{AssertUnwindSafe, catch_unwind};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (mut seed, crashes): (u64, u64) = (args[1].parse().unwrap(), args[2].parse().unwrap());
    let max: usize = args[3].parse().unwrap();
    let bug = args.get(4).filter(|n| *n != "-").map(|name| PlantedBug::ALL.iter().find(|(_, n)| n == name).unwrap().0);
    let verbose = args.len() > 5;
    std::panic::set_hook(Box::new(|info| eprintln!("PANIC {info}")));
    let (mut done, mut found) = (0, 0);
    let mut all = Counters::default();
    while done < crashes && found < max {
        let plan = Plan::new(seed, bug);
        if plan.mirror.is_some() {
            let mut run = Run::of(plan, if verbose { crashes } else { 400 }, verbose);
            let r = catch_unwind(AssertUnwindSafe(|| run.go()));
            done += run.crash_points;
            all.add(&run.counters);
            match r {
                Ok(Ok(())) => {}
                Ok(Err(why)) => { found += 1; println!("seed {seed} crash {} step {}: {why}", run.crash_points, run.step); }
                Err(_) => { found += 1; println!("seed {seed} crash {} step {} PANIC", run.crash_points, run.step); }
            }
        }
        seed += 1;
        if verbose { break; }
    }
    println!("{done} crash points, {found} violations, next seed {seed}, out {} rebuilds {} aside {} io errors {} requests {}", all.members_out, all.rebuilds, all.put_aside, all.io_errors, all.requests);
    for (name, _, count) in all.landmarks.iter().filter(|(n, ..)| n.contains("member") || n.contains("lost-swept") || n.contains("note") || n.contains("rebuild") || n.contains("torn") || n.contains("survivor")) { println!("  {name} {count}"); }
}
