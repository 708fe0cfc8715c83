//! The log behind the checkpoint, and intents.

use crate::api::open_error::OpenError;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BLOCK_LAST, BlockState, Key, SegmentPhase};
use crate::recovery::scan;
use crate::recovery::scan::{Found, Tail};
use crate::recovery::state::Recovery;
use alloc::vec::Vec;
use forebay_format::batch::Entry;
use forebay_format::checkpoint::{INTENT_REGION_BLOCKS, Intent};
use forebay_format::{StreamKind, summary};

impl Context {
    pub(super) fn for_marked(&mut self, slot: u32, count: u32, mut f: impl FnMut(&mut Context, u32)) {
        let end = slot.saturating_add(count).min(self.map.geometry.slot_count());
        for slot in slot..end {
            f(self, slot);
        }
    }
}

/// Blocks in regions where bypass writes may have happened.
struct Intended {
    /// First and last key of ranges, ascending and disjoint.
    ranges: Vec<(Key, Key)>,
}

impl Intended {
    fn new(intents: &[Intent]) -> Self {
        let mut ranges: Vec<(Key, Key)> = intents.iter().map(range).collect();
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let meets = next.0 <= last.1;
            last.1 = last.1.max(if meets { next.1 } else { last.1 });
            meets
        });
        Self { ranges }
    }

    fn holds(&self, key: Key) -> bool {
        let after = self.ranges.partition_point(|(first, _)| *first <= key);
        after > 0 && key <= self.ranges[after - 1].1
    }
}

fn range(intent: &Intent) -> (Key, Key) {
    let first = intent.region.saturating_mul(INTENT_REGION_BLOCKS).min(BLOCK_LAST);
    let blocks = u64::from(intent.count).max(1).saturating_mul(INTENT_REGION_BLOCKS);
    let last = first.saturating_add(blocks - 1).min(BLOCK_LAST);
    (Key::new(intent.volume, first), Key::new(intent.volume, last))
}

impl Recovery {
    /// Decides which batches after the checkpoint are valid, and applies them.
    pub(super) fn replay(&mut self, cx: &mut Context) -> Result<(), OpenError> {
        let mut tails = core::mem::take(&mut self.tails);
        tails.sort_by_key(Tail::first);
        let mut counting: Vec<(u32, Found)> = Vec::new();
        for stream in StreamKind::ALL {
            let of_stream = tails.extract_if(.., |tail| tail.stream == stream).collect();
            self.follow(cx, stream, of_stream, &mut counting)?;
        }
        if fault::planted(PlantedBug::IgnoreSequence) {
            counting.sort_by_key(|(segment, batch)| (*segment, batch.start));
        } else {
            counting.sort_by_key(|(_, batch)| batch.header.sequence);
        }
        if cx.map.is_loading() {
            self.index_loaded(cx, &counting);
        }
        for (segment, batch) in counting {
            self.apply(cx, segment, &batch);
        }
        cx.map.replayed();
        Ok(())
    }

    /// Enters the live slots of the checkpoint into the index, except those that are dropped in any
    /// case: clean blocks in regions with an intent.
    fn index_loaded(&self, cx: &mut Context, counting: &[(u32, Found)]) {
        let mut changed = Vec::new();
        let mut intents = self.checkpoint.intents.clone();
        for entry in counting.iter().flat_map(|(_, batch)| &batch.entries) {
            match *entry {
                Entry::Data { .. } => changed.extend(scan::key_of(*entry)),
                // The dropped block was loaded, or has an entry of its own.
                Entry::DropMark { slot, count } => cx.for_marked(slot.0, count, |cx, slot| {
                    if cx.map.state(slot) != BlockState::Void {
                        changed.push(cx.map.key(slot));
                    }
                }),
                Entry::Intent { volume, region, count } => intents.push(Intent { volume, region, count }),
                Entry::CleanMark { .. } | Entry::Summary { .. } => {}
            }
        }
        let intended = Intended::new(&intents);
        if cx.map.index_loaded(&changed, |key| intended.holds(key)) > 0 {
            cx.coverage.add(CoverageMark::IntentDropsClean);
        }
    }

