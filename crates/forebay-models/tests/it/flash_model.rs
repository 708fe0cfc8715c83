//! The flash cards as devices, in virtual time: their published figures, the duration of each
//! command, and the order rules.

use forebay_models::flash::cards::{CARD_D, CARD_T, Card};
use forebay_models::flash::ftl::FtlStats;
use forebay_models::flash::model::{BLOCK_PAGES, PAGE_BYTES, SIZE_MIN_BYTES};
use forebay_models::flash::{FlashModel, FlashOp};

const MIB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES;
/// As many erase blocks as when the cards were fitted.
const SIZE: u64 = 512 * MIB;

/// xorshift64*: the same numbers on every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % bound
    }
}

/// Gives an idle card one command and returns how long it takes.
fn takes(card: &mut FlashModel, op: FlashOp, offset: u64, len: u64) -> u64 {
    let mut done = Vec::new();
    // A flush of an idle card reports its current time.
    card.submit(0, 6, FlashOp::Flush, 0, 0);
    let now = card.next_event().expect("the flush");
    card.submit(0, 7, op, offset, len);
    card.advance(now, &mut done);
    let end = card.next_event().unwrap_or(now);
    card.advance(end, &mut done);
    assert_eq!((&*done, card.in_flight()), (&[6, 7][..], 0));
    end - now
}

/// Random writes of 16 KiB over the first part of a full card whose rest is trimmed, in MiB/s.
fn random_writes_mib_s(card: &Card, used_pct: u64) -> f64 {
    let (requests, len) = (SIZE * used_pct / 100 / (16 << 10), 16 << 10);
    let mut model = FlashModel::new(card, 1, SIZE);
    model.submit(0, 0, FlashOp::Trim, requests * len, SIZE - requests * len);
    let (mut rng, mut done, mut now) = (Rng(1), Vec::new(), 0);
    let mut run = |writes: u64| {
        let began = now;
        for id in 0..writes {
            model.submit(now, id, FlashOp::Write, rng.below(requests) * len, len);
            now = model.next_event().expect("a command is in flight");
            model.advance(now, &mut done);
        }
        (writes * len) as f64 / MIB as f64 / ((now - began) as f64 / 1e9)
    };
    run(4 * requests);
    run(2 * requests)
}

#[test]
fn card_speeds_match_published_figures() {
    // By utilisation: `docs/results/flash-model.md`.
    for (card, published, off) in [
        (&CARD_D, [(20, 1095.0), (50, 613.0), (100, 99.0)], 0.25),
        (&CARD_T, [(20, 990.0), (50, 872.0), (100, 417.0)], 0.1),
    ] {
        for (used_pct, published) in published {
            let ours = random_writes_mib_s(card, used_pct);
            println!("card {} {used_pct} %: {ours:.0} MiB/s, published {published:.0}", card.name);
            assert!((ours / published - 1.0).abs() < off, "card {} {used_pct} %: {ours:.0}", card.name);
        }
    }
}

#[test]
fn commands_take_the_time_of_chips() {
    // Writing occupies the chips for 300 us, reading for 125: `forebay_models::flash::cards`.
    let mut card = FlashModel::new(&CARD_D, 1, SIZE);
    let written = (PAGE as f64 / (CARD_D.speed_mib_s * MIB as f64) * 1e9).round() as u64;
    // After collection the card has a free block to write to.
    while takes(&mut card, FlashOp::Write, 0, PAGE) == written {}
    assert_eq!(takes(&mut card, FlashOp::Write, 0, PAGE), written);
    let read = takes(&mut card, FlashOp::Read, 5 * PAGE, PAGE);
    assert!(read.abs_diff(written * 125 / 300) <= 1, "{read}");
    assert_eq!(takes(&mut card, FlashOp::Read, 5 * PAGE, 8 * PAGE), 8 * read);
    assert_eq!(
        takes(&mut card, FlashOp::Read, 5 * PAGE + 512, PAGE),
        2 * read,
        "two pages have a part of it"
    );
    assert_eq!(takes(&mut card, FlashOp::Flush, 0, 0), 0);
    // Writes of partial pages read the pages first.
    assert_eq!(takes(&mut card, FlashOp::Write, 512, 512), read + written);
    assert_eq!(takes(&mut card, FlashOp::Write, 512, PAGE), 2 * (read + written));
    assert_eq!(takes(&mut card, FlashOp::Write, 512, 2 * PAGE - 512), read + 2 * written);
    // Trimmed pages are not read before a partial write, and only whole pages are trimmed.
    assert_eq!(takes(&mut card, FlashOp::Trim, 8 * PAGE, 2 * PAGE + 1), 0);
    assert_eq!(takes(&mut card, FlashOp::Read, 8 * PAGE, 3 * PAGE), read);
    assert_eq!(takes(&mut card, FlashOp::Write, 8 * PAGE, 512), written);
    // Accesses past the end take their time too, but are not collected.
    assert_eq!(takes(&mut card, FlashOp::Write, SIZE - PAGE, 3 * PAGE), 3 * written);
    assert_eq!(takes(&mut card, FlashOp::Read, SIZE + 4096 * MIB, PAGE), read);
    assert_eq!(takes(&mut card, FlashOp::Write, 3 * PAGE, 0), 0);
}

