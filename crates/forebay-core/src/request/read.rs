//! Life of a read.
//!
//! The range is cut into runs: blocks in consecutive slots of one segment become one read of the
//! cache device, missing blocks one read of the backing store, both straight into the client's
//! buffer. A partially cached block that has all requested sectors is a hit. Otherwise, if it is
//! clean, a fill of the whole block replaces it; if it is dirty, it is merged with the other
//! sectors from the backing store (`merge`). Every block from the cache is compared with its
//! checksum (I4): a clean one that does not match is dropped and read from the backing store; a
//! dirty one is lost, and the read fails.
//!
//! A read takes no lock. It looks up its blocks when it starts, and pins the segments that it reads
//! from: a write that completes meanwhile is concurrent with it, so either content is correct.
//!
//! A block that was read from the backing store and waits for its batch is served from its page. A
//! read waits for a block that another read is fetching, unless the block lies in the middle of a
//! longer run of missing blocks: one read of the store costs less than two.
//!
//! Fills: a read registers a missing block when its read of the backing store starts, unless a
//! request is changing the block; a later change cancels the registration (I9). Blocks that are
//! still valid when the data arrives are copied to pages and appended as clean.

use crate::api::settings::{Admission, Treatment};
use crate::api::{Device, IoAction, RequestKind};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::locks::BlockRange;
use crate::context::operations::{Miss, OpKind};
use crate::context::pages::{Page, PageUse};
use crate::context::sectors::BLOCK;
use crate::context::streams::{Item, ItemKind, ItemOwner};
use crate::failure::damage::Damage;
use crate::fault::{self, PlantedBug};
use crate::map::MASK_FULL;
use crate::map::segment::{BlockState, Key};
use crate::request::state::{MergeFor, Requests};
use alloc::vec::Vec;
use forebay_format::checkpoint::Mode;

/// Reads of the backing store before the client gets an error.
const BACKING_READ_TRIES: u32 = 2;

/// Where a read finds a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Hit(u32),
    /// It waits in a page for its batch.
    Pending(Page),
    /// Another read is fetching it.
    Coming,
    /// Some of the requested sectors are in the cache.
    Partial,
    /// It lacks requested sectors, and its content may be dropped.
    Incomplete(u32),
    Miss,
    /// A requested sector was lost with the cache device.
    Lost,
}

impl Context {
    fn block_of_hit(&self, req: u32, slot: u32) -> u64 {
        let key = self.map.key(slot);
        debug_assert!(key.volume() == self.reqs.get(req).volume);
        key.block()
    }

    pub(crate) fn count_hits(&mut self, req: u32, blocks: u64) {
        let volume = self.reqs.get(req).volume;
        self.stats.read_hit_blocks += blocks;
        self.counters.of(volume).read_hit_blocks += blocks;
    }

    /// True if the misses of this request may be filled.
    pub(crate) fn may_fill(&self, req: u32) -> bool {
        let request = self.reqs.get(req);
        let volume = self.volume(request.volume);
        let wanted = request.treatment == Treatment::Pin || request.kind == RequestKind::Prefetch;
        let refused = volume.settings.admission == Admission::Never && !wanted;
        request.treatment != Treatment::Bypass
            && volume.fills()
            && !refused
            && !self.failure.runs_without_cache()
    }

    pub(crate) fn count_misses(&mut self, req: u32, blocks: u64) {
        let (volume, sequential) = (self.reqs.get(req).volume, self.reqs.get(req).sequential);
        let may_fill = self.may_fill(req);
        let (all, one) = (&mut self.stats, self.counters.of(volume));
        if may_fill {
            all.read_miss_blocks += blocks;
            one.read_miss_blocks += blocks;
            return;
        }
        all.read_bypass_blocks += blocks;
        one.read_bypass_blocks += blocks;
        if sequential {
            all.read_sequential_blocks += blocks;
            one.read_sequential_blocks += blocks;
        }
    }

    /// Cancels fills of blocks that are about to change.
    pub(crate) fn cancel_fills(&mut self, range: BlockRange) {
        if fault::planted(PlantedBug::KeepOvertakenFill) {
            return;
        }
        self.fills.cancel(range);
    }

