//! Reads the devices of a cache while no daemon has them open, and judges which devices belong to
//! it.
//!
//! `forebay check`, `inspect` and `salvage` print what this library finds. The daemon asks it which
//! devices belong to a cache before it opens one. It reads the format independently of the engine,
//! after `docs/internals/on-disk-format.md`: if the two disagree, one of them has a bug.
//!
//! Which devices belong to a cache, for the daemon too:
//! - [`device`]: what is on a device;
//! - [`signature`]: whether a device belongs to a cache at all, for udev;
//! - [`occupant`]: what is on a device that is none, for messages;
//! - [`members`]: the further devices of a cache on several ones;
//! - [`mirror_members`]: the two devices of a mirrored cache;
//! - [`key`]: the key of an encrypted cache.
//!
//! Contents of the devices, for the offline commands:
//! - `space`: the devices, and which part of the cache lies on which;
//! - [`mirror`]: the two devices of a mirrored cache, together or each alone; `copies` merges a
//!   segment that both have;
//! - [`image`]: superblocks and checkpoints;
//! - [`exported`]: the settings on a cache that was exported;
//! - `batch`: the bytes of a segment, and the batches in them;
//! - [`log`]: which batches count after a checkpoint;
//! - [`verdict`]: the state of every slot, and whether its bytes are right;
//! - [`salvage`]: what is dirty and provably current, also if the engine would refuse the cache;
//! - [`message`]: what errors of devices and formats are about, for scripts;
//! - `rebuild`: the layout of a cache without superblocks;
//! - `scan`: the log of a cache whose checkpoint or log is damaged.
//!
//! Invariants
//! - No device is written to.
//! - Any bytes may be on the device. What is not valid becomes a [`Finding`] or a [`Refusal`].
//! - Memory is bounded by a segment (two of a mirrored cache), the checkpoint, and what was logged
//!   after it. It does not grow with the cache. Only salvage without a checkpoint has an entry for
//!   every block.
#![forbid(unsafe_code)]

mod batch;
mod chain;
mod copies;
pub mod device;
pub mod exported;
mod extension;
pub mod image;
pub mod key;
pub mod log;
pub mod members;
pub mod message;
pub mod mirror;
pub mod mirror_members;
pub mod occupant;
mod rebuild;
mod refusal;
pub mod salvage;
mod scan;
pub mod signature;
mod space;
pub mod verdict;

pub use key::{Key, unlock};
pub use refusal::Refusal;
pub use space::Given;

#[cfg(test)]
mod tests;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// As it should be, worth knowing.
    Note,
    /// Damaged, and Forebay can do without: another copy says the same, or the backing store has
    /// the data.
    Damaged,
    /// The only copy of something is damaged, or the cache will be refused.
    Lost,
}

impl Severity {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Damaged => "damaged",
            Self::Lost => "lost",
        }
    }
}

/// Something that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Where, in words of the format.
    pub place: String,
    /// What.
    pub what: String,
}

/// Findings, of which so many are kept; the others are counted.
#[derive(Debug, Default)]
pub struct Findings {
    /// The first ones.
    pub kept: Vec<Finding>,
    /// How many were [`Severity::Damaged`], kept or not.
    pub damaged: u64,
    /// How many were [`Severity::Lost`], kept or not.
    pub lost: u64,
}

/// Findings kept.
const KEPT_MAX: usize = 1000;

impl Findings {
    /// Adds one.
    pub fn add(&mut self, severity: Severity, place: impl Into<String>, what: impl Into<String>) {
        match severity {
            Severity::Note => {}
            Severity::Damaged => self.damaged += 1,
            Severity::Lost => self.lost += 1,
        }
        if self.kept.len() < KEPT_MAX {
            self.kept.push(Finding { severity, place: place.into(), what: what.into() });
        }
    }

    /// How many are more than notes.
    pub fn faults(&self) -> u64 {
        self.damaged + self.lost
    }

    /// The worst that was kept.
    pub fn worst(&self) -> Option<&Finding> {
        let mut worst: Option<&Finding> = None;
        for finding in self.kept.iter().filter(|finding| finding.severity > Severity::Note) {
            if worst.is_none_or(|worst| finding.severity > worst.severity) {
                worst = Some(finding);
            }
        }
        worst
    }
}
