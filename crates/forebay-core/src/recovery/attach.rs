//! Attaching volumes at the end of recovery: does the backing store still match the cache?
//!
//! If a backing store was changed while the cache was offline, clean blocks are stale, and dirty
//! ones dangerous. A change is detected by the modification stamp (after an orderly stop), by
//! checksums of some blocks (those recorded at an orderly stop, or else clean cached blocks), by
//! the identity if no sample matches, and by the owner's findings ([`Suspicion`]): after an unclean
//! stop only the owner can distinguish its own last writes from those of others.

use crate::api::config::{Attachment, OnBackingChange, Suspicion};
use crate::api::open_error::OpenError;
use crate::api::{Device, Notice};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::operations::OpKind;
use crate::context::pages::PageUse;
use crate::context::sectors::{BLOCK, sector_mask};
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::MASK_FULL;
use crate::map::segment::{BLOCK_LAST, BlockState, Key};
use crate::recovery::state::{Recovery, Sample, Verdict};
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;

/// Number of clean blocks compared with the backing store after an unclean stop.
const SAMPLES_UNCLEAN: usize = 32;

impl CacheMap {
    /// The size to serve. A volume that has grown keeps its old size as long as its last block is
    /// odd and dirty and it (or an older version of it) has sectors beyond the old end: they are
    /// left from a larger size of the volume, and are long obsolete.
    pub(crate) fn size_to_serve(&mut self, attachment: &Attachment, entry: &VolumeEntry) -> u64 {
        let grown = attachment.size_bytes > entry.size_bytes;
        if !grown || entry.size_bytes.is_multiple_of(BLOCK) {
            return attachment.size_bytes;
        }
        let key = Key::new(entry.id, entry.size_bytes / BLOCK);
        let inside = sector_mask(0, entry.size_bytes % BLOCK);
        if self.shadows_reach_beyond(key, inside) {
            return entry.size_bytes;
        }
        match self.lookup(key).filter(|slot| self.mask(*slot) & !inside != 0) {
            Some(slot) if self.state(slot) != BlockState::Clean => entry.size_bytes,
            Some(_) => {
                self.remove(key);
                attachment.size_bytes
            }
            None => attachment.size_bytes,
        }
    }

    /// Some clean cached blocks: after an unclean stop they are the known content of the backing
    /// store.
    fn clean_samples(&self, volume: VolumeId) -> Vec<Sample> {
        let cached = self.volumes[usize::from(volume.0)].cached;
        let stride = (cached / SAMPLES_UNCLEAN as u64).max(1);
        let mut samples = Vec::new();
        let mut seen = 0_u64;
        self.for_each_in(volume, 0, BLOCK_LAST, |slot| {
            if self.state(slot) == BlockState::Clean && self.mask(slot) == MASK_FULL {
                if seen.is_multiple_of(stride) && samples.len() < SAMPLES_UNCLEAN {
                    samples.push(Sample { block: self.key(slot).block(), crc32c: self.crc(slot) });
                }
                seen += 1;
            }
        });
        samples
    }

    /// Drops all blocks of a volume that are not clean; returns their number.
    fn discard_dirty(&mut self, volume: VolumeId) -> u64 {
        let mut keys = Vec::new();
        self.for_each_in(volume, 0, BLOCK_LAST, |slot| {
            if self.state(slot) != BlockState::Clean {
                keys.push(self.key(slot));
            }
        });
        for key in &keys {
            self.remove(*key);
        }
        keys.len() as u64
    }
}

impl Context {
    /// Evidence of a changed backing store, and the samples to compare.
    fn suspect(&self, attachment: &Attachment, entry: &VolumeEntry) -> Verdict {
        let (now, then) = (&attachment.backing, &entry.backing);
        // While a volume is in use nothing is recorded about its backing store; the entry of a
        // detached volume has the state at the detach.
        let noted = then.stamp_ns.is_some() || !then.samples.is_empty();
        let unsure = then.kind != 0 && now.unique != then.unique;
        let mut verdict = Verdict { unsure, ..self.suspicion(attachment, noted) };
        if noted {
            if let (Some(now), Some(then)) = (now.stamp_ns, then.stamp_ns) {
                verdict.changed = now != then;
                verdict.unsure &= verdict.changed;
            }
            verdict.samples = then
                .samples
                .iter()
                .map(|(block, crc32c)| Sample { block: *block, crc32c: *crc32c })
                .collect();
        } else {
            verdict.samples = self.map.clean_samples(entry.id);
        }
        let whole = attachment.size_bytes / BLOCK;
        verdict.samples.retain(|sample| sample.block < whole);
        verdict
    }