    pub(crate) fn read_part_done(&mut self, req: u32, ok: bool) {
        let request = self.reqs.get_mut(req);
        request.failed |= !ok;
        request.pending -= 1;
        debug_assert!(matches!(request.kind, RequestKind::Read | RequestKind::Prefetch));
        if request.pending == 0 {
            self.reply(req);
        }
    }

    /// True if a fill of the whole block may replace a partially cached one: the block is clean, so
    /// it may be dropped, and no request is changing it. A dirty block is merged until it has been
    /// destaged.
    fn may_heal(&self, req: u32, slot: u32) -> bool {
        let key = self.map.key(slot);
        let idle = !self.locks.is_held(BlockRange { first: key, last: key });
        let dispensable = self.map.state(slot) == BlockState::Clean || fault::planted(PlantedBug::HealDirty);
        let room = self.pages.room_for_fills(self.fills.len()) > 0;
        let whole = self.read_end(req) / BLOCK > key.block();
        dispensable
            && idle
            && room
            && whole
            && self.may_fill(req)
            && !self.failure.is_fenced()
            && !self.stopping
            && !self.is_far_above_maximum(key.volume())
            && !self.spares_flash()
            && !self.fills.any_in(BlockRange { first: key, last: key })
    }

    /// Drops the partial block and registers a fill of the whole block.
    fn begin_heal(&mut self, req: u32, slot: u32) -> u64 {
        self.coverage.add(CoverageMark::PartialHealed);
        let (key, pinned) = (self.map.key(slot), self.map.is_pinned(slot));
        self.map.remove(key);
        let pinned = pinned || self.reqs.get(req).treatment == Treatment::Pin;
        let token = self.fills.new_token();
        self.fills.register(key, token, pinned);
        token
    }

    /// Without the cache, only dirty blocks are live, and of those only the requested sectors
    /// matter.
    fn find_without_cache(&self, req: u32, key: Key) -> Found {
        let wanted = self.reqs.get(req).sectors_of(key.block());
        if self.failure.lost_sectors(key) & wanted != 0 && !fault::planted(PlantedBug::ReadLostFromBacking) {
            return Found::Lost;
        }
        let dirty = self.map.lookup(key).filter(|slot| self.map.state(*slot) == BlockState::Dirty);
        match dirty.map(|slot| (slot, self.map.mask(slot))) {
            Some((slot, MASK_FULL)) => Found::Hit(slot),
            Some((_, mask)) if mask & wanted != 0 => Found::Partial,
            _ => Found::Miss,
        }
    }

    fn read_hits(&mut self, req: u32, block: u64, slot: u32, count: u32, tries: u32) {
        let treatment = self.reqs.get(req).treatment;
        for slot in slot..slot + count {
            self.map.set_hit(slot);
            self.pin_for(treatment, slot);
        }
        self.map.pin(slot);
        let request = self.reqs.get_mut(req);
        request.pending += 1;
        let span = request.block_span(block, u64::from(count));
        let kind = OpKind::ReadHit { req, slot, count, tries };
        self.read_slots((slot, count), tries, &[span], kind);
    }

    /// End of the range that a request may read from the backing store: not beyond the end that a
    /// shrink will leave, unless the shrink waits for this request.
    pub(super) fn read_end(&self, req: u32) -> u64 {
        let request = self.reqs.get(req);
        let volume = self.volume(request.volume);
        if request.end() > volume.limit_bytes { volume.size_bytes } else { volume.limit_bytes }
    }

    fn read_misses(&mut self, req: u32, block: u64, count: u32, miss: Miss) {
        let request = self.reqs.get_mut(req);
        request.pending += 1;
        request.missed = true;
        let (volume, mut span) = (request.volume, request.block_span(block, u64::from(count)));
        let len = (self.read_end(req) - block * BLOCK).min(u64::from(count) * BLOCK);
        span.len = len as u32;
        self.volume_mut(volume).misses_in_flight += 1;
        let kind = OpKind::ReadMiss { req, block, count, miss };
        self.read(Device::Backing(volume), block * BLOCK, &[span], true, kind);
    }

