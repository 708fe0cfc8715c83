//! The verdict on a cache: the state of every slot, and whether its bytes are intact.
//!
//! The checkpoint has the state of each slot. The changes of the log after it are applied to that
//! (`Overlay`). Then each segment in use is read once: its headers are compared with its summary,
//! and every live block with its checksum. Where headers and summary differ the summary counts, as
//! in recovery. A slot on which they differ is *disputed*.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use forebay_format::batch::Entry;
use forebay_format::checkpoint::{Checkpoint, INTENT_REGION_BLOCKS, Intent, SegmentEntry, SlotState};
use forebay_format::{BLOCK_BYTES, VolumeId};

use crate::image::{Bytes, Image};
use crate::log::{self, Batch};
use crate::{Findings, Severity};

/// A block of a volume.
type Key = (VolumeId, u64);

/// The content of a slot, by its description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Content {
    key: Key,
    crc32c: u32,
    sector_mask: u8,
}

/// Blocks of one volume in the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Dirty blocks.
    pub dirty: u64,
    /// Clean blocks.
    pub clean: u64,
    /// Dirty and clean blocks with only some valid sectors.
    pub partial: u64,
    /// Damaged dirty blocks.
    pub dirty_bad: u64,
    /// Damaged clean blocks.
    pub clean_bad: u64,
    /// Clean blocks that the next start drops, because bypass writes may have superseded them.
    pub dropped: u64,
    /// Older versions of dirty blocks that the checkpoint keeps for ordered destage. (Later ones
    /// are not counted: losing them loses nothing.)
    pub shadows: u64,
}

/// The results.
#[derive(Debug, Default)]
pub struct Verdict {
    /// By volume.
    pub held: BTreeMap<u16, Held>,
    /// Batches after the checkpoint that are replayed.
    pub replayed: u64,
    /// Segments read.
    pub segments_read: u64,
    /// Headers, summaries and blocks checked against their checksums.
    pub checked: u64,
    /// Dirty slots whose block is unknown because it is unreadable.
    pub unknown_dirty: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Volume, and block in it.
    pub key: (VolumeId, u64),
    /// Its valid sectors in the slot.
    pub sector_mask: u8,
    /// The state of its slot.
    pub state: SlotState,
    /// Sequence of its batch, if it was logged after the checkpoint.
    pub sequence: Option<u64>,
    /// Headers and summary of its segment name different blocks for the slot.
    pub disputed: bool,
    /// Its bytes, if they match their checksum.
    pub bytes: Option<&'a [u8]>,
}

/// Callbacks of a walk.
pub struct Watcher<'a> {
    /// Gets the number of segments done, and of all.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Gets every live block (not the clean ones that the next start drops).
    pub block: &'a mut dyn FnMut(Block<'_>),
    /// Only dirty blocks are wanted: clean ones are not read.
    pub dirty_only: bool,
}

impl Verdict {
    /// Returns the sum over all volumes.
    pub fn total(&self) -> Held {
        let mut total = Held::default();
        for held in self.held.values() {
            total.dirty += held.dirty;
            total.clean += held.clean;
            total.partial += held.partial;
            total.dirty_bad += held.dirty_bad;
            total.clean_bad += held.clean_bad;
            total.dropped += held.dropped;
            total.shadows += held.shadows;
        }
        total
    }
}

/// A slot written after the checkpoint.
#[derive(Clone, Copy, Debug)]
struct Written {
    content: Content,
    state: SlotState,
    sequence: u64,
}

/// The changes of the log after the checkpoint.
#[derive(Debug, Default)]
struct Overlay {
    /// Live slots written after the checkpoint.
    written: HashMap<u32, Written>,
    place: HashMap<Key, u32>,
    /// Blocks whose slots in the checkpoint are superseded.
    superseded: HashSet<Key>,
    /// Slots of the checkpoint with clean marks; `dropped`: with drop marks.
    cleaned: HashSet<u32>,
    dropped: HashSet<u32>,
    intents: Vec<Intent>,
}

