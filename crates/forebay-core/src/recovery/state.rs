//! The state of a recovery: what it has found out, and what it still waits for.

use crate::api::config::Attachment;
use crate::context::recovery_reads::{CopyOf, What};
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

/// Opening a cache: a part of the engine, there until the cache is open.
#[derive(Debug)]
pub(crate) struct Recovery {
    pub(super) device_bytes: u64,
    pub(super) attachments: Vec<Attachment>,
    pub(super) superblocks: Vec<(CopyOf, Result<Superblock, FormatError>)>,
    /// Copies that are read.
    pub(super) expected: usize,
    pub(super) unreadable: usize,
    /// Members (of a mirrored cache, else 0) and copies of the checkpoint in effect, in the order
    /// in which they are tried.
    pub(super) checkpoints: Vec<(usize, u64)>,
    /// A mirrored cache: pairs of which both halves are read.
    pub(super) pairs: Pairs,
    pub(super) rewrite: Rewrite,
    pub(super) extending: Extending,
    /// A copy of an extension of the window was damaged.
    pub(super) extensions_damaged: bool,
    pub(super) checkpoint: Checkpoint,
    /// Size of every volume of the table in bytes, 0 for those that it does not list.
    pub(super) ends: Vec<u64>,
    pub(super) jobs: Vec<What>,
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
    /// Halves that are read.
    pub(super) expected: [bool; 2],
    pub(super) found: [Option<Half>; 2],
    /// The second half may be a segment of its own: nothing says what the column was used for.
    pub(super) single: bool,
}

/// Pairs that are being read, and what members lack of them.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    pub(super) reads: BTreeMap<u32, PairRead>,
    /// Columns that are being read, or were.
    pub(super) begun: BTreeSet<u32>,
    pub(super) mends: Vec<(u64, Vec<u8>)>,
    pub(super) mending: u32,
}

/// What is to be written again: segments, and blocks from and to.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    pub(super) ranges: Vec<(u32, u32, u32)>,
    /// Segment, first byte in the cache, bytes.
    pub(super) pieces: Vec<(u32, u64, u64)>,
    pub(super) in_flight: usize,
    /// Writes that have failed.
    pub(super) failures: u32,
    pub(super) volumes: Vec<VolumeId>,
}

impl Rewrite {
    /// This batch of a segment counts, and none says that it was flushed.
    pub(super) fn add(&mut self, segment: u32, batch: &Found) {
        match self.ranges.last_mut() {
            Some((number, _, end)) if (*number, *end) == (segment, batch.start) => *end = batch.end(),
            _ => self.ranges.push((segment, batch.start, batch.end())),
        }
    }
}

/// A block whose content on the backing store is known if nobody touched it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) block: u64,
    pub(super) crc32c: u32,
}

/// What is found out about one attached volume.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(super) samples: Vec<Sample>,
    pub(super) matched: u32,
    pub(super) changed: bool,
    pub(super) unsure: bool,
    /// Nobody knows whether it was changed: clean blocks do not count.
    pub(super) uncertain: bool,
}

impl Verdict {
    /// The next block to be compared, if that can still change the verdict.
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

    /// A backing store has changed if its modification stamp did, if a sample differs, or if it is
    /// another one by its identity and nothing speaks for it.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed || self.unsure && self.matched == 0
    }

    /// It may have changed: clean blocks are dropped, dirty ones stay.
    pub(crate) fn is_uncertain(&self) -> bool {
        self.uncertain && !self.is_changed()
    }
}
