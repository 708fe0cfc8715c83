//! Members of mirrored caches that were replaced, vanished at that time, and turn up on another
//! host in their old places: before the change has ended that host serves no wrong data, and
//! afterwards it leaves them out (I81). Few drawn plans have all of that, so these are the plans of
//! the planted bug, without it.

use crate::workers;
use forebay_sim::explore::Run;
use forebay_sim::plan::Plan;
use forebay_sim::{Counters, PlantedBug};

/// Seeds, and crash points of each.
const SEEDS: usize = 16;
const PER_SEED: u64 = 120;

#[test]
fn replaced_member_serves_no_wrong_data() {
    let runs = workers::each(SEEDS, |index| {
        let seed = 1 + 7919 * index as u64;
        let plan = Plan::new(seed, Some(PlantedBug::LeaveOldBelieved));
        let mut run = Run::of(plan, PER_SEED, false);
        run.go().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        run.counters
    });
    let mut counters = Counters::default();
    runs.iter().for_each(|run| counters.add(run));
    let (opened, believed) = (counters.opened_elsewhere, counters.believed_elsewhere);
    println!("{} copies, {opened} starts elsewhere, {believed} of them believed it", counters.copies_ended);
    assert!(opened > 200 && believed > 10, "{opened} starts elsewhere, {believed} of them believed it");
    assert!(believed * 2 < opened, "it is left out in the end");
}
