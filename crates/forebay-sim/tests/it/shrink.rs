//! A violation is reduced to a script of a few requests.

use forebay_sim::PlantedBug;
use forebay_sim::shrink::{Shrunk, shrink};

fn shrunk(bug: PlantedBug) -> Shrunk {
    // A violation that one crash among many has shown need not show with others, and some need more
    // steps: then take the next seed.
    let mut tries = [1, 101, 201, 301, 401].into_iter().map(|seed| shrink(seed, 20_000, Some(bug), false));
    let is_short = |found: &Shrunk| found.steps <= 10 && found.steps < found.steps_before;
    let shrunk = tries
        .find_map(|found| found.expect("the planted bug shows").ok().filter(is_short))
        .expect("it shows again, by a few steps");
    println!(
        "{}: {} of {} steps, {} trials\n{:#?}",
        bug.name(),
        shrunk.steps,
        shrunk.steps_before,
        shrunk.trials,
        shrunk.script
    );
    assert_eq!(shrunk.steps, shrunk.script.len());
    shrunk
}

#[test]
fn accepted_torn_header_needs_a_write() {
    let shrunk = shrunk(PlantedBug::AcceptTornHeader);
    assert!(shrunk.script.iter().any(|line| line.contains("Write")));
}

#[test]
fn forgotten_invalidation_shrinks_the_same() {
    let first = shrunk(PlantedBug::ForgetInvalidation);
    let second = shrunk(PlantedBug::ForgetInvalidation);
    assert_eq!((first.script, first.what, first.trials), (second.script, second.what, second.trials));
}

#[test]
fn clean_runs_are_not_shrunk() {
    assert!(shrink(1, 200, None, false).is_none());
}
