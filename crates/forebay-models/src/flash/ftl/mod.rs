//! A model of the inside of a flash device: pages, erase blocks, spare area, garbage collection,
//! trim.
//!
//! Flash is written by pages and erased by blocks, and a page is written once between two erasures.
//! So a device writes all data to new places, and keeps a map from logical pages to physical ones.
//! To collect, it picks a block, moves its valid pages, and erases it. A moved page is written once
//! more (*write amplification*). The fuller the device, the more valid pages the picked block has.
//! The device keeps more physical pages than it shows (*spare area*), which bounds that.
//!
//! The modelled device has one stream for host writes and one for pages that collection moves, and
//! collects in the foreground when free blocks run short. [`Collection`] defines which block it
//! picks.
//!
//! Not modelled: wear levelling (erasures are counted), channels, read disturbance, caches.
//!
//! Invariants:
//! - A logical page is at one physical page or none; `valid` of a block is the number of its pages
//!   that hold a logical page.
//! - Every block is free, one of the two open ones, or full; there is always a free one to collect
//!   into.
//! - `counting` of a full block is its `valid`; of others it is `NOT_FULL`.
//! - After its creation a device does not allocate memory.

/// Marks physical pages without a logical page, and logical pages without a physical one.
const NOWHERE: u32 = u32::MAX;
/// Free blocks below which a write collects first: one for each stream, and one to move pages to.
const FREE_MIN: u32 = 3;
/// More valid pages than any block has: blocks that are not full are not collected.
const NOT_FULL: u32 = u32::MAX;

/// Choice of the block to collect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collection {
    /// The block with the fewest valid pages.
    Greedy,
    /// The block with the most space gained, times the time since it was last written, for the cost
    /// of reading and writing its valid pages: `(1 - u) * age / (1 + u)` (Rosenblum and Ousterhout,
    /// "The Design and Implementation of a Log-Structured File System", 1992, section 3.5).
    CostBenefit,
    /// The block that was written longest ago.
    Oldest,
    /// Any, by a hash of the number of erasures.
    Any,
}

/// Geometry of a device.
#[derive(Clone, Copy, Debug)]
pub struct FtlConfig {
    /// Pages that the host sees.
    pub logical_pages: u32,
    /// Pages of an erase block.
    pub block_pages: u32,
    /// Physical pages beyond the logical ones, in thousandths of those.
    pub spare_permille: u32,
    /// Choice of the block to collect.
    pub collection: Collection,
}

impl FtlConfig {
    /// Number of erase blocks. `None` if there are no pages, more pages than the maps can hold, or
    /// too little spare area: it must hold the blocks kept free, the two open ones, and enough that
    /// a full block has an invalid page.
    #[must_use]
    pub fn blocks(&self) -> Option<u32> {
        let spare = u64::from(self.logical_pages) * u64::from(self.spare_permille) / 1000;
        let pages = u64::from(self.logical_pages) + spare;
        let blocks = pages.checked_div(u64::from(self.block_pages))?;
        let needed = u64::from(self.logical_pages.div_ceil(self.block_pages) + FREE_MIN + 2);
        let fits = self.logical_pages > 0 && pages < u64::from(NOWHERE) && blocks >= needed;
        fits.then_some(blocks as u32)
    }
}

/// Counters of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FtlStats {
    /// Pages that the host wrote.
    pub host_pages: u64,
    /// Pages that collection moved.
    pub moved_pages: u64,
    /// Blocks erased.
    pub erasures: u64,
}

impl FtlStats {
    /// Pages written to flash for each host page; 1 if the host wrote none.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        if self.host_pages == 0 {
            return 1.0;
        }
        (self.host_pages + self.moved_pages) as f64 / self.host_pages as f64
    }

    /// Difference to earlier counters.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            host_pages: self.host_pages - earlier.host_pages,
            moved_pages: self.moved_pages - earlier.moved_pages,
            erasures: self.erasures - earlier.erasures,
        }
    }
}