impl Overlay {
    fn new(batches: &[Batch], checkpoint: &Checkpoint, slot_count: u32) -> Self {
        let mut overlay = Self { intents: checkpoint.intents.clone(), ..Self::default() };
        for batch in batches {
            overlay.apply(batch, checkpoint.segment_blocks, slot_count);
        }
        overlay
    }

    fn apply(&mut self, batch: &Batch, segment_blocks: u32, slot_count: u32) {
        for (index, entry) in batch.data() {
            let Entry::Data { volume, block, crc32c, sector_mask, dirty, .. } = *entry else { continue };
            let (key, slot) = ((volume, block), batch.segment * segment_blocks + index);
            let state = if dirty { SlotState::Dirty } else { SlotState::Clean };
            if let Some(old) = self.place.insert(key, slot) {
                self.written.remove(&old);
            }
            self.superseded.insert(key);
            let content = Content { key, crc32c, sector_mask };
            self.written.insert(slot, Written { content, state, sequence: batch.header.sequence });
        }
        for entry in &batch.entries {
            match *entry {
                Entry::CleanMark { slot, count } => {
                    for slot in slot.0..slot.0.saturating_add(count).min(slot_count) {
                        match self.written.get_mut(&slot) {
                            Some(written) => written.state = SlotState::Clean,
                            None => drop(self.cleaned.insert(slot)),
                        }
                    }
                }
                Entry::DropMark { slot, count } => {
                    for slot in slot.0..slot.0.saturating_add(count).min(slot_count) {
                        match self.written.remove(&slot) {
                            Some(written) => drop(self.place.remove(&written.content.key)),
                            None => drop(self.dropped.insert(slot)),
                        }
                    }
                }
                Entry::Intent { volume, region, count } => {
                    self.intents.push(Intent { volume, region, count })
                }
                Entry::Data { .. } | Entry::Summary { .. } => {}
            }
        }
    }

    /// Returns the present state of a slot that is live in the checkpoint.
    fn worth(&self, slot: u32, content: &Content, state: SlotState) -> SlotState {
        if self.dropped.contains(&slot) || self.superseded.contains(&content.key) {
            return SlotState::Void;
        }
        match state {
            SlotState::Dirty if self.cleaned.contains(&slot) => SlotState::Clean,
            SlotState::Shadow if self.cleaned.contains(&slot) => SlotState::Void,
            state => state,
        }
    }

    /// Returns true if a block lies where bypass writes may have happened.
    fn is_intended(&self, key: Key) -> bool {
        self.intents.iter().any(|intent| {
            let region = key.1 / INTENT_REGION_BLOCKS;
            intent.volume == key.0
                && region >= intent.region
                && region - intent.region < u64::from(intent.count)
        })
    }
}

/// Verifies a cache. `progress` gets the number of segments done, and of all.
pub fn verify(
    image: &Image,
    checkpoint: &Checkpoint,
    findings: &mut Findings,
    progress: &mut dyn FnMut(u64, u64),
) -> Verdict {
    let replay = log::after_checkpoint(image, checkpoint, findings);
    let watcher = Watcher { progress, block: &mut |_| {}, dirty_only: false };
    walk(image, checkpoint, &replay.batches, findings, watcher)
}

/// Reads every segment with live blocks, given the batches logged after the checkpoint.
pub fn walk(
    image: &Image,
    checkpoint: &Checkpoint,
    batches: &[Batch],
    findings: &mut Findings,
    mut watcher: Watcher<'_>,
) -> Verdict {
    let overlay = Overlay::new(batches, checkpoint, image.geometry().slot_count());
    let mut verdict = Verdict { replayed: batches.len() as u64, ..Verdict::default() };
    let numbers = segments_in_use(checkpoint, &overlay, watcher.dirty_only);
    let total = numbers.len() as u64;
    for (done, number) in (0..).zip(numbers) {
        (watcher.progress)(done, total);
        let entry = &checkpoint.segments[number as usize];
        let mut walk = Walk {
            image,
            overlay: &overlay,
            findings,
            verdict: &mut verdict,
            watcher: &mut watcher,
            number,
            disputed: BTreeSet::new(),
        };
        walk.segment(entry, &log::Use::of(checkpoint, number, entry));
    }
    (watcher.progress)(total, total);
    verdict
}

