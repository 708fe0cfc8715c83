//! The state of a recovery: its findings, and its waits.

use crate::api::config::Attachment;
use crate::context::recovery_reads::{CopyOf, RecoveryTarget};
use crate::recovery::extension::Extending;
use crate::recovery::scan::{Found, Tail};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use forebay_format::FormatError;
use forebay_format::VolumeId;
use forebay_format::checkpoint::Checkpoint;
use forebay_format::superblock::Superblock;

/// A segment that is read block by block.
#[derive(Debug)]
pub(super) struct Pieces {
    pub(super) bytes: Vec<u8>,
    pub(super) bad: Vec<bool>,
    pub(super) left: u32,
}

/// Recovery: a part of the engine that exists until the cache is open.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(super) device_bytes: u64,
    pub(super) attachments: Vec<Attachment>,
    pub(super) superblocks: Vec<(CopyOf, Result<Superblock, FormatError>)>,
    /// Copies being read.
    pub(super) expected: usize,
    pub(super) unreadable: usize,
    /// Members (of a mirrored cache, else 0) and copies of the checkpoint in effect, in the order
    /// of the attempts.
    pub(super) checkpoints: Vec<(usize, u64)>,
    /// A mirrored cache: pairs that are read from both members.
    pub(super) pairs: Pairs,
    pub(super) rewrite: Rewrite,
    pub(super) extending: Extending,
    /// A copy of a window extension was damaged.
    pub(super) extensions_damaged: bool,
    pub(super) checkpoint: Checkpoint,
    /// Size of every volume in bytes, 0 for those that are not in the table.
    pub(super) ends: Vec<u64>,
    pub(super) jobs: Vec<RecoveryTarget>,
    pub(super) in_flight: usize,
    pub(super) whole_in_flight: usize,
    pub(super) tails: Vec<Tail>,
    pub(super) pieces: BTreeMap<u32, Pieces>,
    pub(super) verdicts: Vec<Verdict>,
    pub(super) settling: Vec<VolumeId>,
    pub(super) pending_flushes: u32,
    pub(super) flush_failed: bool,
}

/// One half of a pair as it was read.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) bytes: Vec<u8>,
    pub(super) bad: Vec<bool>,
}

#[derive(Debug, Default)]
pub(super) struct PairRead {
    /// Halves that are being read.
    pub(super) expected: [bool; 2],
    pub(super) found: [Option<Half>; 2],
    /// The second half may be a segment of its own: the use of the column is unknown.
    pub(super) single: bool,
}

/// Pairs that are being read, and blocks that members lack of them.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) reads: BTreeMap<u32, PairRead>,
    /// Columns whose read has begun.
    pub(super) begun: BTreeSet<u32>,
    pub(super) repairs: Vec<(u64, Vec<u8>)>,
    pub(super) repairing: u32,
}

/// Batches to rewrite: segment, first block, end.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    pub(super) ranges: Vec<(u32, u32, u32)>,
    /// Segment, offset in the cache, length in bytes.
    pub(super) pieces: Vec<(u32, u64, u64)>,
    pub(super) in_flight: usize,
    /// Number of failed writes.
    pub(super) failures: u32,
    pub(super) volumes: Vec<VolumeId>,
}

impl Rewrite {
    /// Adds a committed batch of a segment that no later batch proves flushed.
    pub(super) fn add(&mut self, segment: u32, batch: &Found) {
        match self.ranges.last_mut() {
            Some((number, _, end)) if (*number, *end) == (segment, batch.start) => *end = batch.end(),
            _ => self.ranges.push((segment, batch.start, batch.end())),
        }
    }
}

/// A block with known content on the backing store, if nothing else has written to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) block: u64,
    pub(super) crc32c: u32,
}

/// Findings about one attached volume.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(super) samples: Vec<Sample>,
    pub(super) matched: u32,
    pub(super) changed: bool,
    pub(super) unsure: bool,
    /// It is unknown whether it was changed: clean blocks are not live.
    pub(super) uncertain: bool,
}

impl Verdict {
    /// The next block to compare, if that can still change the verdict.
    pub(crate) fn next_sample(&self) -> Option<u64> {
        self.samples.last().filter(|_| !self.changed).map(|sample| sample.block)
    }

    /// The block of the last sample was read and has this checksum.
    pub(crate) fn compare(&mut self, crc: Option<u32>) {
        if let Some(sample) = self.samples.pop() {
            let same = crc == Some(sample.crc32c);
            self.matched += u32::from(same);
            self.changed |= !same;
        }
    }

    /// True if a backing store has changed: its modification stamp did, a sample differs, or it has
    /// another identity and no sample matches.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed || self.unsure && self.matched == 0
    }

    /// It may have changed: clean blocks are dropped, dirty ones stay.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.uncertain && !self.is_changed()
    }
}
