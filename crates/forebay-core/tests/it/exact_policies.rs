//! The exact policies that serve as a reference for traces behave as in their papers.

use crate::exact::{Access, Policy, misses_pct};

fn reads(blocks: impl IntoIterator<Item = u64>) -> Vec<Access> {
    blocks.into_iter().map(|block| Access { block, writes: false }).collect()
}

/// Blocks below `range`, small numbers more often, the same each time.
fn skewed(len: u64, range: u64) -> Vec<Access> {
    let mut seed = 7_u64;
    let mut draw = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    reads((0..len).map(|_| (draw() % range) * (draw() % range) / range))
}

#[test]
fn data_that_fits_is_missed_once() {
    let trace = reads((0..100).cycle().take(1000));
    for policy in Policy::ALL {
        // LIRS keeps a hundredth for blocks that return late, so one more place.
        let missed = misses_pct(policy, 102, &trace);
        assert!((missed - 10.0).abs() < 0.01, "{}: {missed}", policy.name());
    }
}

#[test]
fn no_policy_beats_belady() {
    for blocks in [10, 50, 200] {
        let trace = skewed(20_000, 500);
        let best = misses_pct(Policy::Belady, blocks, &trace);
        for policy in Policy::ALL {
            let missed = misses_pct(policy, blocks, &trace);
            assert!(missed >= best && missed <= 100.0, "{}: {missed} of {best}", policy.name());
        }
    }
}

#[test]
fn large_loop_defeats_lru_but_not_lirs() {
    let trace = reads((0..120).cycle().take(12_000));
    assert_eq!(misses_pct(Policy::Lru, 100, &trace), 100.0);
    assert!(misses_pct(Policy::Lirs, 100, &trace) < 25.0);
}

#[test]
fn scans_do_not_push_out_what_is_used_often() {
    // Twenty blocks twice each, and after each round ten blocks that are read once.
    let round = |round: u64| (0..40).map(|at| at / 2).chain((0..10).map(move |at| 1000 + round * 10 + at));
    let trace = reads((0..500).flat_map(round));
    let lru = misses_pct(Policy::Lru, 25, &trace);
    for policy in [Policy::Arc, Policy::Lirs, Policy::S3Fifo, Policy::Sieve] {
        let missed = misses_pct(policy, 25, &trace);
        assert!(missed < lru, "{}: {missed} of {lru}", policy.name());
    }
}

#[test]
fn writes_enter_blocks_and_are_no_misses() {
    let trace = [Access { block: 1, writes: true }, Access { block: 1, writes: false }];
    for policy in Policy::ALL {
        assert_eq!(misses_pct(policy, 4, &trace), 0.0, "{}", policy.name());
    }
}
