//! Merging blocks from parts.
//!
//! A write of a part of a block is merged with its cached sectors, so that a block has one place in
//! the cache at any time. The backing store is read only if necessary: if the write ends inside a
//! sector that is not cached, or if the backing store cannot write single sectors. Otherwise the
//! block is stored with a mask of its valid sectors. A read of a partially cached block is the same
//! merge without the write; it needs the backing store only for sectors that are not cached.
//!
//! Merges of writes run under the block lock of their request, so the block does not change
//! meanwhile.

use crate::api::{Device, IoAction, OpId, RequestKind, Span};
use crate::context::Context;
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse};
use crate::context::sectors::{BLOCK, sector_mask, sector_mask_inside, sector_runs};
use crate::context::streams::{Item, ItemKind, ItemOwner};
use crate::failure::damage::Damage;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::{BlockState, Key};
use crate::request::state::{Merge, MergeFor, Requests};
use forebay_format::StreamKind;

impl CacheMap {
    /// True if a bypass write may simply drop the cached copy of a block, if there is one.
    pub(crate) fn is_droppable(&self, key: Key) -> bool {
        self.lookup(key).is_none_or(|slot| self.state(slot) == BlockState::Clean)
    }
}

impl Requests {
    /// Starts to merge `block`; the request has counted it as a part.
    pub(super) fn start_merge(
        &mut self,
        cx: &mut Context,
        req: u32,
        block: u64,
        part: (u32, u32),
        purpose: MergeFor,
    ) {
        let volume = cx.reqs.get(req).volume;
        let merge = self.merges.insert(Merge {
            req,
            volume,
            block,
            part,
            purpose,
            pages: None,
            cached: None,
            backing: false,
            backing_tries: 0,
            pending: 0,
            failed: false,
            again: false,
            without_cached: false,
            mask: 0,
            counted: false,
        });
        self.merge_queue.push_back(merge);
        self.resume_merges(cx);
    }

    /// Starts the merges that wait for pages, as long as there are pages.
    pub(crate) fn resume_merges(&mut self, cx: &mut Context) {
        while cx.pages.available(PageUse::Merge) >= 2 {
            let Some(merge) = self.merge_queue.pop_front() else { return };
            let pages = (cx.pages.take(PageUse::Merge), cx.pages.take(PageUse::Merge));
            let (Some(base), Some(cached)) = pages else { unreachable!("two pages are available") };
            self.merges.get_mut(merge).pages = Some((base, cached));
            self.read_parts(cx, merge);
        }
    }

    /// Decides which parts are needed and reads them.
    fn read_parts(&mut self, cx: &mut Context, merge: u32) {
        let m = self.merges.get(merge);
        let (volume, block, purpose) = (m.volume, m.block, m.purpose);
        let (from, to) = (u64::from(m.part.0), u64::from(m.part.1));
        let all = cx.volume(volume).block_mask(block);
        let key = Key::new(volume, block);
        let failed = cx.failure.runs_without_cache();
        let counts = |slot: &u32| !failed || cx.map.state(*slot) == BlockState::Dirty;
        let slot = cx.map.lookup(key).filter(|_| !m.without_cached).filter(counts);
        let have = slot.map_or(0, |slot| cx.map.mask(slot)) & all;
        let (written, covered) = match purpose {
            MergeFor::Read => (0, 0),
            // Bytes up to the end of an odd-sized volume cover its last sector.
            _ => (sector_mask(from, to) & all, sector_mask_inside(from, to) & all),
        };
        let ragged = written & !covered;
        let asked = if purpose == MergeFor::Read { cx.reqs.get(m.req).sectors_of(block) & all } else { 0 };
        if (ragged | asked) & cx.failure.lost_sectors(key) != 0 {
            // A requested sector is lost, perhaps since the request arrived; or the rest of a
            // sector that is written in part.
            self.merges.get_mut(merge).failed = true;
            self.end_merge(cx, merge, None);
            return;
        }
        let whole = match purpose {
            MergeFor::Read => false,
            MergeFor::Direct(_) => true,
            MergeFor::Log => u64::from(cx.volume(volume).sector_bytes) == BLOCK || m.without_cached,
        };
        let lacks = asked & !have != 0 && !fault::planted(PlantedBug::ServeInvalidSectors);
        let backing = lacks || ragged & !have != 0 || whole && (have | covered) != all;
        if purpose == MergeFor::Read {
            self.count_merged_read(cx, merge, backing);
        }
        let cached = slot.filter(|_| have & !covered != 0).map(|slot| (slot, have));
        let m = self.merges.get_mut(merge);
        (m.backing, m.cached, m.again, m.failed) = (backing, cached, false, false);
        m.mask = if backing { all } else { have | written };
        m.pending = u32::from(backing) + u32::from(cached.is_some());
        if backing {
            self.read_merge_backing(cx, merge);
        }
        if let Some((slot, _)) = cached {
            cx.map.set_hit(slot);
            self.read_merge_cached(cx, merge, slot, 1);
        }
        if self.merges.get(merge).pending == 0 {
            self.assemble(cx, merge);
        }
    }

