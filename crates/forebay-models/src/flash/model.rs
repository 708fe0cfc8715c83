//! A flash card that takes commands, in virtual time.
//!
//! # What is modelled
//! - **Inside**: an [`Ftl`] with pages of 4 KiB and erase blocks of 1 MiB that collects greedily.
//!   The card is full at the start: every page was written once, in order, before time counts. So
//!   it collects as soon as its spare area is used.
//! - **Time**: each page written, read or moved and each block erased occupies the card for its
//!   time ([`Card::times`]), without overlap. So commands are served in order of arrival. A command
//!   completes when all work that it causes is done, collection included: that bounds how long a
//!   command can be delayed.
//! - **Parts of pages**: a partial write of a page reads it first. A page that the card does not
//!   have takes no time to read.
//! - **Trim**: frees whole pages, and takes no time.
//! - **Flush**: completes when all earlier commands have. The card acknowledges a write once it is
//!   in the chips, so there is nothing else to flush.
//! - **Scale**: a card with one `scale`-th of the chips takes `scale` times as long for everything.
//!
//! Ranges beyond the size that the card was created with (a file that has grown), or beyond
//! [`SIZE_MAX_BYTES`], take their time but are never collected. A card smaller than
//! [`SIZE_MIN_BYTES`] has no room to collect, so a smaller device is the beginning of a card of
//! that size.
//!
//! Left out, in addition to what [`Ftl`] leaves out: the time that one chip takes for one page (a
//! single command is faster than on the card, as if all chips shared it), caches, channels.
//!
//! # Invariants
//! Pure and deterministic: time is an integer, and the same events in the same order give the same
//! completions. Time passed to `submit` and `advance` never goes back (earlier values count as the
//! latest seen). A command does not allocate memory once that many have been in flight.

use std::collections::VecDeque;
use std::ops::Range;

use super::cards::Card;
use super::ftl::{Collection, Ftl, FtlConfig, FtlStats};

/// Bytes of a page: the unit that the card maps.
pub const PAGE_BYTES: u64 = 4096;
/// Pages of an erase block: as large as in the fit of the cards, 64 of 16 KiB.
pub const BLOCK_PAGES: u32 = 256;
/// The smallest card: with fewer than 32 erase blocks the spare area of card D leaves no room to
/// collect.
pub const SIZE_MIN_BYTES: u64 = 32 << 20;
/// The largest card. Its maps take more than a gigabyte of memory.
pub const SIZE_MAX_BYTES: u64 = 512 << 30;

/// Type of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashOp {
    /// Read.
    Read,
    /// Write, including writes of zeroes.
    Write,
    /// Discards the range.
    Trim,
    /// Flush; offset and length are ignored.
    Flush,
}

/// Time of each action, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    program_ns: u64,
    read_ns: u64,
    move_ns: u64,
    erase_ns: u64,
}

impl Costs {
    fn new(card: &Card, scale: u32) -> Costs {
        let times = card.times(PAGE_BYTES as u32, BLOCK_PAGES);
        let scaled = |ns: f64| (ns * f64::from(scale)).round() as u64;
        Costs {
            program_ns: scaled(times.program_ns),
            read_ns: scaled(times.read_ns),
            move_ns: scaled(times.move_factor * (times.read_ns + times.program_ns)),
            erase_ns: scaled(times.erase_ns),
        }
    }

    fn of(&self, did: &FtlStats) -> u64 {
        did.host_pages * self.program_ns + did.moved_pages * self.move_ns + did.erasures * self.erase_ns
    }
}

/// The card; see the module documentation.
#[derive(Debug)]
pub struct FlashModel {
    ftl: Ftl,
    costs: Costs,
    /// Counters after the initial fill.
    filled: FtlStats,
    now_ns: u64,
    /// When it completes its current commands.
    free_ns: u64,
    /// Commands and their completion times, in order.
    commands: VecDeque<(u64, u64)>,
}