    /// Appends a block from its page, as clean.
    pub(crate) fn append_fill(&mut self, key: Key, crc: u32, page: Page, token: u64) {
        let item = Item {
            key,
            crc,
            kind: ItemKind::Data { mask: MASK_FULL, dirty: false },
            span: Some(page.span()),
            done: ItemOwner::Fill(page, token),
        };
        self.fills.arrived(key, token, page);
        let stream = self.stream_of_fill(key);
        self.enqueue(stream, item);
    }

    /// A fill was appended to `slot`, or dropped.
    pub(crate) fn fill_done(&mut self, key: Key, page: Page, token: u64, slot: Option<u32>) {
        self.pages.give(PageUse::Fill, page);
        let ended = self.fills.end(key, token);
        let valid = ended.is_some_and(|ended| ended.valid);
        // Jobs check whether the volume is quiet before the queues are processed.
        self.settle_again();
        let overtaken = self.map.lookup(key).is_some() && !fault::planted(PlantedBug::KeepOvertakenFill);
        if overtaken || !valid {
            self.coverage.add(CoverageMark::FillOvertaken);
        }
        if (overtaken || !valid || slot.is_none()) && !self.failure.is_fenced() {
            self.count_fill_given_up(key.volume(), overtaken || !valid);
        }
        if let (Some(slot), true, false) = (slot, valid, overtaken) {
            let old = self.map.insert(slot, BlockState::Clean);
            assert!(old.is_none(), "I9: a fill replaces nothing that was written meanwhile");
            self.stats.filled_blocks += 1;
            self.counters.of(key.volume()).filled_blocks += 1;
            if ended.is_some_and(|ended| ended.hit) {
                self.map.set_hit(slot);
            }
            if ended.is_some_and(|ended| ended.pinned) {
                self.pin_block(slot);
            }
        }
    }

    fn find(&self, req: u32, block: u64) -> Found {
        let volume = self.reqs.get(req).volume;
        if self.failure.runs_without_cache() {
            return self.find_without_cache(req, Key::new(volume, block));
        }
        let key = Key::new(volume, block);
        let Some(slot) = self.map.lookup(key) else { return self.find_pending(req, key) };
        if self.members.is_mirrored() && self.members.is_gone(&self.map, self.map.place(slot).0) {
            return Found::Miss;
        }
        if self.map.state(slot) == BlockState::Clean && self.volume(volume).settings.mode == Mode::Passthrough
        {
            return Found::Miss;
        }
        let (mask, wanted) = (self.map.mask(slot), self.reqs.get(req).sectors_of(block));
        match mask {
            MASK_FULL => Found::Hit(slot),
            _ if wanted & !mask != 0 && self.may_heal(req, slot) => Found::Incomplete(slot),
            _ if wanted & mask == 0 => Found::Miss,
            _ => Found::Partial,
        }
    }

    /// Length of a run of blocks to read from the backing store: no other read is fetching its
    /// first and last block.
    fn run_of_misses(&self, req: u32, block: u64, last: u64) -> u32 {
        let mut missing = 1;
        for count in 1..=last - block {
            match self.find(req, block + count) {
                Found::Miss => missing = count as u32 + 1,
                Found::Coming => {}
                _ => break,
            }
        }
        missing
    }

    /// A block that is not in the map may wait in a page for its batch, or another read may be
    /// fetching it.
    fn find_pending(&self, req: u32, key: Key) -> Found {
        match self.fills.page_of(key) {
            _ if self.volume(key.volume()).settings.mode == Mode::Passthrough => Found::Miss,
            Some(page) => Found::Pending(page),
            None if self.fills.may_join(key) && !self.reqs.get(req).reads_itself => Found::Coming,
            None => Found::Miss,
        }
    }

    /// Serves a block from the page in which it waits for its batch.
    fn read_pending(&mut self, req: u32, block: u64, page: Page) {
        self.coverage.add(CoverageMark::PendingFillRead);
        let request = self.reqs.get(req);
        let (to, pins) = (request.block_span(block, 1), request.treatment == Treatment::Pin);
        self.fills.note_hit(Key::new(request.volume, block), pins);
        self.actions.push_io(IoAction::Copy { from: page.span(), to });
    }