    /// Counts a merged read as a miss if it needs the backing store, otherwise as a hit.
    fn count_merged_read(&mut self, cx: &mut Context, merge: u32, backing: bool) {
        let m = self.merges.get_mut(merge);
        let (req, first) = (m.req, !core::mem::replace(&mut m.counted, true));
        cx.reqs.get_mut(req).missed |= backing;
        match (first, backing) {
            (true, true) => cx.count_misses(req, 1),
            (true, false) => cx.count_hits(req, 1),
            (false, _) => {}
        }
    }

    fn read_merge_backing(&mut self, cx: &mut Context, merge: u32) {
        let base = self.merge_base(cx, merge);
        let m = self.merges.get_mut(merge);
        m.backing_tries += 1;
        let (volume, block, purpose, req) = (m.volume, m.block, m.purpose, m.req);
        let mut len = cx.volume(volume).block_len(block) as u32;
        if purpose == MergeFor::Read {
            len = len.min((cx.read_end(req) - block * BLOCK) as u32);
        }
        if base.len > len {
            cx.actions.push_io(IoAction::FillZero { span: base });
        }
        let span = Span { len, ..base };
        cx.volume_mut(volume).misses_in_flight += 1;
        cx.read(Device::Backing(volume), block * BLOCK, &[span], false, OpKind::MergeBacking { merge });
    }

    fn read_merge_cached(&self, cx: &mut Context, merge: u32, slot: u32, tries: u32) {
        cx.map.pin(slot);
        let page = self.merge_pages(merge).1;
        let kind = OpKind::MergeCached { merge, tries };
        cx.read_slots((slot, 1), tries, &[page.span()], kind);
    }

    fn merge_pages(&self, merge: u32) -> (Page, Page) {
        self.merges.get(merge).pages.expect("a merge that reads has pages")
    }

    /// Where the block is merged: in a page, or for a read in the client's buffer.
    fn merge_base(&self, cx: &Context, merge: u32) -> Span {
        let m = self.merges.get(merge);
        match m.purpose {
            MergeFor::Read => cx.reqs.get(m.req).block_span(m.block, 1),
            _ => self.merge_pages(merge).0.span(),
        }
    }

    pub(crate) fn merge_part_read(&mut self, cx: &mut Context, merge: u32, ok: bool) {
        let m = self.merges.get(merge);
        let (volume, tries) = (m.volume, m.backing_tries);
        cx.volume_mut(volume).misses_in_flight -= 1;
        if !ok && tries < 2 {
            self.read_merge_backing(cx, merge);
            return;
        }
        self.merge_part_done(cx, merge, ok);
    }