/// Returns the segments with live blocks.
fn segments_in_use(checkpoint: &Checkpoint, overlay: &Overlay, dirty_only: bool) -> Vec<u32> {
    let clean = |state| matches!(state, SlotState::Void | SlotState::Clean);
    let logged = overlay.written.iter().filter(|(_, written)| !(dirty_only && clean(written.state)));
    let mut numbers: Vec<u32> = logged.map(|(slot, _)| slot / checkpoint.segment_blocks).collect();
    let counts = |entry: &SegmentEntry| match dirty_only {
        true => entry.slots.iter().any(|state| !clean(state)),
        false => entry.slots.live() > 0,
    };
    numbers
        .extend((0..).zip(&checkpoint.segments).filter(|(_, entry)| counts(entry)).map(|(number, _)| number));
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// The walk over one segment.
struct Walk<'a, 'w> {
    image: &'a Image,
    overlay: &'a Overlay,
    findings: &'a mut Findings,
    verdict: &'a mut Verdict,
    watcher: &'a mut Watcher<'w>,
    number: u32,
    /// Slots of the checkpoint on which headers and summary differ.
    disputed: BTreeSet<u32>,
}

impl Walk<'_, '_> {
    fn segment(&mut self, entry: &SegmentEntry, of: &log::Use) {
        let bytes = self.image.segment(self.number);
        let blocks = self.image.geometry().segment_blocks;
        self.verdict.segments_read += 1;
        let mut contents = vec![None; blocks as usize];
        if entry.state.has_slots() {
            self.described(entry, of, &bytes, &mut contents);
        }
        for index in 0..blocks {
            let slot = self.number * blocks + index;
            if let Some(written) = self.overlay.written.get(&slot) {
                self.block(&bytes, index, &written.content, (written.state, Some(written.sequence)));
                continue;
            }
            let state = entry.slots.get(index);
            if state == SlotState::Void {
                continue;
            }
            match contents[index as usize] {
                Some(content) => {
                    let worth = self.overlay.worth(slot, &content, state);
                    self.block(&bytes, index, &content, (worth, None));
                }
                None => self.unknown(index, state),
            }
        }
    }

    /// Determines the block of each slot, from the headers and from the summary, and compares the
    /// two.
    fn described(
        &mut self,
        entry: &SegmentEntry,
        of: &log::Use,
        bytes: &Bytes,
        contents: &mut [Option<Content>],
    ) {
        let number = self.number;
        let (batches, stopped) = log::accounted(bytes, of, entry.used_blocks);
        self.verdict.checked += batches.len() as u64;
        for batch in &batches {
            for (index, entry) in batch.data() {
                if let Entry::Data { volume, block, crc32c, sector_mask, .. } = *entry {
                    contents[index as usize] = Some(Content { key: (volume, block), crc32c, sector_mask });
                }
            }
        }
        let summary = (entry.summary_block > 0).then(|| log::summary_payload(bytes, of, entry.summary_block));
        if let Some((at, why)) = stopped {
            let instead = if matches!(summary, Some(Ok(_))) { "; the summary counts" } else { "" };
            let what = format!("{why}{instead}");
            self.findings.add(
                Severity::Damaged,
                format!("segment {number}, batch header at block {at}"),
                what,
            );
        }
        match summary {
            None => {}
            Some(Err(why)) => {
                let place = format!("segment {number}, summary at block {}", entry.summary_block);
                self.findings.add(Severity::Damaged, place, format!("{why}; the batch headers count"));
            }
            Some(Ok(payload)) => self.summary(payload, entry.summary_block, contents),
        }
    }

    /// Replaces the information of the headers by that of an intact summary.
    fn summary(&mut self, payload: &[u8], at: u32, contents: &mut [Option<Content>]) {
        self.verdict.checked += 1;
        let by_headers = contents.to_vec();
        contents.fill(None);
        for (index, item) in log::summary_items(payload, at) {
            let content = Content {
                key: (item.volume, item.block),
                crc32c: item.crc32c,
                sector_mask: item.sector_mask,
            };
            let Some(place) = contents.get_mut(index as usize) else { continue };
            *place = Some(content);
            if by_headers[index as usize].is_some_and(|known| known != content) {
                self.disputed.insert(index);
                let place = format!("segment {}, slot {index}", self.number);
                let what = "summary and batch header differ; the summary counts";
                self.findings.add(Severity::Damaged, place, what);
            }
        }
    }

    /// Reports a slot that is live in the checkpoint and whose block is unknown.
    fn unknown(&mut self, index: u32, state: SlotState) {
        let place = format!("segment {}, slot {index}", self.number);
        match state {
            SlotState::Dirty => {
                self.verdict.unknown_dirty += 1;
                let what = "a dirty block whose address cannot be read: the cache will be refused";
                self.findings.add(Severity::Lost, place, what);
            }
            SlotState::Shadow => {
                let what = "an older version of a dirty block, whose address cannot be read: the next start forgets it";
                self.findings.add(Severity::Damaged, place, what);
            }
            SlotState::Void | SlotState::Clean => {
                let what = "a clean block whose address cannot be read: the next start forgets it";
                self.findings.add(Severity::Damaged, place, what);
            }
        }
    }

    /// Counts a block and compares it with its checksum.
    fn block(
        &mut self,
        bytes: &Bytes,
        index: u32,
        content: &Content,
        (state, sequence): (SlotState, Option<u64>),
    ) {
        if self.watcher.dirty_only && state == SlotState::Clean {
            return;
        }
        let held = self.verdict.held.entry(content.key.0.0).or_default();
        match state {
            SlotState::Void => return,
            SlotState::Clean if self.overlay.is_intended(content.key) => {
                held.dropped += 1;
                return;
            }
            SlotState::Clean => held.clean += 1,
            SlotState::Dirty => held.dirty += 1,
            SlotState::Shadow => held.shadows += 1,
        }
        held.partial += u64::from(content.sector_mask != u8::MAX);
        self.verdict.checked += 1;
        let found = bytes.block(index).map(forebay_format::checksum);
        let unreadable = bytes.unreadable.contains(&index);
        let mut intact = found == Some(content.crc32c) && !unreadable;
        // Callers that check each copy read through each device; callers that want the data take
        // either.
        let mirror = self.image.mirror().filter(|_| self.watcher.dirty_only && !intact);
        let mut copies = mirror.into_iter().flat_map(|mirror| mirror.copies(self.number, index));
        let other = copies.find(|block| forebay_format::checksum(block) == content.crc32c);
        intact |= other.is_some();
        (self.watcher.block)(Block {
            key: content.key,
            sector_mask: content.sector_mask,
            state,
            sequence,
            disputed: sequence.is_none() && self.disputed.contains(&index),
            bytes: other.as_deref().or_else(|| bytes.block(index)).filter(|_| intact),
        });
        if intact {
            return;
        }
        let why = match found {
            Some(found) if !unreadable => {
                format!("checksum {:#010x}, computed {found:#010x}", content.crc32c)
            }
            _ => "the device cannot read it".into(),
        };
        let bytes_from = content.key.1.saturating_mul(BLOCK_BYTES as u64);
        let place =
            format!("segment {}, slot {index}: volume {}, byte {bytes_from}", self.number, content.key.0.0);
        if state == SlotState::Shadow {
            let what =
                format!("an older version of a dirty block is damaged; the newest is elsewhere: {why}");
            self.findings.add(Severity::Damaged, place, what);
        } else if state == SlotState::Dirty {
            held.dirty_bad += 1;
            self.findings.add(
                Severity::Lost,
                place,
                format!("dirty block damaged, this was the only copy: {why}"),
            );
        } else {
            held.clean_bad += 1;
            let what = format!("clean block damaged, it will be read from the backing store: {why}");
            self.findings.add(Severity::Damaged, place, what);
        }
    }
}