    /// As `suspect`, looking at a bounded part of the map.
    pub(crate) fn suspect_online(&self, attachment: &Attachment, entry: &VolumeEntry) -> Verdict {
        let noted = entry.backing.stamp_ns.is_some() || !entry.backing.samples.is_empty();
        if noted {
            return self.suspect(attachment, entry);
        }
        let mut verdict = self.suspicion(attachment, false);
        verdict.unsure = entry.backing.kind != 0 && attachment.backing.unique != entry.backing.unique;
        let stride = (self.map.segments.len() / (2 * SAMPLES_UNCLEAN)).max(1);
        let whole = attachment.size_bytes / BLOCK;
        for number in (0..self.map.segments.len() as u32).step_by(stride) {
            let segment = &self.map.segments[number as usize];
            let of_volume = |index: &u32| {
                let slot = self.map.slot(number, *index);
                let key = segment.key(*index);
                segment.state(*index) == BlockState::Clean
                    && key.volume() == entry.id
                    && key.block() < whole
                    && self.map.mask(slot) == MASK_FULL
            };
            let indices = 0..self.map.geometry.segment_blocks;
            if let Some(index) = indices.filter(|_| segment.live > 0).find(of_volume) {
                let block = segment.key(index).block();
                verdict.samples.push(Sample { block, crc32c: segment.crc(index) });
            }
        }
        verdict.samples.truncate(SAMPLES_UNCLEAN);
        verdict
    }

    /// The owner's suspicion. The records of an orderly stop outweigh its doubts.
    fn suspicion(&self, attachment: &Attachment, noted: bool) -> Verdict {
        let heard = !fault::planted(PlantedBug::TrustAfterCrash);
        let says = |suspicion| heard && attachment.suspicion == suspicion;
        Verdict {
            changed: says(Suspicion::Changed),
            uncertain: says(Suspicion::Uncertain) && !noted,
            ..Verdict::default()
        }
    }
}

impl Recovery {
    pub(crate) fn attach(&mut self, cx: &mut Context) -> Result<(), OpenError> {
        let table = core::mem::take(&mut self.checkpoint.volumes);
        cx.volume_table = table;
        for attachment in self.attachments.clone() {
            let id = attachment.volume;
            let entry = cx.volume_table.iter().find(|entry| entry.id == id).cloned();
            let entry = entry.ok_or(OpenError::UnknownVolume(id))?;
            if attachment.size_bytes < entry.size_bytes {
                return Err(OpenError::BackingShrunk {
                    recorded: entry.size_bytes,
                    now: attachment.size_bytes,
                });
            }
            let verdict = cx.suspect(&attachment, &entry);
            self.verdicts.push(verdict);
            let size_bytes = cx.map.size_to_serve(&attachment, &entry);
            let attachment = Attachment { size_bytes, ..attachment };
            cx.enter_volume(&attachment);
        }
        self.next_sample(cx);
        Ok(())
    }

    /// Reads the next sample, one at a time; judges when none is left.
    fn next_sample(&mut self, cx: &mut Context) {
        let recovery = &mut *self;
        let next =
            recovery.verdicts.iter().position(|verdict| !verdict.samples.is_empty() && !verdict.changed);
        let Some(index) = next else {
            if let Err(error) = self.judge(cx) {
                cx.fail_opening(error);
            }
            return;
        };
        let sample = recovery.verdicts[index].samples[recovery.verdicts[index].samples.len() - 1];
        let volume = recovery.attachments[index].volume;
        let page = cx.pages.take(PageUse::Destage).expect("nothing else takes pages yet");
        let kind = OpKind::Sample { volume, index: index as u32 };
        cx.read(Device::Backing(volume), sample.block * BLOCK, &[page.span()], true, kind);
        cx.pages.give(PageUse::Destage, page);
    }

    pub(crate) fn sample_read(&mut self, cx: &mut Context, index: u32, ok: bool, crcs: &[u32]) {
        if !ok {
            cx.fail_opening(OpenError::BackingUnreadable);
            return;
        }
        self.verdicts[index as usize].compare(crcs.first().copied());
        self.next_sample(cx);
    }

    /// Decides for each volume which blocks of the cache are trusted: a backing store has changed
    /// if its modification stamp did, if a sample differs, or if it has another identity and no
    /// sample matches.
    fn judge(&mut self, cx: &mut Context) -> Result<(), OpenError> {
        let recovery = &mut *self;
        let verdicts = core::mem::take(&mut recovery.verdicts);
        let volumes: Vec<VolumeId> =
            recovery.attachments.iter().map(|attachment| attachment.volume).collect();
        let policies: Vec<OnBackingChange> =
            recovery.attachments.iter().map(|attachment| attachment.on_change).collect();
        for ((id, policy), verdict) in volumes.iter().zip(policies).zip(verdicts) {
            if verdict.is_uncertain() {
                let dropped = cx.map.drop_clean(*id, 0, BLOCK_LAST);
                cx.actions.notice(Notice::BackingUncertain { volume: *id, dropped });
            }
            if !verdict.is_changed() {
                continue;
            }
            let dirty_blocks = cx.map.dirty_blocks(*id);
            let mut discarded = 0;
            match policy {
                OnBackingChange::Refuse if dirty_blocks > 0 => {
                    return Err(OpenError::BackingChanged { volume: *id, dirty_blocks });
                }
                OnBackingChange::DiscardDirty => discarded = cx.map.discard_dirty(*id),
                OnBackingChange::Refuse | OnBackingChange::KeepDirty => {}
            }
            cx.coverage.add(CoverageMark::BackingChanged);
            cx.map.forget_order(*id);
            let dropped = cx.map.drop_clean(*id, 0, BLOCK_LAST);
            cx.actions.notice(Notice::BackingChanged { volume: *id, dropped, discarded });
        }
        self.settle_devices(cx, &volumes);
        Ok(())
    }
}
