//! The log of a cache that the engine refuses: every batch in any segment.
//!
//! A hole is a missing batch that a later batch records as flushed. Without such a proof the stream
//! ends there, as in recovery, and later batches were never promised. A missing batch may have
//! superseded, cleaned or dropped any older data, but not data logged after it. So everything is
//! known from the sequence [`Log::certain_from`] on.

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
    /// Everything logged from this sequence on is certain.
    pub(crate) certain_from: u64,
    /// Missing batches that had been flushed.
    pub(crate) missing: u64,
}

/// A batch, and whether its payload is whole.
struct Candidate {
    batch: Batch,
    whole: bool,
}

/// Reads all segments. `progress` gets the number of segments read, and of all. With `latest` only
/// batches of the start in the superblock count; otherwise also those of starts later than the
/// checkpoint's (which is then an older one).
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
        // The latest content of an unreadable header is unknown.
        log.certain_from = u64::MAX;
    }
    log.batches.sort_by_key(|batch| batch.header.sequence);
    log
}

/// Returns true if a batch logged after the checkpoint may be at a block.
fn may_follow(base: &Checkpoint, segment: u32, at: u32) -> bool {
    base.segments.get(segment as usize).is_none_or(|entry| match entry.state {
        SegmentState::Free => true,
        SegmentState::Open => at >= entry.used_blocks,
        SegmentState::Sealed | SegmentState::Twin => false,
    })
}

/// Selects the batches that count, start by start: the next start has reused the numbers of batches
/// that an earlier one left behind its end. Holes of streams that may lack batches do not reduce
/// certainty.
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

/// Follows a stream over its holes. Returns the number of the next batch.
fn follow(mut candidates: Vec<Candidate>, mut expected: u64, log: &mut Log) -> u64 {
    let flushed = candidates.iter().map(|c| c.batch.header.flushed_stream_sequence).max().unwrap_or(0);
    // A batch that was rewritten after a failure: the whole one counts, or else the later one.
    candidates
        .sort_by_key(|c| (c.batch.header.stream_sequence, !c.whole, u64::MAX - c.batch.header.sequence));
    candidates.dedup_by_key(|c| c.batch.header.stream_sequence);
    for Candidate { batch, whole } in candidates {
        let at = batch.header.stream_sequence;
        if at < expected {
            continue;
        }
        // Torn or behind a gap: it counts only if the missing batches before it had been promised.
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
