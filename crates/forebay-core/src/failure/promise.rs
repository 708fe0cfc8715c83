//! Data that the FLUSHes of a volume covered before its cache failed, and hence the data that the
//! first one afterwards covers in addition.
//!
//! A successful FLUSH covers everything that was acknowledged when it was taken. Its position in
//! the log is recorded at that time, and takes effect once the FLUSH has succeeded, except for
//! earlier blocks of requests that were in flight then: those were acknowledged later. Dirty blocks
//! of a failed cache behind that position are *urgent*: they are rescued first, and a FLUSH waits
//! for them (I54). Only one FLUSH of a volume is followed at a time: with several in flight, and
//! for relocated blocks, too many blocks are urgent, never too few.

use crate::context::Context;
use crate::context::failure::Place;
use crate::context::locks::{BlockRange, whole_volume};
use crate::context::requests::Req;
use crate::map::CacheMap;
use crate::map::segment::{BlockState, Key};
use alloc::vec::Vec;
use forebay_format::{StreamKind, VolumeId};

impl CacheMap {
    /// True if the content of this slot may have been written after `upto`.
    fn is_behind(&self, upto: Option<&Place>, segment: u32, index: u32) -> bool {
        let Some(place) = upto else { return true };
        let slots = &self.segments[segment as usize];
        if slots.first_sequence >= place.next_sequence {
            return true;
        }
        let key = slots.key(index);
        let busy = place.busy.partition_point(|range| range.last < key);
        if place.busy.get(busy).is_some_and(|range| range.first <= key) {
            return true;
        }
        place.open.iter().flatten().any(|(open, applied)| *open == segment && index >= *applied)
    }
}

impl Context {
    /// A FLUSH is about to be answered.
    pub(crate) fn flush_answered(&mut self, req: u32, done: &Req) {
        let counts = !done.failed && !self.failure.is_fenced();
        let promised = &mut self.volume_mut(done.volume).promised;
        if let Some((_, place)) = promised.following.take_if(|(followed, _)| *followed == req) {
            let unused = if counts { promised.upto.replace(place) } else { Some(place) };
            promised.spare = unused.map(|place| place.busy).unwrap_or_default();
        }
    }

    /// The cache has just failed: finds its urgent blocks. Looks at all slots.
    pub(super) fn find_urgent(&mut self) {
        for number in 0..self.map.segments.len() as u32 {
            if self.map.segments[number as usize].unclean == 0 {
                continue;
            }
            for index in 0..self.map.geometry.segment_blocks {
                let segment = &self.map.segments[number as usize];
                if segment.state(index) != BlockState::Dirty || segment.is_shadow(index) {
                    continue;
                }
                let key = segment.key(index);
                let volume = self.volumes.get(key.volume());
                let upto = volume.map(|volume| volume.promised.upto.as_ref());
                if upto.is_some_and(|upto| self.map.is_behind(upto, number, index)) {
                    self.volume_mut(key.volume()).promised.urgent.insert(key.block());
                }
            }
        }
    }

    /// Makes the dirty blocks of a range urgent, for a FUA of writes to them. True if there are
    /// any.
    pub(super) fn hasten(&mut self, range: BlockRange) -> bool {
        let volume = range.first.volume();
        let mut dirty = Vec::new();
        self.map.for_each_in(volume, range.first.block(), range.last.block(), |slot| {
            if self.map.state(slot) == BlockState::Dirty {
                dirty.push(self.map.key(slot).block());
            }
        });
        for block in &dirty {
            self.volume_mut(volume).promised.urgent.insert(*block);
        }
        !dirty.is_empty()
    }

    /// True while a FLUSH has to wait for the rescue of this volume.
    pub(crate) fn has_urgent(&mut self, id: VolumeId) -> bool {
        while let Some(block) = self.volume(id).promised.urgent.next_from(0) {
            let slot = self.map.lookup(Key::new(id, block));
            if slot.is_some_and(|slot| self.map.state(slot) == BlockState::Dirty) {
                return true;
            }
            self.volume_mut(id).promised.urgent.remove(block);
        }
        false
    }

    /// The next urgent block that waits for its rescue, from `cursor` on and then from the
    /// beginning.
    pub(crate) fn next_urgent(&self, id: VolumeId, cursor: u64) -> Option<u64> {
        let urgent = &self.volume(id).promised.urgent;
        let waiting = &self.map.volumes[usize::from(id.0)].waiting;
        let from = |start: u64| {
            let mut next = urgent.next_from(start);
            while let Some(block) = next.filter(|block| !waiting.has(*block)) {
                next = urgent.next_from(block + 1);
            }
            next
        };
        from(cursor).or_else(|| from(0))
    }

    /// A FLUSH was taken.
    pub(crate) fn follow_flush(&mut self, req: u32) {
        let volume = self.reqs.get(req).volume;
        if self.volume(volume).promised.following.is_some() {
            return;
        }
        let open = StreamKind::ALL.map(|kind| {
            let segment = self.log.streams[kind.index()].open_segment()?;
            Some((segment, self.map.segments[segment as usize].completed))
        });
        let mut busy = core::mem::take(&mut self.volume_mut(volume).promised.spare);
        busy.clear();
        busy.extend_from_slice(self.locks.held_inside(whole_volume(volume)));
        let place = Place { next_sequence: self.log.next_sequence, open, busy };
        self.volume_mut(volume).promised.following = Some((req, place));
    }
}
