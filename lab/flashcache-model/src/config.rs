//! Settings, with FlashCache's names and defaults, and the layout of the cache device.

use crate::api::{BLOCK_BYTES, Nanos, SECOND};
use std::fmt;

/// Bytes of a block, as `u64`.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Slots described by one metadata block of 4096 bytes: 16 bytes each.
pub const SLOTS_PER_META_BLOCK: u32 = 256;

/// The write mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// To the flash first, and to the disk later.
    Back,
    /// To both before the reply.
    Through,
    /// To the disk; cached blocks are dropped.
    Around,
}

impl Mode {
    /// All modes, in the order of the help text.
    pub const ALL: [Mode; 3] = [Mode::Back, Mode::Through, Mode::Around];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Back => "back",
            Mode::Through => "through",
            Mode::Around => "around",
        }
    }
}

/// The eviction policy for clean blocks of a set (`reclaim_policy`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaim {
    /// By a pointer that rotates through the set.
    Fifo,
    /// The least recently used one of the warm list, then of the hot list.
    Lru,
}

impl Reclaim {
    /// All policies, in the order of the help text.
    pub const ALL: [Reclaim; 2] = [Reclaim::Fifo, Reclaim::Lru];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reclaim::Fifo => "fifo",
            Reclaim::Lru => "lru",
        }
    }
}

/// The handling of a FLUSH, and of a write with FUA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// The reply is immediate, without a device flush: durability rests on a flash without volatile
    /// cache, as with FlashCache.
    Ignore,
    /// The flash is flushed, and the disk if clients have written to it since its last flush.
    Device,
}

impl Flush {
    /// All, in the order of the help text.
    pub const ALL: [Flush; 2] = [Flush::Ignore, Flush::Device];

    /// Returns the name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Flush::Ignore => "ignore",
            Flush::Device => "device",
        }
    }
}

/// Settings; [`Config::default`] has FlashCache's defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The write mode.
    pub mode: Mode,
    /// Blocks of a set: a power of two from 256 to 8192.
    pub assoc: u32,
    /// Percent of a set's blocks that may be dirty before it is cleaned: 10 to 95.
    pub dirty_thresh_pct: u32,
    /// The eviction policy for clean blocks.
    pub reclaim: Reclaim,
    /// Blocks under cleaning in a set, above which it selects no more victims.
    pub max_clean_ios_set: u32,
    /// The same for all sets together.
    pub max_clean_ios_total: u32,
    /// Time between two sweeps that look for idle dirty blocks; 0: none.
    pub fallow_delay: Nanos,
    /// Batches of idle blocks that a set may clean in a second.
    pub fallow_clean_speed: u32,
    /// The handling of a FLUSH.
    pub flush: Flush,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::Back,
            assoc: 512,
            dirty_thresh_pct: 20,
            reclaim: Reclaim::Fifo,
            max_clean_ios_set: 2,
            max_clean_ios_total: 4,
            fallow_delay: 900 * SECOND,
            fallow_clean_speed: 2,
            flush: Flush::Ignore,
        }
    }
}

/// The reason for refusing settings or a cache of this size, in words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Config {
    /// # Errors
    /// Returns an error if a value is out of its range.
    pub fn check(&self) -> Result<(), Refused> {
        let refuse = |what: String| Err(Refused(what));
        if !self.assoc.is_power_of_two() || !(256..=8192).contains(&self.assoc) {
            return refuse(format!("assoc is {}, and must be a power of two from 256 to 8192", self.assoc));
        }
        if !(10..=95).contains(&self.dirty_thresh_pct) {
            return refuse(format!("dirty_thresh_pct is {}, and must be 10 to 95", self.dirty_thresh_pct));
        }
        if self.max_clean_ios_set == 0 || self.max_clean_ios_total == 0 {
            return refuse("max_clean_ios_set and max_clean_ios_total must be at least 1".into());
        }
        if !(1..=100).contains(&self.fallow_clean_speed) {
            return refuse(format!(
                "fallow_clean_speed is {}, and must be 1 to 100",
                self.fallow_clean_speed
            ));
        }
        Ok(())
    }

    /// Returns the number of dirty blocks of a set above which it is cleaned.
    #[must_use]
    pub fn dirty_thresh_set(&self) -> u32 {
        self.assoc * self.dirty_thresh_pct / 100
    }
}

/// The layout of the cache device: a superblock, metadata blocks, data. All in blocks of 4096
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Blocks of a set.
    pub assoc: u32,
    /// Sets.
    pub sets: u32,
    /// Start of the data, in bytes.
    pub data_offset: u64,
}

impl Layout {
    /// Fits as many whole sets as possible on a device of this many bytes.
    ///
    /// # Errors
    /// Returns an error if not even one fits, or there would be more than 2^32 blocks.
    pub fn new(cache_bytes: u64, assoc: u32) -> Result<Layout, Refused> {
        // A metadata block describes slots of a single set: each set has its own assoc / 256
        // blocks.
        let meta_per_set = u64::from(assoc / SLOTS_PER_META_BLOCK);
        let sets = (cache_bytes / BLOCK).saturating_sub(1) / (u64::from(assoc) + meta_per_set);
        let slots = sets.saturating_mul(u64::from(assoc));
        if sets == 0 || slots > u64::from(u32::MAX) {
            return Err(Refused(format!(
                "a cache of {cache_bytes} bytes cannot be divided into sets of {assoc} blocks of 4 KiB and their metadata"
            )));
        }
        Ok(Layout { assoc, sets: sets as u32, data_offset: (1 + sets * meta_per_set) * BLOCK })
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.sets * self.assoc
    }

    /// Returns the number of metadata blocks.
    #[must_use]
    pub fn meta_blocks(&self) -> u32 {
        self.slots() / SLOTS_PER_META_BLOCK
    }

    /// Returns the offset of a slot's data on the cache device, in bytes.
    #[must_use]
    pub fn slot_offset(&self, slot: u32) -> u64 {
        self.data_offset + u64::from(slot) * BLOCK
    }

    /// Returns the offset of a metadata block on the cache device, in bytes.
    #[must_use]
    pub fn meta_offset(&self, meta_block: u32) -> u64 {
        (1 + u64::from(meta_block)) * BLOCK
    }

    /// Returns the set of a block of the disk: consecutive `assoc` blocks share one (placement of
    /// on-SSD versions before 3, and of later ones with `disk_assoc` 0, which is the default of the
    /// tool).
    #[must_use]
    pub fn set_of(&self, block: u64) -> u32 {
        (block / u64::from(self.assoc) % u64::from(self.sets)) as u32
    }
}
