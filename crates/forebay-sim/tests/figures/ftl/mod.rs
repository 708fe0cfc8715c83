//! A model of what happens inside a flash device: pages, erase blocks, spare area, garbage
//! collection, trim.
//!
//! Flash is written by pages and erased by blocks, and a page is written once between two erasures.
//! So a device writes everything to a new place, and keeps a map from its logical pages to physical
//! ones. To collect, it picks a block, moves the pages of it that still count, and erases it. A
//! page that is moved is written once more (*write amplification*). The fuller the device, the more
//! still counts in the block that it picks. A device keeps more physical pages than it shows
//! (*spare area*), which bounds that.
//!
//! Here a device has one stream for what the host writes and one for what collection moves, and
//! collects in the foreground when free blocks run short. Which block is picked says
//! [`Collection`].
//!
//! Not modelled: wear levelling (counts of erasures are told), channels, read disturbance, caches.
//!
//! Invariants:
//! - A logical page is at one physical page or none; `valid` of a block is the number of its pages
//!   that a logical page is at.
//! - Free blocks, the two open ones and the full ones are all blocks, each once; there is always a
//!   free one to collect into.

use forebay_sim::rng::mix;

/// Pages that no logical page is at, and logical pages that are nowhere.
const NOWHERE: u32 = u32::MAX;
/// Free blocks below which a write collects first: one for each stream, and one to move to.
const FREE_MIN: usize = 3;

/// Which block is collected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collection {
    /// The one with the fewest pages that count.
    Greedy,
    /// The one for which the space gained, times the time since it was last written, is the most
    /// for the cost of reading and writing what counts: `(1 - u) * age / (1 + u)` (Rosenblum and
    /// Ousterhout, "The Design and Implementation of a Log-Structured File System", 1992, section
    /// 3.5).
    CostBenefit,
    /// The one that was written longest ago.
    Oldest,
    /// Any, by a hash of the number of erasures.
    Any,
}

/// What a device is made of.
#[derive(Clone, Copy, Debug)]
pub struct FtlConfig {
    /// Pages that the host sees.
    pub logical_pages: u32,
    /// Pages of an erase block.
    pub block_pages: u32,
    /// Physical pages beyond the logical ones, in thousandths of those.
    pub spare_permille: u32,
    /// Which block is collected.
    pub collection: Collection,
}

/// What a device did.
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
    /// Pages written to flash for each that the host wrote; 1 if it wrote none.
    #[must_use]
    pub fn write_amplification(&self) -> f64 {
        if self.host_pages == 0 {
            return 1.0;
        }
        (self.host_pages + self.moved_pages) as f64 / self.host_pages as f64
    }

    /// What was done since an earlier look.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            host_pages: self.host_pages - earlier.host_pages,
            moved_pages: self.moved_pages - earlier.moved_pages,
            erasures: self.erasures - earlier.erasures,
        }
    }
}

/// How long a device takes for a page and for a block, all its chips together.
#[derive(Clone, Copy, Debug)]
pub struct FtlTimes {
    /// Writing a page, in nanoseconds.
    pub program_ns: f64,
    /// Reading a page that is moved, in nanoseconds.
    pub read_ns: f64,
    /// Erasing a block, in nanoseconds.
    pub erase_ns: f64,
    /// Moving a page takes so many times reading and writing it: above 1 where collection has only
    /// a part of the chips.
    pub move_factor: f64,
}

impl FtlTimes {
    /// Pages that a host can write in a second while the device does what `stats` says.
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
    /// Host pages written until it was last written to.
    written_at: u64,
    erasures: u32,
}

/// See the top of the file.
#[derive(Clone, Debug)]
pub struct Ftl {
    config: FtlConfig,
    /// Physical page of each logical one.
    places: Vec<u32>,
    /// Logical page of each physical one.
    pages: Vec<u32>,
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// The block that the host writes to, and the one that collection writes to.
    open: [Option<u32>; 2],
    stats: FtlStats,
}

const HOST: usize = 0;
const MOVED: usize = 1;

impl Ftl {
    /// A device that was never written to.
    ///
    /// # Panics
    /// If there is no page, or too little spare area: blocks that are kept free, the two open ones,
    /// and so much that a full block has a page that does not count.
    #[must_use]
    pub fn new(config: FtlConfig) -> Self {
        assert!(config.logical_pages > 0 && config.block_pages > 0, "a device has pages: {config:?}");
        let spare = u64::from(config.logical_pages) * u64::from(config.spare_permille) / 1000;
        let pages = u64::from(config.logical_pages) + spare;
        let blocks = u32::try_from(pages / u64::from(config.block_pages)).expect("few enough blocks");
        let needed = config.logical_pages.div_ceil(config.block_pages) + FREE_MIN as u32 + 2;
        assert!(blocks >= needed, "{blocks} blocks, but {needed} are needed: {config:?}");
        Self {
            config,
            places: vec![NOWHERE; config.logical_pages as usize],
            pages: vec![NOWHERE; (blocks * config.block_pages) as usize],
            blocks: vec![Block::default(); blocks as usize],
            free: (0..blocks).rev().collect(),
            open: [None; 2],
            stats: FtlStats::default(),
        }
    }

    /// What it did so far.
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
        while self.free.len() < FREE_MIN {
            self.collect();
        }
    }

    /// The host does not need a page any more.
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
            self.blocks[(place / self.config.block_pages) as usize].valid -= 1;
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
        self.open[stream] = (block.used < self.config.block_pages).then_some(number);
        self.pages[place as usize] = page;
        let old = std::mem::replace(&mut self.places[page as usize], place);
        self.void(old);
    }

    /// Moves what counts of a block, and erases it.
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
        self.stats.erasures += 1;
        self.free.push(victim);
    }

    fn victim(&self) -> u32 {
        let full = (0..).zip(&self.blocks).filter(|(_, block)| block.used == self.config.block_pages);
        let picked = match self.config.collection {
            Collection::Greedy => full.min_by_key(|(number, block)| (block.valid, *number)),
            Collection::CostBenefit => full.max_by(|a, b| self.worth(a.1).total_cmp(&self.worth(b.1))),
            Collection::Oldest => full.min_by_key(|(number, block)| (block.written_at, *number)),
            Collection::Any => {
                let start = (mix(self.stats.erasures) % self.blocks.len() as u64) as u32;
                full.min_by_key(|(number, _)| (*number < start, *number))
            }
        };
        picked.expect("spare blocks are full when no other is").0
    }

    /// What collecting a block gives for its cost.
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
        let mapped = self.pages.iter().filter(|page| **page != NOWHERE).count();
        assert_eq!(mapped, valid.iter().sum::<u32>() as usize);
        assert!(
            self.free.iter().all(|number| self.blocks[*number as usize].used == 0),
            "a free block was written to"
        );
    }
}

#[cfg(test)]
mod tests;
