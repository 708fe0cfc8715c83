//! Two flash cards of 2010, as modelled.
//!
//! The chips of both are single-level flash with the figures of Agrawal and others ("Design
//! Tradeoffs for SSD Performance", 2008, table 1: transferring 4 KiB to or from a chip takes 100
//! us, writing it 200 us, reading it 25 us, erasing 64 of them 1.5 ms). So writing takes 300 us,
//! reading 125 us, moving 425 us, and erasing adds 23 us to each page. Three parameters are fitted
//! to the published random writes of both cards: the spare area, the speed of an empty card and,
//! for card D alone, how much slower collection moves pages than the card writes.
//! `docs/results/flash-model.md` describes the quality of the fit and the differences that remain
//! unexplained.

use super::ftl::FtlTimes;

/// Transferring a page to the chip and writing it, in microseconds.
const WRITE_US: f64 = 100.0 + 200.0;
/// Reading a page and transferring it from the chip, in microseconds.
const READ_US: f64 = 25.0 + 100.0;
/// Erase time per page of a block, in microseconds.
const ERASE_US: f64 = 1500.0 / 64.0;

/// Parameters of a modelled card.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Card {
    /// Name that operators enter.
    pub name: &'static str,
    /// Fitted: physical pages beyond the logical ones, in thousandths of those.
    pub spare_permille: u32,
    /// Fitted: random writes of 16 KiB in MiB/s without collection.
    pub speed_mib_s: f64,
    /// See [`FtlTimes::move_factor`].
    pub move_factor: f64,
}

/// The card with little spare area.
pub const CARD_D: Card = Card { name: "D", spare_permille: 200, speed_mib_s: 1163.0, move_factor: 4.4 };
/// The card with much spare area.
pub const CARD_T: Card = Card { name: "T", spare_permille: 370, speed_mib_s: 1042.0, move_factor: 1.0 };
/// Both cards.
pub const CARDS: [Card; 2] = [CARD_D, CARD_T];

impl Card {
    /// Times of the card for a page of `page_bytes` and an erase block of `block_pages` pages.
    #[must_use]
    pub fn times(&self, page_bytes: u32, block_pages: u32) -> FtlTimes {
        times(self.speed_mib_s * f64::from(1 << 20) / f64::from(page_bytes), block_pages, self.move_factor)
    }
}

/// Times of a device that writes `pages_per_s` pages a second without collection, in the
/// proportions of the chips.
#[must_use]
pub fn times(pages_per_s: f64, block_pages: u32, move_factor: f64) -> FtlTimes {
    let program_ns = 1e9 / pages_per_s;
    FtlTimes {
        program_ns,
        read_ns: program_ns * READ_US / WRITE_US,
        erase_ns: program_ns * ERASE_US / WRITE_US * f64::from(block_pages),
        move_factor,
    }
}
