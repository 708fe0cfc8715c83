//! The flash model: the shape of the published figures of two cards, and the effects of Forebay's
//! log and FlashCache's sets on a device. The figures are those of `examples/flash-bench`, smaller.

use crate::figures::cards::{CARDS, Card, FILLS, PUBLISHED_MIB_S, Rest, Sweep, error, mib_per_s};
use crate::figures::layout::{
    ArrivalRate, ForebayLog, Layout, Load, Outcome, PAGE, Sizes, WORKLOADS, measure,
};
use crate::flashcache::FlashCacheSets;
use forebay_models::flash::ftl::{Collection, Ftl, FtlConfig};

const PAGES: u32 = 32_768;
const SIZES: Sizes = Sizes { cache_bytes: 64 << 20, volume_bytes: 256 << 20, segment_blocks: None };

fn model(card: &Card) -> [f64; FILLS.len()] {
    let sweep = Sweep::new(card.spare_permille, Collection::Greedy, PAGES);
    sweep.all().map(|stats| mib_per_s(card, &sweep, &stats))
}

#[test]
fn the_cards_fall_as_was_published() {
    let [d, t] = [0, 1].map(|which| {
        let (card, published) = (CARDS[which], &PUBLISHED_MIB_S[which]);
        let model = model(&card);
        let off = error(&model, published);
        println!("{}: {model:.0?}, off by {off:.3}", card.name);
        assert!(
            off < if card.name == "T" { 0.04 } else { 0.12 },
            "card {}: {model:.0?}, off by {off:.3}",
            card.name
        );
        for (at, (model, published)) in model.iter().zip(published).enumerate() {
            let ratio = model / published;
            assert!((0.75..1.25).contains(&ratio), "card {} {} % full: {ratio:.2}", card.name, FILLS[at]);
        }
        model[0] / model[FILLS.len() - 1]
    });
    assert!(d > 4.0 * t, "D falls by {d:.1}, T by {t:.1}");
}

#[test]
fn stale_data_is_no_spare_area() {
    let empty = Sweep::new(70, Collection::Greedy, PAGES);
    let stale = Sweep { rest: Rest::Stale, ..empty };
    let (empty, stale) = (empty.at(50).write_amplification(), stale.at(50).write_amplification());
    assert!(stale > 1.5 * empty, "{stale:.2} with stale data, {empty:.2} without");
}

/// Returns the effects of a layout on a device with the spare area of card D and greedy collection.
fn on_card_d(layout: &mut dyn Layout, workload: &str) -> Outcome {
    let workload = WORKLOADS.iter().find(|one| one.name == workload).expect("it is one of them");
    let mut load = Load::new(*workload, SIZES.volume_bytes, ArrivalRate::default(), 1);
    let device = FtlConfig {
        logical_pages: (SIZES.cache_bytes / PAGE) as u32,
        block_pages: 64,
        spare_permille: CARDS[0].spare_permille,
        collection: Collection::Greedy,
    };
    measure(layout, &mut load, SIZES.cache_bytes, 2, &mut [Ftl::new(device)])
}

#[test]
fn forebay_log_causes_few_device_moves() {
    for workload in WORKLOADS {
        let plain = on_card_d(&mut ForebayLog::new(&SIZES), workload.name);
        let trimmed = on_card_d(&mut ForebayLog::discarding(&SIZES), workload.name);
        let [plain_wa, trimmed_wa] = [&plain, &trimmed].map(|out| out.devices[0].write_amplification());
        println!(
            "{}: {:.2}, {plain_wa:.3}, trimmed {trimmed_wa:.3}",
            workload.name,
            plain.cache_amplification()
        );
        assert!(plain_wa < 1.5, "{}: {plain_wa:.3}", workload.name);
        assert!(trimmed_wa <= plain_wa, "{}: {trimmed_wa:.3} trimmed, {plain_wa:.3} not", workload.name);
        assert_eq!(plain.past_cache_bytes, 0, "{}: everything is cached", workload.name);
        assert!(plain.device_bytes > plain.user_bytes, "{}: headers are written too", workload.name);
    }
}

#[test]
fn flashcache_writes_cause_device_moves() {
    for workload in WORKLOADS {
        let out = on_card_d(&mut FlashCacheSets::new(&SIZES), workload.name);
        let (cache, device) = (out.cache_amplification(), out.devices[0].write_amplification());
        println!("{}: {cache:.2}, {device:.3}", workload.name);
        assert!(device > 2.0, "{}: {device:.3}", workload.name);
        assert!(out.device_bytes > out.cached_bytes(), "{}: metadata too", workload.name);
    }
}

#[test]
fn figures_are_deterministic() {
    let make: [fn() -> Box<dyn Layout>; 2] =
        [|| Box::new(ForebayLog::new(&SIZES)), || Box::new(FlashCacheSets::new(&SIZES))];
    for make in make {
        let [first, second] = [0, 1].map(|_| on_card_d(make().as_mut(), "zipf-16k"));
        assert_eq!(first.devices, second.devices);
        assert_eq!((first.user_bytes, first.device_bytes), (second.user_bytes, second.device_bytes));
    }
}