    /// Waits for a block that another read is fetching. It takes as long as a miss.
    fn join_read(&mut self, req: u32, block: u64) {
        self.coverage.add(CoverageMark::ReadJoined);
        let request = self.reqs.get_mut(req);
        request.pending += 1;
        request.missed = true;
        let (key, pins) = (Key::new(request.volume, block), request.treatment == Treatment::Pin);
        self.fills.note_hit(key, pins);
        self.fills.join(key, req);
    }

    /// Blocks were read from the backing store (without checksums: the read failed). Those that
    /// this read registered and that are still valid go to the fill stream.
    fn fill(&mut self, req: u32, block: u64, count: u32, token: u64, crcs: &[u32]) {
        let volume = self.reqs.get(req).volume;
        for index in 0..u64::from(count) {
            let key = Key::new(volume, block + index);
            let Some(valid) = self.fills.state_of(key, token) else { continue };
            let crc = crcs.get(index as usize).filter(|_| valid);
            let page = if crc.is_some() { self.pages.take(PageUse::Fill) } else { None };
            let (Some(page), Some(crc)) = (page, crc) else {
                if !valid || crc.is_some() {
                    self.count_fill_given_up(volume, !valid);
                }
                self.fills.end(key, token);
                continue;
            };
            let from = self.reqs.get(req).block_span(block + index, 1);
            self.actions.push_io(IoAction::Copy { from, to: page.span() });
            self.append_fill(key, *crc, page, token);
        }
    }
}

impl Requests {
    pub(super) fn start_read(&mut self, cx: &mut Context, req: u32) {
        let request = cx.reqs.get_mut(req);
        request.pending = 1;
        let (first, last) = (request.first_block, request.last_block);
        self.read_blocks(cx, req, first, last);
        cx.read_part_done(req, true);
    }

    /// Reads blocks `first..=last` of a request from the cache or the backing store.
    fn read_blocks(&mut self, cx: &mut Context, req: u32, first: u64, last: u64) {
        let mut block = first;
        while block <= last {
            let found = cx.find(req, block);
            let mut count = 1;
            match found {
                Found::Hit(slot) => {
                    // A run must not cross into the next segment: its slots are not contiguous with
                    // these on the device.
                    let room = cx.map.geometry.segment_blocks - cx.map.place(slot).1;
                    while block + u64::from(count) <= last
                        && count < room
                        && cx.find(req, block + u64::from(count)) == Found::Hit(slot + count)
                    {
                        count += 1;
                    }
                    cx.count_hits(req, u64::from(count));
                    cx.read_hits(req, block, slot, count, 1);
                }
                Found::Pending(page) => {
                    cx.count_hits(req, 1);
                    cx.read_pending(req, block, page);
                }
                Found::Coming => cx.join_read(req, block),
                Found::Lost => cx.reqs.get_mut(req).failed = true,
                Found::Incomplete(slot) => {
                    let token = cx.begin_heal(req, slot);
                    cx.count_misses(req, 1);
                    cx.read_misses(req, block, 1, Miss { token, tries: 1 });
                }
                Found::Partial => {
                    cx.reqs.get_mut(req).pending += 1;
                    self.start_merge(cx, req, block, (0, BLOCK as u32), MergeFor::Read);
                }
                Found::Miss => {
                    count = cx.run_of_misses(req, block, last);
                    cx.count_misses(req, u64::from(count));
                    let token = self.register_fills(cx, req, block, count);
                    cx.read_misses(req, block, count, Miss { token, tries: 1 });
                }
            }
            block += u64::from(count);
        }
    }

    /// A read of missing blocks has ended.
    pub(crate) fn miss_read(
        &mut self,
        cx: &mut Context,
        req: u32,
        (block, count): (u64, u32),
        miss: Miss,
        ok: bool,
        crcs: &[u32],
    ) {
        let volume = cx.reqs.get(req).volume;
        cx.volume_mut(volume).misses_in_flight -= 1;
        if !ok && miss.tries < BACKING_READ_TRIES {
            cx.read_misses(req, block, count, Miss { tries: miss.tries + 1, ..miss });
            cx.read_part_done(req, true);
            return;
        }
        let last = block + u64::from(count) - 1;
        let range = BlockRange { first: Key::new(volume, block), last: Key::new(volume, last) };
        let joined = cx.fills.take_joined(range, miss.token);
        cx.fill(req, block, count, miss.token, if ok { crcs } else { &[] });
        for (key, waiting) in joined {
            self.end_join(cx, (ok, req), waiting, key.block());
        }
        cx.read_part_done(req, ok);
    }