/// Times of a device for a page and for a block, with all its chips in parallel.
#[derive(Clone, Copy, Debug)]
pub struct FtlTimes {
    /// Writing a page, in nanoseconds.
    pub program_ns: f64,
    /// Reading a page to move it, in nanoseconds.
    pub read_ns: f64,
    /// Erasing a block, in nanoseconds.
    pub erase_ns: f64,
    /// Factor on the time of reading and writing a moved page: above 1 if collection uses only a
    /// part of the chips.
    pub move_factor: f64,
}

impl FtlTimes {
    /// Pages that a host can write per second with the proportions of `stats`.
    #[must_use]
    pub fn pages_per_s(&self, stats: &FtlStats) -> f64 {
        let move_ns = self.move_factor * (self.read_ns + self.program_ns);
        let written = stats.host_pages as f64 * self.program_ns + stats.moved_pages as f64 * move_ns;
        let busy = written + stats.erasures as f64 * self.erase_ns;
        if busy > 0.0 { stats.host_pages as f64 * 1e9 / busy } else { 0.0 }
    }
}

/// An erase block.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    valid: u32,
    /// Pages written since it was erased.
    used: u32,
    /// Number of host pages written when the block was last written to.
    written_at: u64,
    erasures: u32,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Ftl {
    config: FtlConfig,
    /// Physical page of each logical one.
    places: Vec<u32>,
    /// Logical page of each physical one.
    pages: Vec<u32>,
    blocks: Vec<Block>,
    /// Valid pages of each block, contiguous, because greedy collection scans them for each erased
    /// block.
    counting: Vec<u32>,
    free: Vec<u32>,
    /// The block that the host writes to, and the one that collection writes to.
    open: [Option<u32>; 2],
    stats: FtlStats,
}

const HOST: usize = 0;
const MOVED: usize = 1;

impl Ftl {
    /// Creates a device that was never written to.
    ///
    /// # Panics
    /// If [`FtlConfig::blocks`] returns `None`.
    #[must_use]
    pub fn new(config: FtlConfig) -> Self {
        let blocks = config.blocks();
        let blocks = blocks.unwrap_or_else(|| panic!("no pages, or too few to collect: {config:?}"));
        Self {
            config,
            places: vec![NOWHERE; config.logical_pages as usize],
            pages: vec![NOWHERE; (blocks * config.block_pages) as usize],
            blocks: vec![Block::default(); blocks as usize],
            counting: vec![NOT_FULL; blocks as usize],
            free: (0..blocks).rev().collect(),
            open: [None; 2],
            stats: FtlStats::default(),
        }
    }

    /// Creates a device each of whose pages was written once, from the first to the last.
    ///
    /// # Panics
    /// As [`Ftl::new`].
    #[must_use]
    pub fn full(config: FtlConfig) -> Self {
        let mut ftl = Self::new(config);
        (0..config.logical_pages).for_each(|page| ftl.write(page));
        ftl
    }

    /// Geometry of the device.
    #[must_use]
    pub fn config(&self) -> FtlConfig {
        self.config
    }

    /// Returns whether a page was written, and not trimmed since.
    ///
    /// # Panics
    /// If the device has no such page.
    #[must_use]
    pub fn has(&self, page: u32) -> bool {
        self.places[page as usize] != NOWHERE
    }

    /// Its counters.
    #[must_use]
    pub fn stats(&self) -> FtlStats {
        self.stats
    }

    /// The host writes a page.
    ///
    /// # Panics
    /// If the device has no such page.
    pub fn write(&mut self, page: u32) {
        self.stats.host_pages += 1;
        self.append(HOST, page);
        while self.free.len() < FREE_MIN as usize {
            self.collect();
        }
    }

    /// The host discards a page.
    ///
    /// # Panics
    /// If the device has no such page.
    pub fn trim(&mut self, page: u32) {
        let place = std::mem::replace(&mut self.places[page as usize], NOWHERE);
        self.void(place);
    }

    fn void(&mut self, place: u32) {
        if place != NOWHERE {
            self.pages[place as usize] = NOWHERE;
            let number = (place / self.config.block_pages) as usize;
            self.blocks[number].valid -= 1;
            if self.counting[number] != NOT_FULL {
                self.counting[number] -= 1;
            }
        }
    }

