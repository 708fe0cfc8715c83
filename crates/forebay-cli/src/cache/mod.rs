//! A cache device as it lies there: read, never written, and not believed.
//!
//! This is a second reader of the format, written from `docs/internals/on-disk-format.md` and independent of the engine: if the two
//! disagree, one of them has a bug.
//!
//! - [`space`]: the devices, and which part of the cache lies on which;
//! - [`mates`]: the two devices of a mirrored cache, together or each for itself; [`copies`]: a segment that both have;
//! - [`image`]: superblocks and checkpoints;
//! - [`log`]: batches of a segment, and which of them count after a checkpoint;
//! - [`verdict`]: what every slot is worth after all that, and whether its bytes are right;
//! - [`salvage`]: what of it is dirty and provably current, also if the engine would refuse the cache ([`rebuild`] finds the
//!   layout of one without superblocks, [`scan`] reads the log of one whose checkpoint or log is damaged).
//!
//! Invariants
//! - Any bytes may be on the device; what cannot be believed becomes a [`Finding`] or a [`crate::failure::Failure`].
//! - Memory is bounded by a segment (of a mirrored cache two), the checkpoint, and what was logged after it, not by the size of
//!   the cache. Only salvage of a cache without a checkpoint holds an entry for every block in it.

mod copies;
pub(crate) mod image;
pub(crate) mod log;
pub(crate) mod mates;
mod rebuild;
pub(crate) mod salvage;
mod scan;
pub(crate) mod space;
pub(crate) mod verdict;

#[cfg(test)]
mod tests;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Severity {
    /// As it should be, worth knowing.
    Note,
    /// Damaged, and Forebay can do without: another copy says the same, or the backing store has the data.
    Damaged,
    /// The only copy of something is damaged, or the cache will be refused.
    Lost,
}

impl Severity {
    /// One word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Damaged => "damaged",
            Self::Lost => "lost",
        }
    }
}

/// Something that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// Where, in words of the format.
    pub(crate) place: String,
    /// What.
    pub(crate) what: String,
}

impl Finding {
    /// For scripts.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::json!({ "severity": self.severity.name(), "where": self.place, "what": self.what })
    }
}

/// Findings, of which so many are kept; the others are counted.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) kept: Vec<Finding>,
    pub(crate) damaged: u64,
    pub(crate) lost: u64,
}

/// Findings kept.
const KEPT_MAX: usize = 1000;

impl Findings {
    /// Adds one.
    pub(crate) fn add(&mut self, severity: Severity, place: impl Into<String>, what: impl Into<String>) {
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
    pub(crate) fn faults(&self) -> u64 {
        self.damaged + self.lost
    }

    /// The worst that was kept.
    pub(crate) fn worst(&self) -> Option<&Finding> {
        let mut worst: Option<&Finding> = None;
        for finding in self.kept.iter().filter(|finding| finding.severity > Severity::Note) {
            if worst.is_none_or(|worst| finding.severity > worst.severity) {
                worst = Some(finding);
            }
        }
        worst
    }
}