    /// Follows one stream from the checkpoint to its end.
    pub(super) fn follow(
        &mut self,
        cx: &mut Context,
        stream: StreamKind,
        tails: Vec<Tail>,
        counting: &mut Vec<(u32, Found)>,
    ) -> Result<(), OpenError> {
        let mut expected = cx.log.streams[stream.index()].next_sequence;
        let flushed = tails.iter().map(|tail| tail.flushed).max().unwrap_or(0);
        // A segment's range of batches ends where that of the next one begins: after a failed
        // write, batches are written again.
        let limits: Vec<u64> = tails.iter().skip(1).map(|tail| tail.first().0).chain([u64::MAX]).collect();
        for (tail, limit) in tails.into_iter().zip(limits) {
            if tail.first().0 != expected {
                cx.coverage.add(CoverageMark::BatchesBehindGap);
                break;
            }
            let whole = tail.batches.len();
            let batches: Vec<Found> =
                tail.batches.into_iter().take_while(|batch| batch.header.stream_sequence < limit).collect();
            if batches.len() < whole {
                cx.coverage.add(CoverageMark::BatchesWrittenTwice);
            }
            let Some(last) = batches.last() else { continue };
            expected = last.header.stream_sequence + 1;
            let (end, all) = (last.end(), batches.len() == whole);
            let first = (batches[0].header.stream_sequence, batches[0].header.sequence);
            if !cx.map.segments[tail.segment as usize].has_table() {
                cx.map.begin_segment(tail.segment, SegmentPhase::Sealed, stream, first);
                cx.members.begin_twin(&mut cx.map, tail.segment, stream);
            }
            let segment = &mut cx.map.segments[tail.segment as usize];
            segment.completed = end;
            segment.durable = end;
            if let (Some(at), true) = (tail.summary, all) {
                segment.summary_block = at;
                segment.completed = at + 1 + summary::payload_blocks(at);
            }
            if cx.rewrites(stream) {
                let unflushed = batches.iter().filter(|batch| batch.header.stream_sequence >= flushed);
                unflushed.for_each(|batch| self.rewrite.add(tail.segment, batch));
            }
            counting.extend(batches.into_iter().map(|batch| (tail.segment, batch)));
        }
        if flushed > expected && !cx.members.may_lack(stream) {
            cx.coverage.add(CoverageMark::LostFlushFound);
            return Err(OpenError::LostFlushedBatch { stream: stream as u8, lost: expected });
        }
        // I75. Fills are clean: losing them is no reason to refuse everything else.
        let known = cx.config.known.flushed[stream.index()];
        if known > expected && stream != StreamKind::Fill && !fault::planted(PlantedBug::BelieveOlderCopy) {
            return Err(OpenError::Older);
        }
        cx.log.streams[stream.index()].start_at(expected);
        Ok(())
    }

    pub(super) fn apply(&mut self, cx: &mut Context, number: u32, batch: &Found) {
        cx.log.next_sequence = cx.log.next_sequence.max(batch.header.sequence + 1);
        for (index, entry) in batch.data() {
            if let (Entry::Data { crc32c, sector_mask, dirty, flush_epoch, .. }, Some(key)) =
                (entry, scan::key_of(entry))
            {
                let slot = cx.map.slot(number, index);
                cx.map.describe(slot, key, crc32c, sector_mask);
                if !self.belongs(key, sector_mask) {
                    continue;
                }
                if dirty {
                    cx.map.replay_epoch(slot, flush_epoch);
                }
                let state = if dirty { BlockState::Dirty } else { BlockState::Clean };
                cx.map.insert(slot, state);
            }
        }
        for entry in &batch.entries {
            match *entry {
                Entry::CleanMark { slot, count } => cx.for_marked(slot.0, count, |cx, slot| {
                    if cx.map.state(slot) == BlockState::Dirty {
                        cx.map.mark_clean(slot);
                    }
                }),
                Entry::DropMark { slot, count } => cx.for_marked(slot.0, count, |cx, slot| {
                    if cx.map.is_shadow(slot) {
                        cx.map.end_shadow(slot);
                    } else if cx.map.state(slot) != BlockState::Void {
                        cx.map.remove(cx.map.key(slot));
                    }
                }),
                Entry::Intent { volume, region, count } => {
                    self.checkpoint.intents.push(Intent { volume, region, count });
                }
                Entry::Data { .. } | Entry::Summary { .. } => {}
            }
        }
    }

    /// Drops clean blocks in regions where bypass writes may have happened: they are not trusted.
    pub(super) fn drop_intended(&mut self, cx: &mut Context) {
        let intended = Intended::new(&core::mem::take(&mut self.checkpoint.intents));
        let clean =
            if intended.ranges.is_empty() { Vec::new() } else { cx.map.clean(|key| intended.holds(key)) };
        if !clean.is_empty() {
            cx.coverage.add(CoverageMark::IntentDropsClean);
        }
        for key in clean {
            cx.map.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::VolumeId;

    #[test]
    fn intended_regions_hold_only_their_blocks() {
        let intents = [(1, 5, 2), (0, 9, 1), (1, 6, 3), (1, 1, 1), (1, 5, 1), (2, 1 << 26, 1)];
        let intents =
            intents.map(|(volume, region, count)| Intent { volume: VolumeId(volume), region, count });
        let intended = Intended::new(&intents);
        for volume in 0..3 {
            for region in 0..12 {
                let inside = intents.iter().any(|intent| {
                    intent.volume.0 == volume
                        && (intent.region..intent.region + u64::from(intent.count)).contains(&region)
                });
                for block in [0, 7, INTENT_REGION_BLOCKS - 1] {
                    let key = Key::new(VolumeId(volume), region * INTENT_REGION_BLOCKS + block);
                    assert_eq!(intended.holds(key), inside, "{key:?}");
                }
            }
        }
        assert!(!Intended::new(&[]).holds(Key::new(VolumeId(0), 0)));
    }
}