    /// Writes a page to the block that is open for `stream`.
    fn append(&mut self, stream: usize, page: u32) {
        let number = match self.open[stream] {
            Some(number) => number,
            None => self.free.pop().expect("a free block is kept for this"),
        };
        let block = &mut self.blocks[number as usize];
        let place = number * self.config.block_pages + block.used;
        (block.used, block.valid, block.written_at) =
            (block.used + 1, block.valid + 1, self.stats.host_pages);
        let is_full = block.used == self.config.block_pages;
        if is_full {
            self.counting[number as usize] = block.valid;
        }
        self.open[stream] = (!is_full).then_some(number);
        self.pages[place as usize] = page;
        let old = std::mem::replace(&mut self.places[page as usize], place);
        self.void(old);
    }

    /// Moves the valid pages of a block, and erases it.
    fn collect(&mut self) {
        let victim = self.victim();
        let first = victim * self.config.block_pages;
        for place in first..first + self.config.block_pages {
            let page = self.pages[place as usize];
            if page != NOWHERE {
                self.stats.moved_pages += 1;
                self.append(MOVED, page);
            }
        }
        let block = &mut self.blocks[victim as usize];
        debug_assert_eq!(block.valid, 0, "everything was moved");
        *block = Block { erasures: block.erasures + 1, ..Block::default() };
        self.counting[victim as usize] = NOT_FULL;
        self.stats.erasures += 1;
        self.free.push(victim);
    }

    fn victim(&self) -> u32 {
        let full = (0..).zip(&self.blocks).filter(|(_, block)| block.used == self.config.block_pages);
        let picked = match self.config.collection {
            Collection::Greedy => return self.emptiest(),
            Collection::CostBenefit => full.max_by(|a, b| self.worth(a.1).total_cmp(&self.worth(b.1))),
            Collection::Oldest => full.min_by_key(|(number, block)| (block.written_at, *number)),
            Collection::Any => {
                let start = (mix(self.stats.erasures) % self.blocks.len() as u64) as u32;
                full.min_by_key(|(number, _)| (*number < start, *number))
            }
        };
        picked.expect("spare blocks are full when no other is").0
    }

    /// The first of the full blocks with the fewest valid pages. Scans four bytes of each block, in
    /// a loop without branches: microseconds for a card of a GiB, once per erasure.
    fn emptiest(&self) -> u32 {
        let least = self.counting.iter().copied().min().unwrap_or(NOT_FULL);
        debug_assert_ne!(least, NOT_FULL, "spare blocks are full when no other is");
        self.counting.iter().position(|counting| *counting == least).unwrap_or(0) as u32
    }

    /// Benefit of collecting a block in relation to its cost.
    fn worth(&self, block: &Block) -> f64 {
        let counts = f64::from(block.valid) / f64::from(self.config.block_pages);
        let age = (self.stats.host_pages - block.written_at) as f64;
        (1.0 - counts) * age / (1.0 + counts)
    }

    /// Checks the invariants, for tests.
    #[cfg(test)]
    fn check(&self) {
        let mut valid = vec![0; self.blocks.len()];
        for (page, place) in self.places.iter().enumerate().filter(|(_, place)| **place != NOWHERE) {
            assert_eq!(self.pages[*place as usize] as usize, page, "the maps disagree");
            valid[(place / self.config.block_pages) as usize] += 1;
        }
        let counted: Vec<u32> = self.blocks.iter().map(|block| block.valid).collect();
        assert_eq!(valid, counted);
        for (block, counting) in self.blocks.iter().zip(&self.counting) {
            let is_full = block.used == self.config.block_pages;
            assert_eq!(*counting, if is_full { block.valid } else { NOT_FULL });
        }
        let mapped = self.pages.iter().filter(|page| **page != NOWHERE).count();
        assert_eq!(mapped, valid.iter().sum::<u32>() as usize);
        assert!(
            self.free.iter().all(|number| self.blocks[*number as usize].used == 0),
            "a free block was written to"
        );
    }
}

/// One step of splitmix64: a good mix of one word.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
