//! Two flash cards of 2010, as the model has them.
//!
//! The chips of both are single-level flash as Agrawal and others give it ("Design Tradeoffs for
//! SSD Performance", 2008, table 1: 4 KiB to or from a chip 100 us, writing it 200 us, reading it
//! 25 us, erasing 64 of them 1.5 ms). So writing takes 300 us, reading 125 us, moving 425 us, and
//! erasing adds 23 us to each page. Fitted to what was published of the random writes of both are
//! the spare area, the speed of an empty card and, for card D alone, how much slower collection
//! moves than the card writes. How well that fits, and what it leaves unexplained:
//! `docs/results/flash-model.md`.

use super::ftl::FtlTimes;

/// A page to the chip, and into it, in microseconds.
const WRITE_US: f64 = 100.0 + 200.0;
/// A page out of its chip, and from there, in microseconds.
const READ_US: f64 = 25.0 + 100.0;
/// Erasing, for each page of a block, in microseconds.
const ERASE_US: f64 = 1500.0 / 64.0;

/// What the model takes a card for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Card {
    /// As people type it.
    pub name: &'static str,
    /// Fitted: physical pages beyond the logical ones, in thousandths of those.
    pub spare_permille: u32,
    /// Fitted: random writes of 16 KiB in MiB/s if nothing had to be collected.
    pub speed_mib_s: f64,
    /// See [`FtlTimes::move_factor`].
    pub move_factor: f64,
}

/// The card with little spare area.
pub const CARD_D: Card = Card { name: "D", spare_permille: 200, speed_mib_s: 1163.0, move_factor: 4.4 };
/// The card with much.
pub const CARD_T: Card = Card { name: "T", spare_permille: 370, speed_mib_s: 1042.0, move_factor: 1.0 };
/// Both.
pub const CARDS: [Card; 2] = [CARD_D, CARD_T];

impl Card {
    /// What the card takes for a page of `page_bytes` and for an erase block of `block_pages` of
    /// them.
    #[must_use]
    pub fn times(&self, page_bytes: u32, block_pages: u32) -> FtlTimes {
        times(self.speed_mib_s * f64::from(1 << 20) / f64::from(page_bytes), block_pages, self.move_factor)
    }
}

/// Times of a device that writes so many pages a second, collection aside, with the proportions of
/// the chips.
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