impl FlashModel {
    /// Creates a card of this size with one `scale`-th of the chips, full and idle.
    pub fn new(card: &Card, scale: u32, size_bytes: u64) -> FlashModel {
        let size_bytes = size_bytes.clamp(SIZE_MIN_BYTES, SIZE_MAX_BYTES);
        let ftl = Ftl::full(FtlConfig {
            logical_pages: size_bytes.div_ceil(PAGE_BYTES) as u32,
            block_pages: BLOCK_PAGES,
            spare_permille: card.spare_permille,
            collection: Collection::Greedy,
        });
        FlashModel {
            costs: Costs::new(card, scale),
            filled: ftl.stats(),
            ftl,
            now_ns: 0,
            free_ns: 0,
            commands: VecDeque::new(),
        }
    }

    /// Accepts a command. `advance` returns the caller's `id`.
    pub fn submit(&mut self, now_ns: u64, id: u64, op: FlashOp, offset: u64, len: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        let end = offset.saturating_add(len);
        let busy_ns = match op {
            _ if len == 0 => 0,
            FlashOp::Read => self.read(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)),
            FlashOp::Write => self.write(offset, end),
            FlashOp::Trim => self.trim(offset.div_ceil(PAGE_BYTES)..end / PAGE_BYTES),
            FlashOp::Flush => 0,
        };
        self.free_ns = self.free_ns.max(self.now_ns).saturating_add(busy_ns);
        self.commands.push_back((id, self.free_ns));
    }

    /// Time of the next completion, in nanoseconds; `None` when idle.
    pub fn next_event(&self) -> Option<u64> {
        self.commands.front().map(|&(_, done_ns)| done_ns)
    }

    /// Lets time pass and appends the ids of commands that complete by `now_ns`, in order.
    pub fn advance(&mut self, now_ns: u64, done: &mut Vec<u64>) {
        while let Some(&(id, _)) = self.commands.front().filter(|&&(_, done_ns)| done_ns <= now_ns) {
            self.commands.pop_front();
            done.push(id);
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Commands in the model, flushes included.
    pub fn in_flight(&self) -> usize {
        self.commands.len()
    }

    /// Counters since the initial fill.
    pub fn stats(&self) -> FtlStats {
        self.ftl.stats().since(&self.filled)
    }

    /// The pages of a range that the card has, and the number of pages beyond.
    fn split(&self, pages: Range<u64>) -> (Range<u32>, u64) {
        let size = u64::from(self.ftl.config().logical_pages);
        let (start, end) = (pages.start.min(size), pages.end.min(size));
        let beyond = pages.end.saturating_sub(pages.start.max(size));
        (start as u32..end as u32, beyond)
    }

    fn read(&self, pages: Range<u64>) -> u64 {
        let (inside, beyond) = self.split(pages);
        let held = inside.filter(|page| self.ftl.has(*page)).count() as u64;
        (held + beyond).saturating_mul(self.costs.read_ns)
    }

    fn write(&mut self, offset: u64, end: u64) -> u64 {
        let (first, last) = (offset / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        let mut busy_ns = 0;
        if !offset.is_multiple_of(PAGE_BYTES) {
            busy_ns += self.read(first..first + 1);
        }
        // A page with partial writes at both ends is read once.
        if !end.is_multiple_of(PAGE_BYTES) && (last != first || busy_ns == 0) {
            busy_ns += self.read(last..last + 1);
        }
        let before = self.ftl.stats();
        let (inside, beyond) = self.split(first..last + 1);
        inside.for_each(|page| self.ftl.write(page));
        let did = self.ftl.stats().since(&before);
        (busy_ns + self.costs.of(&did)).saturating_add(beyond.saturating_mul(self.costs.program_ns))
    }

    fn trim(&mut self, pages: Range<u64>) -> u64 {
        let (inside, _) = self.split(pages);
        inside.for_each(|page| self.ftl.trim(page));
        0
    }
}
