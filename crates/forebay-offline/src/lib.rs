//! Reads the devices of a cache while no daemon has them open, and judges which devices belong to
//! it.
//!
//! `forebay check`, `inspect` and `salvage` print the findings of this library. The daemon uses it
//! to check which devices belong to a cache before it opens one. It reads the format independently
//! of the engine, by `docs/internals/on-disk-format.md`: if the two disagree, one of them has a
//! bug.
//!
//! Which devices belong to a cache, for the daemon too:
//! - [`device`]: the content of a device;
//! - [`signature`]: whether a device belongs to a cache at all, for udev;
//! - [`occupant`]: the content of a device that is not a cache device, for messages;
//! - [`members`]: the further devices of a cache on several ones;
//! - [`mirror_members`]: the two devices of a mirrored cache;
//! - [`key`]: the key of an encrypted cache.
//!
//! Contents of the devices, for the offline commands:
//! - `space`: the devices, and their parts of the cache;
//! - [`mirror`]: the two devices of a mirrored cache, together or each alone; `copies` merges a
//!   segment that both have;
//! - [`image`]: superblocks and checkpoints;
//! - [`exported`]: the settings on a cache that was exported;
//! - `batch`: the bytes of a segment, and the batches in them;
//! - [`log`]: which batches count after a checkpoint;
//! - [`verdict`]: the state of every slot, and whether its bytes are intact;
//! - [`salvage`]: dirty and provably current data, also if the engine would refuse the cache;
//! - [`message`]: message ids for errors of devices and formats, for scripts;
//! - `rebuild`: the layout of a cache without superblocks;
//! - `scan`: the log of a cache whose checkpoint or log is damaged.
//!
//! Invariants
//! - No code writes to a device.
//! - Any bytes may be on the device. Invalid ones become a [`Finding`] or a [`Refusal`].
//! - Memory is bounded by a segment (two of a mirrored cache), the checkpoint, and the log after
//!   it. It does not grow with the cache. Only salvage without a checkpoint has an entry for every
//!   block.
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

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// As expected, but worth reporting.
    Note,
    /// Damaged, but not needed: another copy is intact, or the backing store has the data.
    Damaged,
    /// The only copy of some data is damaged, or the cache will be refused.
    Lost,
}

impl Severity {
    /// Returns one word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Damaged => "damaged",
            Self::Lost => "lost",
        }
    }
}

/// A finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// Its place, in words of the format.
    pub place: String,
    /// Its description.
    pub what: String,
}

/// Findings, of which a limited number is kept; the others are counted.
#[derive(Debug, Default)]
pub struct Findings {
    /// The first ones.
    pub kept: Vec<Finding>,
    /// Number of findings with [`Severity::Damaged`], kept or not.
    pub damaged: u64,
    /// Number of findings with [`Severity::Lost`], kept or not.
    pub lost: u64,
}

/// Limit of findings kept.
const KEPT_MAX: usize = 1000;

impl Findings {
    /// Adds a finding.
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

    /// Returns the number of findings above notes.
    pub fn faults(&self) -> u64 {
        self.damaged + self.lost
    }

    /// Returns the worst finding kept.
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
