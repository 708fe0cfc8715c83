//! The log of a cache that the engine refuses: every batch that can be found, in all segments.
//!
//! A hole is a missing batch of which a later batch says that it had been flushed. Without such a
//! proof the stream ends there, as in recovery, and what follows was never promised. A missing
//! batch may have replaced, cleaned or dropped anything older. It did not touch what was logged
//! after it. So everything is known from the sequence [`Log::certain_from`] on.

use std::collections::BTreeMap;

use forebay_format::StreamKind;
use forebay_format::batch::BatchKind;
use forebay_format::checkpoint::{Checkpoint, SegmentState};

use crate::image::Image;
use crate::log::{self, Batch};

/// Batches after a checkpoint, with holes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// In the order of sequence.
    pub(crate) batches: Vec<Batch>,
    /// What was logged from this sequence on is not in doubt.
    pub(crate) certain_from: u64,
    /// Batches that are missing although they had been flushed.
    pub(crate) missing: u64,
}

/// A batch, and whether its payload is whole.
struct Candidate {
    batch: Batch,
    whole: bool,
}

/// Reads all segments. `progress` hears how many of how many. With `latest` only batches of the
/// start that the superblock names count; without, those of later starts than the checkpoint's too
/// (it is an older one then).
pub(crate) fn everything(
    image: &Image,
    base: &Checkpoint,
    latest: bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Log {
    let mut candidates = Vec::new();
    let mut unreadable = false;
    let count = image.geometry().segment_count;
    for number in 0..count {
        progress(u64::from(number), u64::from(count));
        let bytes = image.segment(number);
        let mut at = 0;
        while at < image.geometry().segment_blocks {
            unreadable |= bytes.unreadable.contains(&at)
                && may_follow(base, number, at)
                && !image.holds_only_fills(number);
            match log::batch_at(&bytes, image.superblock.uuid, number, at) {
                Ok(batch) => {
                    at = batch.end();
                    let counts = batch.header.kind == BatchKind::Records
                        && batch.header.sequence >= base.next_sequence
                        && match latest {
                            true => batch.header.epoch == image.superblock.epoch,
                            false => batch.header.epoch >= base.epoch,
                        };
                    if counts {
                        let whole = log::is_whole(&bytes, &batch);
                        candidates.push(Candidate { batch, whole });
                    }
                }
                Err(_) => at += 1,
            }
        }
    }
    progress(u64::from(count), u64::from(count));
    let mut log = Log { certain_from: base.next_sequence, ..Log::default() };
    follow_epochs(candidates, base, |stream| image.may_lack(stream), &mut log);
    if unreadable {
        // Where a header cannot be read nobody knows what it said last.
        log.certain_from = u64::MAX;
    }
    log.batches.sort_by_key(|batch| batch.header.sequence);
    log
}

/// Whether something logged after the checkpoint may stand at a block.
fn may_follow(base: &Checkpoint, segment: u32, at: u32) -> bool {
    base.segments.get(segment as usize).is_none_or(|entry| match entry.state {
        SegmentState::Free => true,
        SegmentState::Open => at >= entry.used_blocks,
        SegmentState::Sealed | SegmentState::Twin => false,
    })
}

/// Takes start by start what counts: what an earlier start left behind its end has numbers that the
/// next one gave again. Of streams that may lack batches, holes take nothing from what is certain.
fn follow_epochs(
    candidates: Vec<Candidate>,
    base: &Checkpoint,
    may_lack: impl Fn(StreamKind) -> bool,
    log: &mut Log,
) {
    let mut epochs: BTreeMap<u64, Vec<Candidate>> = BTreeMap::new();
    for candidate in candidates {
        epochs.entry(candidate.batch.header.epoch).or_default().push(candidate);
    }
    let mut limit = u64::MAX;
    let mut taken = Vec::new();
    for (_, mut batches) in epochs.into_iter().rev() {
        batches.retain(|candidate| candidate.batch.header.sequence < limit);
        let first = batches.iter().map(|candidate| candidate.batch.header.sequence).min();
        limit = first.map_or(limit, |first| first.min(limit));
        taken.push(batches);
    }
    let mut expected = base.next_stream_sequence;
    for batches in taken.into_iter().rev() {
        let mut by_stream: BTreeMap<usize, Vec<Candidate>> = BTreeMap::new();
        for candidate in batches {
            by_stream.entry(candidate.batch.header.stream.index()).or_default().push(candidate);
        }
        for stream in StreamKind::ALL {
            let of_stream = by_stream.remove(&stream.index()).unwrap_or_default();
            let next = &mut expected[stream.index()];
            let before = (log.certain_from, log.missing);
            *next = follow(of_stream, *next, log);
            if may_lack(stream) {
                (log.certain_from, log.missing) = before;
            }
        }
    }
}

/// Follows a stream over its holes; returns the number of the batch that would be next.
fn follow(mut candidates: Vec<Candidate>, mut expected: u64, log: &mut Log) -> u64 {
    let flushed = candidates.iter().map(|c| c.batch.header.flushed_stream_sequence).max().unwrap_or(0);
    // A batch that was written again after a failure: the whole one counts, or else the later one.
    candidates
        .sort_by_key(|c| (c.batch.header.stream_sequence, !c.whole, u64::MAX - c.batch.header.sequence));
    candidates.dedup_by_key(|c| c.batch.header.stream_sequence);
    for Candidate { batch, whole } in candidates {
        let at = batch.header.stream_sequence;
        if at < expected {
            continue;
        }
        // Torn or behind a gap: it counts only if what is missing before it had been promised.
        let promised = at < flushed;
        if at > expected {
            if expected >= flushed {
                break;
            }
            log.missing += at.min(flushed) - expected;
            log.certain_from = log.certain_from.max(batch.header.sequence);
        }
        if !whole && !promised {
            break;
        }
        expected = at.saturating_add(1);
        log.batches.push(batch);
    }
    if flushed > expected {
        log.missing += flushed - expected;
        log.certain_from = u64::MAX;
    }
    expected
}