#[test]
fn a_card_is_full_from_the_first_command_on() {
    let mut card = FlashModel::new(&CARD_D, 1, SIZE);
    let pages = SIZE / PAGE;
    let a_page = takes(&mut card, FlashOp::Read, 0, PAGE);
    assert_eq!(takes(&mut card, FlashOp::Read, 0, SIZE), pages * a_page, "every page is there");
    assert_eq!(card.stats(), FtlStats::default(), "what fills it is not counted");
    // The spare area is a fifth of the visible size; when it is used up, the card collects.
    let mut rng = Rng(1);
    let mut write = |part: u64| {
        for _ in 0..pages / part {
            card.submit(0, 0, FlashOp::Write, rng.below(pages) * PAGE, PAGE);
        }
        card.stats().moved_pages
    };
    assert_eq!(write(6), 0);
    assert!(write(6) > pages / 6);
}

#[test]
fn half_of_the_chips_takes_twice_as_long() {
    let mut cards = [1, 2].map(|scale| FlashModel::new(&CARD_D, scale, 64 * MIB));
    let mut rng = Rng(3);
    let mut total = [0; 2];
    for _ in 0..20_000 {
        let page = rng.below(64 * MIB / PAGE);
        let op = if rng.below(3) == 0 { FlashOp::Read } else { FlashOp::Write };
        for (card, total) in cards.iter_mut().zip(&mut total) {
            *total += takes(card, op, page * PAGE, PAGE);
        }
    }
    assert_eq!(cards[0].stats(), cards[1].stats());
    assert!(cards[0].stats().moved_pages > 10_000, "it collected: {:?}", cards[0].stats());
    let ratio = total[1] as f64 / total[0] as f64;
    assert!((ratio - 2.0).abs() < 1e-3, "{ratio}");
}

#[test]
fn collection_delays_later_commands() {
    let mut card = FlashModel::new(&CARD_D, 1, SIZE);
    let (mut rng, mut quick, mut held_up) = (Rng(5), u64::MAX, 0);
    for _ in 0..200_000 {
        let took = takes(&mut card, FlashOp::Write, rng.below(SIZE / PAGE) * PAGE, PAGE);
        (quick, held_up) = (quick.min(took), held_up.max(took));
    }
    // To free a block the card moves the valid pages of about two blocks; moving a page takes six
    // times as long as writing one.
    let block = u64::from(BLOCK_PAGES) * quick;
    assert!(held_up > 6 * block && held_up < 30 * block, "{quick} ns, {held_up} ns");
    // Commands complete in order: a read and a flush wait for writes, one of which collects.
    let (start, mut done) = (1 << 50, Vec::new());
    let writes = u64::from(BLOCK_PAGES);
    for id in 0..writes {
        card.submit(start, id, FlashOp::Write, rng.below(SIZE / PAGE) * PAGE, PAGE);
    }
    card.submit(start, writes, FlashOp::Read, 0, PAGE);
    card.submit(start, writes + 1, FlashOp::Flush, 0, 0);
    card.advance(start + 6 * block, &mut done);
    assert!(!done.contains(&writes), "the read is done before the writes that it came after");
    card.advance(u64::MAX, &mut done);
    assert!(done.iter().copied().eq(0..=writes + 1) && card.in_flight() == 0);
}

#[test]
fn a_trimmed_card_has_nothing_to_move() {
    let mut card = FlashModel::new(&CARD_D, 1, 64 * MIB);
    let mut rng = Rng(9);
    let mut overwrite = |card: &mut FlashModel, pages: u64| {
        for _ in 0..40_000 {
            card.submit(0, 0, FlashOp::Write, rng.below(pages) * PAGE, PAGE);
        }
        card.stats().moved_pages
    };
    let full = overwrite(&mut card, 64 * MIB / PAGE);
    card.submit(0, 0, FlashOp::Trim, 16 * MIB, 48 * MIB);
    let trimmed = overwrite(&mut card, 16 * MIB / PAGE) - full;
    assert!(trimmed < full / 20, "{full} pages moved when full, {trimmed} after a trim");
}

#[test]
fn any_size_and_any_command_is_possible() {
    for size in (0..SIZE_MIN_BYTES + 8 * MIB).step_by(MIB as usize / 4 + 1) {
        for card in [&CARD_D, &CARD_T] {
            let mut model = FlashModel::new(card, 1000, size);
            for page in (0..2 * SIZE_MIN_BYTES / PAGE).rev() {
                model.submit(0, page, FlashOp::Write, page * PAGE, PAGE);
            }
            assert!(model.stats().erasures > 0, "{size} bytes");
        }
    }
    let mut rng = Rng(11);
    let run = |rng: &mut Rng| {
        let mut model = FlashModel::new(&CARD_T, 3, 33 * MIB + 5);
        let (mut done, mut all) = (Vec::new(), Vec::new());
        for id in 0..5_000 {
            let offset = if rng.below(50) == 0 { u64::MAX - rng.below(4) } else { rng.below(40 * MIB) };
            let len = if rng.below(50) == 0 { u64::MAX } else { rng.below(64 << 10) };
            let op = [FlashOp::Read, FlashOp::Write, FlashOp::Trim, FlashOp::Flush][rng.below(4) as usize];
            model.submit(id * 1000, id, op, offset, len);
            model.advance(id * 1000, &mut done);
            all.push((model.next_event(), done.len()));
        }
        model.advance(u64::MAX, &mut done);
        assert_eq!(done.len(), 5_000);
        assert!(done.is_sorted(), "in order");
        all
    };
    let mut again = Rng(11);
    assert_eq!(run(&mut rng), run(&mut again), "the same each time");
}