    pub(crate) fn merge_cached_read(
        &mut self,
        cx: &mut Context,
        merge: u32,
        tries: u32,
        ok: bool,
        crcs: &[u32],
    ) {
        let (slot, _) = self.merges.get(merge).cached.expect("a cached part was read");
        cx.map.unpin(slot);
        let trust = fault::planted(PlantedBug::SkipChecksum);
        if ok && (trust || crcs.first() == Some(&cx.map.crc(slot))) {
            self.merge_part_done(cx, merge, true);
            return;
        }
        let m = self.merges.get(merge);
        let still_there = cx.map.lookup(Key::new(m.volume, m.block)) == Some(slot);
        if still_there && tries < cx.members.slot_tries(&cx.map, slot) {
            self.read_merge_cached(cx, merge, slot, tries + 1);
            return;
        }
        let damage = if still_there { cx.give_up(slot) } else { Damage::Dropped };
        let m = self.merges.get_mut(merge);
        m.again = true;
        m.without_cached = damage == Damage::Kept;
        // Without the cache, the sectors that a write covers heal, and only the rest stays lost.
        let heals = matches!(m.purpose, MergeFor::Direct(_)) && cx.failure.runs_without_cache();
        self.merge_part_done(cx, merge, damage != Damage::Lost || heals);
    }

    fn merge_part_done(&mut self, cx: &mut Context, merge: u32, ok: bool) {
        let m = self.merges.get_mut(merge);
        m.failed |= !ok;
        m.pending -= 1;
        if m.pending > 0 {
            return;
        }
        if m.failed {
            self.end_merge(cx, merge, None);
        } else if m.again {
            self.read_parts(cx, merge);
        } else {
            self.assemble(cx, merge);
        }
    }

    /// Copies the parts into one block.
    fn assemble(&mut self, cx: &mut Context, merge: u32) {
        let base = self.merge_base(cx, merge);
        let m = self.merges.get(merge);
        let (part, purpose, backing, cached, req) = (m.part, m.purpose, m.backing, m.cached, m.req);
        if !backing {
            cx.actions.push_io(IoAction::FillZero { span: base });
        }
        if let Some((_, mask)) = cached {
            let page = self.merge_pages(merge).1;
            for (from, to) in sector_runs(mask) {
                let to_span = Span { offset: base.offset + from, len: to - from, ..base };
                cx.actions.push_io(IoAction::Copy { from: page.part(from, to), to: to_span });
            }
        }
        if purpose == MergeFor::Read {
            self.end_merge(cx, merge, None);
            return;
        }
        let to = Span { offset: base.offset + part.0, len: part.1 - part.0, ..base };
        let request = cx.reqs.get(req);
        if matches!(request.kind, RequestKind::Write { .. }) {
            let from = request.block_span(self.merges.get(merge).block, 1);
            let from = Span { offset: from.offset + part.0, len: part.1 - part.0, ..from };
            cx.actions.push_io(IoAction::Copy { from, to });
        } else {
            cx.actions.push_io(IoAction::FillZero { span: to });
        }
        let op = cx.ops.begin(OpKind::MergeCrc { merge }, cx.now);
        cx.actions.push_io(IoAction::Crc { op: OpId(op), span: base });
    }

    pub(crate) fn merge_summed(&mut self, cx: &mut Context, merge: u32, crcs: &[u32]) {
        self.end_merge(cx, merge, crcs.first().copied());
    }

    /// Passes the merged block on. `crc` is `None` for a read, and if a part could not be read.
    fn end_merge(&mut self, cx: &mut Context, merge: u32, crc: Option<u32>) {
        let m = self.merges.remove(merge);
        let (base, cached) = m.pages.expect("a merge that ends has pages");
        cx.pages.give(PageUse::Merge, cached);
        match (m.purpose, crc) {
            (MergeFor::Read, _) => {
                cx.pages.give(PageUse::Merge, base);
                cx.read_part_done(m.req, !m.failed);
            }
            (MergeFor::Log, Some(crc)) => {
                // The last block of an odd volume never gets a full mask: should the volume grow,
                // the cache does not have the sectors behind its former end.
                let item = Item {
                    key: Key::new(m.volume, m.block),
                    crc,
                    kind: ItemKind::Data { mask: m.mask, dirty: true },
                    span: Some(base.span()),
                    done: ItemOwner::Merge(m.req, base),
                };
                cx.enqueue(StreamKind::Write, item);
            }
            (MergeFor::Log, None) => {
                cx.pages.give(PageUse::Merge, base);
                self.logged(cx, m.req, false);
            }
            (MergeFor::Direct(direct), crc) => self.direct_merged(cx, direct, m.block, base, crc.is_some()),
        }
    }
}