    /// Copies the block to a read that has joined this one. If this one failed, starts the other
    /// one again without joining: on a failing store, errors would follow one after the other.
    fn end_join(&mut self, cx: &mut Context, (ok, req): (bool, u32), waiting: u32, block: u64) {
        if ok {
            let (from, to) =
                (cx.reqs.get(req).block_span(block, 1), cx.reqs.get(waiting).block_span(block, 1));
            cx.count_hits(waiting, 1);
            cx.actions.push_io(IoAction::Copy { from, to });
        } else {
            cx.coverage.add(CoverageMark::JoinedReadFailed);
            cx.reqs.get_mut(waiting).reads_itself = true;
            self.read_blocks(cx, waiting, block, block);
        }
        cx.read_part_done(waiting, true);
    }

    pub(crate) fn hit_read(
        &mut self,
        cx: &mut Context,
        req: u32,
        (slot, count, tries): (u32, u32, u32),
        ok: bool,
        crcs: &[u32],
    ) {
        cx.map.unpin(slot);
        let trust = fault::planted(PlantedBug::SkipChecksum);
        let right = |cx: &Context, index: u32| {
            ok && (trust || crcs.get(index as usize) == Some(&cx.map.crc(slot + index)))
        };
        if (0..count).all(|index| right(cx, index)) {
            cx.read_part_done(req, true);
            return;
        }
        // Block by block from here on. The segment may have been freed since: then its keys are
        // gone, but the request still needs the blocks, so look them up again.
        let block = cx.block_of_hit(req, slot);
        for index in (0..count).filter(|index| !right(cx, *index)).collect::<Vec<_>>() {
            self.reread(cx, req, block + u64::from(index), slot + index, tries);
        }
        cx.read_part_done(req, true);
    }

    /// Handles a cached block that was unreadable or had a wrong checksum.
    fn reread(&mut self, cx: &mut Context, req: u32, block: u64, slot: u32, tries: u32) {
        let volume = cx.reqs.get(req).volume;
        let current = cx.map.lookup(Key::new(volume, block));
        if current != Some(slot) {
            // Overwritten or evicted meanwhile: read the current place.
            cx.coverage.add(CoverageMark::HitMoved);
            self.read_blocks(cx, req, block, block);
        } else if tries < cx.members.slot_tries(&cx.map, slot) {
            cx.read_hits(req, block, slot, 1, tries + 1);
        } else {
            match cx.give_up(slot) {
                Damage::Lost => cx.reqs.get_mut(req).failed = true,
                Damage::Dropped => self.read_blocks(cx, req, block, block),
                Damage::Kept => cx.read_misses(req, block, 1, Miss { token: 0, tries: 1 }),
            }
        }
    }

    fn register_fills(&mut self, cx: &mut Context, req: u32, block: u64, count: u32) -> u64 {
        let request = cx.reqs.get(req);
        let (volume, pinned) = (request.volume, request.treatment == Treatment::Pin);
        let token = cx.fills.new_token();
        if !cx.may_fill(req) || cx.failure.is_fenced() || cx.stopping {
            return token;
        }
        let room = cx.pages.room_for_fills(cx.fills.len());
        // The short block at an odd end of the volume is not worth the special case.
        let whole = (cx.read_end(req) / BLOCK).saturating_sub(block);
        for (block, index) in (block..block + u64::from(count).min(whole)).zip(0..) {
            let key = Key::new(volume, block);
            cx.note_miss(key);
            let idle = !cx.locks.is_held(BlockRange { first: key, last: key });
            if !idle || cx.map.lookup(key).is_some() {
                continue;
            }
            if index >= room {
                // Leave the memory of admission unchanged: a block that only lacked a page does not
                // need another second access.
                if self.admission.would_admit(cx, req, key) {
                    cx.count_fill_given_up(volume, false);
                }
            } else if self.admission.admits(cx, req, key) {
                cx.fills.register(key, token, pinned);
            }
        }
        token
    }
}
