//! Tests of the flash translation layer.

use super::*;

/// The same numbers on every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 += 1;
        (mix(self.0) % u64::from(bound)) as u32
    }
}

const PAGES: u32 = 32_768;

fn device(spare_permille: u32, collection: Collection) -> Ftl {
    Ftl::new(FtlConfig { logical_pages: PAGES, block_pages: 64, spare_permille, collection })
}

/// Write amplification of `writes` drawn by `next`, after as many that are not counted.
fn amplification(ftl: &mut Ftl, writes: u32, mut next: impl FnMut() -> u32) -> f64 {
    for _ in 0..writes {
        ftl.write(next());
    }
    let before = ftl.stats();
    for _ in 0..writes {
        ftl.write(next());
    }
    ftl.check();
    ftl.stats().since(&before).write_amplification()
}

fn uniform(spare_permille: u32, used: u32) -> f64 {
    let mut ftl = device(spare_permille, Collection::Greedy);
    let mut rng = Rng(7);
    (0..used).for_each(|page| ftl.write(page));
    amplification(&mut ftl, 8 * PAGES, || rng.below(used))
}

#[test]
fn sequential_writes_cost_nothing_more() {
    let mut ftl = device(70, Collection::Greedy);
    let mut at = 0;
    let cost = amplification(&mut ftl, 4 * PAGES, || {
        at = (at + 1) % PAGES;
        at
    });
    assert!((cost - 1.0).abs() < 1e-9, "{cost}");
}

/// Desnoyers, "Analytic modeling of SSD write performance" (2012): collecting the oldest block of
/// uniform writes costs S / (S + W(-S e^-S)) pages each, S being physical over logical pages;
/// collecting greedily costs the same with blocks of very many pages, and somewhat less with
/// smaller ones.
#[test]
fn uniform_writes_match_the_theory() {
    for spare in [70, 150, 280, 500] {
        let blocks = f64::from(PAGES) * (1.0 + f64::from(spare) / 1000.0) / 64.0;
        // Open blocks and blocks kept free are not spare area.
        let s = (blocks.floor() - f64::from(FREE_MIN) - 1.0) * 64.0 / f64::from(PAGES);
        // x = -W(-s e^-s) by iteration: the valid share of a block when it is collected is x / s.
        let mut x: f64 = 0.5;
        (0..10_000).for_each(|_| x = s * (-s).exp() * x.exp());
        let theory = s / (s - x);
        let ours = uniform(spare, PAGES);
        println!("spare {spare}: {ours:.2}, oldest first {theory:.2}");
        assert!((0.8..1.0).contains(&(ours / theory)), "spare {spare}: {ours:.2}, oldest first {theory:.2}");
    }
}

#[test]
fn unused_or_trimmed_pages_are_spare_area() {
    let full = uniform(70, PAGES);
    let half = uniform(70, PAGES / 2);
    assert!(full > 4.0 && half < 1.3, "{full}, {half}");
    let mut ftl = device(70, Collection::Greedy);
    (0..PAGES).for_each(|page| ftl.write(page));
    (PAGES / 2..PAGES).for_each(|page| ftl.trim(page));
    let mut rng = Rng(7);
    let trimmed = amplification(&mut ftl, 8 * PAGES, || rng.below(PAGES / 2));
    assert!((trimmed / half - 1.0).abs() < 0.05, "{trimmed} trimmed, {half} never written");
}

#[test]
fn cost_benefit_is_better_where_some_is_hot() {
    let hot = |collection| {
        let mut ftl = device(150, collection);
        let mut rng = Rng(11);
        (0..PAGES).for_each(|page| ftl.write(page));
        amplification(&mut ftl, 8 * PAGES, || {
            let tenth = PAGES / 10;
            if rng.below(10) > 0 { rng.below(tenth) } else { tenth + rng.below(PAGES - tenth) }
        })
    };
    let (greedy, benefit) = (hot(Collection::Greedy), hot(Collection::CostBenefit));
    assert!(benefit < 0.95 * greedy, "greedy {greedy:.2}, cost-benefit {benefit:.2}");
}

#[test]
fn moved_pages_take_time() {
    let times = FtlTimes { program_ns: 1000.0, read_ns: 500.0, erase_ns: 10_000.0, move_factor: 2.0 };
    let clean = FtlStats { host_pages: 100, moved_pages: 0, erasures: 0 };
    let busy = FtlStats { host_pages: 100, moved_pages: 100, erasures: 5 };
    assert!((times.pages_per_s(&clean) - 1e6).abs() < 1e-3);
    assert!((times.pages_per_s(&busy) - 100e9 / 450_000.0).abs() < 1e-3);
    assert_eq!(times.pages_per_s(&FtlStats::default()).to_bits(), 0.0f64.to_bits());
}

#[test]
#[should_panic(expected = "too few to collect")]
fn a_device_without_room_to_collect_is_none() {
    let _ = Ftl::new(FtlConfig {
        logical_pages: 640,
        block_pages: 64,
        spare_permille: 0,
        collection: Collection::Greedy,
    });
}
