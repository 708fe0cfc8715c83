//! Compares the oracles with all possible behaviours of a small cache.

use super::*;
use forebay_sim::rng::Rng;

const ACCESSES: usize = 12;

fn trace_of(rng: &mut Rng) -> Vec<Access> {
    (0..ACCESSES).map(|_| Access { block: rng.below(4), writes: rng.chance(1, 4) }).collect()
}

/// Returns the fewest fills for each possible number of hits of a cache of this many blocks, by
/// trying every choice of kept blocks.
fn fewest_fills(blocks: usize, trace: &[Access]) -> Vec<u64> {
    let next = next_reads(trace);
    let starts: Vec<usize> = (0..trace.len()).filter(|at| next[*at] != NEVER).collect();
    let mut fewest = vec![u64::MAX; trace.len() + 1];
    for choice in 0..1_u32 << starts.len() {
        let kept: Vec<usize> =
            starts.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 == 1).map(|(_, at)| *at).collect();
        let fits = (0..trace.len())
            .all(|now| kept.iter().filter(|at| (**at..next[**at]).contains(&now)).count() <= blocks);
        if fits {
            let arrives = |at: &usize| kept.iter().any(|earlier| next[*earlier] == *at);
            let fills = kept.iter().filter(|at| !trace[**at].writes && !arrives(at)).count() as u64;
            (0..=kept.len()).for_each(|hits| fewest[hits] = fewest[hits].min(fills));
        }
    }
    fewest.into_iter().take_while(|fills| *fills != u64::MAX).collect()
}

#[test]
fn oracle_has_most_hits_and_bound_is_lower() {
    let mut rng = Rng::new(1);
    let (mut exact, mut tight) = (0, 0);
    for _ in 0..200 {
        let trace = trace_of(&mut rng);
        let bound = Bound::new(&trace);
        for blocks in 1..=3 {
            let fewest = fewest_fills(blocks, &trace);
            let plan = Plan::new(blocks, &trace);
            assert_eq!(plan.hits as usize, fewest.len() - 1, "{blocks} blocks, {trace:?}");
            for (hits, fewest) in fewest.iter().enumerate() {
                let (least, most) = (bound.fills(blocks as u64, hits as u64), plan.fills(hits as u64));
                assert!(
                    least <= *fewest && *fewest <= most,
                    "{least} {fewest} {most}: {blocks}, {hits}, {trace:?}"
                );
                exact += u32::from(most == *fewest);
                tight += u32::from(least == *fewest);
            }
        }
    }
    assert!(exact > 1500 && tight > 1500, "the oracle is exact {exact} times, the bound {tight} times");
}

#[test]
fn blocks_never_read_again_are_not_filled() {
    let read = |block| Access { block, writes: false };
    let trace: Vec<Access> = (0..100).map(read).chain([read(7)]).collect();
    let plan = Plan::new(10, &trace);
    assert_eq!((plan.hits, plan.fills(1), plan.fills(0)), (1, 1, 0));
}

#[test]
fn written_blocks_cost_no_fill() {
    let trace = [true, false, false].map(|writes| Access { block: 1, writes });
    let plan = Plan::new(1, &trace);
    assert_eq!((plan.hits, plan.fills(2)), (2, 0));
    assert_eq!(Bound::new(&trace).fills(1, 2), 0);
}

#[test]
fn room_until_an_overwrite_brings_no_hits() {
    let trace = [false, true].map(|writes| Access { block: 1, writes });
    assert_eq!(Plan::new(1, &trace).hits, 0);
}
